"""Writing ranges and metaranges under names that no other attempt ever uses.

A name is the content's id and an attempt. The caller gives a fresh attempt for every try, so a retry or a speculative
twin never touches a file that somebody else may already refer to, and garbage collection never meets a name that
came back to life.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.ranges.digest import range_id
from lakeops.ranges.format import encode_metarange, encode_range
from lakeops.ranges.metarange import Metarange, RangeRow
from lakeops.store.base import ObjectStore
from lakeops.store.disk_cache import cache_of
from lakeops.store.layout import attempt_file, metarange_key, range_key


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


def describe(rows: pa.Table) -> RangeRow:
    """The metarange row of a range's rows (``RANGE_SCHEMA``), not written yet: what tells of its file is empty."""
    paths = rows.column("path")
    return RangeRow(
        id=range_id(rows.column("digest")),
        file="",
        first_path=paths[0].as_py(),
        last_path=paths[-1].as_py(),
        count=rows.num_rows,
        size_bytes=int(pc.sum(rows.column("size_bytes")).as_py()),
        file_bytes=0,
        file_digest=b"",
    )


def write_range(store: ObjectStore, rows: pa.Table, attempt: str, row: RangeRow | None = None) -> RangeRow:
    """Write one range. Returns its metarange row.

    Args:
        store: the namespace.
        rows: ``RANGE_SCHEMA``, at least one row, paths ascending.
        attempt: fresh for every try.
        row: how the rows are described, when the caller asked already.
    """
    row = row or describe(rows)
    data = encode_range(rows)
    file = attempt_file(row.hex_id, attempt)
    digest = bytes.fromhex(store.put(range_key(file), data).checksum)
    if (cache := cache_of(store)) is not None:
        cache.put(digest, data)
    return replace(row, file=file, file_bytes=len(data), file_digest=digest)


def write_metarange(store: ObjectStore, metarange: Metarange, attempt: str) -> MetarangeFile:
    """Write a metarange. Returns what the commit keeps of it. ``attempt`` is fresh for every try."""
    changes = metarange.changes
    data = encode_metarange(metarange.table, None if changes is None else changes.attachment(len(metarange)))
    file = attempt_file(metarange.id, attempt)
    written = store.put(metarange_key(file), data)
    if (cache := cache_of(store)) is not None:
        cache.put(bytes.fromhex(written.checksum), data)
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

    def write(self, rows: pa.Table) -> RangeRow:
        """The metarange row of the rows of one range (``RANGE_SCHEMA``), written unless a known range is the same."""
        described = describe(rows)
        if described.id in self._known:
            return self._known[described.id]
        row = write_range(self._store, rows, self._attempt, described)
        before = self.work.bytes_written
        self.work += Work(written=1, bytes_written=row.file_bytes)
        release_memory(before, self.work.bytes_written)
        return row
