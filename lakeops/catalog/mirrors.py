"""Mirrors in this catalog, and the commits that mirrors elsewhere need of its repositories.

These transitions are the only ones that change a read-only repository. Passes over one mirror may overlap, be killed
and come back late. Each transition locks the repository's row shared, then the mirror's row, so two passes never
interleave inside one, and each may be repeated, from reading the source's heads on.

A *candidate* is the commit that a ref of a mirror waits for. It carries a ticket. What a pass decides about one wait
changes nothing once another wait has begun, but for the memory of what arrived, which is true whichever pass saw it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, delete, insert, or_, select, union, update

from lakeops.catalog.database import AnyRow, read_transaction, write_transaction
from lakeops.catalog.guards import CatalogPart, check_live, chunks, find_repository, lock_repository, lock_writable
from lakeops.catalog.records import branch_record, commit_values, decoding, number, optional_number, text_list
from lakeops.catalog.repositories import insert_repository, is_ours
from lakeops.catalog.tables import (
    BRANCH,
    COMMIT,
    MIRROR,
    MIRROR_ARRIVAL,
    MIRROR_NEED,
    MIRROR_REF,
    PROTECTION,
    REPOSITORY,
    RETENTION,
    TAG,
)
from lakeops.model.clock import unix_seconds
from lakeops.model.errors import CommitExpired, MirrorOvertaken, NotAMirror, RefNotFound
from lakeops.model.marks import UNPROVED
from lakeops.model.mirrors import (
    Inspection,
    MirrorRecord,
    MirrorRef,
    MirrorState,
    Pending,
    RefName,
    Registration,
    SourceReference,
    Wait,
)
from lakeops.model.protection import Protection
from lakeops.model.records import Commit, RefKind, RepositoryRecord

_NO_WAIT: dict[str, Any] = {"missing_objects": 0, "missing_bytes": 0, "error": None, "wait": None}
"""The columns of a candidate that no pass has looked at yet."""


@decoding(MIRROR, "repository_id")
def mirror_record(row: AnyRow) -> MirrorRecord:
    """The mirror of a row of its table."""
    values: dict[str, Any] = {field.name: getattr(row, field.name) for field in fields(MirrorRecord)}
    values |= {name: text_list(values[name]) for name in ("branches", "tags", "kept", "protections", "refused")}
    for name in ("created", "sequence", "stall_timeout", "refusals"):
        number(values[name])
    for name in ("last_sync", "promoted_writable"):
        optional_number(values[name])
    return MirrorRecord(**{**values, "source": SourceReference.from_json(row.source)})


def mirror_values(mirror: MirrorRecord) -> dict[str, Any]:
    """A mirror as column values."""
    values = {field.name: getattr(mirror, field.name) for field in fields(MirrorRecord)}
    lists = {name: list(value) for name, value in values.items() if isinstance(value, tuple)}
    return {**values, **lists, "source": mirror.source.to_json()}


@decoding(MIRROR_REF, "repository_id", "kind", "name")
def _ref_record(row: AnyRow) -> MirrorRef:
    values = {field.name: getattr(row, field.name) for field in fields(MirrorRef)}
    wait = None if row.wait is None else Wait.from_json(row.wait)
    return MirrorRef(**{**values, "kind": RefKind(row.kind), "wait": wait})


def _ref_values(ref: MirrorRef) -> dict[str, Any]:
    values = {field.name: getattr(ref, field.name) for field in fields(MirrorRef)}
    return {**values, "kind": str(ref.kind), "wait": None if ref.wait is None else ref.wait.to_json()}


@decoding(MIRROR_NEED, "repository_id", "mirror")
def _registration_record(row: AnyRow) -> Registration:
    sequence = 0 if row.sequence is None else number(row.sequence)
    return Registration(row.mirror, frozenset(text_list(row.commits)), number(row.at), sequence)


class Mirrors(CatalogPart):
    """Mirrors: read-only repositories that follow the refs of another one."""

    def create_mirror(
        self, repository: RepositoryRecord, first: Commit, mirror: MirrorRecord, *, token: str, actor: str
    ) -> None:
        """Insert a read-only repository with the source's initial commit on its default branch, and the mirror.

        Raises ``AlreadyExists`` for the name and ``NamespaceTaken`` for the storage namespace.
        """

        def work(conn: Connection) -> bool:
            insert_repository(self, conn, repository, first, token=token, actor=actor, action="create-mirror")
            conn.execute(insert(MIRROR).values(mirror_values(mirror)))
            if mirror.follows(RefKind.BRANCH, repository.default_branch):
                ref = MirrorRef(RefKind.BRANCH, repository.default_branch, first.id, promoted=first.id)
                conn.execute(insert(MIRROR_REF).values(repository_id=repository.id, **_ref_values(ref)))
            return True

        self.database.write(work, resolve=lambda conn: is_ours(conn, repository.id, token))

    @read_transaction
    def get(self, conn: Connection, repository_id: str) -> MirrorRecord:
        """How the repository mirrors another one. Raises ``NotAMirror``, ``RepositoryNotFound``."""
        return _find_mirror(conn, repository_id)

    @read_transaction
    def find(self, conn: Connection, repository_id: str) -> MirrorRecord | None:
        """How the repository mirrors another one. None when it is no mirror. Raises ``RepositoryNotFound``."""
        with suppress(NotAMirror):
            return _find_mirror(conn, repository_id)
        return None

    @read_transaction
    def all(self, conn: Connection) -> list[MirrorRecord]:
        """The mirrors of the catalog by name."""
        query = select(MIRROR).order_by(MIRROR.c.repository_id)
        return [mirror_record(row) for row in conn.execute(query)]

    @read_transaction
    def mirror_state(self, conn: Connection, repository_id: str) -> MirrorState:
        """The mirror and its refs at one instant. Raises ``NotAMirror``, ``RepositoryNotFound``."""
        return _state(conn, repository_id)

    @write_transaction
    def copy_commits(
        self, conn: Connection, repository_id: str, commits: Sequence[Commit], *, pruned: frozenset[str] = frozenset()
    ) -> int:
        """Insert commits of the source under their ids. Known ones stay as they are. Returns how many were new.

        Parents must be known, come earlier among ``commits`` or be ``pruned`` at the source, so that history is whole
        at every moment; else ``RefNotFound``.
        """
        _, repository = _lock_mirror(conn, repository_id)
        known: set[str] = set()
        for some in chunks(one for commit in commits for one in (commit.id, *commit.parents)):
            query = select(COMMIT.c.id).where(COMMIT.c.repository_id == repository_id, COMMIT.c.id.in_(some))
            known.update(conn.execute(query).scalars())
        top = repository.pruned or 0
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

    @write_transaction
    def observe_source(
        self, conn: Connection, repository_id: str, heads: Mapping[RefName, str], *, since: int, actor: str
    ) -> MirrorState:
        """Record where the source's refs point now. Their commits are copied already.

        A ref that waits for nothing gets what the source shows as its candidate, with a new ticket. A candidate that is
        waited for stays. Refs that the source has no longer are deleted here, but for the default branch. Of what the
        source has agreed to keep, only what is still needed is relied on from now on. The mirror's sequence goes up.
        Raises ``MirrorOvertaken`` when it was not ``since``: another pass went on after the heads were read.
        """
        mirror, repository = _lock_mirror(conn, repository_id)
        _check_alone(mirror, since)
        now = unix_seconds(self.database.dialect.now(conn))
        known = {ref.ref: ref for ref in _refs(conn, repository)}
        sequence = mirror.sequence + 1
        for ref in known.keys() - heads.keys():
            if ref != (RefKind.BRANCH, repository.default_branch):
                self._drop_ref(conn, repository_id, known[ref], actor)
        for ref in sorted(heads):
            old, head = known.get(ref) or MirrorRef(ref.kind, ref.name, ""), heads[ref]
            values: dict[str, Any] = {}
            if old.source_head != head:
                values["source_head"] = head
            behind = old.promoted != head  # since when the source shows something else than what is promoted
            if behind == (old.noticed is None):
                values["noticed"] = now if behind else None
            if behind and old.candidate is None:
                sequence += 1
                values |= {"candidate": head, "ticket": sequence, "wait": Wait(now, now).to_json()}
            elif old.wait is not None and old.source_head not in (head, old.candidate):
                values["wait"] = old.wait.passed(old.source_head).to_json()
            if ref not in known:
                conn.execute(insert(MIRROR_REF).values(repository_id=repository_id, **_ref_values(old) | values))
            elif values:
                conn.execute(update(MIRROR_REF).where(*_of_ref(repository_id, ref)).values(values))
        _set_mirror(conn, repository_id, sequence=sequence, last_sync=now)
        state = _state(conn, repository_id)
        kept = sorted(state.needs.intersection(mirror.kept))
        if kept != sorted(mirror.kept):
            _set_mirror(conn, repository_id, kept=kept)
        return replace(state, mirror=replace(state.mirror, kept=tuple(kept)))

    @write_transaction
    def note(self, conn: Connection, repository_id: str, /, *, since: int | None = None, **found: object) -> None:
        """Record what a pass found, by columns of the mirror: how it ended, what it refused, the source's rules.

        The source's ``rules`` and ``protections`` hold here from a fail-over on. Mirrors of this mirror may need what
        the source has agreed to keep (``kept``): a pass first gives up what it will not ask for, then asks, then notes,
        so this is never more than what the source keeps. Raises ``MirrorOvertaken`` when another pass has gone on since
        this sequence.
        """
        mirror, _ = _lock_mirror(conn, repository_id)
        if since is not None:
            _check_alone(mirror, since)
        _set_mirror(conn, repository_id, **found)

    @write_transaction
    def note_metadata(self, conn: Connection, repository_id: str, metadata: Mapping[str, str]) -> None:
        """Take over the metadata of the source's repository."""
        # Exclusive from the beginning: two passes that share the lock could not both change the row.
        _, repository = _lock_mirror(conn, repository_id, exclusive=True)
        if repository.metadata != metadata:
            conn.execute(update(REPOSITORY).where(REPOSITORY.c.id == repository_id).values(metadata=dict(metadata)))

    @write_transaction
    def start_over(self, conn: Connection, repository_id: str, registration: str, *, sequence: int) -> MirrorRecord:
        """Register under a new name, so that the source takes this for a mirror that it does not know yet.

        For a catalog that was restored from a backup: the source has a report of a later ``sequence`` than this catalog
        ever made. What is shown stays. Waits, memories and what the source had agreed to are forgotten.
        """
        mirror, _ = _lock_mirror(conn, repository_id)
        fresh = max(mirror.sequence, sequence) + 1
        _set_mirror(conn, repository_id, registration=registration, sequence=fresh, kept=[])
        conn.execute(delete(MIRROR_ARRIVAL).where(MIRROR_ARRIVAL.c.repository_id == repository_id))
        here = MIRROR_REF.c.repository_id == repository_id
        conn.execute(update(MIRROR_REF).where(here).values(candidate=None, **_NO_WAIT))
        self.record(conn, repository_id, "start-over", "mirror", repository_id, mirror.registration, registration)
        return _find_mirror(conn, repository_id)

    @write_transaction
    def set_stall_timeout(self, conn: Connection, repository_id: str, seconds: int) -> MirrorRecord:
        """For how long nothing of a candidate may arrive before a newer one is looked at."""
        mirror, _ = _lock_mirror(conn, repository_id)
        _set_mirror(conn, repository_id, stall_timeout=seconds)
        if (before := mirror.stall_timeout) != seconds:
            self.record(conn, repository_id, "set-stall-timeout", "mirror", repository_id, before, seconds)
        return _find_mirror(conn, repository_id)

    @write_transaction
    def give_up_candidate(
        self,
        conn: Connection,
        repository_id: str,
        ref: RefName,
        ticket: int,
        *,
        to: str | None = None,
        stalled: bool = False,
    ) -> MirrorRef | None:
        """Replace the candidate of this ticket by the source's last head. None when the ref has another candidate.

        What arrived for the old candidate stays remembered. ``to`` is a head that the source showed since the wait
        began, in place of the last one. ``stalled``: nothing of the candidate arrives, and the head that replaces it is
        not complete either. Such candidates are counted until the next promotion.
        """
        mirror, _ = _lock_mirror(conn, repository_id)
        found = _waiting(conn, repository_id, ref, ticket)
        if found is None:
            return None
        wait = found.wait or Wait(0, 0)
        newer = to if to in wait.heads else None
        fallbacks = wait.fallbacks + stalled
        following = self._next_candidate(conn, mirror, found, found.promoted, newer=newer, fallbacks=fallbacks)
        if following.candidate is None:
            _forget_arrivals(conn, repository_id, ref)
        return following

    @read_transaction
    def arrivals(self, conn: Connection, repository_id: str) -> Pending:
        """The range files that are known to have arrived and belong to no promoted commit. A whole one wins."""
        query = select(MIRROR_ARRIVAL.c.file, MIRROR_ARRIVAL.c.pending).filter_by(repository_id=repository_id)
        found: dict[str, str | None] = {}
        for row in conn.execute(query):
            if row.pending is None or row.file not in found:
                found[row.file] = row.pending
        return found

    @write_transaction
    def record_arrivals(
        self, conn: Connection, repository_id: str, ref: RefName, ticket: int, found: Inspection
    ) -> MirrorRef | None:
        """Remember what has arrived for a ref, and what the candidate of this ticket lacked at this look.

        Returns the ref, if it waits under this ticket. Otherwise only what arrived is remembered.
        """
        _lock_mirror(conn, repository_id)
        here = _of_ref(repository_id, ref)
        if conn.execute(select(MIRROR_REF.c.candidate).where(*here)).scalar() is None:
            # The source deleted the ref meanwhile, or another pass promoted it: nobody would ever clear these rows.
            return None
        same = {"repository_id": repository_id, "kind": ref.kind, "name": ref.name}
        for some in chunks(found.arrived):
            mine = (*_of_ref(repository_id, ref, table=MIRROR_ARRIVAL), MIRROR_ARRIVAL.c.file.in_(some))
            conn.execute(delete(MIRROR_ARRIVAL).where(*mine))
            rows = [{**same, "file": file, "pending": found.arrived[file]} for file in some]
            conn.execute(insert(MIRROR_ARRIVAL), rows)
        waiting = _waiting(conn, repository_id, ref, ticket)
        if waiting is None:
            return None
        now = unix_seconds(self.database.dialect.now(conn))
        values = {
            "missing_objects": found.missing_objects,
            "missing_bytes": found.missing_bytes,
            "checked": now,
            "error": found.error and found.error.message,
            "wait": (waiting.wait or Wait(now, now)).seen(now, found).to_json(),
        }
        conn.execute(update(MIRROR_REF).where(*here).values(values))
        return _waiting(conn, repository_id, ref, ticket)

    def promote(
        self, repository_id: str, ref: RefName, ticket: int, candidate: str, *, token: str, actor: str
    ) -> MirrorRef | None:
        """Show a candidate that is complete: the branch's head moves to it, or the tag is made.

        What the source showed last is the next candidate. None, and nothing is changed, when ``candidate`` is no longer
        waited for under this ticket.
        """
        table = BRANCH if ref.kind is RefKind.BRANCH else TAG
        here = (table.c.repository_id == repository_id, table.c.name == ref.name)

        def work(conn: Connection) -> MirrorRef | None:
            mirror, _ = _lock_mirror(conn, repository_id)
            found = _waiting(conn, repository_id, ref, ticket)
            if found is None or found.candidate != candidate:
                return None
            # It may have been expired at the source when it was copied, and live there again since.
            lives = update(COMMIT).filter_by(repository_id=repository_id, id=candidate, expired=True)
            conn.execute(lives.values(expired=False, expired_by=None))
            old: str | None = conn.execute(select(table.c.commit_id).where(*here)).scalar_one_or_none()
            if old is not None:
                conn.execute(update(table).where(*here).values(commit_id=candidate))
            elif ref.kind is RefKind.BRANCH:
                self.insert_branch(conn, repository_id, ref.name, candidate, token)
            else:
                conn.execute(insert(TAG).values(repository_id=repository_id, name=ref.name, commit_id=candidate))
            self.record_move(conn, repository_id, ref.name, old, candidate, "promote", actor, kind=ref.kind)
            _forget_arrivals(conn, repository_id, ref)
            return self._next_candidate(conn, mirror, found, candidate)

        def resolve(conn: Connection) -> MirrorRef | None:
            row = conn.execute(select(MIRROR_REF).where(*_of_ref(repository_id, ref))).one_or_none()
            return _ref_record(row) if row is not None and row.promoted == candidate else None

        return self.database.write(work, resolve=resolve)

    def promote_writable(self, repository_id: str, sequence: int, *, actor: str) -> MirrorRecord:
        """Turn the mirror into a writable repository at what it shows now. It follows its source no longer.

        The source's retention rules and protected branches, as they were last seen, hold from now on. Every commit
        that refs do not point to, and whose metarange is not one of theirs, is expired as unproved, so nothing can rest
        on what did not arrive. Raises ``MirrorOvertaken`` when a pass has changed anything since ``sequence``.
        """
        here = {"repository_id": repository_id}

        def work(conn: Connection) -> MirrorRecord:
            mirror, repository = _lock_mirror(conn, repository_id, exclusive=True)
            _check_alone(mirror, sequence)
            _expire_unproved(conn, mirror)
            if mirror.rules is not None:
                conn.execute(insert(RETENTION).values(**here, rules=mirror.rules))
            for one in map(Protection.parse, mirror.protections):
                values = {"kind": one.kind, "pattern": one.pattern, "check_name": one.check, "prefix": one.prefix}
                conn.execute(insert(PROTECTION).values(**here, **values))
            conn.execute(update(REPOSITORY).where(REPOSITORY.c.id == repository_id).values(read_only=False))
            conn.execute(delete(MIRROR_ARRIVAL).where(MIRROR_ARRIVAL.c.repository_id == repository_id))
            _set_mirror(conn, repository_id, promoted_writable=unix_seconds(self.database.dialect.now(conn)))
            branch = repository.default_branch
            head = conn.execute(select(BRANCH.c.commit_id).filter_by(**here, name=branch)).scalar_one_or_none()
            self.record_move(conn, repository_id, branch, head, head, "promote-writable", actor)
            return _find_mirror(conn, repository_id)

        def resolve(conn: Connection) -> MirrorRecord | None:
            found = _find_mirror(conn, repository_id)
            return found if found.promoted_writable is not None else None

        return self.database.write(work, resolve=resolve)

    @read_transaction
    def unproved(self, conn: Connection, repository_id: str) -> frozenset[str]:
        """The commits that a fail-over expired and nobody has looked at since. Raises ``RepositoryNotFound``."""
        query = select(COMMIT.c.id).where(COMMIT.c.repository_id == repository_id, COMMIT.c.expired_by == UNPROVED)
        find_repository(conn, repository_id)
        return frozenset(conn.execute(query).scalars())

    @write_transaction
    def revive_proved(self, conn: Connection, repository_id: str, ids: Collection[str]) -> int:
        """Revive unproved commits that are complete. Returns how many. Commits that are not unproved stay as they are.

        Raises ``PreconditionFailed`` (``read_only_repository``).
        """
        lock_writable(conn, repository_id, action="verify-history")
        revived = 0
        for some in chunks(ids):
            mine = (COMMIT.c.repository_id == repository_id, COMMIT.c.expired_by == UNPROVED, COMMIT.c.id.in_(some))
            revived += conn.execute(update(COMMIT).where(*mine).values(expired=False, expired_by=None)).rowcount
        if revived:
            self.record(conn, repository_id, "verify-history", "commits", "", None, f"{revived} live again")
        return revived

    @write_transaction
    def report_mirror(
        self, conn: Connection, repository_id: str, mirror: str, commits: frozenset[str], *, sequence: int = 0
    ) -> None:
        """Replace what a mirror of this repository needs: the commits that it shows and those that it waits for.

        Until the next report none of them expires. Raises ``CommitExpired`` for one that did already, ``RefNotFound``,
        and ``MirrorOvertaken`` after a report with a higher ``sequence``, on which a later pass relies.
        """
        mine = (MIRROR_NEED.c.repository_id == repository_id, MIRROR_NEED.c.mirror == mirror)
        lock_repository(conn, repository_id)
        newest = conn.execute(select(MIRROR_NEED.c.sequence).where(*mine).with_for_update()).scalar()
        if newest is not None and newest > sequence:
            raise MirrorOvertaken(f"a later pass of mirror {mirror!r} has reported to {repository_id!r} already")
        check_live(conn, repository_id, commits)
        for commit_id in sorted(_find_unkept(conn, repository_id, commits, lock=True)):
            raise CommitExpired(
                f"commit {commit_id} is not kept for repository {repository_id!r} by the source that it mirrors "
                "itself; try again after its next pass"
            )
        if not conn.execute(delete(MIRROR_NEED).where(*mine)).rowcount:
            self.record(conn, repository_id, "register-mirror", "mirror", mirror)
        now = unix_seconds(self.database.dialect.now(conn))
        values = {"mirror": mirror, "commits": sorted(commits), "at": now, "sequence": sequence}
        conn.execute(insert(MIRROR_NEED).values(repository_id=repository_id, **values))

    @read_transaction
    def registrations(self, conn: Connection, repository_id: str) -> list[Registration]:
        """The mirrors that have reported to this repository, by name. Raises ``RepositoryNotFound``."""
        find_repository(conn, repository_id)
        return _find_registrations(conn, repository_id)

    @read_transaction
    def unkept(self, conn: Connection, repository_id: str, commits: Collection[str]) -> frozenset[str]:
        """The commits that mirrors cannot rely on: at a mirror, those that its own source has not agreed to keep.

        None at a repository that follows no source, or whose mirror may only read its source.
        """
        return _find_unkept(conn, repository_id, commits)

    @write_transaction
    def drop_mirror(self, conn: Connection, repository_id: str, mirror: str) -> None:
        """Forget a mirror. Nothing is kept for it any more. One that is not known is forgotten already."""
        lock_repository(conn, repository_id)
        if conn.execute(delete(MIRROR_NEED).filter_by(repository_id=repository_id, mirror=mirror)).rowcount:
            self.record(conn, repository_id, "drop-mirror", "mirror", mirror)

    def _next_candidate(
        self,
        conn: Connection,
        mirror: MirrorRecord,
        ref: MirrorRef,
        promoted: str | None,
        *,
        newer: str | None = None,
        fallbacks: int = 0,
    ) -> MirrorRef:
        """Set a ref's candidate to ``newer``, or to the source's last head, unless that head is promoted."""
        now = unix_seconds(self.database.dialect.now(conn))
        values: dict[str, Any] = {"promoted": promoted, "candidate": None, "noticed": ref.noticed, **_NO_WAIT}
        candidate = newer or ref.source_head
        if promoted == ref.source_head:
            values["noticed"] = None
        else:
            # A ref never goes back to heads before its new candidate. No head comes after the source's last one.
            heads = ref.wait.after(candidate) if ref.wait is not None and newer is not None else ()
            wait = Wait(now, now, fallbacks=fallbacks, heads=heads)
            values |= {"candidate": candidate, "ticket": mirror.sequence + 1, "wait": wait.to_json()}
        if promoted != ref.promoted:
            values["checked"] = now
        _set_mirror(conn, mirror.repository_id, sequence=mirror.sequence + 1)
        here = _of_ref(mirror.repository_id, ref.ref)
        conn.execute(update(MIRROR_REF).where(*here).values(values))
        return _ref_record(conn.execute(select(MIRROR_REF).where(*here)).one())

    def _drop_ref(self, conn: Connection, repository_id: str, ref: MirrorRef, actor: str) -> None:
        table = BRANCH if ref.kind is RefKind.BRANCH else TAG
        here = (table.c.repository_id == repository_id, table.c.name == ref.name)
        row = conn.execute(select(table).where(*here)).one_or_none()
        if row is not None:
            if ref.kind is RefKind.BRANCH:
                self.retire(conn, repository_id, branch_record(row).tokens)
            conn.execute(delete(table).where(*here))
            action = f"delete-{ref.kind}"
            self.record_move(conn, repository_id, ref.name, row.commit_id, None, action, actor, kind=ref.kind)
        _forget_arrivals(conn, repository_id, ref.ref)
        conn.execute(delete(MIRROR_REF).where(*_of_ref(repository_id, ref.ref)))


