"""Building a metarange from nothing: sorted batches in, ranges written as they close, a metarange out.

The measure of everything else: applying changes to a metarange must give the ids that building the result gives. Rows
are cut on the way in, which costs little. Digests, encoding and writing run in threads: to send the rows to another
process takes as long. The number of rows is not known before they come, so somebody may take over the rest whenever
their number has doubled.

``replace_prefix`` puts one metarange in the place of a prefix of another: what an import does, whatever its size. Both
keep their ranges by reference. Rows are cut anew only at the two borders, from the last cut before each until a cut
falls on the end of a range that stands already; so a handful of ranges is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate, chain, count, islice, pairwise, takewhile

import pyarrow as pa

from lakeops.engine.base import LocalEngine
from lakeops.model.clock import Ids
from lakeops.model.errors import InvalidInput
from lakeops.model.records import Split
from lakeops.ranges.apply import MetarangeBuilder
from lakeops.ranges.chunker import Chunker, check_split, chunks
from lakeops.ranges.digest import with_digests
from lakeops.ranges.metarange import Metarange, RangeRow, SortedPaths, upper_bound
from lakeops.ranges.range_file import RangeWriter, fetch_range, release_memory
from lakeops.store.base import ObjectStore

_FIRST = 32
"""Ranges that are built before somebody may take over."""


def build(
    store: ObjectStore,
    tables: Iterable[pa.Table],
    split: Split,
    attempt: str,
    *,
    engine: LocalEngine | None = None,
    known: Iterable[RangeRow] = (),
    on_progress: Callable[[int], None] = lambda _: None,
    on_ranges: Callable[[list[RangeRow]], None] = lambda _: None,
    elsewhere: Callable[[int, list[RangeRow]], Metarange | None] = lambda *_: None,
) -> Metarange:
    """The metarange of these entries, its ranges written (the metarange itself is not).

    Args:
        store: the namespace.
        tables: batches of ``ENTRY_SCHEMA``, paths strictly ascending within and across them; else ``InvalidInput``.
            Digests that are known already may come along (``RANGE_SCHEMA``).
        split: the repository's split.
        attempt: fresh for every try.
        engine: the threads that write ranges.
        known: ranges to refer to where the outcome equals them, instead of writing them again. The commits that they
            come from must be checked live when this is published.
        on_progress: called with the number of entries that are in written ranges so far.
        on_ranges: called with the first ranges, each of which ends with a cut, whenever there are a quarter more.
        elsewhere: given how many more ranges to expect at least, and all ranges so far. May make the rest itself,
            instead of having it built from the tables.
    """
    check_split(split)
    engine = engine or LocalEngine()
    standing = {(row.first_path, row.last_path, row.count): row for row in known}
    closed = chunks(tables, split)

    def write(some: list[pa.Table], writing: ObjectStore) -> list[RangeRow]:
        columns = (rows.column("path") for rows in some)
        # The least that a range must have to equal the rows, as far as can be told without digests.
        spans = ((paths[0].as_py(), paths[-1].as_py(), len(paths)) for paths in columns)
        same = [standing[span] for span in spans if span in standing]
        writer, table = RangeWriter(writing, attempt + Ids().new(), same), with_digests(pa.concat_tables(some))
        ends = accumulate(map(len, some), initial=0)
        return [writer.write(table.slice(start, stop - start)) for start, stop in pairwise(ends)]

    built: list[RangeRow] = []
    entries = size_bytes = told = 0
    for first in closed:
        size = max(_FIRST, len(built))
        if (rest := elsewhere(size, built)) is not None:
            built += rest.rows(0, len(rest))
            break
        ready, group = chain([first], islice(closed, size - 1)), engine.group(size, at_once=True)
        tasks = takewhile(bool, (list(islice(ready, group)) for _ in count()))
        for _, rows in engine.run(write, tasks, store):  # in order
            built += rows
            entries += sum(row.count for row in rows)
            before, size_bytes = size_bytes, size_bytes + sum(row.file_bytes for row in rows)
            release_memory(before, size_bytes)
            on_progress(entries)
            if len(built) > max(_FIRST, told * 5 // 4):
                told = len(built)
                on_ranges(built[:-1])  # the last one may have ended for want of more
    on_progress(entries)
    return Metarange.from_rows(built)


def replace_prefix(
    base: Metarange,
    prefix: str,
    part: Metarange,
    *,
    store: ObjectStore,
    split: Split,
    attempt: str,
    exact: bool = False,
) -> Metarange:
    """The metarange with ``part`` in place of everything under ``prefix``.

    ``part`` was built from scratch, and its paths begin with the prefix. The empty prefix means everything. An
    ``exact`` one is a path, and nothing else that begins with it goes.
    """
    below = prefix.encode()
    above = below + b"\0" if exact else upper_bound(prefix)
    if above is None:
        return part
    if len(part) and not (part.first_paths[0] >= below and part.last_paths[len(part) - 1] < above):
        raise InvalidInput(f"metarange {part.id[:12]} holds paths that do not begin with {prefix!r}")
    low, high = base.find(below), base.find(above)
    # A metarange's last range ends for want of more, not with a cut: it is open again when something follows.
    low = min(low, len(base) - 1) if len(base) and len(part) else low
    borders = base.at(sorted({low, high} - {len(base)}))
    building = MetarangeBuilder(Chunker(split), RangeWriter(store, attempt, borders))
    building.keep(base, 0, low)
    if low < len(base) and base.row(low).first_path.encode() < below:
        rows = fetch_range(store, base.row(low)).read()
        building.open(rows.slice(0, SortedPaths(rows.column("path")).first_at(below)))
    if len(part):
        building.keep(part, 0, len(part) - 1)
        if high == len(base):
            building.keep(part, len(part) - 1, len(part))
        else:
            building.open(fetch_range(store, part.row(len(part) - 1)).read())
    if high < len(base) and base.row(high).first_path.encode() < above:
        rows = fetch_range(store, base.row(high)).read()
        building.open(rows.slice(SortedPaths(rows.column("path")).first_at(above)))
        high += 1
    building.keep(base, high, len(base))
    return building.finish()
