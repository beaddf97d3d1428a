"""Building a metarange from nothing: sorted batches in, ranges written as they close, a metarange out.

The measure of everything else: applying changes to a metarange must give the ids that building the result gives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.errors import InvalidInput
from lakeops.model.records import Split
from lakeops.model.schema import ENTRY_SCHEMA, RANGE_SCHEMA
from lakeops.ranges.cutter import Cut, Cutter
from lakeops.ranges.digest import entry_digests
from lakeops.ranges.metarange import Metarange, RangeRow
from lakeops.ranges.split import check_split
from lakeops.ranges.write import describe_range, release_memory, write_range
from lakeops.store.base import ObjectStore

_AT_ONCE = 100_000
Digester = Callable[[pa.Table], pa.Array]


def build(
    store: ObjectStore,
    tables: Iterable[pa.Table],
    split: Split,
    attempt: str,
    *,
    digests: Digester = entry_digests,
    threads: int = 4,
    known: Iterable[RangeRow] = (),
    on_progress: Callable[[int], None] | None = None,
) -> Metarange:
    """The metarange of these entries, its ranges written (the metarange itself is not).

    Args:
        store: the namespace.
        tables: batches of ``ENTRY_SCHEMA``, paths strictly ascending within and across them; else ``InvalidInput``.
        split: the repository's split.
        attempt: fresh for every try.
        digests: gives the entry digests of a batch. An import whose workers computed them already passes them on
            here (``lambda batch: batch["digest"]``); the batch may have more columns than ``ENTRY_SCHEMA``.
        threads: how many ranges are encoded and written at a time.
        known: ranges to refer to where the outcome equals them, instead of writing them again; the commits that they
            come from must be checked live when this is published.
        on_progress: called with the number of entries that are in written ranges so far.
    """
    check_split(split)
    rows: list[RangeRow] = []
    pending: deque[Future[RangeRow]] = deque()
    done = 0
    standing = {row.id: row for row in known}

    def written(cut: Cut) -> RangeRow:
        described = describe_range(cut)
        return standing.get(described.id) or write_range(store, cut, attempt, described)

    with ThreadPoolExecutor(max_workers=threads, thread_name_prefix="build") as pool:
        try:
            for cut in _closed(tables, split, digests):
                while len(pending) >= threads:
                    rows.append(pending.popleft().result())
                    done += rows[-1].count
                    release_memory(len(rows))
                    if on_progress:
                        on_progress(done)
                pending.append(pool.submit(written, cut))
            rows += [future.result() for future in pending]
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    metarange = Metarange.from_rows(rows)
    if on_progress:
        on_progress(metarange.count)
    return metarange


def with_digests(table: pa.Table, digests: Digester = entry_digests) -> pa.Table:
    """The rows with their digests: ``RANGE_SCHEMA``, from a table with at least ``ENTRY_SCHEMA``'s columns.

    Raises ``InvalidInput`` for a null in any of them.
    """
    for name in ENTRY_SCHEMA.names:
        if table.column(name).null_count:
            raise InvalidInput(f"column {name!r} holds nulls; every entry needs a value there")
    columns = table.select(ENTRY_SCHEMA.names).cast(ENTRY_SCHEMA).columns
    return pa.table([*columns, digests(table)], schema=RANGE_SCHEMA)


def check_ascending(paths: pa.Array | pa.ChunkedArray, after: str | None = None) -> None:
    """Raise ``InvalidInput`` unless paths ascend strictly by their bytes, all of them after ``after``."""
    chunks = paths.chunks if isinstance(paths, pa.ChunkedArray) else [paths]
    for chunk in chunks:
        if not len(chunk):
            continue
        rising = pc.less(chunk.slice(0, len(chunk) - 1), chunk.slice(1))
        where = pc.index(rising, value=False).as_py()
        if where >= 0 or (after is not None and chunk[0].as_py() <= after):
            raise InvalidInput(
                f"paths must be unique and sorted by their bytes; they are not at {chunk[where + 1].as_py()!r}"
            )
        after = chunk[-1].as_py()


def _closed(tables: Iterable[pa.Table], split: Split, digests: Digester) -> Iterator[Cut]:
    """Each range in turn."""
    cutter = Cutter(split)
    last: str | None = None
    for table in tables:
        if not table.num_rows:
            continue
        check_ascending(table.column("path"), last)
        last = table.column("path")[-1].as_py()
        for start in range(0, table.num_rows, _AT_ONCE):
            yield from cutter.add(with_digests(table.slice(start, _AT_ONCE), digests))
    if cutter.open:
        yield cutter.rest()
