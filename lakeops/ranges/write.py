"""Writing ranges and metaranges under names that no other attempt ever uses.

A name is the content's id and an attempt. The caller gives a fresh attempt for every try, so a retry or a speculative
twin never touches a file that somebody else may already refer to, and garbage collection never meets a name that
came back to life.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Protocol

import pyarrow as pa

from lakeops.ranges.format import encode_metarange
from lakeops.ranges.metarange import Metarange, RangeRow
from lakeops.store.base import ObjectStore
from lakeops.store.layout import attempt_file, metarange_key, range_key
from lakeops.store.nearby import pieces_of


@dataclass(frozen=True, slots=True)
class MetarangeFile:
    """A written metarange: what a commit keeps of it. ``digest`` is the SHA-256 of the file's bytes, in hex."""

    id: str
    file: str
    digest: str


_RELEASED_AFTER = 8 << 20


def release_memory(before: int, now: int) -> None:
    """Give back what Arrow's pool keeps of freed memory, after every 8 MiB of files.

    The pool keeps it for each thread apart. Over many ranges that adds up to several times what is in use.

    Args:
        before: bytes of range files that were read or written when this was called last.
        now: bytes that are by now.
    """
    if before // _RELEASED_AFTER != now // _RELEASED_AFTER:
        pa.default_memory_pool().release_unused()


class WholeRange(Protocol):
    """The rows of one range, in whatever shape they come."""

    def described(self) -> RangeRow:
        """The metarange row, not written yet: what tells of its file is empty."""
        ...

    def encoded(self) -> tuple[bytes, int]:
        """The Parquet bytes of the file, and how many of them at the end are the footer."""
        ...


def write_range(store: ObjectStore, rows: WholeRange, attempt: str, row: RangeRow | None = None) -> RangeRow:
    """Write one range. Returns its metarange row.

    Args:
        store: the namespace.
        rows: at least one row, paths ascending.
        attempt: fresh for every try.
        row: how the rows are described, when the caller asked already.
    """
    row = row or rows.described()
    data, footer_bytes = rows.encoded()
    file = attempt_file(row.hex_id, attempt)
    store.put(range_key(file), data)
    digest = sha256(memoryview(data)[-footer_bytes:]).digest()
    if (pieces := pieces_of(store)) is not None:
        pieces.put_whole(digest, data)
    return replace(row, file=file, file_bytes=len(data), footer_bytes=footer_bytes, footer_digest=digest)


def write_metarange(store: ObjectStore, metarange: Metarange, attempt: str) -> MetarangeFile:
    """Write a metarange. Returns what the commit keeps of it. ``attempt`` is fresh for every try."""
    changes = metarange.changes
    data = encode_metarange(metarange.table, None if changes is None else changes.attachment(len(metarange)))
    file = attempt_file(metarange.id, attempt)
    written = store.put(metarange_key(file), data)
    if (pieces := pieces_of(store)) is not None:
        pieces.put(bytes.fromhex(written.checksum), data)
    return MetarangeFile(metarange.id, file, written.checksum)


@dataclass(frozen=True, slots=True)
class Work:
    """What was done: ranges opened and written, and the bytes of their files."""

    opened: int = 0
    written: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.opened + other.opened,
            self.written + other.written,
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
        )


class RangeWriter:
    """Writes ranges for one run of a task, except those that exist already where they may be referred to.

    Args:
        store: the namespace.
        attempt: fresh for every run.
        known: ranges of commits that the publishing transaction checks to be live.
    """

    def __init__(self, store: ObjectStore, attempt: str, known: Iterable[RangeRow]) -> None:
        self.work: Work = Work()
        self._store = store
        self._attempt = attempt
        self._known = {row.id: row for row in known}

    def knows(self, rows: WholeRange) -> bool:
        """Whether a known range is the same."""
        return rows.described().id in self._known

    def write(self, rows: WholeRange) -> RangeRow:
        """The metarange row of these rows, written unless a known range is the same."""
        described = rows.described()
        if described.id in self._known:
            return self._known[described.id]
        row = write_range(self._store, rows, self._attempt, described)
        before = self.work.bytes_written
        self.work += Work(written=1, bytes_written=row.file_bytes)
        release_memory(before, self.work.bytes_written)
        return row
