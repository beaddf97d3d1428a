"""Verifying committed data in full: everything that a reader takes on trust because the writer saw to it.

A reader checks that it holds the bytes that were written. Here the bytes are checked against what they must say:
entry digests are computed again from the rows, paths must rise, ranges must end where the cutting rule says, and a
metarange must describe its ranges as they are. A flaw never stops the rest: what can still be looked at is.

Tasks and results are plain data. ``verify`` runs in a thread or on a cluster.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.arrow import RANGE_SCHEMA, first_true, from_numpy, in_one, scalar, text
from lakeops.model.errors import Corrupted, InvalidInput, LakeopsError, ObjectNotFound
from lakeops.model.names import MAX_PATH_BYTES
from lakeops.model.records import Split
from lakeops.model.sanitising import excerpt
from lakeops.ranges.chunker import cut_ends, path_hashes
from lakeops.ranges.diff import deltas
from lakeops.ranges.digest import entry_digests
from lakeops.ranges.file import fetch_range
from lakeops.ranges.metarange import Metarange, RangeRow
from lakeops.ranges.read import RangeReader
from lakeops.ranges.write import release_memory
from lakeops.store.base import ObjectStore


@dataclass(frozen=True, slots=True)
class Flaw:
    """Something that is not as it must be: a kind of finding, and what is wrong in words."""

    kind: str
    message: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class VerifyTask:
    """Ranges to verify.

    Attributes:
        index: which task this is. One that ran twice has two results with one index.
        rows: the ranges.
        split: the repository's split. None when it makes no sense, so that no cut can be judged.
        columns: the columns of the rows that the caller wants back.
    """

    index: int
    rows: tuple[RangeRow, ...]
    split: Split | None
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VerifiedRange:
    """What a range turned out to be.

    Attributes:
        flaws: what is wrong with it.
        closed: whether it ends at a cut; only the last range of a metarange may be open.
        table: the wanted columns. None when the file cannot be used.
    """

    flaws: tuple[Flaw, ...]
    closed: bool
    table: pa.Table | None


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """What a task gives back, a range a row of the task."""

    index: int
    ranges: tuple[VerifiedRange, ...]


def verify(task: VerifyTask, store: ObjectStore) -> VerifyResult:
    """Verify the ranges of a task. Raises nothing that is a range's own fault."""
    done, size_bytes = [], 0
    for row in task.rows:
        done.append(verify_range(store, row, task.split, task.columns))
        release_memory(size_bytes, size_bytes + row.file_bytes)
        size_bytes += row.file_bytes
    return VerifyResult(task.index, tuple(done))


def verify_range(store: ObjectStore, row: RangeRow, split: Split | None, columns: tuple[str, ...]) -> VerifiedRange:
    """Everything that can be said of one range."""
    try:
        table = fetch_range(store, row, ordered=False).read()  # order is judged below
        table.validate(full=True)
    except ObjectNotFound:
        return _unusable_range("range_missing", "the file is not there")
    except (Corrupted, pa.ArrowException) as error:
        return _unusable_range("range_damaged", f"the file is not what was written: {_line(error)}")
    except LakeopsError as error:
        return _unusable_range("range_unreadable", f"the file cannot be read: {_line(error)}")
    flaws = [*_summary(table, row), *_order(table["path"]), *_entries(table), *_digests(table)]
    closed = True
    if split is not None:
        ends = cut_ends(path_hashes(table["path"]), split).tolist()
        closed = bool(ends) and ends[-1] == table.num_rows
        flaws += _cuts(ends, table.num_rows)
    return VerifiedRange(tuple(flaws), closed, table.select(list(columns)))


def row_flaw(row: RangeRow) -> Flaw | None:
    """What is wrong with a metarange's row by itself, the file unseen."""
    if not re.fullmatch(rf"{row.hex_id}-[0-9A-Za-z._-]{{1,128}}\.parquet", row.file):
        return Flaw("metarange_row_invalid", f"{excerpt(row.file)} is not a file of range {row.hex_id[:16]}")
    return None if row.flaw is None else Flaw("metarange_row_invalid", row.flaw)


def order_flaw(metarange: Metarange) -> Flaw | None:
    """Where a metarange's ranges are out of order or overlap, by what it tells of them."""
    return None if metarange.disorder is None else Flaw("metarange_order", metarange.disorder)


