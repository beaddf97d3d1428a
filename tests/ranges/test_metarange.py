import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import QUICK, built, byte_order, numbered, paths, repositories

from lakeops.model.errors import InvalidInput
from lakeops.ranges.metarange import EMPTY_METARANGE_ID, Metarange


@pytest.fixture(scope="module")
def whole(fresh_store):
    return built(fresh_store(), numbered(range(1_200)))


@given(repositories(), st.lists(paths(), min_size=1, unique=True), st.sampled_from(["", "p/", "p/1", "d", "zz"]))
@QUICK
def test_routing_and_overlap_agree_with_the_paths(fresh_store, repository, probes, prefix):
    metarange = built(fresh_store(), repository | {"p/000": ("0", 0)})
    rows = metarange.rows(0, len(metarange))
    probes = byte_order(probes)
    for probe, owner in zip(probes, metarange.route(pa.array(probes, pa.string())), strict=True):
        expected = next((i for i, row in enumerate(rows) if probe.encode() <= row.last_path.encode()), len(rows) - 1)
        assert owner == expected
        start, stop = metarange.overlapping(prefix, probe)
        holding = [
            i
            for i, row in enumerate(rows)
            if row.last_path.encode() >= max(prefix.encode(), probe.encode())
            and (row.first_path.encode() < prefix.encode() + b"\xff" or not prefix)
        ]
        assert list(range(start, stop)) == holding


@given(st.lists(st.integers(0, 60), unique=True), st.lists(st.integers(0, 60), unique=True))
def test_without_gives_the_ranges_that_the_other_does_not_have(whole, own, other):
    one, two = (whole.only(np.array(sorted(chosen), np.int64)) for chosen in (own, other))
    assert one.without(two).tolist() == [i for i, number in enumerate(sorted(own)) if number not in other]


def test_an_empty_metarange(whole):
    empty = Metarange.empty()
    assert (len(empty), empty.count, empty.size_bytes, empty.id) == (0, 0, 0, EMPTY_METARANGE_ID)
    assert empty.overlapping("a") == (0, 0)
    assert empty.without(whole).tolist() == []
    assert empty.find(b"a") == 0
    with pytest.raises(InvalidInput, match="no range"):
        empty.route(pa.array(["a"]))


def test_rows_come_and_go_as_plain_data(whole):
    rows = whole.rows(0, len(whole))
    again = Metarange.from_rows(rows)
    assert again.table.equals(whole.table)
    assert again.id == whole.id
    assert whole.at(np.array([5, 2])) == [rows[5], rows[2]]
    assert sum(row.count for row in rows) == whole.count == 1_200
    assert sum(row.size_bytes for row in rows) == whole.size_bytes
    assert rows[0].key == f"_lakefs/ranges/{rows[0].id.hex()}-{rows[0].file[65:]}"


def test_slices_of_a_table_make_a_whole_metarange(whole):
    parts = [whole.table.slice(0, 3), whole.table.slice(3, 0), whole.table.slice(3)]
    assert Metarange(pa.concat_tables(parts)).id == whole.id
    tail = Metarange(whole.table.slice(4))
    assert whole.without(tail).tolist() == [0, 1, 2, 3]
