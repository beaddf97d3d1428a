"""Tables of refs through Spark: read at any ref with the columns of their folders, and written in one staging step."""

from __future__ import annotations

import dataclasses
import gzip
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col
from support.catalogs import expire_commits
from support.errors import has_kind, raising
from support.spark_work import failing_rows

import lakeops.spark
from lakeops import Lake, Repository, Settings
from lakeops.model import errors

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # files that libraries leave open
]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAKEOPS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def repo(home: Path) -> Iterator[Repository]:
    with Lake.open(settings=Settings.load(home=home, fsync=False)) as lake:
        yield lake.create_repository("shop")


@pytest.fixture
def orders(repo: Repository) -> Repository:
    """A table of three days in two commits; the files of day 2 lie in one directory with others."""
    main = repo.branch("main")
    for day in (1, 3):
        with main.output(f"orders/day={day}/") as url:
            pd.DataFrame({"id": [day], "amount": [10 * day]}).to_parquet(url.file("part-0.parquet"))
    main.commit("two days")
    main.put("orders/day=2/x [1] é.parquet", pd.DataFrame({"id": [2], "amount": [20]}).to_parquet())
    main.put("orders/_log/ignored", b"x")
    main.commit("another")
    return repo


def rows(frame: DataFrame) -> list[tuple]:
    return sorted(tuple(row) for row in frame.collect())


def source(session: SparkSession, home: Path, uri: str, **options: str) -> DataFrame:
    return session.read.format("lakeops").option("home", str(home)).options(**options).option("ref", uri).load()


ALL = [(1, 10, 1), (2, 20, 2), (3, 30, 3)]


def test_both_ways_read_any_ref_with_the_columns_of_the_folders(session, home, orders: Repository) -> None:
    for frame in (
        lakeops.spark.read(session, "lakefs://shop/main/orders/"),
        source(session, home, "lakefs://shop/main/orders"),
    ):
        assert frame.columns == ["id", "amount", "day"]
        assert dict(frame.dtypes)["day"] == "int"
        assert rows(frame) == ALL
        assert rows(frame.where("day > 1").select("amount")) == [(20,), (30,)]
    assert rows(lakeops.spark.read(session, "lakefs://shop/main~1/orders/")) == [ALL[0], ALL[2]]
    assert rows(source(session, home, "lakefs://shop/main~1/orders/")) == [ALL[0], ALL[2]]
    assert rows(lakeops.spark.read(session, "lakefs://shop/main/orders/day=2/")) == [(2, 20)]


def test_conditions_on_folders_leave_files_unopened(session, home, orders: Repository) -> None:
    found = lakeops.spark.read(session, "lakefs://shop/main/orders/", where="day in (1, 3) and day < 3")
    assert rows(found) == [ALL[0]]
    assert len(found.inputFiles()) == 1
    schema = "day string, id bigint"
    by_column = lakeops.spark.read(session, "lakefs://shop/main/orders/", where=col("day") == 2, schema=schema)
    assert rows(by_column) == [(2, "2")]
    assert rows(lakeops.spark.read(session, "lakefs://shop/main/orders/", where="day = 9")) == []
    with pytest.raises(errors.InvalidInput, match=r"where may use the partition columns day of .*amount.* resolved\.$"):
        lakeops.spark.read(session, "lakefs://shop/main/orders/", where="amount > 1")


@pytest.mark.parametrize("pushes", ["true", "false"])
def test_a_frame_has_all_its_rows_after_a_condition(session, home, orders: Repository, pushes: str) -> None:
    session.conf.set("spark.sql.python.filterPushdown.enabled", pushes)
    frame = source(session, home, "lakefs://shop/main/orders/")
    assert rows(frame.where("day = 2 and amount > 1")) == [ALL[1]]
    assert rows(frame) == ALL
    assert rows(frame.where("day = 3")) == [ALL[2]]
    assert frame.join(frame.where("day = 2"), "id").count() == 1
    session.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_table_is_pinned_when_it_is_loaded(session, home, orders: Repository) -> None:
    native = lakeops.spark.read(session, "lakefs://shop/main/orders/")
    through_python = source(session, home, "lakefs://shop/main/orders/")
    main = orders.branch("main")
    main.delete_prefix("orders/")
    main.commit("gone")
    assert rows(native) == rows(through_python) == ALL
    with pytest.raises(errors.ObjectNotFound, match=r"no object under 'orders/' at 'main'"):
        lakeops.spark.read(session, "lakefs://shop/main/orders/")


