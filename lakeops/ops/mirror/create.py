"""Making a mirror, and forgetting one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from lakeops.model.clock import Ids, unix_seconds
from lakeops.model.errors import AlreadyExists, CatalogError, InvalidInput, LakeopsError, NamespaceTaken, StoreError
from lakeops.model.ids import SOURCE_ETAG, etags_are_md5
from lakeops.model.mirrors import MirrorRecord
from lakeops.model.names import check_glob
from lakeops.model.records import RepositoryRecord
from lakeops.model.sanitising import excerpt
from lakeops.ops.context import Context
from lakeops.ops.mirror.record_validation import check_repository_metadata
from lakeops.ops.mirror.source import Reach, Source, SourceLake, check_replica, if_reached
from lakeops.ops.overlap import CLAIM_ID, check_apart
from lakeops.ops.owner import check_unowned
from lakeops.ops.repository import delete_repository, exists
from lakeops.store.open import Stores, overlap, parse_location

if TYPE_CHECKING:
    from lakeops.catalog.open import Catalog


def create_mirror(
    catalog: Catalog,
    stores: Stores,
    wanted: MirrorRecord,
    storage_namespace: str,
    source: Source,
    *,
    same_store: bool,
    ids: Ids,
    actor: str,
) -> RepositoryRecord:
    """Create a read-only repository that follows ``source``, at its initial commit: see ``Lake.create_mirror``.

    ``wanted`` is the mirror without its registration. ``same_store`` says whether equal locations mean the same place
    here and at the source.
    """
    name, namespace = wanted.repository_id, parse_location(storage_namespace).url
    origin = source.repository
    if exists(catalog, name):
        raise AlreadyExists(f"repository {name!r} exists; a mirror is a repository of its own: choose another name")
    if (same_store or not namespace.startswith("s3://")) and overlap(namespace, origin.storage_namespace):
        raise NamespaceTaken(f"{namespace} overlaps with the source's own namespace; a mirror needs a copy elsewhere")
    check_apart(catalog, stores, namespace)
    store = stores.at(namespace)
    check_replica(store, origin)
    check_unowned(catalog, store, origin, source.catalog.repositories.identity())
    first, found = replace(source.initial_commit(), expired=False), dict[str, Any]()
    try:
        found = asdict(store.probe())
    except StoreError:  # the mirror may not write there
        next(iter(store.list("_lakefs/")), None)  # reading must work
    mirror = replace(wanted, registration=f"{name}-{ids.new()}", created=unix_seconds(catalog.now()))
    repository = RepositoryRecord(
        id=name,
        storage_namespace=namespace,
        default_branch=origin.default_branch,
        creation_date=mirror.created,
        read_only=True,
        split=origin.split,
        capabilities={
            **found,
            CLAIM_ID: origin.capabilities.get(CLAIM_ID),
            SOURCE_ETAG: etags_are_md5(origin.capabilities),
        },
        metadata=check_repository_metadata(origin),
    )
    if mirror.reports:
        _register(source, mirror)
    try:
        catalog.mirrors.create_mirror(repository, first, mirror, token=ids.new(), actor=actor)
    except LakeopsError:
        unregister(source, mirror)
        raise
    return repository


def delete_mirror(ctx: Context, reach: Reach, source: SourceLake | None = None) -> bool:
    """Forget the mirror. Its objects stay where they are. Returns whether the source knows that it is gone.

    A source that was never told about the mirror needs no word, so the answer is True then too.

    Raises:
        NotAMirror: it was promoted to a writable repository.
    """
    with if_reached(reach, source) as origin:
        mirror = ctx.catalog.mirrors.get(ctx.repository_id)
        delete_repository(ctx.catalog, ctx.stores(), ctx.repository_id, None, mirror=True)
        return unregister(origin, mirror)


def unregister(source: Source | None, mirror: MirrorRecord) -> bool:
    """Remove the mirror's registration at the source. Returns whether that was done, or not needed."""
    if not mirror.reports:
        return True
    try:
        if source is not None:
            source.catalog.mirrors.drop_mirror(source.repository_id, mirror.registration)
    except LakeopsError:
        return False
    return source is not None


def _register(source: Source, mirror: MirrorRecord) -> None:
    try:
        source.catalog.mirrors.report_mirror(source.repository_id, mirror.registration, frozenset())
    except CatalogError as error:
        raise CatalogError(
            f"the source's catalog takes no reports from mirrors ({error.message}): give the mirror the right to "
            "write, or make it with --read-only-source and set mirror_lag_days in the source's rules"
        ) from None


def ref_patterns(what: str, patterns: Sequence[str]) -> tuple[str, ...]:
    """The patterns of refs to follow. Raises ``InvalidInput``."""
    if isinstance(patterns, str | bytes) or not isinstance(patterns, Sequence):
        raise InvalidInput(f"give a list of {what} patterns, not {excerpt(patterns)}")
    for pattern in patterns:
        check_glob(pattern, f"a {what} pattern", f"{what} name")
    return tuple(dict.fromkeys(patterns))
