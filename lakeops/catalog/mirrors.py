"""CatalogPart of mirrors, at the destination.

They are the only ones that change a read-only repository, and refuse one that follows no source. Passes over one
mirror may overlap, be killed and come back late. ``candidates`` has the transitions of what a mirror waits for.

* ``create_mirror`` needs a free name and namespace. Leaves a read-only repository at the source's initial commit.
* ``copy_commits`` needs every parent. Leaves history whole. Recovery: repeat it, known commits are passed over.
* ``observe_source`` needs that no other pass went on since the heads were read, so that none goes back by mistake.
  Leaves the source's heads recorded, a candidate for each ref that waited for nothing, and no refs that the source
  lacks. Recovery: repeat it, from reading the heads on.
* ``note_kept`` needs that no other pass went on since the report that the source agreed to. So what it leaves on record
  is never more than what the source keeps: a pass first gives up what it will not ask for, then asks, then notes.
  Recovery: the next pass.
* ``start_over`` leaves a mirror that its source does not know: its next report is the first one. Recovery: repeat it.
* ``note_refused`` leaves on record what the last pass did not believe. Recovery: the next pass.
* ``note_seen`` leaves on record when the source was seen. Recovery: none is needed.
* ``note_rules`` leaves on record what the source's rules and protections are. Recovery: repeat it.

Each locks the repository's row shared, then the mirror's row, so that two passes never interleave inside one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from lakeops.catalog.candidates import (
    NO_WAIT,
    Candidates,
    check_alone,
    forget_arrivals,
    lock_mirror,
    mirror_row,
    of_ref,
    set_mirror,
)
from lakeops.catalog.commits import find_registrations
from lakeops.catalog.database import run_again
from lakeops.catalog.guards import (
    IN_CHUNK,
    delete_rows,
    find_repository,
)
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
from lakeops.model.errors import RefNotFound
from lakeops.model.mirrors import MirrorRecord, MirrorRef, MirrorState, RefKind, RefName, Wait
from lakeops.model.records import Commit, RepositoryRecord


class Mirrors(Candidates):
    """Mirrors: read-only repositories that follow the refs of another one."""

    def create_mirror(
        self, repository: RepositoryRecord, first: Commit, mirror: MirrorRecord, *, token: str, actor: str
    ) -> None:
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

    def get(self, repository_id: str) -> MirrorRecord:
        """How the repository mirrors another one. Raises ``NotAMirror``, ``RepositoryNotFound``."""
        return self.database.read(lambda conn: mirror_record(mirror_row(conn, repository_id)))

    def all(self) -> list[MirrorRecord]:
        """All mirrors by name."""
        query = select(MIRROR).order_by(MIRROR.c.repository_id)
        return self.database.read(lambda conn: [mirror_record(row) for row in conn.execute(query)])

    def mirror_state(self, repository_id: str) -> MirrorState:
        """The mirror and its refs at one instant. Raises ``NotAMirror``, ``RepositoryNotFound``."""
        return self.database.read(lambda conn: _state(conn, repository_id))

    def copy_commits(
        self, repository_id: str, commits: Sequence[Commit], *, pruned: frozenset[str] = frozenset()
    ) -> int:
        """Insert commits of the source under their ids. Known ones stay as they are. Returns how many were new.

        Parents must be known, come earlier among ``commits`` or be ``pruned`` at the source, so that history is whole
        at every moment; else
        ``RefNotFound``.
        """

        def work(conn: Connection) -> int:
            _, repository = lock_mirror(conn, repository_id)
            top = 0
            known = _known_commits(
                conn, repository_id, {one for commit in commits for one in (commit.id, *commit.parents)}
            )
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
        """Record where the source's refs point now. Their commits are copied already.

        A ref that waits for nothing gets what the source shows as its candidate, with a new ticket. A candidate that is
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
                values |= _behind_since(old, head, now)
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
                    conn.execute(update(MIRROR_REF).where(*of_ref(repository_id, ref)).values(values))
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

    def note_metadata(self, repository_id: str, metadata: Mapping[str, str]) -> None:
        """Take over the metadata of the source's repository."""

        def work(conn: Connection) -> None:
            # Exclusive from the beginning: two passes that share the lock could not both change the row.
            _, repository = lock_mirror(conn, repository_id, exclusive=True)
            if repository.metadata != metadata:
                conn.execute(update(REPOSITORY).where(REPOSITORY.c.id == repository_id).values(metadata=dict(metadata)))

        self.database.write(work, settle=run_again)

    def start_over(self, repository_id: str, registration: str, *, sequence: int) -> MirrorRecord:
        """Follow the source under a name of its own, as a mirror that it does not know yet.

        For a catalog that was restored from a backup: the source has a report of a later ``sequence`` than this catalog
        ever made. What is shown stays. Waits, memories and what the source had agreed to are forgotten.
        """

        def work(conn: Connection) -> MirrorRecord:
            mirror, _ = lock_mirror(conn, repository_id)
            fresh = max(mirror.sequence, sequence) + 1
            set_mirror(conn, repository_id, registration=registration, sequence=fresh, kept=[])
            conn.execute(delete(MIRROR_ARRIVAL).where(MIRROR_ARRIVAL.c.repository_id == repository_id))
            here = MIRROR_REF.c.repository_id == repository_id
            conn.execute(update(MIRROR_REF).where(here).values(candidate=None, **NO_WAIT))
            names = (mirror.registration, registration)
            self._record(conn, repository_id, "start-over", "mirror", repository_id, *names)
            return mirror_record(mirror_row(conn, repository_id))

        return self.database.write(work, settle=run_again)

    def set_stall_timeout(self, repository_id: str, seconds: int) -> MirrorRecord:
        """For how long nothing of a candidate may arrive before a newer one is looked at."""

        def work(conn: Connection) -> MirrorRecord:
            mirror, _ = lock_mirror(conn, repository_id)
            set_mirror(conn, repository_id, stall_timeout=seconds)
            if mirror.stall_timeout != seconds:
                stall_timeout = (mirror.stall_timeout, seconds)
                self._record(conn, repository_id, "set-stall-timeout", "mirror", repository_id, *stall_timeout)
            return mirror_record(mirror_row(conn, repository_id))

        return self.database.write(work, settle=run_again)

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
        forget_arrivals(conn, repository_id, ref.ref)
        delete_rows(conn, MIRROR_REF, *of_ref(repository_id, ref.ref))


