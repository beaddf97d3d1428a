"""CatalogPart of a fail-over: a mirror becomes a repository that is written to.

* ``promote_writable`` needs that no pass went on since it was decided. Leaves a repository like any other, with the
  source's rules and protections. Commits that no ref shows are *unproved*: expired until somebody looks at them.
* ``revive_proved`` needs a repository that is written to. Leaves commits live that are unproved. Those that a mark has
  given up meanwhile (``begin_mark``) stay expired. Recovery: repeat it.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, delete, insert, select, union, update

from lakeops.catalog.candidates import check_alone, lock_mirror, mirror_row, set_mirror
from lakeops.catalog.database import run_again
from lakeops.catalog.guards import IN_CHUNK, CatalogPart, check_writable, find_repository, lock_repository
from lakeops.catalog.rows import mirror_record
from lakeops.catalog.tables import BRANCH, COMMIT, MIRROR_ARRIVAL, PROTECTION, REPOSITORY, RETENTION, TAG
from lakeops.model.clock import unix_seconds
from lakeops.model.marks import UNPROVED
from lakeops.model.mirrors import MirrorRecord
from lakeops.model.records import Protection


class FailOver(CatalogPart):
    """Mirrors that follow their source no longer."""

    def promote_writable(self, repository_id: str, sequence: int, *, actor: str) -> MirrorRecord:
        """Turn the mirror into a writable repository at what it shows now. It follows its source no longer.

        The source's retention rules and protected branches, as they were last seen, hold from now on. Every commit
        that refs do not point to, and whose metarange is not one of theirs, is expired as unproved, so nothing can rest
        on what did not arrive. Raises ``MirrorOvertaken`` when a pass has changed anything since ``sequence``.
        """

        def work(conn: Connection) -> MirrorRecord:
            mirror, repository = lock_mirror(conn, repository_id, exclusive=True)
            check_alone(mirror, sequence)
            _expire_unproved(conn, repository_id)
            _take_along(conn, mirror)
            conn.execute(update(REPOSITORY).where(REPOSITORY.c.id == repository_id).values(read_only=False))
            conn.execute(delete(MIRROR_ARRIVAL).where(MIRROR_ARRIVAL.c.repository_id == repository_id))
            set_mirror(conn, repository_id, promoted_writable=unix_seconds(self.database.dialect.now(conn)))
            branch = repository.default_branch
            head = _head(conn, repository_id, branch)
            self._record_move(conn, repository_id, branch, head, head, "promote-writable", actor)
            return mirror_record(mirror_row(conn, repository_id))

        def settle(conn: Connection) -> MirrorRecord | None:
            found = mirror_record(mirror_row(conn, repository_id))
            return found if found.promoted_writable is not None else None

        return self.database.write(work, settle=settle)

    def unproved(self, repository_id: str) -> frozenset[str]:
        """The commits that a fail-over expired and nobody has looked at since. Raises ``RepositoryNotFound``."""
        query = select(COMMIT.c.id).where(COMMIT.c.repository_id == repository_id, COMMIT.c.expired_by == UNPROVED)

        def work(conn: Connection) -> frozenset[str]:
            find_repository(conn, repository_id)
            return frozenset(conn.execute(query).scalars())

        return self.database.read(work)

    def revive_proved(self, repository_id: str, ids: Iterable[str]) -> int:
        """Let unproved commits live again that are whole; how many. Others than unproved ones are left alone.

        Raises ``PreconditionFailed`` (``read_only_repository``).
        """
        wanted = sorted(set(ids))

        def work(conn: Connection) -> int:
            check_writable(conn, lock_repository(conn, repository_id), action="verify-history")
            revived = 0
            for start in range(0, len(wanted), IN_CHUNK):
                some = COMMIT.c.id.in_(wanted[start : start + IN_CHUNK])
                mine = (COMMIT.c.repository_id == repository_id, COMMIT.c.expired_by == UNPROVED, some)
                revived += conn.execute(update(COMMIT).where(*mine).values(expired=False, expired_by=None)).rowcount
            if revived:
                self._record(conn, repository_id, "verify-history", "commits", "", None, f"{revived} live again")
            return revived

        return self.database.write(work, settle=run_again)


def _take_along(conn: Connection, mirror: MirrorRecord) -> None:
    """Let the source's rules and protections hold."""
    here = {"repository_id": mirror.repository_id}
    if mirror.rules is not None:
        conn.execute(insert(RETENTION).values(**here, rules=mirror.rules))
    for one in map(Protection.parse, mirror.protections):
        conn.execute(insert(PROTECTION).values(**here, kind=one.kind, pattern=one.pattern, check_name=one.check))


def _expire_unproved(conn: Connection, repository_id: str) -> None:
    """Expire as unproved every commit that no ref shows, but those that hold nothing or just what a ref shows."""
    here = COMMIT.c.repository_id == repository_id
    refs = union(*(select(table.c.commit_id).where(table.c.repository_id == repository_id) for table in (BRANCH, TAG)))
    shown = COMMIT.c.id.in_(refs)
    whole = select(COMMIT.c.meta_range_file).where(here, shown)
    doubtful = (COMMIT.c.expired.is_(False), COMMIT.c.meta_range_file != "", COMMIT.c.meta_range_file.not_in(whole))
    conn.execute(update(COMMIT).where(here, shown, COMMIT.c.expired.is_(True)).values(expired=False, expired_by=None))
    conn.execute(update(COMMIT).where(here, ~shown, *doubtful).values(expired=True, expired_by=UNPROVED))


def _head(conn: Connection, repository_id: str, branch: str) -> str | None:
    query = select(BRANCH.c.commit_id).where(BRANCH.c.repository_id == repository_id, BRANCH.c.name == branch)
    found: str | None = conn.execute(query).scalar_one_or_none()
    return found
