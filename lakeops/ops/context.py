"""The context of a verb: a repository with the store, catalog, clock and ids that its work goes through, and its refs.

A verb takes a context first and plain values after it. A test that hands in its own can fail, delay or count any
effect on the world.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from lakeops.catalog.guards import expired
from lakeops.model import errors
from lakeops.model.clock import Ids, retrying, unix_seconds
from lakeops.model.graph import ReadAhead
from lakeops.model.graph import resolve as resolve_expression
from lakeops.model.names import COMMIT_ID, HeldRepository, RefExpression, check_asked, did_you_mean, parse_ref
from lakeops.model.records import Commit, Entry, Progress, RefRecord, RepositoryRecord, gone, quiet
from lakeops.model.sanitising import excerpt
from lakeops.ops.batcher import StageQueue
from lakeops.settings import Settings
from lakeops.store.base import ObjectStore
from lakeops.store.layout import MANAGED, METADATA, absolute

if TYPE_CHECKING:
    from tenacity import Retrying

    from lakeops.catalog.open import Catalog
    from lakeops.engine.base import Engine
    from lakeops.ranges.metarange import Metarange
    from lakeops.ranges.read import RangeCache, RangeReader
    from lakeops.store.disk_cache import DiskCache
    from lakeops.store.open import AddressPolicy, Stores


_READS = {"get", "get_range", "open", "head"}


class _Replica:
    """Delegates every call to a mirror's store. Reads of missing files raise ``FileMissing``."""

    def __init__(self, store: ObjectStore, catalog: Catalog, repository_id: str) -> None:
        self._store = store
        self._catalog = catalog
        self._repository_id = repository_id

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the store has
        method = getattr(self._store, name)
        if name not in _READS:
            return method

        def read(key: str, *args: object) -> object:
            try:
                return method(key, *args)
            except errors.ObjectNotFound as error:
                if not self._follows():
                    raise
                raise errors.FileMissing(
                    f"{key} is not at mirror {self._repository_id!r}: it has not been replicated yet, or the source "
                    "has deleted it; a mirror promises the heads of its branches and tags, read one of those or try "
                    "again later",
                    kind="not_replicated",
                ) from error

        return read

    def _follows(self) -> bool:
        try:
            return self._catalog.mirrors.get(self._repository_id).promoted_writable is None
        except errors.LakeopsError:
            return False


