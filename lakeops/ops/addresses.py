"""Physical addresses by the column: as they are stored (relative inside the namespace) and as full URLs.

The rules for one address are in ``store.layout``; here the plain ones, which are nearly all, are handled without a
loop over rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.errors import InvalidInput, InvalidUri
from lakeops.model.text import excerpt
from lakeops.store import layout
from lakeops.store.location import split_address

_PLAIN = np.array([bool(re.fullmatch(layout.PLAIN, chr(byte))) for byte in range(256)])
"""For each byte whether it stands for itself in a ``file://`` URL."""
_ABSOLUTE = r"^[a-z][a-z0-9+.-]*://"
MAX_ADDRESS_BYTES = 8192
"""A path of Linux takes 4,095 bytes, and up to three times as many where it is percent-encoded; few do."""
_ENCODED = "%2[0-9A-Da-d]|%[3-6][0-9A-Fa-f]|%7[0-9A-Ea-e]"
_NAME = f"(?:[^%./]|{_ENCODED})(?:[^%/]|{_ENCODED})*"
_PLAIN_URL = rf"^(?:s3://[A-Za-z0-9][A-Za-z0-9_-]{{1,253}}[A-Za-z0-9]/.|file:///(?:{_NAME}/)*{_NAME}$)"
"""URLs that are an object's without a closer look; what they encode is ASCII. Others need not be wrong."""


def full(namespace: str, addresses: pa.ChunkedArray) -> pa.ChunkedArray:
    """Stored addresses as full URLs."""
    if pc.all(pc.starts_with(addresses, layout.DATA)).as_py():
        return joined(namespace, addresses)
    return pc.if_else(pc.match_substring_regex(addresses, _ABSOLUTE), addresses, joined(namespace, addresses))


def joined(root: str, keys: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """The full URLs of keys below a location."""
    if root.startswith("file://") and not _plain(keys):
        keys = _each(keys, layout.quote_path)
    return pc.binary_join_element_wise(root, keys, "/")


def stored(namespace: str, addresses: pa.ChunkedArray, paths: pa.ChunkedArray) -> pa.ChunkedArray:
    """Addresses from a caller, as they are stored; ``paths`` are the entries' own, for messages.

    Raises:
        InvalidInput: one is neither an object of this namespace nor a ``file://`` or ``s3://`` URL, or climbs out of
            where it seems to be.
    """
    keys = relative(namespace, addresses)
    bad = pc.or_(pc.invert(proper(keys)), pc.greater(pc.binary_length(keys), MAX_ADDRESS_BYTES))
    row = pc.index(bad, value=True).as_py()
    if row >= 0:
        raise InvalidInput(
            f"{excerpt(paths[row].as_py())}: {excerpt(addresses[row].as_py())} is not an object's address; give "
            f"data/... in this namespace, or a file:// or s3:// URL of at most {MAX_ADDRESS_BYTES:,} bytes"
        )
    plain = pc.or_(pc.starts_with(keys, layout.DATA), pc.match_substring_regex(keys, _PLAIN_URL))
    for row in np.flatnonzero(pc.invert(plain).to_numpy()).tolist():  # few: what a URL spells in a roundabout way
        try:
            split_address(keys[row].as_py())
        except InvalidUri as error:
            raise InvalidInput(f"{excerpt(paths[row].as_py())}: {error.message}") from None
    return keys


def relative(namespace: str, addresses: pa.ChunkedArray) -> pa.ChunkedArray:
    """Addresses with those inside the namespace relative to it, whatever they are."""
    root = namespace + "/"
    if namespace.startswith("file://") and pc.any(pc.match_substring(addresses, "%")).as_py():
        return _each(addresses, lambda address: layout.relative(namespace, address))
    inside = pc.starts_with(addresses, root)
    return pc.if_else(inside, pc.utf8_slice_codeunits(addresses, len(root)), addresses)


def imported_folders(keys: pa.ChunkedArray) -> list[str]:
    """The directories that the absolute ones of some stored addresses lie in, each once."""
    outside = keys.filter(pc.match_substring_regex(keys, _ABSOLUTE))
    folders: list[str] = pc.unique(pc.replace_substring_regex(outside, r"/[^/]*$", "")).to_pylist()
    return folders


def proper(keys: pa.ChunkedArray) -> pa.ChunkedArray:
    """For each address as it is stored, whether it may be one: managed here, or a whole URL of somewhere else."""
    managed = pc.and_not(pc.starts_with(keys, layout.DATA), pc.match_substring_regex(keys, r"(^|/)\.{0,2}(/|$)|\x00"))
    imported = pc.and_not(
        pc.match_substring_regex(keys, r"^(file:///|s3://[^/]+/)."), pc.match_substring_regex(keys, r"/\.\.(/|$)|\x00")
    )
    return pc.or_(managed, imported)


def _plain(keys: pa.ChunkedArray | pa.Array) -> bool:
    """Whether no key has a byte that is written otherwise in a URL: all bytes of a column are looked up at once."""
    for chunk in keys.chunks if isinstance(keys, pa.ChunkedArray) else [keys]:
        _, offsets, values = chunk.buffers()
        if len(chunk) and values is not None:
            bounds = np.frombuffer(offsets, np.int32)
            start, end = bounds[chunk.offset], bounds[chunk.offset + len(chunk)]
            if not _PLAIN[np.frombuffer(values, np.uint8)[start:end]].all():
                return False
    return True


def _each(addresses: pa.ChunkedArray | pa.Array, change: Callable[[str], str]) -> pa.ChunkedArray:
    return pa.chunked_array([[change(address) for address in addresses.to_pylist()]], pa.string())
