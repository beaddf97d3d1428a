"""The entries of a ref and its small objects, remembered for programs that ask for the same ones several times.

They are remembered until this process writes anything: for a minute at a commit id, for a second at what may move. That
something is missing is not remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from lakeops.model.clock import stopwatch
from lakeops.model.errors import ObjectNotFound
from lakeops.model.names import COMMIT_ID, MAX_PATH_BYTES
from lakeops.model.records import CommonPrefix, Entry
from lakeops.store.recorded import SmallObject

if TYPE_CHECKING:
    from lakeops.lake.refs import Ref
    from lakeops.lake.repository import Repository
    from lakeops.store.recorded import ObjectFile

PINNED_SECONDS = 60.0
MOVING_SECONDS = 1.0
"""How long entries of a commit, and of any other ref, are remembered."""

MOST_REMEMBERED = 50_000
"""Objects of one ref whose entries are remembered."""

MOST_CONTENTS = 16 << 20
"""Bytes of the small objects of one ref that are remembered."""

_PASSED = 1000
"""Objects that a listing passes in a folder that it does not want, before it goes behind the folder."""

T = TypeVar("T")


class RefCache:
    """A ref whose entries are remembered for a while.

    Args:
        repository: its repository.
        ref: any ref expression.
        before: how often this process had written to catalogs before anything was read.
        writes: tells how often it has by now.
    """

    def __init__(self, repository: Repository, ref: str, before: int, writes: Callable[[], int]) -> None:
        self.handle: Ref = repository.ref(ref)
        self._passed = stopwatch()
        self._seconds = PINNED_SECONDS if COMMIT_ID.fullmatch(ref) else MOVING_SECONDS
        self._before, self._writes = before, writes
        self._entries: dict[str, Entry] = {}
        self._contents: dict[tuple[str, bool | None], bytes] = {}
        self._room = MOST_CONTENTS

    def holds(self) -> bool:
        """Whether what is remembered may still be given."""
        return self._writes() == self._before and self._passed() < self._seconds

    def stat(self, key: str) -> Entry:
        """The entry at a path. Raises ``ObjectNotFound``."""
        found = self._entries.get(key)
        return self._remember(self.handle.stat(key)) if found is None else found

    def open(self, key: str, verify: bool | None) -> ObjectFile:
        """A file over the object at a path. What is missing is looked up anew, which says why. Raises as ``stat``."""
        known = self._contents.get((key, verify))
        if known is not None:
            return SmallObject(known)
        file = self._open(key, verify)
        if isinstance(file, SmallObject) and file.size <= self._room:
            self._room -= file.size
            self._contents[key, verify] = file.contents
        return file

    def _open(self, key: str, verify: bool | None) -> ObjectFile:
        if key in self._entries:
            with suppress(ObjectNotFound):
                return self.handle.open_entry(self._entries[key], verify=verify)
        return self.handle.open_entry(self._remember(self.handle.stat(key)), verify=verify)

    def levels(self, prefix: str, most: int | None) -> Iterator[Entry | CommonPrefix]:
        """Objects under a prefix so many levels deep, and the folders that lie deeper, each once."""
        if most is None or most == 1:
            yield from map(self._remember, self.handle.list(prefix, delimiter="/" if most else ""))
            return
        after: str | None = ""
        while after is not None:
            folder, passed, start, after = "", 0, after, None
            for entry in self.handle.list(prefix, after=start):
                if folder and entry.path.startswith(folder):
                    passed += 1
                    if passed == _PASSED:
                        after = folder + "\U0010ffff" * ((MAX_PATH_BYTES - len(folder.encode())) // 4)
                        break
                    continue
                folder, passed = _deeper(entry.path, len(prefix), most), 0
                yield CommonPrefix(folder) if folder else self._remember(entry)

    def _remember(self, item: T) -> T:
        if isinstance(item, Entry) and len(self._entries) < MOST_REMEMBERED:
            self._entries[item.path] = item
        return item


def _deeper(path: str, start: int, most: int) -> str:
    """The folder at the last level that a path lies in, with its slash. Empty for a path that is not deeper."""
    at = start
    for _ in range(most):
        at = path.find("/", at) + 1
        if not at:
            return ""
    return path[:at]
