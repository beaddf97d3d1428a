"""Writing ranges and metaranges under names that no other attempt ever uses.

A name is the content's id and an attempt. The caller gives a fresh attempt for every try, so a retry or a speculative
twin never touches a file that somebody else may already refer to, and garbage collection never meets a name that
came back to life.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import sha256

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.ranges.cutter import Cut
from lakeops.ranges.digest import range_id
from lakeops.ranges.format import encode_metarange, encode_range
from lakeops.ranges.metarange import Metarange, RangeRow
from lakeops.store.base import ObjectStore
from lakeops.store.layout import attempt_file, metarange_key, range_key


@dataclass(frozen=True, slots=True)
class MetarangeFile:
    """A written metarange: what a commit keeps of it. ``digest`` is the SHA-256 of the file's bytes, in hex."""

    id: str
    file: str
    digest: str


def release_memory(written: int) -> None:
    """Give back what Arrow's pool keeps of freed memory, after every fourth range.

    The pool keeps it for each thread apart; over many ranges that adds up to several times what is in use.
    """
    if written % 4 == 0:
        pa.default_memory_pool().release_unused()


def describe_range(cut: Cut) -> RangeRow:
    """The metarange row of these rows, not written yet: what tells of its file is empty."""
    paths = cut.table.column("path")
    return RangeRow(
        id=range_id(cut.digests),
        file="",
        first_path=paths[0].as_py(),
        last_path=paths[-1].as_py(),
        count=cut.table.num_rows,
        size_bytes=int(pc.sum(cut.table.column("size_bytes")).as_py()),
        file_bytes=0,
        footer_bytes=0,
        footer_digest=b"",
    )


def write_range(store: ObjectStore, cut: Cut, attempt: str, row: RangeRow | None = None) -> RangeRow:
    """Write one range; returns its metarange row.

    Args:
        store: the namespace.
        cut: at least one row, paths ascending.
        attempt: fresh for every try.
        row: what ``describe_range`` said of the rows, when the caller asked already.
    """
    row = row or describe_range(cut)
    data, footer_bytes = encode_range(cut.groups, cut.digests)
    file = attempt_file(row.hex_id, attempt)
    store.put(range_key(file), data)
    digest = sha256(memoryview(data)[-footer_bytes:]).digest()
    return replace(row, file=file, file_bytes=len(data), footer_bytes=footer_bytes, footer_digest=digest)


def write_metarange(store: ObjectStore, metarange: Metarange, attempt: str) -> MetarangeFile:
    """Write a metarange; returns what the commit keeps of it. ``attempt`` is fresh for every try."""
    data = encode_metarange(metarange.table)
    file = attempt_file(metarange.id, attempt)
    return MetarangeFile(metarange.id, file, store.put(metarange_key(file), data).checksum)


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
        self.work = Work()
        self._store = store
        self._attempt = attempt
        self._known = {row.id: row for row in known}

    def write(self, cut: Cut) -> RangeRow:
        """The metarange row of these rows, written unless a known range is the same."""
        described = describe_range(cut)
        if described.id in self._known:
            return self._known[described.id]
        row = write_range(self._store, cut, self._attempt, described)
        self.work += Work(written=1, bytes_written=row.file_bytes)
        release_memory(self.work.written)
        return row
