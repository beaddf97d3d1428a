"""What differs between two commits, summed up: by kind and by folder, with bytes, before any list."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING

from lakeops.model.records import Change, ChangeType

if TYPE_CHECKING:
    from lakeops.lake import Repository

COUNTED = 50_000
"""With more changes than this, a page says *at least*."""
LISTED = 100
FOLDERS = 50
"""Folders that are listed; the others are summed up as one."""
KINDS = tuple(kind.value for kind in ChangeType)
_KEPT = 128


@dataclass
class Counts:
    """How many paths changed in which way, and the bytes of the objects that are there now, or were removed."""

    by_kind: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    bytes: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.by_kind.values())

    def add(self, change: Change) -> None:
        """Count one more."""
        self.by_kind[change.type.value] += 1
        self.bytes += change.size_bytes


@dataclass(frozen=True)
class Sums:
    """The differences under a prefix.

    Attributes:
        all: of every path.
        folders: by what follows the prefix up to a slash: prefixes that end with one, and objects.
        others: what more than ``FOLDERS`` of them hold.
        listed: the first changes behind ``after``.
        next_after: the path behind which the next page begins; None at the end.
        exact: False when there were more changes than were to be counted.
    """

    prefix: str
    all: Counts
    folders: dict[str, Counts]
    others: Counts
    listed: list[Change]
    next_after: str | None
    exact: bool

    @classmethod
    def of(cls, repository: Repository, way: str, left: str, right: str, *, prefix: str = "", after: str = "") -> Sums:
        """The sums between two commits: ``two-way``, or ``since`` their merge base. Kept by the commits' ids."""
        key = (repository.storage_namespace, way, left, right, prefix, after)
        with _lock:
            if key in _known:
                _known.move_to_end(key)
                return _known[key]
        find = repository.diff if way == "two-way" else repository.compare
        found = cls._counted(find(left, right, prefix=prefix), prefix, after)
        with _lock:
            _known[key] = found
            while len(_known) > _KEPT:
                _known.popitem(last=False)
        return found

    @classmethod
    def _counted(cls, changes: Iterator[Change], prefix: str, after: str) -> Sums:
        everything, others = Counts(), Counts()
        folders: dict[str, Counts] = {}
        listed: list[Change] = []
        for change in islice(changes, COUNTED):
            everything.add(change)
            name = change.path[: change.path.find("/", len(prefix)) + 1] or change.path
            if name in folders or len(folders) < FOLDERS:
                folders.setdefault(name, Counts()).add(change)
            else:
                others.add(change)
            if change.path > after and len(listed) <= LISTED:
                listed.append(change)
        more = listed[LISTED - 1].path if len(listed) > LISTED else None
        return cls(prefix, everything, folders, others, listed[:LISTED], more, everything.total < COUNTED)


_known: OrderedDict[tuple[str, ...], Sums] = OrderedDict()
_lock = Lock()
