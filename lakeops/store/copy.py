"""Copying one object from any store to any other, under the same key: whole and right, or not at all.

The server copies where it can. Else the contents stream through this process: what is read is checked against the
source's own checksum before the destination accepts the last byte, and what a store without checksums has kept is read
back.
"""

from __future__ import annotations

from contextlib import closing

from lakeops.model.errors import Corrupted, ObjectNotFound, PreconditionFailed
from lakeops.model.marks import Owner, read_owner
from lakeops.model.sanitising import excerpt, safe
from lakeops.store.base import ObjectStore, StoredObject
from lakeops.store.layout import OWNER, owner_key
from lakeops.store.reader import read_small


def copy_object(source: ObjectStore, destination: ObjectStore, item: StoredObject) -> None:
    """Copy an object that was listed at the source.

    Raises:
        ObjectNotFound: the source has it no longer.
        Transient: it is another one than was listed, or a store did not answer.
        Corrupted: what was read or written is not it. Nothing is left of it at the destination.
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


Known = frozenset[tuple[str, str]]
"""Key and catalog of records that say nothing about a namespace: its source has them too."""


def owners_at(store: ObjectStore) -> dict[str, Owner | None]:
    """The records in a namespace by key. None for one that cannot be read."""
    found: dict[str, Owner | None] = {}
    for item in store.list(OWNER):
        try:
            found[item.key] = read_owner(read_small(store, item.key))
        except ObjectNotFound:
            continue
        except Corrupted:
            found[item.key] = None
    return found


def known_at(source: ObjectStore) -> Known:
    """The owner records of a source, which mean nothing at its replica."""
    return frozenset((key, owner.identity.catalog) for key, owner in owners_at(source).items() if owner is not None)


def check_nobody_owns(destination: ObjectStore, known: Known) -> None:
    """Refuse to copy into a namespace that a catalog writes to. Raises ``PreconditionFailed`` (``not_the_owner``)."""
    own = owner_key(destination.url)  # replication may have brought a copy of the destination's record to the source
    for key, owner in owners_at(destination).items():
        if owner is not None and key != own and (key, owner.identity.catalog) in known:
            continue
        whose = "a catalog whose owner record cannot be read"
        if owner is not None:
            place = safe(owner.identity.shown)
            whose = f"the catalog at {place} as repository {excerpt(owner.repository)} (epoch {owner.epoch})"
        raise PreconditionFailed(
            f"{destination.url} is written to by {whose}, for instance after a fail-over: nothing is copied over it or "
            "deleted there. Stop this replication; if that repository is gone for good, forget it with "
            "`lakeops repo delete` where it is, or delete the file " + key,
            kind="not_the_owner",
        )
