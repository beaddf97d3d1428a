"""What decides which commits live: the repository's rules, and what its mirrors have reported.

* ``set_rules`` leaves the rules as given, or none. Recovery: repeat it.
* ``report_mirror`` needs commits that are live, and no report of a higher sequence before; leaves exactly these as what
  the mirror needs, so that expiry keeps them. Recovery: repeat it.
* ``drop_mirror`` leaves nothing of the mirror. Recovery: repeat it.

All three hold the repository's row, so expiry sees either the old state or the new one, and a report that was accepted
before it counts in it. A read-only repository takes reports: its commits may be mirrored onward.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, delete, insert, select

from lakeops.catalog.database import run_again
from lakeops.catalog.guards import check_live, check_writable, find_repository, lock_repository
from lakeops.catalog.part import Part
from lakeops.catalog.tables import MIRROR_NEED, RETENTION
from lakeops.model.clock import unix_seconds
from lakeops.model.errors import MirrorOvertaken
from lakeops.model.mirrors import Registration


class Retention(Part):
    """Retention rules, and mirrors as their source knows them."""

    def get_rules(self, repository_id: str) -> str | None:
        """The repository's retention rules as they were set, if there are any."""

        def work(conn: Connection) -> str | None:
            find_repository(conn, repository_id)
            return find_rules(conn, repository_id)

        return self.database.read(work)

    def set_rules(self, repository_id: str, rules: str | None) -> None:
        """Replace the repository's retention rules (JSON text that the caller validated), or remove them."""

        def work(conn: Connection) -> None:
            check_writable(conn, lock_repository(conn, repository_id, exclusive=True), action="set-rules")
            conn.execute(delete(RETENTION).where(RETENTION.c.repository_id == repository_id))
            if rules is not None:
                conn.execute(insert(RETENTION).values(repository_id=repository_id, rules=rules))

        self.database.write(work, settle=run_again)

    def report_mirror(self, repository_id: str, mirror: str, commits: frozenset[str], *, sequence: int = 0) -> None:
        """Replace what a mirror needs. Raises ``CommitExpired``, ``RefNotFound``, ``MirrorOvertaken``."""
        mine = (MIRROR_NEED.c.repository_id == repository_id, MIRROR_NEED.c.mirror == mirror)

        def work(conn: Connection) -> None:
            lock_repository(conn, repository_id)
            newest = conn.execute(select(MIRROR_NEED.c.sequence).where(*mine).with_for_update()).scalar()
            if newest is not None and newest > sequence:
                raise MirrorOvertaken(f"a later pass of mirror {mirror!r} has reported to {repository_id!r} already")
            check_live(conn, repository_id, commits)
            conn.execute(delete(MIRROR_NEED).where(*mine))
            conn.execute(
                insert(MIRROR_NEED).values(
                    repository_id=repository_id,
                    mirror=mirror,
                    commits=sorted(commits),
                    at=unix_seconds(self.database.dialect.now(conn)),
                    sequence=sequence,
                )
            )

        self.database.write(work, settle=run_again)

    def registrations(self, repository_id: str) -> list[Registration]:
        """The mirrors that have reported to this repository, by name. Raises ``RepositoryNotFound``."""
        query = select(MIRROR_NEED).where(MIRROR_NEED.c.repository_id == repository_id).order_by(MIRROR_NEED.c.mirror)

        def work(conn: Connection) -> list[Registration]:
            find_repository(conn, repository_id)
            return [Registration(row.mirror, frozenset(row.commits), row.at) for row in conn.execute(query)]

        return self.database.read(work)

    def drop_mirror(self, repository_id: str, mirror: str) -> None:
        """Forget a mirror; nothing is kept for it any more. One that is not known is forgotten already."""

        def work(conn: Connection) -> None:
            lock_repository(conn, repository_id)
            here = MIRROR_NEED.c.repository_id == repository_id
            conn.execute(delete(MIRROR_NEED).where(here, MIRROR_NEED.c.mirror == mirror))

        self.database.write(work, settle=run_again)


def find_rules(conn: Connection, repository_id: str) -> str | None:
    """The retention rules, as a transaction sees them."""
    found: str | None = conn.execute(
        select(RETENTION.c.rules).where(RETENTION.c.repository_id == repository_id)
    ).scalar()
    return found


def mirror_needs(conn: Connection, repository_id: str) -> Mapping[str, frozenset[str]]:
    """What each registered mirror needs, as a transaction sees it."""
    query = select(MIRROR_NEED.c.mirror, MIRROR_NEED.c.commits).where(MIRROR_NEED.c.repository_id == repository_id)
    return {row.mirror: frozenset(row.commits) for row in conn.execute(query)}
