"""Verbs on repositories of up to a thousand million entries, whose ranges are made up but where the verbs look.

::

    PYTHONPATH=.:tests python -m bench --size 100M

A metarange of that many ranges is written as any other is. The ranges around the places that are read and changed
exist, of the others only the rows do. Each figure is the median of several runs in one process, each with a new reader.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

from bench.__main__ import LARGE, SIZES
from bench.dataset import DataSet
from bench.sizes import CHANGES, Distance, Pointer
from lakeops.engine.base import LocalEngine
from lakeops.model.arrow import STAGED_SCHEMA, no_rows
from lakeops.model.clock import Ids
from lakeops.model.records import Split
from lakeops.ranges.apply import apply
from lakeops.ranges.build import build
from lakeops.ranges.diff import diff
from lakeops.ranges.merge import apply_plan, plan_merge
from lakeops.ranges.metarange import METARANGE_SCHEMA, Metarange
from lakeops.ranges.range_file import write_metarange
from lakeops.ranges.read import RangeReader, entries
from lakeops.store.local import LocalStore

RANGE = 2_802
"""Entries of a range, on average."""
PLACES = (0.3, 0.6, 0.8)
AROUND = 30_000
"""Entries of a place whose ranges exist."""


class Large:
    """A repository of ``size`` entries in a folder."""

    def __init__(self, root: Path, size: int) -> None:
        self._root = root
        self._data = DataSet(size)
        self._ids = Ids()
        self._store = LocalStore(root, fsync=False)
        parts, done = [], 0
        for place in PLACES:
            start = int(size * place)
            parts.append(self._made_up(done, start))
            which = np.arange(start, start + AROUND, dtype=np.uint64)
            parts.append(build(self._store, [self._data.entries(which)], Split(), self._ids.new()).table)
            done = start + AROUND
        parts.append(self._made_up(done, size))
        self.base = Metarange(pa.concat_tables(parts))
        self.heads = {"base": write_metarange(self._store, self.base, self._ids.new())}
        for name, place in (("here", PLACES[0]), ("there", PLACES[2])):
            changes = self._data.clustered(CHANGES, 1, at=place + AROUND / 2 / size).staged
            self._commit(RangeReader(self._store), changes, name)

    def _made_up(self, start: int, stop: int) -> pa.Table:
        """Rows of ranges that do not exist, over these entries."""
        firsts = np.arange(start, stop - RANGE, RANGE, dtype=np.uint64)
        random = np.random.default_rng(start)
        ids, digests = (pa.array([random.bytes(32) for _ in firsts], pa.binary(32)) for _ in range(2))
        files = [f"{one.hex()}-20260101120000{self._ids.new()}.parquet" for one in ids.to_pylist()]
        numbers = random.integers(1, RANGE, (3, len(firsts)))
        columns = [
            ids,
            pa.array(files, pa.string()),
            self._data.paths(firsts),
            self._data.paths(firsts + np.uint64(RANGE - 1)),
            pa.array(numbers[0] + RANGE // 2),
            pa.array(numbers[1] * 1_000_000),
            pa.array(numbers[2] + 190_000),
            digests,
        ]
        return pa.table(columns, schema=METARANGE_SCHEMA)

    def rows(self) -> dict[str, Callable[[RangeReader], object]]:
        """The verbs to measure, by name."""
        middle, size = int(self._data.size * PLACES[1]) + AROUND // 2, self._data.size
        one = self._data.clustered(1, 2, at=middle / size).staged
        path = self._data.paths(np.array([middle], np.uint64))[0].as_py()

        def page(reader: RangeReader) -> None:
            tables = reader.scan(self._read(reader, "base"), path[: path.rindex("/")])
            list(islice((entry for table in tables for entry in entries(table)), 1_000))

        def merge(reader: RangeReader) -> None:
            base, source, dest = (self._read(reader, name) for name in ("base", "here", "there"))
            attempt = self._ids.new()
            planned = plan_merge(reader, base, source, dest, None)
            done = apply_plan(reader, planned, source, engine=LocalEngine(), split=Split(), attempt=attempt)
            write_metarange(reader.store, done.metarange, attempt)

        return {
            "commit of 1 object": lambda reader: self._commit(reader, one, "one"),
            "merge 1k clustered": merge,
            "diff 1k": lambda reader: [*diff(reader, self._read(reader, "base"), self._read(reader, "here"))],
            "stat": lambda reader: reader.stat(self._read(reader, "base"), path),
            "first page": page,
            "empty commit": lambda reader: self._commit(reader, no_rows(STAGED_SCHEMA), "one"),
        }

    def _read(self, reader: RangeReader, name: str) -> Metarange:
        head = self.heads[name]
        return reader.metarange(Pointer(head.id, head.file, head.digest))

    def _commit(self, reader: RangeReader, changes: pa.Table, name: str) -> None:
        attempt, base = self._ids.new(), self._read(reader, "base")
        done = apply(reader, base, changes, engine=LocalEngine(), split=Split(), attempt=attempt)
        if done.metarange.id == base.id:
            self.heads[name] = self.heads["base"]
            return
        self.heads[name] = write_metarange(reader.store, done.metarange, attempt)

    def measure(self, act: Callable[[RangeReader], object], times: int) -> tuple[float, int, float, float]:
        """Milliseconds of CPU, requests, kilobytes read and written."""
        found = []
        for _ in range(times):
            store = Distance(self._root, far=False)
            begun = time.process_time()
            act(RangeReader(store))
            found.append(((time.process_time() - begun) * 1e3, store.requests, store.read / 1e3, store.written / 1e3))
        return tuple(median(column) for column in zip(*found, strict=True))


def show(names: list[str], times: int) -> None:
    """Measure and print some sizes."""
    print(f"{'entries':8} {'verb':20} {'CPU ms':>8} {'requests':>8} {'read kB':>9} {'written kB':>10}")
    for name in names:
        with tempfile.TemporaryDirectory(prefix="lakeops-large-") as place:
            large = Large(Path(place), (SIZES | LARGE)[name])
            for verb, act in large.rows().items():
                cpu, requests, read, written = large.measure(act, times)
                print(f"{name:8} {verb:20} {cpu:8.1f} {requests:8.0f} {read:9.0f} {written:10.0f}", flush=True)
