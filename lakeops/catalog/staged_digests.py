"""Digests of staged rows, and the sum that tells whether one is missing.

A staged row carries two numbers. ``digest`` is computed of the row as it is. ``trail`` grows by the digest of each row
that is staged at this path, one after another, and the database adds it up in the statement that replaces the row. So
the trails of a token's rows sum up to what was ever staged under it, and that is what the transitions add to the
token's own sum. Stagers wait for nobody: the sum lies in several rows (``digests.add_to_shard``).

A digest is a CRC-32 here, because half a million rows have to be digested beside their upload. It covers the path and
all values. Repository and token are covered by the sums: a row under another token is missing in one sum and too much
in the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from zlib import crc32

from sqlalchemy import Connection, delete, func, literal_column, select

from lakeops.catalog.digests import MASK, add_to_shard
from lakeops.catalog.tables import STAGED, STAGED_TALLY

if TYPE_CHECKING:
    import pyarrow as pa

    from lakeops.catalog.records import BranchState

VALUES = ("path", "tombstone", "physical_address", "checksum", "size_bytes", "mtime", "content_type", "metadata")
"""What a digest covers, in order."""

_NULL = "\1"
_BATCH = 50_000
_HALF = 31
_LOW = (1 << _HALF) - 1


def staged_digest(values: Sequence[Any]) -> int:
    """The digest of a row with these values of ``VALUES``."""
    path, tombstone, *others = values
    texts = (str(path), "1" if tombstone else "0", *(_NULL if value is None else str(value) for value in others))
    return crc32("\0".join(texts).encode("utf-8", "surrogatepass"))


def table_digests(columns: pa.Table) -> list[int]:
    """The digests of the rows of a table that has the columns of ``VALUES``, metadata as text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found: list[int] = []
    nul, null = pa.scalar("\0"), _NULL
    for batch in columns.to_batches(max_chunksize=_BATCH):
        parts = [
            pc.if_else(batch[name], "1", "0") if name == "tombstone" else batch[name].cast(pa.string())
            for name in VALUES
        ]
        texts = pc.binary_join_element_wise(*parts, nul, null_handling="replace", null_replacement=null)
        found += map(crc32, texts.cast(pa.binary()).to_pylist())
    return found


def add_staged(conn: Connection, repository_id: str, token: str, total: int) -> None:
    """Add to the sum of a token what was staged under it."""
    add_to_shard(conn, STAGED_TALLY.name, {"repository_id": repository_id, "token": token}, {"total": total})


def drop_staged(conn: Connection, state: BranchState, *where: Any) -> dict[str, list[str]]:  # noqa: ANN401 - conditions
    """Delete staged rows of a branch that is locked exclusively; returns their paths by token."""
    mine = (STAGED.c.repository_id == state.repository_id, STAGED.c.token.in_(state.tokens), *where)
    gone = conn.execute(delete(STAGED).where(*mine).returning(STAGED.c.token, STAGED.c.path, STAGED.c.trail)).all()
    paths: dict[str, list[str]] = {}
    sums: Counter[str] = Counter()
    for row in gone:
        paths.setdefault(row.token, []).append(row.path)
        sums[row.token] += row.trail
    for token in sorted(sums):
        add_staged(conn, state.repository_id, token, -sums[token])
    return paths


def forget_staged(conn: Connection, repository_id: str, token: str) -> int:
    """Delete all rows of a token that no branch reads any more, with its sum; returns how many."""
    for table in (STAGED_TALLY, STAGED):
        mine = (table.c.repository_id == repository_id, table.c.token == token)
        removed = conn.execute(delete(table).where(*mine)).rowcount
    return removed


def staged_sums(conn: Connection, repository_id: str) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """By token: how many rows there are, the sum of their trails, and what the sum should be."""
    # In two halves, since sums of whole numbers of 62 bits run over.
    high, low = STAGED.c.trail.op(">>")(literal_column(str(_HALF))), STAGED.c.trail.op("&")(_LOW)
    query = select(STAGED.c.token, func.count(), func.sum(high), func.sum(low)).group_by(STAGED.c.token)
    rows: dict[str, int] = {}
    held: dict[str, int] = {}
    for token, count, upper, lower in conn.execute(query.where(STAGED.c.repository_id == repository_id)):
        rows[str(token)], held[str(token)] = count, ((int(upper) << _HALF) + int(lower)) & MASK
    said: dict[str, int] = {}
    shards = select(STAGED_TALLY.c.token, STAGED_TALLY.c.total).where(STAGED_TALLY.c.repository_id == repository_id)
    for token, total in conn.execute(shards):
        said[token] = (said.get(token, 0) + (total if isinstance(total, int) else 0)) & MASK
    return rows, held, said


def sum_of(digests: Iterable[int]) -> int:
    """What some rows add to their token's sum."""
    return sum(digests) & MASK
