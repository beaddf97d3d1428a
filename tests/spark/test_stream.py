"""What a stream over a branch gives from one commit to another one, asked without a Spark session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StructType

from lakeops import Branch, Lake, Settings
from lakeops.spark.source import LakeopsDataSource

TABLE = "lakefs://shop/main/orders/"


@pytest.fixture
def main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Branch]:
    monkeypatch.setenv("LAKEOPS_HOME", str(tmp_path))
    with Lake.open(settings=Settings.load(home=tmp_path, fsync=False)) as lake:
        yield lake.create_repository("shop").branch("main")


def given(start: str, end: str) -> list[str]:
    """The paths of the files of one batch."""
    source = LakeopsDataSource({"ref": TABLE, "format": "parquet"})
    reader = source.streamReader(StructType().add("id", LongType()))
    parts = reader.partitions({"commit": start}, {"commit": end})
    return [file.path for part in parts for file in part.files]


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
