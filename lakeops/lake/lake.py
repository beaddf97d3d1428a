"""A lake: one catalog and the stores of its repositories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from lakeops.catalog.base import Catalog
from lakeops.catalog.open import open_catalog
from lakeops.lake.mirror import Mirror
from lakeops.lake.repository import Repository
from lakeops.model.clock import Clock, Ids, SystemClock
from lakeops.model.names import check_repository
from lakeops.model.records import Repository as RepositoryRecord
from lakeops.model.records import Split
from lakeops.model.requests import check_asked
from lakeops.ops.context import Context, Progress, pages, quiet
from lakeops.settings import Settings

if TYPE_CHECKING:
    from lakeops.engine.base import Engine
    from lakeops.ops.replicate import Replicated
    from lakeops.ranges.read import RangeCache
    from lakeops.store.open import Stores


class Lake:
    """Repositories in one catalog. Open it with ``Lake.open()``; it may be used as a context manager."""

    def __init__(
        self,
        catalog: Catalog,
        settings: Settings,
        *,
        ids: Ids | None = None,
        stores: Stores | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.catalog = catalog
        self.settings = settings
        self.progress: Progress = quiet
        self._ids = ids or Ids()
        self._clock = clock or SystemClock()
        self._stores = stores
        self._cache: RangeCache | None = None
        self._engine: Engine | None = None

    @classmethod
    def open(
        cls,
        home: str | Path | None = None,
        *,
        database_url: str | None = None,
        clock: Clock | None = None,
        settings: Settings | None = None,
        ids: Ids | None = None,
    ) -> Lake:
        """The lake that the settings name: arguments, then ``LAKEOPS_*``, then a settings file, then the default.

        Args:
            home: directory of the embedded default (SQLite catalog and local storage).
            database_url: the catalog, for instance ``postgresql+psycopg://user@host/lakeops``.
            clock: tells the time in place of the machine; with SQLite it is the database's clock too.
            settings: ready-made settings; ``home`` and ``database_url`` must then be left out.
            ids: where fresh names come from; tests hand in a seeded source.

        Raises:
            InvalidSettings: a setting makes no sense.
            CatalogVersion: the catalog is newer than this code, or needs ``lakeops doctor --upgrade``.
            CatalogUnavailable: the database does not answer.
        """
        chosen = settings or Settings.load(home=home, database_url=database_url)
        catalog = open_catalog(
            chosen.catalog_url, clock=clock or SystemClock(), grace_seconds=int(chosen.grace_hours * 3600)
        )
        return cls(catalog, chosen, ids=ids, clock=clock)

    def close(self) -> None:
        """Give back the catalog's connections and what the engine holds."""
        if self._engine is not None:
            self._engine.close()
        self.catalog.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def create_repository(
        self,
        name: str,
        storage_namespace: str | None = None,
        *,
        default_branch: str = "main",
        split: Split | None = None,
    ) -> Repository:
        """A new repository with one initial commit.

        Args:
            name: ``[a-z0-9][a-z0-9-]{2,62}``.
            storage_namespace: ``file:///...`` or ``s3://bucket/prefix``; below the home directory when left out.
            default_branch: the first branch.
            split: where ranges end, for ever; the default suits everything but tests.

        Raises:
            InvalidName: the name breaks the rules.
            InvalidUri: the storage namespace is no URL that lakeops writes to.
            AlreadyExists: a repository has the name.
            NamespaceTaken: the storage namespace holds a repository, or overlaps with one.
            StoreError: the store refused.
        """
        from lakeops.ops.repository import create_repository

        record = create_repository(
            self.catalog,
            self.stores(),
            name,
            storage_namespace or self.settings.default_namespace(check_repository(name)),
            default_branch=default_branch,
            split=split or Split(),
            ids=self._ids,
            actor=self.settings.committer,
        )
        return self._handle(record)

    def repository(self, name: str) -> Repository:
        """An existing repository. Raises ``RepositoryNotFound``."""
        return self._handle(self.catalog.repository(check_asked(name, "a repository")))

    def repositories(self, *, prefix: str = "", after: str = "") -> Iterator[Repository]:
        """All repositories by name."""
        return map(self._handle, pages(self.catalog.repositories, prefix=prefix, after=after))

    def create_mirror(
        self,
        name: str,
        storage_namespace: str | None = None,
        *,
        source: Lake | str,
        source_repository: str | None = None,
        branches: Sequence[str] = ("*",),
        tags: Sequence[str] = ("*",),
        reports: bool = True,
        check_imported: bool = True,
    ) -> Mirror:
        """A read-only repository that follows a repository of another lake, at its initial commit until it is synced.

        The source's storage namespace must be replicated to this one's, by the bucket's own replication or by
        ``lakeops mirror replicate``.

        Args:
            name: the mirror's name here.
            storage_namespace: the replica; below the home directory when left out.
            source: another lake, or how to find it (see ``lakeops.model.sources``); no password is ever stored.
            source_repository: its name there; the mirror's own when left out.
            branches: glob patterns of the branches to follow.
            tags: the same of tags.
            reports: tell the source which commits the mirror needs, so that garbage collection there keeps them. It
                takes write access to the source's catalog; without, set ``mirror_lag_days`` in the source's rules.
            check_imported: look for imported objects, which lie outside the namespace, as well.

        Raises:
            AlreadyExists: a repository has the name.
            NamespaceTaken: the storage namespace overlaps with a repository of this lake.
            NotAReplica: the storage namespace belongs to another repository.
            InvalidInput: the source is not named as it has to be.
            CatalogUnavailable: the source's database does not answer.
            CatalogError: the source's database refuses.
        """
        from lakeops.lake.source import reaching, reference_to
        from lakeops.ops.mirror.create import create_mirror
        from lakeops.ops.mirror.source import Source
        from lakeops.store.location import same_server

        reference = reference_to(source, source_repository, name)
        with reaching(reference, self._clock, given=source if isinstance(source, Lake) else None) as origin:
            record = create_mirror(
                self.catalog,
                self.stores(),
                name,
                storage_namespace or self.settings.default_namespace(check_repository(name)),
                Source(origin.catalog, reference.repository),
                reference,
                branches=branches,
                tags=tags,
                reports=reports,
                check_imported=check_imported,
                same_store=same_server(origin.settings.s3_endpoint_url, self.settings.s3_endpoint_url),
                ids=self._ids,
                actor=self.settings.committer,
            )
        return Mirror(self._context(record), self._clock, source if isinstance(source, Lake) else None)

    def mirror(self, name: str) -> Mirror:
        """An existing mirror. Raises ``RepositoryNotFound``, ``NotAMirror``."""
        self.catalog.mirror(check_asked(name, "a repository"))
        return Mirror(self._context(self.catalog.repository(name)), self._clock)

    def mirrors(self) -> Iterator[Mirror]:
        """All mirrors by name, those that were promoted to writable repositories included."""
        return (self.mirror(mirror.repository_id) for mirror in self.catalog.mirrors())

    def delete_repository(self, name: str) -> None:
        """Forget a repository; its objects are left as they are. Raises ``RepositoryNotFound``.

        This catalog gives up the right to delete in the storage namespace, where the store can be reached.
        """
        from lakeops.ops.repository import delete_repository

        delete_repository(self.catalog, self.stores(), check_asked(name, "a repository"))

    def replicate(
        self,
        source: str,
        destination: str,
        *,
        source_endpoint: str | None = None,
        delete: bool = False,
        force: bool = False,
    ) -> Replicated:
        """Copy what a storage namespace has and another one lacks; see ``lakeops mirror replicate``.

        Args:
            source: the storage namespace of a repository, of this lake or another one.
            destination: the storage namespace of its mirror.
            source_endpoint: the S3-compatible server of the source, where it is not the one that settings name.
            delete: afterwards remove what the source does not have.
            force: remove even a large share of what is there.

        Raises:
            NotAllReplicated: some objects failed; running it again goes on from there.
            NamespaceTaken: the destination overlaps with another repository.
            NotTheOwner: a catalog writes to it: it was opened for writing.
            PreconditionFailed: ``delete`` would take a large share; nothing was deleted.
            InvalidInput: source and destination overlap.
            NotFound: the source is no repository's storage namespace.
            StoreError: a store refused.
        """
        from lakeops.ops.replicate import replicate_to
        from lakeops.store.open import open_store

        stores = self.stores()
        here = stores.at(source)
        if source_endpoint is not None:
            here = open_store(source, replace(stores.settings, endpoint_url=source_endpoint))
        return replicate_to(
            self.catalog,
            stores,
            destination,
            here,
            self._range_engine(),
            delete=delete,
            force=force,
            progress=self._show,
        )

    def stores(self) -> Stores:
        """The stores that addresses lead to."""
        if self._stores is None:
            from lakeops.store.open import Stores, StoreSettings

            self._stores = Stores(
                StoreSettings(
                    endpoint_url=self.settings.s3_endpoint_url,
                    region=self.settings.s3_region,
                    fsync=self.settings.fsync,
                )
            )
        return self._stores

    def _range_cache(self) -> RangeCache:
        if self._cache is None:
            from lakeops.ranges.read import RangeCache

            self._cache = RangeCache(self.settings.cache_mb << 20)
        return self._cache

    def _range_engine(self) -> Engine:
        if self._engine is None:
            from lakeops.engine.choose import open_engine

            self._engine = open_engine(self.settings)
        return self._engine

    def _show(self, label: str, done: int, total: int) -> None:
        self.progress(label, done, total)  # looked up at each call: handles made before it was set show progress too

    def _handle(self, record: RepositoryRecord) -> Repository:
        return Repository(self._context(record))

    def _context(self, record: RepositoryRecord) -> Context:
        return Context(
            catalog=self.catalog,
            repository=record,
            settings=self.settings,
            ids=self._ids,
            open_stores=self.stores,
            open_cache=self._range_cache,
            open_engine=self._range_engine,
            progress=self._show,
        )
