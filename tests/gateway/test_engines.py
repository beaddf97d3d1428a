"""DuckDB, by its own extension httpfs, Spark SQL and Trino read a ref, and Trino writes on a branch.

``make test-engines`` brings them.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from services import engines, trino
from support.doc_pages import Block, blocks
from support.engines import spark_environment

from lakeops import Lake, Repository, Settings
from lakeops.gateway.app import serving

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

PROGRAM = """
import json, sys
import duckdb
from duckdb_extensions import import_extension
import_extension("httpfs")
connection = duckdb.connect()
connection.execute("LOAD httpfs")
print(json.dumps(connection.execute(sys.stdin.read()).fetchall()))
"""


def _parquet(amount: int) -> bytes:
    written = BytesIO()
    pq.write_table(pa.table({"amount": [amount]}), written)
    return written.getvalue()


@dataclass(frozen=True)
class Shop:
    """A small repository behind a gateway, and what stands in the place of the page's names."""

    repo: Repository
    names: dict[str, str]

    def lines(self, block: Block) -> str:
        """A block of the page, with this gateway's names."""
        return re.sub(r"(?<=['=/])(127\.0\.0\.1:9010|KEY|SECRET)\b", lambda found: self.names[found[0]], block.text)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    settings = Settings.model_construct(home=tmp_path_factory.mktemp("home"), fsync=False, committer="tester")
    with Lake.open(settings=settings) as lake, serving(lake, write=True) as options:
        repo = lake.create_repository("shop")
        main = repo.branch("main")
        for day in (1, 2):
            for part in (0, 1):
                main.put(f"orders/day={day}/part-{part}.parquet", _parquet(10 * day + part))
        main.commit("Orders")
        repo.create_tag("v1", "main")
        main.delete("orders/day=1/part-0.parquet")
        main.commit("One less")
        yield Shop(
            repo,
            {
                "127.0.0.1:9010": options["aws_endpoint_url"].removeprefix("http://"),
                "KEY": options["aws_access_key_id"],
                "SECRET": options["aws_secret_access_key"],
            },
        )


def test_duckdb_reads_a_tag_and_a_branch(place: Path, shop: Shop) -> None:
    def rows(text: str) -> list[list[int]]:
        command = [str(engines.python(place, "duckdb")), "-c", PROGRAM]
        return sorted(
            json.loads(subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout)
        )

    (block,) = blocks("gateway.md", "httpfs")
    lines = shop.lines(block)
    assert rows(lines) == [[1, 21], [2, 41]]
    assert rows(lines.replace("/v1/", "/main/")) == [[1, 11], [2, 41]]


def test_spark_sql_reads_a_tag_and_a_branch(place: Path, shop: Shop, tmp_path: Path) -> None:
    """The connector comes from where ``make test-engines`` has put it, not by ``--packages``."""
    (block,) = blocks("gateway.md", "sql")
    jars = f"--driver-class-path '{engines.class_path(place)}'"
    lines, count = re.subn(r"--packages \S+", jars, shop.lines(block))
    assert count == 1

    def rows(text: str) -> list[str]:
        command = ["bash", "-c", text.replace("spark-sql ", "spark-sql --master 'local[1]' ", 1)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env=spark_environment(place), cwd=tmp_path
        )
        return sorted(done.stdout.split("\n"))[-2:]

    assert rows(lines) == ["1\t21", "2\t41"]
    assert rows(lines.replace("/v1/", "/main/")) == ["1\t11", "2\t41"]


FILE, READ, MORE, WRITE = blocks("gateway.md", "trino")


def _last_rows(query: trino.Query, statements: str) -> list[list[int]]:
    """The rows that the last of some statements returns."""
    return [sorted(query(statement)) for statement in statements.split(";") if statement.strip()][-1]


def _of_table(statements: str, ref: str, table: str) -> str:
    """Statements of the page for the same folder at another ref, in a table of its own."""
    return statements.replace("s3://shop/v1/", f"s3://shop/{ref}/").replace("orders_v1", table)


def _rows_at(query: trino.Query, ref: str, table: str) -> list[list[int]]:
    """The results of the page's statements with another ref."""
    return _last_rows(query, _of_table(READ.text.removeprefix("CREATE SCHEMA lake.shop;"), ref, table))


