"""Metaranges of leaves: they say what one file would say, change as little as they can, and cannot be forged."""

from collections.abc import Callable
from hashlib import sha256

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.leaves import small_leaves
from support.rows import QUICK, Pointer, attempt, built, changed, contents, numbered

from lakeops.model.errors import Corrupted, FileMissing
from lakeops.ranges.metarange import LEAF_SCHEMA, Metarange, RangeRow, described_leaf, in_leaves, joined, root_row
from lakeops.ranges.range_file import encode_metarange, write_metarange
from lakeops.ranges.read import RangeReader
from lakeops.store.layout import metarange_key, range_key

REPOSITORY = numbered(range(600))
PATH = "b/00251"


@pytest.fixture(autouse=True)
def small():
    with small_leaves(4):
        yield


@pytest.fixture
def base(store):
    return built(store, REPOSITORY)


def rows_of(metarange):
    assert metarange.leaves is not None
    return RangeRow.all_of(metarange.leaves.root.table)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(0, 60)), max_size=12))
@QUICK
def test_pieces_make_what_their_ranges_make(fresh_store, spans):
    store = fresh_store()
    with small_leaves(4):
        sides = [built(store, numbered(range(start, start + 600))) for start in (0, 600, 1_200)]
        sides[2] = Metarange(sides[2].table)
        pieces = [
            (sides[number], *sorted((min(a, len(sides[number])), min(b, len(sides[number]))))) for number, a, b in spans
        ]
        found = joined(pieces)
        plain = Metarange(pa.concat_tables([sides[0].table.slice(0, 0), *[one.between(a, b) for one, a, b in pieces]]))
        assert (found.id, len(found), found.count, found.size_bytes) == (
            plain.id,
            len(plain),
            plain.count,
            plain.size_bytes,
        )
        assert found.table.equals(plain.table)
        if found.leaves is not None:
            assert found.leaves.root.table.drop_columns(["file", "file_bytes", "file_digest"]).equals(
                in_leaves(plain).root.table.drop_columns(["file", "file_bytes", "file_digest"])
            )


def test_a_commit_reads_and_writes_the_leaf_that_it_changes(store, base):
    store.forget()
    after = changed(store, base, {"a/00300": ("9", 9)})
    before, now = ({row.file for row in rows_of(one)} for one in (base, after))
    written = write_metarange(store, after, attempt())
    assert len(before) > 10
    assert 1 <= len(before - now) <= 3
    assert len(now & before) == len(before) - len(before - now)
    assert {key for key in store.read if key.split("/")[2] in before} <= {range_key(file) for file in before}
    assert len({key.split("/")[2] for key in store.read} & before) <= 3
    again = RangeReader(store).metarange(Pointer.to(written))
    assert (again.id, again.table.equals(after.table)) == (after.id, True)
    assert contents(store, again) == REPOSITORY | {"a/00300": ("9", 9)}


def test_small_metaranges_are_one_file_again(store, base):
    after = changed(store, base, dict.fromkeys(path for path in REPOSITORY if path > "a/00050"))
    assert after.leaves is not None
    with small_leaves(4, 50):
        store.forget()
        again = RangeReader(store).metarange(Pointer.to(write_metarange(store, after, attempt())))
        assert again.leaves is None
        assert [key.split("/")[1] for key in store.written] == ["metaranges"]
        assert again.id == after.id == built(store, {p: v for p, v in REPOSITORY.items() if p <= "a/00050"}).id


def everything(store, pointer):
    """Ways to use a metarange: each meets the forged leaf or gives what is right."""
    return [
        lambda: contents(store, RangeReader(store).metarange(pointer)),
        lambda: RangeReader(store).metarange(pointer).table,
        lambda: RangeReader(store).whole(pointer),
        lambda: RangeReader(store).stat(RangeReader(store).metarange(pointer), PATH),
        lambda: changed(store, RangeReader(store).metarange(pointer), {PATH: ("9", 9)}),
    ]


def replaced(base, store, number, leaf=None, *, instead=1, **told):
    """A metarange whose root tells something else of one leaf, with every digest right."""
    assert base.leaves is not None
    table = base.leaves.root.table
    if leaf is not None:
        data = encode_metarange(leaf.table)
        key = rows_of(base)[number].id.hex() if not told.pop("own_id", False) else None
        file = f"{key or described_leaf(leaf).id.hex()}-{attempt()}.parquet"
        store.put(range_key(file), data)
        row = root_row(leaf, described_leaf(leaf, file, len(data), sha256(data).digest()))
        told = dict(zip(LEAF_SCHEMA.names, row.to_pylist()[0].values(), strict=True)) | told
    values = table.slice(number, 1).to_pylist()[0] | told
    row = pa.Table.from_pylist([values], LEAF_SCHEMA)
    forged = pa.concat_tables([table.slice(0, number), row, table.slice(number + instead)])
    data = encode_metarange(forged)
    store.put(metarange_key("forged.parquet"), data)
    ids = b"".join(forged.column("id").to_pylist())
    return Pointer(sha256(b"lakeops metarange 2\n" + ids).hexdigest(), "forged.parquet", sha256(data).hexdigest())


