"""The catalog's named transitions of owner records: part of the contract in ``catalog.base``.

The record itself lies in the storage namespace. The catalog knows what it wrote there (``held``) and what it is about
to write (``taking``), so a process that was killed between the two is understood by the next one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lakeops.model.owner import Identity


@dataclass(frozen=True, slots=True)
class Ownership:
    """What a catalog knows of a namespace's owner record at one instant, and which catalog it is."""

    identity: Identity
    held: str | None = None
    taking: str | None = None


class OwnerTransitions(Protocol):
    """What a catalog does about the owner records of its repositories' namespaces."""

    def identity(self) -> Identity:
        """Which catalog this is. Its id is made when it is first asked for."""
        ...

    def ownership(self, repository_id: str) -> Ownership:
        """What is known of the owner record of a repository. Raises ``RepositoryNotFound``."""
        ...

    def take_owner(self, repository_id: str, record: str, *, over: bool = False) -> Ownership:
        """Note the record that is about to be written to the namespace.

        One that is noted already stays, and is returned: whoever noted it was killed or is still at it, and it is
        finished first. With ``over`` it gives way.
        """
        ...

    def hold_owner(self, repository_id: str, record: str) -> None:
        """Note that a record is in the namespace now; nothing happens when another one was noted meanwhile."""
        ...
