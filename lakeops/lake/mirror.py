"""The handle of a mirror, a read-only repository that follows one of another lake; and how that lake is opened."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from lakeops.lake.connection import LakeConnection, ops, source_verb, verb
from lakeops.lake.repository import Repository
from lakeops.model.clock import Clock, SystemClock
from lakeops.model.errors import CatalogError, InvalidInput, PreconditionFailed, Transient, invalid_settings
from lakeops.model.mirrors import (
    MirrorRecord,
    SourceKind,
    SourceReference,
    check_no_password,
    check_stall_timeout,
    parse_source,
)
from lakeops.model.names import check_repository
from lakeops.model.sanitising import excerpt
from lakeops.ops.context import Context
from lakeops.settings import LakeAddress, Settings, parsed

if TYPE_CHECKING:
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

    sync: Final = source_verb(lambda: ops.mirror.sync.sync)
    discover: Final = source_verb(lambda: ops.mirror.sync.discover)
    due: Final = source_verb(lambda: ops.mirror.sync.due)
    arrived: Final = verb(lambda: ops.mirror.sync.arrived)
    skip: Final = source_verb(lambda: ops.mirror.sync.skip)
    status: Final = verb(lambda: ops.mirror.inspection.status)
    loss: Final = source_verb(lambda: ops.mirror.failover.loss)
    promote_writable: Final = source_verb(lambda: ops.mirror.failover.promote_writable)
    verify: Final = verb(lambda: ops.mirror.inspection.verify_promoted)
    delete: Final = source_verb(lambda: ops.mirror.create.delete_mirror)

    def set_stall_timeout(self, seconds: int) -> MirrorRecord:
        """Set for how long nothing of a candidate may arrive before the mirror takes a newer head instead.

        Raises:
            InvalidInput: it is not a valid length of time.
            NotAMirror: it was promoted to a writable repository.
        """
        return self._ctx.catalog.mirrors.set_stall_timeout(self._ctx.repository_id, check_stall_timeout(seconds))

    source_namespace: Final = source_verb(lambda: ops.mirror.replicate.source_namespace)
    replicate: Final = source_verb(lambda: ops.mirror.replicate.replicate_to_mirror)

    @contextmanager
    def _open_source(self, given: LakeConnection | None) -> Iterator[Source]:
        reference = self.configuration.source
        with reaching(reference, self._clock, given=given or self._source) as lake:
            yield ops.mirror.source.Source(lake, reference.repository)


def reference_to(source: LakeConnection | str, repository: str | None, name: str) -> SourceReference:
    """Make the reference that leads to a source. Raises ``InvalidInput`` where it would store a password.

    Args:
        source: an open lake, or a reference as text.
        repository: the repository there. What the text says, or else the mirror's name, when None.
        name: the mirror's name.
    """
    if isinstance(source, str):
        reference = parse_source(source, name if repository is None else repository)
        if repository is not None and reference.repository != repository:
            raise InvalidInput(f"the source is given as {reference.repository!r} and as {repository!r}; name it once")
        return reference
    if not hasattr(source, "settings"):
        raise InvalidInput(f"a mirror's source is a lake or a reference to one, not {excerpt(source)}")
    settings, repository = source.settings, check_repository(name if repository is None else repository)
    kind, place = SourceKind.HOME, str(settings.home)
    if settings.database_url is not None:
        kind, place = SourceKind.DATABASE, check_no_password(settings.database_url.get_secret_value())
    return SourceReference(kind, place, repository, settings.s3_endpoint_url, settings.s3_region)


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
            given = {"home": "~/.lakeops", **parsed(Path(place))}
        case SourceKind.DATABASE:
            given = {"database_url": place}
        case SourceKind.ENVIRONMENT:
            if not os.environ.get(place):
                raise invalid_settings(f"environment variable {place} is not set; set it to the source's database URL")
            given = {"database_url": os.environ[place]}
    stores = {"s3_endpoint_url": reference.s3_endpoint_url, "s3_region": reference.s3_region}
    return {**given, **{name: value for name, value in stores.items() if value is not None}}


def _for_message(reference: SourceReference) -> str:
    """Format a reference for a message. A database URL shows no user."""
    if reference.kind is SourceKind.DATABASE:
        scheme, _, rest = reference.place.partition("://")
        return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}#{reference.repository}"
    return reference.text