@dataclass(frozen=True)
class Context:
    """A repository, and what verbs work on it with.

    Stores, engine and caches are the open lake's. They are made when they are first asked for: a log command never
    needs them.
    """

    catalog: Catalog
    repository: RepositoryRecord
    settings: Settings
    ids: Ids
    stores: Callable[[], Stores]
    engine: Callable[[], Engine]
    range_cache: Callable[[], RangeCache]
    disk_cache: Callable[[], DiskCache | None] = lambda: None
    stage_queues: dict[tuple[str, ...], StageQueue] = field(default_factory=dict)
    progress: Progress = quiet

    @cached_property
    def repository_id(self) -> HeldRepository:
        """The repository's name. The catalog refuses it once the repository was made anew elsewhere."""
        return HeldRepository(self.repository.id, self.repository.storage_namespace)

    @property
    def actor(self) -> str:
        """The committer, whom commits and ref moves are recorded of."""
        return self.settings.committer

    @cached_property
    def store(self) -> ObjectStore:
        """The repository's own storage namespace. It holds a claim, unless it is a mirror's that nothing came to."""
        return self.stores().at(self.repository.storage_namespace, needs="" if self.repository.read_only else METADATA)

    @cached_property
    def readable(self) -> ObjectStore:
        """The namespace's store for readers. At a mirror, a missing object is ``not_replicated``."""
        if not self.repository.read_only:
            return self.store
        return cast("ObjectStore", _Replica(self.store, self.catalog, self.repository_id))

    @cached_property
    def policy(self) -> AddressPolicy:
        """The addresses that this repository may refer to, as they were at the first look."""
        return self.find_policy()

    def find_policy(self) -> AddressPolicy:
        """Find the addresses that this repository may refer to now.

        A mirror may refer to files of this machine only if its source is on it.
        """
        from lakeops.store.open import AddressPolicy, parse_location, real_place

        mirror = self.catalog.mirrors.find(self.repository_id)
        listed = self.settings.external_prefixes
        return AddressPolicy(
            self.repository.storage_namespace,
            None if listed is None else tuple(parse_location(one).url for one in listed),
            mirror is None or mirror.source.is_local,
            tuple(
                (one.id, f"{real_place(one.storage_namespace)}/{folder}")
                for one in pages(self.catalog.repositories.page)
                for folder in MANAGED
            ),
        )

    @cached_property
    def reader(self) -> RangeReader:
        """Reads ranges and metaranges of the namespace, through the caches of the process and of the machine."""
        from lakeops.ranges.read import RangeReader

        store = self.readable
        if store.remote:
            from lakeops.store.disk_cache import with_cache

            store = with_cache(store, self.disk_cache())
        return RangeReader(store, self.range_cache())

    @contextmanager
    def writing(self) -> Iterator[RangeReader]:
        """A reader whose store writes in the background. All files are there when the ``with`` ends."""
        if not self.reader.store.remote:
            yield self.reader
            return
        from lakeops.ranges.read import RangeReader
        from lakeops.store.disk_cache import background_writes

        with background_writes(self.reader.store) as store:
            yield RangeReader(store, self.range_cache())

    def metarange(self, commit: Commit) -> Metarange:
        """The commit's metarange, verified. Raises ``CommitExpired``, or ``RepositoryNotFound`` for one made anew."""
        with self.explaining_missing():
            return self.reader.metarange(require_live(commit))

    def metaranges(self, *commits: Commit) -> list[Metarange]:
        """The metaranges of some commits, asked for at once. Raises as ``metarange``."""
        with self.explaining_missing():
            return self.reader.metaranges(list(map(require_live, commits)))

    @contextmanager
    def explaining_missing(self) -> Iterator[None]:
        """Raise ``RepositoryNotFound`` for a missing file where the repository was made anew elsewhere."""
        try:
            yield
        except (errors.FileMissing, errors.ObjectNotFound):
            self.catalog.repositories.get(self.repository_id)
            raise

    def seconds(self, moment: datetime | None = None) -> int:
        """A moment, or now by the catalog's clock, as Unix seconds."""
        return unix_seconds(moment or self.catalog.now())

    def stage_queue(self, branch: str) -> StageQueue:
        """The small changes of this process that are on their way to a branch."""
        where = (self.repository_id, self.repository.storage_namespace, branch)
        found = self.stage_queues.get(where)
        return found or self.stage_queues.setdefault(where, StageQueue(self.catalog, self.repository_id, branch))

    def tidy(self, *, waiting: bool = False) -> None:
        """Remove staged rows that nothing needs any more. ``waiting`` says that there are some.

        A catalog that others hold must not make the verb fail. A later call catches up.
        """
        with suppress(errors.Transient):
            self.catalog.staging.purge_retired(self.repository_id, waiting=waiting)


def public(ctx: Context, entry: Entry) -> Entry:
    """The entry as users see it: with its physical address as a full URL."""
    return Entry(  # spelled out: dataclasses.replace takes longer than the rest of a listing
        path=entry.path,
        physical_address=absolute(ctx.repository.storage_namespace, entry.physical_address),
        checksum=entry.checksum,
        size_bytes=entry.size_bytes,
        mtime=entry.mtime,
        content_type=entry.content_type,
        metadata=entry.metadata,
    )


def require_live(commit: Commit) -> Commit:
    """The commit itself, unless retention expired it. Raises ``CommitExpired``."""
    if commit.expired:
        raise expired(commit.id)
    return commit


PAGE = 1000

Named = TypeVar("Named", RefRecord, RepositoryRecord)


def pages(read: Callable[..., Sequence[Named]], *, prefix: str = "", after: str = "") -> Iterator[Named]:
    """Read all records of a listing of the catalog under a prefix and after an id, a page at a time."""
    check_asked(prefix, "the beginning of a name")
    check_asked(after, "a name to go on behind")
    while True:
        page = read(prefix=prefix, after=after, limit=PAGE)
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1].id


