"""CatalogPart of owner records.

* ``take_owner`` leaves on record what is about to be written to the namespace. Recovery: the next
  caller looks whether it was written, writes it if it may, and calls ``hold_owner``.
* ``hold_owner`` needs that record to be the one on record. Leaves it as the one that was written.
"""

from __future__ import annotations

from sqlalchemy import Connection, insert, select, update

from lakeops.catalog.database import run_again
from lakeops.catalog.guards import CatalogPart, find_repository, lock_repository
from lakeops.catalog.records import Ownership
from lakeops.catalog.tables import CATALOG, OWNER
from lakeops.model.clock import Ids
from lakeops.model.marks import Identity


class Owners(CatalogPart):
    """Who this catalog is, and what it wrote into the namespaces of its repositories."""

    def identity(self) -> Identity:
        """Which catalog this is. Its id is made when it is first asked for."""
        found = self.database.read(self._identity)
        return found or self.database.write(self._make_identity, settle=self._identity)

    def ownership(self, repository_id: str) -> Ownership:
        """What is known of the owner record of a repository. Raises ``RepositoryNotFound``."""
        identity = self.identity()

        def work(conn: Connection) -> Ownership:
            find_repository(conn, repository_id)
            return _ownership(conn, repository_id, identity)

        return self.database.read(work)

    def take_owner(self, repository_id: str, record: str, *, over: bool = False) -> Ownership:
        """Note the record that is about to be written to the namespace.

        A record that is noted already stays and is returned, because the process that noted it was killed or is still
        writing it. That write is finished first. With ``over`` the noted record is replaced.
        """
        identity = self.identity()

        def work(conn: Connection) -> Ownership:
            # Exclusively, for a moment: two that take at once must see each other.
            lock_repository(conn, repository_id, exclusive=True)
            known = _ownership(conn, repository_id, identity)
            if known.current_lease is None and known.pending_lease is None:
                row = select(OWNER.c.repository_id).where(OWNER.c.repository_id == repository_id)
                if not conn.execute(row).first():
                    conn.execute(insert(OWNER).values(repository_id=repository_id))
            if over or known.pending_lease is None:
                here = OWNER.c.repository_id == repository_id
                conn.execute(update(OWNER).where(here).values(pending_lease=record))
                if known.pending_lease != record:
                    self._record(conn, repository_id, "take-owner", "owner", repository_id, known.current_lease, record)
            return _ownership(conn, repository_id, identity)

        return self.database.write(work, settle=run_again)

    def hold_owner(self, repository_id: str, record: str) -> None:
        """Note that a record is in the namespace now. Nothing happens when another one was noted meanwhile."""

        def work(conn: Connection) -> None:
            lock_repository(conn, repository_id)
            here = (OWNER.c.repository_id == repository_id, OWNER.c.pending_lease == record)
            conn.execute(update(OWNER).where(*here).values(current_lease=record, pending_lease=None))

        self.database.write(work, settle=run_again)

    def _identity(self, conn: Connection) -> Identity | None:
        name = conn.execute(select(CATALOG.c.id)).scalar()
        return None if name is None else self._called(conn, name)

    def _make_identity(self, conn: Connection) -> Identity:
        found = self._identity(conn)
        if found is not None:
            return found
        name = Ids().new()
        conn.execute(insert(CATALOG).values(only=1, id=name))
        return self._called(conn, name)

    def _called(self, conn: Connection, name: str) -> Identity:
        return Identity(name, self.database.dialect.whereabouts(conn), self.database.shown)


def _ownership(conn: Connection, repository_id: str, identity: Identity) -> Ownership:
    row = conn.execute(
        select(OWNER.c.current_lease, OWNER.c.pending_lease).where(OWNER.c.repository_id == repository_id)
    ).one_or_none()
    return Ownership(identity, row.current_lease, row.pending_lease) if row is not None else Ownership(identity)
