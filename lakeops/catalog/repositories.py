"""Repositories, and who owns their storage namespaces.

No transition can be half done. The owner record of a namespace is noted before it is written (``begin_lease``) and
after (``confirm_lease``). The next caller looks whether a noted one was written, and writes it if it may.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, and_, delete, func, insert, select, update

from lakeops.catalog.database import PageLookup, read_transaction, run_again, write_transaction, write_transaction_once
from lakeops.catalog.guards import CatalogPart, find_repository, lock_repository, lock_writable, under
from lakeops.catalog.marks import first_seen
from lakeops.catalog.records import commit_values, repository_record, repository_values, text_map
from lakeops.catalog.tables import AUDIT, BRANCH, CATALOG, CLOCK, COMMIT, METADATA, MIRROR, OWNER, REFLOG, REPOSITORY
from lakeops.model.clock import Ids
from lakeops.model.errors import AlreadyExists, NamespaceTaken, NotAMirror, NotAsSeen, PreconditionFailed
from lakeops.model.ids import COMMIT_METADATA_BYTES, check_metadata
from lakeops.model.marks import Identity
from lakeops.model.records import Commit, RepositoryRecord

_PAGE = PageLookup(REPOSITORY, "id")


@dataclass(frozen=True, slots=True)
class Ownership:
    """A namespace's owner record as a catalog knows it at one instant, and which catalog that is."""

    identity: Identity
    current_lease: str | None = None
    pending_lease: str | None = None