def list_flaw(reader: RangeReader, metarange: Metarange, since: Metarange) -> Flaw | None:
    """How a metarange's list of changes differs from what differs between the ranges; None where it does not.

    Args:
        reader: reads the ranges of both.
        metarange: one that has a list.
        since: what the list says that it changes.

    Raises ``Corrupted`` or ``ObjectNotFound`` for a range that cannot be read.
    """
    listed = metarange.changes_since(since)
    if listed is None:
        return None
    try:
        sides = [listed.before, listed.after]
    except Corrupted as error:
        return Flaw("changes_mismatch", _line(error))
    done = [0, 0]
    plain = [Metarange(side.table) for side in (since, metarange)]
    for delta in deltas(reader, *plain, columns=(RANGE_SCHEMA.names, RANGE_SCHEMA.names)):
        before = np.sort(np.concatenate((delta.removed, delta.pairs[0])))
        after = np.sort(np.concatenate((delta.added, delta.pairs[1])))
        for number, (side, rows) in enumerate(((delta.left, before), (delta.right, after))):
            found = side.table.take(from_numpy(rows))
            if not found.equals(sides[number].slice(done[number], found.num_rows)):
                return Flaw("changes_mismatch", "its list of changes is not what differs between its ranges and those")
            done[number] += found.num_rows
    if done != [side.num_rows for side in sides]:
        return Flaw("changes_mismatch", "its list of changes has more than what differs between its ranges and those")
    return None


def _unusable_range(kind: str, message: str) -> VerifiedRange:
    return VerifiedRange((Flaw(kind, message),), closed=True, table=None)


def _summary(table: pa.Table, row: RangeRow) -> Iterator[Flaw]:
    """How the metarange's row differs from the rows."""
    if not table.num_rows:
        yield Flaw("range_summary_mismatch", "it is empty")
        return
    said = (row.first_path, row.last_path, row.count, row.size_bytes)
    paths = table["path"]
    held = (paths[0].as_py(), paths[-1].as_py(), table.num_rows, int(pc.sum(table["size_bytes"]).as_py()))
    names = ("first path", "last path", "count", "bytes")
    wrong = [name for name, one, other in zip(names, said, held, strict=True) if one != other]
    if wrong:
        yield Flaw("range_summary_mismatch", f"its metarange tells another {' and '.join(wrong)} than it has")


def _order(paths: pa.ChunkedArray) -> Iterator[Flaw]:
    at = first_true(pc.greater_equal(paths[:-1], paths[1:])) if len(paths) > 1 else None
    if at is not None:
        yield Flaw("range_order", f"{excerpt(paths[at].as_py())} is followed by {excerpt(paths[at + 1].as_py())}")


def _cuts(ends: Sequence[int], rows: int) -> Iterator[Flaw]:
    if ends and ends[0] < rows:
        yield Flaw("range_boundary", f"it goes on after row {ends[0]:,}, where the cutting rule ends it")


def _entries(table: pa.Table) -> Iterator[Flaw]:
    size = pc.binary_length(table["path"])
    rules = (
        (pc.equal(size, scalar(0, size.type)), "has no path"),
        (pc.greater(size, scalar(MAX_PATH_BYTES, size.type)), f"has a path over {MAX_PATH_BYTES} bytes"),
        (pc.match_substring(table["path"], "\0"), "has NUL in its path"),
        (pc.less(table["size_bytes"], scalar(0, pa.int64())), "has a negative size"),
        (pc.equal(table["checksum"], text("")), "has no checksum"),
    )
    for bad, why in rules:
        if (at := first_true(bad)) is not None:
            count = int(pc.sum(bad).as_py())
            yield Flaw("entry_invalid", f"{excerpt(table['path'][at].as_py())} {why}{_and_more(count)}", count)


def _digests(table: pa.Table) -> Iterator[Flaw]:
    try:
        differ = pc.not_equal(entry_digests(table), in_one(table["digest"]))
    except InvalidInput as error:
        yield Flaw("entry_invalid", _line(error))
        return
    if (at := first_true(differ)) is not None:
        count = int(pc.sum(differ).as_py())
        shown = excerpt(table["path"][at].as_py())
        yield Flaw(
            "entry_digest_mismatch", f"the row of {shown} is not what its digest covers{_and_more(count)}", count
        )


def _and_more(count: int) -> str:
    return f", and {count - 1:,} more rows" if count > 1 else ""


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
