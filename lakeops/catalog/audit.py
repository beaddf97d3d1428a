"""The audit, reports, and looks at everything: what happened, what was found, and rows as they are.

Each transition that changes what a lake shows, keeps or allows leaves a record, in its own transaction. Nothing changes
or deletes one, and records stay when their repository is deleted. Staging and what only prepares a change leave none.

``fsck`` looks at rows as they are. The other parts may trust that rows are as transitions left them. Here they may be
damaged: JSON is read as text and parsed row by row, so that one row that makes no sense does not hide the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Connection, Table, Text, and_, cast, delete, exists, func, insert, or_, select, tuple_, update

from lakeops.catalog.database import AnyRow, CheckedJson, read_transaction, write_transaction
from lakeops.catalog.guards import IN_CHUNK, CatalogPart, deadline_of, find_repository
from lakeops.catalog.records import (
    COMMIT_COLUMNS,
    BranchState,
    branch_record,
    check_texts,
    commit_record,
    decoding,
    from_epoch_micros,
    repository_record,
)
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
from lakeops.model.findings import KEPT, Report, ReportKind
from lakeops.model.records import AuditRecord, Commit, RefRecord, RepositoryRecord

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


@dataclass(frozen=True, slots=True)
class Overview:
    """What a list shows of a repository.

    Attributes:
        head: the last commit of its default branch; None where that cannot be read.
        branches: how many branches it has, or as many as were to be counted.
        last_check: what its last check found, if there was one.
    """

    head: Commit | None
    branches: int
    last_check: Report | None


@dataclass(frozen=True, slots=True)
class Found:
    """Some commits that a search found.

    Attributes:
        commits: they, the highest generation first.
        next_below: the place of the last commit that was looked at; None where that was the last one.
    """

    commits: Sequence[Commit]
    next_below: Place | None


@dataclass(frozen=True, slots=True)
class StagedLine:
    """A staged row as the catalog keeps it, right or wrong: values are not checked, ``metadata`` is JSON text."""

    token: str
    path: str
    tombstone: bool
    physical_address: str | None
    checksum: str | None
    size_bytes: int | None
    mtime: int | None
    content_type: str | None
    metadata: str | None


@dataclass(frozen=True, slots=True)
class RowFlaw:
    """A row that makes no record, and why."""

    table: str
    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class RefUpdate:
    """A move of a ref: ``kind`` is ``branch`` or ``tag``."""

    kind: str
    ref: str
    old: str | None
    new: str | None


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload's record: what is written below ``address`` since ``started``, for a branch."""

    id: str
    branch: str
    address: str
    started: datetime


