"""The connections of an open lake: its catalog, and the stores, cache and engine that its repositories share."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import cached_property, wraps
from importlib import import_module
from pathlib import Path
from types import MethodType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from lakeops.catalog.open import Catalog, open_catalog
from lakeops.catalog.records import Caller
from lakeops.model.clock import Clock, Ids, SystemClock
from lakeops.model.errors import out_of_resources
from lakeops.model.records import Progress, RepositoryRecord, quiet
from lakeops.ops.batcher import StageQueue
from lakeops.ops.context import Context
from lakeops.settings import Settings
from lakeops.store.base import StoreSettings

if TYPE_CHECKING:
    import lakeops.ops.ancestor
    import lakeops.ops.bisection
    import lakeops.ops.blame
    import lakeops.ops.branch
    import lakeops.ops.checks
    import lakeops.ops.commit
    import lakeops.ops.copy_move
    import lakeops.ops.diff
    import lakeops.ops.fsck.check
    import lakeops.ops.gc.files
    import lakeops.ops.gc.mark
    import lakeops.ops.gc.plan
    import lakeops.ops.gc.sweep
    import lakeops.ops.history
    import lakeops.ops.hooks
    import lakeops.ops.iceberg.diff
    import lakeops.ops.import_
    import lakeops.ops.local.clone
    import lakeops.ops.local.commit
    import lakeops.ops.merge
    import lakeops.ops.mirror.create
    import lakeops.ops.mirror.failover
    import lakeops.ops.mirror.inspection
    import lakeops.ops.mirror.replicate
    import lakeops.ops.mirror.source
    import lakeops.ops.mirror.sync
    import lakeops.ops.output
    import lakeops.ops.overlap
    import lakeops.ops.owner
    import lakeops.ops.put
    import lakeops.ops.read
    import lakeops.ops.refs.dump
    import lakeops.ops.refs.restore
    import lakeops.ops.repository
    import lakeops.ops.stage
    import lakeops.ops.tables  # noqa: F401 - all of them are used as attributes of ops
    from lakeops import ops as ops  # noqa: PLC0414 - says that it is exported
    from lakeops.engine.base import Engine
    from lakeops.ops.mirror.source import Reach
    from lakeops.ranges.read import RangeCache
    from lakeops.store.disk_cache import DiskCache
    from lakeops.store.open import Stores

P = ParamSpec("P")
R = TypeVar("R")


def naming_what_ran_out(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function: Python's errors about memory, descriptors or room become ``out_of_resources``."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (MemoryError, OSError, ImportError) as error:
            found = out_of_resources(error)
            if found is None:
                raise
        raise found

    return call


class LazyPackage:
    """A package whose modules are imported when they are first named."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> LazyPackage | ModuleType:
        module = import_module(f"{self._name}.{name}")
        return LazyPackage(module.__name__) if hasattr(module, "__path__") else module


if not TYPE_CHECKING:
    ops = LazyPackage("lakeops.ops")


class Verb(Generic[P, R]):
    """A method that calls a function of ``lakeops.ops``.

    Args:
        find: gives the function. Called at each use, so that tests can replace the function.
        of: the attribute of the handle that is the function's second argument, after the context.
    """

    def __init__(self, find: Callable[[], Callable[..., R]], of: str | None = None) -> None:
        self._find = find
        self._of = of

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name
        self._full_name = f"{owner.__qualname__}.{name}"

    @overload
    def __get__(self, handle: None, owner: type) -> Callable[Concatenate[Any, P], R]: ...

    @overload
    def __get__(self, handle: object, owner: type) -> Callable[P, R]: ...

    def __get__(self, handle: object | None, owner: type) -> Callable[..., R]:
        return self._method if handle is None else MethodType(self._method, handle)

    @cached_property
    def _method(self) -> Callable[..., R]:
        function = self._find()

        @wraps(function)
        @naming_what_ran_out
        def method(handle: Any, /, *args: object, **options: object) -> R:  # noqa: ANN401 - a handle with a context
            if self._of is not None:
                args = (getattr(handle, self._of), *args)
            return self._find()(handle._ctx, *args, **options)  # noqa: SLF001 - a method of the handle

        method.__name__, method.__qualname__ = self._name, self._full_name
        method.__signature__ = self._signature(function)  # type: ignore[attr-defined]
        return method

    def _signature(self, function: Callable[..., R]) -> inspect.Signature:
        found = inspect.signature(function)
        handle = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        returned = found.return_annotation
        if hasattr(function, "__wrapped__"):  # a context manager, written as a generator
            returned = returned.replace("Iterator", "AbstractContextManager")
        rest = list(found.parameters.values())[1 if self._of is None else 2 :]
        return found.replace(parameters=[handle, *rest], return_annotation=returned)


