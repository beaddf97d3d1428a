"""Bulk staging and managed output prefixes."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakeops import Branch, Lake, Repository
from lakeops.model import errors
from lakeops.model.arrow import ENTRY_SCHEMA
from lakeops.model.ids import check_checksum, check_content_type, check_metadata, check_mtime, check_size
from lakeops.model.names import check_path
from lakeops.model.text import excerpt
from lakeops.ranges.entry_validation import check_entries
from lakeops.store.local import LocalStore


def table(**columns) -> pa.Table:
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


def test_bulk_rows_are_staged_sorted_and_normalised(repo: Repository) -> None:
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


def maps(*rows: list[tuple[str, str | None]]) -> pa.Array:
    return pa.array(rows, META)


def invalid_text() -> pa.Array:
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
def test_bad_bulk_rows_stage_nothing(repo: Repository, columns, error, says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        repo.branch("main").stage(table(**columns))
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 500
    assert list(repo.branch("main").uncommitted()) == []


@pytest.mark.parametrize("thing", [None, "a", [], {"path": ["a"]}])
def test_what_is_no_table_is_refused(repo: Repository, thing) -> None:
    with pytest.raises(errors.InvalidInput, match=r"pyarrow\.Table"):
        repo.branch("main").stage(thing)


def test_a_column_that_comes_twice_is_refused(repo: Repository) -> None:
    for name in ("path", "mtime", "metadata"):
        twice = table(metadata=maps([])).append_column(name, table(metadata=maps([]))[name])
        with pytest.raises(errors.InvalidInput, match=f"{name!r} more than once"):
            repo.branch("main").stage(twice)


def test_the_bad_row_among_many_is_named(repo: Repository) -> None:
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


def refused(row: dict[str, Any]) -> bool:
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
def test_columns_are_judged_as_single_objects_are(rows: list[dict[str, Any]]) -> None:
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


def test_the_largest_rows_that_are_allowed_are_committed(repo: Repository, clock) -> None:
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


def test_an_address_that_climbs_out_of_this_namespace_by_its_url_is_refused(repo: Repository) -> None:
    with pytest.raises(errors.InvalidInput):
        repo.branch("main").stage(table(physical_address=[repo.storage_namespace + "/../other/x"]))


def test_a_missing_column_is_named(repo: Repository) -> None:
    with pytest.raises(errors.InvalidInput, match="checksum"):
        repo.branch("main").stage(table().drop_columns(["checksum"]))


def write(url: str, name: str, text: str) -> None:
    Path(urlsplit(url).path, name).write_text(text)


def test_output_replaces_a_prefix_in_one_step(repo: Repository, fill, contents) -> None:
    fill(repo, "main", **{"events/day=1/old": "1", "events/day=2/kept": "2"})
    main = repo.branch("main")
    main.put("events/day=1/staged", b"3")
    with main.output("events/day=1/") as url:
        assert url.startswith(repo.storage_namespace + "/data/")
        pq.write_table(pa.table({"n": [1, 2]}), url + "/part-0.parquet")
        write(url, "_SUCCESS", "")
        write(url, ".part-0.parquet.crc", "engine's own")
        assert "events/day=1/old" in contents(repo, "main"), "nothing shows before the block ends"
    assert [item.path for item in main.list()] == [
        "events/day=1/_SUCCESS",
        "events/day=1/part-0.parquet",
        "events/day=2/kept",
    ]
    with main.open("events/day=1/part-0.parquet") as file:
        assert pq.read_table(file)["n"].to_pylist() == [1, 2]
    main.commit("day 1")
    with main.output("events/day=1", mode="append") as url:
        write(url, "more", "4")
    assert main.read("events/day=1/more") == b"4"
    assert main.exists("events/day=1/_SUCCESS")


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"mtime": 1_790_000_000_000}, "'t/a': mtime"),
        ({"size_bytes": -1}, "'t/a': size_bytes"),
        ({"content_type": "text/html\r\nSet-Cookie: x"}, "'t/a': content type"),
    ],
)
def test_what_a_store_says_of_an_output_is_checked(repo: Repository, monkeypatch, told, says: str) -> None:
    listed = LocalStore.list

    def odd(self: LocalStore, *args: Any, **given: Any) -> Any:
        return (replace(item, **told) for item in listed(self, *args, **given))

    with pytest.raises(errors.InvalidInput, match=says), repo.branch("main").output("t/") as url:
        write(url, "a", "1")
        monkeypatch.setattr(LocalStore, "list", odd)
    assert list(repo.branch("main").uncommitted()) == []


def test_the_same_output_again_is_no_change(repo: Repository) -> None:
    main = repo.branch("main")
    for _ in range(2):
        with main.output("t/") as url:
            write(url, "part", "same")
        if list(main.uncommitted()):
            main.commit("once")
    assert len(list(repo.log("main"))) == 2


def test_an_output_without_files_is_refused_unless_that_is_meant(repo: Repository, fill, contents) -> None:
    fill(repo, "main", **{"t/old": "1", "other": "2"})
    main = repo.branch("main")
    with pytest.raises(errors.ObjectNotFound, match=r"'t/' by nothing.*allow_empty=True"), main.output("t/"):
        pass
    opened = main.open_output("t/")
    with pytest.raises(errors.ObjectNotFound, match="nothing was staged"):
        main.link_output(opened)
    assert list(main.uncommitted()) == []
    with main.output("t/", mode="append"):
        pass
    assert list(main.uncommitted()) == []
    with main.output("t/", allow_empty=True):
        pass
    assert contents(repo, "main") == {"other": "2"}


def test_an_output_whose_files_are_named_may_have_none(repo: Repository, fill, contents) -> None:
    """An engine that says which files it has written says also that there are none."""
    fill(repo, "main", **{"t/old": "1"})
    main = repo.branch("main")
    assert main.link_output(main.open_output("t/"), names=()) == 0
    assert contents(repo, "main") == {}


def test_a_file_beside_the_directory_is_no_silent_loss(repo: Repository) -> None:
    """Without the slash the directory stays empty, and ``replace`` would empty the prefix."""
    main = repo.branch("main")
    main.put("t/kept", b"kept")
    with (
        pytest.raises(errors.InvalidInput, match="'part-0' was written beside the directory"),
        main.output("t/") as url,
    ):
        Path(urlsplit(url + "part-0").path).write_bytes(b"1")
    with main.output("t/", mode="append") as url:
        Path(urlsplit(url + "_$folder$").path).write_bytes(b"")
        Path(urlsplit(url.file("a")).path).write_bytes(b"1")
    assert [entry.path for entry in main.list()] == ["t/a", "t/kept"]


def test_a_failed_output_stages_nothing(lake: Lake, repo: Repository) -> None:
    main = repo.branch("main")
    with pytest.raises(ZeroDivisionError), main.output("t/") as url:
        write(url, "part", "x")
        raise ZeroDivisionError
    assert list(main.list()) == []
    assert lake.catalog.staging.uploads("repo") == {}


def test_an_output_of_a_deleted_branch_is_refused(repo: Repository) -> None:
    repo.create_branch("dev")
    with pytest.raises(errors.RefNotFound), repo.branch("dev").output("t/") as url:
        write(url, "part", "x")
        repo.delete_branch("dev")


def test_names_that_urls_spell_otherwise(repo: Repository) -> None:
    main = repo.branch("main")
    with main.output("t") as url:
        write(url, "a b%41é.csv", "odd")
    assert main.read("t/a b%41é.csv") == b"odd"
    shown = main.stat("t/a b%41é.csv").physical_address
    assert main.entries().read_all()["physical_address"].to_pylist() == [shown]
    assert Path(url2path(shown)).read_text() == "odd"
    main.stage(table(path=["again"], physical_address=[shown], size_bytes=[3]))
    assert main.read("again") == b"odd"


def url2path(url: str) -> str:
    from urllib.request import url2pathname

    return url2pathname(urlsplit(url).path)


def test_what_was_deleted_stays_deleted_when_its_prefix_is_replaced(repo: Repository, fill, contents) -> None:
    fill(repo, "main", **{"a/1": "1", "a/2": "2"})
    main = repo.branch("main")
    main.delete("a/1")
    with main.output("a/") as url:
        write(url, "3", "3")
    assert contents(repo, "main") == {"a/3": "3"}


def appended(branch: Branch, text: str, name: str = "part-0.csv", **options: Any) -> None:
    """Append one file to the table ``t/``."""
    with branch.output("t/", mode="append", **options) as url:
        write(url, name, text)


@pytest.mark.parametrize("committed", [True, False])
def test_an_append_refuses_a_path_that_is_taken(repo: Repository, lake: Lake, committed: bool) -> None:
    main = repo.branch("main")
    appended(main, "1")
    if committed:
        main.commit("first")
    with (
        pytest.raises(
            errors.PathTaken, match=r"1 of 2 new files have the path .*'main': 't/part-0.csv'; nothing"
        ) as told,
        main.output("t/", mode="append") as url,
    ):
        write(url, "part-0.csv", "2")
        write(url, "part-1.csv", "2")
    assert told.value.exit_code == 5
    assert told.value.to_json()["paths"] == ["t/part-0.csv"]
    assert [main.read(item.path) for item in main.list()] == [b"1"]
    assert lake.catalog.staging.uploads("repo") == {}


def test_an_append_may_rename_or_overwrite(repo: Repository) -> None:
    main = repo.branch("main")
    appended(main, "1")
    appended(main, "2", on_collision="rename")
    first, second = main.list()
    assert second.path == "t/part-0.csv" or first.path == "t/part-0.csv"
    assert {main.read(one.path) for one in (first, second)} == {b"1", b"2"}
    assert all(one.path.endswith(".csv") for one in (first, second))
    appended(main, "3", on_collision="overwrite")
    assert main.read("t/part-0.csv") == b"3"
    with pytest.raises(errors.InvalidInput, match="'merge' is not one of"):
        appended(main, "4", on_collision="merge")


def test_an_append_takes_a_path_that_was_deleted_or_holds_the_same(repo: Repository) -> None:
    main = repo.branch("main")
    appended(main, "1")
    main.commit("first")
    appended(main, "1")
    assert list(main.uncommitted()) == []
    main.delete("t/part-0.csv")
    appended(main, "2")
    assert main.read("t/part-0.csv") == b"2"


@pytest.mark.parametrize("on_collision", ["refuse", "rename"])
def test_what_was_committed_can_be_appended_any_number_of_times(repo: Repository, on_collision: str) -> None:
    main = repo.branch("main")
    for number in range(4):
        appended(main, "the same", on_collision=on_collision)
        if not number:
            main.commit("once")
    assert [entry.path for entry in main.list("t/")] == ["t/part-0.csv"]
