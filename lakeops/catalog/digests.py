"""Digests of rows, and sums over them: how ``fsck`` notices a row that was changed, lost or added by hand.

Each row of the tables below carries a digest over its other columns. Each repository has sums over the keys of its
rows, so that a row that is gone is noticed too. Transitions need not think of either: an insert computes the digest, an
update leaves it open, and the end of the transaction fills in what is open and adds up what came. Only a delete has to
say what it deletes, through ``delete_rows``.

Staged rows work differently, because there are so many. A staged row carries two numbers. ``digest`` is computed from
the row as it is. ``trail`` grows by the digest of each row that is staged at this path: the statement that replaces the
row adds it up. So the trails of a token's rows sum up to all that was ever staged under it, and that is what the
transitions add to the token's own sum.

The sums lie in several rows (shards). A transaction takes one that nobody holds, or makes another, so that two of them
never wait for each other. A digest has no key: it is against mistakes and damage, not against somebody who computes it
anew.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import blake2b
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Table, bindparam, delete, insert, select, update

DIGEST = "row_digest"
TALLY = "lakeops_tally"
MASK = (1 << 62) - 1
"""Digests and sums have 62 bits: two of them can be added in the database without running over."""

_NOTES = "lakeops_notes"


class _Notes:
    """What a transaction has done so far: tables with open digests, and what the sums grow by."""

    def __init__(self) -> None:
        self.open: set[Table] = set()
        self.sums: Counter[tuple[str, Table]] = Counter()


def row_digest(table: Table, values: Mapping[str, Any]) -> int:
    """The digest of a row. Columns that are not given are null. What the database numbers by itself is left out."""
    return _digest(table.name, [values.get(name) for name in _covered(table)])


def row_weight(table: Table, values: Mapping[str, Any]) -> int:
    """What a row adds to the sum of its table: the digest of its key, or of all of it where the database numbers it."""
    names = _keys(table)
    return _digest(table.name, [values[name] for name in names]) if names else row_digest(table, values)


def counted(table: Table) -> bool:
    """Whether there is a sum over the rows of a table."""
    return column_of(table) in table.metadata.tables[TALLY].c


def column_of(table: Table) -> str:
    """The column of the sums that is for a table."""
    return table.name.removeprefix("lakeops_")


def on_insert(context: Any) -> int | None:  # noqa: ANN401 - SQLAlchemy's execution context
    """The default of a digest's column: computed of the values that are inserted."""
    table: Table = context.current_column.table
    if context.compiled.statement.select is not None:  # INSERT ... SELECT: the values are the database's
        _open(context, table)
        return None
    values = context.get_current_parameters()
    notes = context.root_connection.info.get(_NOTES)
    if notes is not None and counted(table):
        notes.sums[values["repository_id"], table] += row_weight(table, values)
    return row_digest(table, values)


def on_update(context: Any) -> None:  # noqa: ANN401
    """What an update sets a digest to: nothing, until the end of the transaction."""
    _open(context, context.current_column.table)


def note_insert(conn: Connection, table: Table, values: Mapping[str, Any]) -> None:
    """Count a row that was inserted with a digest of the caller's."""
    notes = conn.info.get(_NOTES)
    if notes is not None:
        notes.sums[values["repository_id"], table] += row_weight(table, values)


def delete_rows(conn: Connection, table: Table, *where: ColumnElement[bool]) -> int:
    """Delete rows of a table that is counted. Returns how many."""
    names = ["repository_id", *(_keys(table) or _covered(table))]
    gone = conn.execute(delete(table).where(*where).returning(*(table.c[name] for name in names))).mappings().all()
    notes = conn.info.get(_NOTES)
    if notes is not None:
        for row in gone:
            notes.sums[row["repository_id"], table] -= row_weight(table, dict(row))
    return len(gone)


def begin(conn: Connection) -> None:
    """Begin to note what a transaction does."""
    conn.info[_NOTES] = _Notes()


def finish(conn: Connection) -> None:
    """Fill in the digests that the transaction left open, and bring the sums up to date."""
    notes: _Notes | None = conn.info.pop(_NOTES, None)
    if notes is None:
        return
    for table in sorted(notes.open, key=lambda table: table.name):
        _fill(conn, table)
    changes: dict[tuple[str, Table], dict[str, int]] = {}
    for (repository, table), change in notes.sums.items():
        if change & MASK:
            changes.setdefault((repository, table.metadata.tables[TALLY]), {})[column_of(table)] = change & MASK
    for (repository, tally), sums in changes.items():
        add_to_shard(conn, tally, {"repository_id": repository}, sums)


def add_to_shard(conn: Connection, table: Table, key: Mapping[str, str], sums: Mapping[str, int]) -> None:
    """Add to sums, in a shard that no other transaction holds. In a new one if there is none.

    Args:
        conn: the transition's transaction.
        table: a table of sums: the columns of ``key``, then ``shard``, then the sums.
        key: whose sums they are.
        sums: columns and what is added to them.
    """
    values = {f"the_{column}": value for column, value in key.items()}
    more = {f"more_{column}": value & MASK for column, value in sums.items()}
    if not conn.execute(_add(table, tuple(sorted(key)), tuple(sorted(sums))), values | more).rowcount:
        zero = {column.name: 0 for column in table.columns if column.name not in {*key, "shard"}}
        fresh = {column: value & MASK for column, value in sums.items()}
        conn.execute(insert(table).values({**key, "shard": _fresh_shard(), **zero, **fresh}))


def _fresh_shard() -> str:
    from lakeops.model.clock import Ids

    return Ids().new()


@cache
def _add(table: Table, key: tuple[str, ...], columns: tuple[str, ...]) -> Any:  # noqa: ANN401 - SQLAlchemy's Update
    mine = [table.c[name] == bindparam(f"the_{name}") for name in key]
    free = select(table.c.shard).where(*mine).limit(1).with_for_update(skip_locked=True).scalar_subquery()
    added = {
        name: (table.c[name] + bindparam(f"more_{name}", type_=table.c[name].type)).op("&")(MASK) for name in columns
    }
    return update(table).where(*mine, table.c.shard == free).values(added).execution_options(preserve_rowcount=True)


def _open(context: Any, table: Table) -> None:  # noqa: ANN401
    notes = context.root_connection.info.get(_NOTES)
    if notes is not None:
        notes.open.add(table)


def _fill(conn: Connection, table: Table) -> None:
    digest = table.c[DIGEST]
    rows = conn.execute(select(table).where(digest.is_(None))).mappings().all()
    if rows:
        keys = list(table.primary_key.columns)
        one = update(table).where(*(column == bindparam(f"the_{column.name}") for column in keys))
        found = [
            {**{f"the_{column.name}": row[column.name] for column in keys}, "the_digest": row_digest(table, dict(row))}
            for row in rows
        ]
        conn.execute(one.values({DIGEST: bindparam("the_digest")}), found)


def _digest(name: str, values: Sequence[Any]) -> int:
    text = json.dumps([name, *values], ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=repr)
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big") & MASK


@cache
def _covered(table: Table) -> tuple[str, ...]:
    return tuple(column.name for column in table.columns if column.name != DIGEST and not _numbered(table, column))


@cache
def _keys(table: Table) -> tuple[str, ...]:
    columns = list(table.primary_key.columns)
    return () if any(_numbered(table, column) for column in columns) else tuple(column.name for column in columns)


def _numbered(table: Table, column: Column[Any]) -> bool:
    return column is table.autoincrement_column
