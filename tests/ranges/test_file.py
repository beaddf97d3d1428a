"""What is read of a range file, and what of that is decoded."""

import threading

import numpy as np
import pytest
from support.rows import attempt, built, numbered

from lakeops.model.errors import Corrupted
from lakeops.model.records import Split
from lakeops.ranges import file as files
from lakeops.ranges import format as formats
from lakeops.ranges.cutter import cut
from lakeops.ranges.diff import diff
from lakeops.ranges.digest import digest_words
from lakeops.ranges.fetch import open_range, read_range
from lakeops.ranges.format import Pieces, decode_footer, read_columns
from lakeops.ranges.read import RangeReader
from lakeops.ranges.write import write_range

WIDE = Split(80, 400, 4_000, row_groups=20)
"""Ranges of several row groups of some dozens of rows."""


@pytest.fixture
def decoded(monkeypatch):
    """What was decoded: columns and row groups."""
    found = []

    def read(source, key, columns, metadata, groups):
        found.append((key, tuple(columns or ()), tuple(groups)))
        return read_columns(source, key, columns, metadata, groups)

    monkeypatch.setattr(files, "read_columns", read)
    return found


def test_digests_are_read_without_decoding(store, decoded):
    row = built(store, numbered(range(600)), WIDE).row(0)
    file = open_range(store, row)
    groups = list(range(1, file.groups))
    words = file.digests(groups)
    assert decoded == []
    rows = file.read(["digest"]).column(0)
    assert np.array_equal(words, digest_words(rows)[file.starts[1] :])


@pytest.mark.parametrize(
    "otherwise",
    [{"compression": "GZIP", "compression_level": None}, {"column_encoding": None, "use_dictionary": ["digest"]}],
    ids=["compressed", "dictionary"],
)
def test_digests_of_another_writer_are_decoded(store, decoded, monkeypatch, otherwise):
    metarange = built(store, numbered(range(300)), WIDE)
    table = read_range(store, metarange.row(0))
    settings = {name: value for name, value in (formats._RANGE | otherwise).items() if value is not None}
    monkeypatch.setattr(formats, "_RANGE", settings)
    decoded.clear()
    (made,) = cut([table], Split(table.num_rows, table.num_rows, 4_000, row_groups=20))
    row = write_range(store, made, attempt())
    file = open_range(store, row)
    assert np.array_equal(file.digests([0]), digest_words(table.column("digest"))[: file.starts[1]])
    assert [columns for _, columns, _ in decoded] == [("digest",)]
    assert read_range(store, row).equals(table)


def test_pieces_give_what_they_hold_and_nothing_else():
    pieces = Pieces(100, [(10, memoryview(b"0123456789")), (50, memoryview(b"abcde"))])
    assert (pieces.seek(0, 2), pieces.seek(12), pieces.tell()) == (100, 12, 12)
    assert pieces.read_buffer(3).to_pybytes() == b"234"
    assert pieces.tell() == 15
    pieces.seek(-2, 1)
    assert pieces.read_buffer(7).to_pybytes() == b"3456789"
    for start, size in ((0, 1), (9, 2), (19, 2), (20, 1), (49, 2), (50, 6), (99, 1)):
        pieces.seek(start)
        with pytest.raises(ValueError, match="outside"):
            pieces.read_buffer(size)


def test_only_row_groups_with_rows_of_their_own_are_decoded(store, decoded):
    """A new path makes the row group that it came to differ on both sides; only the new one holds anything new."""
    before = numbered(range(0, 3_000, 2))
    after = before | {"a/00801": ("1", 1)}
    pair = [built(store, side, WIDE) for side in (before, after)]
    (table,) = diff(RangeReader(store), *pair)
    assert table.column("path").to_pylist() == ["a/00801"]
    ((key, columns, groups),) = decoded
    assert key in {row.key for row in pair[1].rows(0, len(pair[1]))}
    assert (columns, len(groups)) == (("path", "size_bytes"), 1)


def test_checksums_are_decoded_where_sizes_are_equal_and_the_rest_where_checksums_are(store, decoded):
    before = numbered(range(1_000))
    for value, columns in (("10", []), ("1", [("checksum",)]), ("0", [("checksum",), ("content_type", "metadata")])):
        decoded.clear()
        after = before | {"a/00400": (value, 7)}
        tables = list(diff(RangeReader(store), *(built(store, side, WIDE) for side in (before, after))))
        assert sum(table.num_rows for table in tables) == (value != "0")
        sketch = ("path", "size_bytes")
        assert [one for _, one, _ in decoded] == [sketch, sketch, *(each for each in columns for _ in range(2))]


def test_a_reader_remembers_footers_not_rows(store):
    pair = [built(store, numbered(range(3_000), contents), WIDE) for contents in "01"]
    reader = RangeReader(store)
    assert sum(table.num_rows for table in diff(reader, *pair)) == 3_000
    rows = [row for side in pair for row in side.rows(0, len(side))]
    assert reader._cache.nbytes == sum(2 * row.footer_bytes for row in rows)


def test_threads_share_an_open_range(store):
    row = built(store, numbered(range(2_000)), WIDE).row(0)
    store.forget()
    file = open_range(store, row)
    whole = read_range(store, row)
    store.forget()
    found = []

    def work(index):
        found.append(
            file.group(index).equals(whole.slice(file.starts[index], file.starts[index + 1] - file.starts[index]))
        )

    threads = [threading.Thread(target=work, args=(index,)) for index in [*range(file.groups)] * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * len(threads)
    assert not store.twice


def test_released_row_groups_are_fetched_again(store):
    row = built(store, numbered(range(2_000)), WIDE).row(0)
    file = open_range(store, row)
    whole = file.read()
    store.forget()
    assert file.read().equals(whole)
    assert store.read == []
    file.release(2)
    assert file.read().equals(whole)
    assert store.bytes_read == file.marks[0].size + file.marks[1].size


def test_a_footer_is_parsed_once_and_not_to_compare(store, monkeypatch):
    row = built(store, numbered(range(2_000)), WIDE).row(0)
    parsed = []
    monkeypatch.setattr(formats, "ParquetReader", _counted(parsed))
    file = open_range(store, row)
    file.digests(range(file.groups))
    assert parsed == []
    assert file.groups > 5
    numbers, table = file.read_groups([0, 3, file.groups - 1], ["path", "metadata"])
    assert parsed[0] == file.groups
    whole = file.read()
    assert table.equals(whole.select(["path", "metadata"]).take(numbers))
    assert len(parsed) == 3  # the footer, and a reader of the bytes for each of the two reads


def _counted(parsed):
    class Counted(formats.ParquetReader):
        def open(self, *args, **options):
            super().open(*args, **options)
            parsed.append(self.metadata.num_row_groups)

    return Counted


@pytest.mark.parametrize("keep", [0, 1, 20, 23, 24, 25, 60, 200])
def test_a_table_of_row_groups_that_is_not_whole_is_an_error(store, keep):
    tail = open_range(store, built(store, numbered(range(600)), WIDE).row(0)).tail
    begin = len(tail) - 8 - int.from_bytes(tail[-8:-4], "little")
    with pytest.raises(Corrupted, match="some/key cannot be decoded"):
        decode_footer(tail[begin - keep :], "some/key")