def test_an_object_with_two_paths_gives_its_rows_twice(session, orders: Repository) -> None:
    main = orders.branch("main")
    table = main.entries("orders/day=1/").read_all()
    main.stage(table.set_column(0, "path", [["orders/day=4/part-0.parquet"]]))
    assert rows(lakeops.spark.read(session, "lakefs://shop/main/orders/"))[-1] == (3, 30, 3)
    assert (1, 10, 4) in rows(lakeops.spark.read(session, "lakefs://shop/main/orders/"))
    assert len(lakeops.spark.files("lakefs://shop/main/orders/")) == 4


def test_csv_and_json_with_their_own_options(session, home, repo: Repository) -> None:
    main = repo.branch("main")
    main.put("people/a.csv", b"id,name\n1,Ada\n")
    main.put("packed/a.csv.gz", gzip.compress(b"id,name\n2,Grace\n"))
    main.put("events/day=2026-01-02/a.json", b'{"id": 3}\n')
    people = lakeops.spark.read(session, "lakefs://shop/main/people/a.csv", header=True, inferSchema=True)
    assert rows(people) == [(1, "Ada")]
    with pytest.raises(errors.LakeopsError, match=r"'packed/a.csv.gz' is compressed", check=has_kind("unsupported")):
        lakeops.spark.read(session, "lakefs://shop/main/packed/", header=True)
    events = lakeops.spark.read(session, "lakefs://shop/main/events/")
    assert dict(events.dtypes) == {"id": "bigint", "day": "date"}
    assert events.count() == 1
    for table in ("people", "packed", "events"):
        for schema in ("id bigint", None):
            reader = session.read if schema is None else session.read.schema(schema)
            with pytest.raises(PySparkException, match=r"reads Parquet and not '(csv|json)'; use lakeops.spark.read"):
                reader.format("lakeops").option("home", str(home)).load(f"lakefs://shop/main/{table}/").collect()


@pytest.mark.parametrize("name", ["_a.parquet", ".a.parquet", "a.parquet._COPYING_"])
def test_an_object_at_an_address_that_spark_leaves_out_is_no_row_less(session, repo: Repository, tmp_path, name):
    raw = tmp_path / "raw"
    raw.mkdir()
    for one in (name, "b.parquet"):
        pd.DataFrame({"id": [1]}).to_parquet(raw / one)
    repo.branch("main").import_objects(raw.as_uri(), "in/", "Import")
    branch = repo.branch("main")
    branch.rename(f"in/{name}", "in/a.parquet")
    branch.commit("Give the object a name of a table's file")
    with pytest.raises(errors.LakeopsError, match=r"'in/a.parquet' lies at .*Spark", check=has_kind("unsupported")):
        lakeops.spark.read(session, "lakefs://shop/main/in/")


PLACES = {
    "markers": {"": b"", "day=1/": b"", "day=1/a.parquet": 1, "day=2_$folder$": b"", "day=2/b.parquet": 2},
    "hidden": {"day=1/a.parquet": 1, ".x=1/b.parquet": 2, "day=1/_b.parquet": 2, "day=1/b.parquet._COPYING_": 2},
    "folders that are no columns": {"a.parquet": 1, "sub/b.parquet": 2},
    "no file above": {"sub/a.parquet": 1},
    "a folder below a column": {"day=1/sub/a.parquet": 1, "day=2/sub/b.parquet": 2},
    "a folder above a column": {"sub/day=1/a.parquet": 1, "sub/day=2/b.parquet": 2},
    "two folders above a column": {"sub/day=1/a.parquet": 1, "other/day=2/b.parquet": 2},
    "an empty value": {"day=/a.parquet": 1},
    "an empty name": {"=1/a.parquet": 1},
    "cases": {"day=1/a.parquet": 1, "Day=2/b.parquet": 2},
}


