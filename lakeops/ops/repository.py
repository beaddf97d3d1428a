"""Creating repositories: a name in the catalog and a storage namespace that nobody else writes to."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict

from lakeops.catalog.open import Catalog
from lakeops.model.clock import Ids, unix_seconds
from lakeops.model.errors import AlreadyExists, InvalidInput, LakeopsError, NamespaceTaken, NotFound
from lakeops.model.ids import COMMIT_METADATA_BYTES, check_metadata, make_commit
from lakeops.model.marks import Identity
from lakeops.model.names import check_branch, check_repository
from lakeops.model.records import RepositoryRecord, Split
from lakeops.model.sanitising import excerpt
from lakeops.ops.context import Context, pages
from lakeops.ops.overlap import CATALOG, CLAIM_ID, check_apart, claim, claim_text, read_claim
from lakeops.ops.owner import first_owner, release
from lakeops.ranges.chunker import check_split
from lakeops.ranges.metarange import EMPTY_METARANGE_ID
from lakeops.store import layout
from lakeops.store.base import ObjectStore
from lakeops.store.open import Stores, parse_location


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
    metadata: Mapping[str, str] | None = None,
) -> RepositoryRecord:
    """A new repository with one empty initial commit on its default branch: see ``Lake.create_repository``.

    A crash leaves an empty namespace with a claim, which the same catalog takes up again under the same name.
    """
    check_repository(name)
    check_branch(default_branch)
    check_split(split)
    pairs = check_metadata(metadata, at_most=COMMIT_METADATA_BYTES)
    namespace = parse_location(storage_namespace).url
    if exists(catalog, name):
        raise AlreadyExists(f"repository {name!r} exists")
    check_apart(catalog, stores, namespace)
    store = stores.at(namespace)
    identity = catalog.repositories.identity()
    left = _left_behind(catalog, store, name, identity)
    now = catalog.now()
    repository = RepositoryRecord(
        id=name,
        storage_namespace=namespace,
        default_branch=default_branch,
        creation_date=unix_seconds(now),
        split=split,
        capabilities={**asdict(store.probe()), CLAIM_ID: left or ids.new()},
        metadata=pairs,
    )
    if left is not None:
        first_owner(catalog, store, name, ids)  # first: a copy of this catalog must not touch the claim
        # The claim that was left behind says then how this repository is made. Its id stays.
        store.swap(layout.CLAIM, claim_text(repository, identity), expected=store.get(layout.CLAIM))
    claim(store, repository, identity)
    owner = first_owner(catalog, store, name, ids)
    try:
        check_apart(catalog, stores, namespace)  # of two that claim at once, the later one sees the other's claim
    except NamespaceTaken:
        if exists(catalog, name):  # another call took up this claim: it and the owner record are that repository's
            raise AlreadyExists(f"repository {name!r} exists") from None
        store.delete([layout.CLAIM, layout.owner_key(store.url)])
        raise
    first = make_commit(
        parents=(),
        committer=actor,
        message="Repository created",
        metadata={},
        creation_date=repository.creation_date,
        meta_range_id=EMPTY_METARANGE_ID,
    )
    catalog.repositories.create_repository(repository, first, token=ids.new(), actor=actor, owner=owner)
    if left is not None:  # a deletion that is still at work may have removed the record that was found
        store.swap(layout.owner_key(store.url), owner.encode(), expected=None)
    return repository


def delete_repository(catalog: Catalog, stores: Stores, name: str, seen: int | None, *, mirror: bool = False) -> None:
    """Forget a repository, and give up the right to delete in its namespace, if its store can be reached."""
    namespace = catalog.repositories.get(name).storage_namespace
    own = catalog.repositories.ownership(name)
    catalog.repositories.delete_repository(name, seen, mirror=mirror)
    with suppress(LakeopsError):
        store = stores.at(namespace)
        release(store, own)
        again = catalog.repositories.ownership(name).current_lease  # of a creation that found what was removed
        if again is not None and again in (own.current_lease, own.pending_lease):
            store.swap(layout.owner_key(store.url), again.encode(), expected=None)


def update_metadata(ctx: Context, changes: Mapping[str, str | None]) -> dict[str, str]:
    """Change the repository's own metadata: key/value pairs for people and programs, such as an owner or a contact.

    Keys that are not given stay. Returns all of it as it is now.

    Args:
        changes: the new text of each key. None removes the key. All pairs together take at most 64 KiB.

    Raises:
        InvalidInput: it is not a map of texts, or too large.
        PreconditionFailed: ``read_only_repository``: the repository takes no changes. A mirror has its source's.
    """
    if not isinstance(changes, Mapping):
        raise InvalidInput(f"metadata: {excerpt(changes)} is not a map from text to text")
    kept = {key: value for key, value in changes.items() if value is not None}
    check_metadata(kept | dict.fromkeys(changes.keys() - kept.keys(), ""), at_most=COMMIT_METADATA_BYTES)
    return ctx.catalog.repositories.update_metadata(ctx.repository_id, dict(changes))


def exists(catalog: Catalog, name: str) -> bool:
    """Whether the catalog has a repository of this name."""
    try:
        catalog.repositories.get(name)
    except NotFound:
        return False
    return True


def _left_behind(catalog: Catalog, store: ObjectStore, name: str, identity: Identity) -> str | None:
    """The id of the claim that an earlier try of this catalog left here, if any. Raises ``NamespaceTaken``."""
    found = read_claim(store)
    left = str(found["id"]) if found and found.get("id") and found.get(CATALOG) == identity.catalog else None
    claimed = (found or {}).get("repository")
    # A creation fails when another one, elsewhere, took its name first. So its claim belongs to no repository.
    half_made = left is not None and claimed != name and not (isinstance(claimed, str) and exists(catalog, claimed))
    if left is not None and any(one.capabilities.get(CLAIM_ID) == left for one in pages(catalog.repositories.page)):
        left = None  # that repository is there
    ours = (layout.PROBE, layout.CLAIM, layout.OWNER) if left is not None else (layout.PROBE,)
    for prefix in (layout.DATA, layout.METADATA):
        for item in store.list(prefix):
            if not item.key.startswith(ours):
                todo = "; choose an empty location"
                if left is not None:
                    todo = ", of a repository that this catalog does not have any more; choose an empty location, or "
                    todo += "delete all files there if no other catalog needs them"
                raise NamespaceTaken(f"storage namespace {store.url!r} is taken: it holds {item.key!r}{todo}")
    if half_made:
        raise NamespaceTaken(
            f"storage namespace {store.url!r} is taken: this catalog began to create repository "
            f"{excerpt(claimed)} there; create it under that name, or choose another location"
        )
    return left
