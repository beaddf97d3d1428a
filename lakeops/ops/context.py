"""What every verb works with: one repository, and the seams that its work goes through.

A verb takes a context first and plain values after it. Everything that touches the world (store, catalog, time,
randomness) comes from here, so a test that hands in its own can fail, delay or count any effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, BinaryIO, Protocol, TypeVar, cast

from lakeops.catalog.records import BranchState
from lakeops.model.clock import Ids, unix_seconds
from lakeops.model.errors import (
    CatalogUnavailable,
    CommitExpired,
    LakeopsError,
    NotAMirror,
    NotReplicated,
    ObjectNotFound,
)
from lakeops.model.names import HeldRepository
from lakeops.model.progress import Progress, quiet
from lakeops.model.records import Commit, RefRecord, RepositoryRecord, check_asked
from lakeops.ops.batcher import StageBatcher, StageQueue
from lakeops.settings import Settings
from lakeops.store.base import ObjectStore, StoredObject
from lakeops.store.layout import MANAGED

if TYPE_CHECKING:
    from lakeops.catalog.open import Catalog
    from lakeops.engine.base import Engine
    from lakeops.ranges.metarange import Metarange
    from lakeops.ranges.read import RangeCache, RangeReader
    from lakeops.store.base import ObjectStore
    from lakeops.store.disk_cache import DiskCache
    from lakeops.store.open import AddressPolicy, Stores


def as_replica(store: ObjectStore, catalog: Catalog, repository_id: str) -> ObjectStore:
    """The store of a read-only repository. If that is a mirror, what is missing raises ``NotReplicated``."""

    def follows() -> bool:
        try:
            return catalog.mirrors.get(repository_id).promoted_writable is None
        except LakeopsError:
            return False

    return cast("ObjectStore", _Replica(store, repository_id, follows))


class _Replica:
    """A store whose reads explain what is missing. Everything else is the store's own."""

    def __init__(self, store: ObjectStore, repository_id: str, follows: Callable[[], bool]) -> None:
        self._store = store
        self._repository_id = repository_id
        self._follows = follows

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def get(self, key: str) -> bytes:
        """See ``ObjectStore.get``. Raises ``NotReplicated``."""
        with self._explaining(key):
            return self._store.get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See ``ObjectStore.get_range``. Raises ``NotReplicated``."""
        with self._explaining(key):
            return self._store.get_range(key, start, length)

    def open(self, key: str) -> BinaryIO:
        """See ``ObjectStore.open``. Raises ``NotReplicated``."""
        with self._explaining(key):
            return self._store.open(key)

    def head(self, key: str) -> StoredObject:
        """See ``ObjectStore.head``. Raises ``NotReplicated``."""
        with self._explaining(key):
            return self._store.head(key)

    @contextmanager
    def _explaining(self, key: str) -> Iterator[None]:
        try:
            yield
        except ObjectNotFound as error:
            if not self._follows():
                raise
            raise NotReplicated(
                f"{key} is not at mirror {self._repository_id!r}: it has not been replicated yet, or the source has "
                "deleted it; a mirror promises the heads of its branches and tags, read one of those or try again later"
            ) from error


@dataclass(frozen=True)
class Context:
    """One repository and the seams that verbs work through.

    Stores, readers and engines are made when they are first asked for: a ref or log command never needs them.
    """

    catalog: Catalog
    repository: RepositoryRecord
    settings: Settings
    ids: Ids
    open_stores: Callable[[], Stores]
    open_cache: Callable[[], RangeCache]
    open_engine: Callable[[], Engine]
    open_disk_cache: Callable[[], DiskCache | None] = lambda: None
    batcher: StageBatcher = field(default_factory=StageBatcher)
    progress: Progress = quiet

    @cached_property
    def repository_id(self) -> HeldRepository:
        """The repository's name. Transitions refuse it once it is the name of a repository made anew elsewhere."""
        return HeldRepository(self.repository.id, self.repository.storage_namespace)

    @property
    def actor(self) -> str:
        """Who commits and ref moves are recorded as made by."""
        return self.settings.committer

    @cached_property
    def stores(self) -> Stores:
        """The stores that addresses lead to."""
        return self.open_stores()

    @cached_property
    def store(self) -> ObjectStore:
        """The repository's own storage namespace."""
        return self.stores.at(self.repository.storage_namespace)

    @cached_property
    def readable(self) -> ObjectStore:
        """The namespace's store for readers. At a mirror, a missing object is ``not_replicated``."""
        if not self.repository.read_only:
            return self.store
        from lakeops.ops.context import as_replica

        return as_replica(self.store, self.catalog, self.repository_id)

    @cached_property
    def policy(self) -> AddressPolicy:
        """What this repository may refer to outside its namespace, for readers: as it was at the first look."""
        return self.find_policy()

    def find_policy(self) -> AddressPolicy:
        """What this repository may refer to outside its namespace now.

        A mirror shows what its source names. So files of this machine are believed of a source on this machine alone,
        also after a fail-over.
        """
        from lakeops.store.open import AddressPolicy, parse_location, real_place

        try:
            files = self.catalog.mirrors.get(self.repository_id).source.is_local
        except NotAMirror:
            files = True
        listed = self.settings.external_prefixes
        return AddressPolicy(
            self.repository.storage_namespace,
            None if listed is None else tuple(parse_location(one).url for one in listed),
            files,
            tuple(
                (one.id, f"{real_place(one.storage_namespace)}/{folder}")
                for one in pages(self.catalog.repositories.page)
                for folder in MANAGED
            ),
        )

    @cached_property
    def engine(self) -> Engine:
        """Where range work runs."""
        return self.open_engine()

    @cached_property
    def reader(self) -> RangeReader:
        """Reads ranges and metaranges of the namespace, through the caches of the process and of the machine."""
        from lakeops.ranges.read import RangeReader
        from lakeops.store.disk_cache import with_cache

        return RangeReader(with_cache(self.readable, self.open_disk_cache()), self.open_cache())

    @contextmanager
    def writing(self) -> Iterator[RangeReader]:
        """The reader for a ``with`` that writes files to its store: they are all there when it ends."""
        from lakeops.ranges.read import RangeReader
        from lakeops.store.disk_cache import background_writes

        with background_writes(self.reader.store) as store:
            yield RangeReader(store, self.open_cache())

    def metarange(self, commit: Commit) -> Metarange:
        """The commit's metarange, verified.

        Raises ``CommitExpired`` for a commit that retention took, and ``RepositoryNotFound`` where the repository was
        made anew elsewhere.
        """
        with self.explaining_missing():
            return self.reader.metarange(require_live(commit))

    def metaranges(self, *commits: Commit) -> list[Metarange]:
        """The metaranges of some commits, asked for at once. Raises as ``metarange``."""
        with self.explaining_missing():
            return self.reader.metaranges([require_live(commit) for commit in commits])

    @contextmanager
    def explaining_missing(self) -> Iterator[None]:
        """Says that the repository is another one by now, where that is why a file is missing."""
        try:
            yield
        except ObjectNotFound:
            self.catalog.repositories.get(self.repository_id)
            raise

    def seconds(self, moment: datetime | None = None) -> int:
        """A moment, or now by the catalog's clock, as Unix seconds."""
        return unix_seconds(moment or self.catalog.now())

    def head(self, state: BranchState) -> Commit:
        """The commit that a branch points to."""
        return self.catalog.commits.get(self.repository_id, state.commit_id)

    def stage_queue(self, branch: str) -> StageQueue:
        """The small changes of this process that are on their way to a branch."""
        return self.batcher.queue(self.catalog, self.repository_id, branch)

    def tidy(self, *, waiting: bool = False) -> None:
        """Remove staged rows that nothing needs any more, as the last step of a verb that has done its work.

        With ``waiting`` the verb knows that there are some.
        A catalog that others hold must not make that verb fail. Any later call catches up.
        """
        with suppress(CatalogUnavailable):
            self.catalog.staging.purge_retired(self.repository_id, waiting=waiting)


def require_live(commit: Commit) -> Commit:
    """The commit itself, unless retention expired it. Raises ``CommitExpired``."""
    if commit.expired:
        raise expired(commit)
    return commit


def expired(commit: Commit) -> CommitExpired:
    """The error for a commit that retention took."""
    return CommitExpired(
        f"commit {commit.id[:16]} is expired: retention rules keep it no longer, its objects may be gone "
        "(after a fail-over, `lakeops mirror verify-history` brings back what is whole)"
    )


PAGE = 1000

Named = TypeVar("Named", RefRecord, RepositoryRecord)
Named_co = TypeVar("Named_co", RefRecord, RepositoryRecord, covariant=True)


class ReadPage(Protocol[Named_co]):
    """A listing of the catalog."""

    def __call__(self, *, prefix: str, after: str, limit: int) -> Sequence[Named_co]:
        """One page, in byte order of ids."""
        ...


def pages(read: ReadPage[Named], *, prefix: str = "", after: str = "") -> Iterator[Named]:
    """All that a listing holds under a prefix and after an id, a page at a time."""
    check_asked(prefix, "the beginning of a name")
    check_asked(after, "a name to go on behind")
    while True:
        page = read(prefix=prefix, after=after, limit=PAGE)
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1].id
