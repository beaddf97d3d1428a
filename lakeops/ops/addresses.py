"""Physical addresses by the column: as they are stored (relative inside the namespace) and as full URLs.

The rules for one address are in ``store.layout``. Here the plain ones, which are nearly all, are handled without a
loop over rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.arrays import text
from lakeops.ranges.entry_validation import ABSOLUTE
from lakeops.store import layout

_PLAIN = np.array([bool(re.fullmatch(layout.PLAIN, chr(byte))) for byte in range(256)])
"""For each byte whether it stands for itself in a ``file://`` URL."""


def full(namespace: str, addresses: pa.ChunkedArray) -> pa.ChunkedArray:
    """Stored addresses as full URLs."""
    if pc.all(pc.starts_with(addresses, layout.DATA)).as_py():
        return joined(namespace, addresses)
    return pc.if_else(pc.match_substring_regex(addresses, ABSOLUTE), addresses, joined(namespace, addresses))


def joined(root: str, keys: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """The full URLs of keys below a location."""
    if root.startswith("file://") and not _need_no_escape(keys):
        keys = _map_each(keys, layout.quote_path)
    return pc.binary_join_element_wise(text(root), keys, text("/"))


def relative(namespace: str, addresses: pa.ChunkedArray) -> pa.ChunkedArray:
    """Addresses with those inside the namespace relative to it, whatever they are."""
    root = namespace + "/"
    if namespace.startswith("file://") and pc.any(pc.match_substring(addresses, "%")).as_py():
        return _map_each(addresses, lambda address: layout.relative(namespace, address))
    inside = pc.starts_with(addresses, root)
    return pc.if_else(inside, pc.utf8_slice_codeunits(addresses, len(root)), addresses)


def imported_folders(keys: pa.ChunkedArray) -> list[str]:
    """The directories that the absolute ones of some stored addresses lie in, each once."""
    outside = keys.filter(pc.match_substring_regex(keys, ABSOLUTE))
    folders: list[str] = pc.unique(pc.replace_substring_regex(outside, r"/[^/]*$", "")).to_pylist()
    return folders


def _need_no_escape(keys: pa.ChunkedArray | pa.Array) -> bool:
    """Whether no key has a byte that is written otherwise in a URL: all bytes of a column are looked up at once."""
    for chunk in keys.chunks if isinstance(keys, pa.ChunkedArray) else [keys]:
        _, offsets, values = chunk.buffers()
        if len(chunk) and values is not None:
            bounds = np.frombuffer(offsets, np.int32)
            start, end = bounds[chunk.offset], bounds[chunk.offset + len(chunk)]
            if not _PLAIN[np.frombuffer(values, np.uint8)[start:end]].all():
                return False
    return True


def _map_each(addresses: pa.ChunkedArray | pa.Array, change: Callable[[str], str]) -> pa.ChunkedArray:
    return pa.chunked_array([[change(address) for address in addresses.to_pylist()]], pa.string())
