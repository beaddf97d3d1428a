"""Many puts, few transactions: contents go to the store at once, and are linked together.

One transaction a file is what limits the upload of small files. Here links are kept back until there are enough of
them, or enough bytes, so that little has to be uploaded again after a crash; threads may share a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from threading import Lock
from typing import BinaryIO

from lakeops.catalog.base import Staged
from lakeops.model.errors import LakeopsError
from lakeops.model.records import DEFAULT_CONTENT_TYPE, Entry
from lakeops.ops.context import Context
from lakeops.ops.put import write
from lakeops.ops.resolve import require_stageable
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
        self._waiting: list[tuple[datetime, Entry]] = []
        self._bytes = 0

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
        with self._lock:
            self._waiting.append((started, entry))
            self._bytes += entry.size_bytes
            due = len(self._waiting) >= MOST_OBJECTS or self._bytes >= MOST_BYTES
            taken = self._take() if due else []
        self._link(taken)
        return public(self._ctx, entry)

    def link(self) -> None:
        """Stage what was uploaded so far, in one transaction."""
        with self._lock:
            taken = self._take()
        self._link(taken)

    def _take(self) -> list[tuple[datetime, Entry]]:
        taken, self._waiting, self._bytes = self._waiting, [], 0
        return taken

    def _link(self, taken: list[tuple[datetime, Entry]]) -> None:
        if taken:
            rows = [Staged(entry.path, entry) for _, entry in taken]
            started = min(started for started, _ in taken)
            self._ctx.catalog.put_staged(self._ctx.repository_id, self._branch, rows, started=started)
