"""Which of many objects are there: asked for one by one, or found in a listing where that is cheaper.

A request for one object costs about as much as one that lists a thousand names. So where many objects of one
directory are asked for, it is listed, from the first of them to the last; and the listing is given up, and the rest
asked for one by one, when it shows far more than was asked for. Either way the number of requests never grows past the
number of objects by more than a tenth, however full the store is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from lakeops.model.errors import ObjectNotFound
from lakeops.store.base import ObjectStore, StoredObject
from lakeops.store.in_flight import IN_FLIGHT, in_flight

LIST_FROM = 32
"""How many objects of one directory are worth a listing."""

SHOWN_FOR_ASKED = 100
"""How many names a listing may show for each object that it is searched for: a request for ten objects."""

_FEW = 4


def present(store: ObjectStore, keys: Iterable[str], *, at_once: int = IN_FLIGHT) -> dict[str, StoredObject]:
    """The keys that the store has, each with what the store tells of it.

    Args:
        store: where to look.
        keys: any keys, in any order.
        at_once: how many requests are under way at a time.
    """
    wanted = sorted(set(keys))
    groups = [list(group) for _, group in groupby(wanted, key=_directory)]
    many = [group for group in groups if len(group) >= LIST_FROM]
    single = [key for group in groups if len(group) < LIST_FROM for key in group]
    if not many and len(single) <= _FEW:
        return {item.key: item for key in single if (item := _head(store, key)) is not None}
    found: dict[str, StoredObject] = {}
    for listed, rest in in_flight(lambda group: _listed(store, group), many, at_once):
        found.update(listed)
        single += rest
    for item in in_flight(lambda key: _head(store, key), single, at_once):
        if item is not None:
            found[item.key] = item
    return found


def _directory(key: str) -> str:
    """The first two parts of a key: objects are written under ``data/<hour>/``."""
    return "/".join(key.split("/", 2)[:2]) + "/" if key.count("/") > 1 else key.rpartition("/")[0]


def _listed(store: ObjectStore, keys: Sequence[str]) -> tuple[dict[str, StoredObject], list[str]]:
    """What a listing finds of keys in one directory, and the keys that it did not get to."""
    wanted, last = set(keys), keys[-1]
    found: dict[str, StoredObject] = {}
    left = SHOWN_FOR_ASKED * len(keys)
    # Anything before the first key will do to begin at, and a part of it is.
    for item in store.list(_directory(last), after=keys[0][:-1]):
        if item.key > last:
            break
        if item.key in wanted:
            found[item.key] = item
        left -= 1
        if left < 0:
            return found, [key for key in keys if key > item.key]
    return found, []


def _head(store: ObjectStore, key: str) -> StoredObject | None:
    try:
        return store.head(key)
    except ObjectNotFound:
        return None
