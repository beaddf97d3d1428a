"""Files that somebody made on purpose: every digest is right, and what they digest is not what a writer makes.

Whatever comes out of them is an answer or ``Corrupted``, in bounded memory; never another error.
"""

from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget import examples
from support.rows import Pointer, built, entry_table, numbered

from lakeops.model.arrow import RANGE_SCHEMA
from lakeops.model.errors import Corrupted
from lakeops.ranges.digest import with_digests
from lakeops.ranges.metarange import Metarange, RangeRow, range_id
from lakeops.ranges.range_file import _page_bytes, encode_metarange, encode_range, fetch_range
from lakeops.ranges.read import EntryCursor, RangeReader
from lakeops.store.layout import metarange_key
from lakeops.store.local import LocalStore


def read_range(store, row):
    return fetch_range(store, row).read()


def prove_range(store, row):
    return fetch_range(store, row, cached=False).read_carefully()


def everything(store, metarange):
    """All that readers do with a commit."""
    reader = RangeReader(store)
    for path in ("", "a/00000", "a/00017", "m", "\U0010ffff"):
        reader.stat(metarange, path or "a")
        cursor = EntryCursor(reader, metarange)
        cursor.seek(path)
        cursor.take()
        for table in reader.scan(metarange, "", path):
            table.to_pylist()
    for row in metarange.rows(0, len(metarange)):
        for read in (read_range, prove_range, fetch_range):
            read(store, row)
        fetch_range(store, row).read(["physical_address"])
        fetch_range(store, row).take(np.arange(min(row.count, 5)))
        fetch_range(store, row).find(pa.array(["a/00000", "a/00003"]))
        assert len(fetch_range(store, row).digests) == row.count


def survives(work):
    """Whether it gives an answer or ``Corrupted``; anything else is an error of the test."""
    try:
        work()
    except Corrupted as error:
        assert "\n" not in error.message


def resealed(store, row, data):
    """A file in place of a range's, and the row that a metarange would have of it: its digest is right."""
    forged = replace(row, file="forged.parquet", file_bytes=len(data), file_digest=sha256(data).digest())
    (store.root / forged.key).write_bytes(data)
    return forged


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    store = LocalStore(tmp_path_factory.mktemp("forged"), fsync=False)
    metarange = built(store, numbered(range(40)))
    row = metarange.row(1)
    return store, row, store.get(row.key)


FLIPS = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=4)


@settings(max_examples=examples(50), deadline=None)
@given(flips=FLIPS)
def test_a_changed_range_whose_digests_are_right(whole, flips):
    store, row, data = whole
    changed = bytearray(data)
    for place, bits in flips:
        changed[int(place * len(changed))] ^= bits
    forged = resealed(store, row, bytes(changed))
    survives(lambda: everything(store, Metarange.from_rows([forged])))


@pytest.mark.slow
@settings(max_examples=10_000, deadline=None)
@given(flips=FLIPS)
def test_many_changed_ranges_whose_digests_are_right(whole, flips):
    test_a_changed_range_whose_digests_are_right.hypothesis.inner_test(whole, flips)


@settings(max_examples=examples(40), deadline=None)
@given(start=st.floats(0, 1), stop=st.floats(0, 1))
def test_a_range_of_another_length_whose_digest_is_right(whole, start, stop):
    store, row, data = whole
    forged = resealed(store, row, data[int(start * len(data)) : int(stop * len(data))])
    survives(lambda: everything(store, Metarange.from_rows([forged])))


@settings(max_examples=examples(50), deadline=None)
@given(flips=FLIPS)
def test_a_changed_metarange_whose_digest_is_right(tmp_path_factory, flips):
    store = LocalStore(tmp_path_factory.mktemp("m"), fsync=False)
    data = bytearray(encode_metarange(built(store, numbered(range(40))).table))
    for place, bits in flips:
        data[int(place * len(data))] ^= bits
    store.put(metarange_key("f.parquet"), bytes(data))

    def read():
        reader = RangeReader(store)
        pointer = Pointer("0" * 64, "f.parquet", sha256(data).hexdigest())
        with pytest.raises(Corrupted):
            reader.metarange(pointer)  # the id is another one in any case

    survives(read)


