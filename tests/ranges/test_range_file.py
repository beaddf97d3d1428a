from dataclasses import replace
from hashlib import sha256

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import synthetic
from support.format_page import example
from support.rows import attempt, built, numbered

from lakeops.model.arrow import RANGE_SCHEMA
from lakeops.model.errors import Corrupted
from lakeops.model.records import Split
from lakeops.ranges import range_file
from lakeops.ranges.build import build
from lakeops.ranges.diff import diff
from lakeops.ranges.digest import entry_digests, with_digests
from lakeops.ranges.metarange import METARANGE_SCHEMA
from lakeops.ranges.range_file import (
    RangeFile,
    decode_metarange,
    encode_metarange,
    encode_range,
    fetch_range,
    write_metarange,
)
from lakeops.ranges.read import RangeReader
from lakeops.store.layout import metarange_key

SPLIT = Split(12_000, 1, 12_000)


@pytest.fixture(scope="module")
def rows():
    return synthetic.entries(np.arange(20_000, dtype=np.uint64))


@pytest.fixture
def written(store, rows):
    """A metarange of two ranges, and its file."""
    metarange = build(store, [rows], SPLIT, attempt())
    return metarange, write_metarange(store, metarange, attempt())


def test_a_range_file_has_the_documented_shape(store, written):
    metarange, _ = written
    file = pq.ParquetFile(pa.BufferReader(store.get(metarange.row(0).key)))
    assert file.schema_arrow.equals(RANGE_SCHEMA)
    assert file.metadata.metadata == {b"lakeops.version": b"2"}  # nothing that only Arrow understands
    row, data = metarange.row(0), store.get(metarange.row(0).key)
    assert (file.metadata.num_row_groups, file.metadata.num_rows) == (1, row.count)
    assert (row.file_bytes, row.file_digest) == (len(data), sha256(data).digest())
    digests = b"".join(file.read(["digest"])["digest"].to_pylist())
    assert row.id == sha256(b"lakeops range 2\n" + digests).digest()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    assert data[footer - len(digests) : footer] == digests
    columns = {
        column.path_in_schema: column
        for column in (file.metadata.row_group(0).column(index) for index in range(file.metadata.num_columns))
    }
    compressed = {name.split(".")[0] for name, column in columns.items() if column.compression == "ZSTD"}
    assert compressed == {"path", "physical_address", "checksum", "metadata"}
    assert "DELTA_BYTE_ARRAY" in columns["path"].encodings
    assert "DELTA_BINARY_PACKED" in columns["mtime"].encodings
    assert columns["path"].statistics.min == metarange.row(0).first_path


def test_rows_cost_little(written, rows):
    metarange, _ = written
    entropy = 16 + 16 + 10 + 8  # checksum, digest, address, the random part of the path
    assert sum(row.file_bytes for row in metarange.rows(0, 2)) / rows.num_rows < 1.3 * entropy


def test_duckdb_reads_ranges_and_metaranges(store, written, rows):
    metarange, file = written
    ranges = [str(store.root / row.key) for row in metarange.rows(0, 2)]
    found = duckdb.sql(f"select count(*), sum(size_bytes), min(path), max(path) from read_parquet({ranges})").fetchall()
    size = rows["size_bytes"].to_numpy().sum()
    assert found == [(20_000, size, rows["path"][0].as_py(), rows["path"][-1].as_py())]
    summed = duckdb.sql(f"select sum(count), sum(bytes) from '{store.root / metarange_key(file.file)}'").fetchall()
    assert summed == [(20_000, size)]


def test_the_documented_query_runs(store, capsys):
    repository = {f"events/day={day}/part-{part}": ("x" * 9, part) for day in (1, 2) for part in range(30)}
    metarange = built(store, repository)
    for _ in range(2):
        write_metarange(store, metarange, attempt())
    example("import duckdb", namespace=str(store.root), metarange=metarange.id)
    assert "│ day=1   │      30 │    270 │\n│ day=2   │      30 │    270 │" in capsys.readouterr().out


def test_polars_reads_ranges(store, written, rows):
    metarange, _ = written
    frame = pl.read_parquet([store.root / row.key for row in metarange.rows(0, 2)])
    assert frame["path"].to_list() == rows["path"].to_pylist()


def test_rows_come_back_as_they_went_in(store, rows):
    table = with_digests(rows)
    data = encode_range(table)
    assert pq.read_table(pa.BufferReader(data)).equals(table)
    assert table["digest"].combine_chunks().equals(entry_digests(rows))


def test_a_metarange_comes_back_as_it_went_in(written):
    metarange, _ = written
    assert metarange.table.schema.equals(METARANGE_SCHEMA)
    found = decode_metarange(encode_metarange(metarange.table), "key")
    assert found.table.equals(metarange.table)
    assert found.delta is None


def test_other_readers_of_a_metarange_do_not_see_its_list_of_changes(written, tmp_path):
    metarange, _ = written
    data = encode_metarange(metarange.table, ("since 0", b"\0any bytes\xff" * 1_000))
    assert (found := decode_metarange(data, "key").delta)
    assert (found.since, found.encoded) == ("since", (0, b"\0any bytes\xff" * 1_000))
    (tmp_path / "it.parquet").write_bytes(data)
    assert pq.read_table(tmp_path / "it.parquet").equals(metarange.table)
    found = duckdb.sql(f"SELECT * FROM read_parquet('{tmp_path}/it.parquet')").to_arrow_table()
    assert found["last_path"].to_pylist() == metarange.table["last_path"].to_pylist()


def test_a_file_of_another_kind_is_not_taken_for_a_metarange(rows):
    with pytest.raises(Corrupted, match=r"some/key cannot be decoded \(its columns"):
        decode_metarange(encode_range(with_digests(rows)), "some/key")
    with pytest.raises(Corrupted, match="some/key cannot be decoded"):
        decode_metarange(b"no parquet at all", "some/key")


def test_a_column_that_does_not_come_out_whole_is_no_column(store, written, monkeypatch):
    """Rows that nobody misses would be objects that nobody keeps."""
    metarange, _ = written
    file = fetch_range(store, metarange.row(0))

    class LastLost(range_file.ParquetReader):
        def read_row_groups(self, *args, **options):
            return super().read_row_groups(*args, **options)[:-1]

    monkeypatch.setattr(range_file, "ParquetReader", LastLost)
    with pytest.raises(Corrupted, match=f"of its {file.row.count} rows came out"):
        file.read(["physical_address"])


# --- what is read of a range file, and what of that is decoded ---


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
    assert reader.cache.nbytes == 0


def test_rows_come_by_number_and_by_path(store):
    file = fetch_range(store, built(store, numbered(range(600)), WIDE).row(0))
    whole = file.read()
    rows = np.array([0, 3, file.row.count - 1])
    assert file.take(rows, ["path", "metadata"]).equals(whole.select(["path", "metadata"]).take(rows))
    assert file.take(rows[:0]).num_rows == 0
    wanted = pa.array(["", whole["path"][3].as_py(), "a/~", "zzz"])
    assert file.find(wanted).tolist() == [-1, 3, -1, -1]
