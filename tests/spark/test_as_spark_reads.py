"""Tables of a ref are what Spark's own reader makes of the same files in a plain folder, or there is one line."""

from __future__ import annotations

import gzip
import io
import random
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody does
from pyspark.sql.types import DataType, StructType

import lakeops.spark
from lakeops import Branch, Lake, Settings
from lakeops.model.errors import LakeopsError

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # files that libraries leave open
]

TABLE = "lakefs://shop/main/t/"
SETTINGS = {
    "spark.sql.session.timeZone": ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"),
    "spark.sql.parquet.outputTimestampType": ("INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"),
}
EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - Spark takes it for one of the session's zone
VALUES: dict[str, Any] = {
    "boolean": lambda rng: rng.random() < 0.5,
    "tinyint": lambda rng: rng.randint(-128, 127),
    "smallint": lambda rng: rng.randint(-(1 << 15), (1 << 15) - 1),
    "int": lambda rng: rng.randint(-(1 << 31), (1 << 31) - 1),
    "bigint": lambda rng: rng.randint(-(1 << 63), (1 << 63) - 1),
    "float": lambda rng: rng.choice([0.5, -0.0, float("nan"), float("inf")]),
    "double": lambda rng: rng.choice([rng.random(), -0.0, float("nan"), float("-inf")]),
    "decimal(7,2)": lambda rng: Decimal(rng.randint(-9999999, 9999999)).scaleb(-2),
    "decimal(18,0)": lambda rng: Decimal(rng.randint(-(10**17), 10**17)),
    "decimal(38,10)": lambda rng: Decimal(rng.randint(-(10**36), 10**36)).scaleb(-10),
    "string": lambda rng: "".join(rng.choices("aé \u0000日😀", k=rng.randint(0, 4))),
    "binary": lambda rng: bytearray(rng.randbytes(rng.randint(0, 4))),
    "date": lambda rng: date(1, 1, 1) + timedelta(rng.randint(0, 3_652_058)),
    "timestamp": lambda rng: EPOCH + timedelta(microseconds=rng.randint(-(10**16), 2 * 10**17)),
    "timestamp_ntz": lambda rng: EPOCH + timedelta(microseconds=rng.randint(-(10**16), 2 * 10**17)),
}
REFUSED: dict[str, Any] = {"interval day to second": lambda rng: timedelta(seconds=rng.randint(0, 10**6))}
FOLDERS: dict[str, list[str]] = {
    "int": ["1", "-2", "30"],
    "bigint": ["3000000000", "-1"],
    "decimal(20,0)": ["9" * 20, "12"],
    "double": ["1.5", "-2.25"],
    "date": ["2024-01-01", "1999-12-31"],
    "string": ["a b", "é", "x=y", "007a", "2024-02-31", "12345-01-01", "1_0"],
    "timestamp": ["2024-01-01 00:00:00", "2024-03-31 02:30:00"],
}
ODD_FOLDERS = ["1e5", "1d", "NaN", "+5", "%C3%A9", "%zz", "9" * 39, "1.", ".5", "2.50e2", "2024-01-01 10:00:00.50"]


@pytest.fixture
def main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Branch]:
    monkeypatch.setenv("LAKEOPS_HOME", str(tmp_path / "home"))
    with Lake.open(settings=Settings.load(home=tmp_path / "home", fsync=False)) as lake:
        yield lake.create_repository("shop").branch("main")