def forged_metarange(store, table):
    data = encode_metarange(table)
    store.put(metarange_key("forged.parquet"), data)
    return Pointer(Metarange(table).id, "forged.parquet", sha256(data).hexdigest())


ODD_ROWS: dict[str, dict[str, Any]] = {
    "a file elsewhere": {"file": "../../data/x"},
    "a file with a control character": {"file": "x\n::group::.parquet"},
    "no file": {"file": ""},
    "no rows": {"count": 0},
    "negative rows": {"count": -1},
    "more rows": {"count": 1 << 40},
    "negative bytes": {"size_bytes": -1},
    "a file of no bytes": {"file_bytes": 0},
    "a huge file": {"file_bytes": 1 << 60},
    "a huge file of as many rows": {"file_bytes": 1 << 40, "count": 1 << 35},
    "last before first": {"last_path": ""},
    "a later end than there is": {"last_path": "zzz"},
    "an earlier start than there is": {"first_path": ""},
}


@pytest.mark.parametrize("changes", ODD_ROWS.values(), ids=ODD_ROWS)
def test_a_metarange_that_tells_of_a_range_what_cannot_be(store, changes):
    metarange = built(store, numbered(range(12)))
    rows = metarange.rows(0, len(metarange))
    rows[-1] = replace(rows[-1], **changes)
    table = Metarange.from_rows(rows).table
    pointer = forged_metarange(store, table)
    survives(lambda: everything(store, RangeReader(store).metarange(pointer)))


def test_ranges_out_of_order_are_corrupted(store):
    metarange = built(store, numbered(range(40)))
    rows = metarange.rows(0, len(metarange))
    for odd in ([*rows[1:], rows[0]], [rows[0], rows[0]]):
        pointer = forged_metarange(store, Metarange.from_rows(odd).table)
        with pytest.raises(Corrupted, match="range"):
            RangeReader(store).metarange(pointer)


def sealed_rows(store, table, **told):
    """A range of these rows, with every digest right, and what the metarange tells of it, right unless given."""
    data = encode_range(table)
    paths = table.column("path").cast(pa.binary()).to_pylist()
    row = RangeRow(
        id=range_id(table.column("digest")), file="sealed.parquet",
        first_path=paths[0].decode(errors="replace"), last_path=paths[-1].decode(errors="replace"),
        count=table.num_rows, size_bytes=0, file_bytes=len(data), file_digest=sha256(data).digest(),
    )  # fmt: skip
    store.put(row.key, data)
    return replace(row, **told)


READS = (read_range, prove_range, lambda *given: fetch_range(*given).paths)


def rows_of(count=6):
    return with_digests(entry_table(numbered(range(count))))


def test_paths_that_do_not_rise_are_corrupted(store):
    row = sealed_rows(store, rows_of().take([0, 2, 1, 3, 4, 5]))
    for read in READS:
        with pytest.raises(Corrupted, match="rise"):
            read(store, row)


@pytest.mark.parametrize("told", [{"first_path": "a"}, {"last_path": "z"}], ids=str)
def test_an_end_that_is_another_is_corrupted(store, told):
    row = sealed_rows(store, rows_of(), **told)
    for read in READS:
        with pytest.raises(Corrupted, match="begins or ends elsewhere"):
            read(store, row)


@pytest.mark.parametrize("name", ["path", "physical_address", "checksum", "content_type"])
def test_a_text_that_is_not_utf8_is_corrupted(store, name):
    table = rows_of()
    texts = [text.as_py().encode() for text in table.column(name)]
    texts[3] = b"\xff\xfe"
    bad = pa.array(texts, pa.binary())
    column = pa.Array.from_buffers(pa.string(), len(bad), bad.buffers())
    place = table.schema.get_field_index(name)
    row = sealed_rows(store, table.set_column(place, RANGE_SCHEMA.field(place), column))
    for read in (read_range, prove_range):
        with pytest.raises(Corrupted):
            read(store, row)


