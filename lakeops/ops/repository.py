"""Creating repositories: a name in the catalog and a storage namespace that nobody else writes to."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from lakeops.catalog.base import Catalog
from lakeops.model.clock import Ids, unix_seconds
from lakeops.model.errors import AlreadyExists, NamespaceTaken, NotFound
from lakeops.model.ids import make_commit
from lakeops.model.names import check_branch, check_repository
from lakeops.model.records import Repository, Split
from lakeops.ranges.digest import EMPTY_METARANGE_ID
from lakeops.store import layout
from lakeops.store.base import ObjectStore
from lakeops.store.open import Stores, normalise_namespace

FORMAT = 1
"""The version of the namespace's layout and file formats."""

CLAIM_ID = "claim_id"
"""Under which of a repository's capabilities its claim's id is kept: replicas of its namespace are known by it."""


def create_repository(
    catalog: Catalog,
    stores: Stores,
    name: str,
    storage_namespace: str,
    *,
    default_branch: str,
    split: Split,
    ids: Ids,
    actor: str,
) -> Repository:
    """A new repository with one empty initial commit on its default branch.

    The catalog's row comes first and is what counts; the claim file in the namespace keeps repositories of other
    lakes out. A crash between the two leaves a repository that works.

    Raises:
        InvalidName, InvalidUri, AlreadyExists, NamespaceTaken, StoreError.
    """
    check_repository(name)
    check_branch(default_branch)
    namespace = normalise_namespace(storage_namespace)
    if exists(catalog, name):
        raise AlreadyExists(f"repository {name!r} exists")
    store = stores.at(namespace)
    _require_empty(store)
    now = catalog.now()
    repository = Repository(
        id=name,
        storage_namespace=namespace,
        default_branch=default_branch,
        creation_date=unix_seconds(now),
        split=split,
        capabilities={**asdict(store.probe()), CLAIM_ID: ids.new()},
    )
    first = make_commit(
        parents=(),
        committer=actor,
        message="Repository created",
        metadata={},
        creation_date=repository.creation_date,
        meta_range_id=EMPTY_METARANGE_ID,
    )
    catalog.create_repository(repository, first, token=ids.new(), actor=actor)
    try:
        claim(store, repository)
    except BaseException:
        catalog.delete_repository(name)
        raise
    return repository


def exists(catalog: Catalog, name: str) -> bool:
    """Whether the catalog has a repository of this name."""
    try:
        catalog.repository(name)
    except NotFound:
        return False
    return True


def _require_empty(store: ObjectStore) -> None:
    for prefix in (layout.DATA, layout.METADATA):
        found = next(iter(store.list(prefix)), None)
        if found is not None:
            raise NamespaceTaken(
                f"storage namespace {store.url!r} is taken: it holds {found.key!r}; choose an empty location"
            )


def claim_of(repository: Repository) -> dict[str, Any]:
    """What the claim file in the repository's namespace, and in every replica of it, says."""
    return {
        "format": FORMAT,
        "repository": repository.id,
        "split": asdict(repository.split),
        "id": repository.capabilities.get(CLAIM_ID),
    }


def claim(store: ObjectStore, repository: Repository) -> None:
    """Claim the namespace for a repository. Raises ``NamespaceTaken``."""
    data = json.dumps(claim_of(repository), indent=2).encode()
    try:
        store.put(layout.CLAIM, data, if_absent=True, content_type="application/json")
    except AlreadyExists:
        raise NamespaceTaken(f"storage namespace {store.url!r} was taken by another repository just now") from None
