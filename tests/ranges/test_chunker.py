import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import synthetic
from support.format_page import example
from support.programs import answer_of

from lakeops.model.errors import InvalidInput
from lakeops.model.records import Split
from lakeops.ranges.chunker import cut_ends, path_hashes

WORD = 2**64 - 1


path_hash = example("def path_hash")["path_hash"]
"""The format's specification, as it is documented."""


def ends_of(hashes, split):
    """The cut rule, one row at a time."""
    ends, start = [], 0
    for row, value in enumerate(hashes, start=1):
        size = row - start
        if size == split.max_entries or (size >= split.min_entries and value < 2**64 // split.target_entries):
            ends.append(row)
            start = row
    return ends


@given(st.lists(st.binary(max_size=40), max_size=30), st.integers(0, 30), st.integers(0, 30))
def test_hashes_follow_the_specification_for_every_layout(values, start, size):
    expected = [path_hash(value) for value in values]
    array = pa.array(values, pa.binary())
    assert path_hashes(array).tolist() == expected
    assert path_hashes(array.slice(start, size)).tolist() == expected[start:][:size]
    assert path_hashes(array.cast(pa.large_binary())).tolist() == expected
    chunks = pa.chunked_array([array.slice(start), array.slice(0, start), array.slice(0, 0)])
    assert path_hashes(chunks).tolist() == expected[start:] + expected[:start]


def test_hashes_of_text_are_those_of_its_utf8_bytes():
    texts = ["", "a", "é/\U0001f600", "x" * 1_024]
    expected = [path_hash(text.encode()) for text in texts]
    for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())):
        assert path_hashes(pa.array(texts, pa.string()).cast(kind)).tolist() == expected


def test_the_last_path_may_end_where_memory_ends():
    for tail in range(1, 10):
        data = b"0123456789abcdefg"[: 8 + tail]
        offsets = pa.py_buffer(np.array([0, 8, 8 + tail], np.int32))
        array = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(data)])
        assert path_hashes(array).tolist() == [path_hash(data[:8]), path_hash(data[8:])]


def test_the_hash_is_pinned():
    assert path_hashes(pa.array(["", "a", "events/day=1/part-0.parquet"])).tolist() == [
        10446227545017889331,
        13702567005867015961,
        7154232863747257821,
    ]


def test_nulls_are_refused():
    with pytest.raises(InvalidInput, match="path"):
        path_hashes(pa.array(["a", None]))


def test_hashes_of_similar_paths_are_spread_evenly():
    hashes = path_hashes(synthetic.paths(np.arange(200_000, dtype=np.uint64)))
    assert len(np.unique(hashes)) == len(hashes)
    bits = ((hashes[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)).mean(axis=0)
    assert bits.min() > 0.49
    assert bits.max() < 0.51


@given(st.lists(st.integers(0, WORD), max_size=120), st.integers(1, 6), st.integers(1, 12), st.integers(0, 20))
def test_cuts_follow_the_specification(hashes, least, target, more):
    split = Split(least, target, least + more)
    assert cut_ends(np.array(hashes, np.uint64), split).tolist() == ends_of(hashes, split)


def test_a_target_of_one_cuts_everywhere():
    assert cut_ends(np.array([0, WORD, 5], np.uint64), Split(1, 1, 9)).tolist() == [1, 2, 3]


def test_the_default_split_gives_ranges_of_about_2_800():
    hashes = path_hashes(synthetic.paths(np.arange(1_000_000, dtype=np.uint64)))
    ends = cut_ends(hashes, Split())
    sizes = np.diff(ends)
    assert 2_600 < sizes.mean() < 3_000
    assert sizes.min() >= 1_400
    assert sizes.max() <= 10_000


@pytest.mark.parametrize("split", [Split(0, 8, 32), Split(9, 8, 8), Split(1, 0, 8)])
def test_a_split_that_cannot_be_is_refused(split):
    with pytest.raises(InvalidInput, match="cannot cut"):
        cut_ends(np.zeros(1, np.uint64), split)


# --- cost follows what changed, not what there is: counted on millions of entries, in memory that stays bounded ---

MOST_MEGABYTES = 400


def measured(folder, entries):
    """The numbers that ``support.big_repository`` found; its files are removed."""
    found = answer_of("support.big_repository", folder, entries)
    for file in folder.rglob("*.parquet"):
        file.unlink()
    return found


@pytest.mark.parametrize("entries", [2_000_000, pytest.param(10_000_000, marks=pytest.mark.slow)])
def test_millions_of_entries(tmp_path, entries):
    steps = measured(tmp_path, entries)

    build = steps["build"]
    assert build["entries"] == entries
    assert entries / 3_000 < build["ranges"] < entries / 2_600
    assert build["written"] == build["ranges"]

    clustered = steps["clustered"]
    assert clustered["total"] == 1_000
    assert clustered["read"] <= 3
    assert clustered["written"] <= 3

    random = steps["random"]
    assert random["total"] == 1_000
    assert random["read"] <= build["ranges"]
    assert random["written"] <= random["read"] + 3

    # 100 changed keys in 10 ranges: 20 files, ten of each side.
    assert steps["places"]["read"] == steps["places"]["written"] == 10
    assert steps["diff"]["total"] == 100
    assert steps["diff"]["read"] == 20
    assert steps["diff"]["written"] == 0

    # Changes everywhere: both sides of every range that differs, however many, a few at a time.
    assert steps["random diff"]["total"] == 1_000
    assert steps["random diff"]["read"] == 2 * random["read"]
    assert steps["merge"]["total"] == 1_000
    assert steps["merge"]["opened"] <= 10
    assert steps["merge"]["read"] == steps["random diff"]["read"] + steps["merge"]["opened"]

    # With the lists that these commits keep, nothing is opened.
    assert [steps[f"listed {name}"]["read"] for name in ("diff", "random diff", "merge")] == [0, 0, 0]
    assert steps["listed merge"]["opened"] == 0
    assert [steps[f"listed {name}"]["total"] for name in ("diff", "random diff", "merge")] == [100, 1_000, 1_000]

    assert max(step["peak_mb"] for step in steps.values()) < MOST_MEGABYTES
