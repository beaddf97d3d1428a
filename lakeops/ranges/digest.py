"""Digests of entries, from their logical content and never from Parquet bytes.

An *entry digest* (BLAKE2b, 16 bytes) covers every column of a row, path and address included, so equal digests mean
equal rows. The ids of ranges and metaranges are made of them (``metarange.py``). ``docs/format.md`` spells the
bytes out.

The *identity* is the smaller notion: what a user calls the same object (checksum, size, content type, user metadata).
It says nothing without the path and is compared only between rows of one path.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.arrow import ENTRY_SCHEMA, RANGE_SCHEMA, from_numpy, in_one, scalar, to_numpy
from lakeops.model.errors import InvalidInput

Positions = npt.NDArray[np.int64]
"""Numbers of rows."""

DIGEST_BYTES = 16
IDENTITY_COLUMNS = ["checksum", "size_bytes", "content_type", "metadata"]
_BLOCK = 65_536
_NOTHING = scalar(b"", pa.binary())
"""The separator that rows are joined by."""


def entry_digests(table: pa.Table) -> pa.Array:
    """The digest of each row, of at least the columns of ``ENTRY_SCHEMA``: ``fixed_size_binary(16)``.

    The order of a row's metadata pairs does not matter. A key that occurs twice raises ``InvalidInput``.
    """
    parts: list[bytes] = []
    texts, numbers = ("path", "physical_address", "checksum", "content_type"), ("size_bytes", "mtime")
    for start in range(0, table.num_rows, _BLOCK):
        rows = _canonical(table.slice(start, _BLOCK), texts, numbers)
        parts.append(b"".join([blake2b(row, digest_size=DIGEST_BYTES).digest() for row in rows.to_pylist()]))
    return _fixed(b"".join(parts), DIGEST_BYTES)


def with_digests(table: pa.Table) -> pa.Table:
    """The rows with their digests: ``RANGE_SCHEMA``, from a table with at least ``ENTRY_SCHEMA``'s columns.

    A ``digest`` column that is there already is taken as it is. Raises ``InvalidInput`` for a null in any of them.
    """
    plain = complete(table)
    digests = table.column("digest") if "digest" in table.column_names else entry_digests(plain)
    return pa.table([*plain.columns, digests], schema=RANGE_SCHEMA)


def complete(table: pa.Table) -> pa.Table:
    """The columns of ``ENTRY_SCHEMA``. Raises ``InvalidInput`` for a null in any of them."""
    for name in ENTRY_SCHEMA.names:
        if table.column(name).null_count:
            raise InvalidInput(f"column {name!r} holds nulls; every entry needs a value there")
    plain = table.select(ENTRY_SCHEMA.names)
    return plain if plain.schema.equals(ENTRY_SCHEMA) else plain.cast(ENTRY_SCHEMA)


def same_identity(left: pa.Table, right: pa.Table) -> npt.NDArray[np.bool_]:
    """For each row of two tables of equal length whether both hold what a user calls the same object."""
    sizes = pc.equal(left["size_bytes"], right["size_bytes"])
    same = to_numpy(pc.and_(sizes, pc.equal(left["checksum"], right["checksum"])))
    if same.any():
        same[same] = same_labels(left.filter(from_numpy(same)), right.filter(from_numpy(same)))
    return same


def same_labels(left: pa.Table, right: pa.Table) -> npt.NDArray[np.bool_]:
    """For each row whether both have one content type and user metadata, where the rest of the identity is equal."""
    return to_numpy(pc.equal(*(_canonical(side, ("content_type",), ()) for side in (left, right))))


def _fixed(data: bytes, width: int) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(width), len(data) // width, [None, pa.py_buffer(data)])


def _canonical(table: pa.Table, texts: tuple[str, ...], numbers: tuple[str, ...]) -> pa.Array:
    """Unambiguous bytes of each row: a header of fixed width, then the texts, then the metadata pairs.

    The header holds the byte length of each text (u32), the numbers (i64) and the count of pairs (u32), all
    little-endian. Each pair is two lengths (u32), key and value, and pairs are ordered by key.
    """
    kinds = ["<u4"] * len(texts) + ["<i8"] * len(numbers) + ["<u4"]
    header = np.zeros(table.num_rows, np.dtype(list(zip((*texts, *numbers, "metadata"), kinds, strict=True))))
    columns = []
    for name in (*texts, *numbers, "metadata"):
        column = in_one(table.column(name))
        if column.null_count:
            raise InvalidInput(f"column {name!r} holds nulls; every entry needs a value there")
        if name in texts:
            columns.append(column.cast(pa.binary()))
            header[name] = to_numpy(pc.binary_length(columns[-1]))
        elif name in numbers:
            header[name] = to_numpy(column)
    metadata, offsets = column, to_numpy(column.offsets)
    header["metadata"] = np.diff(offsets)
    heads = _fixed(header.tobytes(), header.dtype.itemsize).cast(pa.binary())
    tails = [_pair_bytes(metadata, offsets)] if len(offsets) and offsets[-1] > offsets[0] else []
    return pc.binary_join_element_wise(heads, *columns, *tails, _NOTHING)


def _pair_bytes(metadata: pa.MapArray, offsets: npt.NDArray[np.int32]) -> pa.Array:
    """The canonical bytes of each row's pairs, joined: ``binary``, empty where a row has none."""
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    keys = metadata.keys.slice(first, count).cast(pa.binary())
    values = metadata.items.slice(first, count).cast(pa.binary())
    if values.null_count:
        raise InvalidInput("user metadata holds a key without a value; give every key a string")
    rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    if not _ascending(rows, keys):
        both = [("row", "ascending"), ("key", "ascending")]
        order = pc.sort_indices(pa.table({"row": rows, "key": keys}), sort_keys=both)
        keys, values = keys.take(order), values.take(order)
        if not _ascending(rows, keys):
            raise InvalidInput("user metadata holds a key twice; give every key once")
    lengths = np.zeros(count, np.dtype([("key", "<u4"), ("value", "<u4")]))
    lengths["key"] = to_numpy(pc.binary_length(keys))
    lengths["value"] = to_numpy(pc.binary_length(values))
    heads = _fixed(lengths.tobytes(), 8).cast(pa.binary())
    joined = pc.binary_join_element_wise(heads, keys, values, _NOTHING)
    return pc.binary_join(pa.ListArray.from_arrays(from_numpy(offsets - np.int32(first)), joined), _NOTHING)


def _ascending(rows: npt.NDArray[np.int64], keys: pa.Array) -> bool:
    rising = to_numpy(pc.less(keys.slice(0, len(keys) - 1), keys.slice(1)))
    return bool(np.all(rising | (rows[:-1] != rows[1:])))