class Table:
    """A random table. ``plain`` is whether the format has to read it."""

    def __init__(self, seed: int, session: SparkSession, folder: Path) -> None:
        self.rng, self.session, self.folder, self.plain = random.Random(seed), session, folder, True
        self.settings = {name: self.rng.choice(values) for name, values in SETTINGS.items()}
        for name, value in self.settings.items():
            session.conf.set(name, value)
        names = self.rng.sample(["v", "w", "a b", "é", "x.y", "Part", "n"], self.rng.randint(1, 4))
        self.columns = {name: self.type(2) for name in names}
        self.partition = dict.fromkeys(self.rng.sample(["day", "K", "hour"], self.rng.choice([0, 0, 1, 2])), "")
        self.schema = ""

    def type(self, depth: int) -> str:
        how = self.rng.choice(["leaf", "leaf", "array", "map", "struct"]) if depth else "leaf"
        if how == "array":
            return f"array<{self.type(depth - 1)}>"
        if how == "map":
            return f"map<{self.rng.choice(['string', 'int', 'date'])},{self.type(depth - 1)}>"
        if how == "struct":
            return f"struct<a:{self.type(depth - 1)},`b c`:{self.type(depth - 1)}>"
        if self.rng.random() < 0.04:
            self.plain = False
            return self.rng.choice([*REFUSED])
        return self.rng.choice([*VALUES])

    def value(self, kind: DataType) -> Any:
        if self.rng.random() < 0.2:
            return None
        if kind.typeName() == "array":
            return [self.value(kind.elementType) for _ in range(self.rng.randint(0, 3))]
        if kind.typeName() == "map":
            keys = [VALUES[kind.keyType.simpleString()](self.rng) for _ in range(self.rng.randint(0, 3))]
            return {key: self.value(kind.valueType) for key in keys}
        if kind.typeName() == "struct":
            return tuple(self.value(field.dataType) for field in kind)
        return (VALUES | REFUSED)[kind.simpleString()](self.rng)

    def frame(self, columns: dict[str, str]) -> DataFrame:
        ddl = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
        schema = self.session.createDataFrame([], ddl).schema
        rows = [tuple(self.value(field.dataType) for field in schema) for _ in range(self.rng.randint(1, 6))]
        return self.session.createDataFrame(rows, schema).repartition(self.rng.randint(1, 2))

    def write(self) -> None:
        """Write one or two jobs' files, the second with other columns."""
        kinds = {name: self.rng.choice([*FOLDERS]) for name in self.partition}
        self.plain &= "timestamp" not in kinds.values()
        for job in range(self.rng.choice([1, 1, 2, 3])):
            values = {name: self.rng.choice(FOLDERS[kind]) for name, kind in kinds.items()}
            if values and self.rng.random() < 0.1:
                self.plain = False
                values[self.rng.choice([*values])] = self.rng.choice(ODD_FOLDERS)
            if values and self.rng.random() < 0.1:
                values[self.rng.choice([*values])] = "__HIVE_DEFAULT_PARTITION__"
            columns = self.changed() if job and self.rng.random() < 0.4 else self.columns
            if values and self.rng.random() < 0.1:
                self.plain = False
                name = self.rng.choice([*values])
                columns = {self.rng.choice([name, name.swapcase()]): "int", **columns}
            folder = "/".join(f"{name}={value}" for name, value in values.items())
            self.frame(columns).write.mode("append").parquet(str(self.folder / folder))

    def changed(self) -> dict[str, str]:
        """Columns that lack one, have another one, in another case or of another type."""
        columns = dict(self.columns)
        name = self.rng.choice([*columns])
        how = self.rng.choice(["less", "more", "case", "type", "order"])
        if how == "less" and len(columns) > 1:
            del columns[name]
        elif how == "more":
            columns["more"] = "int"
        elif how == "case":
            columns = {name.swapcase() if each == name else each: kind for each, kind in columns.items()}
        elif how == "type":
            columns[name] = self.type(1)
        else:
            columns = dict(reversed(columns.items()))
        self.plain &= how == "order"
        return columns

    def declare(self) -> str | None:
        """A schema to read with: none, that of the table, or another one."""
        how = self.rng.choice(["no", "no", "no", "same", "other"])
        if how == "no":
            return None
        columns = dict(self.columns)
        if how == "other":
            name = self.rng.choice([*columns])
            columns[name] = self.rng.choice([*VALUES])
            if self.rng.random() < 0.3:
                columns = {name.swapcase() if each == name else each: kind for each, kind in columns.items()}
        if self.rng.random() < 0.7:
            columns |= {name: self.rng.choice(["string", "int", "bigint", "double", "date"]) for name in self.partition}
        self.plain = False
        return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


def told(read: Any) -> tuple[str, Any]:
    """The schema and the rows, or the error."""
    formats = {
        "timestampFormat": "yyyyyy-MM-dd HH:mm:ss.SSSSSS XXX",
        "timestampNTZFormat": "yyyyyy-MM-dd HH:mm:ss.SSSSSS",
    }
    try:
        frame = read()
        columns = F.struct("*")
        rows = frame.select(F.to_json(columns, {"ignoreNullFields": "false", **formats})).collect()
        return frame.schema.json(), sorted(row[0] for row in rows)
    except (PySparkException, Py4JJavaError, LakeopsError) as error:
        return "error", str(error).split("JVM stacktrace:")[0].split("\n\tat ")[0]


def line_of(message: str) -> str:
    """The line of the error that a person reads: Spark shows it below the calls that led to it."""
    return next((line for line in message.splitlines() if "Error: " in line or "Corrupted: " in line), message)


