"""A clone's files beside its index and its ref: what changed here, what changed there, and where that is a conflict."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from lakeops.model.errors import InvalidInput, InvalidPath, MergeConflict
from lakeops.model.formatting import human_size
from lakeops.model.ids import algorithm_of
from lakeops.model.names import is_text
from lakeops.model.records import ByteCounter, Change, ChangeType, Commit, Entry, is_marker
from lakeops.model.sanitising import excerpt
from lakeops.ops.context import Context
from lakeops.ops.files import PLACE, atomic_write, is_clone_state, reading, translated, walk
from lakeops.ops.local import index as indexes
from lakeops.ops.local.index import RACY_NS, Index, Journal, Known, check_names, folders_of, folds_letters
from lakeops.ops.overlap import CLAIM_ID
from lakeops.ops.read import list_objects, open_entry
from lakeops.store.in_flight import in_parallel


@dataclass(frozen=True)
class WorkTree:
    """A clone's files as they are now, by name. The checksum of one that is not known to be like an object is empty.

    ``special`` names links, devices, other clones' own files, and names that are not UTF-8 (escaped). ``here`` is what
    changed since the directory was last made equal to a commit, in byte order.
    """

    files: dict[str, Known] = field(default_factory=dict)
    special: list[str] = field(default_factory=list)
    here: list[Change] = field(default_factory=list)


@dataclass(frozen=True)
class Sides:
    """Changes here and there, without those that came to the same contents on both sides.

    ``agreed`` has those: the checksum of the object now, or None for a file and an object that are both gone.
    """

    here: list[Change]
    there: list[Change]
    conflicts: list[str]
    agreed: dict[str, str | None]


def check_own(ctx: Context, index: Index) -> Index:
    """Check that a clone is of this very repository. An index without its id takes it. Raises ``InvalidInput``."""
    own = ctx.repository.capabilities.get(CLAIM_ID) or ""
    # Restored repositories keep their id, and mirrors have their source's.
    if index.repository == ctx.repository_id and index.claim_id not in ("", own):
        raise InvalidInput(
            f"the directory follows {index.uri} of another lake, or of a repository that is gone; set LAKEOPS_HOME or "
            f"LAKEOPS_DATABASE_URL to its lake, or remove {PLACE} there and run `lakeops local init` to follow this one"
        )
    return replace(index, claim_id=own)


def read_tree(ctx: Context, folder: Path, index: Index) -> WorkTree:
    """The files of a clone as they are now. Only those are read that may differ from the index."""
    tree, unread = WorkTree(), list[tuple[str, os.stat_result]]()
    for name, status in walk(folder, lambda name: not is_clone_state(name) and is_text(name)):
        if name == PLACE:
            continue
        known = index.files.get(name)
        if not is_text(name):
            tree.special.append(os.fsencode(name).decode(errors="backslashreplace"))
        elif not stat.S_ISREG(status.st_mode) or is_clone_state(name):
            tree.special.append(name)
        elif (
            known is not None
            and known.is_like(status)
            # Programs can set the time of a file's contents, and no other one.
            and max(status.st_mtime_ns, status.st_ctime_ns) < index.written_ns - RACY_NS
        ):
            tree.files[name] = known
        else:
            unread.append((name, status))
    counter = ByteCounter(ctx.progress, "Reading files", sum(status.st_size for _, status in unread))

    def read(item: tuple[str, os.stat_result]) -> Known:
        name, status = item
        sha256 = digest(folder / name, "sha256", counter)
        known = index.files.get(name)
        checksum = known.checksum if known is not None and known.sha256 == sha256 else ""
        return Known(checksum, status.st_size, status.st_mtime_ns, sha256)

    for (name, _), known in zip(unread, in_parallel(unread, read), strict=True):
        tree.files[name] = known
    tree.here.extend(_changes(index.files, tree.files, lambda known: known.sha256))
    hidden = set(tree.special)
    tree.here[:] = [change for change in tree.here if not hidden.intersection([change.path, *folders_of(change.path)])]
    tree.special.sort(key=os.fsencode)
    return tree


def find_clashes(ctx: Context, commit: Commit, prefix: str, here: Sequence[Change]) -> list[str]:
    """The names that a change adds where a commit has a folder, or below what is an object of the commit."""
    added = [change.path for change in here if change.type == ChangeType.ADDED]
    gone = {change.path for change in here if change.type == ChangeType.REMOVED}
    metarange = ctx.metarange(commit)
    files = {
        folder
        for folder in {folder for name in added for folder in folders_of(name)} - gone
        if ctx.reader.stat(metarange, prefix + folder) is not None
    }

    def is_folder(name: str) -> bool:
        below = list_objects(ctx, commit.id, f"{prefix}{name}/")
        return any(
            isinstance(item, Entry) and not is_marker(item) and item.path.removeprefix(prefix) not in gone
            for item in below
        )

    return [name for name in added if not files.isdisjoint(folders_of(name)) or is_folder(name)]


def compare(folder: Path, index: Index, tree: WorkTree, wanted: Mapping[str, Entry]) -> Sides:
    """Find changes here and at a commit that has ``wanted``, by name below the prefix."""
    objects = {name: Known(entry.checksum, entry.size_bytes, 0, "") for name, entry in wanted.items()}
    there = list(_changes(index.files, objects, lambda known: known.checksum))
    changed, special = {change.path for change in tree.here}, set(tree.special)
    agreed: dict[str, str | None] = {}
    conflicts = list[str]()
    added = {change.path for change in tree.here if change.type == ChangeType.ADDED}
    folders = {folder for name in added for folder in folders_of(name)}
    for change in there:
        name = change.path
        if name in wanted and (name in folders or not added.isdisjoint(folders_of(name))):
            conflicts.append(name)  # a file here and a folder there, or the other way round
            continue
        if name in changed and _has_contents(folder, tree.files.get(name), wanted.get(name), name):
            agreed[name] = wanted[name].checksum if name in wanted else None
        elif name in changed or special.intersection([name, *folders_of(name)]):
            conflicts.append(name)
    rest = [[change for change in side if change.path not in agreed] for side in (tree.here, there)]
    return Sides(rest[0], rest[1], conflicts, agreed)


def _changes(old: Mapping[str, Known], new: Mapping[str, Known], of: Callable[[Known], str]) -> Iterator[Change]:
    for name in sorted({*old, *new}, key=str.encode):
        before, now = old.get(name), new.get(name)
        if now is None:
            yield Change(ChangeType.REMOVED, name, old[name].size_bytes)
        elif before is None:
            yield Change(ChangeType.ADDED, name, now.size_bytes)
        elif of(before) != of(now):
            yield Change(ChangeType.CHANGED, name, now.size_bytes)


def _has_contents(folder: Path, now: Known | None, entry: Entry | None, name: str) -> bool:
    """Whether a file has an object's contents, as far as its checksum tells."""
    if now is None or entry is None:
        return now is None and entry is None
    algorithm = algorithm_of(entry.checksum)
    if now.size_bytes != entry.size_bytes or algorithm is None:
        return False
    found = now.sha256 if algorithm == "sha256" else digest(folder / name, algorithm)
    return found == entry.checksum


