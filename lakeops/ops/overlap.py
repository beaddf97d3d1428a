"""No two repositories share a place: the one rule for creating, mirroring, copying, importing and staging.

A repository deletes in its namespace, below ``data/`` and ``_lakefs/``, whatever it does not need itself. So no
namespace may lie in another one, and nothing that one repository manages may be linked by another: its garbage
collection would take it. The catalog knows its own repositories. Those of other lakes are known by the claim in their
namespace.

Places are compared as they really are: links of directories are followed, percent-encoding is undone.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import islice

from lakeops.catalog.base import Catalog
from lakeops.model.errors import InvalidInput, InvalidPath, InvalidUri, NamespaceTaken, NotFound, StoreError
from lakeops.model.records import Repository
from lakeops.model.text import excerpt
from lakeops.ops.context import pages
from lakeops.store.layout import CLAIM, DATA, METADATA
from lakeops.store.location import above, lies_in, overlap, real_place
from lakeops.store.open import Stores

LOOKED_AT = 10_000
"""Names below a new namespace that are looked at for claims; what lies beyond is never touched by it."""

_MANAGED = (DATA.rstrip("/"), METADATA.rstrip("/"))


def check_apart(
    catalog: Catalog, stores: Stores, namespace: str, *, own: str | None = None, mirrors: bool = False
) -> None:
    """Refuse a namespace that lies in another repository's, or holds one.

    Args:
        catalog: whose repositories are known.
        stores: how claims of other lakes are looked for.
        namespace: a storage namespace.
        own: the repository that it is of; a new one when None.
        mirrors: whether a mirror of this catalog may have this very namespace.

    Raises:
        NamespaceTaken: it overlaps with a repository of this catalog, or of another lake.
    """
    here = real_place(namespace)
    for other in pages(catalog.repositories):
        if other.id == own or not overlap(namespace, other.storage_namespace):
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


def check_not_managed(catalog: Catalog, stores: Stores, places: Iterable[str], own: Repository) -> None:
    """Refuse to link objects that a repository manages.

    Args:
        catalog: whose repositories are known.
        stores: how claims of other lakes are looked for.
        places: directories of objects, as the absolute addresses spell them.
        own: the repository that would link them; its own objects are linked by their relative address alone.

    Raises:
        InvalidInput: garbage collection of a repository would delete them.
    """
    known = [(one, real_place(one.storage_namespace)) for one in pages(catalog.repositories)]
    claimed: dict[str, bool] = {}
    for place in places:
        here = real_place(place)
        for one, root in known:
            if any(lies_in(here, f"{root}/{folder}") for folder in _MANAGED):
                whose = "this repository" if one.id == own.id else f"repository {one.id!r}"
                raise _managed(place, f"{whose} in {one.storage_namespace}")
        for root in above(place):
            if any(lies_in(here, f"{real_place(root)}/{folder}") for folder in _MANAGED):
                if root not in claimed:
                    claimed[root] = _is_claimed(stores, root)
                if claimed[root]:
                    raise _managed(place, f"the repository of another lake in {root}")


def check_source_apart(catalog: Catalog, stores: Stores, source: str, own: Repository) -> None:
    """Refuse to import from where a repository manages objects: in it, or around it. Raises ``InvalidInput``."""
    for one in pages(catalog.repositories):
        kept = ("",) if one.id == own.id else _MANAGED
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
    with suppress(NotFound, StoreError, InvalidUri, InvalidPath):
        stores.at(place).head(CLAIM)
        return True
    return False
