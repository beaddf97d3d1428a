"""The audit log, reports of runs such as fsck, and reads of a repository's rows as they are.

Each transition that changes what a lake shows, keeps or allows leaves a record in its own transaction, which stays when
its repository is deleted. Staging and what only prepares a change leave none. ``fsck`` looks at rows that may be
damaged: JSON is read as text and parsed row by row, so that one row that makes no sense hides no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, Table, and_, delete, exists, func, insert, or_, select, tuple_, update

from lakeops.catalog import records
from lakeops.catalog.database import AnyRow, CheckedJson, Unreadable, read_transaction, write_transaction
from lakeops.catalog.guards import CatalogPart, chunks, deadline_of, find_repository
from lakeops.catalog.records import BranchState
from lakeops.catalog.tables import (
    AUDIT,
    BRANCH,
    COMMIT,
    KEY,
    METADATA,
    MIRROR,
    REFLOG,
    REPORT,
    REPOSITORY,
    RETIRED,
    STAGED,
    TAG,
    UPLOAD,
)
from lakeops.model.clock import unix_seconds
from lakeops.model.errors import Corrupted
from lakeops.model.records import KEPT, AuditRecord, Commit, RefRecord, Report, ReportKind, RepositoryRecord

R = TypeVar("R")
Place = tuple[int, str]
"""A commit's place in a search: its generation and its id."""

_MOST_KEYS = 100
_ACTOR = func.coalesce(AUDIT.c.person, AUDIT.c.login)
_RECORDS = select(
    *(AUDIT.c[name] for name in ("sequence", "repository_id", "action", "kind", "ref", "before", "after")),
    _ACTOR,
    *(AUDIT.c[name] for name in ("login", "claimed", "recorded")),
)


class Overview(NamedTuple):
    """A repository in a list: its last commit if it can be read, the branches as far as counted, the last fsck."""

    head: Commit | None
    branches: int
    last_fsck: Report | None


class Found(NamedTuple):
    """Commits that a search found, the highest generation first, and where to go on below, if there are more."""

    commits: Sequence[Commit]
    next_below: Place | None


StagedLine = AnyRow
"""A staged row as the catalog keeps it, right or wrong: values are not checked, ``metadata`` is JSON text."""
RefUpdate = AnyRow
"""A move of a ref: ``kind`` (``branch`` or ``tag``), ``ref``, ``old`` and ``new``."""


class RowFlaw(NamedTuple):
    """A row that makes no record, and why."""

    table: str
    key: str
    reason: str


class Upload(NamedTuple):
    """An upload's record: what is written below ``address`` since ``started``, for a branch."""

    id: str
    branch: str
    address: str
    started: datetime


@dataclass(frozen=True, slots=True)
class CatalogSnapshot:
    """A repository's rows at one instant, right or wrong, but for the staged ones.

    Attributes:
        first_parents: ids of commits to what the catalog walks logs by, where it is not the first of their parents.
        unreadable: ids of commits whose rows make no commit, and why. ``flaws`` are such rows of any table.
        retired: tokens in use, or with rows, that are retired; to the commit that consumed them, if one did.
        staged: tokens with rows, to how many.
        overdue: when an upload must have begun to be linked still. ``uploads`` has the overdue ones too.
        follows: whether it is a mirror that follows its source.
        dangling_keys: idempotency keys whose commit does not exist, to that commit's id. The first hundred.
        moves: the reflog, ref by ref, oldest first.
        pruned: the highest generation of a commit that was pruned, if any was.
    """

    repository: RepositoryRecord
    branches: Sequence[BranchState]
    tags: Sequence[RefRecord]
    commits: Mapping[str, Commit]
    first_parents: Mapping[str, str | None]
    unreadable: Mapping[str, str]
    retired: Mapping[str, str | None]
    staged: Mapping[str, int]
    uploads: Sequence[Upload]
    overdue: datetime
    follows: bool
    dangling_keys: Mapping[str, str]
    now: datetime
    flaws: Sequence[RowFlaw]
    moves: Sequence[RefUpdate]
    pruned: int | None = None


