"""A clone's files beside its index and its ref: what changed here, what changed there, and where that is a conflict."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lakeops.model.changes import Change, ChangeType
from lakeops.model.ids import algorithm_of
from lakeops.model.progress import ByteCounter
from lakeops.model.records import Entry
from lakeops.ops.context import Context
from lakeops.ops.files import reading, translated, walk
from lakeops.ops.local.index import RACY_NS, Index, Known
from lakeops.ops.local.names import PLACE
from lakeops.store.in_flight import in_parallel


@dataclass(frozen=True)
class WorkTree:
    """A clone's files as they are now.

    Attributes:
        files: by name. The checksum of one that is not known to be like an object is empty.
        special: names of links, pipes and devices, and names that are not UTF-8 (written with escapes).
        here: what changed since the directory was last made equal to a commit, by name in byte order.
    """

    files: dict[str, Known] = field(default_factory=dict)
    special: list[str] = field(default_factory=list)
    here: list[Change] = field(default_factory=list)


@dataclass(frozen=True)
class Sides:
    """What changed here and there, without what came to the same contents on both sides.

    ``agreed`` has those: the checksum of the object now, or None for a file and an object that are both gone.
    """

    here: list[Change]
    there: list[Change]
    conflicts: list[str]
    agreed: dict[str, str | None]


def read_tree(ctx: Context, folder: Path, index: Index) -> WorkTree:
    """The files of a clone as they are now. Only those are read that may differ from the index.

    Raises:
        InvalidInput: a file or directory cannot be read.
    """
    tree, unread = WorkTree(), list[tuple[str, os.stat_result]]()
    for name, status in walk(folder, lambda name: name != PLACE and _is_text(name)):
        if name == PLACE:
            continue
        known = index.files.get(name)
        if not _is_text(name):
            tree.special.append(os.fsencode(name).decode(errors="backslashreplace"))
        elif not stat.S_ISREG(status.st_mode):
            tree.special.append(name)
        elif known is not None and known.is_like(status) and _is_older(status, index.written_ns - RACY_NS):
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
    tree.here[:] = [change for change in tree.here if not hidden.intersection(_name_and_folders(change.path))]
    tree.special.sort(key=os.fsencode)
    return tree


def _is_older(status: os.stat_result, time_ns: int) -> bool:
    """Whether nothing of a file changed since a time. Programs can set the time of its contents, and no other one."""
    return max(status.st_mtime_ns, status.st_ctime_ns) < time_ns


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _name_and_folders(name: str) -> Iterator[str]:
    """A name, and the folders that lead to it."""
    yield name
    while name:
        name = name.rpartition("/")[0]
        yield name


def compare(folder: Path, index: Index, tree: WorkTree, wanted: Mapping[str, Entry]) -> Sides:
    """What changed here and at a commit that has ``wanted``, by name below the prefix."""
    objects = {
        name: Known(entry.checksum, entry.size_bytes, 0, _sha256(index.files.get(name), entry))
        for name, entry in wanted.items()
    }
    there = list(_changes(index.files, objects, lambda known: known.checksum))
    changed, special = {change.path for change in tree.here}, set(tree.special)
    agreed: dict[str, str | None] = {}
    conflicts = []
    for change in there:
        name = change.path
        if name in changed and _has_contents(folder, tree.files.get(name), wanted.get(name), name):
            agreed[name] = wanted[name].checksum if name in wanted else None
        elif name in changed or special.intersection(_name_and_folders(name)):
            conflicts.append(name)
    rest = [[change for change in side if change.path not in agreed] for side in (tree.here, there)]
    return Sides(rest[0], rest[1], conflicts, agreed)


def _sha256(known: Known | None, entry: Entry) -> str:
    return known.sha256 if known is not None and known.checksum == entry.checksum else ""


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
