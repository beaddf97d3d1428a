"""Bulk staging and managed output prefixes."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakeops import Lake, Repository
from lakeops.model import errors


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


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ({"path": ["a", "a"]}, errors.InvalidPath),
        ({"path": [""]}, errors.InvalidPath),
        ({"path": ["é" * 513]}, errors.InvalidPath),
        ({"path": ["a\0b"]}, errors.InvalidPath),
        ({"path": pa.array([None], pa.string())}, errors.InvalidInput),
        ({"size_bytes": [-1]}, errors.InvalidInput),
        ({"size_bytes": ["many"]}, errors.InvalidInput),
        ({"checksum": [""]}, errors.InvalidInput),
        ({"physical_address": ["../other/secret"]}, errors.InvalidInput),
        ({"physical_address": ["data/../_lakefs/x"]}, errors.InvalidInput),
        ({"physical_address": ["_lakefs/ranges/x"]}, errors.InvalidInput),
        ({"physical_address": ["/etc/passwd"]}, errors.InvalidInput),
        ({"physical_address": ["http://host/x"]}, errors.InvalidInput),
        ({"physical_address": ["s3://bucket/a/../b"]}, errors.InvalidInput),
    ],
    ids=range(14),
)
def test_bad_bulk_rows_stage_nothing(repo: Repository, columns, error) -> None:
    with pytest.raises(error):
        repo.branch("main").stage(table(**columns))
    assert list(repo.branch("main").uncommitted()) == []


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


def test_the_same_output_again_is_no_change(repo: Repository) -> None:
    main = repo.branch("main")
    for _ in range(2):
        with main.output("t/") as url:
            write(url, "part", "same")
        if list(main.uncommitted()):
            main.commit("once")
    assert len(list(repo.log("main"))) == 2


def test_a_failed_output_stages_nothing(lake: Lake, repo: Repository) -> None:
    main = repo.branch("main")
    with pytest.raises(ZeroDivisionError), main.output("t/") as url:
        write(url, "part", "x")
        raise ZeroDivisionError
    assert list(main.list()) == []
    assert lake.catalog.uploads("repo") == {}


def test_an_output_of_a_deleted_branch_is_refused(repo: Repository) -> None:
    repo.create_branch("dev")
    with pytest.raises(errors.RefNotFound), repo.branch("dev").output("t/") as url:
        write(url, "part", "x")
        repo.delete_branch("dev")


def test_deleting_a_prefix(repo: Repository, fill, contents) -> None:
    fill(repo, "main", **{"a/1": "", "a/2": "", "b/1": ""})
    main = repo.branch("main")
    main.put("a/3", b"")
    assert main.delete_prefix("a/") == 3
    assert set(contents(repo, "main")) == {"b/1"}
    assert [change.path for change in main.uncommitted()] == ["a/1", "a/2"]
    assert main.delete_prefix("nothing/") == 0


def test_names_that_urls_spell_otherwise(repo: Repository) -> None:
    main = repo.branch("main")
    with main.output("t") as url:
        write(url, "a b%41é.csv", "odd")
    assert main.read("t/a b%41é.csv") == b"odd"
    shown = main.stat("t/a b%41é.csv").physical_address
    assert main.entries().read_all()["physical_address"].to_pylist() == [shown]
    assert Path(url2path(shown)).read_text() == "odd"
    main.stage(table(path=["again"], physical_address=[shown]))
    assert main.read("again") == b"odd"


def url2path(url: str) -> str:
    from urllib.request import url2pathname

    return url2pathname(urlsplit(url).path)


def test_what_was_deleted_stays_deleted(repo: Repository, fill, contents) -> None:
    """Deletions staged before are not forgotten when the whole prefix goes, or is replaced."""
    fill(repo, "main", **{"a/1": "1", "a/2": "2"})
    main = repo.branch("main")
    main.delete("a/1")
    assert main.delete_prefix("a/") == 1
    assert contents(repo, "main") == {}
    main.reset()
    main.delete("a/1")
    with main.output("a/") as url:
        write(url, "3", "3")
    assert contents(repo, "main") == {"a/3": "3"}
