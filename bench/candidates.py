"""What garbage collection may delete, beside DuckDB's anti-join over the same Parquet files.

Usage: python -m bench.candidates make|lakeops|duckdb FOLDER ENTRIES

Each side is a process of its own, so that its peak memory is its own. A listing of so many names is held against two
versions of a repository with as many entries each: the addresses are those of files that Spark wrote, about 100
bytes; every sixth name is nobody's. lakeops reads the listing as garbage collection keeps it, DuckDB from Parquet; both
write what they find, in order.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from bench.sample import CODE, Sample, peak_mb

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

_LISTING, _SPOOLED, _FOUND = "listing.parquet", "listing.arrow", "found.parquet"
_COLUMNS = ["physical_address", "size_bytes", "mtime"]


def measured(side: str, folder: Path, size: int) -> Sample:
    """One run of a side; what it works on is made when it is not there."""
    if not (folder / _LISTING).exists():
        _run("make", folder, size)
    return Sample(**json.loads(_run(side, folder, size)))


def _run(what: str, folder: Path, size: int) -> str:
    command = [sys.executable, "-m", "bench.candidates", what, str(folder), str(size)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [CODE, os.environ.get("PYTHONPATH")]))}
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout


def _orphans(size: int) -> int:
    return size - size * 5 // 6


def _make(folder: Path, size: int) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from support.synthetic import with_quick_digests

    from lakeops.model.records import Split
    from lakeops.ranges.build import build
    from lakeops.store.local import LocalStore

    folder.mkdir()
    store = LocalStore(folder, fsync=False)
    for version in (0, 1):
        tables = (with_quick_digests(_entries(which, version)) for which in _batches(np.arange(size, dtype=np.uint64)))
        ranges = build(store, tables, Split(), f"version{version}")
        pq.write_table(ranges.table, folder / f"ranges-{version}.parquet")
    # Five names of six are the repository's, spread over all of it; numbers order as addresses do.
    kept = np.random.default_rng(1).permutation(size)[: size - _orphans(size)]
    which = np.concatenate([np.sort(kept), np.arange(size, size + _orphans(size))]).astype(np.uint64)
    schema = _entries(which[:1], 0).select(_COLUMNS).schema
    lz4 = pa.ipc.IpcWriteOptions(compression="lz4")
    with (
        pq.ParquetWriter(folder / _LISTING, schema) as writer,
        pa.ipc.new_stream(folder / _SPOOLED, schema, options=lz4) as spool,
    ):
        for some in _batches(which):
            table = _entries(some, 0).select(_COLUMNS)
            writer.write_table(table)
            spool.write_table(table)


def _batches(which: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(which), 65_536):
        yield which[start : start + 65_536]


def _entries(which: np.ndarray, version: int) -> pa.Table:
    from support.references import spark_addresses
    from support.synthetic import entries

    table = entries(which, version)
    return table.set_column(1, table.schema.field(1), spark_addresses(which))


def _spooled(path: Path) -> Iterator[pa.Table]:
    """The rows of an Arrow stream, a batch at a time."""
    import pyarrow as pa

    with pa.OSFile(str(path)) as source, pa.ipc.open_stream(source) as stream:
        for batch in stream:
            yield pa.Table.from_batches([batch])


def _lakeops(folder: Path) -> Callable[[], int]:
    import duckdb  # noqa: F401 - both sides have loaded it before the clock starts
    import pyarrow as pa
    import pyarrow.parquet as pq

    from lakeops.engine.base import LocalEngine
    from lakeops.ops.gc.unreferenced import LISTED_SCHEMA, scratching, unreferenced
    from lakeops.store.local import LocalStore

    held = ExitStack()
    scratch = held.enter_context(scratching(LocalStore(folder, fsync=False), folder))
    # The listing lies there already, as DuckDB's does.
    listed = [chunk for table in _spooled(folder / _SPOOLED) for chunk in scratch.write_chunks(table)]

    def work() -> int:
        # Not `read_table`, which imports pandas where it is installed.
        ranges = pa.concat_tables([pq.ParquetFile(folder / f"ranges-{version}.parquet").read() for version in (0, 1)])
        with held, pq.ParquetWriter(folder / _FOUND, LISTED_SCHEMA, use_dictionary=False) as writer:
            found = unreferenced(scratch, listed, ranges, engine=LocalEngine())
            for table in found.batches():
                writer.write_table(table)
            return found.count

    return work


def _duckdb(folder: Path) -> Callable[[], int]:
    import duckdb

    def work() -> int:
        with duckdb.connect() as connection:
            connection.execute("set enable_progress_bar = false")
            connection.execute(
                f"""
                copy (
                  select listed.* from read_parquet('{folder / _LISTING}') listed
                  anti join read_parquet('{folder}/_lakefs/ranges/*.parquet') referenced using (physical_address)
                  order by physical_address
                ) to '{folder / _FOUND}' (format parquet)
                """
            )
            rows = connection.execute(f"select count(*) from '{folder / _FOUND}'").fetchall()
            return int(rows[0][0])

    return work


def main() -> None:
    side, folder, size = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if side == "make":
        _make(folder, size)
        return
    work = {"lakeops": _lakeops, "duckdb": _duckdb}[side](folder)
    begun, cpu = time.perf_counter(), time.process_time()
    found = work()
    sample = Sample(time.perf_counter() - begun, time.process_time() - cpu, peak_mb=peak_mb())
    if found != _orphans(size):
        raise SystemExit(f"{side} found {found} objects where {_orphans(size)} are unreferenced")
    print(json.dumps(sample.plain()))


if __name__ == "__main__":
    main()
