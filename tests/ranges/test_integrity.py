"""Damage of every kind is found out before anything of the file is used."""

from dataclasses import replace
from hashlib import sha256

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.rows import Pointer, attempt, built, entry_table, numbered

from lakeops.model.errors import Corrupted, FileMissing
from lakeops.ranges.digest import with_digests
from lakeops.ranges.metarange import EMPTY_METARANGE_ID, Metarange
from lakeops.ranges.range_file import RangeWriter, fetch_range, write_metarange
from lakeops.ranges.read import RangeReader
from lakeops.store.layout import metarange_key


@pytest.fixture
def metarange(store):
    return built(store, numbered(range(40)))


@pytest.fixture
def pointer(store, metarange):
    return Pointer.to(write_metarange(store, metarange, attempt()))


def overwrite(store, key, data):
    (store.root / key).write_bytes(data)


def test_a_whole_pair_reads(store, metarange, pointer):
    assert RangeReader(store).metarange(pointer).table.equals(metarange.table)


def test_any_flipped_byte_of_a_range_is_found(store, metarange):
    row = metarange.row(1)
    data = store.get(row.key)
    for position in range(len(data)):
        overwrite(store, row.key, data[:position] + bytes([data[position] ^ 0x55]) + data[position + 1 :])
        for read in (lambda: fetch_range(store, row), lambda: fetch_range(store, row, ordered=False)):
            with pytest.raises(Corrupted, match=row.file):
                read()


def test_a_column_of_digests_that_the_id_does_not_cover_is_found(store):
    """File and id agree by the bytes before the footer, so only a broken or hostile writer can have made it."""
    table = with_digests(entry_table(numbered(range(6))))
    other = table.set_column(
        table.schema.get_field_index("digest"),
        table.schema.field("digest"),
        table["digest"].take(pa.array([1, 0, 2, 3, 4, 5])),
    )
    sink = pa.BufferOutputStream()
    pq.write_table(other, sink)
    written = sink.getvalue().to_pybytes()
    footer = len(written) - 8 - int.from_bytes(written[-8:-4], "little")
    data = written[:footer] + b"".join(table["digest"].to_pylist()) + written[footer:]
    store.put("_lakefs/ranges/odd.parquet", data)
    odd = RangeWriter(store, attempt()).write(table)
    odd = replace(odd, file="odd.parquet", file_bytes=len(data), file_digest=sha256(data).digest())
    file = fetch_range(store, odd)
    assert file.digests.equals(table["digest"].combine_chunks())
    for read in (file.read, file.read_carefully):
        with pytest.raises(Corrupted, match="another range than its metarange says"):
            read()


def test_any_flipped_byte_of_a_metarange_is_found(store, pointer):
    key = metarange_key(pointer.meta_range_file)
    data = store.get(key)
    for position in range(len(data)):
        overwrite(store, key, data[:position] + bytes([data[position] ^ 0x01]) + data[position + 1 :])
        with pytest.raises(Corrupted, match=r"does not match its digest.*lakeops fsck"):
            RangeReader(store).metarange(pointer)


@pytest.mark.parametrize("keep", [0, 1, 4, 100, -8, -1])
def test_a_file_cut_short_is_found(store, metarange, pointer, keep):
    for key, read in (
        (metarange.row(0).key, lambda: RangeReader(store).stat(metarange, "a/00000")),
        (metarange_key(pointer.meta_range_file), lambda: RangeReader(store).metarange(pointer)),
    ):
        overwrite(store, key, store.get(key)[:keep])
        with pytest.raises(Corrupted):
            read()


def test_what_follows_a_file_is_found(store, metarange):
    row = metarange.row(0)
    overwrite(store, row.key, store.get(row.key) + b"x")
    with pytest.raises(Corrupted, match=row.file):
        fetch_range(store, row)


def test_swapped_files_are_found(store, metarange):
    one, other = metarange.rows(0, 2)
    first, second = store.get(one.key), store.get(other.key)
    overwrite(store, one.key, second)
    overwrite(store, other.key, first)
    for row in (one, other):
        with pytest.raises(Corrupted, match=row.file):
            fetch_range(store, row)


def test_a_row_that_points_at_another_range_is_found_by_the_range_id(store, metarange):
    one, other = metarange.rows(0, 2)
    swapped = replace(other, id=one.id)
    with pytest.raises(Corrupted, match="another range than its metarange says"):
        fetch_range(store, swapped)
    miscounted = replace(one, count=one.count + 1)
    with pytest.raises(Corrupted, match="rows"):
        fetch_range(store, miscounted)


def test_a_metarange_in_place_of_a_range_is_found(store, metarange, pointer):
    row = metarange.row(0)
    data = store.get(metarange_key(pointer.meta_range_file))
    overwrite(store, row.key, data)
    with pytest.raises(Corrupted, match="cannot be decoded"):
        fetch_range(store, replace(row, file_bytes=len(data), file_digest=sha256(data).digest()))


def test_a_commit_that_names_another_metarange_is_found(store, pointer):
    other = built(store, numbered(range(41)))
    with pytest.raises(Corrupted, match="but the commit says"):
        RangeReader(store).metarange(pointer._replace(meta_range_id=other.id))


def test_a_commit_without_a_file_is_empty_or_corrupted(store, metarange):
    assert RangeReader(store).metarange(Pointer(EMPTY_METARANGE_ID, "", "")).id == Metarange.empty().id
    with pytest.raises(Corrupted):
        RangeReader(store).metarange(Pointer(metarange.id, "", ""))


def test_a_missing_file_is_named(store, metarange, pointer):
    row = metarange.row(0)
    (store.root / row.key).unlink()
    with pytest.raises(FileMissing, match=rf"{row.key}.*lakeops fsck"):
        RangeReader(store).stat(metarange, row.first_path)
    key = metarange_key(pointer.meta_range_file)
    (store.root / key).unlink()
    with pytest.raises(FileMissing, match=key):
        RangeReader(store).metarange(pointer)


def test_what_was_verified_before_is_not_fetched_again(store, metarange, pointer):
    reader = RangeReader(store)
    reader.metarange(pointer)
    reader.stat(metarange, "a/00000")
    store.forget()
    reader.metarange(pointer)
    reader.stat(metarange, "a/00002")
    assert store.read == []
