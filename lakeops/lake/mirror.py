"""The handle of a mirror, a read-only repository that follows one of another lake; and how that lake is opened."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from lakeops.lake.connection import LakeConnection, ops, verb
from lakeops.lake.repository import Repository
from lakeops.model.clock import Clock, SystemClock
from lakeops.model.errors import CatalogError, InvalidInput, LakeopsError, NotAMirror, PreconditionFailed, Transient
from lakeops.model.mirrors import (
    MirrorRecord,
    MirrorStatus,
    RefKind,
    RefName,
    RefStatus,
    SourceKind,
    SourceReference,
    check_no_password,
    check_stall_timeout,
    parse_source,
)
from lakeops.model.names import check_repository
from lakeops.model.sanitising import excerpt
from lakeops.ops.context import Context
from lakeops.settings import CATALOG_FILE, LakeAddress, Settings

if TYPE_CHECKING:
    from lakeops.ops.mirror.failover import Loss
    from lakeops.ops.mirror.replicate import Replicated
    from lakeops.ops.mirror.source import Source


class Mirror(Repository):
    """A mirror. It can be read like any repository, and each of its heads is complete at every moment.

    ``source`` in the methods below is the source's lake. Pass it where it is open already, or where the mirror's
    configuration cannot lead to it.
    """

    def __init__(self, context: Context, clock: Clock, source: LakeConnection | None = None) -> None:
        super().__init__(context)
        self._clock = clock
        self._source = source

    @classmethod
    def of(cls, repository: Repository) -> Self:
        """Make a mirror's handle of a repository's. Raises ``NotAMirror``."""
        context = repository._ctx  # noqa: SLF001 - a mirror is a repository
        context.catalog.mirrors.get(repository.id)
        return cls(context, SystemClock())

    @property
    def configuration(self) -> MirrorRecord:
        """The mirror's record: its source, the refs that it follows, and how the last pass ended."""
        return self._ctx.catalog.mirrors.get(self._ctx.repository_id)

    def sync(self, source: LakeConnection | None = None, *, only: Collection[RefName] | None = None) -> MirrorStatus:
        """Make one pass: read the source's heads, look for arrived objects, promote complete heads. Never waits.

        Args:
            source: the source's lake.
            only: refs to look for; all when left out. What the source shows is recorded for all refs in any case.

        Raises:
            NotAMirror: it was promoted to a writable repository.
            PreconditionFailed: ``not_a_replica``: source or storage namespace belong to another repository.
            LakeopsError, Corrupted: ``replica_mismatch``: a file arrived that is not the one that the source recorded.
                Refs that do not need it have been promoted.
            Transient, CatalogError, InvalidInput: the source cannot be reached.
        """
        return ops.mirror.sync.sync(self._ctx, lambda: self._open_source(source), only=only)

    def discover(self, source: LakeConnection | None = None) -> MirrorStatus:
        """Do the first half of a pass: record what the source shows, and have it keep what the mirror needs.

        It does not look for arrived objects, and promotes nothing. Errors are those of ``sync``.
        """
        return ops.mirror.sync.discover(self._ctx, lambda: self._open_source(source))

    def due(self, source: LakeConnection | None = None) -> bool:
        """Whether ``sync`` would find anything to do: something new at the source, a ref that waits, or a failed pass.

        It records that the source was seen, and nothing else. Errors are those of ``sync``.
        """
        return ops.mirror.sync.due(self._ctx, lambda: self._open_source(source))

    arrived: Final = verb(lambda: ops.mirror.sync.arrived)
    status: Final = verb(lambda: ops.mirror.status.status)

    def skip(
        self, branch: str | None = None, *, tag: str | None = None, source: LakeConnection | None = None
    ) -> RefStatus:
        """Drop a ref's candidate and wait for the newest head of the branch, or for what the tag is now.

        Use it when a part of the candidate will never arrive. ``set_stall_timeout`` does the same without a person.

        Raises:
            InvalidInput: neither ``branch`` nor ``tag`` is given, or both are.
            NotAMirror: it was promoted to a writable repository.
            RefNotFound: the mirror follows no such branch or tag.
        """
        if (branch is None) == (tag is None):
            raise InvalidInput("skip the candidate of a branch or of a tag: name one of them")
        ref = RefName(RefKind.TAG if branch is None else RefKind.BRANCH, branch or tag or "")
        ops.mirror.sync.skip(self._ctx, lambda: self._open_source(source), ref)
        status = self.status()
        return status.branches[ref.name] if ref.kind is RefKind.BRANCH else status.tags[ref.name]

    def set_stall_timeout(self, seconds: int) -> MirrorRecord:
        """Set for how long nothing of a candidate may arrive before the mirror takes a newer head instead.

        Raises:
            InvalidInput: it is no length of time that makes sense.
            NotAMirror: it was promoted to a writable repository.
        """
        return self._ctx.catalog.mirrors.set_stall_timeout(self._ctx.repository_id, check_stall_timeout(seconds))

    def loss(self, source: LakeConnection | None = None) -> Loss:
        """Find the commits that ``promote_writable`` would lose. Asks the source, or takes the last pass if it is down.

        Raises:
            NotAMirror: it was promoted before.
        """
        with self._try(source) as found:
            return ops.mirror.failover.loss(self._ctx, found)

    def promote_writable(self, source: LakeConnection | None = None) -> MirrorRecord:
        """Fail over: turn the mirror into a writable repository that no longer follows its source.

        It cannot be undone. What the source has beyond what the mirror shows is lost here: see ``loss``. A call that
        was killed can be made again.

        Raises:
            NotAMirror: it was promoted before.
            PreconditionFailed: ``not_the_owner``: another catalog has opened the same storage namespace for writing.
            MirrorOvertaken: a pass ran at the same time. Try again.
        """
        with self._try(source) as found:
            return ops.mirror.failover.promote_writable(self._ctx, found)

    verify_history: Final = verb(lambda: ops.mirror.failover.verify_history)
    check: Final = verb(lambda: ops.mirror.status.check_promoted)

    def delete(self, source: LakeConnection | None = None) -> bool:
        """Forget the mirror. Its objects stay where they are. Returns whether the source knows that it is gone.

        A source that was never told about the mirror needs no word, so the answer is True then too.

        Raises:
            NotAMirror: it was promoted to a writable repository.
        """
        with self._try(source) as found:
            return ops.mirror.create.delete_mirror(self._ctx, found)

    def source_namespace(self, source: LakeConnection | None = None) -> str:
        """The storage namespace that must be replicated to the mirror's own. Asks the source."""
        with self._reached(source) as (lake, name):
            return lake.catalog.repositories.get(name).storage_namespace

    def replicate(
        self, source: LakeConnection | None = None, *, delete: bool = False, force: bool = False
    ) -> Replicated:
        """Copy what the source's storage namespace has and the mirror's lacks, for stores that do not replicate.

        Args:
            source: the source's lake.
            delete: afterwards remove what the source does not have.
            force: remove it even when it is a large share of what is there.

        Raises:
            NotAMirror: it was promoted to a writable repository, which no source may overwrite.
            NotAllReplicated: some objects failed. Run it again: it goes on from there.
            NotFound: the source is no repository's storage namespace.
            NamespaceTaken: the mirror's storage namespace overlaps with a repository.
            PreconditionFailed: ``delete`` would take a large share. Nothing was deleted.
            StoreError: a store refused.
            Transient: ``catalog_unavailable``: the source's database does not answer.
        """
        if self.configuration.promoted_writable is not None:
            raise NotAMirror(f"{self.id!r} is a writable repository now; nothing is copied over it")
        with self._reached(source) as (lake, name):
            namespace = lake.catalog.repositories.get(name).storage_namespace
            ops.overlap.check_apart(self._ctx.catalog, self._ctx.stores, self.storage_namespace, mirrors=True)
            return ops.mirror.replicate.replicate(
                lake.stores().at(namespace),
                self._ctx.stores.at(self.storage_namespace),
                self._ctx.engine,
                delete=delete,
                force=force,
                progress=self._ctx.progress,
            )

    @contextmanager
    def _reached(self, given: LakeConnection | None) -> Iterator[tuple[LakeConnection, str]]:
        """The source's lake, and the name of the repository there."""
        reference = self.configuration.source
        with reaching(reference, self._clock, given=given or self._source) as lake:
            yield lake, reference.repository

    @contextmanager
    def _open_source(self, given: LakeConnection | None) -> Iterator[Source]:
        with self._reached(given) as (lake, name):
            yield ops.mirror.source.Source(lake.catalog, name)

    @contextmanager
    def _try(self, given: LakeConnection | None) -> Iterator[Source | None]:
        """The source, or None when it cannot be reached."""
        with ExitStack() as stack:
            try:
                source: Source | None = stack.enter_context(self._open_source(given))
            except LakeopsError:
                source = None
            yield source