@pytest.mark.parametrize(
    "options",
    [{}, {"recursiveFileLookup": "true", "pathGlobFilter": None, "basePath": None}, {"pathGlobFilter": "[a-b].parq*"}],
)
@pytest.mark.parametrize("what", [*PLACES])
def test_files_are_where_spark_looks_for_them(session, home, repo: Repository, tmp_path, what, options) -> None:
    for name, contents in PLACES[what].items():
        data = contents if isinstance(contents, bytes) else pd.DataFrame({"id": [contents]}).to_parquet()
        repo.branch("main").put(f"t/{name}", data)
        file = tmp_path / "plain" / name
        (file if name.endswith("/") or not name else file.parent).mkdir(parents=True, exist_ok=True)
        if data:
            file.write_bytes(data)

    def told(read) -> tuple | None:
        try:
            return (frame := read()).dtypes, rows(frame)
        except (PySparkException, Py4JJavaError, errors.LakeopsError):
            return None

    expected = told(lambda: session.read.options(**options).parquet(str(tmp_path / "plain")))
    found = told(lambda: lakeops.spark.read(session, "lakefs://shop/main/t/", **options))
    by_format = found if options else told(lambda: source(session, home, "lakefs://shop/main/t/"))
    refused = what == "cases"  # which Spark takes as it is told to compare names
    assert found == by_format == (None if refused and "recursiveFileLookup" not in options else expected)
    declared = told(lambda: lakeops.spark.read(session, "lakefs://shop/main/t/", schema="id bigint", **options))
    assert declared == found


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("basePath", "lakefs://shop/main/"),
        ("modifiedBefore", "2020-01-01T00:00:00"),
        ("MODIFIEDAFTER", "2020-01-01T00:00:00"),
        ("path", "lakefs://shop/main/orders/"),
        ("pathGlobFilter", "{a,b}*"),
        ("pathGlobFilter", "nothing"),
        ("recursiveFileLookup", "yes"),
        ("RECURSIVEFILELOOKUP", 1),
    ],
)
def test_an_option_that_speaks_of_physical_files_is_refused(session, home, orders, option, value) -> None:
    for schema in (None, "id bigint"):
        with pytest.raises(errors.LakeopsError, match=f"(?i){option}") as caught:
            lakeops.spark.read(session, "lakefs://shop/main/orders/", schema=schema, **{option: value})
        assert "\n" not in caught.value.message
    if option != "path":
        with pytest.raises(PySparkException, match=f"option '{option.lower()}' is not one of .* lakeops.spark.read"):
            source(session, home, "lakefs://shop/main/orders/", **{option: value})


@pytest.mark.parametrize("schema", [None, "id bigint, amount bigint"])
def test_rows_are_the_same_where_spark_takes_no_list(session, orders: Repository, schema: str | None) -> None:
    setting = "spark.sql.streaming.fileStreamSink.ignoreMetadata"
    session.conf.set(setting, "true")
    try:
        for uri, some in (("lakefs://shop/main/orders/", ALL), ("lakefs://shop/main/orders/day=2/", [(2, 20)])):
            assert rows(lakeops.spark.read(session, uri, schema=schema)) == some
    finally:
        session.conf.unset(setting)


def test_names_of_physical_files_are_not_told(session, orders: Repository) -> None:
    frame = lakeops.spark.read(session, "lakefs://shop/main/orders/")
    with pytest.raises(PySparkException, match="`_metadata`"):
        frame.where("_metadata.file_name = 'part-0.parquet'").collect()
    with pytest.raises(errors.LakeopsError, match="tells of physical files"):
        lakeops.spark.read(session, "lakefs://shop/main/orders/", format="binaryFile")
    with pytest.raises(errors.InvalidInput, match="is no path: read the folder above, with where="):
        lakeops.spark.read(session, "lakefs://shop/main/orders/day=*/")