class Audit(CatalogPart):
    """The audit log, reports of runs, searches, and snapshots of a repository's rows."""

    @read_transaction
    def page(
        self,
        conn: Connection,
        repository_id: str | None = None,
        *,
        since: int | None = None,
        until: int | None = None,
        actor: str | None = None,
        below: tuple[int, int] | None = None,
        limit: int = 1000,
    ) -> list[AuditRecord]:
        """Records of the audit, newest first: of all repositories or of one, which may be gone.

        ``since`` and ``until`` (excluded) are Unix seconds, ``actor`` is a user or a login, ``below`` time and sequence
        of the last record of the page before.
        """
        place = (AUDIT.c.recorded, AUDIT.c.sequence)
        wanted = [
            *([AUDIT.c.repository_id == repository_id] if repository_id is not None else ()),
            *([AUDIT.c.recorded >= since] if since is not None else ()),
            *([AUDIT.c.recorded < until] if until is not None else ()),
            *([_ACTOR.in_([actor])] if actor is not None else ()),
            *([tuple_(*place) < below] if below is not None else ()),
        ]
        query = _RECORDS.where(*wanted).order_by(*(column.desc() for column in place)).limit(limit)
        return [AuditRecord(*row) for row in conn.execute(query)]

    @write_transaction
    def add_report(
        self,
        conn: Connection,
        repository_id: str,
        kind: ReportKind,
        found: Mapping[str, Any],
        *,
        actor: str,
        every: int = 1,
    ) -> None:
        """Add a report, and drop the oldest beyond the limit. No decision depends on a report, so it needs no lock.

        Of ``every`` so many seconds one report is kept: the one with the highest ``seconds``, or the latest.
        """
        find_repository(conn, repository_id)
        at = unix_seconds(self.database.dialect.now(conn))
        mine = (REPORT.c.repository_id == repository_id, REPORT.c.kind == kind.value)
        times = list(conn.execute(select(REPORT.c.at).where(*mine).order_by(REPORT.c.at.desc())).scalars())
        values = {"actor": actor, "found": dict(found)}
        if times and times[0] >= at - at % every:
            here = (*mine, REPORT.c.at == times[0])
            last = conn.execute(select(REPORT.c.found).where(*here)).scalar_one()
            if not isinstance(last, dict) or last.get("seconds", 0) <= found.get("seconds", 0):
                conn.execute(update(REPORT).where(*here).values(values))
            return
        conn.execute(insert(REPORT).values(repository_id=repository_id, kind=kind.value, at=at, **values))
        if len(times) >= KEPT[kind]:
            conn.execute(delete(REPORT).where(*mine, REPORT.c.at <= times[KEPT[kind] - 1]))

    @read_transaction
    def reports(self, conn: Connection, repository_id: str, kind: ReportKind) -> list[Report]:
        """The reports of a kind, oldest first. One that cannot be read is left out."""
        query = select(REPORT.c.at, REPORT.c.actor, REPORT.c.found).filter_by(
            repository_id=repository_id, kind=kind.value
        )
        return [Report(*row) for row in conn.execute(query.order_by(REPORT.c.at)) if isinstance(row.found, dict)]

    def overviews(self, repositories: Sequence[str], *, most_branches: int) -> dict[str, Overview]:
        """Read the last commit, the branches and the last fsck of each repository, in two statements."""
        here = REPOSITORY.c.id.in_(repositories)
        default = and_(BRANCH.c.repository_id == REPOSITORY.c.id, BRANCH.c.name == REPOSITORY.c.default_branch)
        head = and_(COMMIT.c.repository_id == BRANCH.c.repository_id, COMMIT.c.id == BRANCH.c.commit_id)
        some = select(BRANCH.c.name).where(BRANCH.c.repository_id == REPOSITORY.c.id).correlate(REPOSITORY)
        count = select(func.count()).select_from(some.limit(most_branches).subquery()).scalar_subquery()
        heads = select(REPOSITORY.c.id.label("of"), count.label("branches"), *records.COMMIT_COLUMNS).where(here)
        heads = heads.select_from(REPOSITORY.outerjoin(BRANCH, default).outerjoin(COMMIT, head))
        checks = select(REPORT.c.repository_id, REPORT.c.at, REPORT.c.actor, REPORT.c.found)
        checks = checks.where(REPORT.c.repository_id.in_(repositories), REPORT.c.kind == ReportKind.FSCK.value)

        def work(conn: Connection) -> dict[str, Overview]:
            reports = conn.execute(checks.order_by(REPORT.c.at)).all()
            last = {row[0]: Report(*row[1:]) for row in reports if isinstance(row.found, dict)}
            found = {}
            for name, branches, *row in conn.execute(heads):
                try:
                    commit = records.commit_record(row) if row[0] is not None else None
                except Corrupted:
                    commit = None
                found[name] = Overview(commit, branches, last.get(name))
            return found

        return self.database.read(work) if repositories else {}

    @read_transaction
    def search_messages(
        self, conn: Connection, repository_id: str, text: str, *, below: Place | None = None, looked_at: int, limit: int
    ) -> Found:
        """Commits whose message or committer has a text, of all branches and of none: the highest generation first.

        The case of letters matters as in the database: never that of ASCII letters. ``looked_at`` is how many commits
        below a place are looked at. Raises ``RepositoryNotFound``.
        """
        window = select(*records.COMMIT_COLUMNS).where(COMMIT.c.repository_id == repository_id)
        if below is not None:
            window = window.where(tuple_(COMMIT.c.generation, COMMIT.c.id) < tuple_(*below))
        order = COMMIT.c.generation.desc(), COMMIT.c.id.desc()
        some = window.order_by(*order).limit(looked_at).subquery()
        has = or_(*(some.c[name].icontains(text, autoescape=True) for name in ("message", "committer")))
        hits = select(some).where(has).order_by(some.c.generation.desc(), some.c.id.desc()).limit(limit + 1)
        end = window.with_only_columns(COMMIT.c.generation, COMMIT.c.id).order_by(*order).offset(looked_at - 1).limit(2)
        find_repository(conn, repository_id)
        found = [records.commit_record(row) for row in conn.execute(hits)]
        if len(found) > limit:
            last = found[limit - 1]
            return Found(found[:limit], (last.generation, last.id))
        rest = [(generation, commit_id) for generation, commit_id in conn.execute(end)]
        return Found(found, rest[0] if len(rest) > 1 else None)

    @read_transaction
    def snapshot(self, conn: Connection, repository_id: str) -> CatalogSnapshot:
        """Read a repository's rows at one instant, without staged rows. Rows that cannot be decoded are flaws."""
        row = find_repository(conn, repository_id)
        flaws = {(flaw.table, flaw.key): flaw for flaw in _rows_without_json(conn, repository_id)}

        def readable(table: Table, decode: Callable[[Any], R]) -> Iterator[R]:
            for found in conn.execute(select(table).where(table.c.repository_id == repository_id)):
                try:
                    yield decode(found)
                except Corrupted as error:
                    flaw = RowFlaw(table.name, _key(table, found._mapping), error.message)  # noqa: SLF001
                    flaws[flaw.table, flaw.key] = flaw

        branches = sorted(readable(BRANCH, records.branch_record), key=lambda branch: branch.id)
        tags = sorted(readable(TAG, _tag), key=lambda tag: tag.id)
        uploads = list(readable(UPLOAD, _upload))
        count = select(STAGED.c.token, func.count()).where(STAGED.c.repository_id == repository_id)
        staged = {str(token): rows for token, rows in conn.execute(count.group_by(STAGED.c.token))}
        following = (MIRROR.c.repository_id == repository_id, MIRROR.c.promoted_writable.is_(None))
        known = exists().where(COMMIT.c.repository_id == repository_id, COMMIT.c.id == KEY.c.commit_id)
        dangling = select(KEY.c.key, KEY.c.commit_id).where(KEY.c.repository_id == repository_id, ~known)
        now = self.database.dialect.now(conn)
        moves = select(*(columns := (REFLOG.c.kind, REFLOG.c.ref)), REFLOG.c.old, REFLOG.c.new)
        moves = moves.filter_by(repository_id=repository_id).order_by(*columns, REFLOG.c.sequence)
        return CatalogSnapshot(
            records.repository_record(row),
            branches,
            tags,
            *_commits(conn, repository_id),
            retired=_retired(conn, repository_id, {*staged, *(one for each in branches for one in each.tokens)}),
            staged=staged,
            uploads=uploads,
            overdue=now - deadline_of(row, now),
            follows=conn.execute(select(MIRROR.c.repository_id).where(*following)).first() is not None,
            dangling_keys=dict(conn.execute(dangling.order_by(KEY.c.key).limit(_MOST_KEYS)).all()),
            now=now,
            flaws=sorted(flaws.values()),
            moves=conn.execute(moves).all(),
            pruned=row.pruned,
        )

    @read_transaction
    def staged_rows(
        self, conn: Connection, repository_id: str, *, after: tuple[str, str] = ("", ""), limit: int
    ) -> list[StagedLine]:
        """Staged rows of all tokens, orphaned ones too, as they are, by token and path. Keyset-paged."""
        place = (STAGED.c.token, STAGED.c.path)
        query = select(STAGED).where(STAGED.c.repository_id == repository_id, tuple_(*place) > tuple_(*after))
        return list(conn.execute(query.order_by(*place).limit(limit)))


