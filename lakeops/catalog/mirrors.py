"""Transitions of mirrors, at the destination.

They are the only ones that change a read-only repository, and refuse one that follows no source. Passes over one
mirror may overlap, be killed and come back late: a candidate carries a ticket, and what was decided about one wait
changes nothing once another one has begun.

* ``create_mirror`` needs a free name and namespace; leaves a read-only repository at the source's initial commit.
* ``copy_commits`` needs every parent; leaves history whole. Recovery: repeat it, known commits are passed over.
* ``observe_source`` needs that no other pass went on since the heads were read, so that none goes back by mistake;
  leaves the source's heads recorded, a candidate for each ref that waited for nothing, and no refs that the source
  lacks. Recovery: repeat it, from reading the heads on.
* ``note_kept`` needs that no other pass went on since the report that the source agreed to. So what it leaves on record
  is never more than what the source keeps: a pass first gives up what it will not ask for, then asks, then notes.
  Recovery: the next pass.
* ``start_over`` leaves a mirror that its source does not know: its next report is the first one. Recovery: repeat it.
* ``give_up_candidate``, ``record_arrivals``, ``promote`` need the ticket that they were decided under; otherwise they
  change nothing but the memory of what arrived, which is true whichever pass saw it. Recovery: the next pass.
* ``note_refused`` leaves on record what the last pass did not believe. Recovery: the next pass.
* ``note_seen`` leaves on record when the source was seen. Recovery: none is needed.
* ``note_rules`` leaves on record what the source's rules and protections are. Recovery: repeat it.

Each locks the repository's row shared, then the mirror's row, so that two passes never interleave inside one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, CursorResult, delete, insert, select, update

from lakeops.catalog.commits import find_registrations
from lakeops.catalog.database import run_again
from lakeops.catalog.digests import delete_rows
from lakeops.catalog.guards import IN_CHUNK, find_repository, lock_repository
from lakeops.catalog.records import NOTHING, Pending
from lakeops.catalog.repositories import Repositories
from lakeops.catalog.rows import (
    AnyRow,
    branch_record,
    commit_values,
    mirror_record,
    mirror_ref_record,
    mirror_ref_values,
    mirror_values,
    wait_value,
)
from lakeops.catalog.tables import (
    BRANCH,
    COMMIT,
    MIRROR,
    MIRROR_ARRIVAL,
    MIRROR_REF,
    REPOSITORY,
    TAG,
)
from lakeops.model.clock import unix_seconds
from lakeops.model.errors import MirrorOvertaken, NotAMirror, RefNotFound
from lakeops.model.mirrors import Mirror, MirrorRef, MirrorState, Missing, RefKind, RefName, Remaining, Wait
from lakeops.model.records import Commit, Repository

_NO_WAIT: dict[str, Any] = {"missing_objects": 0, "missing_bytes": 0, "error": None, "wait": None}
"""What is known of a candidate before it was looked at."""


class Mirrors(Repositories):
    """Mirrors: read-only repositories that follow the refs of another one."""

    def create_mirror(self, repository: Repository, first: Commit, mirror: Mirror, *, token: str, actor: str) -> None:
        """Insert a read-only repository with the source's initial commit on its default branch, and the mirror.

        Raises ``AlreadyExists`` for the name and ``NamespaceTaken`` for the storage namespace.
        """

        def work(conn: Connection) -> bool:
            self._insert_repository(conn, repository, first, token=token, actor=actor, action="create-mirror")
            conn.execute(insert(MIRROR).values(mirror_values(mirror)))
            if mirror.follows(RefKind.BRANCH, repository.default_branch):
                ref = MirrorRef(RefKind.BRANCH, repository.default_branch, first.id, promoted=first.id)
                conn.execute(insert(MIRROR_REF).values(repository_id=repository.id, **mirror_ref_values(ref)))
            return True

        self.database.write(work, settle=lambda conn: self._is_ours(conn, repository.id, token))

    def mirror(self, repository_id: str) -> Mirror:
        """How the repository mirrors another one. Raises ``NotAMirror``, ``RepositoryNotFound``."""
        return self.database.read(lambda conn: mirror_record(mirror_row(conn, repository_id)))

    def mirrors(self) -> list[Mirror]:
        """All mirrors by name."""
        query = select(MIRROR).order_by(MIRROR.c.repository_id)
        return self.database.read(lambda conn: [mirror_record(row) for row in conn.execute(query)])

    def mirror_state(self, repository_id: str) -> MirrorState:
        """The mirror and its refs at one instant. Raises ``NotAMirror``, ``RepositoryNotFound``."""
        return self.database.read(lambda conn: _state(conn, repository_id))

    def copy_commits(
        self, repository_id: str, commits: Sequence[Commit], *, pruned: frozenset[str] = frozenset()
    ) -> int:
        """Insert commits of the source under their ids; known ones stay as they are. Returns how many were new.

        Parents must be known, come earlier among ``commits`` or be ``pruned`` at the source, so that history is whole
        at every moment; else
        ``RefNotFound``.
        """

        def work(conn: Connection) -> int:
            _, repository = lock_mirror(conn, repository_id)
            top = 0
            known = _known(conn, repository_id, {one for commit in commits for one in (commit.id, *commit.parents)})
            new: list[Commit] = []
            for commit in commits:
                if commit.id in known:
                    continue
                lacking = [parent for parent in commit.parents if parent not in known]
                if lacking and pruned.issuperset(lacking):
                    top = max(top, commit.generation - 1)
                elif lacking:
                    raise RefNotFound(f"repository {repository_id!r} lacks {lacking[0]}, a parent of {commit.id}")
                known.add(commit.id)
                new.append(commit)
            if new:
                conn.execute(insert(COMMIT), [commit_values(repository_id, commit) for commit in new])
            if top > (repository.pruned or 0):
                conn.execute(update(REPOSITORY).where(REPOSITORY.c.id == repository_id).values(pruned=top))
            return len(new)

        return self.database.write(work, settle=run_again)

    def observe_source(
        self, repository_id: str, heads: Mapping[RefName, str], *, since: int, actor: str
    ) -> MirrorState:
        """Record where the source's refs point now; their commits are copied already.

        A ref that waits for nothing gets what the source shows as its candidate, with a new ticket; a candidate that is
        waited for stays. Refs that the source has no longer are deleted here, but for the default branch. The mirror's
        sequence goes up. Of what the source has agreed to keep, only what is still needed is relied on from now on: the
        next report will ask for no more. Raises ``MirrorOvertaken`` when it was not ``since``: the heads were read
        before another pass went on, and may be older than what it saw.
        """

        def work(conn: Connection) -> MirrorState:
            mirror, repository = lock_mirror(conn, repository_id)
            check_alone(mirror, since)
            now = unix_seconds(self.database.dialect.now(conn))
            known = {ref.ref: ref for ref in _refs(conn, repository)}
            sequence = mirror.sequence + 1
            for ref in known.keys() - heads.keys():
                if ref != (RefKind.BRANCH, repository.default_branch):
                    self._drop_ref(conn, repository_id, known[ref], actor)
            for ref in sorted(heads):
                old, head = known.get(ref), heads[ref]
                values: dict[str, Any] = {}
                if old is None or old.source_head != head:
                    values["source_head"] = head
                promoted = None if old is None else old.promoted
                values |= _noticed(old, head, now)
                if head != promoted and (old is None or old.candidate is None):
                    sequence += 1
                    values |= {"candidate": head, "ticket": sequence, "wait": wait_value(Wait(now, now))}
                elif old is not None and old.wait is not None and old.source_head not in (head, old.candidate):
                    values["wait"] = wait_value(old.wait.passed(old.source_head))
                if old is None:
                    fresh = MirrorRef(ref.kind, ref.name, head)
                    conn.execute(
                        insert(MIRROR_REF).values(repository_id=repository_id, **mirror_ref_values(fresh) | values)
                    )
                elif values:
                    conn.execute(update(MIRROR_REF).where(*_here(repository_id, ref)).values(values))
            set_mirror(conn, repository_id, sequence=sequence, last_sync=now)
            state = _state(conn, repository_id)
            kept = sorted(state.needs.intersection(mirror.kept))
            if kept != sorted(mirror.kept):
                set_mirror(conn, repository_id, kept=kept)
            return replace(state, mirror=replace(state.mirror, kept=tuple(kept)))

        return self.database.write(work, settle=run_again)

    def note_kept(self, repository_id: str, commits: frozenset[str], *, sequence: int) -> None:
        """Record what the source has agreed to keep: mirrors of this mirror may need it from now on.

        Raises ``MirrorOvertaken`` when another pass has gone on since the report of this sequence.
        """

        def work(conn: Connection) -> None:
            mirror, _ = lock_mirror(conn, repository_id)
            check_alone(mirror, sequence)
            set_mirror(conn, repository_id, kept=sorted(commits))

        self.database.write(work, settle=run_again)

    def note_rules(self, repository_id: str, rules: str | None, protections: Sequence[str]) -> None:
        """Record the source's retention rules and protected branches: they hold here from a fail-over on."""

        def work(conn: Connection) -> None:
            lock_mirror(conn, repository_id)
            set_mirror(conn, repository_id, rules=rules, protections=list(protections))

        self.database.write(work, settle=run_again)

    def start_over(self, repository_id: str, registration: str, *, sequence: int) -> Mirror:
        """Follow the source under a name of its own, as a mirror that it does not know yet.

        For a catalog that was restored from a backup: the source has a report of a later ``sequence`` than this catalog
        ever made. What is shown stays; waits, memories and what the source had agreed to are forgotten.
        """

        def work(conn: Connection) -> Mirror:
            mirror, _ = lock_mirror(conn, repository_id)
            fresh = max(mirror.sequence, sequence) + 1
            set_mirror(conn, repository_id, registration=registration, sequence=fresh, kept=[])
            conn.execute(delete(MIRROR_ARRIVAL).where(MIRROR_ARRIVAL.c.repository_id == repository_id))
            here = MIRROR_REF.c.repository_id == repository_id
            conn.execute(update(MIRROR_REF).where(here).values(candidate=None, **_NO_WAIT))
            names = (mirror.registration, registration)
            self._record(conn, repository_id, "start-over", "mirror", repository_id, *names)
            return mirror_record(mirror_row(conn, repository_id))

        return self.database.write(work, settle=run_again)

    def set_patience(self, repository_id: str, seconds: int) -> Mirror:
        """For how long nothing of a candidate may arrive before a newer one is looked at."""

        def work(conn: Connection) -> Mirror:
            mirror, _ = lock_mirror(conn, repository_id)
            set_mirror(conn, repository_id, patience=seconds)
            if mirror.patience != seconds:
                patience = (mirror.patience, seconds)
                self._record(conn, repository_id, "set-patience", "mirror", repository_id, *patience)
            return mirror_record(mirror_row(conn, repository_id))

        return self.database.write(work, settle=run_again)

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
            stalled: it gives way because nothing of it arrives, to one that is not complete either. Such candidates are
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
                given_way=wait.given_way + stalled,
            )
            if following.candidate is None:
                _forget_arrivals(conn, repository_id, ref)
            return following

        return self.database.write(work, settle=run_again)

    def arrivals(self, repository_id: str) -> Pending:
        """The range files that are known to have arrived and belong to no promoted commit; a whole one wins."""
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
            here = _here(repository_id, ref)
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

        One transaction; the next candidate, what the source showed last, takes its place. None, and nothing is changed,
        when ``candidate`` is no longer waited for under this ticket.
        """

        def work(conn: Connection) -> MirrorRef | None:
            mirror, _ = lock_mirror(conn, repository_id)
            found = _waiting(conn, repository_id, ref, ticket)
            if found is None or found.candidate != candidate:
                return None
            old = self._show(conn, repository_id, ref, candidate, token)
            self._record_move(conn, repository_id, ref.name, old, candidate, "promote", actor, kind=ref.kind)
            _forget_arrivals(conn, repository_id, ref)
            return self._next_candidate(conn, repository_id, mirror, found, promoted=candidate)

        def settle(conn: Connection) -> MirrorRef | None:
            row = conn.execute(select(MIRROR_REF).where(*_here(repository_id, ref))).one_or_none()
            return mirror_ref_record(row) if row is not None and row.promoted == candidate else None

        return self.database.write(work, settle=settle)

    def note_sync(self, repository_id: str, error: str | None) -> None:
        """Record how a pass ended."""

        def work(conn: Connection) -> None:
            lock_mirror(conn, repository_id)
            set_mirror(conn, repository_id, error=error)

        self.database.write(work, settle=run_again)

    def note_seen(self, repository_id: str) -> None:
        """Record that the source was seen just now, and shows what it showed before."""

        def work(conn: Connection) -> None:
            lock_mirror(conn, repository_id)
            set_mirror(conn, repository_id, last_sync=unix_seconds(self.database.dialect.now(conn)))

        self.database.write(work, settle=run_again)

    def note_refused(self, repository_id: str, refusals: int, reasons: Sequence[str]) -> None:
        """Record how many records of the source the last pass refused, and why some of them."""

        def work(conn: Connection) -> None:
            lock_mirror(conn, repository_id)
            set_mirror(conn, repository_id, refusals=refusals, refused=list(reasons))

        self.database.write(work, settle=run_again)

    def _show(self, conn: Connection, repository_id: str, ref: RefName, commit_id: str, token: str) -> str | None:
        """Let a branch or tag point to a commit, as a new one if need be; returns where it pointed before."""
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
        mirror: Mirror,
        ref: MirrorRef,
        *,
        promoted: str | None,
        newer: str | None = None,
        given_way: int = 0,
    ) -> MirrorRef:
        """Let a ref wait for ``newer``, or for what the source showed last, if that is not what is promoted."""
        now = unix_seconds(self.database.dialect.now(conn))
        values: dict[str, Any] = {"promoted": promoted, "candidate": None, "noticed": ref.noticed, **_NO_WAIT}
        candidate = newer or ref.source_head
        if promoted == ref.source_head:
            values["noticed"] = None
        else:
            # Heads before the new candidate are not gone back to; none is after what the source showed last.
            heads = ref.wait.after(candidate) if ref.wait is not None and newer is not None else ()
            wait = Wait(now, now, given_way=given_way, heads=heads)
            values |= {"candidate": candidate, "ticket": mirror.sequence + 1, "wait": wait_value(wait)}
        if promoted != ref.promoted:
            values["checked"] = now
        set_mirror(conn, repository_id, sequence=mirror.sequence + 1)
        here = _here(repository_id, ref.ref)
        conn.execute(update(MIRROR_REF).where(*here).values(values))
        return mirror_ref_record(conn.execute(select(MIRROR_REF).where(*here)).one())

    def _drop_ref(self, conn: Connection, repository_id: str, ref: MirrorRef, actor: str) -> None:
        table = BRANCH if ref.kind is RefKind.BRANCH else TAG
        here = (table.c.repository_id == repository_id, table.c.name == ref.name)
        row = conn.execute(select(table).where(*here)).one_or_none()
        if row is not None:
            if ref.kind is RefKind.BRANCH:
                self._retire(conn, repository_id, branch_record(row).tokens)
            delete_rows(conn, table, *here)
            action = f"delete-{ref.kind}"
            self._record_move(conn, repository_id, ref.name, row.commit_id, None, action, actor, kind=ref.kind)
        _forget_arrivals(conn, repository_id, ref.ref)
        delete_rows(conn, MIRROR_REF, *_here(repository_id, ref.ref))


def lock_mirror(conn: Connection, repository_id: str, *, exclusive: bool = False) -> tuple[Mirror, AnyRow]:
    """The mirror and its repository's row, both locked. Raises ``NotAMirror``."""
    repository = lock_repository(conn, repository_id, exclusive=exclusive)
    query = select(MIRROR).where(MIRROR.c.repository_id == repository_id).with_for_update()
    mirror = mirror_record(_following(conn.execute(query), repository_id))
    mirror.check_following()
    return mirror, repository