PIECE = 1 << 20


def digest(path: Path, algorithm: str, counter: ByteCounter | None = None) -> str:
    """The hex digest of a file's contents. Raises ``InvalidInput`` for a link, or where it cannot be read."""
    total = hashlib.new(algorithm, usedforsecurity=False)
    with reading(path, follow=False) as file, translated(path):
        while piece := file.read(PIECE):
            total.update(piece)
            if counter is not None:
                counter.add(len(piece))
    return total.hexdigest()


def wanted_at(ctx: Context, commit: Commit, prefix: str, folder: Path) -> dict[str, Entry]:
    """A commit's entries under a prefix, by name below it. Raises ``InvalidPath`` where they cannot be files."""
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

    Files that were changed here alone stay. Returns what they are, and what was taken. Raises ``MergeConflict``
    (``clone_conflict``) for files that were changed here and there unless ``force`` gives them up, before anything is
    written, and for a file that was changed while this ran, which stays; ``InvalidPath`` or ``InvalidInput`` where the
    objects cannot be files there, or the disk is full.
    """
    tree = read_tree(ctx, folder, index)
    sides = compare(folder, index, tree, wanted)
    if sides.conflicts and not force:
        raise MergeConflict(str(folder), ref, sides.conflicts, kind="clone_conflict")
    taken = {change.path for change in sides.there}
    own = [name for name in tree.files if name not in taken]
    coming = [change.path for change in sides.there if change.path in wanted]
    check_names([*own, *coming], folds=folds_letters(folder))
    for way in {folder / parent for name in coming for parent in folders_of(name)}:
        if way.is_symlink():
            raise InvalidPath(f"{excerpt(str(way))} is a symbolic link that leads elsewhere; nothing was written")
    _check_room(folder, sum(change.size_bytes for change in sides.there if change.path in wanted))
    files = {name: known for name, known in index.files.items() if name not in taken}
    files.update((name, known) for name, known in tree.files.items() if known.checksum and name not in taken)
    for name, checksum in sides.agreed.items():
        files.pop(name, None)
        if checksum is not None:
            files[name] = replace(tree.files[name], checksum=checksum)
    given_up = set(sides.conflicts)

    def check_unchanged(name: str) -> None:
        """Refuse to touch a file that was changed since it was looked at. Raises ``MergeConflict``."""
        try:
            status: os.stat_result | None = (folder / name).lstat()
        except (FileNotFoundError, NotADirectoryError):
            status = None
        known = tree.files.get(name)
        same = status is None if known is None else status is not None and known.is_like(status)
        if not same and name not in given_up:
            raise MergeConflict(str(folder), ref, [name], kind="clone_conflict")

    if taken:
        with indexes.journal(folder, ref) as noted:
            for change in sides.there:
                if change.path not in wanted:
                    _remove(folder, change.path, noted, check_unchanged)
            files.update(_download(ctx, folder, {name: wanted[name] for name in coming}, noted, check_unchanged))
    indexes.write(folder, replace(index, ref=ref, commit=commit.id, whole=True, files=files))
    return [change for change in sides.here if change.path not in taken], sides.there


def _check_room(folder: Path, needed: int) -> None:
    with translated(folder):
        free = shutil.disk_usage(folder).free
    if needed > free:
        raise InvalidInput(
            f"{excerpt(str(folder))}: no space left on device: {human_size(needed)} to write, {human_size(free)} free; "
            "nothing was replaced"
        )


def _remove(folder: Path, name: str, noted: Journal, check_unchanged: Callable[[str], None]) -> None:
    target = folder / name
    with translated(target):
        check_unchanged(name)
        noted.add("gone", name)
        target.unlink(missing_ok=True)
        with suppress(OSError):  # the first folder that is not empty
            for parent in target.relative_to(folder).parents:
                if parent.parts:
                    (folder / parent).rmdir()


def _download(
    ctx: Context, folder: Path, wanted: Mapping[str, Entry], noted: Journal, check_unchanged: Callable[[str], None]
) -> dict[str, Known]:
    counter = ByteCounter(ctx.progress, "Downloading", sum(entry.size_bytes for entry in wanted.values()))

    def fetch(name: str) -> Known:
        target, total, entry = folder / name, hashlib.sha256(), wanted[name]
        with translated(target), atomic_write(target, folder / PLACE) as file:
            with open_entry(ctx, entry, verify=True) as source:
                while piece := source.read(PIECE):
                    file.write(piece)
                    total.update(piece)
                    counter.add(len(piece))
            file.flush()
            status = os.fstat(file.fileno())
            known = Known(entry.checksum, status.st_size, status.st_mtime_ns, total.hexdigest())
            target.parent.mkdir(parents=True, exist_ok=True)
            check_unchanged(name)
            noted.add("file", name, known)
        return known

    return dict(zip(wanted, in_parallel(list(wanted), fetch), strict=True))
