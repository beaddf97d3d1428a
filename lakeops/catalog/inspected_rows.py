"""Every row of a repository beside its digest, and every table beside the sum over its rows. For ``fsck`` alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from sqlalchemy import Connection, Table, Text, cast, select

from lakeops.catalog.checked_json import CheckedJson
from lakeops.catalog.digests import DIGEST, MASK, column_of, counted, row_digest, row_weight
from lakeops.catalog.records import Move, RowFlaw
from lakeops.catalog.tables import METADATA, REFLOG, REPOSITORY, TALLY
from lakeops.model.errors import Corrupted

R = TypeVar("R")
_SHOWN = ("repository_id", DIGEST)


def row_flaws(conn: Connection, repository_id: str) -> tuple[list[RowFlaw], list[str]]:
    """Rows that are not what their digests cover, and the tables that have lost or gained rows."""
    said = _sums(conn, repository_id)
    flaws: list[RowFlaw] = []
    wrong: list[str] = []
    for table in METADATA.sorted_tables:
        if DIGEST not in table.c:
            continue
        total = 0
        for values, found, reason in _rows(conn, table, repository_id):
            total += row_weight(table, values)
            if reason or found != row_digest(table, values):
                flaws.append(RowFlaw(table.name, _key(table, values), reason))
        if counted(table) and total & MASK != said.get(column_of(table), 0):
            wrong.append(table.name)
    return flaws, wrong


def readable(
    rows: Iterable[Any], table: Table, decode: Callable[[Any], R], flaws: dict[tuple[str, str], RowFlaw]
) -> Iterator[R]:
    """The records of rows; rows that make none are added to the flaws."""
    for row in rows:
        try:
            yield decode(row)
        except Corrupted as error:
            flaw = RowFlaw(table.name, _key(table, row._mapping), error.message)  # noqa: SLF001
            flaws[flaw.table, flaw.key] = flaw


def moves(conn: Connection, repository_id: str) -> list[Move]:
    """The moves of all refs, ref by ref, oldest first."""
    columns = [REFLOG.c[name] for name in ("kind", "ref", "old", "new")]
    query = select(*columns).where(REFLOG.c.repository_id == repository_id)
    return [Move(*row) for row in conn.execute(query.order_by(REFLOG.c.kind, REFLOG.c.ref, REFLOG.c.sequence))]


def _sums(conn: Connection, repository_id: str) -> dict[str, int]:
    said: dict[str, int] = {}
    for row in conn.execute(select(TALLY).where(TALLY.c.repository_id == repository_id)).mappings():
        for name, value in row.items():
            if name not in {"repository_id", "shard"}:
                said[name] = (said.get(name, 0) + (value if isinstance(value, int) else 0)) & MASK
    return said


def _rows(conn: Connection, table: Table, repository_id: str) -> Iterator[tuple[dict[str, Any], Any, str]]:
    """A table's rows with JSON parsed, the digest that each carries, and why a row cannot be read."""
    parsed = [column.name for column in table.columns if isinstance(column.type, CheckedJson)]
    columns = [cast(column, Text).label(column.name) if column.name in parsed else column for column in table.columns]
    mine = REPOSITORY.c.id if table is REPOSITORY else table.c.repository_id
    for row in conn.execute(select(*columns).where(mine == repository_id)).mappings():
        values, reason = dict(row), ""
        for name in parsed:
            try:
                values[name] = json.loads(values[name])
            except (ValueError, TypeError) as error:
                reason = f"its {name} is no JSON: {' '.join(str(error).split())}"
        yield values, values.pop(DIGEST), reason


def _key(table: Table, values: Any) -> str:  # noqa: ANN401 - a mapping of columns
    names = [column.name for column in table.primary_key.columns if column.name not in _SHOWN]
    return " ".join(str(values[name]) for name in names) or str(values["repository_id"])
