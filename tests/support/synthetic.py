"""Entries by the million, made column by column: sorted paths, random-looking addresses and checksums, no loop.

Everything follows from an entry's number and a version, so a test can make the same entry, or a changed one, again.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.arrow import ENTRY_SCHEMA, RANGE_SCHEMA, STAGED_SCHEMA

_HEX = np.frombuffer(b"".join(b"%02x" % value for value in range(256)), np.uint16)
_PER_DAY = 10_000


def numbers(count: int, *, batch: int = 50_000) -> Iterator[np.ndarray]:
    """The numbers below ``count`` in batches."""
    for start in range(0, count, batch):
        yield np.arange(start, min(start + batch, count), dtype=np.uint64)


def paths(which: np.ndarray) -> pa.Array:
    """The paths of these entries: they sort as their numbers do."""
    day = padded(which // _PER_DAY, 5)
    part = padded(which % _PER_DAY, 5)
    return pc.binary_join_element_wise(
        "events/day=", day, "/part-", part, "-", hex_text(which, 16, salt=1), ".c000.snappy.parquet", ""
    )


def entries(which: np.ndarray, version: int = 0) -> pa.Table:
    """These entries; another version has other contents."""
    count = len(which)
    random = random_words(which, 1, salt=7 + version)[:, 0]
    return pa.table(
        [
            paths(which),
            pc.binary_join_element_wise("data/2026010112/", hex_text(which, 20, salt=2 + version), ""),
            hex_text(which, 32, salt=1000 + version),
            pa.array((random % 10_000_000).astype(np.int64)),
            pa.array((1_760_000_000 + random % 86_400).astype(np.int64)),
            pa.repeat("application/octet-stream", count),
            pa.MapArray.from_arrays(
                np.zeros(count + 1, np.int32), pa.array([], pa.string()), pa.array([], pa.string())
            ),
        ],
        schema=ENTRY_SCHEMA,
    )


def staged(which: np.ndarray, version: int = 1) -> pa.Table:
    """The rows, as staged rows."""
    table = entries(which, version)
    columns = [table.column(0), pa.repeat(pa.scalar(value=False), len(which)), *table.columns[1:]]
    return pa.table(columns, schema=STAGED_SCHEMA)


def quick_entries(which: np.ndarray, version: int = 0) -> pa.Table:
    """Entries with stand-ins for their digests: where hashing is not the point."""
    return with_quick_digests(entries(which, version))


def with_quick_digests(table: pa.Table) -> pa.Table:
    """Entries, and half of each checksum as what stands for the digest."""
    checksums = table.column("checksum").combine_chunks()
    view = np.frombuffer(checksums.buffers()[2], np.uint8)[checksums.offset * 32 :][: len(checksums) * 32]
    digests = pa.Array.from_buffers(
        pa.binary(16), len(checksums), [None, pa.py_buffer(np.ascontiguousarray(view.reshape(-1, 32)[:, :16]))]
    )
    return table.append_column(RANGE_SCHEMA.field("digest"), digests)


def random_words(which: np.ndarray, words: int, salt: int) -> np.ndarray:
    """Random-looking words for each number (splitmix64), shape ``(n, words)``."""
    state = which[:, None] * np.uint64(words) + np.arange(words, dtype=np.uint64)
    state = (state + np.uint64(salt << 40)) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def hex_text(which: np.ndarray, size: int, salt: int) -> pa.Array:
    """Hex text of ``size`` characters for each number."""
    raw = random_words(which, -(-size // 16), salt).view(np.uint8)[:, : size // 2]
    text = _HEX[raw]
    return (
        pa.Array.from_buffers(pa.binary(size), len(which), [None, pa.py_buffer(text)])
        .cast(pa.binary())
        .cast(pa.string())
    )


def padded(values: np.ndarray, width: int) -> pa.Array:
    return pc.utf8_lpad(pa.array(values).cast(pa.string()), width, "0")