def _lock_mirror(conn: Connection, repository_id: str, *, exclusive: bool = False) -> tuple[MirrorRecord, AnyRow]:
    """The mirror and its repository's row, both locked, unless it follows no source. Raises ``NotAMirror``."""
    repository = lock_repository(conn, repository_id, exclusive=exclusive)
    mirror = _mirror_of(conn, repository_id, lock=True)
    mirror.check_following()
    return mirror, repository


def _find_mirror(conn: Connection, repository_id: str) -> MirrorRecord:
    """The mirror. Raises ``NotAMirror``, ``RepositoryNotFound``."""
    find_repository(conn, repository_id)
    return _mirror_of(conn, repository_id)


def _mirror_of(conn: Connection, repository_id: str, *, lock: bool = False) -> MirrorRecord:
    query = select(MIRROR).where(MIRROR.c.repository_id == repository_id)
    row = conn.execute(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        raise NotAMirror(f"repository {repository_id!r} is no mirror; `lakeops mirror create` makes one")
    return mirror_record(row)


def _set_mirror(conn: Connection, repository_id: str, **values: object) -> None:
    conn.execute(update(MIRROR).where(MIRROR.c.repository_id == repository_id).values(values))


def _check_alone(mirror: MirrorRecord, since: int) -> None:
    if mirror.sequence != since:
        raise MirrorOvertaken(f"another pass over mirror {mirror.repository_id!r} went on meanwhile; try again")


def _state(conn: Connection, repository_id: str) -> MirrorState:
    repository, mirror = find_repository(conn, repository_id), _mirror_of(conn, repository_id)
    registrations = tuple(_find_registrations(conn, repository_id))
    return MirrorState(mirror, tuple(_refs(conn, repository)), registrations, repository.metadata)


def _refs(conn: Connection, repository: AnyRow) -> list[MirrorRef]:
    """The refs that a mirror follows: the default branch first, then branches, then tags, by name."""
    rows = conn.execute(select(MIRROR_REF).where(MIRROR_REF.c.repository_id == repository.id))
    default = (RefKind.BRANCH, repository.default_branch)
    return sorted(map(_ref_record, rows), key=lambda ref: (ref.ref != default, ref.ref))


def _of_ref(repository_id: str, ref: RefName, *, table: Table = MIRROR_REF) -> tuple[ColumnElement[bool], ...]:
    return (table.c.repository_id == repository_id, table.c.kind == str(ref.kind), table.c.name == ref.name)


def _waiting(conn: Connection, repository_id: str, ref: RefName, ticket: int) -> MirrorRef | None:
    """The ref, if it waits for a candidate under this ticket."""
    row = conn.execute(select(MIRROR_REF).where(*_of_ref(repository_id, ref))).one_or_none()
    return None if row is None or row.candidate is None or row.ticket != ticket else _ref_record(row)


def _forget_arrivals(conn: Connection, repository_id: str, ref: RefName) -> None:
    conn.execute(delete(MIRROR_ARRIVAL).where(*_of_ref(repository_id, ref, table=MIRROR_ARRIVAL)))


def _expire_unproved(conn: Connection, mirror: MirrorRecord) -> None:
    """Expire all commits as unproved but those that are whole, which live again if the source had expired them.

    Whole are those that refs point to, others with a metarange of these, empty ones, and what mirrors of this mirror
    need: it was shown here, and the source has kept it since.
    """
    name = mirror.repository_id
    here = COMMIT.c.repository_id == name
    refs = union(*(select(table.c.commit_id).where(table.c.repository_id == name) for table in (BRANCH, TAG)))
    file, shown = COMMIT.c.meta_range_file, COMMIT.c.id.in_(refs)
    whole = or_(shown, file == "", file.in_(select(file).where(here, shown)))
    lives = update(COMMIT).values(expired=False, expired_by=None)
    conn.execute(update(COMMIT).where(here, ~whole).values(expired=True, expired_by=UNPROVED))
    conn.execute(lives.where(here, COMMIT.c.expired.is_(True), whole))
    needed = frozenset[str]().union(*mirror_needs(conn, name).values())
    for some in chunks(needed.intersection(mirror.kept)):
        conn.execute(lives.where(here, COMMIT.c.id.in_(some)))


def mirror_needs(conn: Connection, repository_id: str) -> Mapping[str, frozenset[str]]:
    """The commits that each registered mirror needs, as a transaction sees them."""
    return {one.id: one.commits for one in _find_registrations(conn, repository_id)}


def _find_registrations(conn: Connection, repository_id: str) -> list[Registration]:
    query = select(MIRROR_NEED).where(MIRROR_NEED.c.repository_id == repository_id).order_by(MIRROR_NEED.c.mirror)
    return [_registration_record(row) for row in conn.execute(query)]


def _find_unkept(conn: Connection, repository_id: str, commits: Iterable[str], *, lock: bool = False) -> frozenset[str]:
    """At a mirror that reports, the commits with objects that its source has not agreed to keep.

    With ``lock`` no pass over the mirror changes the answer before the transaction ends.
    """
    query = select(MIRROR.c.kept).filter_by(repository_id=repository_id, reports=True, promoted_writable=None)
    kept = conn.execute(query.with_for_update() if lock else query).scalar_one_or_none()
    if kept is None:
        return frozenset()
    found: set[str] = set()
    for some in chunks(frozenset(commits).difference(kept)):
        full = (COMMIT.c.repository_id == repository_id, COMMIT.c.id.in_(some), COMMIT.c.meta_range_file != "")
        found.update(conn.execute(select(COMMIT.c.id).where(*full)).scalars())
    return frozenset(found)
