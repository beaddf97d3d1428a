"""CatalogPart that remove what no rule asks for any more: history, moves of refs, idempotency keys, retired tokens.

``prune`` is a small step: it removes at most so many rows of one kind, with the repository's row held shared like any
writer. It leaves everything else as it is. Recovery: repeat it, the next step goes on.

* A commit goes when it is expired, older than the log, and every commit that it descends from has gone or goes in the
  same run. The initial commit stays, because mirrors are compared by it. So what is left is whole from its beginnings
  on: merge bases and generations stay right, and a walk that meets a parent that is gone has come to the end. Nothing
  goes while a mark waits for its sweep.
* A move goes when it is older than the log, with all moves of its ref before it, and not the last one of a ref that
  exists. A move that was made while the clock was ahead keeps those behind it, so that no move is missing in between.
* A key goes when it is older than the rules say.
* A retired token goes when it is purged and no commit in flight can ask for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, Table, case, func, or_, select, update

from lakeops.catalog.database import run_again
from lakeops.catalog.guards import (
    IN_CHUNK,
    CatalogPart,
    check_writable,
    delete_rows,
    find_repository,
    lock_repository,
)
from lakeops.catalog.records import PrunePlan, PruneStep
from lakeops.catalog.tables import COMMIT, KEY, MARK, PASSED_CHECK, REFLOG, REPOSITORY, RETIRED
from lakeops.model.marks import BEGUN, UNPROVED, MarkState

Key = tuple[Any, ...]
_WAITING = (MarkState.MARKING, MarkState.MARKED, MarkState.SWEEPING)


@dataclass(frozen=True, slots=True)
class _Page:
    """What a step found: keys of rows to remove, where the next step begins (None at the end), and their top."""

    keys: Sequence[Any]
    after: Key | None
    generation: int = 0


class Pruning(CatalogPart):
    """Removing what is past its time."""

    def pruned(self, repository_id: str) -> bool:
        """Whether history was ever pruned: then a commit that a known one descends from may be gone."""
        return self.database.read(lambda conn: find_repository(conn, repository_id).pruned is not None)

    def prune(self, repository_id: str, plan: PrunePlan, *, limit: int, dry_run: bool = False) -> PruneStep:
        """Remove at most ``limit`` rows that are past their time, or find out which these would be. See ``pruning``."""
        table, find = _KINDS[plan.kind]

        def work(conn: Connection) -> PruneStep:
            if dry_run:
                repository = find_repository(conn, repository_id)
            else:
                repository = lock_repository(conn, repository_id)
                check_writable(conn, repository, action="prune")
            page = find(conn, repository, plan, limit)
            count = len(page.keys) if dry_run else _remove(conn, repository_id, table, page.keys)
            if page.generation and count and not dry_run:
                top = max(page.generation, repository.pruned or 0)
                if top != repository.pruned:
                    conn.execute(update(REPOSITORY).where(REPOSITORY.c.id == repository_id).values(pruned=top))
            if count and not dry_run:
                self._record(conn, repository_id, "prune", plan.kind, "", None, f"{count} removed")
            gone = frozenset(page.keys) if table is COMMIT else frozenset()
            return PruneStep(count, gone, page.after)

        return self.database.read(work) if dry_run else self.database.write(work, settle=run_again)


def _remove(conn: Connection, repository_id: str, table: Table, keys: Sequence[Any]) -> int:
    column = _name(table)
    removed = 0
    for start in range(0, len(keys), IN_CHUNK):
        where = [table.c.repository_id == repository_id, column.in_(keys[start : start + IN_CHUNK])]
        if table is COMMIT:  # somebody may have taken it back since the page was read
            where.append(COMMIT.c.expired.is_(True))
        removed += delete_rows(conn, table, *where)
        if table is COMMIT:
            kept = select(COMMIT.c.id).where(COMMIT.c.repository_id == repository_id)
            checks = PASSED_CHECK.c.commit_id.in_(keys[start : start + IN_CHUNK]), PASSED_CHECK.c.commit_id.not_in(kept)
            delete_rows(conn, PASSED_CHECK, PASSED_CHECK.c.repository_id == repository_id, *checks)
    return removed


def _name(table: Table) -> Any:  # noqa: ANN401 - SQLAlchemy's column
    """The column that tells a repository's rows apart."""
    return list(table.primary_key.columns)[-1]


