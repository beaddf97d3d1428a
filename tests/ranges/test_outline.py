"""Footers taken apart and put together: byte for byte the same, or with offsets moved, or refused."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import synthetic
from support.rows import QUICK

from lakeops.model.schema import RANGE_SCHEMA
from lakeops.ranges.cutter import with_digests
from lakeops.ranges.digest import group_digest
from lakeops.ranges.format import VERSION_KEY, decode_footer, encode_range, encode_tail
from lakeops.ranges.outline import CLOSING, NotOutlined, _outline, metadata_at, outline
from lakeops.ranges.split import VERSION


@pytest.fixture(scope="module")
def rows():
    return with_digests(synthetic.entries(np.arange(3_000, dtype=np.uint64)))


def encoded(rows, ends) -> tuple[bytes, bytes]:
    """A range file with these row groups, and its footer."""
    groups = [rows.slice(start, end - start) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    data, size = encode_range(groups, [group_digest(group["digest"]) for group in groups])
    return data, data[-size:]


@given(st.data())
@QUICK
def test_a_footer_put_together_again_is_the_same_bytes(rows, data):
    ends = sorted(data.draw(st.sets(st.integers(1, rows.num_rows), min_size=1, max_size=40)))
    _, tail = encoded(rows, ends)
    outlined = outline(tail)
    groups = [group.moved(0, number) for number, group in enumerate(outlined.groups)]
    footer = outlined.footer(ends[-1], groups, VERSION_KEY.encode(), str(VERSION).encode())
    assert tail.endswith(footer)
    assert encode_tail(decode_footer(tail, "key").groups, footer) == tail


@given(st.integers(0, 1 << 40))
@QUICK
def test_moving_a_row_group_moves_its_offsets_and_nothing_else(rows, by):
    _, tail = encoded(rows, [1_000, 3_000])
    outlined = outline(tail)
    groups = [outlined.groups[1].moved(by, 0), outlined.groups[0].moved(0, 1)]
    moved = pq.read_metadata(io.BytesIO(b"PAR1" + outlined.footer(3_000, groups, b"k", b"v")))
    before = decode_footer(tail, "key").parse()
    assert moved.metadata == {b"k": b"v"}
    for now, then, shift in ((0, 1, by), (1, 0, 0)):
        one, other = moved.row_group(now).to_dict(), before.row_group(then).to_dict()
        for columns in (one["columns"], other["columns"]):
            assert len(columns) == 9
        for new, old in zip(one["columns"], other["columns"], strict=True):
            for name in ("data_page_offset", "dictionary_page_offset"):
                assert new.pop(name) == (old[name] + shift if old[name] is not None else None)
                del old[name]
        assert one == other


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 20))
@QUICK
def test_what_was_moved_is_described_as_if_it_had_been_read(rows, by, again):
    """A writer keeps the pieces of the footer that it put together, and takes them for those of the file."""
    _, tail = encoded(rows, [1_000, 2_000, 3_000])
    kept = outline(tail)
    moved = [kept.groups[2].moved(by, 0), kept.groups[0].moved(0, 1), kept.groups[1].moved(by, 2)]
    for groups in (moved, [group.moved(again, 2 - number) for number, group in enumerate(moved)]):
        footer = kept.footer(3_000, groups, VERSION_KEY.encode(), str(VERSION).encode())
        assert outline(footer).groups == tuple(groups)


@given(st.data())
@QUICK
def test_shapes_that_were_seen_before_change_nothing(rows, data):
    """Columns of one shape are passed in one step; what comes out is what a walk over each field gives."""
    ends = sorted(data.draw(st.sets(st.integers(1, rows.num_rows), min_size=2, max_size=20)))
    metadata = encoded(rows, ends)[1]
    metadata = metadata[metadata_at(metadata) : -CLOSING]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lakeops.ranges.outline._shapes", {})
        patch.setattr("lakeops.ranges.outline.MOST_SHAPES", 0)
        walked = _outline(metadata)
        patch.setattr("lakeops.ranges.outline.MOST_SHAPES", 2)
        patch.setattr("lakeops.ranges.outline.WORTH_LEARNING", 0)
        assert _outline(metadata) == walked == _outline(metadata)


@pytest.mark.parametrize(
    "options",
    [{"write_page_index": True}, {"bloom_filter_options": {"path": True}}, {"store_schema": True}],
    ids=["page index", "bloom filter", "two pairs"],
)
def test_what_may_hold_other_offsets_is_refused(rows, options):
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, RANGE_SCHEMA, **{"store_schema": False} | options) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata({VERSION_KEY: str(VERSION)})
    tail = sink.getvalue()
    if "store_schema" in options:
        # Other pairs are not carried over, which is no harm: Arrow's schema follows from the columns.
        assert outline(tail).head
    else:
        with pytest.raises(NotOutlined):
            outline(tail)


@given(st.data())
@QUICK
def test_a_damaged_footer_is_refused_or_comes_out_as_some_footer(rows, data):
    """Footers are verified before; but whatever the bytes, nothing else is raised and nothing runs for ever."""
    _, tail = encoded(rows, [2_000, 3_000])
    at, value = data.draw(st.integers(0, len(tail) - 1)), data.draw(st.integers(0, 255))
    damaged = tail[:at] + bytes([value]) + tail[at + 1 :]
    try:
        outline(damaged)
    except NotOutlined:
        pass


def test_a_footer_without_pairs_is_refused(rows):
    sink = io.BytesIO()
    pq.write_table(rows.select(["path"]), sink, store_schema=False)
    with pytest.raises(NotOutlined, match="lacks field 5"):
        outline(sink.getvalue())


def test_a_table_has_no_row_that_is_not_in_the_footer(rows):
    data, tail = encoded(rows, [1_500, 3_000])
    outlined = outline(tail)
    only = outlined.footer(1_500, [outlined.groups[0].moved(0, 0)], b"k", b"v")
    table = pq.read_table(pa.BufferReader(data[: -len(tail)] + only))
    assert table.equals(rows.slice(0, 1_500).cast(table.schema))
