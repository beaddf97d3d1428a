"""Many puts, few transactions: contents go to the store at once, and are linked together.

One transaction a file is what limits the upload of small files. Here links are kept back until there are enough of
them, or enough bytes, so that little has to be uploaded again after a crash. Threads may share a batch.

* A put of a batch is acknowledged when it is linked: by ``link``, or at the end of the ``with``.
* Links go out in the order of the puts, one transaction at a time, so the last put of a path wins. Another verb of
  this process that stages to the same path links what is kept back first.
* A link that fails loses nothing: its objects stay, and the next link tries again. An object that waited too long
  is refused for good; the others are linked without it, and the end of the ``with`` raises ``AttemptExpired``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from threading import Lock
from typing import BinaryIO

from lakeops.catalog.base import Staged
from lakeops.model.errors import AttemptExpired, LakeopsError
from lakeops.model.records import DEFAULT_CONTENT_TYPE, Entry
from lakeops.ops.context import Context
from lakeops.ops.put import write
from lakeops.ops.resolve import require_stageable
from lakeops.ops.unlinked import holding_back, link_held_back
from lakeops.ops.view import public

MOST_OBJECTS = 500
MOST_BYTES = 64 << 20


@contextmanager
def batch(ctx: Context, branch: str) -> Iterator[Batch]:
    """Puts to a branch that are linked in few transactions, the last one at the end of the ``with``.

    After an exception, what was uploaded is linked all the same: an interrupted run need not do it again.
    """
    require_stageable(ctx, branch)
    opened = Batch(ctx, branch)
    with holding_back(ctx, branch, opened):
        try:
            yield opened
        except BaseException:
            with suppress(LakeopsError):  # the first error is the one to show
                opened.link()
            raise
        opened.link()


class Batch:
    """Objects on their way to a branch; made by ``batch``."""

    def __init__(self, ctx: Context, branch: str) -> None:
        self._ctx = ctx
        self._branch = branch
        self._lock = Lock()
        self._linker = Lock()  # held while a link is under way; taken before ``_lock``
        self._waiting: _Objects = {}
        self._linking: _Objects = {}
        self._bytes = 0
        self._refused: AttemptExpired | None = None

    def put(
        self,
        path: str,
        data: bytes | BinaryIO,
        *,
        metadata: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> Entry:
        """Write an object as ``Branch.put`` does; readers of the branch see it once the batch is linked."""
        started, entry = write(
            self._ctx, path, data, metadata=metadata, content_type=content_type or DEFAULT_CONTENT_TYPE
        )
        link_held_back(self._ctx, self._branch, path, besides=self)
        with self._lock:
            self._waiting[path] = (started, entry)
            self._bytes += entry.size_bytes
        if self._is_due():
            with self._linker:
                if self._is_due():  # or the thread that was linking until now took it along
                    self._link()
        return public(self._ctx, entry)

    def link(self) -> None:
        """Stage what was uploaded so far.

        Raises:
            AttemptExpired: objects of this batch waited too long and are not on the branch; put them again.
        """
        with self._linker:
            self._link()
        if self._refused is not None:
            raise self._refused

    def holds(self, path: str | None) -> bool:
        """Whether an object of this path, or any, is not linked yet."""
        with self._lock:
            return bool(self._waiting or self._linking) if path is None else path in {*self._waiting, *self._linking}

    def _is_due(self) -> bool:
        with self._lock:
            return len(self._waiting) >= MOST_OBJECTS or self._bytes >= MOST_BYTES

    def _link(self) -> None:
        """Stage what is waiting; the caller is the only one who links."""
        with self._lock:
            self._linking, self._waiting, self._bytes = self._waiting, {}, 0
        try:
            self._stage(self._linking)
        except BaseException:
            with self._lock:
                self._waiting = self._linking | self._waiting  # what was put meanwhile is newer
                self._bytes = sum(entry.size_bytes for _, entry in self._waiting.values())
            raise
        finally:
            with self._lock:
                self._linking = {}

    def _stage(self, objects: _Objects) -> None:
        if not objects:
            return
        try:
            self._put_staged(objects)
        except AttemptExpired:
            for path, found in objects.items():  # the oldest one decides, and only it may be too old
                try:
                    self._put_staged({path: found})
                except AttemptExpired as error:
                    self._refused = error

    def _put_staged(self, objects: _Objects) -> None:
        rows = [Staged(path, entry) for path, (_, entry) in objects.items()]
        started = min(started for started, _ in objects.values())
        self._ctx.catalog.put_staged(self._ctx.repository_id, self._branch, rows, started=started)


_Objects = dict[str, tuple[datetime, Entry]]
"""What is to be linked: since when each object has been there, and its entry, by path."""