def verb(find: Callable[[], Callable[Concatenate[Context, P], R]]) -> Verb[P, R]:
    """Make a function of a context a method of a repository's handle."""
    return Verb(find)


def ref_verb(find: Callable[[], Callable[Concatenate[Context, str, P], R]]) -> Verb[P, R]:
    """Make a function of a context and a ref a method of a ref's handle."""
    return Verb(find, "id")


def folder_verb(find: Callable[[], Callable[Concatenate[Context, Path, P], R]]) -> Verb[P, R]:
    """Make a function of a context and a directory a method of a clone's handle."""
    return Verb(find, "directory")


def source_verb(find: Callable[[], Callable[Concatenate[Context, Reach, P], R]]) -> Verb[P, R]:
    """Make a function of a context and of what opens a mirror's source a method of a mirror's handle."""
    return Verb(find, "_open_source")


class LakeConnection:
    """Holds the catalog of an open lake, and makes its stores, cache and engine when they are first needed."""

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
        self.clock: Clock = clock or SystemClock()
        self.progress: Progress = quiet
        # Attempts of a request that bridge an outage: from the fifth on, 10 s pass between two, on average.
        minutes = settings.outage_minutes
        patience = {"max_attempts": 5 + math.ceil(6 * minutes)} if minutes else {}
        self.store_settings = StoreSettings(
            endpoint_url=settings.s3_endpoint_url,
            region=settings.s3_region,
            fsync=settings.fsync,
            credentials=settings.credentials,
            requester_pays=settings.s3_requester_pays,
            **patience,
        )
        """What stores are opened with. Set it before a store is opened."""
        self._ids = ids or Ids()
        self._stores = stores
        self._cache: RangeCache | None = None
        self._engine: Engine | None = None
        self._disk_cache: DiskCache | None = None
        self._stage_queues: dict[tuple[str, ...], StageQueue] = {}

    @classmethod
    @naming_what_ran_out
    def open(
        cls,
        home: str | Path | None = None,
        *,
        database_url: str | None = None,
        clock: Clock | None = None,
        settings: Settings | None = None,
        ids: Ids | None = None,
        must_exist: bool = False,
        person: str | None = None,
    ) -> Self:
        """Open the lake that the settings name: arguments, then ``LAKEOPS_*``, then a settings file, then the default.

        Args:
            home: directory of the embedded default (SQLite catalog and local storage).
            database_url: the catalog, for instance ``postgresql+psycopg://user@host/lakeops``.
            clock: tells the time in place of the machine; with SQLite it is the database's clock too.
            settings: ready-made settings. ``home`` and ``database_url`` must then be left out.
            ids: where fresh names come from. Tests hand in a seeded source.
            must_exist: create no catalog, and do not bring an older one up to date.
            person: the user whom a program works for, such as Airflow's. The audit names them.

        Raises:
            InvalidInput: ``invalid_settings``: a setting is not valid.
            PreconditionFailed: ``catalog_version``: it is newer, or needs ``lakeops doctor --upgrade``.
            Transient: ``catalog_unavailable``: the database does not answer.
        """
        chosen = settings or Settings.load(home=home, database_url=database_url)
        catalog = open_catalog(
            chosen.catalog_url,
            clock=clock or SystemClock(),
            grace_seconds=int(chosen.grace_hours * 3600),
            must_exist=must_exist,
            caller=Caller(chosen.committer, person),
            patience_seconds=60 * (chosen.outage_minutes or 0),
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

    def stores(self) -> Stores:
        """The stores by address."""
        if self._stores is None:
            from lakeops.store.open import Stores

            self._stores = Stores(self.store_settings)
        return self._stores

    def context(self, record: RepositoryRecord) -> Context:
        """Make the context of a repository, the first argument of its verbs."""
        return Context(
            catalog=self.catalog,
            repository=record,
            settings=self.settings,
            ids=self._ids,
            stores=self.stores,
            engine=self._range_engine,
            range_cache=self._range_cache,
            disk_cache=self.disk_cache,
            stage_queues=self._stage_queues,
            progress=self._report,
        )

    def _range_cache(self) -> RangeCache:
        if self._cache is None:
            from lakeops.ranges.read import RangeCache

            self._cache = RangeCache(self.settings.cache_mb << 20)
        return self._cache

    def disk_cache(self) -> DiskCache | None:
        """The disk cache for metadata of far stores. None when the settings switch it off."""
        if self._disk_cache is None and self.settings.disk_cache_mb:
            from lakeops.store.disk_cache import DiskCache

            self._disk_cache = DiskCache.of(self.settings)
        return self._disk_cache

    def _range_engine(self) -> Engine:
        if self._engine is None:
            from lakeops.engine.choose import open_engine

            self._engine = open_engine(self.settings)
        return self._engine

    def _report(self, label: str, done: int, total: int) -> None:
        self.progress(label, done, total)  # looked up at each call: handles made before it was set show progress too