@dataclass(frozen=True, slots=True)
class CatalogSnapshot:
    """Everything that a catalog holds of a repository at one instant, right or wrong, but for its staged rows.

    Attributes:
        repository: the repository.
        branches: all branches with their tokens.
        tags: all tags.
        commits: ids to commits, expired ones included.
        first_parents: ids of commits to what the catalog walks logs by, where it is not the first of their parents.
        unreadable: ids of commits whose rows make no commit, and why.
        retired: tokens in use, or with rows, that are retired; to the commit that consumed them, if one did.
        staged: tokens with rows, to how many.
        uploads: all uploads on record, the overdue ones too.
        overdue: when an upload must have begun to be linked still.
        follows: whether it is a mirror that follows its source.
        dangling_keys: idempotency keys whose commit does not exist, to that commit's id. The first hundred.
        now: the database's time.
        flaws: rows of any table that make no record.
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
    """What happened, what was found, and everything as it is."""

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

        ``since`` and ``until`` are Unix seconds, the second one excluded. ``actor`` is a user or a login. ``below`` is
        the time and the sequence of the last record of the page before.
        """
        place = (AUDIT.c.recorded, AUDIT.c.sequence)
        query = _RECORDS.order_by(*(column.desc() for column in place)).limit(limit)
        if repository_id is not None:
            query = query.where(AUDIT.c.repository_id == repository_id)
        if since is not None:
            query = query.where(AUDIT.c.recorded >= since)
        if until is not None:
            query = query.where(AUDIT.c.recorded < until)
        if actor is not None:
            query = query.where(_ACTOR.in_([actor]))
        if below is not None:
            query = query.where(tuple_(*place) < below)
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
        """Leave a report, in place of those that became too many. Nothing rests on one, so it needs no lock.

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
        query = select(REPORT.c.at, REPORT.c.actor, REPORT.c.found).where(
            REPORT.c.repository_id == repository_id, REPORT.c.kind == kind.value
        )

        rows = conn.execute(query.order_by(REPORT.c.at))
        return [Report(*row) for row in rows if isinstance(row.found, dict)]

    def overviews(self, repositories: Sequence[str], *, most_branches: int) -> dict[str, Overview]:
        """Of each repository that exists its last commit, its branches and its last check, in two statements."""
        here = REPOSITORY.c.id.in_(repositories)
        default = and_(BRANCH.c.repository_id == REPOSITORY.c.id, BRANCH.c.name == REPOSITORY.c.default_branch)
        head = and_(COMMIT.c.repository_id == BRANCH.c.repository_id, COMMIT.c.id == BRANCH.c.commit_id)
        some = select(BRANCH.c.name).where(BRANCH.c.repository_id == REPOSITORY.c.id).correlate(REPOSITORY)
        count = select(func.count()).select_from(some.limit(most_branches).subquery()).scalar_subquery()
        heads = select(REPOSITORY.c.id.label("of"), count.label("branches"), *COMMIT_COLUMNS).where(here)
        heads = heads.select_from(REPOSITORY.outerjoin(BRANCH, default).outerjoin(COMMIT, head))
        checks = select(REPORT.c.repository_id, REPORT.c.at, REPORT.c.actor, REPORT.c.found)
        checks = checks.where(REPORT.c.repository_id.in_(repositories), REPORT.c.kind == ReportKind.CHECK.value)

        def work(conn: Connection) -> dict[str, Overview]:
            reports = conn.execute(checks.order_by(REPORT.c.at)).all()
            last = {row[0]: Report(*row[1:]) for row in reports if isinstance(row.found, dict)}
            found = {}
            for name, branches, *row in conn.execute(heads):
                try:
                    commit = commit_record(row) if row[0] is not None else None
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

        Whether the case of letters matters is as the database has it: that of ASCII letters never does. ``looked_at``
        is how many commits below a place are looked at, whether they have it or not. Raises ``RepositoryNotFound``.
        """
        window = select(*COMMIT_COLUMNS).where(COMMIT.c.repository_id == repository_id)
        if below is not None:
            window = window.where(tuple_(COMMIT.c.generation, COMMIT.c.id) < tuple_(*below))
        order = COMMIT.c.generation.desc(), COMMIT.c.id.desc()
        some = window.order_by(*order).limit(looked_at).subquery()
        has = or_(*(some.c[name].icontains(text, autoescape=True) for name in ("message", "committer")))
        hits = select(some).where(has).order_by(some.c.generation.desc(), some.c.id.desc()).limit(limit + 1)
        end = window.with_only_columns(COMMIT.c.generation, COMMIT.c.id).order_by(*order).offset(looked_at - 1).limit(2)

        find_repository(conn, repository_id)
        found = [commit_record(row) for row in conn.execute(hits)]
        if len(found) > limit:
            last = found[limit - 1]
            return Found(found[:limit], (last.generation, last.id))
        rest = [(generation, commit_id) for generation, commit_id in conn.execute(end)]
        return Found(found, rest[0] if len(rest) > 1 else None)

    @read_transaction
    def snapshot(self, conn: Connection, repository_id: str) -> CatalogSnapshot:
        """Everything of a repository but its staged rows, at one instant. Rows that make no sense are told, not raised.

        Raises ``RepositoryNotFound``.
        """
        row = find_repository(conn, repository_id)
        flaws = {(flaw.table, flaw.key): flaw for flaw in _rows_without_json(conn, repository_id)}

        def readable(table: Table, decode: Callable[[Any], R]) -> Iterator[R]:
            for found in conn.execute(select(table).where(table.c.repository_id == repository_id)):
                try:
                    yield decode(found)
                except Corrupted as error:
                    flaw = RowFlaw(table.name, _key(table, found._mapping), error.message)  # noqa: SLF001
                    flaws[flaw.table, flaw.key] = flaw

        branches = sorted(readable(BRANCH, branch_record), key=lambda branch: branch.id)
        tags = sorted(readable(TAG, _tag), key=lambda tag: tag.id)
        uploads = list(readable(UPLOAD, _upload))
        staged = _staged_counts(conn, repository_id)
        following = (MIRROR.c.repository_id == repository_id, MIRROR.c.promoted_writable.is_(None))
        commits, first_parents, unreadable = _commits(conn, repository_id)
        now = self.database.dialect.now(conn)
        moves = select(REFLOG.c.kind, REFLOG.c.ref, REFLOG.c.old, REFLOG.c.new)
        moves = moves.where(REFLOG.c.repository_id == repository_id)
        moves = moves.order_by(REFLOG.c.kind, REFLOG.c.ref, REFLOG.c.sequence)
        return CatalogSnapshot(
            repository=repository_record(row),
            branches=branches,
            tags=tags,
            commits=commits,
            first_parents=first_parents,
            unreadable=unreadable,
            retired=_retired(conn, repository_id, {*staged, *(one for each in branches for one in each.tokens)}),
            staged=staged,
            uploads=uploads,
            overdue=now - deadline_of(row, now),
            follows=conn.execute(select(MIRROR.c.repository_id).where(*following)).first() is not None,
            dangling_keys=_dangling_keys(conn, repository_id),
            now=now,
            flaws=sorted(flaws.values(), key=lambda flaw: (flaw.table, flaw.key)),
            moves=[RefUpdate(*move) for move in conn.execute(moves)],
            pruned=row.pruned,
        )

    @read_transaction
    def staged_rows(
        self, conn: Connection, repository_id: str, *, after: tuple[str, str] = ("", ""), limit: int
    ) -> list[StagedLine]:
        """Staged rows of all tokens, orphaned ones too, as they are, by token and path. Keyset-paged."""
        place = (STAGED.c.token, STAGED.c.path)
        query = select(*(STAGED.c[field.name] for field in fields(StagedLine)))
        query = query.where(STAGED.c.repository_id == repository_id, tuple_(*place) > tuple_(*after))
        query = query.order_by(*place).limit(limit)
        return [StagedLine(*row) for row in conn.execute(query)]