@pytest.mark.parametrize("size", [1 << 20, 4 << 20])
def test_few_bytes_that_stand_for_many_are_refused(store, size):
    """The limit of memory is that of what the rows can take, and nothing is decoded to find out."""
    table = rows_of(60)
    place = table.schema.get_field_index("checksum")
    large = table.set_column(place, RANGE_SCHEMA.field(place), pa.repeat(pa.scalar("x" * size), 60))
    row = sealed_rows(store, large)
    assert row.file_bytes < size // 50
    before = pa.total_allocated_bytes()
    peak = pa.default_memory_pool().max_memory()
    for read in READS:
        with pytest.raises(Corrupted, match="bytes"):
            read(store, row)
    assert pa.default_memory_pool().max_memory() <= max(peak, before + (16 << 20))


def test_a_prefix_that_is_repeated_is_refused(store):
    """Delta encoding takes a long path once, and each row gives it again."""
    table = rows_of(200)
    place = table.schema.get_field_index("physical_address")
    long = pa.array([f"data/{'x' * 60_000}{number:06}" for number in range(200)])
    row = sealed_rows(store, table.set_column(place, RANGE_SCHEMA.field(place), long))
    assert row.file_bytes < 100_000
    with pytest.raises(Corrupted, match="memory"):
        prove_range(store, row)


def test_a_metarange_of_few_bytes_that_stand_for_many_is_refused(store):
    row = built(store, numbered(range(4))).row(0)
    rows = [replace(row, file=f"{'f' * 200_000}{number:06}") for number in range(300)]
    table = Metarange.from_rows(rows).table
    pointer = forged_metarange(store, table)
    with pytest.raises(Corrupted):
        RangeReader(store).metarange(pointer)


@pytest.mark.parametrize("count", [5, 7, 60])
def test_another_number_of_rows_is_corrupted(store, count):
    row = sealed_rows(store, rows_of(6))
    for read in READS:
        with pytest.raises(Corrupted, match="rows"):
            read(store, replace(row, count=count))


def test_more_rows_than_a_file_can_hold_are_refused_unread(store):
    row = sealed_rows(store, rows_of(6))
    store.forget()
    for read in READS:
        with pytest.raises(Corrupted, match="rows"):
            read(store, replace(row, count=1 << 30))
    assert store.read == []


def test_a_file_that_goes_on_behind_its_end_is_read_no_further(store):
    """Whoever writes to the bucket may have put anything of any length there."""
    row = sealed_rows(store, rows_of(6))
    (store.root / row.key).write_bytes(store.get(row.key) + bytes(1 << 20))
    store.forget()
    for read in READS:
        with pytest.raises(Corrupted, match="does not match its digest"):
            read(store, row)
    assert store.bytes_read == len(READS) * (row.file_bytes + 1)


PAGES: dict[str, bytes] = {
    "structs within structs": b"\x15\x00" * 3 + b"\x1c" * 100_000,
    "lists within lists": b"\x15\x00" * 3 + b"\x19" + b"\x19" * 100_000,
    "a list of more truth values than there are bytes": b"\x15\x00" * 3 + b"\x19\xf1" + b"\xff" * 8 + b"\x7f",
    "a list of more bytes than there are": b"\x15\x00" * 3 + b"\x19\xf3" + b"\xff" * 8 + b"\x7f",
    "a number without an end": b"\x15" + b"\xff" * 200_000,
    "a page of fewer bytes than none": b"\x15\x00\x15\x01\x15\x00\x00",
    "a page that goes on behind its column": b"\x15\x00\x15\x02\x15\x40\x00",
    "no page": b"\x00",
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("data", PAGES.values(), ids=PAGES)
def test_a_page_header_that_is_made_to_keep_a_reader_busy_is_refused(data):
    with pytest.raises((ValueError, IndexError, RecursionError)):
        _page_bytes(data)