@pytest.fixture(scope="module")
def query(place: Path, shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[trino.Query]:
    folder = tmp_path_factory.mktemp("trino")
    lines, count = re.subn(r"(?<==)/var/lib/trino$", str(folder), shop.lines(FILE) + MORE.text, flags=re.MULTILINE)
    assert count == 1
    with trino.running(place, folder, lines) as query:
        yield query


@pytest.fixture(scope="module")
def orders(query: trino.Query) -> list[list[int]]:
    """The results of the page's statements, which have made the table of the tag."""
    return _last_rows(query, READ.text)


def test_trino_reads_a_tag_a_branch_and_a_commit(query: trino.Query, orders: list[list[int]], shop: Shop) -> None:
    assert orders == [[1, 21], [2, 41]]
    assert _rows_at(query, "main", "orders_main") == [[1, 11], [2, 41]]
    assert _rows_at(query, "main~1", "orders_before") == orders
    assert _rows_at(query, shop.repo.ref("v1").commit.id, "orders_pinned") == orders


def test_trino_sees_new_files_of_a_branch_and_new_partitions_after_a_call(
    query: trino.Query, orders: list[list[int]], shop: Shop
) -> None:
    dev = shop.repo.create_branch("dev", source="v1")
    assert _rows_at(query, "dev", "orders_dev") == _rows_at(query, "dev@", "orders_head") == orders
    dev.put("orders/day=2/part-2.parquet", _parquet(22))
    dev.put("orders/day=3/part-0.parquet", _parquet(30))
    call, select = READ.text.split(";")[2:4]
    assert _last_rows(query, _of_table(select, "dev", "orders_dev")) == [[1, 21], [2, 63]]
    assert _last_rows(query, _of_table(f"{call};{select}", "dev", "orders_dev")) == [[1, 21], [2, 63], [3, 30]]
    assert _last_rows(query, _of_table(select, "dev@", "orders_head")) == orders


def test_trino_writes_on_a_branch_and_on_no_tag(query: trino.Query, orders: list[list[int]], shop: Shop) -> None:
    main = shop.repo.branch("main")
    _last_rows(query, WRITE.text)
    rows = [*orders, [3, 61]]
    assert _last_rows(query, "SELECT * FROM lake.shop.totals") == rows
    written = [change.path for change in main.uncommitted()]
    tables = [pq.read_table(BytesIO(main.read(path))) for path in written]
    assert sorted([row["day"], row["total"]] for table in tables for row in table.to_pylist()) == rows
    main.commit("Totals")
    with pytest.raises(trino.TrinoError, match="'v1' is no branch"):
        query("INSERT INTO lake.shop.orders_v1 VALUES (1, 1)")
    query("DROP TABLE lake.shop.totals")
    assert not list(main.uncommitted())
    assert [entry.path for entry in main.list("totals/")] == written
    with pytest.raises(trino.TrinoError, match="already exists"):
        _last_rows(query, WRITE.text)


STREAM = """
import sys
from pyspark.sql import SparkSession

address, key, secret = sys.argv[1:]
builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2)
for name, value in {
    "endpoint": f"http://{address}", "access.key": key, "secret.key": secret, "path.style.access": "true",
    "endpoint.region": "us-east-1",
}.items():
    builder = builder.config(f"spark.hadoop.fs.s3a.{name}", value)
spark = builder.getOrCreate()

hadoop = spark._jvm.org.apache.hadoop.fs
at = lambda name: hadoop.Path(f"s3a://shop/main/{name}")
files = at("").getFileSystem(spark._jsc.hadoopConfiguration())
assert files.mkdirs(at("made/below")) and files.exists(at("made/below")) and files.exists(at("made"))
files.create(at("made/below/file")).close()
assert files.rename(at("made/below"), at("moved")) and files.exists(at("moved/file"))
assert not files.exists(at("made/below"))
assert files.delete(at("moved"), True) and not files.exists(at("moved"))
assert files.mkdirs(at("empty")) and files.rename(at("empty"), at("renamed")) and files.exists(at("renamed"))

def run():
    rows = spark.readStream.schema("id long").parquet("s3a://shop/main/in")
    counted = rows.withColumn("odd", rows.id % 2).groupBy("odd").count()
    for name, made, mode in (("out", rows, "append"), ("counts", counted, "complete")):
        sink = made.writeStream.outputMode(mode).option("checkpointLocation", f"s3a://shop/main/checkpoints/{name}")
        if name == "out":
            query = sink.format("parquet").trigger(availableNow=True).start("s3a://shop/main/out")
        else:
            query = sink.foreachBatch(
                lambda batch, _: batch.coalesce(1).write.mode("overwrite").parquet("s3a://shop/main/counts")
            ).trigger(availableNow=True).start()
        query.awaitTermination()

for start in (0, 10):
    spark.range(start, start + 10).write.mode("append").parquet("s3a://shop/main/in")
    run()
run()
print(sorted(row.id for row in spark.read.parquet("s3a://shop/main/out").collect()) == [*range(20)])
print(sorted(map(tuple, spark.read.parquet("s3a://shop/main/counts").collect())))
"""


def test_spark_streams_with_checkpoints_on_a_branch(place: Path, shop: Shop, tmp_path: Path) -> None:
    """Structured Streaming makes folders, asks whether they are there, and renames files to commit its offsets."""
    shop.repo.create_branch("streams")
    command = ["-c", STREAM.replace("/main/", "/streams/"), *shop.names.values()]
    environment = spark_environment(place) | {
        "PYSPARK_SUBMIT_ARGS": f"--driver-class-path {engines.class_path(place)} pyspark-shell"
    }
    done = subprocess.run(
        [str(engines.python(place)), *command],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        check=False,
    )
    assert done.stdout.splitlines()[-2:] == ["True", "[(0, 10), (1, 10)]"], done.stderr
    assert shop.repo.branch("streams").commit("streamed").id
    assert not [finding for finding in shop.repo.fsck() if finding.severity.value != "info"]
