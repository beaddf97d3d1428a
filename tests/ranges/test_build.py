import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import synthetic
from support.rows import QUICK, SMALL, attempt, built, contents, entry_table, numbered, repositories

from lakeops.model.errors import InvalidInput
from lakeops.ranges.build import build, with_digests
from lakeops.ranges.digest import EMPTY_METARANGE_ID, entry_digests, group_digest, metarange_id, range_id
from lakeops.ranges.split import cut_ends, group_ends, path_hashes


@given(repositories(), st.integers(1, 50))
@QUICK
def test_batches_and_attempts_do_not_show_in_the_id(fresh_store, repository, size):
    store = fresh_store()
    table = entry_table(repository)
    batches = [table.slice(start, size) for start in range(0, table.num_rows, size)]
    metarange = build(store, batches, SMALL, attempt(), threads=2)
    assert metarange.id == built(store, repository).id
    assert contents(store, metarange) == repository
    ends = cut_ends(path_hashes(table["path"]), SMALL).tolist()
    bounds = [0, *ends] if ends and ends[-1] == table.num_rows else [0, *ends, table.num_rows]
    counts = [stop - start for start, stop in itertools.pairwise(bounds) if stop > start]
    assert metarange.table["count"].to_pylist() == counts
    ids = [range_id(group_digests(table.slice(start, stop - start))) for start, stop in itertools.pairwise(bounds)]
    assert metarange.id == metarange_id(ids if table.num_rows else [])


def group_digests(table: pa.Table) -> list[bytes]:
    """Of each row group of these rows, which are one range."""
    digests = entry_digests(table)
    bounds = [0, *group_ends(path_hashes(table["path"]), SMALL).tolist()]
    return [group_digest(digests.slice(start, stop - start)) for start, stop in itertools.pairwise(bounds)]


def test_nothing_builds_the_empty_metarange(store):
    assert build(store, [], SMALL, attempt()).id == EMPTY_METARANGE_ID
    assert build(store, [entry_table({})], SMALL, attempt()).id == EMPTY_METARANGE_ID
    assert store.written == []


def test_no_name_is_written_twice(store):
    for _ in range(2):
        built(store, numbered(range(100)))
    assert len(set(store.written)) == len(store.written)


@pytest.mark.parametrize("tables", [[["b", "a"]], [["a", "a"]], [["a", "b"], ["b", "c"]], [["b"], ["a"]]])
def test_paths_out_of_order_are_refused(store, tables):
    def table(paths):
        return pa.concat_tables([entry_table({path: ("0", 0)}) for path in paths]).combine_chunks()

    with pytest.raises(InvalidInput, match="sorted by their bytes"):
        build(store, [table(paths) for paths in tables], SMALL, attempt())


def test_nulls_are_refused(store):
    table = entry_table({"a": ("0", 0)}).cast(pa.schema([f.with_nullable(True) for f in entry_table({}).schema]))
    holed = table.set_column(5, "content_type", pa.array([None], pa.string()))
    with pytest.raises(InvalidInput, match="content_type"):
        build(store, [holed], SMALL, attempt(), digests=lambda batch: batch["path"])


def test_digests_may_be_passed_through(store):
    table = synthetic.entries(np.arange(100, dtype=np.uint64))
    known = with_digests(table)
    passed = build(store, [known], SMALL, attempt(), digests=lambda batch: batch["digest"].combine_chunks())
    assert passed.id == build(store, [table], SMALL, attempt()).id


def test_progress_counts_entries(store):
    seen = []
    build(store, [entry_table(numbered(range(300)))], SMALL, attempt(), on_progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 300