def _rows_without_json(conn: Connection, repository_id: str) -> list[RowFlaw]:
    """Rows with text that is no JSON in a column of JSON, in any table."""
    flaws: list[RowFlaw] = []
    for table in METADATA.sorted_tables:
        parsed = [column.name for column in table.columns if isinstance(column.type, CheckedJson)]
        owner = REPOSITORY.c.id if table is REPOSITORY else table.c.get("repository_id")
        if not parsed or owner is None:
            continue
        columns = [
            cast(column, Text).label(column.name) if column.name in parsed else column for column in table.columns
        ]
        for row in conn.execute(select(*columns).where(owner == repository_id)).mappings():
            for name in parsed:
                try:
                    json.loads(row[name])
                except (ValueError, TypeError) as error:
                    reason = f"its {name} is no JSON: {' '.join(str(error).split())}"
                    flaws.append(RowFlaw(table.name, _key(table, row), reason))
                    break
    return flaws


def _key(table: Table, values: Any) -> str:  # noqa: ANN401 - a mapping of columns
    names = [column.name for column in table.primary_key.columns if column.name != "repository_id"]
    return " ".join(str(values[name]) for name in names) or str(values["repository_id"])


@decoding(TAG, "name")
def _tag(row: AnyRow) -> RefRecord:
    check_texts(row.name, row.commit_id)
    return RefRecord(row.name, row.commit_id)