def set_mirror(conn: Connection, repository_id: str, **values: Any) -> None:  # noqa: ANN401 - column values
    """Change columns of a mirror."""
    conn.execute(update(MIRROR).where(MIRROR.c.repository_id == repository_id).values(values))


def check_alone(mirror: Mirror, since: int) -> None:
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


def _state(conn: Connection, repository_id: str) -> MirrorState:
    mirror = mirror_record(mirror_row(conn, repository_id))
    refs = tuple(_refs(conn, find_repository(conn, repository_id)))
    return MirrorState(mirror, refs, tuple(find_registrations(conn, repository_id)))


def _refs(conn: Connection, repository: AnyRow) -> list[MirrorRef]:
    """The refs that a mirror follows: the default branch first, then branches, then tags, by name."""
    rows = conn.execute(select(MIRROR_REF).where(MIRROR_REF.c.repository_id == repository.id))
    default = (RefKind.BRANCH, repository.default_branch)
    return sorted(map(mirror_ref_record, rows), key=lambda ref: (ref.ref != default, ref.ref))


def _waiting(conn: Connection, repository_id: str, ref: RefName, ticket: int) -> MirrorRef | None:
    """The ref, if it waits for a candidate under this ticket."""
    row = conn.execute(select(MIRROR_REF).where(*_here(repository_id, ref))).one_or_none()
    return None if row is None or row.candidate is None or row.ticket != ticket else mirror_ref_record(row)


