"""Directories that follow a folder of a ref: clone, status, pull, checkout and commit. Only differences travel.

What this room keeps true: a file that was changed in the directory is never replaced or removed unless the caller gives
it up. Each call can be killed anywhere and be run again: see ``index``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lakeops.model.encoding import JsonRecord
from lakeops.model.errors import InvalidInput
from lakeops.model.names import as_folder, given_place
from lakeops.model.records import Change, Commit, Entry
from lakeops.model.sanitising import excerpt
from lakeops.ops.context import Context, resolve_commit
from lakeops.ops.files import PLACE, is_clone_state, translated
from lakeops.ops.local import index as indexes
from lakeops.ops.local.index import Index
from lakeops.ops.local.tree import check_own, compare, read_tree, take, wanted_at
from lakeops.ops.read import require_folder


@dataclass(frozen=True)
class LocalStatus(JsonRecord):
    """A clone beside its ref, after a call.

    ``commit_id`` is the commit that it was last made equal to (empty: none yet), ``head_id`` the one that the ref
    means. ``local`` changed in the directory, ``remote`` at the ref, ``taken`` was taken by this call, ``conflicts``
    changed on both sides. ``special`` files are never committed. ``interrupted`` is the ref of a call that did not come
    to its end.
    """

    directory: str
    uri: str
    commit_id: str
    head_id: str
    local: Sequence[Change] = ()
    remote: Sequence[Change] = ()
    taken: Sequence[Change] = ()
    conflicts: Sequence[str] = ()
    special: Sequence[str] = ()
    interrupted: str | None = None


@dataclass(frozen=True)
class Followed(JsonRecord):
    """A directory and what it follows, or the ``error`` of one whose own files are damaged."""

    directory: str
    uri: str
    commit_id: str
    error: str = ""


def clone(ctx: Context, ref: str, directory: str | Path, prefix: str = "") -> LocalStatus:
    """Download what the ref has under a prefix to a directory, which follows the ref from then on.

    A clone that was interrupted goes on when it is asked for again.

    Args:
        directory: a new or empty directory.
        prefix: a folder of the ref. Everything when left out.

    Raises:
        RefNotFound, CommitExpired: there is no such commit to read.
        InvalidInput: the directory is not empty, or lies in a clone. The disk is full.
        InvalidPath: some object cannot be a file there. Nothing is written.
    """
    commit, under, folder = resolve_commit(ctx, ref), as_folder(prefix), _clone_place(directory)
    begun = (folder / PLACE / "index.json").exists()
    require_folder(ctx, commit.id, under)
    with translated(folder):
        if not begun and folder.exists() and any(path.name != PLACE for path in folder.iterdir()):
            raise InvalidInput(
                f"{excerpt(str(directory))} is not empty; clone into a new directory, or let this one follow the ref "
                "with `lakeops local init`"
            )
    # Names are refused before there is anything of a clone.
    wanted = None if begun else wanted_at(ctx, commit, under, folder)
    with indexes.alone(folder):
        index = check_own(ctx, indexes.read(folder) if begun else Index(ctx.repository_id, ref, under))
        if (index.repository, index.ref, index.prefix) != (ctx.repository_id, ref, under):
            raise InvalidInput(f"{excerpt(str(directory))} follows {index.uri}; clone into another directory")
        if not begun or index.interrupted:
            indexes.write(folder, index)
        return _take_commit(ctx, folder, index, ref, commit, force=False, wanted=wanted)


def init(ctx: Context, ref: str, directory: str | Path, prefix: str = "") -> LocalStatus:
    """Let a directory that exists follow a prefix of the ref. No file is written or read.

    Files that are like their objects are known as such by the first ``status``.

    Args:
        directory: a directory that follows no ref yet.
        prefix: a folder of the ref. Everything when left out.

    Raises:
        RefNotFound, CommitExpired: there is no such commit to read.
        InvalidInput: there is no such directory, or it follows a ref already.
    """
    commit, under, folder = resolve_commit(ctx, ref), as_folder(prefix), _clone_place(directory)
    require_folder(ctx, commit.id, under)
    if not folder.is_dir():
        raise InvalidInput(f"{excerpt(str(directory))} is no directory")
    if (folder / PLACE / "index.json").exists():
        raise InvalidInput(f"{excerpt(str(directory))} follows {indexes.read(folder).uri} already")
    index = check_own(ctx, Index(ctx.repository_id, ref, under))
    indexes.write(folder, index)
    return LocalStatus(str(folder), index.uri, "", commit.id)


def _clone_place(directory: str | Path) -> Path:
    """A directory that is to become a clone. Raises ``InvalidInput`` when it lies in one, or where one has its own."""
    with translated(Path(directory)):
        folder = given_place(directory).resolve()
        if is_clone_state(str(folder)):
            raise InvalidInput(f"{excerpt(str(directory))} is where a clone keeps its own files; choose another name")
        for outer in folder.parents:
            if (outer / PLACE / "index.json").exists():
                raise InvalidInput(
                    f"{excerpt(str(directory))} lies in {excerpt(str(outer))}, which follows a ref itself"
                )
    return folder


def status(ctx: Context, directory: str | Path) -> LocalStatus:
    """Find what changed in the directory, and at its ref since it was last made equal to it. Nothing is written.

    Raises:
        RefNotFound, CommitExpired: the ref is gone, or retention took its commit.
        InvalidInput: a file cannot be read.
        InvalidPath: some object cannot be a file there.
    """
    folder = indexes.find(directory)
    index = check_own(ctx, indexes.read(folder))
    tree, commit = read_tree(ctx, folder, index), resolve_commit(ctx, index.ref)
    known = LocalStatus(
        str(folder), index.uri, index.commit, commit.id, tree.here, special=tree.special, interrupted=index.interrupted
    )
    if index.whole and index.commit == commit.id:
        return known
    sides = compare(folder, index, tree, wanted_at(ctx, commit, index.prefix, folder))
    return replace(known, local=sides.here, remote=sides.there, conflicts=sides.conflicts)


def pull(ctx: Context, directory: str | Path, *, force: bool = False) -> LocalStatus:
    """Take what changed at the ref. Files that were changed in the directory alone stay as they are.

    Args:
        force: also take files that were changed on both sides, and give up the directory's version.

    Raises:
        MergeConflict: ``clone_conflict``: files were changed on both sides, and ``force`` is not set. Nothing is
            written.
        RefNotFound, CommitExpired: the ref is gone, or retention took its commit.
        InvalidPath: some object cannot be a file there. Nothing is written.
        InvalidInput: the disk is full, or the operating system refuses. Run it again to go on.
    """
    return _follow(ctx, directory, None, force=force)


def checkout(ctx: Context, directory: str | Path, ref: str, *, force: bool = False) -> LocalStatus:
    """Let the directory follow another ref, and take what differs there.

    Files that were changed in the directory stay changed, as with git.

    Args:
        force: also take files that were changed on both sides, and give up the directory's version.

    Raises:
        MergeConflict: ``clone_conflict``: the other ref has other contents for files that were changed in the
            directory, and ``force`` is not set.
            Nothing is written.
        RefNotFound, CommitExpired, InvalidPath, InvalidInput: as for ``pull``.
    """
    return _follow(ctx, directory, ref, force=force)


def _follow(ctx: Context, directory: str | Path, ref: str | None, *, force: bool) -> LocalStatus:
    folder = indexes.find(directory)
    with indexes.alone(folder):
        index = check_own(ctx, indexes.read(folder))
        name = index.ref if ref is None else ref
        commit = resolve_commit(ctx, name)
        if index.interrupted:
            indexes.write(folder, index)
        return _take_commit(ctx, folder, index, name, commit, force=force)


def _take_commit(
    ctx: Context,
    folder: Path,
    index: Index,
    ref: str,
    commit: Commit,
    *,
    force: bool,
    wanted: Mapping[str, Entry] | None = None,
) -> LocalStatus:
    wanted = wanted_at(ctx, commit, index.prefix, folder) if wanted is None else wanted
    here, there = take(ctx, folder, index, ref, commit, wanted, force=force)
    return LocalStatus(str(folder), replace(index, ref=ref).uri, commit.id, commit.id, here, taken=there)


def followed(directory: str | Path = ".") -> Iterator[Followed]:
    """The directories at or below one that follow a ref, by name. What they remember is all that is read."""
    for folder in indexes.below(directory):
        try:
            index = indexes.read(folder)
            yield Followed(str(folder), index.uri, index.commit)
        except InvalidInput as error:
            yield Followed(str(folder), "", "", error.message)
