import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import synthetic
from support.rows import QUICK, SMALL, THOROUGH, attempt, built, contents, entry_table, numbered, repositories

from lakeops.engine.base import LocalEngine
from lakeops.model.errors import InvalidInput
from lakeops.ranges.build import build, replace_prefix
from lakeops.ranges.chunker import cut_ends, path_hashes
from lakeops.ranges.digest import entry_digests, with_digests
from lakeops.ranges.metarange import EMPTY_METARANGE_ID, Metarange, metarange_id, range_id


@pytest.mark.usefixtures("leaves")
@given(repositories(), st.integers(1, 50))
@QUICK
def test_batches_and_attempts_do_not_show_in_the_id(fresh_store, repository, size):
    store = fresh_store()
    table = entry_table(repository)
    batches = [table.slice(start, size) for start in range(0, table.num_rows, size)]
    metarange = build(store, batches, SMALL, attempt(), engine=LocalEngine(2))
    assert metarange.id == built(store, repository).id
    assert contents(store, metarange) == repository
    ends = cut_ends(path_hashes(table["path"]), SMALL).tolist()
    bounds = [0, *ends] if ends and ends[-1] == table.num_rows else [0, *ends, table.num_rows]
    counts = [stop - start for start, stop in itertools.pairwise(bounds) if stop > start]
    assert metarange.table["count"].to_pylist() == counts
    ids = [range_id(entry_digests(table.slice(start, stop - start))) for start, stop in itertools.pairwise(bounds)]
    assert metarange.id == metarange_id(pa.chunked_array([ids if table.num_rows else []], pa.binary(32)))


def test_nothing_builds_the_empty_metarange(store):
    assert build(store, [], SMALL, attempt()).id == EMPTY_METARANGE_ID
    assert build(store, [entry_table({})], SMALL, attempt()).id == EMPTY_METARANGE_ID
    assert store.written == []


@pytest.mark.parametrize("tables", [[["b", "a"]], [["a", "a"]], [["a", "b"], ["b", "c"]], [["b"], ["a"]]])
def test_paths_out_of_order_are_refused(store, tables):
    def table(paths):
        return pa.concat_tables([entry_table({path: ("0", 0)}) for path in paths]).combine_chunks()

    with pytest.raises(InvalidInput, match="sorted by their bytes"):
        build(store, [table(paths) for paths in tables], SMALL, attempt())


@pytest.mark.parametrize(("column", "at"), [("path", 0), ("path", 1), ("path", 2), ("content_type", 1)])
def test_nulls_are_refused(store, column, at):
    """Not by an error of Arrow, which is nobody's to catch."""
    table = entry_table({"a": ("0", 0), "b": ("0", 0), "c": ("0", 0)})
    schema = pa.schema([field.with_nullable(True) for field in table.schema])
    values = table[column].to_pylist()
    values[at] = None
    place = schema.get_field_index(column)
    with pytest.raises(InvalidInput, match=column):
        build(store, [table.cast(schema).set_column(place, column, pa.array(values, pa.string()))], SMALL, attempt())


def test_digests_may_be_passed_through(store):
    table = synthetic.entries(np.arange(100, dtype=np.uint64))
    known = with_digests(table)
    passed = build(store, [known], SMALL, attempt())
    assert passed.id == build(store, [table], SMALL, attempt()).id


def test_the_rest_is_offered_as_more_comes(store):
    offered = []
    repository = numbered(range(3_000))
    metarange = build(
        store,
        [entry_table(repository)],
        SMALL,
        attempt(),
        elsewhere=lambda more, rows: offered.append((more, len(rows))),
    )
    assert metarange.id == built(store, repository).id
    assert offered[:4] == [(32, 0), (32, 32), (64, 64), (128, 128)]
    assert offered[-1][1] < len(metarange) <= sum(offered[-1])


def test_the_rest_may_come_from_elsewhere(store):
    repository = numbered(range(3_000))
    whole = built(store, repository)

    def elsewhere(_more, rows):
        return Metarange.from_rows(list(whole.rows(len(rows), len(whole)))) if rows else None

    written = len(store.written)
    assert build(store, [entry_table(repository)], SMALL, attempt(), elsewhere=elsewhere).id == whole.id
    assert len(store.written) == written + 32


def test_progress_counts_entries(store):
    seen = []
    build(store, [entry_table(numbered(range(300)))], SMALL, attempt(), on_progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 300


# --- putting content in the place of a prefix gives what building the outcome gives, and opens only the borders ---
def replaced(store, base, prefix, part):
    return replace_prefix(base, prefix, part, store=store, split=SMALL, attempt=attempt())


def under(prefix, count, contents="0"):
    return {f"{prefix}{number:05}": (contents, 0) for number in range(count)}


@pytest.mark.usefixtures("leaves")
@given(st.data())
@THOROUGH
def test_replacing_is_building_from_scratch(fresh_store, data):
    store = fresh_store()
    repository = data.draw(repositories())
    prefixes = ["", "m", "p/", "p/0", "p/05", "zz", "\x01", "\U0010ffff", *(path[:2] for path in list(repository)[-5:])]
    prefix = data.draw(st.sampled_from(prefixes))
    inside = {prefix + path: value for path, value in data.draw(repositories()).items()}
    base, part = built(store, repository), built(store, inside)
    wanted = {path: value for path, value in repository.items() if not path.startswith(prefix)} | inside
    found = replaced(store, base, prefix, part)
    assert found.id == built(store, wanted).id
    assert contents(store, found) == wanted


@pytest.mark.parametrize("prefix", ["a/", "k/", "m/", "z/"])
def test_only_the_borders_are_opened(store, prefix):
    base = built(store, under("k/", 500) | under("m/", 500))
    part = built(store, under(prefix, 700, "1"))
    store.forget()
    found = replaced(store, base, prefix, part)
    assert len(store.read) <= 8
    assert len(store.written) <= 8
    outside = sum(row.count for row in base.rows(0, len(base))) - (500 if prefix in {"k/", "m/"} else 0)
    assert found.count == outside + 700


def test_putting_the_same_back_changes_nothing_and_keeps_the_files(store):
    inside = under("m/", 500)
    base = built(store, under("k/", 500) | inside | under("p/", 500))
    found = replaced(store, base, "m/", built(store, inside))
    assert found.id == base.id


def test_a_part_with_paths_outside_the_prefix_is_refused(store):
    part = built(store, under("m/", 50))
    with pytest.raises(InvalidInput):
        replaced(store, Metarange.empty(), "n/", part)
