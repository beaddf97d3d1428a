"""A mirror's handle: a read-only repository that follows another lake's."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from lakeops.lake.repository import Repository
from lakeops.lake.source import reaching
from lakeops.model.clock import Clock
from lakeops.model.errors import InvalidInput, LakeopsError, NotAMirror
from lakeops.model.mirrors import Mirror as MirrorRecord
from lakeops.model.mirrors import MirrorStatus, RefKind, RefName, RefStatus, check_patience
from lakeops.ops.context import Context

if TYPE_CHECKING:
    from lakeops.lake.lake import Lake
    from lakeops.ops.mirror.promote_writable import Loss
    from lakeops.ops.mirror.prove import Proved
    from lakeops.ops.mirror.source import Source
    from lakeops.ops.replicate import Replicated


class Mirror(Repository):
    """A mirror. Everything that reads a repository reads it, too; its heads are whole at every moment."""

    def __init__(self, context: Context, clock: Clock, source: Lake | None = None) -> None:
        super().__init__(context)
        self._clock = clock
        self._source = source

    @property
    def configuration(self) -> MirrorRecord:
        """Where its source is, which refs it follows, and how the last pass ended."""
        return self._ctx.catalog.mirror(self.id)

    def sync(self, source: Lake | None = None, *, only: Collection[RefName] | None = None) -> MirrorStatus:
        """One pass: see what the source shows, look for what has arrived, show what is complete. It never waits.

        Args:
            source: the source's lake, where it is open already or cannot be found by the mirror's configuration.
            only: refs to look at; all of them when left out.

        Raises:
            NotAMirror: it was promoted to a writable repository.
            NotAReplica: source or storage namespace belong to another repository.
            ReplicaMismatch, Corrupted: something arrived that is not what the source recorded.
            CatalogUnavailable, CatalogError, InvalidSettings: the source cannot be reached.
        """
        from lakeops.ops.mirror.sync import sync

        return sync(self._ctx, lambda: self._reach(source), only=only)

    def discover(self, source: Lake | None = None) -> MirrorStatus:
        """The first half of a pass: record what the source shows, and have it keep what the mirror needs.

        Nothing is looked for and nothing is promoted. Arguments and errors are ``sync``'s.
        """
        from lakeops.ops.mirror.sync import discover

        return discover(self._ctx, lambda: self._reach(source))

    def arrived(self, ref: RefName) -> str | None:
        """The commit that a ref can show now; None while something of it is missing. Promotes nothing.

        Raises:
            NotAMirror, ReplicaMismatch, Corrupted: see ``sync``.
        """
        from lakeops.ops.mirror.sync import arrived

        return arrived(self._ctx, ref)

    def skip(self, branch: str | None = None, *, tag: str | None = None, source: Lake | None = None) -> RefStatus:
        """Wait for the newest head of a branch, or for what a tag is now, in place of the candidate; its status.

        For a candidate of which something will never come. It gives way by itself as well: see ``set_patience``.

        Raises:
            InvalidInput: not one of ``branch`` and ``tag`` is given.
            NotAMirror: it was promoted to a writable repository.
            RefNotFound: the mirror follows no such branch or tag.
        """
        from lakeops.ops.mirror.skip import skip

        if (branch is None) == (tag is None):
            raise InvalidInput("skip the candidate of a branch or of a tag: name one of them")
        ref = RefName(RefKind.TAG if branch is None else RefKind.BRANCH, branch or tag or "")
        skip(self._ctx, lambda: self._reach(source), ref)
        status = self.status()
        return status.branches[ref.name] if ref.kind is RefKind.BRANCH else status.tags[ref.name]

    def set_patience(self, seconds: int) -> MirrorRecord:
        """For how many seconds nothing of a candidate may arrive before a newer head is looked at.

        Raises ``InvalidInput``, ``NotAMirror``.
        """
        return self._ctx.catalog.set_patience(self.id, check_patience(seconds))

    def status(self) -> MirrorStatus:
        """How far each ref is, as the last pass saw it; the source is not asked."""
        from lakeops.ops.mirror.status import status

        return status(self._ctx)

    def loss(self, source: Lake | None = None) -> Loss:
        """What ``promote_writable`` would lose: the source is asked, and the last pass where it does not answer."""
        from lakeops.ops.mirror.promote_writable import loss

        with self._try(source) as found:
            return loss(self._ctx, found)

    def promote_writable(self, source: Lake | None = None) -> MirrorRecord:
        """Fail over: a writable repository at what the mirror shows, which follows its source no longer.

        It cannot be undone; what the source has beyond it is lost here. See ``loss``.

        Raises:
            NotAMirror: it was promoted before.
            MirrorOvertaken: a pass went on meanwhile; try again.
        """
        from lakeops.ops.mirror.promote_writable import promote_writable

        with self._try(source) as found:
            return promote_writable(self._ctx, found)

    def prove(self) -> Proved:
        """After a fail-over: let commits live again that are whole, of those that the mirror did not show then.

        Reads what each such commit does not share with a whole one, and looks for its objects without reading them.
        May be killed and repeated, until a mark gives up what is left.

        Raises:
            ReadOnlyRepository: it is still a mirror.
        """
        from lakeops.ops.mirror.prove import prove

        return prove(self._ctx)

    def check(self) -> list[str]:
        """What is missing or damaged of everything that is shown, in words; nothing when all is whole.

        Nothing is taken for granted, so it costs as much as what is shown is large. For after a fail-over.
        """
        from lakeops.ops.mirror.status import check_shown

        return check_shown(self._ctx)

    def delete(self, source: Lake | None = None) -> bool:
        """Forget the mirror; its objects stay where they are. Whether its source was told, where it has to be."""
        from lakeops.ops.mirror.create import delete_mirror

        with self._try(source) as found:
            return delete_mirror(self._ctx, found)

    def source_namespace(self, source: Lake | None = None) -> str:
        """The storage namespace that is to be replicated to the mirror's own; the source is asked."""
        reference = self.configuration.source
        with reaching(reference, self._clock, given=source or self._source) as lake:
            return lake.repository(reference.repository).storage_namespace

    def replicate(self, source: Lake | None = None, *, delete: bool = False, force: bool = False) -> Replicated:
        """Copy what the source's storage namespace has and the mirror's lacks, where the store does not by itself.

        Args:
            source: the source's lake; see ``sync``.
            delete: afterwards remove what the source does not have.
            force: remove even a large share of what is there.

        Raises:
            NotAMirror: it was promoted to a writable repository, which no source may overwrite.
            NotAllReplicated: some objects failed; running it again goes on from there.
            NotFound: the source is no repository's storage namespace.
            NamespaceTaken: the mirror's storage namespace overlaps with a repository.
            PreconditionFailed: ``delete`` would take a large share; nothing was deleted.
            StoreError: a store refused.
            CatalogUnavailable: the source's database does not answer.
        """
        from lakeops.ops.replicate import replicate_to

        mirror = self.configuration
        if mirror.promoted_writable is not None:
            raise NotAMirror(f"{self.id!r} is a writable repository now; nothing is copied over it")
        with reaching(mirror.source, self._clock, given=source or self._source) as lake:
            origin = lake.repository(mirror.source.repository).storage_namespace
            return replicate_to(
                self._ctx.catalog,
                self._ctx.stores,
                self.storage_namespace,
                lake.stores().at(origin),
                self._ctx.engine,
                delete=delete,
                force=force,
                progress=self._ctx.progress,
            )

    @contextmanager
    def _reach(self, given: Lake | None) -> Iterator[Source]:
        from lakeops.ops.mirror.source import Source

        reference = self.configuration.source
        with reaching(reference, self._clock, given=given or self._source) as lake:
            yield Source(lake.catalog, reference.repository)

    @contextmanager
    def _try(self, given: Lake | None) -> Iterator[Source | None]:
        """The source, or None where it cannot be reached."""
        with ExitStack() as stack:
            try:
                source: Source | None = stack.enter_context(self._reach(given))
            except LakeopsError:
                source = None
            yield source
