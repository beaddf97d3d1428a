"""Iceberg tables on refs, written by real Spark drivers through the REST catalog of the gateway.

``make test-engines`` brings Spark, the jars and an S3 server. The files lie on this machine, and in a bucket, where
Spark reads and writes them by Iceberg's own ``S3FileIO``.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pydantic import SecretStr
from pyiceberg.catalog import load_catalog
from services import engines, trino
from services.postgres import fresh_database
from support.budget import examples
from support.doc_pages import blocks
from support.engines import Driver, iceberg_configuration, spark_environment

from lakeops import Lake, Repository, Settings
from lakeops.gateway.app import serving
from lakeops.model.errors import MergeConflict

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

_, TRINO, ATTACH = blocks("gateway.md", "iceberg")


@dataclass(frozen=True)
class Shop:
    """A repository, and two drivers that know it as the catalog ``shop``."""

    repo: Repository
    drivers: list[Driver]
    home: Path
    url: str | None
    endpoint: str | None
    options: dict[str, str]

    def sql(self, statement: str, driver: int = 0) -> list[list]:
        """The rows of a statement that has to work."""
        found = self.drivers[driver].run(f"value = [[*row] for row in spark.sql({statement!r}).collect()]")
        assert isinstance(found, list)
        return found

    def error(self, statement: str) -> str:
        """The error of a statement that must not work."""
        return self.drivers[0].start(f"spark.sql({statement!r}).collect()")()["error"]


FILES, BUCKET = "files", pytest.param("real", marks=pytest.mark.s3)
POSTGRESQL = ["files, PostgreSQL", pytest.param("real, PostgreSQL", marks=pytest.mark.s3)]
on_both_catalogs = pytest.mark.parametrize("shop", [FILES, BUCKET, *POSTGRESQL], indirect=True, scope="module")
"""For tests in which it matters that the catalog is a SQLite file or a PostgreSQL server."""


@pytest.fixture(scope="module", params=[FILES, BUCKET])
def shop(
    request: pytest.FixtureRequest,
    place: Path,
    tmp_path_factory: pytest.TempPathFactory,
    endpoint_of: Callable[[str], str],
    buckets: Callable[[str], str],
) -> Iterator[Shop]:
    where, _, catalog = request.param.partition(", ")
    endpoint = None if where == "files" else endpoint_of(where)
    namespace = None if endpoint is None else f"s3://{buckets(endpoint)}/shop-{catalog.lower() or 'sqlite'}"
    with ExitStack() as started:
        socket = request.getfixturevalue("postgres_socket") if catalog else None
        url = started.enter_context(fresh_database(socket)) if socket else None
        settings = Settings.model_construct(
            home=tmp_path_factory.mktemp("home"),
            database_url=SecretStr(url) if url else None,
            fsync=False,
            committer="tester",
            s3_endpoint_url=endpoint,
        )
        lake = started.enter_context(Lake.open(settings=settings))
        options = started.enter_context(serving(lake, write=True))
        repo = lake.create_repository("shop", namespace)
        drivers = []
        for name in ("one", "two"):
            folder = tmp_path_factory.mktemp("spark") / name
            drivers.append(Driver(place, folder, iceberg_configuration(place, options), "iceberg"))
            started.callback(drivers[-1].stop)
        shop = Shop(repo, drivers, settings.home, url, endpoint, options)
        shop.sql("CREATE NAMESPACE shop.main.web")
        yield shop


def test_rows_are_those_of_the_same_statements_on_plain_files(shop: Shop, tmp_path: Path) -> None:
    plain, table = f"parquet.`{tmp_path}/plain`", "shop.main.web.sales"
    shop.drivers[0].run(
        "spark.range(200).selectExpr('id', 'id % 7 AS day', \"concat('n', id) AS name\", 'CAST(NULL AS DOUBLE) AS x')"
        f".write.parquet('{tmp_path}/plain')"
    )
    shop.sql(f"CREATE TABLE {table} USING iceberg PARTITIONED BY (day) AS SELECT * FROM {plain}")
    whole = f"SELECT * FROM {table} ORDER BY id"
    assert shop.sql(whole) == shop.sql(f"SELECT * FROM {plain} ORDER BY id")
    shop.sql(f"DELETE FROM {table} WHERE id % 10 = 3")
    shop.sql(f"UPDATE {table} SET x = id / 2, name = 'even' WHERE id % 2 = 0")
    shop.sql(
        f"MERGE INTO {table} t USING (SELECT id + 190 AS id FROM range(20)) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET name = 'both' WHEN NOT MATCHED THEN INSERT (id, name) VALUES (s.id, 'new')"
    )
    shop.sql(f"INSERT INTO {table} VALUES (1000, 1, 'last', 0.5)")
    expected = shop.sql(
        "SELECT * FROM (SELECT id, day, CASE WHEN id >= 190 THEN 'both' WHEN id % 2 = 0 THEN 'even' ELSE name END, "
        f"CASE WHEN id % 2 = 0 THEN id / 2 END FROM {plain} WHERE id % 10 != 3 "
        "UNION ALL SELECT id + 200, NULL, 'new', NULL FROM range(10) "
        "UNION ALL SELECT 193, NULL, 'new', NULL UNION ALL SELECT 1000, 1, 'last', 0.5) ORDER BY 1"
    )
    assert shop.sql(whole) == expected
    first = shop.sql(f"SELECT snapshot_id FROM {table}.history ORDER BY made_current_at LIMIT 1")[0][0]
    assert shop.sql(f"SELECT count(*) FROM {table} VERSION AS OF {first}") == [[200]]
    files = shop.sql(
        "CALL shop.system.rewrite_data_files(table => 'main.web.sales', options => map('rewrite-all', 'true'))"
    )
    assert files[0][0] > files[0][1] > 0
    shop.sql(f"ALTER TABLE {table} RENAME COLUMN name TO label")
    shop.sql(f"ALTER TABLE {table} ADD COLUMN more STRUCT<a: INT, b: ARRAY<STRING>>")
    assert shop.sql(whole) == [[*row, None] for row in expected]
    shop.sql(f"ALTER TABLE {table} RENAME TO main.web.sold")
    shop.sql("DROP TABLE shop.main.web.sold")
    assert shop.sql("SHOW TABLES IN shop.main.web LIKE 'sol*'") == []


@on_both_catalogs
@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_branches_and_a_tag_side_by_side(shop: Shop, mode: str) -> None:
    name, repo = mode.partition("-")[0], shop.repo
    modes = ", ".join(f"'write.{verb}.mode' = '{mode}'" for verb in ("delete", "update", "merge"))
    for kind in ("orders", "lines"):
        shop.sql(f"CREATE TABLE shop.main.web.{name}_{kind} (id BIGINT) USING iceberg TBLPROPERTIES ({modes})")
        shop.sql(f"INSERT INTO shop.main.web.{name}_{kind} SELECT id FROM range(10)")
    repo.branch("main").commit("Ten")
    repo.create_tag(f"v-{name}", "main")
    repo.create_branch(f"dev-{name}")
    counts = "SELECT (SELECT count(*) FROM shop.`{0}`.web.{1}_orders), (SELECT count(*) FROM shop.`{0}`.web.{1}_lines)"
    at = {ref: counts.format(ref, name) for ref in (f"v-{name}", "main", f"dev-{name}")}
    shop.sql(f"DELETE FROM shop.`dev-{name}`.web.{name}_orders WHERE id < 3")
    shop.sql(f"INSERT INTO shop.`dev-{name}`.web.{name}_lines SELECT id FROM range(10, 15)")
    repo.branch(f"dev-{name}").commit("Change two tables")
    assert [shop.sql(statement) for statement in at.values()] == [[[10, 10]], [[10, 10]], [[7, 15]]]
    repo.merge(f"dev-{name}", "main")
    repo.delete_branch(f"dev-{name}")
    assert [shop.sql(at[ref], 1) for ref in (f"v-{name}", "main")] == [[[10, 10]], [[7, 15]]]
    error = shop.error(f"INSERT INTO shop.`v-{name}`.web.{name}_orders VALUES (1)")
    assert f"'v-{name}' is no branch: tables can only be read there" in error


TWO_SIDES = {
    "an append after deletes": (
        "INSERT INTO {} SELECT id, 'new' FROM range(20, 25)",
        "DELETE FROM {} WHERE id % 3 = 0",
        "",
    ),
    "an append after a merge": (
        "INSERT INTO {} VALUES (3, 'again'), (30, 'new')",
        (
            "MERGE INTO {} t USING (SELECT id + 8 AS id FROM range(4)) s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET name = 'both' WHEN NOT MATCHED THEN INSERT (id, name) VALUES (s.id, 'new')"
        ),
        "",
    ),
    "deletes after an append": ("DELETE FROM {} WHERE id = 1", "INSERT INTO {} VALUES (30, 'new')", "delete rows of"),
    "a merge after an append": (
        "MERGE INTO {} t USING (SELECT 1 AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET name = 'dev'",
        "INSERT INTO {} VALUES (30, 'new')",
        "delete rows of",
    ),
    "a compaction after deletes": (
        "CALL shop.system.rewrite_data_files(table => '{}', options => map('rewrite-all', 'true'))",
        "DELETE FROM {} WHERE id % 3 = 0",
        "the destination deleted rows",
    ),
}
"""Statements of the source and the destination, and the conflict's reason where it is one."""


