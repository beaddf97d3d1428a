"""CatalogPart of candidates: the commits that a mirror waits for, at the destination.

A candidate carries a ticket. What a pass decides about one wait changes nothing once another wait has begun, so passes
may overlap, be killed and come back late.

* ``give_up_candidate``, ``record_arrivals``, ``promote`` need the ticket that they were decided under. Otherwise they
  change nothing but the memory of what arrived, which is true whichever pass saw it. Recovery: the next pass.

Each locks the repository's row shared, then the mirror's row, so that two passes never interleave inside one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, CursorResult, delete, insert, select, update

from lakeops.catalog.database import run_again
from lakeops.catalog.guards import IN_CHUNK, find_repository, lock_repository
from lakeops.catalog.records import NOTHING, Pending
from lakeops.catalog.repositories import NewRepositories
from lakeops.catalog.rows import (
    AnyRow,
    mirror_record,
    mirror_ref_record,
    wait_value,
)
from lakeops.catalog.tables import (
    BRANCH,
    MIRROR,
    MIRROR_ARRIVAL,
    MIRROR_REF,
    TAG,
)
from lakeops.model.clock import unix_seconds
from lakeops.model.errors import MirrorOvertaken, NotAMirror
from lakeops.model.mirrors import MirrorRecord, MirrorRef, Missing, RefKind, RefName, Remaining, Wait

NO_WAIT: dict[str, Any] = {"missing_objects": 0, "missing_bytes": 0, "error": None, "wait": None}
"""What is known of a candidate before it was looked at."""


class Candidates(NewRepositories):
    """Candidates of mirrors. See the module."""

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
            stalled: nothing of it arrives, and the head that replaces it is not complete either. Such candidates are
                counted until the next promotion.
        """

        def work(conn: Connection) -> MirrorRef | None:
            mirror, _ = lock_mirror(conn, repository_id)
            found = _waiting(conn, repository_id, ref, ticket)
            if found is None:
                return None
            wait = found.wait or Wait(0, 0)
            newer = to if to in wait.heads else None
            following = self._next_candidate(
                conn,
                repository_id,
                mirror,
                found,
                promoted=found.promoted,
                newer=newer,
                fallbacks=wait.fallbacks + stalled,
            )
            if following.candidate is None:
                forget_arrivals(conn, repository_id, ref)
            return following

        return self.database.write(work, settle=run_again)

    def arrivals(self, repository_id: str) -> Pending:
        """The range files that are known to have arrived and belong to no promoted commit. A whole one wins."""
        query = select(MIRROR_ARRIVAL.c.file, MIRROR_ARRIVAL.c.pending).where(
            MIRROR_ARRIVAL.c.repository_id == repository_id
        )

        def work(conn: Connection) -> dict[str, str | None]:
            found: dict[str, str | None] = {}
            for row in conn.execute(query):
                if row.pending is None or row.file not in found:
                    found[row.file] = row.pending
            return found

        return self.database.read(work)

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

        def work(conn: Connection) -> MirrorRef | None:
            lock_mirror(conn, repository_id)
            here = of_ref(repository_id, ref)
            if conn.execute(select(MIRROR_REF.c.candidate).where(*here)).scalar() is None:
                # The source deleted the ref meanwhile, or another pass promoted it: nobody would ever clear these rows.
                return None
            _replace_arrivals(conn, repository_id, ref, arrived)
            found = _waiting(conn, repository_id, ref, ticket)
            if found is None:
                return None
            now = unix_seconds(self.database.dialect.now(conn))
            wait = (found.wait or Wait(now, now)).seen(now, remaining, tuple(missing))
            values = {"missing_objects": missing_objects, "missing_bytes": missing_bytes, "checked": now}
            conn.execute(update(MIRROR_REF).where(*here).values(**values, error=error, wait=wait_value(wait)))
            return _waiting(conn, repository_id, ref, ticket)

        return self.database.write(work, settle=run_again)

    def promote(
        self, repository_id: str, ref: RefName, ticket: int, candidate: str, *, token: str, actor: str
    ) -> MirrorRef | None:
        """Show a candidate that is complete: the branch's head moves to it, or the tag is made.

        One transaction. The next candidate, what the source showed last, takes its place. None, and nothing is changed,
        when ``candidate`` is no longer waited for under this ticket.
        """

        def work(conn: Connection) -> MirrorRef | None:
            mirror, _ = lock_mirror(conn, repository_id)
            found = _waiting(conn, repository_id, ref, ticket)
            if found is None or found.candidate != candidate:
                return None
            old = self._show(conn, repository_id, ref, candidate, token)
            self._record_move(conn, repository_id, ref.name, old, candidate, "promote", actor, kind=ref.kind)
            forget_arrivals(conn, repository_id, ref)
            return self._next_candidate(conn, repository_id, mirror, found, promoted=candidate)

        def settle(conn: Connection) -> MirrorRef | None:
            row = conn.execute(select(MIRROR_REF).where(*of_ref(repository_id, ref))).one_or_none()
            return mirror_ref_record(row) if row is not None and row.promoted == candidate else None

        return self.database.write(work, settle=settle)

    def _show(self, conn: Connection, repository_id: str, ref: RefName, commit_id: str, token: str) -> str | None:
        """Let a branch or tag point to a commit, as a new one if need be. Returns where it pointed before."""
        table = BRANCH if ref.kind is RefKind.BRANCH else TAG
        here = (table.c.repository_id == repository_id, table.c.name == ref.name)
        old: str | None = conn.execute(select(table.c.commit_id).where(*here)).scalar_one_or_none()
        if old is not None:
            conn.execute(update(table).where(*here).values(commit_id=commit_id))
        elif ref.kind is RefKind.BRANCH:
            self._insert_branch(conn, repository_id, ref.name, commit_id, token)
        else:
            conn.execute(insert(TAG).values(repository_id=repository_id, name=ref.name, commit_id=commit_id))
        return old

    def _next_candidate(
        self,
        conn: Connection,
        repository_id: str,
        mirror: MirrorRecord,
        ref: MirrorRef,
        *,
        promoted: str | None,
        newer: str | None = None,
        fallbacks: int = 0,
    ) -> MirrorRef:
        """Let a ref wait for ``newer``, or for what the source showed last, if that is not what is promoted."""
        now = unix_seconds(self.database.dialect.now(conn))
        values: dict[str, Any] = {"promoted": promoted, "candidate": None, "noticed": ref.noticed, **NO_WAIT}
        candidate = newer or ref.source_head
        if promoted == ref.source_head:
            values["noticed"] = None
        else:
            # Heads before the new candidate are not gone back to. None is after what the source showed last.
            heads = ref.wait.after(candidate) if ref.wait is not None and newer is not None else ()
            wait = Wait(now, now, fallbacks=fallbacks, heads=heads)
            values |= {"candidate": candidate, "ticket": mirror.sequence + 1, "wait": wait_value(wait)}
        if promoted != ref.promoted:
            values["checked"] = now
        set_mirror(conn, repository_id, sequence=mirror.sequence + 1)
        here = of_ref(repository_id, ref.ref)
        conn.execute(update(MIRROR_REF).where(*here).values(values))
        return mirror_ref_record(conn.execute(select(MIRROR_REF).where(*here)).one())


