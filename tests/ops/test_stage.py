"""Bulk staging: what rows may say, and how their addresses are kept."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakeops.model import errors
from lakeops.model.arrow import ENTRY_SCHEMA
from lakeops.model.ids import check_checksum, check_content_type, check_metadata, check_mtime, check_size
from lakeops.model.names import check_path
from lakeops.model.sanitising import excerpt
from lakeops.ops.read import full
from lakeops.ranges.validation import check_entries, joined, relative
from lakeops.store import layout


def table(**columns):
    rows = len(columns.get("path", ["a"]))
    return pa.table(
        {
            "path": ["a"],
            "physical_address": [f"data/x/{number}" for number in range(rows)],
            "checksum": ["c"] * rows,
            "size_bytes": [1] * rows,
            "mtime": [0] * rows,
        }
        | columns
    )


def test_bulk_rows_are_staged_sorted_and_normalised(repo):
    main = repo.branch("main")
    moment = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    count = main.stage(
        table(
            path=["b", "a", "c"],
            physical_address=["data/x/1", repo.storage_namespace + "/data/x/2", "s3://elsewhere/key"],
            mtime=pa.array([moment] * 3, pa.timestamp("us", "UTC")),
            metadata=pa.array([[("k", "v")], None, []], pa.map_(pa.string(), pa.string())),
        )
    )
    assert count == 3
    main.commit("bulk")
    first, second, third = repo.ref("main").list()
    assert [first.path, second.path, third.path] == ["a", "b", "c"]
    assert second.metadata == {"k": "v"}
    assert first.mtime == int(moment.timestamp())
    assert first.physical_address == repo.storage_namespace + "/data/x/2"
    assert third.physical_address == "s3://elsewhere/key"


META = pa.map_(pa.string(), pa.string())


def maps(*rows):
    return pa.array(rows, META)


def invalid_text():
    """A text that is not UTF-8, as programs that skip checks write it."""
    return pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")])


BAD_COLUMNS = [
    ({"path": ["a", "a"]}, errors.InvalidPath, "comes twice"),
    ({"path": [""]}, errors.InvalidPath, "empty"),
    ({"path": ["é" * 513]}, errors.InvalidPath, "1024"),
    ({"path": ["a\0b"]}, errors.InvalidPath, "NUL"),
    ({"path": pa.array([None], pa.string())}, errors.InvalidInput, "nulls"),
    ({"path": invalid_text()}, errors.InvalidInput, "damaged"),
    ({"path": pa.array([b"\xff"])}, errors.InvalidInput, "'path' is binary"),
    ({"size_bytes": [-1]}, errors.InvalidInput, "'a': size_bytes"),
    ({"size_bytes": ["many"]}, errors.InvalidInput, "not int64"),
    ({"size_bytes": [1.5]}, errors.InvalidInput, "not int64"),
    ({"size_bytes": [float("nan")]}, errors.InvalidInput, "not int64"),
    ({"size_bytes": pa.array([2**64 - 1], pa.uint64())}, errors.InvalidInput, "not int64"),
    ({"size_bytes": pa.array([None], pa.int64())}, errors.InvalidInput, "nulls"),
    ({"mtime": [1_790_000_000_000]}, errors.InvalidInput, "'a': mtime.*not milliseconds"),
    ({"mtime": pa.array([2**62], pa.timestamp("s"))}, errors.InvalidInput, "'a': mtime"),
    ({"checksum": [""]}, errors.InvalidInput, "'a': checksum: it is empty"),
    ({"checksum": ["c\r\nd"]}, errors.InvalidInput, "'a': checksum"),
    ({"content_type": ["text/html\r\nSet-Cookie: x"]}, errors.InvalidInput, "'a': content type"),
    ({"metadata": maps([("k", None)])}, errors.InvalidInput, "'a': metadata value of 'k': it is not text"),
    ({"metadata": maps([("", "v")])}, errors.InvalidInput, "'a': metadata key: it is empty"),
    ({"metadata": maps([("k", "v" * 2048)])}, errors.InvalidInput, "'a': metadata"),
    ({"metadata": maps([(f"k{n}", "v" * 100) for n in range(20)])}, errors.InvalidInput, "'a': metadata: keys and val"),
    ({"metadata": maps([("k", "1"), ("k", "2")])}, errors.InvalidInput, "'a': metadata: the key 'k' comes twice"),
    ({"metadata": ["text"]}, errors.InvalidInput, "not map"),
    ({"physical_address": ["../other/secret"]}, errors.InvalidInput, "'a': "),
    ({"physical_address": ["data/../_lakefs/x"]}, errors.InvalidInput, "'a': "),
    ({"physical_address": ["_lakefs/ranges/x"]}, errors.InvalidInput, "'a': "),
    ({"physical_address": ["/etc/passwd"]}, errors.InvalidInput, "'a': "),
    ({"physical_address": ["http://host/x"]}, errors.InvalidInput, "'a': "),
    ({"physical_address": ["s3://bucket/a/../b"]}, errors.InvalidInput, "'a': "),
    ({"physical_address": ["s3://bu..ket/a"]}, errors.InvalidInput, "'a': .*bucket name"),
    ({"physical_address": ["s3://user:key@bucket/a"]}, errors.InvalidInput, "'a': .*bucket name"),
    ({"physical_address": ["s3://b/a"]}, errors.InvalidInput, "'a': .*bucket name"),
    ({"physical_address": ["file:///a/%2e%2e/b"]}, errors.InvalidInput, "'a': "),
    ({"physical_address": ["file:///a/%00"]}, errors.InvalidInput, "'a': .*NUL"),
    ({"physical_address": ["file:///a/%ff"]}, errors.InvalidInput, "'a': .*UTF-8"),
    ({"physical_address": ["file:///a/"]}, errors.InvalidInput, "'a': "),
    ({"physical_address": ["s3://bucket/" + "k" * 10_000]}, errors.InvalidInput, "'a': .*8,192"),
    ({"physical_address": ["data/a\0b"]}, errors.InvalidInput, "'a': "),
]


@pytest.mark.parametrize(("columns", "error", "says"), BAD_COLUMNS, ids=range(len(BAD_COLUMNS)))
def test_bad_bulk_rows_stage_nothing(repo, columns, error, says):
    with pytest.raises(error, match=says) as caught:
        repo.branch("main").stage(table(**columns))
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 500
    assert list(repo.branch("main").uncommitted()) == []


@pytest.mark.parametrize("thing", [None, "a", [], {"path": ["a"]}])
def test_what_is_no_table_is_refused(repo, thing):
    with pytest.raises(errors.InvalidInput, match=r"pyarrow\.Table"):
        repo.branch("main").stage(thing)


def test_a_column_that_comes_twice_is_refused(repo):
    for name in ("path", "mtime", "metadata"):
        twice = table(metadata=maps([])).append_column(name, table(metadata=maps([]))[name])
        with pytest.raises(errors.InvalidInput, match=f"{name!r} more than once"):
            repo.branch("main").stage(twice)


def test_the_bad_row_among_many_is_named(repo):
    """In whatever chunk it lies, and whatever slice of a larger table this is."""
    rows = [[("k", "v")]] * 6 + [[("k", None)]]
    columns = {"path": [f"p{n}" for n in range(7)], "metadata": maps([("never", None)], *rows)[1:]}
    whole = table(**columns)
    assert repo.branch("main").stage(whole[:6]) == 6
    for rows_given in (whole, whole[3:], pa.concat_tables([whole[:2], whole[2:5], whole[5:]])):
        with pytest.raises(errors.InvalidInput, match=r"^'p6': metadata value of 'k'"):
            repo.branch("main").stage(rows_given)


TEXT = st.text(st.sampled_from("ab\0\r\né 😀\x7f"), max_size=4) | st.sampled_from(["x" * 255, "x" * 256, "x" * 257])
ROW = st.fixed_dictionaries(
    {
        "path": TEXT | st.sampled_from(["é" * 512, "é" * 513]),
        "checksum": TEXT,
        "content_type": TEXT,
        "size_bytes": st.sampled_from([-1, 0, 1 << 47, (1 << 47) + 1]),
        "mtime": st.sampled_from([0, -1, 253_402_300_799, 253_402_300_800, -62_135_596_800, -62_135_596_801]),
        "metadata": st.lists(st.tuples(TEXT, st.none() | TEXT | st.just("v" * 2047)), max_size=3),
    }
)


def refused(row):
    """Whether the rules for one object refuse a row."""
    pairs = dict(row["metadata"])
    try:
        check_path(row["path"])
        check_checksum(row["checksum"])
        check_content_type(row["content_type"])
        check_size(row["size_bytes"])
        check_mtime(row["mtime"])
        check_metadata(pairs)
    except errors.InvalidInput:
        return True
    return len(pairs) < len(row["metadata"])


@given(rows=st.lists(ROW, max_size=4))
def test_columns_are_judged_as_single_objects_are(rows):
    schema = pa.schema([ENTRY_SCHEMA.field(name).with_nullable(True) for name in ROW_COLUMNS])
    whole = pa.Table.from_pylist([{**row, "physical_address": "data/x"} for row in rows], schema)
    whole.validate(full=True)
    bad = [row for row in rows if refused(row)]
    try:
        check_entries(whole)
    except errors.InvalidInput as error:
        assert bad
        assert any(excerpt(row["path"]) in error.message for row in bad)
    else:
        assert not bad


ROW_COLUMNS = ("path", "physical_address", "checksum", "size_bytes", "mtime", "content_type", "metadata")


def test_the_largest_rows_that_are_allowed_are_committed(repo, clock):
    main = repo.branch("main")
    names = [f"{n:04}" + '"' * 1020 for n in range(300)]
    columns = {
        "path": names,
        "physical_address": ["s3://bucket/" + '"' * 1024] * 300,
        "checksum": ['"' * 256] * 300,
        "content_type": ['"' * 255] * 300,
        "metadata": maps(*[[("k", "\x01" * 2047)]] * 300),
        "size_bytes": [1 << 47] * 300,
        "mtime": [253_402_300_799] * 300,
    }
    assert main.stage(table(**columns)) == 300
    assert len(list(main.uncommitted())) == 300
    main.commit("large")
    assert [item.path for item in repo.ref("main").list()] == names


def test_an_address_that_climbs_out_of_this_namespace_by_its_url_is_refused(repo):
    with pytest.raises(errors.InvalidInput):
        repo.branch("main").stage(table(physical_address=[repo.storage_namespace + "/../other/x"]))


def test_a_missing_column_is_named(repo):
    with pytest.raises(errors.InvalidInput, match="checksum"):
        repo.branch("main").stage(table().drop_columns(["checksum"]))


keys = st.text(alphabet="az09/._~=-% +é😀?#\x00", max_size=8)
addresses = st.one_of(
    keys.map(lambda key: f"data/{key}"), keys, keys.map(lambda key: f"s3://bucket/{key}"), st.just("file:///x/y")
)
namespaces = pytest.mark.parametrize("namespace", ["file:///lake/a%20b", "s3://bucket/prefix"])


def chunks(parts):
    """A column of several chunks, each of them a slice of something longer."""
    return pa.chunked_array([pa.array(["é", *part, "%"], pa.string()).slice(1, len(part)) for part in parts])


@namespaces
@given(parts=st.lists(st.lists(addresses, max_size=6), min_size=1, max_size=3))
def test_stored_addresses_become_urls(namespace, parts):
    whole = [address for part in parts for address in part]
    assert full(namespace, chunks(parts)).to_pylist() == [layout.absolute(namespace, one) for one in whole]


@namespaces
@given(part=st.lists(keys.map(lambda key: f"data/x{key}"), min_size=1, max_size=6))
def test_keys_of_a_location_are_quoted_where_they_must_be(namespace, part):
    column = pa.array(["é", *part]).slice(1)
    assert joined(namespace, column).to_pylist() == [layout.absolute(namespace, key) for key in part]


@namespaces
def test_what_is_shown_is_stored_again_as_it_was(namespace):
    column = chunks([["data/a", "data/b c", "data/é"], ["data/%41", "file:///imported/x", "s3://other/y"]])
    assert relative(namespace, full(namespace, column)).equals(column)