@contextmanager
def explain_expired(ctx: Context, commits: Iterable[Commit]) -> Iterator[None]:
    """Raise ``CommitExpired`` for a missing file where one of these commits was expired after it was looked up."""
    try:
        yield
    except errors.FileMissing as error:
        read = list(commits)
        now = ctx.catalog.commits.get_many(ctx.repository_id, [commit.id for commit in read])
        for commit in read:
            if commit.id not in now or now[commit.id].expired:
                raise expired(commit.id) from error
        raise


T = TypeVar("T")


def watched(ctx: Context, commits: Iterable[Commit], items: Iterable[T]) -> Iterator[T]:
    """Yield items that are read from some commits. Raises as ``explain_expired``."""
    with explain_expired(ctx, commits):
        yield from items


class CatalogLookup:
    """Looks up the refs and commits of a repository, for the ref grammar. Use one for one call, so it is never stale.

    ``ahead`` is how many commits of a line are going to be asked for.
    """

    def __init__(self, ctx: Context, ahead: int = 1) -> None:
        self._catalog = ctx.catalog
        self._repository_id = ctx.repository_id
        self.get: ReadAhead = history_of(ctx, ahead)

    def branch(self, name: str) -> str | None:
        """The head of a branch."""
        try:
            return self._catalog.refs.branch(self._repository_id, name).commit_id
        except errors.RefNotFound:
            return None

    def tag(self, name: str) -> str | None:
        """The commit of a tag."""
        try:
            return self._catalog.refs.tag(self._repository_id, name).commit_id
        except errors.RefNotFound:
            return None

    def commit(self, commit_id: str) -> Commit | None:
        """A commit by full id."""
        try:
            found = self.get(commit_id)
        except errors.RefNotFound:
            return None
        return None if found.is_pruned else found

    def commits_with_prefix(self, prefix: str) -> list[str]:
        """Commit ids that start with some hex digits."""
        return self._catalog.commits.commits_with_prefix(self._repository_id, prefix)


def history_of(ctx: Context, ahead: int = 1, most: int = 0) -> ReadAhead:
    """The commits of a repository, for walks. A line of history ends at a pruned commit, which comes as ``gone``."""
    catalog, repository_id = ctx.catalog, ctx.repository_id
    return ReadAhead(
        partial(line_of, catalog, repository_id),
        ahead,
        lambda ids: catalog.commits.get_many(repository_id, ids).values(),
        most,
    )


def line_of(catalog: Catalog, repository_id: str, commit_id: str, limit: int) -> list[Commit]:
    """A commit and its first parents, newest first. One that was pruned comes as ``gone``. Raises ``RefNotFound``."""
    try:
        return catalog.commits.first_parents(repository_id, commit_id, limit=limit)
    except errors.RefNotFound:
        if catalog.retention.pruned(repository_id):
            return [gone(commit_id)]
        raise


def resolve_id(ctx: Context, text: str) -> str:
    """The id of the commit that a ref expression means, which may be expired. Raises as ``resolve_commit``."""
    with naming_the_ref(ctx, text):
        return ctx.catalog.in_snapshot(lambda: resolve_expression(text, CatalogLookup(ctx)))


@contextmanager
def naming_the_ref(ctx: Context, expression: str | RefExpression) -> Iterator[None]:
    """Say of a branch, tag or ref that is not there which name may be meant. For what people name, not for lookups."""
    try:
        yield
    except errors.RefNotFound as error:
        refs, repository = ctx.catalog.refs, ctx.repository_id
        wanted = next((one for one in ("branch", "tag") if error.message.endswith(f"no {one} {expression!r}")), None)
        try:
            name = (parse_ref(expression) if isinstance(expression, str) else expression).base
        except errors.InvalidInput:  # a name that none can have
            raise error from None
        # It may be a step that leads nowhere, or another ref of the same call.
        said = error.message.partition(";")[0]
        if wanted is None and not (said.startswith("no branch") and excerpt(name) in said):
            raise
        listings = {"branch": (refs.branches,), "tag": (refs.tags,)}.get(wanted or "", (refs.branches, refs.tags))
        advice = did_you_mean(name, [one.id for listing in listings for one in listing(repository)])
        with suppress(errors.RefNotFound):
            if name.endswith("$"):
                branch = refs.branch(repository, name[:-1]).id
                advice = f": {name!r} is {branch!r} with its uncommitted changes, which are only read; write {branch!r}"
            elif wanted == "tag":
                advice = f": {refs.branch(repository, name).id!r} is a branch"
            else:
                refs.tag(repository, name)
                advice = f": {name!r} is a tag, which stays as it is; name a branch, or make one from the tag"
        raise errors.RefNotFound(f"{error.message}{advice}") from None