def _noticed(old: MirrorRef | None, head: str, now: int) -> dict[str, Any]:
    """Since when the source shows something else than what is promoted, where that changes."""
    behind = old is None or old.promoted != head
    since = None if old is None else old.noticed
    if behind == (since is not None):
        return {}
    return {"noticed": now if behind else None}


def _known(conn: Connection, repository_id: str, ids: Iterable[str]) -> set[str]:
    wanted = sorted(ids)
    found: set[str] = set()
    for start in range(0, len(wanted), IN_CHUNK):
        some = COMMIT.c.id.in_(wanted[start : start + IN_CHUNK])
        found.update(conn.execute(select(COMMIT.c.id).where(COMMIT.c.repository_id == repository_id, some)).scalars())
    return found


def _forget_arrivals(conn: Connection, repository_id: str, ref: RefName) -> None:
    conn.execute(delete(MIRROR_ARRIVAL).where(*_here(repository_id, ref, table=MIRROR_ARRIVAL)))


def _replace_arrivals(conn: Connection, repository_id: str, ref: RefName, arrived: Pending) -> None:
    names = sorted(arrived)
    for start in range(0, len(names), IN_CHUNK):
        some = names[start : start + IN_CHUNK]
        mine = _here(repository_id, ref, table=MIRROR_ARRIVAL)
        conn.execute(delete(MIRROR_ARRIVAL).where(*mine, MIRROR_ARRIVAL.c.file.in_(some)))
        rows = [
            {"repository_id": repository_id, "kind": ref.kind, "name": ref.name, "file": file, "pending": arrived[file]}
            for file in some
        ]
        conn.execute(insert(MIRROR_ARRIVAL), rows)


def _here(repository_id: str, ref: RefName, *, table: Any = MIRROR_REF) -> tuple[ColumnElement[bool], ...]:  # noqa: ANN401
    return (
        table.c.repository_id == repository_id,
        table.c.kind == str(ref.kind),
        table.c.name == ref.name,
    )
