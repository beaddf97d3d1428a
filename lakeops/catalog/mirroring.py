"""The catalog's named transitions of mirrors, at the destination: part of the contract in ``catalog.base``.

They are the only ones that change a read-only repository, and refuse one that follows no source. Passes over one
mirror may overlap, be killed and come back late: a candidate carries a ticket, and what was decided about one wait
changes nothing once another one has begun.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from lakeops.model.mirrors import Mirror, MirrorRef, MirrorState, Missing, RefName, Remaining
from lakeops.model.records import Commit, Repository

Pending = Mapping[str, str | None]
"""Range files that have arrived, by name: JSON text that says which of their objects have not, None for none."""

NOTHING = Remaining()


class MirrorTransitions(Protocol):
    """What a catalog does for the mirrors in it."""

    def create_mirror(self, repository: Repository, first: Commit, mirror: Mirror, *, token: str, actor: str) -> None:
        """Insert a read-only repository with the source's initial commit on its default branch, and the mirror.

        Raises ``AlreadyExists`` for the name and ``NamespaceTaken`` for the storage namespace.
        """
        ...

    def mirror(self, repository_id: str) -> Mirror:
        """How the repository mirrors another one. Raises ``NotAMirror``, ``RepositoryNotFound``."""
        ...

    def mirrors(self) -> list[Mirror]:
        """All mirrors by name."""
        ...

    def mirror_state(self, repository_id: str) -> MirrorState:
        """The mirror and its refs at one instant. Raises ``NotAMirror``, ``RepositoryNotFound``."""
        ...

    def initial_commit(self, repository_id: str) -> Commit:
        """The commit that everything in the repository descends from. Raises ``RepositoryNotFound``."""
        ...

    def copy_commits(
        self, repository_id: str, commits: Sequence[Commit], *, pruned: frozenset[str] = frozenset()
    ) -> int:
        """Insert commits of the source under their ids; known ones stay as they are. Returns how many were new.

        Parents must be known, come earlier among ``commits`` or be ``pruned`` at the source, so that history is whole
        at every moment; else
        ``RefNotFound``.
        """
        ...

    def observe_source(
        self, repository_id: str, heads: Mapping[RefName, str], *, since: int, actor: str
    ) -> MirrorState:
        """Record where the source's refs point now; their commits are copied already.

        A ref that waits for nothing gets what the source shows as its candidate, with a new ticket; a candidate that is
        waited for stays. Refs that the source has no longer are deleted here, but for the default branch. The mirror's
        sequence goes up. Of what the source has agreed to keep, only what is still needed is relied on from now on: the
        next report will ask for no more. Raises ``MirrorOvertaken`` when it was not ``since``: the heads were read
        before another pass went on, and may be older than what it saw.
        """
        ...

    def note_kept(self, repository_id: str, commits: frozenset[str], *, sequence: int) -> None:
        """Record what the source has agreed to keep: mirrors of this mirror may need it from now on.

        Raises ``MirrorOvertaken`` when another pass has gone on since the report of this sequence.
        """
        ...

    def note_rules(self, repository_id: str, rules: str | None, protections: Sequence[str]) -> None:
        """Record the source's retention rules and protected branches: they hold here from a fail-over on."""
        ...

    def start_over(self, repository_id: str, registration: str, *, sequence: int) -> Mirror:
        """Follow the source under a name of its own, as a mirror that it does not know yet.

        For a catalog that was restored from a backup: the source has a report of a later ``sequence`` than this catalog
        ever made. What is shown stays; waits, memories and what the source had agreed to are forgotten.
        """
        ...

    def set_patience(self, repository_id: str, seconds: int) -> Mirror:
        """For how long nothing of a candidate may arrive before a newer one is looked at."""
        ...

    def give_up_candidate(
        self, repository_id: str, ref: RefName, ticket: int, *, to: str | None = None, stalled: bool = False
    ) -> MirrorRef | None:
        """Wait for what the source showed last instead of the candidate of this ticket. None when it is not waited for.

        What arrived for the old candidate stays remembered.

        Args:
            repository_id: the mirror.
            ref: the ref.
            ticket: the wait that was decided about.
            to: a head that the source showed since the wait began, in place of the last one.
            stalled: it gives way because nothing of it arrives, to one that is not complete either. Such candidates are
                counted until the next promotion.
        """
        ...

    def arrivals(self, repository_id: str) -> Pending:
        """The range files that are known to have arrived and belong to no promoted commit; a whole one wins."""
        ...

    def record_arrivals(
        self,
        repository_id: str,
        ref: RefName,
        ticket: int,
        arrived: Pending,
        *,
        missing_objects: int,
        missing_bytes: int,
        remaining: Remaining = NOTHING,
        missing: Sequence[Missing] = (),
        error: str | None = None,
    ) -> MirrorRef | None:
        """Remember what has arrived for a ref, and what the candidate of this ticket lacked at this look.

        Returns the ref, if it waits under this ticket. With another one, 0 for instance, only what arrived is
        remembered.
        """
        ...

    def promote(
        self, repository_id: str, ref: RefName, ticket: int, candidate: str, *, token: str, actor: str
    ) -> MirrorRef | None:
        """Show a candidate that is complete: the branch's head moves to it, or the tag is made.

        One transaction; the next candidate, what the source showed last, takes its place. None, and nothing is changed,
        when ``candidate`` is no longer waited for under this ticket.
        """
        ...

    def note_sync(self, repository_id: str, error: str | None) -> None:
        """Record how a pass ended."""
        ...

    def promote_writable(self, repository_id: str, sequence: int, *, actor: str) -> Mirror:
        """Turn the mirror into a writable repository at what it shows now; it follows its source no longer.

        The source's retention rules and protected branches, as they were last seen, hold from now on. Every commit
        that refs do not point to, and whose metarange is not one of theirs, is expired as unproved, so nothing can rest
        on what did not arrive. Raises ``MirrorOvertaken`` when a pass has changed anything since ``sequence``.
        """
        ...

    def unproved(self, repository_id: str) -> frozenset[str]:
        """The commits that a fail-over expired and nobody has looked at since. Raises ``RepositoryNotFound``."""
        ...

    def revive_proved(self, repository_id: str, ids: Iterable[str]) -> int:
        """Let unproved commits live again that are whole; how many. Others than unproved ones are left alone.

        Raises ``ReadOnlyRepository``.
        """
        ...