def reference_to(source: LakeConnection | str, repository: str | None, name: str) -> SourceReference:
    """Make the reference that leads to a source. Raises ``InvalidInput`` where it would store a password.

    Args:
        source: an open lake, or a reference as text.
        repository: the repository there. What the text says, or else the mirror's name, when None.
        name: the mirror's name.
    """
    if isinstance(source, str):
        reference = parse_source(source, repository or name)
        if repository is not None and reference.repository != repository:
            raise InvalidInput(f"the source is given as {reference.repository!r} and as {repository!r}; name it once")
        return reference
    if not hasattr(source, "settings"):
        raise InvalidInput(f"a mirror's source is a lake or a reference to one, not {excerpt(source)}")
    settings = source.settings
    kind, place = SourceKind.HOME, str(settings.home)
    if settings.database_url is not None:
        kind, place = SourceKind.DATABASE, check_no_password(settings.database_url.get_secret_value())
    return SourceReference(
        kind, place, check_repository(repository or name), settings.s3_endpoint_url, settings.s3_region
    )


@contextmanager
def reaching(
    reference: SourceReference, clock: Clock, *, given: LakeConnection | None = None
) -> Iterator[LakeConnection]:
    """Open the source lake: the given one, or the one that the reference leads to, which is closed afterwards.

    Raises:
        Transient, CatalogError, InvalidInput, PreconditionFailed: ``catalog_version``: it cannot be opened. No message
            holds a password.
    """
    if given is not None:
        yield given
        return
    try:  # no part of the source is created or upgraded
        if reference.kind is SourceKind.CONNECTION:
            lake = LakeAddress(reference.place).open(LakeConnection.open)
        else:
            settings = Settings.load(**_source_settings(reference))
            lake = LakeConnection.open(settings=settings, clock=clock, must_exist=True)
    except (Transient, CatalogError, InvalidInput, PreconditionFailed) as error:
        said = f"the source {_for_message(reference)} cannot be reached: {error.message}"
        raise type(error)(said, kind=error.kind) from None
    with lake:
        yield lake