def test_a_path_with_an_empty_part_is_refused(session, orders: Repository) -> None:
    for path in ("orders//a.parquet", "orders/day=4//a.parquet"):
        orders.branch("main").put(path, b"x")
        with pytest.raises(errors.InvalidInput, match=f"'{path}' has an empty part"):
            lakeops.spark.read(session, "lakefs://shop/main/orders/")
        orders.branch("main").delete(path)
    file = next(iter(lakeops.spark.files("lakefs://shop/main/orders/")))
    for address in ("s3://bucket/a//b", "s3://bucket//b", "s3://bucket/a/../b", "file:///a/%2e/b"):
        with pytest.raises(errors.LakeopsError, match="for another path", check=has_kind("unsupported")):
            dataclasses.replace(file, address=address).url()


def test_a_damaged_file_is_named_or_skipped(session, home, repo: Repository, tmp_path: Path) -> None:
    whole = pd.DataFrame({"id": range(1000)}).to_parquet()
    (tmp_path / "plain").mkdir()
    for name, data in (("a", b""), ("b", whole), ("c", whole[:-300])):
        repo.branch("main").put(f"t/{name}.parquet", data)
        (tmp_path / "plain" / f"{name}.parquet").write_bytes(data)
    with pytest.raises(PySparkException, match=r"Corrupted: 't/a.parquet' cannot be read as Parquet"):
        source(session, home, "lakefs://shop/main/t/")
    skipping = source(session, home, "lakefs://shop/main/t/", ignoreCorruptFiles="true")
    expected = session.read.option("ignoreCorruptFiles", "true").parquet(str(tmp_path / "plain"))
    assert (skipping.dtypes, rows(skipping)) == (expected.dtypes, rows(expected))
    repo.branch("main").delete("t/a.parquet")
    with pytest.raises(PySparkException, match=r"Corrupted: 't/c.parquet' cannot be read as Parquet"):
        source(session, home, "lakefs://shop/main/t/").collect()


def test_what_cannot_be_read_is_one_clear_line(session, home, orders: Repository) -> None:
    main = orders.branch("main")
    old = orders.ref("main~1").commit_id
    assert expire_commits(orders._ctx.catalog, "shop", [old]) == [old]
    for uri, error, says in (
        ("lakefs://shop/nowhere/orders/", errors.RefNotFound, "nowhere"),
        (f"lakefs://shop/{old}/orders/", errors.CommitExpired, old[:8]),
        ("lakefs://shop/main~1/orders/", errors.CommitExpired, old[:8]),
        ("lakefs://shops/main/orders/", errors.RepositoryNotFound, "shops"),
        ("s3://shop/main", "invalid_uri", "lakefs://"),
        ("lakefs://shop/main/orders/_log/", errors.InvalidInput, "tell no single format"),
    ):
        with raising(error, match=says) as caught:
            lakeops.spark.read(session, uri)
        assert "\n" not in caught.value.message
    with pytest.raises(PySparkException, match="CommitExpired"):
        source(session, home, "lakefs://shop/main~1/orders/")
    with pytest.raises(PySparkException, match=r"no object under 'nothing/' at 'main'"):
        source(session, home, "lakefs://shop/main/nothing/")
    with pytest.raises(PySparkException, match="option 'hom' is not one of"):
        source(session, home, "lakefs://shop/main/orders/", hom="x")
    main.put("mixed/day=1/a.parquet", b"x")
    main.put("mixed/hour=1/b.parquet", b"x")
    with pytest.raises(errors.InvalidInput, match="different partition columns, day and hour"):
        lakeops.spark.read(session, "lakefs://shop/main/mixed/")
    address = main.stat("orders/day=1/part-0.parquet").physical_address.removeprefix("file://")
    Path(address).write_bytes(b"short")
    with pytest.raises(errors.Corrupted, match="has 5 bytes"):
        lakeops.spark.read(session, "lakefs://shop/main/orders/")
    Path(address).unlink()
    with pytest.raises(errors.FileMissing, match="missing from the store"):
        lakeops.spark.files("lakefs://shop/main/orders/")


