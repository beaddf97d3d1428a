"""What a mirror asks of its source: its refs, its commits, its word that it keeps what the mirror needs.

The source's store is never touched: its catalog says everything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, partial

from lakeops.catalog.base import Catalog
from lakeops.model.errors import NotAReplica
from lakeops.model.mirrors import Mirror, RefKind, RefName
from lakeops.model.records import Commit, Repository
from lakeops.ops.paging import pages


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
    def repository(self) -> Repository:
        """The repository's record. Raises ``RepositoryNotFound``."""
        return self.catalog.repository(self.repository_id)

    def heads(self, mirror: Mirror) -> dict[RefName, str]:
        """Where the branches and tags that the mirror follows point now."""
        listings = ((RefKind.BRANCH, self.catalog.branches), (RefKind.TAG, self.catalog.tags))
        return {
            RefName(kind, ref.id): ref.commit_id
            for kind, listing in listings
            for ref in pages(partial(listing, self.repository_id))
            if mirror.follows(kind, ref.id)
        }

    def lost(self, commits: Iterable[str]) -> frozenset[str]:
        """Those of the commits that the source has expired, or does not know any more."""
        asked = frozenset(commits)
        known = self.catalog.commits(self.repository_id, asked)
        return frozenset(one for one in asked if one not in known or known[one].expired)

    def check_same(self, mirror: Mirror, initial: Commit) -> None:
        """Refuse a repository of the same name that is another one. Raises ``NotAReplica``."""
        if self.catalog.initial_commit(self.repository_id).id != initial.id:
            raise NotAReplica(
                f"the source {mirror.source.text!r} is another repository than mirror {mirror.repository_id!r} was "
                "made of: it was deleted and created again; create a new mirror for it"
            )