def _source_settings(reference: SourceReference) -> dict[str, Any]:
    """Make the settings of the source lake. Its place never comes from the environment, which is the mirror's own."""
    place = reference.place
    match reference.kind:
        case SourceKind.HOME:
            given: dict[str, Any] = {"home": place}
        case SourceKind.SETTINGS:
            try:
                given = tomllib.loads(Path(place).read_text())
            except OSError as error:
                raise InvalidInput(
                    f"settings file {place!r} cannot be read: {error.strerror}", kind="invalid_settings"
                ) from None
            except ValueError:  # what a parser says may repeat a line, and a line may hold a password
                raise InvalidInput(f"settings file {place!r} is not TOML", kind="invalid_settings") from None
        case SourceKind.DATABASE:
            given = {"database_url": place}
        case SourceKind.ENVIRONMENT:
            if not os.environ.get(place):
                raise InvalidInput(
                    f"environment variable {place} is not set; set it to the source's database URL",
                    kind="invalid_settings",
                )
            given = {"database_url": os.environ[place]}
    if "database_url" not in given:
        home = Path(given.get("home", "~/.lakeops")).expanduser().absolute()
        given["database_url"] = f"sqlite:///{home / CATALOG_FILE}"
    stores = {"s3_endpoint_url": reference.s3_endpoint_url, "s3_region": reference.s3_region}
    return {**given, **{name: value for name, value in stores.items() if value is not None}}


def _for_message(reference: SourceReference) -> str:
    """Format a reference for a message. A database URL shows no user."""
    if reference.kind is SourceKind.DATABASE:
        scheme, _, rest = reference.place.partition("://")
        return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}#{reference.repository}"
    return reference.text