def _rows_without_json(conn: Connection, repository_id: str) -> list[RowFlaw]:
    """Rows with text that is no JSON in a column of JSON, in any table."""
    flaws: list[RowFlaw] = []
    for table in METADATA.sorted_tables:
        parsed = [column.name for column in table.columns if isinstance(column.type, CheckedJson)]
        owner = REPOSITORY.c.id if table is REPOSITORY else table.c.get("repository_id")
        if parsed and owner is not None:
            for row in conn.execute(select(table).where(owner == repository_id)).mappings():
                broken = next((name for name in parsed if type(row[name]) is Unreadable), None)
                if broken is not None:
                    reason = f"its {broken} is no JSON: {row[broken].reason}"
                    flaws.append(RowFlaw(table.name, _key(table, row), reason))
    return flaws


def _key(table: Table, values: Any) -> str:  # noqa: ANN401 - a mapping of columns
    names = [column.name for column in table.primary_key.columns if column.name != "repository_id"]
    return " ".join(str(values[name]) for name in names) or str(values["repository_id"])


@records.decoding(TAG, "name")
def _tag(row: AnyRow) -> RefRecord:
    records.check_texts(row.name, row.commit_id)
    return RefRecord(row.name, row.commit_id)


@records.decoding(UPLOAD, "id")
def _upload(row: AnyRow) -> Upload:
    return Upload(row.id, row.branch, row.address, records.from_epoch_micros(row.started))


def _commits(conn: Connection, repository_id: str) -> tuple[dict[str, Commit], dict[str, str | None], dict[str, str]]:
    """Commits by id, first parents that disagree with the parents, and rows that make no commit, with the reason."""
    commits: dict[str, Commit] = {}
    first_parents: dict[str, str | None] = {}
    unreadable: dict[str, str] = {}
    query = select(*records.COMMIT_COLUMNS, COMMIT.c.first_parent).where(COMMIT.c.repository_id == repository_id)
    for *row, first_parent in conn.execute(query):
        try:
            commit = commits[row[0]] = records.commit_record(row)
        except Corrupted as error:
            unreadable[row[0]] = error.message
            continue
        if first_parent != (commit.parents[0] if commit.parents else None):
            first_parents[commit.id] = first_parent
    return commits, first_parents, unreadable


def _retired(conn: Connection, repository_id: str, tokens: set[str]) -> dict[str, str | None]:
    query = select(RETIRED.c.token, RETIRED.c.commit_id).filter_by(repository_id=repository_id)
    return {
        token: commit_id
        for some in chunks(tokens)
        for token, commit_id in conn.execute(query.where(RETIRED.c.token.in_(some)))
    }
