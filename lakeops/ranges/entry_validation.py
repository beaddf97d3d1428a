"""Entries from outside, by the column: which rows hold what no object can have.

``check_entries`` stands wherever entries come in: staging, engines' output, imports, and ranges that a mirror was
brought. ``put`` applies the same rules of ``model`` to its one object. Columns are searched without a loop over rows.
Then the rule itself judges the first row that was found, so the words are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.arrow import first_true, from_numpy, scalar, to_numpy
from lakeops.model.errors import InvalidInput, InvalidUri
from lakeops.model.ids import (
    EARLIEST,
    LATEST,
    MAX_CHECKSUM_BYTES,
    MAX_CONTENT_TYPE_BYTES,
    MAX_KEY_BYTES,
    MAX_OBJECT_BYTES,
    OBJECT_METADATA_BYTES,
    check_checksum,
    check_content_type,
    check_metadata,
    check_mtime,
    check_size,
)
from lakeops.model.names import MAX_PATH_BYTES, check_path
from lakeops.model.text import excerpt
from lakeops.store import layout
from lakeops.store.open import split_address

ABSOLUTE = r"^[a-z][a-z0-9+.-]*://"
"""How an address that lies outside the namespace begins, as a regular expression."""
MAX_ADDRESS_BYTES = 8192
"""A path of Linux takes 4,095 bytes, and up to three times as many where it is percent-encoded. Few do."""
_ENCODED = "%2[0-9A-Da-d]|%[3-6][0-9A-Fa-f]|%7[0-9A-Ea-e]"
_NAME = f"(?:[^%./]|{_ENCODED})(?:[^%/]|{_ENCODED})*"
_PLAIN_URL = rf"^(?:(?:s3|gs|az)://[A-Za-z0-9][A-Za-z0-9_-]{{1,253}}[A-Za-z0-9]/.|file:///(?:{_NAME}/)*{_NAME}$)"
"""URLs that are an object's without a closer look. What they encode is ASCII. Others need not be wrong."""


def check_entries(table: pa.Table) -> None:
    """Raise ``InvalidPath`` or ``InvalidInput``, naming the path, for an entry that no object has.

    Args:
        table: the columns of an entry, addresses as they are stored. No nulls but in values of metadata.
    """
    paths, size, mtime = table["path"], table["size_bytes"], table["mtime"]
    bad = _outside(pc.binary_length(paths), 1, MAX_PATH_BYTES)
    _judge(table, "path", pc.or_(bad, pc.match_substring(paths, "\0")), check_path, named=False)
    _judge(table, "checksum", _unprintable(table["checksum"], MAX_CHECKSUM_BYTES), check_checksum)
    _judge(table, "content_type", _unprintable(table["content_type"], MAX_CONTENT_TYPE_BYTES), check_content_type)
    masks = [_bad_maps(chunk) for chunk in table["metadata"].chunks]
    _judge(table, "metadata", pa.chunked_array(masks, pa.bool_()), lambda pairs: check_metadata(_as_map(pairs)))
    _judge(table, "size_bytes", _outside(size, 0, MAX_OBJECT_BYTES), check_size)
    _judge(table, "mtime", _outside(mtime, EARLIEST, LATEST), check_mtime)
    check_addresses(table["physical_address"], paths)


def check_addresses(keys: pa.ChunkedArray, paths: pa.ChunkedArray) -> None:
    """Raise ``InvalidInput``, naming the path, for an address that no object has.

    Args:
        keys: addresses as they are stored.
        paths: the entries' own.
    """
    bad = pc.or_(pc.invert(proper(keys)), _outside(pc.binary_length(keys), 0, MAX_ADDRESS_BYTES))
    row = first_true(bad)
    if row is not None:
        raise InvalidInput(
            f"{excerpt(paths[row].as_py())}: {excerpt(keys[row].as_py())} is not an object's address; give "
            f"data/... in this namespace, or a file://, s3://, gs:// or az:// URL, {MAX_ADDRESS_BYTES:,} bytes at most"
        )
    here = pc.starts_with(keys, layout.DATA)
    if pc.all(here, min_count=0).as_py():
        return
    plain = pc.or_(here, pc.match_substring_regex(keys, _PLAIN_URL))
    for row in np.flatnonzero(to_numpy(pc.invert(plain))).tolist():  # few: what a URL spells in a roundabout way
        try:
            split_address(keys[row].as_py())
        except InvalidUri as error:
            raise InvalidInput(f"{excerpt(paths[row].as_py())}: {error.message}") from None


