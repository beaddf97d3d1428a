"""The catalog's named transitions of mirrors, at the destination: part of the contract in ``catalog.base``.

They are the only ones that change a read-only repository, and refuse one that follows no source. Passes over one
mirror may overlap, be killed and come back late: a candidate carries a ticket, and what was decided about one wait
changes nothing once another one has begun.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from lakeops.model.mirrors import Mirror, MirrorRef, MirrorState, RefName
from lakeops.model.records import Commit, Repository

Pending = Mapping[str, str | None]
"""Range files that have arrived, by name: JSON text that says which of their objects have not, None for none."""


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

    def copy_commits(self, repository_id: str, commits: Sequence[Commit]) -> int:
        """Insert commits of the source under their ids; known ones stay as they are. Returns how many were new.

        Parents must be known or come earlier among ``commits``, so that history is whole at every moment; else
        ``RefNotFound``.
        """
        ...

    def observe_source(
        self, repository_id: str, heads: Mapping[RefName, str], *, since: int, actor: str
    ) -> MirrorState:
        """Record where the source's refs point now; their commits are copied already.

        A ref that waits for nothing gets what the source shows as its candidate, with a new ticket; a candidate that is
        waited for stays. Refs that the source has no longer are deleted here, but for the default branch. The mirror's
        sequence goes up. Raises ``MirrorOvertaken`` when it was not ``since``: the heads were read before another pass
        went on, and may be older than what it saw.
        """
        ...

    def give_up_candidate(self, repository_id: str, ref: RefName, ticket: int) -> MirrorRef | None:
        """Wait for what the source showed last instead of the candidate of this ticket. None when it is not waited for.

        What arrived for the old candidate stays remembered.
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
        error: str | None = None,
    ) -> None:
        """Remember what has arrived for a ref, and what the candidate of this ticket lacked at this look."""
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

    def promote_writable(self, repository_id: str, sequence: int, complete: Iterable[str], *, actor: str) -> Mirror:
        """Turn the mirror into a writable repository at what it shows now; it follows its source no longer.

        Every commit but those in ``complete`` and those that refs point to is expired, so nothing can rest on what did
        not arrive. Raises ``MirrorOvertaken`` when a pass has changed anything since ``sequence``.
        """
        ...
