"""Reading everything of a repository as it is, for ``fsck``.

The other parts may trust that rows are as transitions left them. Here they may be damaged: JSON is read as text and
parsed row by row, so that one row that makes no sense does not hide the others. Nothing is written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import Any, TypeVar

from sqlalchemy import Connection, CursorResult, Select, Table, Text, cast, exists, func, select, tuple_

from lakeops.catalog.columns import CheckedJson
from lakeops.catalog.guards import IN_CHUNK, CatalogPart, deadline_of, find_repository
from lakeops.catalog.records import BranchState, CatalogSnapshot, RefUpdate, RowFlaw, StagedLine, Upload
from lakeops.catalog.rows import AnyRow, branch_record, decoding, from_ticks, repository_record, words
from lakeops.catalog.tables import (
    BRANCH,
    COMMIT,
    KEY,
    METADATA,
    MIRROR,
    REFLOG,
    REPOSITORY,
    RETIRED,
    STAGED,
    TAG,
    UPLOAD,
)
from lakeops.model.errors import Corrupted
from lakeops.model.records import Commit, RefRecord

R = TypeVar("R")


def row_flaws(conn: Connection, repository_id: str) -> list[RowFlaw]:
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


def readable(
    rows: Iterable[Any], table: Table, decode: Callable[[Any], R], flaws: dict[tuple[str, str], RowFlaw]
) -> Iterator[R]:
    """The records of rows. Rows that make none are added to the flaws."""
    for row in rows:
        try:
            yield decode(row)
        except Corrupted as error:
            flaw = RowFlaw(table.name, _key(table, row._mapping), error.message)  # noqa: SLF001
            flaws[flaw.table, flaw.key] = flaw


def moves(conn: Connection, repository_id: str) -> list[RefUpdate]:
    """The moves of all refs, ref by ref, oldest first."""
    columns = [REFLOG.c[name] for name in ("kind", "ref", "old", "new")]
    query = select(*columns).where(REFLOG.c.repository_id == repository_id)
    return [RefUpdate(*row) for row in conn.execute(query.order_by(REFLOG.c.kind, REFLOG.c.ref, REFLOG.c.sequence))]


def _key(table: Table, values: Any) -> str:  # noqa: ANN401 - a mapping of columns
    names = [column.name for column in table.primary_key.columns if column.name != "repository_id"]
    return " ".join(str(values[name]) for name in names) or str(values["repository_id"])


_MOST_KEYS = 100
_PARSED = ("parents", "metadata")
_TEXTS = ("committer", "message", "meta_range_id", "meta_range_file", "meta_range_digest")
_NUMBERS = ("creation_date", "generation")


class Inspection(CatalogPart):
    """Looking at everything, at one instant."""

    def snapshot(self, repository_id: str) -> CatalogSnapshot:
        """Everything of a repository but its staged rows, at one instant. Rows that make no sense are told, not raised.

        Raises ``RepositoryNotFound``.
        """

        def work(conn: Connection) -> CatalogSnapshot:
            row = find_repository(conn, repository_id)
            flaws = {(flaw.table, flaw.key): flaw for flaw in row_flaws(conn, repository_id)}
            branches = list(readable(_select_all(conn, BRANCH, repository_id), BRANCH, branch_record, flaws))
            tags = list(readable(_select_all(conn, TAG, repository_id), TAG, _tag, flaws))
            staged = _staged_counts(conn, repository_id)
            uploads = list(readable(_select_all(conn, UPLOAD, repository_id), UPLOAD, _upload, flaws))
            mirror = _of_repository(select(MIRROR.c.repository_id), MIRROR, repository_id).where(
                MIRROR.c.promoted_writable.is_(None)
            )
            commits, first_parents, unreadable = _commits(conn, repository_id)
            now = self.database.dialect.now(conn)
            return CatalogSnapshot(
                repository=repository_record(row),
                branches=sorted(branches, key=lambda branch: branch.id),
                tags=sorted(tags, key=lambda tag: tag.id),
                commits=commits,
                first_parents=first_parents,
                unreadable=unreadable,
                retired=_retired(conn, repository_id, {*staged, *_tokens(branches)}),
                staged=staged,
                uploads=uploads,
                overdue=now - deadline_of(row, now),
                follows=conn.execute(mirror).first() is not None,
                dangling_keys=_dangling_keys(conn, repository_id),
                now=now,
                flaws=sorted(flaws.values(), key=lambda flaw: (flaw.table, flaw.key)),
                moves=moves(conn, repository_id),
                pruned=row.pruned,
            )

        return self.database.read(work)

    def staged_rows(self, repository_id: str, *, after: tuple[str, str] = ("", ""), limit: int) -> list[StagedLine]:
        """Staged rows of all tokens, orphaned ones too, as they are, by token and path. Keyset-paged."""
        place = (STAGED.c.token, STAGED.c.path)
        columns = [STAGED.c[field.name] for field in fields(StagedLine)]
        query = _of_repository(select(*columns), STAGED, repository_id).where(tuple_(*place) > tuple_(*after))
        query = query.order_by(*place).limit(limit)
        return self.database.read(lambda conn: [StagedLine(*row) for row in conn.execute(query)])


@decoding(TAG, "name")
def _tag(row: AnyRow) -> RefRecord:
    words(row.name, row.commit_id)
    return RefRecord(row.name, row.commit_id)


@decoding(UPLOAD, "id")
def _upload(row: AnyRow) -> Upload:
    return Upload(row.id, row.branch, row.address, from_ticks(row.started))


def _select_all(conn: Connection, table: Table, repository_id: str) -> CursorResult[Any]:
    return conn.execute(_of_repository(table.select(), table, repository_id))


def _of_repository(query: Select[Any], table: Any, repository_id: str) -> Select[Any]:  # noqa: ANN401 - any of the tables
    return query.where(table.c.repository_id == repository_id)


def _tokens(branches: Iterable[BranchState]) -> Iterable[str]:
    return (token for branch in branches for token in branch.tokens)


def _commits(conn: Connection, repository_id: str) -> tuple[dict[str, Commit], dict[str, str | None], dict[str, str]]:
    """Commits by id, first parents that disagree with the parents, and rows that make no commit, with the reason."""
    commits: dict[str, Commit] = {}
    first_parents: dict[str, str | None] = {}
    unreadable: dict[str, str] = {}
    parsed = [cast(COMMIT.c[name], Text).label(name) for name in _PARSED]
    plain = [COMMIT.c[name] for name in ("id", "first_parent", "expired", *_TEXTS, *_NUMBERS)]
    for row in conn.execute(_of_repository(select(*plain, *parsed), COMMIT, repository_id)):
        try:
            commit = commits[row.id] = _commit(row)
        except (ValueError, TypeError) as error:
            unreadable[row.id] = str(error)
            continue
        if row.first_parent != (commit.parents[0] if commit.parents else None):
            first_parents[row.id] = row.first_parent
    return commits, first_parents, unreadable


def _commit(row: AnyRow) -> Commit:
    """The commit of a row. Raises ``ValueError`` or ``TypeError`` when it makes none."""
    values = dict(row._mapping)  # noqa: SLF001
    parents, metadata = (json.loads(values[name]) for name in _PARSED)
    if not isinstance(parents, list) or not all(isinstance(parent, str) for parent in parents):
        raise TypeError("its parents are not a list of ids")
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise TypeError("its metadata is not a map of texts")
    for names, kind in ((_TEXTS, str), (_NUMBERS, int)):
        for name in names:
            if not isinstance(values[name], kind):
                raise TypeError(f"its {name} is {values[name]!r}")
    return Commit(
        id=row.id,
        parents=tuple(parents),
        metadata=metadata,
        expired=row.expired,
        **{name: values[name] for name in (*_TEXTS, *_NUMBERS)},
    )


def _retired(conn: Connection, repository_id: str, tokens: set[str]) -> dict[str, str | None]:
    wanted = sorted(tokens)
    found: dict[str, str | None] = {}
    for start in range(0, len(wanted), IN_CHUNK):
        some = RETIRED.c.token.in_(wanted[start : start + IN_CHUNK])
        query = _of_repository(select(RETIRED.c.token, RETIRED.c.commit_id), RETIRED, repository_id).where(some)
        found.update((row.token, row.commit_id) for row in conn.execute(query))
    return found


def _dangling_keys(conn: Connection, repository_id: str) -> dict[str, str]:
    known = exists().where(COMMIT.c.repository_id == repository_id, COMMIT.c.id == KEY.c.commit_id)
    query = _of_repository(select(KEY.c.key, KEY.c.commit_id), KEY, repository_id).where(~known)
    return {row.key: row.commit_id for row in conn.execute(query.order_by(KEY.c.key).limit(_MOST_KEYS))}


def _staged_counts(conn: Connection, repository_id: str) -> dict[str, int]:
    """How many staged rows there are, by token."""
    query = select(STAGED.c.token, func.count()).where(STAGED.c.repository_id == repository_id)
    return {str(token): count for token, count in conn.execute(query.group_by(STAGED.c.token))}