def test_sparks_own_writer_writes_in_one_step(session, orders: Repository) -> None:
    frame = lakeops.spark.read(session, "lakefs://shop/main/orders/").coalesce(1)
    dev = orders.create_branch("dev")
    assert lakeops.spark.write(frame, "lakefs://shop/dev/copy/", partition_by="day") == 3
    assert rows(lakeops.spark.read(session, "lakefs://shop/dev/copy/")) == ALL
    assert [item.path.split("part-")[0] for item in dev.list("copy/")] == [f"copy/day={day}/" for day in (1, 2, 3)]
    with pytest.raises(errors.PathTaken, match=r"objects under 'lakefs://shop/dev/copy/'"):
        lakeops.spark.write(frame, "lakefs://shop/dev/copy/")
    assert lakeops.spark.write(frame, "lakefs://shop/dev/copy/", "ignore") == 0
    assert lakeops.spark.write(frame, "lakefs://shop/dev/copy", "append", partition_by=["day"]) == 3
    assert rows(lakeops.spark.read(session, "lakefs://shop/dev/copy/")) == sorted(2 * ALL)
    assert lakeops.spark.write(frame, "lakefs://shop/dev/copy/", "overwrite", success_file=True) == 2
    assert {item.path.split("-")[0] for item in dev.list("copy/")} == {"copy/_SUCCESS", "copy/part"}


def test_the_format_writes_in_one_step(session, home, orders: Repository) -> None:
    frame = session.range(5, numPartitions=2).selectExpr("id", "cast(id as string) name", "current_timestamp() at")
    write = frame.write.format("lakeops").option("home", str(home))
    write.option("ref", "lakefs://shop/main/t/").mode("append").save()
    write.mode("append").save("lakefs://shop/main/t/")
    assert source(session, home, "lakefs://shop/main/t/").count() == 10
    write.mode("overwrite").save("lakefs://shop/main/t/")
    found = source(session, home, "lakefs://shop/main/t/")
    assert found.schema.simpleString() == "struct<id:bigint,name:string,at:timestamp>"
    assert rows(found.select("id", "name")) == [(number, str(number)) for number in range(5)]
    frame.where("id > 9").write.format("lakeops").option("home", str(home)).mode("overwrite").save(
        "lakefs://shop/main/t/"
    )
    assert source(session, home, "lakefs://shop/main/t/").count() == 0


def test_a_write_that_fails_stages_nothing(session, home, orders: Repository) -> None:
    broken = session.range(4, numPartitions=2).mapInArrow(failing_rows, "id bigint")
    with pytest.raises(PySparkException):
        lakeops.spark.write(broken, "lakefs://shop/main/t/", "append")
    with pytest.raises(PySparkException):
        broken.write.format("lakeops").option("home", str(home)).mode("append").save("lakefs://shop/main/t/")
    assert list(orders.branch("main").uncommitted()) == []
    assert orders._ctx.catalog.retention.roots("shop").uploads == {}


def test_a_write_to_a_tag_or_a_commit_is_refused(session, home, orders: Repository) -> None:
    orders.create_tag("v1", "main")
    orders.protect("main")
    frame = session.range(1)
    for uri, error in (
        ("lakefs://shop/v1/t/", errors.RefNotFound),
        (f"lakefs://shop/{orders.ref('main').commit_id}/t/", errors.RefNotFound),
        ("lakefs://shop/main~1/t/", "invalid_ref"),
        ("lakefs://shop/main/t/", "protected_branch"),
    ):
        with raising(error):
            lakeops.spark.write(frame, uri)
        with pytest.raises(PySparkException, match=r"PreconditionFailed|InvalidInput|RefNotFound"):
            frame.write.format("lakeops").option("home", str(home)).mode("append").save(uri)


def test_of_two_writers_who_want_an_empty_prefix_one_is_told(session, orders: Repository, monkeypatch) -> None:
    output = lakeops.spark.tables.spark_path
    others = ["t"]

    def overtaken(url: str, s3: str) -> str:
        if others:
            lakeops.spark.write(session.range(1), f"lakefs://shop/main/{others.pop()}/")
        return output(url, s3)

    monkeypatch.setattr("lakeops.spark.tables.spark_path", overtaken)
    with pytest.raises(errors.PathTaken, match="another writer put objects under 'lakefs://shop/main/t/' meanwhile"):
        lakeops.spark.write(session.range(2), "lakefs://shop/main/t/")
    others.append("v")
    assert lakeops.spark.write(session.range(2), "lakefs://shop/main/v/", "ignore") == 0
    for prefix in ("t", "v"):
        assert lakeops.spark.read(session, f"lakefs://shop/main/{prefix}/").count() == 1


