"""What a mirror asks of its source: its refs, its commits, its word that it keeps what the mirror needs.

The source's store is never touched: its catalog says everything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from lakeops.model.errors import (
    Corrupted,
    LakeopsError,
    NotAMirror,
    ObjectNotFound,
    PreconditionFailed,
    RecordRefused,
)
from lakeops.model.mirrors import MirrorRecord, RefKind, RefName
from lakeops.model.records import Commit, RepositoryRecord
from lakeops.ops.context import pages
from lakeops.ops.mirror import record_validation
from lakeops.ops.overlap import claim_of
from lakeops.ops.resolve import line_of
from lakeops.store import layout
from lakeops.store.base import ObjectStore
from lakeops.store.reader import parse_json, read_small

if TYPE_CHECKING:
    from lakeops.catalog.open import Catalog


@dataclass(frozen=True)
class SourceState:
    """What a source shows at one instant.

    Attributes:
        heads: where the branches and tags point that the mirror follows.
        unkept: those of the heads that a source which is a mirror itself has not agreed with its own source to keep.
        rules: its retention rules and protected branches. None where they are refused.
        refused: what is not believed, and why: refs, or the rules and metadata under None.
        metadata: its repository's metadata. None where it is refused.
    """

    heads: dict[RefName, str]
    unkept: frozenset[str]
    rules: tuple[str | None, tuple[str, ...]] | None
    refused: dict[RefName | None, LakeopsError]
    metadata: dict[str, str] | None = None


@dataclass(frozen=True)
class Source:
    """A repository that is mirrored.

    Attributes:
        catalog: the catalog that it is in.
        repository_id: its name there.
    """

    catalog: Catalog
    repository_id: str

    @cached_property
    def repository(self) -> RepositoryRecord:
        """The repository's record. Raises ``RepositoryNotFound``, ``RecordRefused``."""
        return record_validation.check_repository(self.catalog.repositories.get(self.repository_id))

    def state(self, mirror: MirrorRecord, initial: Commit) -> SourceState:
        """What the source shows now. ``initial`` is the mirror's initial commit.

        Raises ``PreconditionFailed`` (``not_a_replica``).
        """

        def found() -> SourceState:
            self.check_same(mirror, initial)
            refused: dict[RefName | None, LakeopsError] = {}
            heads = self.heads(mirror)
            for ref in list(heads):
                reason = record_validation.ref_flaw(ref, heads[ref])
                if reason is not None:
                    refused[ref] = RecordRefused(reason)
                    del heads[ref]
            rules = None
            try:
                rules = record_validation.check_rules(*self.rules())
            except (RecordRefused, Corrupted) as error:
                refused[None] = error
            metadata = None
            try:
                metadata = record_validation.check_repository_metadata(self.repository)
            except RecordRefused as error:
                refused[None] = error
            return SourceState(
                heads, self.catalog.mirrors.unkept(self.repository_id, heads.values()), rules, refused, metadata
            )

        return self.catalog.in_snapshot(found)

    def heads(self, mirror: MirrorRecord) -> dict[RefName, str]:
        """Where the branches and tags that the mirror follows point now."""
        listings = ((RefKind.BRANCH, self.catalog.refs.branches), (RefKind.TAG, self.catalog.refs.tags))
        return {
            RefName(kind, ref.id): ref.commit_id
            for kind, listing in listings
            for ref in pages(partial(listing, self.repository_id))
            if mirror.follows(kind, ref.id)
        }

    def rules(self) -> tuple[str | None, tuple[str, ...]]:
        """The retention rules and protected branches of the source, or of its own source where it is a mirror."""
        try:
            mirror = self.catalog.mirrors.get(self.repository_id)
        except NotAMirror:
            mirror = None
        if mirror is not None and mirror.promoted_writable is None:
            return mirror.rules, mirror.protections
        protections = tuple(one.text for one in self.catalog.refs.all_protections(self.repository_id))
        return self.catalog.retention.get_rules(self.repository_id), protections

    def lost(self, commits: Iterable[str]) -> frozenset[str]:
        """The commits that the source has expired, does not know, or cannot keep because it is a mirror itself."""
        asked = frozenset(commits)

        def found() -> frozenset[str]:
            known = self.catalog.commits.get_many(self.repository_id, asked)
            gone = frozenset(one for one in asked if one not in known or known[one].expired)
            return gone | self.catalog.mirrors.unkept(self.repository_id, asked - gone)

        return self.catalog.in_snapshot(found)

    def reported(self, mirror: MirrorRecord) -> int:
        """The sequence of the last report that it took under the mirror's name. 0 when there was none."""
        found = [one for one in self.catalog.mirrors.registrations(self.repository_id) if one.id == mirror.registration]
        return record_validation.check_sequence(found[0].sequence) if found else 0

    def line(self, commit_id: str, limit: int) -> list[Commit]:
        """A commit and its first parents, newest first. One that was pruned comes as gone.

        Raises ``RefNotFound``, ``RecordRefused``.
        """
        return record_validation.check_line(line_of(self.catalog, self.repository_id, commit_id, limit), commit_id)

    def initial_commit(self) -> Commit:
        """The commit that its history begins with. Raises ``RecordRefused``."""
        first = record_validation.check_commit(self.catalog.commits.initial_commit(self.repository_id))
        record_validation.check_generations([first], {}, lambda _: {})
        return first

    def check_same(self, mirror: MirrorRecord, initial: Commit) -> None:
        """Refuse a repository of the same name that is another one.

        Raises ``PreconditionFailed`` (``not_a_replica``).
        """
        if self.catalog.commits.initial_commit(self.repository_id).id != initial.id:
            raise PreconditionFailed(
                f"the source {mirror.source.text!r} is another repository than mirror {mirror.repository_id!r} was "
                "made of: it was deleted and created again; create a new mirror for it",
                kind="not_a_replica",
            )


def check_claim(store: ObjectStore, source: RepositoryRecord) -> None:
    """Refuse a namespace that another repository has claimed. One without a claim may be a replica that is on its way.

    Raises:
        PreconditionFailed: ``not_a_replica``: the claim in it is not the source's.
    """
    try:
        text = read_small(store, layout.CLAIM)
    except ObjectNotFound:
        return
    except Corrupted:
        text = b""
    try:
        found = parse_json(text)
    except ValueError:
        found = {}
    expected = claim_of(source)
    if not _claims_agree(found, expected):
        other = found.get("repository") if isinstance(found, dict) else None
        whose = f"repository {other!r}" if other is not None else "something else"
        raise PreconditionFailed(
            f"storage namespace {store.url!r} belongs to {whose}, and is no replica of {source.id!r}: "
            "replicate the source's namespace there, or choose another one",
            kind="not_a_replica",
        )


def _claims_agree(found: Any, expected: dict[str, Any]) -> bool:  # noqa: ANN401 - whatever the file holds
    """Whether two claims can be of one repository. What either leaves out is no difference."""
    return isinstance(found, dict) and all(
        found[name] == value for name, value in expected.items() if found.get(name) is not None and value is not None
    )
