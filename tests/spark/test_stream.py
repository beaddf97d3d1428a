"""Tests of a stream over a branch, from one commit to another one, without a Spark session."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StructType
from support.damage import failing_disk

from lakeops import Branch, Lake, Settings
from lakeops.model.errors import BranchMoved, CatalogError, FileMissing, LakeopsError, StoreError, StoreUnavailable
from lakeops.spark import register, source
from lakeops.spark.source import LakeopsDataSource

TABLE = "lakefs://shop/main/orders/"


@pytest.fixture
def main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Branch]:
    monkeypatch.setenv("LAKEOPS_HOME", str(tmp_path))
    with Lake.open(settings=Settings.load(home=tmp_path, fsync=False)) as lake:
        yield lake.create_repository("shop").branch("main")


def given(start: str, end: str) -> list[str]:
    """The paths of the files of one batch."""
    made = LakeopsDataSource({"ref": TABLE, "format": "parquet"})
    reader = made.streamReader(StructType().add("id", LongType()))
    parts = reader.partitions({"commit": start}, {"commit": end})
    return [file.path for part in parts for file in part.files]


def numbers(start: str, end: str, **options: str) -> list[int]:
    """The rows of one batch."""
    made = LakeopsDataSource({"ref": TABLE, "format": "parquet", **options})
    reader = made.streamReader(StructType().add("id", LongType()))
    parts = reader.partitions({"commit": start}, {"commit": end})
    return sorted(row for part in parts for batch in reader.read(part) for row in batch.column("id").to_pylist())


def parquet(*ids: int, **columns: pa.Array) -> bytes:
    written = io.BytesIO()
    pq.write_table(pa.table({"id": pa.array(ids, pa.int64()), **columns}), written)
    return written.getvalue()


GOOD = parquet(*range(1000))
BAD = {
    "empty": ("b.parquet", b"", "'orders/b.parquet' cannot be read as Parquet"),
    "cut": ("b.parquet", GOOD[:200], "'orders/b.parquet' cannot be read as Parquet"),
    "no footer": ("b.parquet", b"PAR1" + bytes(50) + b"PAR1", "'orders/b.parquet' cannot be read as Parquet"),
    "a damaged page": (
        "b.parquet",
        GOOD[:100] + bytes(500) + GOOD[600:],
        "'orders/b.parquet' cannot be read as Parquet",
    ),
    "another type": ("b.parquet", pd.DataFrame({"id": ["x"]}).to_parquet(), "'id' of 'orders/b.parquet'"),
    "another folder": ("day=1/b.parquet", parquet(2), "different partition columns"),
}


@pytest.mark.parametrize("how", [*BAD])
@pytest.mark.parametrize("repair", ["taken back", "replaced"])
def test_a_stream_goes_on_after_a_repair(main: Branch, caplog, how: str, repair: str) -> None:
    name, contents, says = BAD[how]
    first = main.commit("nothing", allow_empty=True).id
    main.put("orders/a.parquet", parquet(1))
    main.put("orders/gone.parquet", parquet(7))
    main.put(f"orders/{name}", contents)
    bad = main.commit("bad").id
    with pytest.raises(LakeopsError, match=says):
        numbers(first, bad)
    main.delete(f"orders/{name}")
    main.delete("orders/gone.parquet")
    if repair == "replaced":
        main.put("orders/b.parquet", parquet(3))
    repaired = main.commit("good").id
    assert numbers(first, bad) == [1, 7]
    assert "skipped" in caplog.text or "left out" in caplog.text
    assert name in caplog.text
    assert numbers(bad, repaired) == ([3] if repair == "replaced" else [])


@pytest.mark.parametrize("how", [*BAD])
def test_a_stream_does_not_pass_over_a_bad_file_of_which_more_is_said(main: Branch, how: str) -> None:
    name, contents, says = BAD[how]
    first = main.commit("nothing", allow_empty=True).id
    main.put("orders/a.parquet", parquet(1))
    main.put(f"orders/{name}", contents)
    bad = main.commit("bad").id
    main.update_metadata(f"orders/{name}", {"checked": "yes"})
    main.commit("described")
    with pytest.raises(LakeopsError, match=says):
        numbers(first, bad)


def test_a_stream_gives_the_good_file_of_a_commit_that_was_taken_back(main: Branch) -> None:
    first = main.commit("nothing", allow_empty=True).id
    for name in ("good.parquet", "_spark_metadata/0", "day=1/bad.parquet", "b/c.csv"):
        main.put(f"orders/{name}", parquet(1))
    bad = main.commit("bad").id
    main.delete_prefix("orders/")
    main.commit("taken back")
    assert numbers(first, bad) == [1]


def test_a_stream_does_not_pass_over_a_replaced_file_that_the_disk_refuses_to_read(main: Branch) -> None:
    first = main.commit("nothing", allow_empty=True).id
    address = main.put("orders/a.parquet", parquet(*range(100_000))).physical_address
    good = main.commit("good").id
    main.put("orders/a.parquet", parquet(1))
    main.commit("replaced")
    with failing_disk(address), pytest.raises(StoreError, match=address):
        numbers(first, good)
    assert len(numbers(first, good)) == 100_000


def test_a_stream_does_not_pass_over_a_commit_whose_metadata_file_is_lost(main: Branch, tmp_path: Path) -> None:
    """The batch fails, and once the file is back its rows come."""
    place = tmp_path / "storage/shop/_lakefs/ranges"
    first = main.commit("nothing", allow_empty=True).id
    main.put("orders/a.parquet", parquet(1))
    second = main.commit("rows").id
    (lost,) = place.iterdir()
    main.put("orders/b.parquet", parquet(2))
    third = main.commit("more rows").id
    lost.rename(tmp_path / "lost")
    with pytest.raises(FileMissing, match=lost.name):
        numbers(first, second)
    (tmp_path / "lost").rename(lost)
    assert numbers(first, second) == [1]
    assert numbers(second, third) == [2]


PLANNING, READING = (LakeopsDataSource, "parquet_files"), (source, "_opened")
HICCUPS = [
    (PLANNING, StoreUnavailable("away")),
    (PLANNING, StoreError("denied")),
    (PLANNING, CatalogError("denied")),
    (PLANNING, BranchMoved("moved")),
    (PLANNING, FileMissing("lost")),
    (READING, StoreUnavailable("away")),
    (READING, StoreError("denied")),
]


@pytest.mark.parametrize(
    ("where", "error"), HICCUPS, ids=lambda one: one.kind if isinstance(one, LakeopsError) else one[1]
)
def test_a_stream_leaves_out_only_what_a_repair_has_mended(
    main: Branch, monkeypatch: pytest.MonkeyPatch, where: tuple[Any, str], error: LakeopsError
) -> None:
    """The files of a batch are good, and the branch has deleted one of them since."""
    first = main.commit("nothing", allow_empty=True).id
    main.put("orders/a.parquet", parquet(1))
    main.put("orders/b.parquet", parquet(2))
    good = main.commit("good").id
    main.delete("orders/a.parquet")
    main.commit("one less")
    with monkeypatch.context() as patched:
        fails_once(patched, *where, error)
        with pytest.raises(type(error), match=error.message):
            numbers(first, good)
    assert numbers(first, good) == [1, 2]


def fails_once(patched: pytest.MonkeyPatch, owner: Any, name: str, error: LakeopsError) -> None:
    whole, errors = getattr(owner, name), [error]

    def call(*args: Any, **options: Any) -> Any:
        if not errors:
            return whole(*args, **options)
        raise errors.pop()

    patched.setattr(owner, name, call)


def test_a_stream_skips_damaged_files_where_it_is_told_to(main: Branch, caplog) -> None:
    first = main.commit("nothing", allow_empty=True).id
    main.put("orders/a.parquet", parquet(1))
    main.put("orders/b.parquet", b"")
    bad = main.commit("bad").id
    assert numbers(first, bad, ignorecorruptfiles="true") == [1]
    assert "'orders/b.parquet'" in caplog.text


def test_what_is_said_of_a_file_is_no_change_of_its_rows(main: Branch) -> None:
    main.put("orders/a.parquet", b"1")
    main.put("orders/b.parquet", b"1")
    first = main.commit("first").id
    main.update_metadata("orders/a.parquet", {"checked": "yes"})
    main.put("orders/b.parquet", b"2", metadata={"checked": "yes"})
    assert given(first, main.commit("described").id) == ["orders/b.parquet"]


def test_a_stream_goes_on_where_only_names_are_left_that_spark_ignores(main: Branch) -> None:
    main.put("orders/_SUCCESS", b"")
    first = main.commit("nothing yet").id
    assert given("", first) == []
    main.put("orders/a.parquet", b"1")
    second = main.commit("rows").id
    assert given(first, second) == ["orders/a.parquet"]
    main.delete("orders/a.parquet")
    assert given(second, main.commit("emptied").id) == []


def test_a_session_of_a_lake_in_a_database_plans_in_that_lake(main, tmp_path, monkeypatch):
    monkeypatch.setenv("LAKEOPS_DATABASE_URL", f"sqlite:///{tmp_path}/other.db")
    session = MagicMock()
    register(session)
    (registered,) = session.dataSource.register.call_args.args
    with registered({"ref": TABLE}).lake() as lake:
        assert lake.catalog.database.shown.endswith("/other.db")
