"""Committing what changed in a clone to the branch that it follows.

Changed files are uploaded first, as objects that nothing refers to, and then one transaction publishes all of them. So
readers of the branch never see a part, and a commit that is killed leaves files for garbage collection, at worst.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

from lakeops.catalog.records import Staged
from lakeops.model.errors import InvalidInput, MergeConflict, NoChanges
from lakeops.model.ids import check_commit_metadata, check_message
from lakeops.model.names import check_path
from lakeops.model.records import ByteCounter, Change, ChangeType, Commit, Entry, IdempotentRequest
from lakeops.model.sanitising import excerpt
from lakeops.ops.context import CatalogLookup, Context, begin_staging, resolve_commit
from lakeops.ops.files import check_new_path, reading
from lakeops.ops.local import index as indexes
from lakeops.ops.local.index import Index, Known, check_names
from lakeops.ops.local.tree import WorkTree, check_own, compare, find_clashes, read_tree, wanted_at
from lakeops.ops.publish import (
    CommitPlan,
    CommitResult,
    publish,
    publish_in_queue,
    require_clean,
    snapshot,
    write_ranges,
)
from lakeops.ops.put import write
from lakeops.ops.read import as_table
from lakeops.ranges.apply import apply
from lakeops.store.in_flight import in_parallel

MOST_ASKED = 1000
"""Objects that are asked for one by one; for more the prefix is listed."""


def commit(
    ctx: Context,
    directory: str | Path,
    message: str,
    metadata: Mapping[str, str] | None = None,
    *,
    skip_special: bool = False,
) -> Commit:
    """Commit what changed in the directory to the branch that it follows. Only changed files are uploaded.

    Others may have changed other paths since. The commit follows theirs. Their changes come with the next ``pull``.
    Content type and metadata of an object stay when its contents change.

    Args:
        skip_special: leave out links, pipes, devices and names that are not UTF-8. Without it they are an error.

    Raises:
        InvalidInput: ``invalid_ref``: the directory follows no branch.
        NoChanges: nothing changed in the directory, or the branch has the same contents already.
        MergeConflict: ``clone_conflict``: the branch has changed the same paths since. Nothing is published.
        PreconditionFailed: ``dirty_branch``: the branch has uncommitted changes.
        PreconditionFailed: ``protected_branch``, ``read_only_repository``: the branch takes no commits.
        AttemptExpired: the upload took longer than half the grace period of garbage collection.
        InvalidInput, InvalidPath: a file cannot be read, or cannot be an object.
    """
    check_message(message)
    pairs = check_commit_metadata(metadata)
    folder = indexes.find(directory)
    with indexes.alone(folder):
        index = check_own(ctx, indexes.read(folder))
        branch = index.ref
        if CatalogLookup(ctx).branch(branch) is None:
            raise InvalidInput(
                f"{branch!r} is no branch, and only a branch takes commits; follow one with `lakeops local checkout "
                "--ref`",
                kind="invalid_ref",
            )
        begun = begin_staging(ctx, branch)
        tree = read_tree(ctx, folder, index)
        _check_committable(folder, index, tree, skip_special=skip_special)
        head = resolve_commit(ctx, branch)
        paths = {change.path: index.prefix + change.path for change in tree.here}
        there = _entries_at(ctx, head, index.prefix, paths, folder)

        def clashes(commit: Commit) -> list[str]:
            """The files that were added where a commit has a folder; none at the commit that the clone began with."""
            if index.whole and index.commit == commit.id:
                return []
            return find_clashes(ctx, commit, index.prefix, tree.here)

        known = replace(index, files={name: known for name, known in index.files.items() if name in paths})
        sides = compare(folder, known, tree, {name: entry for name, entry in there.items() if entry})
        if sides.conflicts or clashes(head):
            raise MergeConflict(str(folder), branch, sides.conflicts or clashes(head), kind="clone_conflict")
        agreed = sides.agreed.items()
        files = {name: known for name, known in index.files.items() if name not in sides.agreed}
        files |= {name: replace(tree.files[name], checksum=mark) for name, mark in agreed if mark is not None}
        if not sides.here:
            indexes.write(folder, replace(index, files=files, whole=False))
            raise NoChanges(f"branch {branch!r} has the changes of {excerpt(str(folder))} already")
        sent = _send(ctx, folder, sides.here, there, begun)
        changes = as_table(Staged(paths[name], one[0] if one else None) for name, one in sent.items())
        request = IdempotentRequest("commit", branch, {}, message, pairs)

        def attempt(publisher: str | None) -> CommitResult:
            seen = snapshot(ctx, branch)
            require_clean(ctx, seen)
            now = there if seen.head.id == head.id else _entries_at(ctx, seen.head, index.prefix, paths, folder)
            moved = [
                name for name in sent if getattr(now[name], "identity", None) != getattr(there[name], "identity", None)
            ]
            if seen.head.id != head.id:
                moved += clashes(seen.head)
            if moved:
                raise MergeConflict(str(folder), branch, moved, kind="clone_conflict")
            work = partial(apply, base=ctx.metarange(seen.head), changes=changes)
            metarange, summary = write_ranges(ctx, "commit", (seen.head,), seen.started, work)
            plan = CommitPlan(metarange, (seen.head,), message, pairs, summary, begun=begun)
            return publish(ctx, request, seen, plan, publisher)

        made = publish_in_queue(ctx, request, attempt).commit
        for name, one in sent.items():
            files.pop(name, None)
            if one is not None:
                files[name] = one[1]
        whole = index.whole and index.commit == head.id and made.parents == (head.id,)
        indexes.write(folder, replace(index, files=files, whole=whole, commit=made.id if whole else index.commit))
        return made


def _check_committable(folder: Path, index: Index, tree: WorkTree, *, skip_special: bool) -> None:
    if tree.special and not skip_special:
        count, first = len(tree.special), excerpt(tree.special[0]).replace(r"\\", "\\")
        what = f"{first} is not a regular file, or not UTF-8; remove it, or leave it"
        if count > 1:
            what = f"{count:,} files are not regular or not UTF-8, such as {first}; remove them, or leave them"
        raise InvalidInput(f"{what} out with --skip-special")
    if not tree.here:
        raise NoChanges(f"nothing changed in {excerpt(str(folder))}")
    check_names((change.path for change in tree.here if change.path in tree.files), folds=False)
    for change in tree.here:
        (check_new_path if change.path in tree.files else check_path)(index.prefix + change.path)


def _entries_at(
    ctx: Context, commit: Commit, prefix: str, paths: Mapping[str, str], folder: Path
) -> dict[str, Entry | None]:
    if len(paths) <= MOST_ASKED:
        return {name: ctx.reader.stat(ctx.metarange(commit), path) for name, path in paths.items()}
    found = wanted_at(ctx, commit, prefix, folder)
    return {name: found.get(name) for name in paths}


Sent = tuple[Entry, Known]


def _send(
    ctx: Context, folder: Path, here: Sequence[Change], there: Mapping[str, Entry | None], begun: datetime
) -> dict[str, Sent | None]:
    """Upload changed files. None stands for one that was removed. No reader sees anything of it yet."""
    total = sum(change.size_bytes for change in here if change.type != ChangeType.REMOVED)
    counter = ByteCounter(ctx.progress, "Uploading", total)

    def send(change: Change) -> tuple[str, Sent | None]:
        if change.type == ChangeType.REMOVED:
            return change.path, None
        before = there[change.path]
        with reading(folder / change.path, follow=False) as file:
            status = os.fstat(file.fileno())
            entry = write(
                ctx,
                change.path,
                counter.counting(file),
                metadata=before.metadata if before else None,
                content_type=before.content_type if before else None,
                started=begun,
            )
        return change.path, (entry, Known(entry.checksum, entry.size_bytes, status.st_mtime_ns, entry.checksum))

    return dict(in_parallel(here, send))
