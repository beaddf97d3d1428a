"""Copying one object from any store to any other, under the same key: whole and right, or not at all.

The server copies where it can. Else the contents stream through this process: what is read is checked against the
source's own checksum before the destination accepts the last byte, and what a store without checksums has kept is read
back.
"""

from __future__ import annotations

from contextlib import closing

from lakeops.model.errors import Corrupted
from lakeops.store.base import ObjectStore, StoredObject


def copy_object(source: ObjectStore, destination: ObjectStore, item: StoredObject) -> None:
    """Copy an object that was listed at the source.

    Raises:
        ObjectNotFound: the source has it no longer.
        Transient: it is another one than was listed, or a store did not answer.
        Corrupted: what was read or written is not it; nothing is left of it at the destination.
        StoreError: a store refused.
    """
    if destination.copy_from(source, item):
        return
    opened = source.open_checked(item)
    with closing(opened.file) as file:
        done = destination.put(item.key, file, content_type=opened.content_type)
    if done.etag:
        return
    arrived = destination.checksum(StoredObject(item.key, done.size_bytes, item.mtime))
    if arrived != done.checksum:
        destination.delete([item.key])
        raise Corrupted(f"{destination.url}/{item.key} is not what was written to it; it was removed again")
