"""The size of ranges: the same work on repositories whose ranges are of other sizes, on a disk and far away.

::

    PYTHONPATH=.:tests python -m bench.sizes 10M                        the first repositories' split, and the default
    PYTHONPATH=.:tests python -m bench.sizes 1M --splits 1000,1000,10000     another one

*Far* is a directory whose requests take 25 ms longer each and share 100 MB a second. Nothing is kept between the runs.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any

import pyarrow as pa

from bench.__main__ import SIZES
from bench.dataset import DataSet
from lakeops.engine.base import LocalEngine
from lakeops.model.arrow import RANGE_SCHEMA
from lakeops.model.clock import Ids
from lakeops.model.records import Split
from lakeops.ranges.apply import apply
from lakeops.ranges.build import build
from lakeops.ranges.diff import diff
from lakeops.ranges.digest import entry_digests
from lakeops.ranges.merge import apply_plan, plan_merge
from lakeops.ranges.range_file import MetarangeFile, write_metarange
from lakeops.ranges.read import RangeReader, entries
from lakeops.store.disk_cache import background_writes
from lakeops.store.local import LocalStore

FIRST = Split(6_000, 19_000, 100_000)
DELAY, BANDWIDTH = 0.025, 100e6
CHANGES = 1_000


class Distance(LocalStore):
    """A directory without fsync, near or far away, that counts what is asked of it."""

    def __init__(self, root: Path, *, far: bool) -> None:
        super().__init__(root, fsync=False)
        self.remote = far
        self.requests = self.written = self.read = 0
        self._lock = Lock()
        self._free = 0.0

    def _travel(self, sent: int, received: int) -> None:
        with self._lock:
            self.requests, self.written, self.read = self.requests + 1, self.written + sent, self.read + received
            self._free = max(self._free, time.perf_counter()) + (sent + received) / BANDWIDTH
            due = self._free + DELAY
        if self.remote:
            time.sleep(max(0.0, due - time.perf_counter()))

    def get(self, key: str) -> bytes:
        data = super().get(key)
        self._travel(0, len(data))
        return data

    def get_range(self, key: str, start: int, length: int) -> bytes:
        data = super().get_range(key, start, length)
        self._travel(0, len(data))
        return data

    def put(self, key: str, data: Any, **options: Any) -> Any:
        done = super().put(key, data, **options)
        self._travel(done.size_bytes, 0)
        return done


class Sized:
    """A data set in ranges of one split."""

    def __init__(self, root: Path, split: Split, tables: Callable[[], Iterator[pa.Table]]) -> None:
        self._root = root
        self._split = split
        self._ids = Ids()
        self.heads: dict[str, MetarangeFile] = {}
        begun, cpu = time.perf_counter(), time.process_time()
        store = LocalStore(root, fsync=False)
        base = build(store, tables(), split, self._ids.new())
        self.heads["base"] = write_metarange(store, base, self._ids.new())
        self.made = {
            "import": [time.perf_counter() - begun, time.process_time() - cpu],
            "ranges": len(base),
            "bytes_per_entry": sum(base.table["file_bytes"].to_pylist()) / base.count,
        }

    def work(self, far: bool, data: DataSet) -> dict[str, list[float]]:
        """Milliseconds, CPU's, requests, MB read and written of each row."""
        rows: dict[str, list[float]] = {}

        def row(name: str, act: Callable[[RangeReader], object]) -> None:
            store = Distance(self._root, far=far)
            begun, cpu = time.perf_counter(), time.process_time()
            with background_writes(store) as travelling:
                act(RangeReader(travelling))
            found = [(time.perf_counter() - begun) * 1e3, (time.process_time() - cpu) * 1e3, store.requests]
            rows[name] = [round(value, 1) for value in (*found, store.read / 1e6, store.written / 1e6)]

        random = [data.random(CHANGES, 1), data.random(CHANGES, 2)]
        row("commit 1k clustered", lambda reader: self._commit(reader, data.clustered(CHANGES, 1).staged, "near"))
        row("commit 1k random", lambda reader: self._commit(reader, random[0].staged, "one"))
        self._commit(RangeReader(LocalStore(self._root, fsync=False)), random[1].staged, "other")
        row("diff 1k random", lambda reader: self._diff(reader, "base", "one"))
        row("diff 1k clustered", lambda reader: self._diff(reader, "base", "near"))
        row("merge 1k+1k random", self._merge)
        row("first page", lambda reader: self._page(reader, ""))
        return rows

    def _read(self, reader: RangeReader, name: str) -> Any:
        head = self.heads[name]
        return reader.metarange(Pointer(head.id, head.file, head.digest))

    def _commit(self, reader: RangeReader, changes: pa.Table, name: str) -> None:
        attempt = self._ids.new()
        base = self._read(reader, "base")
        done = apply(reader, base, changes, engine=LocalEngine(), split=self._split, attempt=attempt)
        self.heads[name] = write_metarange(reader.store, done.metarange, attempt)

    def _diff(self, reader: RangeReader, left: str, right: str) -> None:
        sum(part.num_rows for part in diff(reader, self._read(reader, left), self._read(reader, right)))

    def _merge(self, reader: RangeReader) -> None:
        base, source, dest = (self._read(reader, name) for name in ("base", "one", "other"))
        attempt = self._ids.new()
        planned = plan_merge(reader, base, source, dest, None)
        done = apply_plan(reader, planned, source, engine=LocalEngine(), split=self._split, attempt=attempt)
        write_metarange(reader.store, done.metarange, attempt)

    def _page(self, reader: RangeReader, folder: str) -> None:
        tables = reader.scan(self._read(reader, "base"), folder)
        list(islice((entry for table in tables for entry in entries(table)), 1_000))


class Pointer:
    """What a commit says of its metarange."""

    def __init__(self, meta_range_id: str, meta_range_file: str, meta_range_digest: str) -> None:
        self.meta_range_id = meta_range_id
        self.meta_range_file = meta_range_file
        self.meta_range_digest = meta_range_digest


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.sizes", description=__doc__.splitlines()[0])
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("--splits", type=_split, nargs="+", default=[FIRST, Split()], metavar="MIN,TARGET,MAX")
    arguments = parser.parse_args()
    data = DataSet(SIZES[arguments.size])
    with tempfile.TemporaryDirectory(prefix="lakeops-sizes-") as place:
        file = Path(place) / "entries.arrow"
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, RANGE_SCHEMA) as writer:
            for which in data.batches():
                table = data.entries(which)
                writer.write_table(table.append_column(RANGE_SCHEMA.field("digest"), entry_digests(table)))

        def tables() -> Iterator[pa.Table]:
            with pa.OSFile(str(file)) as source, pa.ipc.open_stream(source) as stream:
                for batch in stream:
                    yield pa.Table.from_batches([batch])

        for number, split in enumerate(arguments.splits):
            sized = Sized(Path(place) / f"split-{number}", split, tables)
            print(json.dumps({"split": astuple(split), **sized.made, "load": os.getloadavg()[0]}), flush=True)
            for far in (False, True):
                for name, values in sized.work(far, data).items():
                    print(f"{'far' if far else 'disk':5} {name:22}", *values, flush=True)


def _split(text: str) -> Split:
    return Split(*map(int, text.split(",")))


if __name__ == "__main__":
    main()
