import struct
from hashlib import blake2b, sha256

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lakeops.model.arrow import ENTRY_SCHEMA
from lakeops.model.errors import InvalidInput
from lakeops.ranges.digest import entry_digests, same_identity
from lakeops.ranges.metarange import EMPTY_METARANGE_ID, metarange_id, range_id

ROW = {
    "path": "a/b",
    "physical_address": "data/2026010100/x",
    "checksum": "00ff",
    "size_bytes": 5,
    "mtime": 1_760_000_000,
    "content_type": "text/csv",
    "metadata": [("k", "v"), ("ä", "")],
}
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
rows = st.fixed_dictionaries(
    {
        "path": text,
        "physical_address": text,
        "checksum": text,
        "size_bytes": st.integers(0, 2**63 - 1),
        "mtime": st.integers(-(2**63), 2**63 - 1),
        "content_type": text,
        "metadata": st.dictionaries(text, text, max_size=4).map(lambda pairs: list(pairs.items())),
    }
)


def table(*some):
    return pa.Table.from_pylist(list(some), ENTRY_SCHEMA)


def canonical(row, texts=("path", "physical_address", "checksum", "content_type"), numbers=("size_bytes", "mtime")):
    """The format's specification, one row at a time."""
    encoded = [row[name].encode() for name in texts]
    pairs = sorted((key.encode(), value.encode()) for key, value in row["metadata"])
    return b"".join(
        [
            *(struct.pack("<I", len(part)) for part in encoded),
            *(struct.pack("<q", row[name]) for name in numbers),
            struct.pack("<I", len(pairs)),
            *encoded,
            *(struct.pack("<II", len(key), len(value)) + key + value for key, value in pairs),
        ]
    )


@given(st.lists(rows, max_size=12), st.integers(0, 5), st.integers(0, 12))
def test_digests_follow_the_specification_also_in_slices_and_chunks(some, start, size):
    expected = [blake2b(canonical(row), digest_size=16).digest() for row in some]
    whole = table(*some)
    assert entry_digests(whole).to_pylist() == expected
    assert entry_digests(whole.slice(start, size)).to_pylist() == expected[start:][:size]
    chunks = pa.concat_tables([whole.slice(start), whole.slice(0, start)])
    assert entry_digests(chunks).to_pylist() == expected[start:] + expected[:start]
    small = [canonical(row, ("checksum", "content_type"), ("size_bytes",)) for row in some]
    turned = pa.concat_tables([whole.slice(1), whole.slice(0, 1)])
    assert same_identity(whole, turned).tolist() == [one == small[at - len(some) + 1] for at, one in enumerate(small)]


def test_the_format_is_pinned():
    digests = entry_digests(table(ROW))
    assert digests[0].as_py().hex() == "0c1fb4f281d096cb7110e3b3f3e44f7d"
    assert range_id(digests).hex() == "2373bd0e81206e220b45f7074d166693f628d36998035f0a1be046ac13d042cb"
    assert (
        metarange_id(pa.chunked_array([[bytes(32), bytes(range(32))]], pa.binary(32)))
        == "7088aaa1ce49d60b2ce077777cd3c999b6eca69a2b72c25bfb5961318eaa6f94"
    )
    assert EMPTY_METARANGE_ID == "a9e28166c0b24f5d4a4db5982920b03fdb653dd2f9a48079ef2bdfd6872a7445"


@pytest.mark.parametrize(
    ("column", "value", "in_identity"),
    [
        ("path", "a/c", False),
        ("physical_address", "data/2026010100/y", False),
        ("mtime", 1_760_000_001, False),
        ("checksum", "00fe", True),
        ("size_bytes", 6, True),
        ("content_type", "text/tsv", True),
        ("metadata", [("k", "v")], True),
        ("metadata", [("k", "v"), ("ä", "x")], True),
    ],
)
def test_every_column_is_in_the_digest_and_some_in_the_identity(column, value, in_identity):
    one, other = table(ROW), table(ROW | {column: value})
    assert entry_digests(one) != entry_digests(other)
    assert same_identity(one, other).tolist() == [not in_identity]


def test_bytes_that_move_between_neighbours_change_the_digest():
    variants = [
        ROW | {"path": "a/bd", "physical_address": "ata/2026010100/x"},
        ROW | {"metadata": [("k", "vä")]},
        ROW | {"metadata": [("kv", ""), ("ä", "")]},
        ROW | {"checksum": "00f", "content_type": "ftext/csv"},
        ROW,
    ]
    assert len(set(entry_digests(table(*variants)).to_pylist())) == len(variants)


def test_the_order_of_metadata_does_not_matter():
    other = ROW | {"metadata": ROW["metadata"][::-1]}
    assert entry_digests(table(ROW, other)).to_pylist() == entry_digests(table(ROW)).to_pylist() * 2
    assert same_identity(table(ROW), table(other)).all()


def test_what_has_no_digest_is_refused():
    with pytest.raises(InvalidInput, match="twice"):
        entry_digests(table(ROW | {"metadata": [("k", "1"), ("k", "2")]}))
    with pytest.raises(InvalidInput, match="without a value"):
        entry_digests(table(ROW | {"metadata": [("k", None)]}))
    with pytest.raises(InvalidInput, match="checksum"):
        entry_digests(table(ROW).set_column(2, "checksum", pa.array([None], pa.string())))


@given(st.lists(st.binary(min_size=16, max_size=16), max_size=9), st.integers(0, 9))
def test_ids_hash_their_parts_in_order(parts, start):
    array = pa.array(parts, pa.binary(16))
    tag = b"lakeops range 2\n"
    assert range_id(array.slice(start)) == sha256(tag + b"".join(parts[start:])).digest()
    both = pa.chunked_array([array, array.slice(start)])
    assert range_id(both) == sha256(tag + b"".join(parts + parts[start:])).digest()


@given(st.lists(st.sampled_from([bytes(32), bytes([0, 255]) * 16, bytes([1]) * 32, bytes([255]) * 32]), max_size=1_200))
@example([bytes([255]) * 32] * 1_100)
def test_the_id_of_a_metarange_follows_the_specification(ids):
    leaves, leaf = [], []
    for number, one in enumerate(ids, 1):
        leaf.append(one)
        if one[0] == 0 or len(leaf) == 512 or number == len(ids):
            leaves.append(sha256(b"lakeops leaf 1\n" + b"".join(leaf)).digest())
            leaf = []
    expected = sha256(b"lakeops metarange 2\n" + b"".join(leaves)).hexdigest()
    assert metarange_id(pa.chunked_array([pa.array(ids, pa.binary(32))], pa.binary(32))) == expected
