"""Staged rows as Arrow, and as the columns that the staging table keeps.

The difference is the user metadata: a map in Arrow, JSON text (null when empty) in the table. Most rows have none, so
only those that do are touched one by one. Imports pyarrow: bulk staging alone may import this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.catalog.rows import metadata_map, metadata_text, undecodable
from lakeops.catalog.tables import STAGED
from lakeops.model.arrow import METADATA_TYPE, STAGED_SCHEMA, array, from_numpy, in_one, scalar, to_numpy

COLUMNS = STAGED_SCHEMA.set(STAGED_SCHEMA.get_field_index("metadata"), pa.field("metadata", pa.string()))
"""The staging table's columns behind repository and token, in order. Metadata as text."""

_ADDRESSES = pa.schema([pa.field("physical_address", pa.string(), nullable=False)])


def to_columns(staged: pa.Table) -> pa.Table:
    """A table of ``STAGED_SCHEMA`` as the staging table keeps it: sorted by path, and of a repeated path the last row.

    Sorted, because stagers that write the same paths in the same order wait for each other and never in a circle.
    """
    table = staged.select(STAGED_SCHEMA.names).cast(STAGED_SCHEMA)
    paths = table["path"]
    if len(paths) > 1 and not pc.all(pc.less(paths.slice(0, len(paths) - 1), paths.slice(1))).as_py():
        table = _one_a_path(table, from_numpy(np.arange(table.num_rows, 0, -1)))
    texts = pa.chunked_array([_texts(chunk) for chunk in table["metadata"].chunks], pa.string())
    return table.set_column(table.schema.get_field_index("metadata"), COLUMNS.field("metadata"), texts)


def from_columns(columns: pa.Table) -> pa.Table:
    """What ``to_columns`` undoes: a table of ``COLUMNS`` as one of ``STAGED_SCHEMA``."""
    batches = [
        pa.record_batch([*batch.columns[:-1], _maps(batch["metadata"], batch["tombstone"])], schema=STAGED_SCHEMA)
        for batch in columns.to_batches()
    ]
    return pa.Table.from_batches(batches, STAGED_SCHEMA)


def newest_rows(tables: Sequence[pa.Table]) -> pa.Table:
    """One row a path, sorted by path, out of the tokens' tables (newest first, each sorted by path)."""
    filled = [table for table in tables if table.num_rows]
    if len(filled) < 2:
        return filled[0] if filled else pa.Table.from_batches([], STAGED_SCHEMA)
    ranks = np.repeat(np.arange(len(filled)), [table.num_rows for table in filled])
    return _one_a_path(pa.concat_tables(filled), from_numpy(ranks))


def addresses(tables: Iterable[pa.Table]) -> pa.Table:
    """The physical addresses of entries among staged rows, as one column."""
    columns = [table.filter(pc.invert(table["tombstone"])).select(_ADDRESSES.names) for table in tables]
    return pa.concat_tables([column.cast(_ADDRESSES) for column in columns] or [pa.Table.from_batches([], _ADDRESSES)])


def _one_a_path(table: pa.Table, rank: pa.Array) -> pa.Table:
    ranked = table.append_column("_rank", rank)
    order = pc.sort_indices(ranked, sort_keys=[("path", "ascending"), ("_rank", "ascending")])
    paths = table["path"].take(order)
    differs = pc.not_equal(paths.slice(1), paths.slice(0, len(paths) - 1))
    first = pa.chunked_array([array([True], pa.bool_()), *differs.chunks])
    return table.take(order.filter(in_one(first)))


def _texts(maps: pa.MapArray) -> pa.Array:
    sizes = _lengths(maps)
    filled = pc.greater(pc.fill_null(sizes, scalar(0, sizes.type)), scalar(0, sizes.type))
    if not pc.any(filled).as_py():
        return pa.nulls(len(maps), pa.string())
    texts = array([metadata_text(dict(pairs)) for pairs in maps.filter(filled).to_pylist()], pa.string())
    return pc.replace_with_mask(pa.nulls(len(maps), pa.string()), filled, texts)


def _parsed(text: str) -> dict[str, str]:
    try:
        return metadata_map(text)
    except (ValueError, TypeError) as error:
        raise undecodable(STAGED, f"with the metadata {text:.80}", error) from None


def _lengths(maps: pa.MapArray) -> pa.Array:
    return pc.list_value_length(maps.cast(pa.list_(METADATA_TYPE.field(0).type)))


def _maps(texts: pa.Array, absent: pa.Array) -> pa.MapArray:
    parsed = [_parsed(text) for text in texts.drop_null().to_pylist()]
    sizes = np.zeros(len(texts) + 1, np.int32)
    sizes[1:][to_numpy(texts.is_valid())] = [len(each) for each in parsed]
    return pa.MapArray.from_arrays(
        from_numpy(np.cumsum(sizes, dtype=np.int32)),
        array(list(chain.from_iterable(parsed)), pa.string()),
        array(list(chain.from_iterable(each.values() for each in parsed)), pa.string()),
        mask=absent,
    )
