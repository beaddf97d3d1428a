"""lakeops' side, in a process of its own: the range work alone, and whole verbs with catalog and disk.

Every run starts with an empty process cache, as git's processes do; files lie in the page cache. Range work does not
force files to the disk, verbs do as they always do.
"""

from __future__ import annotations

import ctypes
import gc
import io
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import BinaryIO

import pyarrow as pa

from bench.candidates import measured
from bench.dataset import Changes, DataSet
from bench.sample import MARKS, Sample, peak_mb
from lakeops.catalog.open import open_catalog
from lakeops.engine.base import LocalEngine
from lakeops.lake import Branch, Lake, Repository
from lakeops.model.arrow import ENTRY_SCHEMA, RANGE_SCHEMA
from lakeops.model.clock import Ids, SystemClock
from lakeops.model.records import Commit, IdempotentRequest, Split
from lakeops.ops.publish import CommitPlan, publish, snapshot
from lakeops.ranges.apply import apply
from lakeops.ranges.build import build
from lakeops.ranges.diff import diff
from lakeops.ranges.digest import entry_digests
from lakeops.ranges.merge import apply_plan, plan_merge
from lakeops.ranges.range_file import write_metarange
from lakeops.ranges.read import RangeReader, entries
from lakeops.settings import Settings
from lakeops.store.base import ObjectStore
from lakeops.store.local import LocalStore
from lakeops.store.open import Stores, StoreSettings
from lakeops.testing import Faults, FaultyStore

_RANGES = "_lakefs/ranges/"
_METARANGES = "_lakefs/metaranges/"
_NAME = "bench"


class Counters(Faults):
    """What a run did to stores, with the bytes that it read and wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes_read = self.bytes_written = 0
        self._adding = Lock()

    def around(self, store: ObjectStore) -> ObjectStore:
        return _Counting(store, self)

    def wrote(self, count: int) -> None:
        with self._adding:
            self.bytes_written += count

    def read(self, count: int) -> None:
        with self._adding:
            self.bytes_read += count

    def forget(self) -> None:
        self.revive()
        self.bytes_read = self.bytes_written = 0

    def written(self) -> int:
        return sum(call.operation == "put" and call.key.startswith(_RANGES) for call in self.calls)


class _Counting(FaultyStore):
    def put(self, key, data, *, if_absent=False, content_type=""):
        result = super().put(key, data, if_absent=if_absent, content_type=content_type)
        self.faults.wrote(result.size_bytes)
        return result

    def get(self, key):
        result = super().get(key)
        self.faults.read(len(result))
        return result

    def get_range(self, key, start, length):
        result = super().get_range(key, start, length)
        self.faults.read(len(result))
        return result

    def open(self, key):
        return CountedFile(super().open(key), self.faults.read)

    def open_checked(self, item):
        opened = super().open_checked(item)
        return replace(opened, file=CountedFile(opened.file, self.faults.read))


class CountedFile(io.BufferedIOBase, BinaryIO):
    """A readable, seekable file around another one. It reports each number of bytes that was read from it."""

    def __init__(self, inner: BinaryIO, count: Callable[[int], None]) -> None:
        self._inner = inner
        self._count = count

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move to another position."""
        return self._inner.seek(offset, whence)

    def tell(self) -> int:
        """The position in bytes."""
        return self._inner.tell()

    def read(self, size: int | None = -1, /) -> bytes:
        """Read up to ``size`` bytes; all that is left when it is negative or None."""
        data = self._inner.read(-1 if size is None else size)
        self._count(len(data))
        return data

    def close(self) -> None:
        """Close both files."""
        self._inner.close()
        super().close()


