"""Finding out by trying: what a store says of itself is not always so.

Some servers answer a conditional put with success whatever is there. Nothing rests on it, but people should know.
"""

from __future__ import annotations

from lakeops.model.clock import Ids
from lakeops.model.errors import AlreadyExists, LakeopsError
from lakeops.store.base import ObjectStore
from lakeops.store.layout import PROBE


def can_put_if_absent(store: ObjectStore, ids: Ids) -> bool:
    """Whether a second put of a key that must be new is refused, and leaves the first one's contents."""
    key = PROBE + ids.new()
    store.put(key, b"first")
    try:
        store.put(key, b"second", if_absent=True)
    except AlreadyExists:
        return store.get(key) == b"first"
    finally:
        store.delete([key])
    return False


def can_read_ranges(store: ObjectStore, ids: Ids) -> bool:
    """Whether a piece from the middle comes back as just that piece."""
    key = PROBE + ids.new()
    store.put(key, bytes(range(256)))
    try:
        return store.get_range(key, 100, 8) == bytes(range(100, 108))
    except LakeopsError:
        return False
    finally:
        store.delete([key])
