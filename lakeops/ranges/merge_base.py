"""Merge bases of criss-cross histories: the merge of several, a metarange that nobody publishes.

A path on which the bases conflict gets a state that no object can have, so that a merge over it conflicts there unless
both sides agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.engine.base import LocalEngine
from lakeops.model.arrow import STAGED_SCHEMA, from_numpy, no_metadata, no_rows, scalar, text
from lakeops.model.records import Split
from lakeops.ranges.apply import apply
from lakeops.ranges.diff import diff_batches
from lakeops.ranges.merge import ChangedPaths, DecidedPaths, MergeWalk
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.range_merge import merge_ranges
from lakeops.ranges.read import RangeReader

_NO_TYPE = "\n"
"""A content type that no object has: staging refuses what cannot be printed. (Ranges refuse sizes below zero.)"""


def bases_matter(reader: RangeReader, sides: tuple[Metarange, Metarange], bases: Sequence[Metarange]) -> bool:
    """Whether the bases disagree on any path at which the sides differ. Reads what differs, a stretch at a time."""
    first, *others = bases
    return any(_share_a_path(_differing(reader, *sides), _differing(reader, first, other)) for other in others)


def merged_base(
    reader: RangeReader,
    base: Metarange | None,
    one: Metarange,
    other: Metarange,
    *,
    label: str,
    split: Split,
    attempt: str,
) -> Metarange:
    """The merge of two bases over their own; where they conflict stands a state that equals no object's.

    Where nobody knows their own ``base`` every path on which they differ conflicts. ``label`` tells the conflicts of
    this merge from those of any other: it is a function of the commits that are merged.
    """
    if base is None:
        found: Iterator[pa.Table] = (_conflicting(paths, label) for paths in _differing(reader, other, one))
    else:
        merged = merge_ranges(base, one, other)
        other = merged.dest
        walk = MergeWalk(reader, *merged.rest, other, None, ours=merged.ours)
        found = (_with_conflicts(decided, label) for decided in walk.decisions())
    changes = pa.concat_tables(chain([no_rows(STAGED_SCHEMA)], found))
    return apply(reader, other, changes, engine=LocalEngine(), split=split, attempt=attempt, reuse=one).metarange


def _with_conflicts(decided: DecidedPaths, label: str) -> pa.Table:
    conflicts = _conflicting(decided.paths.filter(from_numpy(decided.conflict)), label)
    return pa.concat_tables([decided.changes(), conflicts]).sort_by("path")


def _conflicting(paths: pa.Array, label: str) -> pa.Table:
    """The state of paths on which bases conflict, as rows to apply: ``STAGED_SCHEMA``."""
    count = len(paths)
    values = {
        "path": paths,
        "tombstone": pa.repeat(scalar(False, pa.bool_()), count),
        "physical_address": pa.repeat(text(""), count),
        "checksum": pa.repeat(text(label), count),
        "size_bytes": pa.repeat(scalar(0, pa.int64()), count),
        "mtime": pa.repeat(scalar(0, pa.int64()), count),
        "content_type": pa.repeat(text(_NO_TYPE), count),
        "metadata": no_metadata(count),
    }
    return pa.table([values[name] for name in STAGED_SCHEMA.names], schema=STAGED_SCHEMA)


def _differing(reader: RangeReader, left: Metarange, right: Metarange) -> Iterator[pa.Array]:
    """The paths that differ, in order, some at a time."""
    return (ChangedPaths.of(batch).paths for batch in diff_batches(reader, left, right))


def _share_a_path(ones: Iterator[pa.Array], others: Iterator[pa.Array]) -> bool:
    """Whether two ascending streams of paths have a path in common."""
    one, other = next(ones, None), next(others, None)
    while one is not None and other is not None:
        if pc.any(pc.is_in(one, value_set=other)).as_py():
            return True
        if one[-1].as_py().encode() < other[-1].as_py().encode():
            one = next(ones, None)
        else:
            other = next(others, None)
    return False