def resolve_commit(
    ctx: Context, expression: str | RefExpression, *, live: bool = True, names: CatalogLookup | None = None
) -> Commit:
    """The commit that a ref expression means. Walks go on with ``names``, which read ahead.

    Raises ``RefNotFound``, ``InvalidInput`` (``invalid_ref``, ``ambiguous_ref``); ``CommitExpired`` with ``live``.
    """
    found = names or CatalogLookup(ctx)
    with naming_the_ref(ctx, expression):
        commit = ctx.catalog.in_snapshot(lambda: found.get(resolve_expression(expression, found)))
    return require_live(commit) if live or commit.is_pruned else commit


def resolve_both(ctx: Context, left: str, right: str) -> tuple[Commit, Commit]:
    """The commits that two ref expressions mean at one instant. Raises what ``resolve_commit`` raises."""
    return ctx.catalog.in_snapshot(lambda: (resolve_commit(ctx, left), resolve_commit(ctx, right)))


def at_ref(ctx: Context, text: str, of_branch: Callable[[str], T], of_commit: Callable[[Commit], T]) -> T:
    """Read a branch's staging area over its head for a plain branch name, or the commit that the expression means.

    ``of_branch`` reads both at one instant, and raises ``RefNotFound`` when there is no such branch.
    """
    expression = parse_ref(text)
    if expression.is_name and not COMMIT_ID.fullmatch(text):
        try:
            return of_branch(text)
        except errors.RefNotFound:
            pass
    commit = resolve_commit(ctx, expression)
    with explain_expired(ctx, (commit,)):
        return of_commit(commit)


def is_dirty(ctx: Context, ref: str) -> bool:
    """Tell whether a ref expression is the name of a branch with uncommitted changes."""
    if not parse_ref(ref).is_name or COMMIT_ID.fullmatch(ref):
        return False
    try:
        return ctx.catalog.staging.has_staged(ctx.repository_id, ref)
    except errors.RefNotFound:  # a tag, or the beginning of a commit id
        return False


def require_branch(ctx: Context, name: str) -> str:
    """Check that a name is a branch's. Raises ``RefNotFound``, ``InvalidInput`` (``invalid_ref``)."""
    with naming_the_ref(ctx, name):
        return ctx.catalog.refs.branch(ctx.repository_id, check_name(name)).id


def check_name(name: str) -> str:
    """Check that a name can be a branch's and is no expression. Raises ``InvalidInput`` (``invalid_ref``)."""
    if not parse_ref(name).is_name:
        raise errors.InvalidInput(f"{name!r} is an expression; this needs the name of a branch", kind="invalid_ref")
    return name


def when_moved(ctx: Context) -> Retrying:
    """Calls a function again after ``BranchMoved``, for as long as the settings say."""
    seconds = ctx.settings.publish_minutes * 60
    return retrying(lambda error: isinstance(error, errors.BranchMoved), ctx.ids, seconds=seconds)


def begin_staging(ctx: Context, name: str, *, flush: bool = False) -> datetime:
    """The catalog's time, if the branch may be staged to. With ``flush`` the rows that wait are linked first."""
    queue = ctx.stage_queue(check_name(name))
    started = queue.check()
    if flush:
        queue.flush_pending()
    return started


def require_stageable(ctx: Context, name: str) -> None:
    """Refuse a branch that takes no uncommitted changes. The catalog checks again later. This spares work in vain.

    Raises ``RefNotFound``, ``PreconditionFailed`` (``read_only_repository``, ``protected_branch``).
    """
    with naming_the_ref(ctx, name):
        ctx.catalog.staging.staging_time(ctx.repository_id, check_name(name))