def test_an_append_that_runs_again_adds_its_rows_once(session, home, orders: Repository) -> None:
    table = "lakefs://shop/main/again/"
    for rows_now in (2, 3):
        frame = session.range(rows_now)
        lakeops.spark.write(frame, table, "append", idempotency_key="task")
        by_format = frame.write.format("lakeops").option("home", str(home)).option("idempotency_key", "other")
        by_format.mode("append").save(table)
        assert lakeops.spark.read(session, table).count() == 2 * rows_now


def test_a_stream_gives_what_commits_add(session, home, orders: Repository, tmp_path: Path) -> None:
    def arrived(**options: str) -> list[tuple]:
        reader = session.readStream.format("lakeops").option("home", str(home)).options(**options)
        frame = reader.load("lakefs://shop/main/orders/")
        got: list[tuple] = []
        query = (
            frame.writeStream.foreachBatch(lambda batch, _: got.extend(rows(batch)))
            .option("checkpointLocation", str(tmp_path / f"checkpoint{len(options)}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sorted(got)

    assert arrived() == ALL
    main = orders.branch("main")
    main.put("orders/day=4/a.parquet", pd.DataFrame({"id": [4], "amount": [40]}).to_parquet())
    main.put("elsewhere", b"x")
    main.delete("orders/day=1/part-0.parquet")
    assert arrived() == [], "nothing is committed"
    main.commit("day 4")
    assert arrived() == [(4, 40, 4)]
    assert arrived(startingRef="main~1") == [(4, 40, 4)]


BAD_OPTIONS = {
    "a ref": ({"startingRef": "nowhere"}, "option startingRef 'nowhere': .*nowhere"),
    "an ancestor": ({"startingRef": "main~9"}, "option startingRef 'main~9': "),
    "no ref": ({"startingRef": ""}, "option startingRef '': "),
    "a place": ({"startingRef": "lakefs://shop/main"}, "option startingRef 'lakefs://shop/main': "),
    "a tag": ({"ref": "lakefs://shop/v1/orders/"}, "RefNotFound: .*v1"),
    "a repository": ({"ref": "lakefs://shops/main/orders/"}, "RepositoryNotFound: .*shops"),
    "no place": ({"ref": "shop/main"}, "InvalidInput: .*shop/main"),
    "a format": ({"format": "csv"}, "reads Parquet and not 'csv'"),
    "a flag": ({"ignoreCorruptFiles": "yes"}, "ignoreCorruptFiles is true or false, not 'yes'"),
}


@pytest.mark.parametrize("what", [*BAD_OPTIONS])
def test_a_bad_option_of_a_stream_is_named(session, home, orders: Repository, tmp_path: Path, what: str) -> None:
    orders.create_tag("v1", "main")
    options, says = BAD_OPTIONS[what]
    given = {"home": str(home), "ref": "lakefs://shop/main/orders/", **options}
    with pytest.raises(PySparkException) as caught:
        frame = session.readStream.format("lakeops").schema("id bigint, amount bigint, day int").options(**given).load()
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
    told = str(caught.value)
    assert re.search(says, told), told
    assert "UnboundLocalError" not in told


def test_a_run_of_a_stream_gives_what_was_there_when_it_began(session, home, orders: Repository, tmp_path) -> None:
    """As Spark's file source does after an error: it ends the batch that failed and goes on to the next one."""
    main = orders.branch("main")
    plain = tmp_path / "plain"
    plain.mkdir()

    def put(name: str, data: bytes) -> None:
        main.put(f"t/{name}", data)
        (plain / name).write_bytes(data)
        main.commit(name)

    def batches(frame: DataFrame, checkpoint: str) -> list[list[tuple]]:
        got: list[list[tuple]] = []
        writer = frame.writeStream.foreachBatch(lambda batch, _: got.append(rows(batch)))
        query = (
            writer.option("checkpointLocation", str(tmp_path / f"{checkpoint}-checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [batch for batch in got if batch]

    def ours() -> list[list[tuple]]:
        reader = session.readStream.format("lakeops").schema("id bigint").option("home", str(home))
        return batches(reader.load("lakefs://shop/main/t/"), "ours")

    def sparks() -> list[list[tuple]]:
        return batches(session.readStream.schema("id bigint").parquet(str(plain)), "plain")

    put("a.parquet", pd.DataFrame({"id": [1]}).to_parquet())
    assert ours() == sparks() == [[(1,)]]
    put("b.parquet", b"no Parquet")
    for read in (ours, sparks):
        with pytest.raises(PySparkException, match="Parquet"):
            read()
    put("b.parquet", pd.DataFrame({"id": [2]}).to_parquet())
    assert ours() == sparks() == [[(2,)]]
    assert ours() == sparks() == []


def test_names_that_tell_types() -> None:
    def types(*values: str | None) -> tuple[str, ...]:
        made = SimpleNamespace
        files = tuple(made(values=(value,)) for value in values)
        return lakeops.spark.Files("", "", ("c",), files).types()  # type: ignore[arg-type]

    assert types("1", "-2", None) == ("int",)
    assert types("1", "3000000000") == ("bigint",)
    assert types("1", "2.5") == ("double",)
    assert types("2026-01-02") == ("date",)
    assert types("2026-02-31") == types("a") == types("2026-01-02", "1") == ("string",)
    assert types(None) == ("void",)
    assert types("9" * 19) == ("decimal(19,0)",)
    assert types("3000000000", "-" + "9" * 19) == ("decimal(20,0)",)
    assert types("9" * 39) == types("NaN") == types("1d") == ("double",)
    assert types("1e5") == ("decimal(6,0)",)
    assert types("1e99999999999999999999") == types("1e-99999999999999999999") == ("double",)
    assert types("2026-01-02", "2026-01-02 10:00:00") == ("timestamp",)


@pytest.mark.parametrize(
    "values",
    [
        ["+5", "1"],
        ["+5", "a"],
        ["9" * 20, "-1"],
        ["2026-01-02", "+1"],
        ["a b%é", "%zz"],
        ["1e5"],
        ["1d", " 2"],
        ["NaN", "1"],
        ["1.", "2"],
        ["-.5e3"],
        ["%C3%A9"],
        ["2026-01-02 10:00:00", "2026-01-02"],
        ["3000000000", "2.5"],
        ["__HIVE_DEFAULT_PARTITION__"],
        ["2026-03-29 02:30:00", "__HIVE_DEFAULT_PARTITION__"],
    ],
)
def test_values_of_folders_are_what_spark_takes_them_for(session, home, repo: Repository, tmp_path, values) -> None:
    main = repo.branch("main")
    for value in values:
        folder = tmp_path / "table" / f"c={value}"
        folder.mkdir(parents=True)
        pd.DataFrame({"id": [1]}).to_parquet(folder / "a.parquet")
        main.put(f"t/c={value}/a.parquet", (folder / "a.parquet").read_bytes())
    expected = session.read.parquet(str(tmp_path / "table"))

    def told(frame: DataFrame) -> tuple:
        return frame.schema, sorted(map(str, frame.selectExpr("id", "cast(c as string)").collect()))

    assert told(lakeops.spark.read(session, "lakefs://shop/main/t/")) == told(expected)
    try:
        assert told(source(session, home, "lakefs://shop/main/t/")) == told(expected)
    except PySparkException as error:
        assert "use lakeops.spark.read" in str(error)


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ([1, 20, None], "k > 1"),
        (["a b", "c%d/é", None], "k <> 'a b'"),
        (["a b{1}[2]", "é, x=y"], "k like 'a%'"),
        (["01", "x"], "k = '01'"),  # what is left looks like a number
        (["2026-01-02 10:00:00", "2026-01-02 10:00:00.50"], "k like '%.50'"),  # Spark takes them for times
    ],
)
def test_a_table_of_one_job_gives_the_values_of_its_own_folders(session, repo: Repository, values, where) -> None:
    kind = "int" if isinstance(values[0], int) else "string"
    frame = session.createDataFrame(list(enumerate(values)), f"id int, k {kind}").repartition(2)
    lakeops.spark.write(frame, "lakefs://shop/main/t/", partition_by="k")
    main = repo.branch("main")
    read = lakeops.spark.read(session, "lakefs://shop/main/t/")
    assert (read.dtypes, rows(read)) == (frame.dtypes, rows(frame))
    pruned = lakeops.spark.read(session, "lakefs://shop/main/t/", where=where)
    assert (pruned.dtypes, rows(pruned)) == (frame.dtypes, rows(frame.where(where)))
    as_text = lakeops.spark.read(session, "lakefs://shop/main/t/", schema="k string, id int")
    assert rows(as_text) == rows(frame.selectExpr("id", "cast(k as string) k"))
    if "x" in values:
        main.rename("t/k=x/", "t/k=other/", recursive=True)
    moved = [(index, "other" if value == "x" else value) for index, value in enumerate(values)]
    assert rows(lakeops.spark.read(session, "lakefs://shop/main/t/")) == moved
    gone = next(iter(main.list("t/"))).path
    main.delete(gone)
    assert lakeops.spark.read(session, "lakefs://shop/main/t/").count() == len(values) - 1


def test_values_come_from_the_folders_of_one_job_without_a_join(session, repo: Repository, monkeypatch) -> None:
    frame = session.range(4).selectExpr("id", "id % 2 day")
    lakeops.spark.write(frame, "lakefs://shop/main/t/", partition_by="day")
    with monkeypatch.context() as patch:
        patch.setattr(lakeops.spark.tables, "_with_values", None)
        assert rows(lakeops.spark.read(session, "lakefs://shop/main/t/")) == [(0, 0), (1, 1), (2, 0), (3, 1)]
    lakeops.spark.write(frame, "lakefs://shop/main/t/", "append", partition_by="day")
    assert lakeops.spark.read(session, "lakefs://shop/main/t/").count() == 8


def test_folders_that_stand_for_one_column_are_refused(session, repo: Repository) -> None:
    repo.branch("main").put("t/k=5/k=6/a.parquet", pd.DataFrame({"id": [1]}).to_parquet())
    with pytest.raises(errors.InvalidInput, match=r"two folders of 't/k=5/k=6/a.parquet' stand for one column"):
        lakeops.spark.read(session, "lakefs://shop/main/t/")
    assert lakeops.spark.read(session, "lakefs://shop/main/t/k=5/").dtypes == [("id", "bigint"), ("k", "int")]


def test_a_column_that_does_not_fit_the_first_file_is_named(session, home, repo: Repository) -> None:
    main = repo.branch("main")
    main.put("t/a.parquet", pd.DataFrame({"id": pd.Series([1], dtype="int32")}).to_parquet())
    main.put("t/b.parquet", pd.DataFrame({"id": [1 << 40]}).to_parquet())
    with pytest.raises(
        PySparkException, match=r"'id' of 't/b.parquet' has another type or name .* use lakeops.spark.read"
    ):
        rows(source(session, home, "lakefs://shop/main/t/"))


def test_an_overwrite_of_some_partitions_alone_is_refused(session, orders: Repository) -> None:
    one = session.createDataFrame([(9, 90, 1)], "id bigint, amount bigint, day int")
    target = ("lakefs://shop/main/orders/", "overwrite")
    with pytest.raises(
        errors.LakeopsError, match="overwrite the folder of each partition", check=has_kind("unsupported")
    ):
        lakeops.spark.write(one, *target, partition_by="day", partitionOverwriteMode="DYNAMIC")
    session.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        with pytest.raises(errors.LakeopsError, match="partitionOverwriteMode='static'", check=has_kind("unsupported")):
            lakeops.spark.write(one, *target, partition_by="day")
        lakeops.spark.write(one.drop("day"), "lakefs://shop/main/orders/day=1/", "overwrite")
        table = lakeops.spark.read(session, "lakefs://shop/main/orders/")
        assert rows(table.selectExpr("id", "amount", "day")) == [(2, 20, 2), (3, 30, 3), (9, 90, 1)]
        lakeops.spark.write(one, *target, partition_by="day", partitionOverwriteMode="static")
    finally:
        session.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert rows(lakeops.spark.read(session, "lakefs://shop/main/orders/")) == [(9, 90, 1)]