def _commits(conn: Connection, repository: Any, plan: PrunePlan, limit: int) -> _Page:  # noqa: ANN401 - a row
    here = COMMIT.c.repository_id == repository.id
    marks = conn.execute(select(MARK.c.id, MARK.c.state).where(MARK.c.repository_id == repository.id)).all()
    if any(mark.state in _WAITING for mark in marks):
        return _Page((), None)
    unswept = {mark.id for mark in marks if mark.state not in BEGUN}  # what these expired may be restored
    unswept.add(UNPROVED)  # and what a fail-over expired may be proved
    generation, name = plan.after or (0, "")
    later = or_(COMMIT.c.generation > generation, (COMMIT.c.generation == generation) & (COMMIT.c.id > name))
    place = (COMMIT.c.generation, COMMIT.c.id)
    columns = (*(COMMIT.c[name] for name in ("id", "parents", "generation", "expired", "expired_by", "creation_date")),)
    rows = conn.execute(select(*columns).where(here, later).order_by(*place).limit(limit)).all()
    parents = {parent for row in rows for parent in row.parents} - plan.gone
    known = _existing_commits(conn, repository.id, parents)
    gone: set[str] = set()
    top = 0
    for row in rows:
        if not row.expired or row.expired_by in unswept or row.creation_date >= plan.before or not row.parents:
            continue
        whole = all(
            parent in gone or parent in plan.gone or known.get(parent, repository.pruned is not None)
            for parent in row.parents
        )
        if whole:
            gone.add(row.id)
            top = max(top, row.generation)
    # Generations rise with time along any line, so a page without an old commit is the end but for other lines' tails.
    old = any(row.creation_date < plan.before for row in rows)
    after = (rows[-1].generation, rows[-1].id) if old and len(rows) == limit else None
    return _Page(sorted(gone), after, top)


def _existing_commits(conn: Connection, repository_id: str, ids: set[str]) -> dict[str, bool]:
    """The commits that exist. The value is True for an expired initial commit, which is never removed."""
    found: dict[str, bool] = {}
    wanted = sorted(ids)
    for start in range(0, len(wanted), IN_CHUNK):
        some = COMMIT.c.id.in_(wanted[start : start + IN_CHUNK])
        query = select(COMMIT.c.id, COMMIT.c.first_parent, COMMIT.c.expired)
        for row in conn.execute(query.where(COMMIT.c.repository_id == repository_id, some)):
            found[row.id] = row.first_parent is None and row.expired
    return found


def _moves(conn: Connection, repository: Any, plan: PrunePlan, limit: int) -> _Page:  # noqa: ANN401
    here = REFLOG.c.repository_id == repository.id
    (after,) = plan.after or (0,)
    query = select(REFLOG).where(here, REFLOG.c.sequence > after).order_by(REFLOG.c.sequence).limit(limit)
    rows = conn.execute(query).all()
    old = [row for row in rows if row.at < plan.before]
    lines = _lines_of_moves(conn, repository.id, {row.ref for row in old}, plan.before)
    gone = []
    for row in old:
        line = lines[row.kind, row.ref]
        # The last move of a ref that exists says since when it is there, and is what fsck compares the ref with.
        stays = row.sequence == line.last and row.new is not None
        if not stays and (line.first_kept is None or row.sequence < line.first_kept):
            gone.append(row.sequence)
    return _Page(gone, (rows[-1].sequence,) if old and len(rows) == limit else None)


@dataclass(frozen=True, slots=True)
class _Line:
    """The moves of a ref: the number of the last one, and of the first one that is not older than the log."""

    last: int
    first_kept: int | None


def _lines_of_moves(conn: Connection, repository_id: str, refs: set[str], before: int) -> dict[tuple[str, str], _Line]:
    found: dict[tuple[str, str], _Line] = {}
    names = sorted(refs)
    ends = func.max(REFLOG.c.sequence), func.min(case((REFLOG.c.at >= before, REFLOG.c.sequence)))
    query = select(REFLOG.c.kind, REFLOG.c.ref, *ends).group_by(REFLOG.c.kind, REFLOG.c.ref)
    for start in range(0, len(names), IN_CHUNK):
        some = REFLOG.c.ref.in_(names[start : start + IN_CHUNK])
        for kind, ref, last, first_kept in conn.execute(query.where(REFLOG.c.repository_id == repository_id, some)):
            found[kind, ref] = _Line(last, first_kept)
    return found


def _keys(conn: Connection, repository: Any, plan: PrunePlan, limit: int) -> _Page:  # noqa: ANN401
    query = select(KEY.c.key).where(KEY.c.repository_id == repository.id, KEY.c.at < plan.before)
    return _by_name(conn, query, KEY.c.key, plan, limit)


def _tokens(conn: Connection, repository: Any, plan: PrunePlan, limit: int) -> _Page:  # noqa: ANN401
    young = select(COMMIT.c.id).where(
        COMMIT.c.repository_id == repository.id,
        COMMIT.c.id == RETIRED.c.commit_id,
        COMMIT.c.creation_date >= plan.before,
    )
    query = select(RETIRED.c.token).where(
        RETIRED.c.repository_id == repository.id,
        ~RETIRED.c.purged.is_(False),  # so that a step reads a page of the key, and no index over "purged" in full
        ~young.exists(),
    )
    return _by_name(conn, query, RETIRED.c.token, plan, limit)


def _by_name(conn: Connection, query: Select[Any], column: Any, plan: PrunePlan, limit: int) -> _Page:  # noqa: ANN401
    (after,) = plan.after or ("",)
    names = conn.execute(query.where(column > after).order_by(column).limit(limit)).scalars().all()
    return _Page(names, (names[-1],) if len(names) == limit else None)


_KINDS: dict[str, tuple[Table, Callable[[Connection, Any, PrunePlan, int], _Page]]] = {
    "commits": (COMMIT, _commits),
    "moves": (REFLOG, _moves),
    "keys": (KEY, _keys),
    "tokens": (RETIRED, _tokens),
}
