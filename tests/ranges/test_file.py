"""What is read of a range file, and what of that is decoded."""

from dataclasses import replace
from hashlib import sha256

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.rows import built, numbered

from lakeops.model.records import Split
from lakeops.ranges.diff import diff
from lakeops.ranges.range_file import RangeFile, fetch_range
from lakeops.ranges.read import RangeReader

WIDE = Split(80, 400, 4_000)
"""Ranges of some hundred rows."""


@pytest.fixture
def decoded(monkeypatch):
    """The files and columns that were decoded."""
    found, read = [], RangeFile.read

    def noted(self, columns=None):
        found.append((self.row.key, tuple(columns or ())))
        return read(self, columns)

    monkeypatch.setattr(RangeFile, "read", noted)
    return found


def test_digests_are_read_without_decoding(store, decoded):
    file = fetch_range(store, built(store, numbered(range(600)), WIDE).row(0))
    digests = file.digests
    assert decoded == []
    assert digests.equals(file.read(["digest"])["digest"].combine_chunks())


@pytest.mark.parametrize(
    "otherwise",
    [{"compression": "GZIP"}, {"use_dictionary": ["digest"], "compression": "NONE"}, {"data_page_size": 100}],
    ids=["compressed", "dictionary", "many pages"],
)
def test_digests_of_another_writer_are_decoded(store, decoded, otherwise):
    row = built(store, numbered(range(300)), WIDE).row(0)
    table = fetch_range(store, row).read()
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **otherwise)
    data = sink.getvalue().to_pybytes()
    store.put(row.key, data)
    decoded.clear()
    file = fetch_range(store, replace(row, file_bytes=len(data), file_digest=sha256(data).digest()))
    assert file.digests.equals(table["digest"].combine_chunks())
    assert {columns for _, columns in decoded} == {("digest",)}
    assert file.read().equals(table)


def test_a_diff_decodes_paths_and_sizes_of_the_ranges_that_differ(store, decoded):
    before = numbered(range(0, 3_000, 2))
    after = before | {"a/00801": ("1", 1)}
    pair = [built(store, side, WIDE) for side in (before, after)]
    (table,) = diff(RangeReader(store), *pair)
    assert table.column("path").to_pylist() == ["a/00801"]
    assert {columns for _, columns in decoded} == {("path", "size_bytes")}
    assert len(decoded) == len(pair[0].without(pair[1])) + len(pair[1].without(pair[0]))


def test_checksums_are_decoded_where_sizes_are_equal_and_the_rest_where_checksums_are(store, decoded):
    before = numbered(range(1_000))
    for value, columns in (("10", []), ("1", [("checksum",)]), ("0", [("checksum",), ("content_type", "metadata")])):
        decoded.clear()
        after = before | {"a/00400": (value, 7)}
        tables = list(diff(RangeReader(store), *(built(store, side, WIDE) for side in (before, after))))
        assert sum(table.num_rows for table in tables) == (value != "0")
        sketch = ("path", "size_bytes")
        assert [one for _, one in decoded] == [sketch, sketch, *(each for each in columns for _ in range(2))]


def test_a_diff_leaves_nothing_in_the_cache(store):
    pair = [built(store, numbered(range(3_000), contents), WIDE) for contents in "01"]
    reader = RangeReader(store)
    assert sum(table.num_rows for table in diff(reader, *pair)) == 3_000
    assert reader._cache.nbytes == 0


def test_rows_come_by_number_and_by_path(store):
    file = fetch_range(store, built(store, numbered(range(600)), WIDE).row(0))
    whole = file.read()
    rows = np.array([0, 3, file.row.count - 1])
    assert file.take(rows, ["path", "metadata"]).equals(whole.select(["path", "metadata"]).take(rows))
    assert file.take(rows[:0]).num_rows == 0
    wanted = pa.array(["", whole["path"][3].as_py(), "a/~", "zzz"])
    assert file.find(wanted).tolist() == [-1, 3, -1, -1]