def test_merges_rebase_what_spark_wrote_with_delete_files(shop: Shop) -> None:
    """Rows are those of a table in which the destination's statement ran, and then the source's."""
    modes = ", ".join(f"'write.{verb}.mode' = 'merge-on-read'" for verb in ("delete", "update", "merge"))
    repo, name_of = shop.repo, {name: f"web.rebase{number}" for number, name in enumerate(TWO_SIDES)}
    for name, (theirs, ours, reason) in TWO_SIDES.items():
        for table in (name_of[name], f"{name_of[name]}_serial"):
            shop.sql(
                f"CREATE TABLE shop.main.{table} USING iceberg TBLPROPERTIES ({modes}) "
                "AS SELECT /*+ REPARTITION(1) */ id, concat('n', id) AS name FROM range(10)"
            )
        for statement in () if reason else (ours, theirs):
            shop.sql(statement.format(f"shop.main.{name_of[name]}_serial"))
    repo.branch("main").commit("Tables of two sides")
    for number, (name, (theirs, ours, reason)) in enumerate(TWO_SIDES.items()):
        dev, table = f"rebase-{number}", name_of[name]
        repo.create_branch(dev)
        for branch, statement in ((dev, theirs), ("main", ours)):
            place = f"`{branch}`.{table}" if statement.startswith("CALL") else f"shop.`{branch}`.{table}"
            shop.sql(statement.format(place))
            repo.branch(branch).commit(name)
        if reason:
            with pytest.raises(MergeConflict, match=f"table {table.replace('.', '/')}: .*{reason}"):
                repo.merge(dev, "main", tables="rebase")
            continue
        repo.merge(dev, "main", tables="rebase")
        shop.sql(f"REFRESH TABLE shop.main.{table}")
        rows = [shop.sql(f"SELECT * FROM shop.main.{one} ORDER BY id, name") for one in (table, f"{table}_serial")]
        assert rows[0] == rows[1], name


