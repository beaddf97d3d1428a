"""Questions of a mirror to its source: its refs, its commits, its word that it keeps what the mirror needs.

The source's store is never touched: its catalog says everything, and each record is validated before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from lakeops.model.caching import cached_property
from lakeops.model.errors import Corrupted, LakeopsError, PreconditionFailed, RecordRefused
from lakeops.model.mirrors import MirrorRecord, RefName
from lakeops.model.records import Commit, RefKind, RepositoryRecord
from lakeops.ops.context import Context, line_of, pages
from lakeops.ops.mirror import record_validation
from lakeops.ops.overlap import claim_of, read_claim
from lakeops.store.base import ObjectStore

if TYPE_CHECKING:
    from lakeops.catalog.open import Catalog
    from lakeops.store.open import Stores


@dataclass(frozen=True)
class SourceState:
    """The state of a source at one instant: ``heads`` of the branches and tags that the mirror follows.

    ``unkept``: heads that a source which is a mirror itself has not agreed with its own source to keep. ``refused``:
    what was not accepted, and why: refs, or the rules and metadata under None; these are None then.
    """

    heads: dict[RefName, str]
    unkept: frozenset[str]
    rules: tuple[str | None, tuple[str, ...]] | None
    refused: dict[RefName | None, LakeopsError]
    metadata: dict[str, str] | None = None


class SourceLake(Protocol):
    """An open lake that has the source."""

    @property
    def catalog(self) -> Catalog:
        """Its catalog."""

    def stores(self) -> Stores:
        """Its stores."""


@dataclass(frozen=True)
class Source:
    """A repository that is mirrored, in its lake."""

    lake: SourceLake
    repository_id: str

    @property
    def catalog(self) -> Catalog:
        """The catalog that has it."""
        return self.lake.catalog

    @cached_property
    def repository(self) -> RepositoryRecord:
        """The repository's record. Raises ``RepositoryNotFound``, ``RecordRefused``."""
        return record_validation.check_repository(self.catalog.repositories.get(self.repository_id))

    def state(self, mirror: MirrorRecord, initial: Commit) -> SourceState:
        """Read the source's state. ``initial`` is the mirror's initial commit.

        Raises ``PreconditionFailed`` (``not_a_replica``).
        """

        def found() -> SourceState:
            self.check_same(mirror, initial)
            refused: dict[RefName | None, LakeopsError] = {}
            heads = self.heads(mirror)
            for ref in list(heads):
                if (reason := record_validation.ref_flaw(ref, heads[ref])) is not None:
                    refused[ref] = RecordRefused(reason)
                    del heads[ref]
            rules, metadata = None, None
            try:
                rules = record_validation.check_rules(*self.rules())
            except (RecordRefused, Corrupted) as error:
                refused[None] = error
            try:
                metadata = record_validation.check_repository_metadata(self.repository)
            except RecordRefused as error:
                refused[None] = error
            unkept = self.catalog.mirrors.unkept(self.repository_id, heads.values())
            return SourceState(heads, unkept, rules, refused, metadata)

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
        mirror = self.catalog.mirrors.find(self.repository_id)
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
        record_validation.check_generations([first], {})
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


Reach = Callable[[SourceLake | None], AbstractContextManager[Source]]
"""Opens the source for a piece of work: in the lake that is given, or where the mirror's record leads to."""


@contextmanager
def if_reached(reach: Reach, given: SourceLake | None) -> Iterator[Source | None]:
    """The source, or None when it cannot be reached."""
    with ExitStack() as stack:
        try:
            source: Source | None = stack.enter_context(reach(given))
        except LakeopsError:
            source = None
        yield source


def check_replica(store: ObjectStore, source: RepositoryRecord) -> None:
    """Refuse a namespace that another repository has claimed. One without a claim may be a replica that is on its way.

    Raises:
        PreconditionFailed: ``not_a_replica``: the claim in it is not the source's.
    """
    found = read_claim(store)
    if found is None:
        return
    expected = claim_of(source)
    said = {name for name, value in expected.items() if None not in (found.get(name), value)}
    if not found or any(found[name] != expected[name] for name in said):
        other = found.get("repository")
        whose = f"repository {other!r}" if other is not None else "something else"
        raise PreconditionFailed(
            f"storage namespace {store.url!r} belongs to {whose}, and is no replica of {source.id!r}: "
            "replicate the source's namespace there, or choose another one",
            kind="not_a_replica",
        )


BATCH = 500
"""Commits of one transaction, and of one statement at the source."""


def copy_history(ctx: Context, source: Source, heads: Iterable[str], *, known: Iterable[str] = ()) -> int:
    """Copy everything that these commits of the source descend from and the mirror lacks. Returns how many commits.

    ``known`` are commits that the mirror has, so it need not be asked.
    """
    heads = list(heads)
    missing = _missing(ctx, source, heads, set(known))
    # What the source has pruned comes as "gone", and is not copied: the mirror's history ends there too.
    pruned = frozenset(commit.id for commit in missing.values() if commit.is_pruned)
    for head in pruned.intersection(heads):
        raise RecordRefused(f"commit {head[:16]} is a head of the source, and its record says that it was pruned")
    kept = [commit for commit in missing.values() if not commit.is_pruned]
    asked = {parent for commit in kept for parent in commit.parents} - missing.keys()
    here = ctx.catalog.commits.get_many(ctx.repository_id, asked) if asked else {}
    record_validation.check_generations(kept, {**here, **missing})
    ordered = sorted(kept, key=lambda commit: (commit.generation, commit.id))
    for start in range(0, len(ordered), BATCH):
        ctx.catalog.mirrors.copy_commits(ctx.repository_id, ordered[start : start + BATCH], pruned=pruned)
        ctx.progress("copying commits", min(start + BATCH, len(ordered)), len(ordered))
    return len(ordered)


def _missing(ctx: Context, source: Source, heads: Iterable[str], known: set[str]) -> dict[str, Commit]:
    """The commits that the mirror lacks, by id.

    First parents come in long runs, so a linear history takes few calls.
    """
    found: dict[str, Commit] = {}
    waiting = _unknown(ctx, heads, known)
    while waiting:
        chain = source.line(waiting.pop(), BATCH)
        ids = {one for commit in chain for one in (commit.id, *commit.parents)} - found.keys()
        lacking = _unknown(ctx, ids, known)
        for commit in chain:
            if commit.id not in lacking:
                break  # what it descends from is there as well, or was found before
            found[commit.id] = commit
            waiting.update(parent for parent in commit.parents if parent in lacking)
        waiting -= found.keys()
    return found


def _unknown(ctx: Context, ids: Iterable[str], known: set[str]) -> set[str]:
    """The commits that the mirror lacks. ``known`` remembers the ones that it has."""
    asked = set(ids) - known
    if asked:
        known.update(ctx.catalog.commits.get_many(ctx.repository_id, asked))
    return asked - known