class LakeSide:
    """A lake with the data set as one commit of ``main``."""

    def __init__(self, folder: Path, data: DataSet) -> None:
        self.data = data
        self._folder = folder
        self._input = folder / "entries.arrow"
        self._counters = Counters()
        self._engine = LocalEngine()
        self._ids = Ids()
        self._loads: list[str] = []
        self._settings = Settings.load(home=folder / "home")
        self._catalog = open_catalog(self._settings.catalog_url, clock=SystemClock(), grace_seconds=86_400)
        self._root = folder / "namespace"
        self._handle().create_repository(_NAME, self._root.as_uri())
        with pa.OSFile(str(self._input), "wb") as sink, pa.ipc.new_stream(sink, RANGE_SCHEMA) as writer:
            for which in data.batches():
                table = data.entries(which)
                writer.write_table(table.append_column(RANGE_SCHEMA.field("digest"), entry_digests(table)))

    # --- rows ---

    def import_sorted(self, again: int, *, computed: bool = False) -> Sample:
        """All entries into an empty namespace."""
        root = self._folder / f"import-{again}"
        store = self._counters.around(LocalStore(root, fsync=False))
        columns = (ENTRY_SCHEMA if computed else RANGE_SCHEMA).names

        def work() -> None:
            tables = (table.select(columns) for table in self._batches())
            write_metarange(store, build(store, tables, Split(), self._ids.new()), "a")

        sample = self._timed(work)
        shutil.rmtree(root)
        return sample

    def apply(self, changes: Changes) -> Sample:
        """Changes in memory to a written metarange."""
        reader, head = self._reader(), self._head("main")
        return self._timed(lambda: self._applied(reader, head, changes.staged))

    def commit(self, changes: Changes) -> Sample:
        """The verb: staged rows to a published commit."""
        branch = self._staged(f"work-{self._ids.new()}", changes.staged)
        return self._timed(lambda: branch.commit("work"))

    def stage(self, changes: Changes) -> Sample:
        """The verb that stages a table."""
        table = changes.staged.drop_columns(["tombstone"])
        branch = self._repository().create_branch(f"load-{self._ids.new()}")
        self._loads.append(branch.id)
        return self._timed(lambda: branch.stage(table))

    def commit_load(self) -> Sample:
        """The verb that commits what one ``stage`` left."""
        branch = self._repository().branch(self._loads.pop())
        return self._timed(lambda: branch.commit("load"))

    def diff(self, left: str, right: str) -> Sample:
        """All differing paths, both metaranges read."""
        reader, heads = self._reader(), [self._head(left), self._head(right)]
        return self._timed(lambda: sum(part.num_rows for part in diff(reader, *map(reader.metarange, heads))))

    def merge(self, left: str, right: str) -> Sample:
        """Three metaranges to a fourth, written."""
        reader, heads = self._reader(), [self._head(name) for name in ("main", right, left)]

        def work() -> None:
            base, source, dest = map(reader.metarange, heads)
            attempt = self._ids.new()
            planned = plan_merge(reader, base, source, dest, None)
            merged = apply_plan(reader, planned, source, engine=self._engine, split=Split(), attempt=attempt)
            write_metarange(reader.store, merged.metarange, attempt)

        return self._timed(work)

    def merge_verb(self, left: str, right: str) -> Sample:
        """The verb: two branches to a published merge commit."""
        repository, dest = self._repository(), f"dest-{self._ids.new()}"
        repository.create_branch(dest, left)
        return self._timed(lambda: repository.merge(right, dest))

    def branch(self) -> Sample:
        """A new branch, durably."""
        repository, name = self._repository(), f"new-{self._ids.new()}"
        return self._timed(lambda: repository.create_branch(name, "main"))

    def stat_cold(self, paths: list[str]) -> Sample:
        """One path, nothing known beforehand but the commit."""
        reader, head = self._reader(), self._head("main")
        return self._timed(lambda: reader.stat(reader.metarange(head), paths[0]))

    def stat_warm(self, paths: list[str]) -> Sample:
        """One path of many in decoded ranges."""
        reader = self._reader()
        metarange = reader.metarange(self._head("main"))

        def work() -> None:
            for path in paths:
                reader.stat(metarange, path)

        work()
        return self._timed(work) / len(paths)

    def stat_verb(self, paths: list[str]) -> Sample:
        """The same through a branch: its staging area is asked first."""
        ref = self._repository().ref("main")

        def work() -> None:
            for path in paths:
                ref.stat(path)

        work()
        return self._timed(work) / len(paths)

    def page(self, folder: str) -> Sample:
        """A page of 1,000 entries."""
        reader, head = self._reader(), self._head("main")

        def work() -> None:
            found = 0
            for table in reader.scan(reader.metarange(head), folder):
                found += len(entries(table.slice(0, 1_000 - found)))
                if found == 1_000:
                    return

        return self._timed(work)

    def page_verb(self, folder: str) -> Sample:
        """The same through a branch."""
        ref = self._repository().ref("main")
        return self._timed(lambda: list(islice(ref.list(folder), 1_000)))

    def log(self, amount: int) -> Sample:
        """The newest commits of a branch."""
        repository = self._repository()
        return self._timed(lambda: list(repository.log("history", amount=amount)))

    def branch_list(self) -> Sample:
        """The command line, a whole process."""
        command = [sys.executable, "-m", "lakeops", "branch", "list", f"lakefs://{_NAME}"]
        environment = os.environ | {"LAKEOPS_HOME": str(self._settings.home)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode from its second run on
        before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, env=environment)
        wall = time.perf_counter() - begun
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return Sample(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

    def candidates(self) -> Sample:
        """What garbage collection may delete; a process of its own."""
        return measured("lakeops", self._folder.parent / "candidates", self.data.size)

    # --- what rows stand on ---

    def settle(self) -> dict[str, float]:
        """Commit the data set; how large it is on the disk."""
        handle = self._repository()
        store = LocalStore(self._root, fsync=False)
        base = build(store, self._batches(), Split(), self._ids.new())
        file = write_metarange(store, base, self._ids.new())
        ctx = handle._ctx
        found = snapshot(ctx, "main")
        publish(ctx, IdempotentRequest("import", "main"), found, CommitPlan(file, (found.head,), "base", {}), None)
        sizes = base.table["file_bytes"].to_pylist()
        return {"ranges": len(base), "bytes_per_entry": sum(sizes) / base.count, "entries": base.count}

    def branch_off(self, name: str, changes: Changes) -> None:
        """A branch with these changes on top of main."""
        self._staged(name, changes.staged).commit("changes")

    def make_history(self, amount: int) -> None:
        """A branch with so many commits."""
        branch = self._repository().create_branch("history", "main")
        for number in range(amount):
            branch.commit(f"day {number}", allow_empty=True)

    def _staged(self, name: str, rows: pa.Table) -> Branch:
        self._repository().create_branch(name, "main")
        self._catalog.staging.put_staged(_NAME, name, rows, started=self._catalog.now())
        return self._repository().branch(name)

    def _applied(self, reader: RangeReader, head: Commit, changes: pa.Table) -> None:
        attempt = self._ids.new()
        base = reader.metarange(head)
        applied = apply(reader, base, changes, engine=self._engine, split=Split(), attempt=attempt)
        write_metarange(reader.store, applied.metarange, attempt)

    def _batches(self) -> Iterator[pa.Table]:
        with pa.OSFile(str(self._input)) as file, pa.ipc.open_stream(file) as stream:
            for batch in stream:
                yield pa.Table.from_batches([batch])

    def _handle(self) -> Lake:
        """A lake that remembers nothing."""
        return Lake(self._catalog, self._settings, stores=Stores(StoreSettings(), wrap=self._counters.around))

    def _repository(self) -> Repository:
        return self._handle().repository(_NAME)

    def _reader(self) -> RangeReader:
        """A reader that remembers nothing, over files that are not forced to the disk."""
        return RangeReader(self._counters.around(LocalStore(self._root, fsync=False)))

    def _head(self, branch: str) -> Commit:
        return self._repository().ref(branch).commit

    def _timed(self, work: Callable[[], object]) -> Sample:
        _forget_peak()
        self._counters.forget()
        cpu, begun = time.process_time(), time.perf_counter()
        work()
        wall, cpu = time.perf_counter() - begun, time.process_time() - cpu
        counters = self._counters
        return Sample(
            wall=wall,
            cpu=cpu,
            opened=len(counters.keys_opened(_RANGES)),
            metaranges=len(counters.keys_opened(_METARANGES)),
            written=counters.written(),
            bytes_read=counters.bytes_read,
            bytes_written=counters.bytes_written,
            peak_mb=peak_mb(),
        )


def _forget_peak() -> None:
    """Give back what earlier rows freed, and set the mark of peak memory back, so that a row's peak is its own."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    if MARKS.exists():
        ctypes.CDLL(None).malloc_trim(0)
        MARKS.write_text("5")
