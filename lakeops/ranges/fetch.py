"""Where range files come from: this machine's pieces of them, or the store, verified on the way.

``file`` has what can be done with one that is in hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256

import pyarrow as pa

from lakeops.model.errors import Corrupted
from lakeops.ranges.file import RangeEnd, RangeFile, damaged, needed_by_commit
from lakeops.ranges.format import decode_range_slowly
from lakeops.ranges.metarange import RangeRow
from lakeops.ranges.outline import MARK
from lakeops.store.base import ObjectStore
from lakeops.store.in_flight import IN_FLIGHT, in_parallel
from lakeops.store.nearby import pieces_of, slot_left

WHOLE_BYTES = 4 * 1024 * 1024
"""A far file up to this size is fetched whole in about the time of two requests."""


def fetch(store: ObjectStore, key: str, digest: bytes) -> bytes:
    """The whole file, verified: its SHA-256 is ``digest``. Raises ``Corrupted`` or ``ObjectNotFound``, naming it."""
    pieces = pieces_of(store)
    if pieces is not None and (kept := pieces.get(digest)) is not None:
        return kept
    with needed_by_commit(store, key):
        data = store.get(key)
    if sha256(data).digest() != digest:
        raise damaged(key, f"{len(data)} bytes were read")
    if pieces is not None:
        pieces.put(digest, data)
    return data


def open_range(store: ObjectStore, row: RangeRow) -> RangeFile:
    """The range that a metarange row names; only its footer is read. Raises ``Corrupted`` or ``ObjectNotFound``."""
    return RangeFile(store, read_end(store, row))


def read_end(store: ObjectStore, row: RangeRow, *, whole: bool = False) -> RangeEnd:
    """The footer of the range that a metarange row names. Raises as ``open_range``.

    With ``whole`` a far file is fetched whole where pieces are kept: its row groups are then here when they are asked
    for. That is one request in place of two or more.
    """
    _check_row(row)
    start = row.file_bytes - row.footer_bytes
    pieces = pieces_of(store)
    if pieces is None:
        return RangeEnd(row, _read(store, row.key, start, row.footer_bytes))
    tail = pieces.part(row.footer_digest, start, row.footer_bytes)
    if tail is not None:
        with suppress(Corrupted):
            return RangeEnd(row, tail)
    tail = pieces.get(row.footer_digest)
    if tail is not None and not whole:
        return RangeEnd(row, tail)
    if whole and row.file_bytes <= WHOLE_BYTES:
        return fetch_range(store, row).end
    end = RangeEnd(row, tail or _read(store, row.key, start, row.footer_bytes))
    pieces.put(row.footer_digest, end.tail)
    return end


def read_range(store: ObjectStore, row: RangeRow) -> pa.Table:
    """All rows of the range that a metarange row names, in one request. Raises as ``open_range``."""
    return fetch_range(store, row).read()


def fetch_range(store: ObjectStore, row: RangeRow, *, ordered: bool = True) -> RangeFile:
    """The range that a metarange row names, all of it read and verified in one request. Raises as ``open_range``.

    Whoever looks for what is wrong with its rows takes them as they are, not ``ordered``.
    """
    return _kept_range(store, row, ordered=ordered) or _fetched_range(store, row, ordered=ordered)


def fetch_ranges(store: ObjectStore, rows: Sequence[RangeRow]) -> list[RangeFile]:
    """The ranges that some metarange rows name, as ``fetch_range`` gives each. A far store is asked for all at once."""
    if not store.remote:
        return [fetch_range(store, row) for row in rows]
    kept = [_kept_range(store, row) for row in rows]
    missing = [row for row, file in zip(rows, kept, strict=True) if file is None]
    fetch = partial(_fetched_range, store)
    fetched: Iterator[RangeFile] = map(fetch, missing)
    if len(missing) > 1:
        with slot_left(store):
            fetched = iter(in_parallel(missing, fetch, parallelism=IN_FLIGHT))
    return [file or next(fetched) for file in kept]


def _kept_range(store: ObjectStore, row: RangeRow, *, ordered: bool = True) -> RangeFile | None:
    """The range from what this machine keeps, if it is there and as it should be."""
    _check_row(row)
    pieces = pieces_of(store)
    kept = pieces.whole(row.footer_digest) if pieces is not None else None
    if pieces is not None and kept is not None:
        try:
            return _whole_range(store, row, kept, ordered=ordered)
        except Corrupted:
            pieces.discard_whole(row.footer_digest)
    return None


def _fetched_range(store: ObjectStore, row: RangeRow, *, ordered: bool = True) -> RangeFile:
    data = _read(store, row.key, 0, row.file_bytes)
    file = _whole_range(store, row, data, ordered=ordered)
    if (pieces := pieces_of(store)) is not None:
        pieces.put_whole(row.footer_digest, data)
    return file


def prove_range(store: ObjectStore, row: RangeRow) -> tuple[RangeFile, pa.Table]:
    """The same of a file that somebody else brought: it is asked for by its name, and holds not a byte more or less.

    All its rows are decoded, in no more memory than they can take, and come along.

    Raises ``Corrupted`` or ``ObjectNotFound``, naming the file.
    """
    _check_row(row)
    with needed_by_commit(store, row.key):
        data = store.get(row.key)
    if len(data) != row.file_bytes or not data.startswith(MARK):
        raise damaged(row.key, f"{len(data):,} bytes were read, and {row.file_bytes:,} were written")
    file = _whole_range(store, row, data)
    table = decode_range_slowly(data, file.end.footer.parse(), row.key)
    file.check_rows(table, range(file.groups))
    return file, table


def _check_row(row: RangeRow) -> None:
    """Refuse a row that no range can have. Raises ``Corrupted``."""
    if row.flaw is not None:
        raise Corrupted(f"range {row.hex_id[:16]}: {row.flaw}; run `lakeops fsck` to see what is affected")


def _whole_range(store: ObjectStore, row: RangeRow, data: bytes, *, ordered: bool = True) -> RangeFile:
    """A range whose bytes are all at hand, verified."""
    file = RangeFile(store, RangeEnd(row, data[row.file_bytes - row.footer_bytes :]), ordered=ordered)
    file.take_over(data)
    return file


def _read(store: ObjectStore, key: str, start: int, size: int) -> bytes:
    """Some bytes of a file, all of them where they begin it. A shorter file gives fewer."""
    with needed_by_commit(store, key):
        return store.get_range(key, start, size)