def proper(keys: pa.ChunkedArray) -> pa.ChunkedArray:
    """For each address as it is stored, whether it may be one: managed here, or a whole URL of somewhere else."""
    here = pc.starts_with(keys, layout.DATA)
    # Most tables have addresses of one kind. Looking for what only the other kind may not have takes as long again.
    if pc.all(here, min_count=0).as_py():
        return _proper_here(keys)
    if not pc.any(here).as_py():
        return _proper_elsewhere(keys)
    return pc.if_else(here, _proper_here(keys), _proper_elsewhere(keys))


def _proper_here(keys: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.invert(pc.match_substring_regex(keys, r"(^|/)\.{0,2}(/|$)|\x00"))


def _proper_elsewhere(keys: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.and_not(
        pc.match_substring_regex(keys, r"^(file:///|(s3|gs|az)://[^/]+/)."),
        pc.match_substring_regex(keys, r"/\.\.(/|$)|\x00"),
    )


def _judge(
    table: pa.Table, column: str, bad: pa.ChunkedArray, check: Callable[..., object], *, named: bool = True
) -> None:
    """Let the rule itself say what is wrong with the first bad row."""
    row = first_true(bad)
    if row is None:
        return
    value, path = table[column][row].as_py(), table["path"][row].as_py()
    try:
        check(value)
    except InvalidInput as error:
        if not named:
            raise
        raise type(error)(f"{excerpt(path)}: {error.message}") from None
    raise InvalidInput(f"{excerpt(path)}: {column} cannot be kept")


def _outside(values: pa.ChunkedArray, least: int, most: int) -> pa.ChunkedArray:
    return pc.or_(pc.less(values, scalar(least, values.type)), pc.greater(values, scalar(most, values.type)))


def _unprintable(texts: pa.ChunkedArray, at_most: int) -> pa.ChunkedArray:
    """Texts that are empty, too long, or hold more than printable ASCII."""
    return pc.or_(_outside(pc.binary_length(texts), 1, at_most), pc.match_substring_regex(texts, r"[^ -~]"))


def _bad_maps(maps: pa.MapArray) -> pa.Array:
    """For each map whether it breaks a rule of user metadata: bounds, NUL, a null value, a key twice."""
    offsets = to_numpy(maps.offsets)
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    keys, values = maps.keys.slice(first, count), maps.items.slice(first, count)
    owners = np.repeat(np.arange(len(maps)), np.diff(offsets))
    bad = np.zeros(len(maps), np.bool_)
    if not count:
        return from_numpy(bad)
    key_sizes, value_sizes = _sizes(keys), _sizes(values)
    wrong = (key_sizes < 1) | (key_sizes > MAX_KEY_BYTES) | _as_flags(values.is_null())
    wrong |= _as_flags(pc.match_substring(keys, "\0")) | _as_flags(pc.match_substring(values, "\0"))
    bad[owners[wrong]] = True
    bad |= np.bincount(owners, key_sizes + value_sizes, len(maps)) > OBJECT_METADATA_BYTES
    coded = keys.dictionary_encode()
    _, where, times = np.unique(
        owners * len(coded.dictionary) + to_numpy(coded.indices), return_index=True, return_counts=True
    )
    bad[owners[where[times > 1]]] = True
    return from_numpy(bad)


def _sizes(texts: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    sizes = pc.binary_length(texts)
    return to_numpy(pc.fill_null(sizes, scalar(0, sizes.type))).astype(np.int64)


def _as_flags(mask: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return to_numpy(pc.fill_null(mask, scalar(False, pa.bool_())))


def _as_map(pairs: list[tuple[str, str]]) -> dict[str, str]:
    """One row's metadata. Raises ``InvalidInput`` for a key that comes twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        raise InvalidInput(f"metadata: the key {excerpt(twice)} comes twice")
    return found
