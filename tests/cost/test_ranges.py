"""Cost of work, in files opened and written: it follows the changes, never the size of the repository."""

from dataclasses import dataclass

import numpy as np
import pytest
from support import synthetic
from support.rows import Pointer, RecordingStore, attempt

from lakeops.engine.base import LocalEngine
from lakeops.model.records import Split
from lakeops.ranges.apply import apply
from lakeops.ranges.build import build
from lakeops.ranges.diff import diff
from lakeops.ranges.digest import entry_digests
from lakeops.ranges.merge import apply_plan, plan_merge
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.range_file import write_metarange
from lakeops.ranges.read import RangeReader

SPLIT = Split(400, 1_200, 6_000)
SIZES = (20_000, 200_000)


@dataclass
class Built:
    """A repository of synthetic entries, and the counters of its store."""

    store: RecordingStore
    base: Metarange

    def changed(self, which, version=1):
        rows = synthetic.staged(np.sort(np.asarray(which)).astype(np.uint64), version)
        self.store.forget()
        return apply(RangeReader(self.store), self.base, rows, engine=LocalEngine(), split=SPLIT, attempt=attempt())

    def middle(self, places):
        """Row numbers of different ranges, neither the first nor the last."""
        return np.linspace(1, len(self.base) - 2, places).astype(int)

    def spread(self, places, each):
        """Numbers of ``each`` neighbours in the middle of ``places`` different ranges."""
        counts = self.base.table["count"].to_numpy()
        starts = np.cumsum(counts) - counts
        chosen = self.middle(places)
        return (starts[chosen] + counts[chosen] // 2)[:, None] + np.arange(each)


@pytest.fixture(scope="module")
def repositories(tmp_path_factory):
    found = {}
    for size in SIZES:
        store = RecordingStore(tmp_path_factory.mktemp("cost"))
        tables = (synthetic.quick_entries(which) for which in synthetic.numbers(size))
        found[size] = Built(store, build(store, tables, SPLIT, attempt()))
    return found


@pytest.mark.parametrize("size", SIZES)
def test_a_diff_of_100_keys_in_10_ranges_opens_20_files_and_2_metaranges(repositories, size):
    repository = repositories[size]
    after = repository.changed(repository.spread(10, 10).ravel()).metarange
    store = repository.store
    pointers = [
        Pointer.to(write_metarange(store, side, attempt())) for side in (repository.base, after.with_delta(None))
    ]
    store.forget()
    reader = RangeReader(store)
    assert sum(part.num_rows for part in diff(reader, *map(reader.metarange, pointers))) == 100
    kinds = [key.split("/")[1] for key in store.read]
    assert (kinds.count("ranges"), kinds.count("metaranges")) == (20, 2)
    assert len(store.read) == 22
    assert not store.twice
    assert store.written == []


@pytest.mark.parametrize("size", SIZES)
def test_a_commit_that_rewrote_10_ranges_is_compared_by_its_list(repositories, size):
    repository = repositories[size]
    after = repository.changed(repository.spread(10, 10).ravel()).metarange
    store = repository.store
    pointers = [Pointer.to(write_metarange(store, side, attempt())) for side in (repository.base, after)]
    store.forget()
    for sides in (pointers, pointers[::-1]):
        reader = RangeReader(store)
        assert sum(part.num_rows for part in diff(reader, *map(reader.metarange, sides))) == 100
    assert {key.split("/")[1] for key in store.read} == {"metaranges"}
    assert len(store.read) == 2


def test_a_stat_reads_one_file(repositories):
    repository = repositories[SIZES[1]]
    row = repository.base.row(1)
    repository.store.forget()
    assert RangeReader(repository.store).stat(repository.base, row.last_path)
    assert (repository.store.read, repository.store.twice) == ([row.key], set())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [1, 10, 100, 300])
def test_a_commit_of_clustered_changes_writes_three_ranges_at_most(repositories, size, count):
    repository = repositories[size]
    found = repository.changed(np.arange(size // 2, size // 2 + count))
    assert found.summary.total == count
    assert 1 <= len(repository.store.written) <= 3
    assert len(repository.store.read) <= 4


def test_cost_does_not_grow_with_the_repository(repositories):
    """Ten times the entries: as many ranges opened and written, and no byte read but theirs."""
    for repository in repositories.values():
        repository.changed(repository.spread(8, 5).ravel())
        assert (len(repository.store.read), len(repository.store.written)) == (8, 8)
        assert repository.store.bytes_read == repository.base.table["file_bytes"].to_numpy()[repository.middle(8)].sum()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("listed", [True, False])
def test_a_clustered_merge_opens_what_the_source_changed_without_a_list_and_writes_nothing(repositories, size, listed):
    repository = repositories[size]
    base, store = repository.base, repository.store
    source = repository.changed(np.arange(size // 4, size // 4 + 100)).metarange
    dest = repository.changed(np.arange(3 * size // 4, 3 * size // 4 + 100), version=2).metarange
    changed = len(base.without(source)) + len(source.without(base))
    source = source if listed else source.with_delta(None)
    store.forget()
    reader = RangeReader(store)
    plan = plan_merge(reader, base, source, dest, None)
    found = apply_plan(reader, plan, source, engine=LocalEngine(), split=SPLIT, attempt=attempt())
    assert found.summary.total == 100
    assert changed <= 8
    assert len(store.read) == (0 if listed else changed)  # no range of the destination
    assert store.written == []


def test_the_changes_of_a_task_are_digested_together(repositories, monkeypatch):
    calls = []

    def counted(table):
        calls.append(table.num_rows)
        return entry_digests(table)

    for module in ("rewrite", "digest"):
        monkeypatch.setattr(f"lakeops.ranges.{module}.entry_digests", counted)
    built = repositories[200_000]
    built.changed(built.spread(40, 3).ravel())
    tasks = -(-40 // LocalEngine().group(40, at_once=True))
    assert len(built.store.read) == 40
    assert len(calls) == tasks < 40
    assert sum(calls) == 120