@decoding(UPLOAD, "id")
def _upload(row: AnyRow) -> Upload:
    return Upload(row.id, row.branch, row.address, from_epoch_micros(row.started))


def _commits(conn: Connection, repository_id: str) -> tuple[dict[str, Commit], dict[str, str | None], dict[str, str]]:
    """Commits by id, first parents that disagree with the parents, and rows that make no commit, with the reason."""
    commits: dict[str, Commit] = {}
    first_parents: dict[str, str | None] = {}
    unreadable: dict[str, str] = {}
    parsed = [cast(COMMIT.c[name], Text).label(name) for name in ("parents", "metadata")]
    plain = [COMMIT.c[name] for name in ("id", "first_parent", "expired", *_TEXTS, *_NUMBERS)]
    for row in conn.execute(select(*plain, *parsed).where(COMMIT.c.repository_id == repository_id)):
        try:
            commit = commits[row.id] = _commit(row)
        except (ValueError, TypeError) as error:
            unreadable[row.id] = str(error)
            continue
        if row.first_parent != (commit.parents[0] if commit.parents else None):
            first_parents[row.id] = row.first_parent
    return commits, first_parents, unreadable


_TEXTS = ("committer", "message", "meta_range_id", "meta_range_file", "meta_range_digest")
_NUMBERS = ("creation_date", "generation")


def _commit(row: AnyRow) -> Commit:
    """The commit of a row. Raises ``ValueError`` or ``TypeError`` when it makes none."""
    values = dict(row._mapping)  # noqa: SLF001
    parents, metadata = json.loads(row.parents), json.loads(row.metadata)
    if not isinstance(parents, list) or not all(isinstance(parent, str) for parent in parents):
        raise TypeError("its parents are not a list of ids")
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise TypeError("its metadata is not a map of texts")
    for names, kind in ((_TEXTS, str), (_NUMBERS, int)):
        for name in names:
            if not isinstance(values[name], kind):
                raise TypeError(f"its {name} is {values[name]!r}")
    rest = {name: values[name] for name in ("id", "expired", *_TEXTS, *_NUMBERS)}
    return Commit(parents=tuple(parents), metadata=metadata, **rest)


def _retired(conn: Connection, repository_id: str, tokens: set[str]) -> dict[str, str | None]:
    wanted = sorted(tokens)
    found: dict[str, str | None] = {}
    for start in range(0, len(wanted), IN_CHUNK):
        some = RETIRED.c.token.in_(wanted[start : start + IN_CHUNK])
        query = select(RETIRED.c.token, RETIRED.c.commit_id).where(RETIRED.c.repository_id == repository_id, some)
        found.update((row.token, row.commit_id) for row in conn.execute(query))
    return found


def _dangling_keys(conn: Connection, repository_id: str) -> dict[str, str]:
    known = exists().where(COMMIT.c.repository_id == repository_id, COMMIT.c.id == KEY.c.commit_id)
    query = select(KEY.c.key, KEY.c.commit_id).where(KEY.c.repository_id == repository_id, ~known)
    return {row.key: row.commit_id for row in conn.execute(query.order_by(KEY.c.key).limit(_MOST_KEYS))}


def _staged_counts(conn: Connection, repository_id: str) -> dict[str, int]:
    """How many staged rows there are, by token."""
    query = select(STAGED.c.token, func.count()).where(STAGED.c.repository_id == repository_id)
    return {str(token): count for token, count in conn.execute(query.group_by(STAGED.c.token))}