def _state(conn: Connection, repository_id: str) -> MirrorState:
    mirror = mirror_record(mirror_row(conn, repository_id))
    refs = tuple(_refs(conn, find_repository(conn, repository_id)))
    return MirrorState(mirror, refs, tuple(find_registrations(conn, repository_id)))


def _refs(conn: Connection, repository: AnyRow) -> list[MirrorRef]:
    """The refs that a mirror follows: the default branch first, then branches, then tags, by name."""
    rows = conn.execute(select(MIRROR_REF).where(MIRROR_REF.c.repository_id == repository.id))
    default = (RefKind.BRANCH, repository.default_branch)
    return sorted(map(mirror_ref_record, rows), key=lambda ref: (ref.ref != default, ref.ref))


def _behind_since(old: MirrorRef | None, head: str, now: int) -> dict[str, Any]:
    """Since when the source shows something else than what is promoted, where that changes."""
    behind = old is None or old.promoted != head
    since = None if old is None else old.noticed
    if behind == (since is not None):
        return {}
    return {"noticed": now if behind else None}


def _known_commits(conn: Connection, repository_id: str, ids: Iterable[str]) -> set[str]:
    wanted = sorted(ids)
    found: set[str] = set()
    for start in range(0, len(wanted), IN_CHUNK):
        some = COMMIT.c.id.in_(wanted[start : start + IN_CHUNK])
        found.update(conn.execute(select(COMMIT.c.id).where(COMMIT.c.repository_id == repository_id, some)).scalars())
    return found
