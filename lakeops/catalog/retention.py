"""What decides what is kept: the repository's rules and grace period, and what its mirrors have reported.

* ``set_rules`` leaves the rules as given, or none. Recovery: repeat it.
* ``set_grace`` leaves the grace period changed, a shorter one with the old one beside it. Recovery: repeat it.
* ``report_mirror`` needs commits that are live, and no report of a higher sequence before; leaves exactly these as what
  the mirror needs, so that expiry keeps them. At a mirror it needs commits that the mirror's own source has agreed to
  keep. Recovery: repeat it.
* ``drop_mirror`` leaves nothing of the mirror. Recovery: repeat it.

All of them hold the repository's row, so expiry sees either the old state or the new one, and a report that was
accepted before it counts in it. A read-only repository takes reports: its commits may be mirrored onward.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sqlalchemy import Connection, insert, select, update

from lakeops.catalog.database import run_again
from lakeops.catalog.digests import delete_rows
from lakeops.catalog.guards import IN_CHUNK, check_live, check_writable, find_repository, grace_of, lock_repository
from lakeops.catalog.part import Part
from lakeops.catalog.rows import registration_record, ticks
from lakeops.catalog.tables import COMMIT, MIRROR, MIRROR_NEED, REPOSITORY, RETENTION
from lakeops.model.clock import unix_seconds
from lakeops.model.errors import CommitExpired, MirrorOvertaken
from lakeops.model.marks import Grace
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
            delete_rows(conn, RETENTION, RETENTION.c.repository_id == repository_id)
            if rules is not None:
                conn.execute(insert(RETENTION).values(repository_id=repository_id, rules=rules))

        self.database.write(work, settle=run_again)

    def grace(self, repository_id: str) -> Grace:
        """The repository's grace period. Raises ``RepositoryNotFound``."""
        return self.database.read(lambda conn: grace_of(find_repository(conn, repository_id)))

    def set_grace(self, repository_id: str, seconds: int) -> Grace:
        """Change the grace period. A longer one counts at once, a shorter one once the old one has passed."""

        def work(conn: Connection) -> Grace:
            repository = lock_repository(conn, repository_id, exclusive=True)
            check_writable(conn, repository, action="set-grace")
            grace = grace_of(repository).changed(seconds, self.database.dialect.now(conn))
            values = {
                "grace_seconds": grace.seconds,
                "grace_before": grace.before,
                "grace_until": None if grace.until is None else ticks(grace.until),
            }
            conn.execute(update(REPOSITORY).where(REPOSITORY.c.id == repository_id).values(values))
            return grace

        return self.database.write(work, settle=run_again)

    def report_mirror(self, repository_id: str, mirror: str, commits: frozenset[str], *, sequence: int = 0) -> None:
        """Replace what a mirror needs. Raises ``CommitExpired``, ``RefNotFound``, ``MirrorOvertaken``."""
        mine = (MIRROR_NEED.c.repository_id == repository_id, MIRROR_NEED.c.mirror == mirror)

        def work(conn: Connection) -> None:
            lock_repository(conn, repository_id)
            newest = conn.execute(select(MIRROR_NEED.c.sequence).where(*mine).with_for_update()).scalar()
            if newest is not None and newest > sequence:
                raise MirrorOvertaken(f"a later pass of mirror {mirror!r} has reported to {repository_id!r} already")
            check_live(conn, repository_id, commits)
            for commit_id in sorted(find_unkept(conn, repository_id, commits, lock=True)):
                raise CommitExpired(
                    f"commit {commit_id} is not kept for repository {repository_id!r} by the source that it mirrors "
                    "itself; try again after its next pass"
                )
            delete_rows(conn, MIRROR_NEED, *mine)
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

        def work(conn: Connection) -> list[Registration]:
            find_repository(conn, repository_id)
            return find_registrations(conn, repository_id)

        return self.database.read(work)

    def unkept(self, repository_id: str, commits: Iterable[str]) -> frozenset[str]:
        """Those of the commits that nobody keeps: at a mirror, what its own source has not agreed to keep."""
        return self.database.read(lambda conn: find_unkept(conn, repository_id, commits))

    def drop_mirror(self, repository_id: str, mirror: str) -> None:
        """Forget a mirror; nothing is kept for it any more. One that is not known is forgotten already."""

        def work(conn: Connection) -> None:
            lock_repository(conn, repository_id)
            here = MIRROR_NEED.c.repository_id == repository_id
            delete_rows(conn, MIRROR_NEED, here, MIRROR_NEED.c.mirror == mirror)

        self.database.write(work, settle=run_again)


def find_rules(conn: Connection, repository_id: str) -> str | None:
    """The retention rules, as a transaction sees them."""
    found: str | None = conn.execute(
        select(RETENTION.c.rules).where(RETENTION.c.repository_id == repository_id)
    ).scalar()
    return found


def mirror_needs(conn: Connection, repository_id: str) -> Mapping[str, frozenset[str]]:
    """What each registered mirror needs, as a transaction sees it."""
    query = select(MIRROR_NEED).where(MIRROR_NEED.c.repository_id == repository_id)
    return {row.mirror: registration_record(row).commits for row in conn.execute(query)}


def find_registrations(conn: Connection, repository_id: str) -> list[Registration]:
    """The mirrors of a repository as a transaction sees them, by name."""
    query = select(MIRROR_NEED).where(MIRROR_NEED.c.repository_id == repository_id).order_by(MIRROR_NEED.c.mirror)
    return [registration_record(row) for row in conn.execute(query)]


def find_unkept(conn: Connection, repository_id: str, commits: Iterable[str], *, lock: bool = False) -> frozenset[str]:
    """At a mirror that reports, the commits that its source has not agreed to keep.

    What a commit without objects needs is always there. With ``lock`` no pass over the mirror changes the answer before
    the transaction ends.
    """
    query = select(MIRROR.c.kept).where(
        MIRROR.c.repository_id == repository_id, MIRROR.c.reports, MIRROR.c.promoted_writable.is_(None)
    )
    kept = conn.execute(query.with_for_update() if lock else query).scalar_one_or_none()
    if kept is None:
        return frozenset()
    asked = sorted(frozenset(commits).difference(kept))
    found: set[str] = set()
    for start in range(0, len(asked), IN_CHUNK):
        some = COMMIT.c.id.in_(asked[start : start + IN_CHUNK])
        full = select(COMMIT.c.id).where(COMMIT.c.repository_id == repository_id, some, COMMIT.c.meta_range_file != "")
        found.update(conn.execute(full).scalars())
    return frozenset(found)
