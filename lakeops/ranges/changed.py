"""Touched ranges with their changes laid over them, several at a time.

Every step over some rows has a fixed price, and for a small range that is more than what its rows cost. So ranges are
read one by one, but their rows are changed and hashed together, a *window* of them at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.arrays import array, to_numpy
from lakeops.model.records import Split
from lakeops.model.schema import RANGE_SCHEMA
from lakeops.ranges.fetch import fetch_ranges
from lakeops.ranges.file import RangeFile
from lakeops.ranges.metarange import RangeRow
from lakeops.ranges.overlay import Overlaid, overlay
from lakeops.ranges.split import Hashes, path_hashes
from lakeops.store.base import ObjectStore

OnOverlaid: TypeAlias = Callable[[Overlaid], None]

_ROWS = 24_000
"""Rows of a window at most, changes included. More of them gain nothing and take memory."""

_CHANGES = 50_000
"""Changes laid over at a time, so that a bulk load into one range streams through."""

_MOST_TOUCHED = 0.85
"""Of a range's row groups: where hardly any is kept, what each one costs by itself is more than what is saved."""


class Fresh(NamedTuple):
    """Rows that were changed, ``RANGE_SCHEMA``, and the boundary hash of each path."""

    table: pa.Table
    hashes: Hashes


class Kept(NamedTuple):
    """A row group that no change belongs to: its file and its number there."""

    file: RangeFile
    number: int


Part: TypeAlias = Kept | Fresh


@dataclass(frozen=True)
class Changed:
    """A range with changes laid over it, not cut yet.

    Attributes:
        parts: its rows, in order. Without ``file`` they can be gone through once.
        grown: by how many bytes the objects' sizes have grown, where there is a ``file``.
        file: the range as it was, where ``parts`` has each of its row groups apart. None where hardly any is kept.
    """

    parts: Iterable[Part]
    grown: int = 0
    file: RangeFile | None = None

    def rows(self) -> Iterator[tuple[pa.Table, Hashes | None]]:
        """All rows, in order, and their paths' hashes where these are known."""
        for part in self.parts:
            yield part if isinstance(part, Fresh) else (part.file.group(part.number), None)


def changed_ranges(
    store: ObjectStore,
    touched: Sequence[tuple[RangeRow, int]],
    changes: pa.Table,
    split: Split,
    on_overlaid: OnOverlaid,
) -> Iterator[list[Changed]]:
    """Each of some ranges with its changes, in order, a window at a time.

    Args:
        store: the namespace.
        touched: ranges, ascending, and how many of the changes belong to each.
        changes: ``STAGED_SCHEMA``, strictly ascending paths. A column ``digest`` may come along.
        split: the repository's split.
        on_overlaid: called with what really changed, in order. Several ranges' changes come together.

    Raises ``Corrupted`` or ``ObjectNotFound`` for a range that cannot be trusted.
    """
    done = 0
    for window in _windows(touched):
        files = fetch_ranges(store, [row for row, _ in window])
        counts = [count for _, count in window]
        mine = changes.slice(done, sum(counts))
        done += mine.num_rows
        if len(window) == 1 and mine.num_rows > _CHANGES:
            yield [Changed(flooded(files[0].read(), mine, on_overlaid))]
        else:
            yield list(_together(files, counts, mine, split, on_overlaid))


def flooded(base: pa.Table, changes: pa.Table, on_overlaid: OnOverlaid) -> Iterator[Fresh]:
    """The rows that ``base`` becomes with very many changes, of which some are laid over it at a time."""
    done = 0
    for start in range(0, changes.num_rows, _CHANGES):
        part = changes.slice(start, _CHANGES)
        # The base's rows up to the next part's first path go with this part.
        following = changes.slice(start + _CHANGES, 1).column("path")
        stop = base.num_rows
        if len(following):
            stop = pc.search_sorted(base.column("path"), following[0]).as_py()
        overlaid = overlay(base.slice(done, stop - done), part)
        on_overlaid(overlaid)
        done = stop
        yield Fresh(overlaid.table, path_hashes(overlaid.table.column("path")))


def _windows(touched: Sequence[tuple[RangeRow, int]]) -> Iterator[list[tuple[RangeRow, int]]]:
    window: list[tuple[RangeRow, int]] = []
    size = 0
    for row, count in touched:
        if window and size + row.count + count > _ROWS:
            yield window
            window, size = [], 0
        window.append((row, count))
        size += row.count + count
    if window:
        yield window


def _together(
    files: list[RangeFile], counts: list[int], changes: pa.Table, split: Split, on_overlaid: OnOverlaid
) -> Iterator[Changed]:
    """Ranges whose changes are laid over all of them in one step."""
    ends = np.cumsum(counts).tolist()
    mine = [changes.slice(start, end - start) for start, end in pairwise([0, *ends])]
    groups = [_touched_groups(file, some, split) for file, some in zip(files, mine, strict=True)]
    base = pa.concat_tables(list(map(_read, files, groups))).combine_chunks()
    overlaid = overlay(base, changes)
    on_overlaid(overlaid)
    rows = overlaid.table.combine_chunks()
    hashes = path_hashes(rows.column("path"))
    firsts = [first for at in zip(files, mine, groups, strict=True) for first in _first_paths(*at)]
    before, after = (_borders(table, firsts) for table in (base, rows))
    slices = (Fresh(rows.slice(start, end - start), hashes[start:end]) for start, end in pairwise(after))
    grown = iter((np.diff(_running(rows)[after]) - np.diff(_running(base)[before])).tolist())
    for file, own in zip(files, groups, strict=True):
        if own is None:
            next(grown)
            yield Changed([next(slices)])
        else:
            changed = dict(zip(own, slices, strict=False))  # slices go on with the next range's
            parts = [changed.get(number, Kept(file, number)) for number in range(file.groups)]
            yield Changed(parts, sum(islice(grown, len(own))), file)


def _touched_groups(file: RangeFile, changes: pa.Table, split: Split) -> list[int] | None:
    """The row groups that changes belong to. None where all had better be read."""
    if 2 * changes.num_rows > split.target_entries:
        return None  # it will probably be cut
    touched: list[int] = np.unique(file.groups_of(changes.column("path"))).tolist()
    return touched if len(touched) <= _MOST_TOUCHED * file.groups else None


def _read(file: RangeFile, groups: list[int] | None) -> pa.Table:
    return file.read() if groups is None else file.read_groups(groups, RANGE_SCHEMA.names)[1]


def _first_paths(file: RangeFile, changes: pa.Table, groups: list[int] | None) -> Iterator[str]:
    """Where the rows of each row group that was read begin, after the changes too."""
    first = file.first_paths[groups[0] if groups else 0].decode()
    # What is new may come before the range's first path. Strings compare by code points, as UTF-8 does by bytes.
    yield min(first, changes.column("path")[0].as_py())
    for number in (groups or [])[1:]:
        yield file.first_paths[number].decode()


def _borders(table: pa.Table, firsts: list[str]) -> list[int]:
    """The row at which each of these paths is or would be, and the number of rows."""
    return [*pc.search_sorted(table.column("path"), array(firsts, pa.string())).to_pylist(), table.num_rows]


def _running(table: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The sum of the sizes before each row, and of all."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(to_numpy(table.column("size_bytes")))])
