"""A long listing in a process of its own, so that its memory can be measured.

Usage: python -m support.big_listing FOLDER NAMES

Holds so many names against the ranges that ``make_ranges`` left in the folder, and prints what was found and the most
memory that the process ever held, as one JSON document.
"""

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from support import synthetic
from support.big_repository import peak_megabytes
from support.references import searched, spark_addresses

from lakeops.engine.base import LocalEngine
from lakeops.model.records import Split
from lakeops.ops.gc.unreferenced import LISTED_SCHEMA
from lakeops.ranges.build import build
from lakeops.store.local import LocalStore

_RANGES = "ranges.parquet"


def make_ranges(folder: Path, count: int) -> int:
    """Ranges that refer to the first ``count`` names; how many ranges there are."""
    store = LocalStore(folder, fsync=False)
    tables = (synthetic.with_quick_digests(_entries(which)) for which in synthetic.numbers(count))
    metarange = build(store, tables, Split(), "made")
    pq.write_table(metarange.table, folder / _RANGES)
    return len(metarange)


def _entries(which) -> pa.Table:
    table = synthetic.entries(which)
    return table.set_column(1, table.schema.field(1), spark_addresses(which))


def _listing(names: int):
    for which in synthetic.numbers(names):
        columns = [spark_addresses(which), pa.repeat(1, len(which)), pa.repeat(2, len(which))]
        yield pa.table(columns, schema=LISTED_SCHEMA)


def main() -> None:
    folder, names = Path(sys.argv[1]), int(sys.argv[2])
    store, ranges = LocalStore(folder, fsync=False), pq.ParquetFile(folder / _RANGES).read(use_threads=False)
    with searched(store, _listing(names), ranges, engine=LocalEngine(3), folder=folder) as (found, _):
        rows = sum(table.num_rows for table in found.batches())
        counts = {"listed": found.listed, "kept": found.kept, "count": found.count}
    print(json.dumps(counts | {"rows": rows, "peak_mb": peak_megabytes()}))


if __name__ == "__main__":
    main()