SEEDS = range(32)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_table_is_what_spark_makes_of_the_same_files(session, main: Branch, tmp_path: Path, seed: int) -> None:
    table = Table(seed, session, tmp_path / "plain")
    table.write()
    schema = table.declare()
    for file in sorted(table.folder.rglob("*.parquet"), reverse=table.rng.random() < 0.5):
        main.put(f"t/{file.relative_to(table.folder)}", file.read_bytes())

    def reader() -> DataFrameReader:
        return session.read if schema is None else session.read.schema(schema)

    expected = told(lambda: reader().parquet(str(table.folder)))
    own = told(lambda: lakeops.spark.read(session, TABLE, schema=schema))
    if expected[0] == "error":
        assert own[0] == "error", expected
    elif own[0] == "error":
        assert "\n" not in own[1], own
        assert table.partition, own
    else:
        assert own == expected
    found = told(lambda: reader().format("lakeops").option("home", str(tmp_path / "home")).load(TABLE))
    if found[0] == "error":
        assert "lakeops.spark.read" in line_of(found[1]), found
        assert not table.plain, (found, expected)
    else:
        assert found == expected


def parquet(**columns: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def two(kind: str, first: str, second: str = "1", **more: Any) -> dict[str, bytes]:
    """Two files in folders of a column."""
    return {f"{kind}={value}/{n}.parquet": parquet(id=[n], **more) for n, value in enumerate((first, second))}


TOLD = {"_metadata": [{"file_path": "s3://raw/in.json"}]}
TIMES = two("k", "2024-01-01 00:00:00", "2024-01-02 00:00:00")
LOG = {"_spark_metadata/0": b"v1", "a.parquet": parquet(id=[1]), "b.parquet": parquet(id=[2])}
FILLED = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
FILLED["fields"] += [{"name": "v", "type": "long", "nullable": True, "metadata": {"EXISTS_DEFAULT": "42L"}}]
CASES: dict[str, dict[str, Any]] = {
    "a column _metadata": {"files": two("k", "2", **TOLD)},
    "a text _metadata": {"files": two("k", "2", _metadata=["x"])},
    "a stream's log": {"files": LOG, "refused": "a stream's log"},
    "times in another zone": {"files": TIMES, "options": {"timeZone": "Asia/Tokyo"}, "refused": "option timeZone"},
    "times in the session's zone": {"files": TIMES, "options": {"timeZone": "UTC"}},
    "numbers in another zone": {"files": two("k", "2"), "options": {"timeZone": "Asia/Tokyo"}},
    "declared times": {
        "files": TIMES,
        "schema": "id bigint, k timestamp_ltz",
        "settings": {"spark.sql.timestampType": "TIMESTAMP_NTZ"},
    },
    "no number": {
        "files": two("k", "x"),
        "schema": "id bigint, k int",
        "settings": {"spark.sql.ansi.enabled": "false"},
    },
    "a fraction": {
        "files": two("k", "1.5"),
        "schema": "id bigint, k int",
        "settings": {"spark.sql.ansi.enabled": "false"},
    },
    "a null": {"files": two("k", "__HIVE_DEFAULT_PARTITION__"), "schema": "id bigint, k int"},
    "a short text": {"files": two("k", "abc"), "schema": "id bigint, k varchar(3)"},
    "hexadecimal": {"files": two("k", "0x10"), "schema": "id bigint, k int"},
    "two signs": {"files": two("k", "+-5"), "schema": "id bigint, k int"},
    "a default": {"files": two("k", "1"), "schema": StructType.fromJson(FILLED).add("k", "integer")},
    "wide digits": {"files": two("k", "\uff11\uff12"), "refused": "no int: \uff11\uff12"},
    "wide digits and a text": {"files": two("k", "\uff11\uff12", "x")},
    "a wide fraction": {"files": two("k", "\uff11.\uff15")},
    "a wide space": {"files": two("k", "\u00a01")},
    "a file that is left out": {
        "files": {"a.csv": b"id\n1\n", "b.csv.gz": gzip.compress(b"id\n2\n"), "c.csv": b"id\n3\n"},
        "options": {"pathGlobFilter": "*.csv", "header": True},
    },
}


@pytest.mark.parametrize("what", [*CASES])
def test_a_case_is_as_spark_has_it_or_refused(session, main: Branch, tmp_path: Path, what: str) -> None:
    """In one folder of a plain table, and in the lake with the files the other way round."""
    case = {"schema": None, "options": {}, "settings": {}, "refused": None, **CASES[what]}
    for name, data in sorted(case["files"].items(), reverse=True):
        (tmp_path / "plain" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "plain" / name).write_bytes(data)
        main.put(f"t/{name}", data)

    def reader(kind: str) -> DataFrameReader:
        found = session.read.format(kind)
        return found if case["schema"] is None else found.schema(case["schema"])

    for name, value in ({"spark.sql.session.timeZone": "UTC"} | case["settings"]).items():
        session.conf.set(name, value)
    try:
        kind = next(iter(case["files"])).rpartition(".")[2] if case["options"].get("header") else "parquet"
        expected = told(lambda: reader(kind).options(**case["options"]).load(str(tmp_path / "plain")))
        own = told(lambda: lakeops.spark.read(session, TABLE, schema=case["schema"], **case["options"]))
        found = told(lambda: reader("lakeops").option("home", str(tmp_path / "home")).load(TABLE))
    finally:
        for name in case["settings"]:
            session.conf.unset(name)
    if case["refused"]:
        assert own[0] == "error"
        assert case["refused"] in own[1]
    elif expected[0] == "error":
        assert own[0] == "error", own
    else:
        assert own == expected
    assert found[0] == "error" or found == expected


@pytest.mark.parametrize("name", ["a\u3000b", "a\u00a0b", "a\u2028b", "a\u0085b", "a b", "é%"])
def test_a_file_of_any_name_is_found_behind_a_join(session, main: Branch, tmp_path: Path, name: str) -> None:
    for day, one in ((1, name), (2, "x")):
        (tmp_path / f"raw/day={day}").mkdir(parents=True)
        (tmp_path / f"raw/day={day}/{one}.parquet").write_bytes(parquet(id=[day]))
    main.import_objects((tmp_path / "raw").as_uri(), "t/", "Import")
    main.rename("t/day=2/x.parquet", "t/day=5/x.parquet")
    assert sorted(lakeops.spark.read(session, TABLE).collect()) == [(1, 1), (2, 5)]


@pytest.mark.parametrize("mode", ["error", "ignore"])
def test_no_rows_are_written_to_an_empty_prefix(session, main: Branch, mode: Any) -> None:
    empty = session.createDataFrame([], "id int, k int")
    assert lakeops.spark.write(empty, TABLE, mode, partition_by="k") == 0
    main.put("t/k=1/a.parquet", parquet(id=[1]))
    with pytest.raises(LakeopsError) if mode == "error" else nullcontext():
        lakeops.spark.write(empty, TABLE, mode, partition_by="k")
    assert [item.path for item in main.list()] == ["t/k=1/a.parquet"]


UNUSUAL = {
    "spark.sql.parquet.binaryAsString": "true",
    "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
    "spark.sql.parquet.int96RebaseModeInRead": "EXCEPTION",
    "spark.sql.parquet.int96TimestampConversion": "true",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "false",
    "spark.sql.parquet.mergeSchema": "true",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
}


@pytest.mark.parametrize("setting", [None, *UNUSUAL])
def test_a_setting_of_the_session_is_heeded_or_named(session, main: Branch, tmp_path: Path, setting: str | None):
    """Workers do not see it, and the table would have other columns."""
    columns = {"b": pa.array([b"1"]), "t": pa.array([1], pa.timestamp("us"))}
    for folder, more in (("p=01", {}), ("p=2", {"more": pa.array([1])})):
        (tmp_path / "plain" / folder).mkdir(parents=True)
        pq.write_table(pa.table(columns | more), tmp_path / "plain" / folder / "a.parquet")
        main.put(f"t/{folder}/a.parquet", (tmp_path / "plain" / folder / "a.parquet").read_bytes())
    if setting:
        session.conf.set(setting, UNUSUAL[setting])
    try:
        lakeops.spark.register(session)
        expected = told(lambda: session.read.parquet(str(tmp_path / "plain")))
        assert told(lambda: lakeops.spark.read(session, TABLE)) == expected
        reader = session.read.format("lakeops").option("home", str(tmp_path / "home"))
        found = told(lambda: reader.load(TABLE))
        declared = told(lambda: reader.schema("b binary, t timestamp_ntz, p int").load(TABLE))
    finally:
        if setting:
            session.conf.unset(setting)
        lakeops.spark.register(session)
    if setting is None:
        assert found == expected
    else:
        for answer in (found, declared):
            assert answer[0] == "error"
            assert f"without {setting}=" in line_of(answer[1])
            assert "lakeops.spark.read" in line_of(answer[1])


@pytest.mark.parametrize("seed", range(100, 108))
def test_what_is_written_is_what_spark_writes(session, main: Branch, tmp_path: Path, seed: int) -> None:
    table = Table(seed, session, tmp_path / "plain")
    frame = table.frame(table.columns)
    frame.write.parquet(str(table.folder))
    lakeops.spark.write(frame, "lakefs://shop/main/own/")
    expected = told(lambda: session.read.parquet(str(table.folder)))
    assert told(lambda: lakeops.spark.read(session, "lakefs://shop/main/own/")) == expected
    try:
        by_format = frame.write.format("lakeops").option("home", str(tmp_path / "home")).mode("append")
        by_format.save("lakefs://shop/main/format/")
    except PySparkException as error:
        assert not table.plain, error
        assert "lakeops.spark.write" in line_of(str(error))
        assert not [*main.list("format/")]
    else:
        assert told(lambda: lakeops.spark.read(session, "lakefs://shop/main/format/")) == told(lambda: frame)