def lock_mirror(conn: Connection, repository_id: str, *, exclusive: bool = False) -> tuple[MirrorRecord, AnyRow]:
    """The mirror and its repository's row, both locked. Raises ``NotAMirror``."""
    repository = lock_repository(conn, repository_id, exclusive=exclusive)
    query = select(MIRROR).where(MIRROR.c.repository_id == repository_id).with_for_update()
    mirror = mirror_record(_following(conn.execute(query), repository_id))
    mirror.check_following()
    return mirror, repository


def set_mirror(conn: Connection, repository_id: str, **values: Any) -> None:  # noqa: ANN401 - column values
    """Change columns of a mirror."""
    conn.execute(update(MIRROR).where(MIRROR.c.repository_id == repository_id).values(values))


def check_alone(mirror: MirrorRecord, since: int) -> None:
    """Refuse when another pass went on since a sequence. Raises ``MirrorOvertaken``."""
    if mirror.sequence != since:
        raise MirrorOvertaken(f"another pass over mirror {mirror.repository_id!r} went on meanwhile; try again")


def mirror_row(conn: Connection, repository_id: str) -> AnyRow:
    """The mirror's row. Raises ``NotAMirror``, ``RepositoryNotFound``."""
    find_repository(conn, repository_id)
    return _following(conn.execute(select(MIRROR).where(MIRROR.c.repository_id == repository_id)), repository_id)


def _following(found: CursorResult[Any], repository_id: str) -> AnyRow:
    row = found.one_or_none()
    if row is None:
        raise NotAMirror(f"repository {repository_id!r} is no mirror; `lakeops mirror create` makes one")
    return row


def _waiting(conn: Connection, repository_id: str, ref: RefName, ticket: int) -> MirrorRef | None:
    """The ref, if it waits for a candidate under this ticket."""
    row = conn.execute(select(MIRROR_REF).where(*of_ref(repository_id, ref))).one_or_none()
    return None if row is None or row.candidate is None or row.ticket != ticket else mirror_ref_record(row)


def forget_arrivals(conn: Connection, repository_id: str, ref: RefName) -> None:
    """Delete what is remembered of a ref's candidate."""
    conn.execute(delete(MIRROR_ARRIVAL).where(*of_ref(repository_id, ref, table=MIRROR_ARRIVAL)))


def _replace_arrivals(conn: Connection, repository_id: str, ref: RefName, arrived: Pending) -> None:
    names = sorted(arrived)
    for start in range(0, len(names), IN_CHUNK):
        some = names[start : start + IN_CHUNK]
        mine = of_ref(repository_id, ref, table=MIRROR_ARRIVAL)
        conn.execute(delete(MIRROR_ARRIVAL).where(*mine, MIRROR_ARRIVAL.c.file.in_(some)))
        rows = [
            {"repository_id": repository_id, "kind": ref.kind, "name": ref.name, "file": file, "pending": arrived[file]}
            for file in some
        ]
        conn.execute(insert(MIRROR_ARRIVAL), rows)


def of_ref(repository_id: str, ref: RefName, *, table: Any = MIRROR_REF) -> tuple[ColumnElement[bool], ...]:  # noqa: ANN401
    """The condition for the rows of one ref of a mirror."""
    return (
        table.c.repository_id == repository_id,
        table.c.kind == str(ref.kind),
        table.c.name == ref.name,
    )
