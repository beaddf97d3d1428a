"""Making a clone's directory equal to a commit, but for what was changed in it."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from lakeops.model.changes import Change
from lakeops.model.clock import Ids
from lakeops.model.errors import CloneConflict, InvalidInput, InvalidPath
from lakeops.model.progress import ByteCounter
from lakeops.model.records import Commit, Entry
from lakeops.model.text import excerpt
from lakeops.model.words import human_size
from lakeops.ops.context import Context
from lakeops.ops.files import translated
from lakeops.ops.local.index import Index, Journal, Known, journal, write
from lakeops.ops.local.names import PLACE, check_names, folds_letters, is_marker
from lakeops.ops.local.tree import PIECE, WorkTree, compare, read_tree
from lakeops.ops.view import list_objects, open_entry
from lakeops.store.in_flight import in_parallel


def wanted_at(ctx: Context, commit: Commit, prefix: str, folder: Path) -> dict[str, Entry]:
    """What a commit has under a prefix, by name below it. Raises ``InvalidPath`` where that cannot be files."""
    found = {
        entry.path.removeprefix(prefix): entry
        for entry in list_objects(ctx, commit.id, prefix)
        if isinstance(entry, Entry) and not is_marker(entry)
    }
    check_names(found, folds=folds_letters(folder))
    return found


def take(
    ctx: Context, folder: Path, index: Index, ref: str, commit: Commit, wanted: Mapping[str, Entry], *, force: bool
) -> tuple[list[Change], list[Change]]:
    """Make a clone equal to a commit of ``ref``, which has ``wanted`` under the prefix. It follows the ref then.

    Files that were changed here alone stay. Returns what they are, and what was taken.

    Raises:
        CloneConflict: files were changed here and there, and ``force`` does not give them up. Nothing was written; or
            a file was changed while this ran, and it stays as it is.
        InvalidPath: the objects cannot be files there. Nothing was written.
        InvalidInput: the disk is full, or the operating system refuses.
    """
    tree = read_tree(ctx, folder, index)
    sides = compare(folder, index, tree, wanted)
    if sides.conflicts and not force:
        raise CloneConflict(str(folder), ref, sides.conflicts)
    taken = {change.path for change in sides.there}
    own = [name for name in tree.files if name not in taken]
    coming = [name for name in wanted if name in taken]  # of the others, some were removed here
    check_names([*own, *coming], folds=folds_letters(folder))
    _check_ways(folder, wanted, taken)
    _check_room(folder, sum(change.size_bytes for change in sides.there if change.path in wanted))
    files = {name: known for name, known in index.files.items() if name not in taken}
    files.update((name, known) for name, known in tree.files.items() if known.checksum and name not in taken)
    for name, checksum in sides.agreed.items():
        files.pop(name, None)
        if checksum is not None:
            files[name] = replace(tree.files[name], checksum=checksum)
    given_up = set(sides.conflicts)
    if taken:
        with journal(folder, ref) as noted:
            for change in sides.there:
                if change.path not in wanted:
                    _remove(folder, change.path, tree, noted, ref, given_up)
            _download(ctx, folder, sides.there, wanted, tree, noted, ref, given_up, files)
    write(folder, replace(index, ref=ref, commit=commit.id, whole=True, files=files))
    return [change for change in sides.here if change.path not in taken], sides.there


def _check_ways(folder: Path, wanted: Mapping[str, Entry], taken: set[str]) -> None:
    """Refuse to write through a link, before anything is written. Raises ``InvalidPath``."""
    for parent in {Path(name).parent for name in taken if name in wanted}:
        current = folder
        for part in parent.parts:
            current /= part
            if current.is_symlink():
                raise InvalidPath(
                    f"{excerpt(str(current))} is a symbolic link that leads elsewhere; nothing was written"
                )


def _check_room(folder: Path, needed: int) -> None:
    with translated(folder):
        free = shutil.disk_usage(folder).free
    if needed > free:
        raise InvalidInput(
            f"{excerpt(str(folder))}: no space left on device: {human_size(needed)} to write, {human_size(free)} free; "
            "nothing was replaced"
        )


def _check_unchanged(folder: Path, name: str, tree: WorkTree, ref: str, given_up: set[str]) -> None:
    """Refuse to touch a file that was changed since it was looked at. Raises ``CloneConflict``."""
    try:
        status: os.stat_result | None = (folder / name).lstat()
    except (FileNotFoundError, NotADirectoryError):
        status = None
    known = tree.files.get(name)
    same = status is None if known is None else status is not None and known.is_like(status)
    if not same and name not in given_up:
        raise CloneConflict(str(folder), ref, [name])


def _remove(folder: Path, name: str, tree: WorkTree, noted: Journal, ref: str, given_up: set[str]) -> None:
    target = folder / name
    with translated(target):
        _check_unchanged(folder, name, tree, ref, given_up)
        noted.goes(name)
        target.unlink(missing_ok=True)
        with suppress(OSError):  # the first folder that is not empty
            for parent in target.relative_to(folder).parents:
                if parent.parts:
                    (folder / parent).rmdir()


def _download(
    ctx: Context,
    folder: Path,
    there: list[Change],
    wanted: Mapping[str, Entry],
    tree: WorkTree,
    noted: Journal,
    ref: str,
    given_up: set[str],
    files: dict[str, Known],
) -> None:
    coming = [change.path for change in there if change.path in wanted]
    counter = ByteCounter(ctx.progress, "Downloading", sum(wanted[name].size_bytes for name in coming))
    still = partial(_check_unchanged, folder, tree=tree, ref=ref, given_up=given_up)

    def fetch(name: str) -> Known:
        draft = folder / PLACE / f".lakeops-{Ids().new()}.part"
        target = folder / name
        try:
            with translated(target):
                known = _draft(ctx, wanted[name], draft, counter)
                target.parent.mkdir(parents=True, exist_ok=True)
                still(name)
                noted.appears(name, known)
                draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)
        return known

    files.update(zip(coming, in_parallel(coming, fetch), strict=True))


def _draft(ctx: Context, entry: Entry, draft: Path, counter: ByteCounter) -> Known:
    """Write an object's contents to a new file."""
    total = hashlib.sha256()
    with open_entry(ctx, entry, verify=True) as source, draft.open("xb") as file:
        while piece := source.read(PIECE):
            file.write(piece)
            total.update(piece)
            counter.add(len(piece))
        file.flush()
        status = os.fstat(file.fileno())
    return Known(entry.checksum, status.st_size, status.st_mtime_ns, total.hexdigest())
