"""CatalogPart of repositories.

* ``create_repository`` needs a free name and namespace. Leaves repository, first commit, default branch, reflog row.
* ``delete_repository`` leaves no row of it but those of the audit. The storage namespace stays.
* ``update_metadata`` changes keys of a repository's metadata and leaves the others. Repeating it changes nothing.
* ``set_read_only`` closes or opens it, once every writer under the old state is done. A mirror stays closed.

None of them can be half done, so none needs recovery.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from sqlalchemy import Connection, and_, delete, insert, select, update

from lakeops.catalog.clock import first_seen
from lakeops.catalog.database import run_again
from lakeops.catalog.guards import CatalogPart, check_writable, find_repository, lock_repository, under
from lakeops.catalog.lookups import PageLookup
from lakeops.catalog.rows import commit_values, repository_record, repository_values, text_map
from lakeops.catalog.tables import AUDIT, BRANCH, CATALOG, CLOCK, COMMIT, METADATA, MIRROR, OWNER, REPOSITORY
from lakeops.model.errors import (
    AlreadyExists,
    NamespaceTaken,
    PreconditionFailed,
)
from lakeops.model.ids import COMMIT_METADATA_BYTES, check_metadata
from lakeops.model.records import Commit, RepositoryRecord

_PAGE = PageLookup(REPOSITORY, "id")


class NewRepositories(CatalogPart):
    """The rows of new repositories."""

    def _insert_repository(
        self, conn: Connection, repository: RepositoryRecord, first: Commit, *, token: str, actor: str, action: str
    ) -> None:
        """The rows of a new repository: itself, its first commit, its default branch, a reflog row."""
        self._check_free(conn, repository)
        first_seen(conn, self.database.dialect.now(conn), self.clock)
        grace = int(self.new_grace.total_seconds())
        conn.execute(insert(REPOSITORY).values(**repository_values(repository), grace_seconds=grace))
        conn.execute(insert(COMMIT).values(commit_values(repository.id, first)))
        self._insert_branch(conn, repository.id, repository.default_branch, first.id, token)
        place = repository.storage_namespace
        audited = self._audit_values(repository.id, action, "repository", repository.id, None, place, claimed=actor)
        self._record_move(
            conn, repository.id, repository.default_branch, None, first.id, action, actor, audited=audited
        )

    @staticmethod
    def _is_ours(conn: Connection, repository_id: str, token: str) -> bool | None:
        """Whether the repository is the one that was made with this token."""
        ours = select(BRANCH.c.name).where(BRANCH.c.repository_id == repository_id, BRANCH.c.staging_token == token)
        return True if conn.execute(ours).first() else None

    @staticmethod
    def _check_free(conn: Connection, repository: RepositoryRecord) -> None:
        place = REPOSITORY.c.storage_namespace
        around = place.in_(_enclosing_namespaces(repository.storage_namespace))
        below = and_(*under(place, repository.storage_namespace + "/"))
        query = select(REPOSITORY.c.id).where((REPOSITORY.c.id == repository.id) | around | below)
        for name in conn.execute(query).scalars():
            if name == repository.id:
                raise AlreadyExists(f"repository {repository.id!r} exists already")
            raise NamespaceTaken(
                f"storage namespace {repository.storage_namespace} belongs to repository {name!r}, or overlaps with "
                "its own; choose another one"
            )


class Repositories(NewRepositories):
    """Repositories: a name, a storage namespace, and everything recorded under them."""

    def create_repository(
        self, repository: RepositoryRecord, first: Commit, *, token: str, actor: str, owner: str | None = None
    ) -> None:
        """Insert the repository, its initial commit and its default branch (with staging token ``token``).

        ``owner`` is the owner record that lies in the namespace already.
        Raises ``AlreadyExists`` for the name and ``NamespaceTaken`` for the storage namespace.
        """

        def work(conn: Connection) -> bool:
            self._insert_repository(conn, repository, first, token=token, actor=actor, action="create-repository")
            if owner is not None:
                conn.execute(insert(OWNER).values(repository_id=repository.id, current_lease=owner))
            return True

        self.database.write(work, settle=lambda conn: self._is_ours(conn, repository.id, token))

    def get(self, repository_id: str) -> RepositoryRecord:
        """The repository. Raises ``RepositoryNotFound``."""
        return self.database.read(lambda conn: repository_record(find_repository(conn, repository_id)))

    def page(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[RepositoryRecord]:
        """Repositories by id, keyset-paged."""

        def work(conn: Connection) -> list[RepositoryRecord]:
            return [repository_record(row) for row in _PAGE.page(conn, {}, prefix=prefix, after=after, limit=limit)]

        return self.database.read(work)

    def delete_repository(self, repository_id: str) -> None:
        """Forget a repository and everything recorded of it. The storage namespace is not touched."""

        def work(conn: Connection) -> None:
            namespace = lock_repository(conn, repository_id, exclusive=True).storage_namespace
            for table in METADATA.sorted_tables:
                if table not in (REPOSITORY, CATALOG, CLOCK, AUDIT):
                    conn.execute(delete(table).where(table.c.repository_id == repository_id))
            conn.execute(delete(REPOSITORY).where(REPOSITORY.c.id == repository_id))
            self._record(conn, repository_id, "delete-repository", "repository", repository_id, namespace)

        self.database.write(work)

    def set_read_only(self, repository_id: str, read_only: bool) -> None:
        """Close a repository to every writing transition, or open it again."""

        def work(conn: Connection) -> None:
            was = lock_repository(conn, repository_id, exclusive=True).read_only
            following = select(MIRROR.c.repository_id).where(
                MIRROR.c.repository_id == repository_id, MIRROR.c.promoted_writable.is_(None)
            )
            if not read_only and conn.execute(following).first():
                raise PreconditionFailed(
                    f"repository {repository_id!r} is a mirror: `lakeops mirror promote-writable` opens it for writing",
                    kind="read_only_repository",
                )
            conn.execute(update(REPOSITORY).where(REPOSITORY.c.id == repository_id).values(read_only=read_only))
            if was != read_only:
                words = ["read-only" if state else "writable" for state in (was, read_only)]
                self._record(conn, repository_id, "set-read-only", "repository", repository_id, *words)

        self.database.write(work, settle=run_again)

    def update_metadata(self, repository_id: str, changes: Mapping[str, str | None]) -> dict[str, str]:
        """Set keys of a repository's metadata. None removes one. Returns all of it as it is now.

        Raises ``PreconditionFailed`` (``read_only_repository``), and ``InvalidInput`` where all of it together is too
        large.
        """

        def work(conn: Connection) -> dict[str, str]:
            repository = lock_repository(conn, repository_id, exclusive=True)
            check_writable(conn, repository, action="set-metadata")
            before = text_map(repository.metadata)
            merged: dict[str, str | None] = {**before, **changes}
            after = check_metadata(
                {key: value for key, value in merged.items() if value is not None}, at_most=COMMIT_METADATA_BYTES
            )
            if after != before:
                conn.execute(update(REPOSITORY).where(REPOSITORY.c.id == repository_id).values(metadata=after))
                self._record(
                    conn, repository_id, "set-metadata", "repository", repository_id, *differing(before, after)
                )
            return after

        return self.database.write(work, settle=run_again)


def differing(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """What two maps do not share, of each as JSON."""
    keys = sorted(key for key in {*before, *after} if before.get(key) != after.get(key))
    return [json.dumps({key: side[key] for key in keys if key in side}) for side in (before, after)]


def _enclosing_namespaces(namespace: str) -> list[str]:
    """The namespace, and everything that it lies in."""
    scheme, _, path = namespace.partition("://")
    parts = path.split("/")
    return [f"{scheme}://{'/'.join(parts[:count])}" for count in range(len(parts), 0, -1)]