def leaf_with(base):
    """The leaf that everybody asks for: one of several ranges."""
    assert base.leaves is not None
    number = int(np.argmax(np.diff(base.leaves.starts)))
    assert rows_of(base)[number].first_path == PATH
    return number


def reordered(leaf):
    return Metarange.from_rows(leaf.rows(0, len(leaf))[::-1])


TOLD = {
    "another first path": {"first_path": "a/0000"},
    "another last path": {"last_path": "a/00301!"},
    "another count": {"count": 1},
    "other bytes": {"bytes": 1},
    "no ranges": {"ranges": 0},
    "fewer ranges than none": {"ranges": -3},
    "one range more": {"ranges": 8},
    "as many as nobody has": {"ranges": 1 << 50},
    "a file elsewhere": {"file": "../metaranges/x.parquet"},
    "another leaf's file": {"file": "0" * 64 + "-x.parquet"},
    "a huge file": {"file_bytes": 1 << 60},
    "another digest": {"file_digest": bytes(32)},
    "another id": {"id": bytes(32)},
}


@pytest.mark.parametrize("told", TOLD.values(), ids=TOLD)
def test_what_a_root_tells_of_a_leaf_is_checked(store, base, told):
    pointer = replaced(base, store, leaf_with(base), **told)
    for use in everything(store, pointer):
        with pytest.raises((Corrupted, FileMissing)):
            use()


LEAVES: dict[str, Callable[[Metarange], Metarange]] = {
    "no ranges": lambda leaf: leaf.only(leaf.without(leaf)),
    "one range less": lambda leaf: Metarange(leaf.table.slice(1)),
    "ranges out of order": reordered,
    "a range twice": lambda leaf: Metarange(pa.concat_tables([leaf.table, leaf.table.slice(0, 1)])),
}


@pytest.mark.parametrize("change", LEAVES.values(), ids=LEAVES)
def test_a_leaf_of_other_ranges_is_corrupted(store, base, change):
    """The file is what its digest says, and lies in the place of another leaf."""
    number = leaf_with(base)
    (leaf,) = base.leaves.get([number])
    data, row = encode_metarange(change(leaf).table), rows_of(base)[number]
    file = f"{row.id.hex()}-{attempt()}.parquet"
    store.put(range_key(file), data)
    told = {"file": file, "file_bytes": len(data), "file_digest": sha256(data).digest()}
    for use in everything(store, replaced(base, store, number, **told)):
        with pytest.raises(Corrupted, match=file):
            use()


def test_ranges_that_are_out_of_order_in_a_leaf_of_its_own_are_corrupted(store, base):
    number = leaf_with(base)
    odd = reordered(base.leaves.get([number])[0])
    pointer = replaced(base, store, number, odd, own_id=True)
    for use in everything(store, pointer):
        with pytest.raises(Corrupted):
            use()


def test_leaves_that_end_elsewhere_are_found_by_whoever_reads_all(store, base):
    """Each leaf is right by itself, but no writer ends one there."""
    sizes = np.diff(base.leaves.starts)
    number = int(np.argmin(sizes[:-1] + sizes[1:]))
    both = Metarange(pa.concat_tables([one.table for one in base.leaves.get([number, number + 1])]))
    pointer = replaced(base, store, number, both, own_id=True, instead=2)
    assert RangeReader(store).metarange(pointer).table.equals(base.table)
    with pytest.raises(Corrupted, match="elsewhere"):
        RangeReader(store).whole(pointer)


@pytest.mark.parametrize("how", ["gone", "flipped", "cut short", "a range", "another leaf", "the root"])
def test_damage_to_a_leaf_is_found_and_named(store, base, how):
    pointer = Pointer.to(write_metarange(store, base, attempt()))
    row, other = (rows_of(base)[number] for number in (leaf_with(base), 0))
    path = store.root / row.key
    data = path.read_bytes()
    path.chmod(0o644)
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(
            {
                "flipped": data[:50] + bytes([data[50] ^ 1]) + data[51:],
                "cut short": data[:-9],
                "a range": store.get(base.row(0).key),
                "another leaf": store.get(other.key),
                "the root": store.get(metarange_key(pointer.meta_range_file)),
            }[how]
        )
    for use in everything(store, pointer):
        with pytest.raises(FileMissing if how == "gone" else Corrupted, match=row.file):
            use()