@on_both_catalogs
def test_two_drivers_and_pyiceberg_append_at_once_and_no_row_is_lost(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    retries = "'commit.retry.num-retries' = '50'"
    shop.sql(f"CREATE TABLE shop.main.web.appends (id BIGINT) USING iceberg TBLPROPERTIES ({retries})")
    if shop.endpoint:
        monkeypatch.setenv("LAKEOPS_S3_ENDPOINT_URL", shop.endpoint)
    number = examples(8)
    append = (
        f"for number in range({{0}}, {{0}} + {number}):\n"
        "    spark.sql(f'INSERT INTO shop.main.web.appends VALUES ({{number}})')"
    )
    under_way = [driver.start(append.format(1000 * place)) for place, driver in enumerate(shop.drivers)]
    lake = {"lakeops.database_url": shop.url} if shop.url else {"lakeops.home": str(shop.home)}
    properties = {"py-catalog-impl": "lakeops.iceberg.RefCatalog", **lake}
    table = load_catalog("shop", **properties, warehouse="lakefs://shop/main").load_table("web.appends")
    for one in range(2000, 2000 + number):
        table.append(pa.table({"id": pa.array([one], pa.int64())}))
    assert [wait()["error"] for wait in under_way] == ["", ""]
    expected = [one for start in (0, 1000, 2000) for one in range(start, start + number)]
    shop.sql("REFRESH TABLE shop.main.web.appends")
    assert shop.sql("SELECT id FROM shop.main.web.appends ORDER BY id") == [[one] for one in expected]
    assert sorted(table.refresh().scan().to_arrow()["id"].to_pylist()) == expected
    assert len(table.snapshots()) == len(expected)


@on_both_catalogs
def test_the_second_of_two_who_contradict_gets_icebergs_own_conflict(shop: Shop) -> None:
    """The second driver planned its change on the table as it was before the first one's."""
    shop.sql("CREATE TABLE shop.main.web.deletes USING iceberg AS SELECT id FROM range(4)")
    assert shop.sql("SELECT count(*) FROM shop.main.web.deletes", 1) == [[4]]
    shop.sql("DELETE FROM shop.main.web.deletes WHERE id = 0")
    answer = shop.drivers[1].start("spark.sql('UPDATE shop.main.web.deletes SET id = 9 WHERE id = 1').collect()")()
    assert "ValidationException" in answer["error"]
    assert shop.sql("SELECT id FROM shop.main.web.deletes ORDER BY id") == [[1], [2], [3]]
    shop.sql("REFRESH TABLE shop.main.web.deletes", 1)
    shop.sql("UPDATE shop.main.web.deletes SET id = 9 WHERE id = 1", 1)
    shop.sql("REFRESH TABLE shop.main.web.deletes")
    assert shop.sql("SELECT id FROM shop.main.web.deletes ORDER BY id") == [[2], [3], [9]]


REFUSED = {
    "CALL shop.system.expire_snapshots(table => 'main.web.kept', retain_last => 1)": "GC is disabled",
    "CALL shop.system.remove_orphan_files(table => 'main.web.kept')": "GC is disabled",
    "DROP TABLE shop.main.web.kept PURGE": "GC is disabled",
    "ALTER TABLE shop.main.web.kept SET TBLPROPERTIES ('gc.enabled' = 'true')": "gc.enabled must stay false",
    "ALTER TABLE shop.main.web.kept SET TBLPROPERTIES ('format-version' = '3')": "format-version is 1 or 2 here",
    "ALTER TABLE shop.main.web.kept SET LOCATION 'file:/tmp/x'": "the location of a table cannot change",
    "CREATE TABLE shop.main.web.v3 (id INT) USING iceberg TBLPROPERTIES ('format-version' = '3')": (
        "format-version is 1 or 2 here"
    ),
    "CREATE TABLE shop.main.web.placed (id INT) USING iceberg LOCATION 'file:///tmp/x'": "is not where tables",
    "CREATE TABLE shop.main.none.t (id INT) USING iceberg": "Namespace does not exist: none",
    "SELECT * FROM shop.none.web.t": "TABLE_OR_VIEW_NOT_FOUND",
    "CREATE NAMESPACE shop.none": "use lakeops branch",
    "DROP NAMESPACE shop.main.web": "Namespace web is not empty",
    "CREATE VIEW shop.main.web.v AS SELECT 1": "does not support",
}


def test_refusals_say_why_and_change_nothing(shop: Shop) -> None:
    shop.sql("CREATE TABLE shop.main.web.kept USING iceberg AS SELECT id FROM range(3)")
    shop.repo.branch("main").commit("Before the refusals")
    wrong = {statement: error for statement, says in REFUSED.items() if says not in (error := shop.error(statement))}
    assert wrong == {}
    assert shop.sql("DROP TABLE IF EXISTS shop.none.web.t") == []
    assert list(shop.repo.branch("main").uncommitted()) == []
    assert shop.sql("SELECT id FROM shop.main.web.kept ORDER BY id") == [[0], [1], [2]]


def test_the_job_of_the_example_dag(shop: Shop, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes a day twice, and the second time replaces the first."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setenv("LAKEOPS_HOME", str(shop.home))
    if shop.endpoint:
        monkeypatch.setenv("LAKEOPS_S3_ENDPOINT_URL", shop.endpoint)
    for name, value in spark_environment(place, "iceberg").items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SPARK_HOME", raising=False)
    jars = engines.class_path(place, "iceberg-jars")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--master local[1] --driver-class-path {jars} pyspark-shell")
    from publish_iceberg import tables_at, write_with_spark

    shop.repo.create_branch("job")
    for damage in (["lost"], []):
        write_with_spark(str(engines.python(place, "iceberg")), "shop", "job", "2026-01-01", damage)
    found = {name: tables_at("shop", "job").load_table(f"web.{name}").scan().to_arrow() for name in ("orders", "lines")}
    assert {name: rows.num_rows for name, rows in found.items()} == {"orders": 100, "lines": 200}
    assert sum(found["lines"]["amount"].to_pylist()) == sum(found["orders"]["amount"].to_pylist()) == 3000


def test_trino_reads_and_writes_the_same_tables(
    shop: Shop, place: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shop.sql("CREATE TABLE shop.main.web.shared USING iceberg AS SELECT id FROM range(3)")
    shop.repo.branch("main").commit("A table of Spark")
    shop.repo.create_tag("v-trino", "main")
    text = TRINO.text.replace("http://127.0.0.1:9010", shop.options["aws_endpoint_url"])
    text = text.replace("KEY:SECRET", f"{shop.options['aws_access_key_id']}:{shop.options['aws_secret_access_key']}")
    if shop.endpoint:
        keys = {
            "aws-access-key": os.environ["AWS_ACCESS_KEY_ID"],
            "aws-secret-key": os.environ["AWS_SECRET_ACCESS_KEY"],
        }
        more = {**keys, "endpoint": shop.endpoint, "region": "us-east-1", "path-style-access": "true"}
        text += "fs.native-s3.enabled=true\n" + "".join(f"s3.{name}={value}\n" for name, value in more.items())
    else:
        text += "fs.native-local.enabled=true\nlocal.location=/\n"
    with trino.running(place, tmp_path_factory.mktemp("trino"), text, "trino-iceberg") as query:
        read = 'SELECT id FROM lake."{}.web".shared ORDER BY id'
        assert query(read.format("v-trino")) == [[0], [1], [2]]
        query('INSERT INTO lake."main.web".shared VALUES 3, 4')
        query('DELETE FROM lake."main.web".shared WHERE id = 0')
        assert query(read.format("main")) == [[1], [2], [3], [4]]
        with pytest.raises(trino.TrinoError, match="is no branch: tables can only be read there"):
            query('INSERT INTO lake."v-trino.web".shared VALUES 5')
    shop.sql("REFRESH TABLE shop.main.web.shared")
    assert shop.sql("SELECT id FROM shop.main.web.shared ORDER BY id") == [[1], [2], [3], [4]]


DUCKDB = """
import json, sys
import duckdb
from duckdb_extensions import import_extension
connection = duckdb.connect()
for extension in ("httpfs", "avro", "iceberg"):
    import_extension(extension)
    connection.execute(f"LOAD {extension}")
found = [connection.execute(one).fetchall() for one in sys.stdin.read().split(";") if one.strip()]
"""
TRANSACTIONS = """
other, found = connection.cursor(), []
for number in (7, 8):
    for one in ("BEGIN", *(f'INSERT INTO shop."main.web".{name} VALUES ({number})' for name in ("debit", "credit"))):
        connection.execute(one)
    if number == 8:
        other.execute('INSERT INTO shop."main.web".credit VALUES (9)')
    try:
        found.append(connection.execute("COMMIT").fetchall())
    except duckdb.Error as error:
        found.append(str(error))
"""


def duckdb(shop: Shop, place: Path, statements: str, more: str = "") -> list:
    """What the last two of some statements found, which know the repository as the catalog ``shop``.

    ``more`` is Python that runs after the statements, and puts into ``found`` what it finds.
    """
    text = ATTACH.text.rpartition(";")[0].replace("http://127.0.0.1:9010", shop.options["aws_endpoint_url"])
    text = text.replace("'KEY'", f"'{shop.options['aws_access_key_id']}'")
    text = text.replace("'SECRET'", f"'{shop.options['aws_secret_access_key']}'")
    if shop.endpoint:
        keys = f"KEY_ID '{os.environ['AWS_ACCESS_KEY_ID']}', SECRET '{os.environ['AWS_SECRET_ACCESS_KEY']}'"
        where = f"ENDPOINT '{shop.endpoint.removeprefix('http://')}', URL_STYLE 'path', USE_SSL false"
        text += f";CREATE SECRET files (TYPE s3, {keys}, {where})"
    command = [str(engines.python(place, "duckdb")), "-c", f"{DUCKDB}{more}\nprint(json.dumps(found))"]
    done = subprocess.run(command, input=f"{text};{statements}", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])[-2:]
    assert isinstance(found, list)
    return found


def test_duckdb_reads_and_writes_the_same_tables(shop: Shop, place: Path) -> None:
    shop.sql("CREATE TABLE shop.main.web.ducks USING iceberg AS SELECT id FROM range(3)")
    shop.repo.branch("main").commit("A table of Spark")
    shop.repo.create_tag("v-duck", "main")
    found = duckdb(
        shop,
        place,
        """INSERT INTO shop."main.web".ducks VALUES (3);
        SELECT id FROM shop."main.web".ducks ORDER BY id; SELECT id FROM shop."v-duck.web".ducks ORDER BY id""",
    )
    assert found == [[[0], [1], [2], [3]], [[0], [1], [2]]]
    shop.sql("REFRESH TABLE shop.main.web.ducks")
    assert shop.sql("SELECT id FROM shop.main.web.ducks ORDER BY id") == [[0], [1], [2], [3]]


@on_both_catalogs
def test_a_transaction_of_duckdb_commits_both_tables_or_none(shop: Shop, place: Path) -> None:
    for name in ("debit", "credit"):
        shop.sql(f"CREATE TABLE shop.main.web.{name} USING iceberg AS SELECT id FROM range(3)")
    committed, refused = duckdb(shop, place, "", TRANSACTIONS)
    assert committed == []
    assert "Requirement failed: branch main has changed" in refused
    shop.sql("REFRESH TABLE shop.main.web.debit")
    shop.sql("REFRESH TABLE shop.main.web.credit")
    rows = [shop.sql(f"SELECT id FROM shop.main.web.{name} ORDER BY id") for name in ("debit", "credit")]
    assert rows == [[[0], [1], [2], [7]], [[0], [1], [2], [7], [9]]]
