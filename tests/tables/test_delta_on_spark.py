"""Delta Lake on real Spark drivers, through the gateway: no row is lost, and conflicts are the format's own.

``make test-engines`` brings Spark and the jars. The gateway runs in this process, so a test can hold two drivers at the
moment in which each of them has seen that the next version is not there.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake
from services import engines
from starlette.responses import Response
from support.doc_pages import blocks
from support.engines import Driver
from support.served import KEYS, running

from lakeops import Lake, Repository, Settings
from lakeops.gateway.signature import S3Request
from lakeops.gateway.writing import Writing

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

PAGE = blocks("gateway.md", "delta")


def _configuration(place: Path, options: dict[str, str]) -> dict[str, str]:
    """The page's lines, with this gateway and these keys, and the jars that were fetched with their hashes."""
    lines = dict(line.split(maxsplit=1) for line in PAGE[0].text.splitlines())
    packages = lines.pop("spark.jars.packages").split(",")
    assert {*packages} <= {*engines.JARS}
    lines["spark.driver.extraClassPath"] = engines.class_path(place)
    lines["spark.hadoop.fs.s3a.endpoint"] = options["aws_endpoint_url"]
    lines["spark.hadoop.fs.s3a.access.key"] = options["aws_access_key_id"]
    lines["spark.hadoop.fs.s3a.secret.key"] = options["aws_secret_access_key"]
    return {**lines, "spark.databricks.delta.snapshotPartitions": "1"}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    settings = Settings.model_construct(home=tmp_path_factory.mktemp("home"), fsync=False, committer="tester")
    with Lake.open(settings=settings) as lake:
        yield lake


@pytest.fixture(scope="module")
def shop(lake: Lake) -> Repository:
    return lake.create_repository("shop")


@pytest.fixture(scope="module")
def options(lake: Lake) -> Iterator[dict[str, str]]:
    with running(lake, write=True) as url:
        yield {
            "aws_endpoint_url": url,
            "aws_access_key_id": KEYS.access_key,
            "aws_secret_access_key": KEYS.secret_key,
            "aws_region": "us-east-1",
            "aws_allow_http": "true",
            "aws_conditional_put": "etag",
        }


@pytest.fixture(scope="module")
def drivers(place: Path, options: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Driver]]:
    with ExitStack() as started:
        found = [
            Driver(place, tmp_path_factory.mktemp("spark") / name, _configuration(place, options))
            for name in ("one", "two")
        ]
        for driver in found:
            started.callback(driver.stop)
        yield found


class Meeting:
    """Holds the writers of one version of a table until there are two, and counts those who were refused."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.version = ""
        self.refused = 0
        self._both = threading.Barrier(2)
        answer = Writing.answer

        def meeting(writing: Writing, repository: Repository, asked: S3Request) -> Response:
            if not self.version or not asked.key.endswith(self.version):
                return answer(writing, repository, asked)
            self._both.wait(600)
            try:
                return answer(writing, repository, asked)
            except Exception:
                self.version = ""  # who comes second comes alone from here on
                self.refused += 1
                raise

        monkeypatch.setattr(Writing, "answer", meeting)

    def at(self, number: int) -> None:
        """Two have to write this version."""
        self.version = f"_delta_log/{number:020}.json"


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> Meeting:
    return Meeting(monkeypatch)


def numbers(table: str, options: dict[str, str]) -> list[int]:
    """The rows that delta-rs reads."""
    return sorted(DeltaTable(table, storage_options=options).to_pyarrow_table()["id"].to_pylist())


def test_the_lines_of_the_page(shop: Repository, drivers: list[Driver], options: dict[str, str]) -> None:
    write, read = (block.text for block in PAGE[1:])
    drivers[0].run(write)
    shop.branch("main").commit("Numbers")
    drivers[0].run("spark.range(9, 10).write.format('delta').mode('append').save('s3a://shop/main/numbers')")
    shop.branch("main").commit("More numbers")
    assert drivers[0].run(read + "value = [now, before]") == [6, 5]
    assert numbers("s3://shop/main~1/numbers", options) == [0, 1, 2, 3, 4]


def test_two_drivers_append_at_once_and_no_row_is_lost(
    shop: Repository, drivers: list[Driver], options: dict[str, str], meeting: Meeting
) -> None:
    drivers[0].run("spark.range(1).write.format('delta').save('s3a://shop/main/appends')")
    meeting.at(1)
    append = (
        "for number in range({0}, {0} + 4):\n"
        "    spark.range(number, number + 1).write.format('delta').mode('append').save('s3a://shop/main/appends')"
    )
    under_way = [driver.start(append.format(100 * place)) for place, driver in enumerate(drivers, 1)]
    assert [wait()["error"] for wait in under_way] == ["", ""]
    assert meeting.refused == 1
    assert numbers("s3://shop/main/appends", options) == [0, 100, 101, 102, 103, 200, 201, 202, 203]
    log = [entry.path for entry in shop.branch("main").list("appends/_delta_log/") if entry.path.endswith(".json")]
    assert [int(Path(path).stem) for path in log] == [*range(9)]


def test_the_second_of_two_who_contradict_gets_deltas_own_conflict(
    shop: Repository, drivers: list[Driver], options: dict[str, str], meeting: Meeting
) -> None:
    drivers[0].run("spark.range(4).coalesce(1).write.format('delta').save('s3a://shop/main/deletes')")
    meeting.at(1)
    delete = "spark.sql('DELETE FROM delta.`s3a://shop/main/deletes` WHERE id = {}')"
    under_way = [driver.start(delete.format(number)) for number, driver in enumerate(drivers)]
    errors = [wait()["error"] for wait in under_way]
    lost = [number for number, error in enumerate(errors) if error]
    assert len(lost) == meeting.refused == 1
    assert re.search(r"\[DELTA_CONCURRENT_[\w.]+\]", errors[lost[0]])
    assert numbers("s3://shop/main/deletes", options) == sorted({*range(4)} - {1 - lost[0]})


def test_spark_and_delta_rs_append_at_once(
    shop: Repository, drivers: list[Driver], options: dict[str, str], meeting: Meeting
) -> None:
    drivers[0].run("spark.range(1).write.format('delta').save('s3a://shop/main/both')")
    rows = DeltaTable("s3://shop/main/both", storage_options=options).to_pyarrow_table()
    meeting.at(1)
    wait = drivers[0].start("spark.range(1, 2).write.format('delta').mode('append').save('s3a://shop/main/both')")
    write_deltalake("s3://shop/main/both", rows, mode="append", storage_options=options)
    assert wait()["error"] == ""
    assert meeting.refused == 1
    assert numbers("s3://shop/main/both", options) == [0, 0, 1]
    assert drivers[1].run("value = spark.read.format('delta').load('s3a://shop/main/both').count()") == 3