class Repositories(CatalogPart):
    """Repositories: a name, a storage namespace, and everything recorded under them."""

    def create_repository(
        self, repository: RepositoryRecord, first: Commit, *, token: str, actor: str, owner: str | None = None
    ) -> None:
        """Insert the repository, its initial commit and its default branch (with staging token ``token``).

        ``owner`` is the owner record that lies in the namespace already. Raises ``AlreadyExists``, ``NamespaceTaken``.
        """

        def work(conn: Connection) -> bool:
            insert_repository(self, conn, repository, first, token=token, actor=actor, action="create-repository")
            if owner is not None:
                conn.execute(insert(OWNER).values(repository_id=repository.id, current_lease=owner))
            return True

        self.database.write(work, resolve=lambda conn: is_ours(conn, repository.id, token))

    @read_transaction
    def get(self, conn: Connection, repository_id: str) -> RepositoryRecord:
        """The repository. Raises ``RepositoryNotFound``."""
        return repository_record(find_repository(conn, repository_id))

    @read_transaction
    def page(self, conn: Connection, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[RepositoryRecord]:
        """Repositories by id, keyset-paged."""
        return [repository_record(row) for row in _PAGE.page(conn, {}, prefix=prefix, after=after, limit=limit)]

    @write_transaction_once
    def delete_repository(
        self, conn: Connection, repository_id: str, seen: int | None = None, *, mirror: bool = False
    ) -> None:
        """Forget a repository and everything recorded of it but the audit. The storage namespace is not touched.

        Raises ``NotAsSeen`` when its reflog has a newer move than was ``seen``, ``NotAMirror`` when a ``mirror`` is
        meant and the repository follows no source.
        """
        namespace = lock_repository(conn, repository_id, exclusive=True).storage_namespace
        if mirror and not _follows(conn, repository_id):
            raise NotAMirror(f"{repository_id!r} is a writable repository now; `lakeops repo delete` forgets it")
        newest = select(func.max(REFLOG.c.sequence)).filter_by(repository_id=repository_id)
        if seen is not None and (conn.execute(newest).scalar() or 0) > seen:
            raise NotAsSeen(f"repository {repository_id!r} changed since it was looked at; nothing was done")
        for table in METADATA.sorted_tables:
            if table not in (REPOSITORY, CATALOG, CLOCK, AUDIT):
                conn.execute(delete(table).where(table.c.repository_id == repository_id))
        conn.execute(delete(REPOSITORY).where(REPOSITORY.c.id == repository_id))
        self.record(conn, repository_id, "delete-repository", "repository", repository_id, namespace)

    @write_transaction
    def set_read_only(self, conn: Connection, repository_id: str, read_only: bool) -> None:
        """Close a repository to every writing transition, or open it again. A mirror stays closed."""
        was = lock_repository(conn, repository_id, exclusive=True).read_only
        if not read_only and _follows(conn, repository_id):
            raise PreconditionFailed(
                f"repository {repository_id!r} is a mirror: `lakeops mirror promote-writable` opens it for writing",
                kind="read_only_repository",
            )
        conn.execute(update(REPOSITORY).where(REPOSITORY.c.id == repository_id).values(read_only=read_only))
        if was != read_only:
            states = ["read-only" if state else "writable" for state in (was, read_only)]
            self.record(conn, repository_id, "set-read-only", "repository", repository_id, *states)

    @write_transaction
    def update_metadata(
        self, conn: Connection, repository_id: str, changes: Mapping[str, str | None]
    ) -> dict[str, str]:
        """Set keys of a repository's metadata, or remove those with None. Returns all of it as it is now.

        Raises ``PreconditionFailed`` (``read_only_repository``), and ``InvalidInput`` where all of it together is too
        large.
        """
        repository = lock_writable(conn, repository_id, action="set-metadata", exclusive=True)
        before = text_map(repository.metadata)
        kept = {key: value for key, value in {**before, **changes}.items() if value is not None}
        after = check_metadata(kept, at_most=COMMIT_METADATA_BYTES)
        if after != before:
            conn.execute(update(REPOSITORY).where(REPOSITORY.c.id == repository_id).values(metadata=after))
            keys = sorted(key for key in {*before, *after} if before.get(key) != after.get(key))
            changed = [json.dumps({key: side[key] for key in keys if key in side}) for side in (before, after)]
            self.record(conn, repository_id, "set-metadata", "repository", repository_id, *changed)
        return after

    def identity(self) -> Identity:
        """Which catalog this is. Its id is made when it is first asked for."""

        def find(conn: Connection) -> Identity | None:
            name, database = conn.execute(select(CATALOG.c.id)).scalar(), self.database
            return None if name is None else Identity(name, database.dialect.identify(conn), database.shown)

        def make(conn: Connection) -> Identity:
            found = find(conn)
            if found is None:
                conn.execute(insert(CATALOG).values(only=1, id=Ids().new()))
            return found or make(conn)

        return self.database.read(find) or self.database.write(make, resolve=find)

    def ownership(self, repository_id: str) -> Ownership:
        """Read what this catalog knows of the repository's owner record. Raises ``RepositoryNotFound``."""
        identity = self.identity()

        def work(conn: Connection) -> Ownership:
            find_repository(conn, repository_id)
            return _ownership(conn, repository_id, identity)

        return self.database.read(work)

    def begin_lease(self, repository_id: str, record: str, *, over: bool = False) -> Ownership:
        """Note the record that is about to be written to the namespace.

        A record that is noted already stays and is returned, since whoever noted it was killed or is still writing:
        that write is finished first. With ``over`` the noted record is replaced.
        """
        identity = self.identity()
        here = OWNER.c.repository_id == repository_id

        def work(conn: Connection) -> Ownership:
            # Exclusively, for a moment: two that take at once must see each other.
            lock_repository(conn, repository_id, exclusive=True)
            known = _ownership(conn, repository_id, identity)
            if not conn.execute(select(OWNER.c.repository_id).where(here)).first():
                conn.execute(insert(OWNER).values(repository_id=repository_id))
            if over or known.pending_lease is None:
                conn.execute(update(OWNER).where(here).values(pending_lease=record))
                if known.pending_lease != record:
                    self.record(conn, repository_id, "take-owner", "owner", repository_id, known.current_lease, record)
            return _ownership(conn, repository_id, identity)

        return self.database.write(work, resolve=run_again)

    @write_transaction
    def confirm_lease(self, conn: Connection, repository_id: str, record: str) -> bool:
        """Note that a record is in the namespace now. Nothing happens when another one was noted meanwhile.

        Returns whether any was: none is noted of a repository that was deleted, or deleted and made anew.
        """
        lock_repository(conn, repository_id)
        noted = update(OWNER).filter_by(repository_id=repository_id, pending_lease=record)
        conn.execute(noted.values(current_lease=record, pending_lease=None))
        return conn.execute(select(OWNER.c.repository_id).filter_by(repository_id=repository_id)).first() is not None


def _follows(conn: Connection, repository_id: str) -> bool:
    following = select(MIRROR.c.repository_id).filter_by(repository_id=repository_id, promoted_writable=None)
    return conn.execute(following).first() is not None


def _ownership(conn: Connection, repository_id: str, identity: Identity) -> Ownership:
    query = select(OWNER.c.current_lease, OWNER.c.pending_lease).filter_by(repository_id=repository_id)
    return Ownership(identity, *(conn.execute(query).one_or_none() or ()))


def insert_repository(
    part: CatalogPart,
    conn: Connection,
    repository: RepositoryRecord,
    first: Commit,
    *,
    token: str,
    actor: str,
    action: str,
) -> None:
    """Insert the rows of a new repository: itself, its first commit, its default branch, a reflog row."""
    check_free(conn, repository)
    first_seen(conn, part.database.dialect.now(conn), part.clock)
    grace = int(part.new_grace.total_seconds())
    name, branch, place = repository.id, repository.default_branch, repository.storage_namespace
    conn.execute(insert(REPOSITORY).values(**repository_values(repository), grace_seconds=grace))
    conn.execute(insert(COMMIT).values(commit_values(name, first)))
    part.insert_branch(conn, name, branch, first.id, token)
    audited = part.audit_values(name, action, "repository", name, None, place, claimed=actor)
    part.record_move(conn, name, branch, None, first.id, action, actor, audited=audited)


def is_ours(conn: Connection, repository_id: str, token: str) -> bool | None:
    """Whether the repository is the one that was made with this token, or None."""
    ours = select(BRANCH.c.name).where(BRANCH.c.repository_id == repository_id, BRANCH.c.staging_token == token)
    return True if conn.execute(ours).first() else None


def check_free(conn: Connection, repository: RepositoryRecord) -> None:
    """Refuse a name that is taken, and a namespace that is another one's, or lies in it or around it."""
    place = REPOSITORY.c.storage_namespace
    scheme, _, path = repository.storage_namespace.partition("://")
    parts = path.split("/")
    around = place.in_([f"{scheme}://{'/'.join(parts[:count])}" for count in range(len(parts), 0, -1)])
    below = and_(*under(place, repository.storage_namespace + "/"))
    query = select(REPOSITORY.c.id).where((REPOSITORY.c.id == repository.id) | around | below)
    for name in conn.execute(query).scalars():
        if name == repository.id:
            raise AlreadyExists(f"repository {repository.id!r} exists already")
        raise NamespaceTaken(
            f"storage namespace {repository.storage_namespace} belongs to repository {name!r}, or overlaps with "
            "its own; choose another one"
        )
