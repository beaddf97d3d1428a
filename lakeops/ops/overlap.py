"""No two repositories share a place: the one rule for creating, mirroring, copying, importing and staging.

A repository deletes in its namespace, below ``data/`` and ``_lakefs/``, whatever it does not need itself. So no
namespace lies in another one, and nothing that one repository manages is linked by another. Repositories of other lakes
are known by the claim in their namespace. Links of directories are followed, and percent-encoding is undone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from functools import cache, partial
from itertools import islice
from typing import Any

from lakeops.catalog.open import Catalog
from lakeops.model.errors import AlreadyExists, Corrupted, InvalidInput, NamespaceTaken, ObjectNotFound, StoreError
from lakeops.model.marks import Identity
from lakeops.model.records import RepositoryRecord
from lakeops.model.sanitising import excerpt
from lakeops.ops.context import pages
from lakeops.store import layout
from lakeops.store.base import ObjectStore
from lakeops.store.layout import CLAIM, MANAGED
from lakeops.store.open import Stores, above, lies_in, overlap, real_place
from lakeops.store.reader import parse_json, read_small

LOOKED_AT = 10_000
"""Names below a new namespace that are looked at for claims. What lies beyond is never touched by it."""


def check_apart(catalog: Catalog, stores: Stores, namespace: str, *, mirrors: bool = False) -> None:
    """Refuse a namespace that lies in another repository's, of this lake or another one, or holds one.

    With ``mirrors`` a mirror of this catalog may have this very namespace. Raises ``NamespaceTaken``.
    """
    here = real_place(namespace)
    for other in pages(catalog.repositories.page):
        if not overlap(namespace, other.storage_namespace):
            continue
        if mirrors and other.read_only and real_place(other.storage_namespace) == here:
            continue
        raise NamespaceTaken(
            f"{namespace} overlaps with the storage namespace of repository {other.id!r}, {other.storage_namespace}; "
            "choose another location"
        )
    for place in above(namespace):
        if _is_claimed(stores, place):
            raise NamespaceTaken(f"{namespace} lies in the storage namespace {place}; choose another location")
    for item in islice(stores.at(namespace).list(), LOOKED_AT):
        if item.key.endswith("/" + CLAIM):
            raise NamespaceTaken(
                f"{namespace} holds another repository, in {excerpt(item.key.removesuffix('/' + CLAIM))}; choose "
                "another location"
            )


def check_not_managed(catalog: Catalog, stores: Stores, places: Iterable[str], own: RepositoryRecord) -> None:
    """Refuse to link objects in directories that a repository manages: its garbage collection would delete them.

    ``places`` are spelt as the absolute addresses spell them. ``own`` links its objects by relative addresses alone.
    """
    known = [(one, real_place(one.storage_namespace)) for one in pages(catalog.repositories.page)]
    is_claimed = cache(partial(_is_claimed, stores))
    for place in places:
        here = real_place(place)
        for one, root in known:
            if any(lies_in(here, f"{root}/{folder}") for folder in MANAGED):
                whose = "this repository" if one.id == own.id else f"repository {one.id!r}"
                raise _managed(place, f"{whose} in {one.storage_namespace}")
        for root in above(place):
            if any(lies_in(here, f"{real_place(root)}/{folder}") for folder in MANAGED) and is_claimed(root):
                raise _managed(place, f"the repository of another lake in {root}")


def check_source_apart(catalog: Catalog, stores: Stores, source: str, own: RepositoryRecord) -> None:
    """Refuse to import from where a repository manages objects: in it, or around it. Raises ``InvalidInput``."""
    for one in pages(catalog.repositories.page):
        kept = ("",) if one.id == own.id else MANAGED
        if any(overlap(source, f"{one.storage_namespace}/{folder}".rstrip("/")) for folder in kept):
            whose = "this repository" if one.id == own.id else f"repository {one.id!r}"
            raise _managed(source, f"{whose} in {one.storage_namespace}")
    check_not_managed(catalog, stores, [source], own)


def _managed(place: str, whose: str) -> InvalidInput:
    return InvalidInput(
        f"{excerpt(place)} overlaps with what is managed by {whose}: its objects live no longer than that repository "
        "needs them; import from elsewhere, copy them (download and upload), or merge"
    )


def _is_claimed(stores: Stores, place: str) -> bool:
    """Whether a repository has its claim there. What may not be looked at counts as nobody's."""
    with suppress(ObjectNotFound, StoreError, InvalidInput):
        stores.at(place).head(CLAIM)
        return True
    return False


FORMAT = 1
"""The version of the namespace's layout and file formats."""

CLAIM_ID = "claim_id"
"""The key of a repository's capabilities that holds its claim's id, by which replicas of its namespace are known."""

CATALOG = "catalog"
"""The key of a claim that names the catalog that made it."""


def claim_of(repository: RepositoryRecord) -> dict[str, Any]:
    """The contents of the claim file in the repository's namespace, and in every replica of it."""
    return {
        "format": FORMAT,
        "repository": repository.id,
        "split": asdict(repository.split),
        "id": repository.capabilities.get(CLAIM_ID),
    }


def claim_text(repository: RepositoryRecord, identity: Identity) -> bytes:
    """The claim as this catalog writes it."""
    return json.dumps({**claim_of(repository), CATALOG: identity.catalog}, indent=2).encode()


def claim(store: ObjectStore, repository: RepositoryRecord, identity: Identity) -> None:
    """Claim the namespace for a repository, unless it has this very claim. Raises ``NamespaceTaken``."""
    if read_claim(store) is None:
        with suppress(AlreadyExists):
            store.put(layout.CLAIM, claim_text(repository, identity), if_absent=True, content_type="application/json")
    # Read again: where a server ignores the condition, a later claim is in place of this one.
    check_claim(store, repository)


def check_claim(store: ObjectStore, repository: RepositoryRecord) -> None:
    """Refuse a namespace that says that it is another repository's. Raises ``NamespaceTaken``."""
    found = read_claim(store)
    if found is not None and not is_same_claim(found, claim_of(repository)):
        name = found.get("repository")
        whose = "another repository of this name, perhaps just now" if name == repository.id else "another repository"
        raise NamespaceTaken(
            f"storage namespace {store.url!r} was taken by {whose}, {excerpt(name)}: choose an empty location"
        )


def read_claim(store: ObjectStore) -> dict[str, Any] | None:
    """Read the claim in a namespace. None when there is none, empty when it cannot be read."""
    try:
        text = read_small(store, layout.CLAIM)
    except ObjectNotFound:
        return None
    except Corrupted:
        return {}
    try:
        found = parse_json(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def is_same_claim(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Whether a claim is the same repository's. A replica keeps its source's, whose name may be another."""
    name = "repository" if None in (found.get("id"), expected.get("id")) else "id"
    return bool(found.get(name) == expected.get(name))
