"""DuckDB, by its own extension httpfs, and Spark SQL read a ref. ``make test-engines`` brings them."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from services import engines
from support.doc_pages import blocks

from lakeops import Lake, Settings
from lakeops.gateway.server import serving

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


@pytest.fixture(scope="module")
def place() -> Path:
    if "LAKEOPS_TEST_ENGINES" not in os.environ:
        pytest.skip("make test-engines brings DuckDB with httpfs, and Spark with S3A")
    return Path(os.environ["LAKEOPS_TEST_ENGINES"])


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What stands in the page's lines, and what the gateway of a small repository has in its place."""
    settings = Settings.model_construct(home=tmp_path_factory.mktemp("home"), fsync=False, committer="tester")
    with Lake.open(settings=settings) as lake, serving(lake) as options:
        repo = lake.create_repository("shop")
        main = repo.branch("main")
        for day in (1, 2):
            for part in (0, 1):
                main.put(f"orders/day={day}/part-{part}.parquet", _parquet(10 * day + part))
        main.commit("Orders")
        repo.create_tag("v1", "main")
        main.delete("orders/day=1/part-0.parquet")
        main.commit("One less")
        yield {
            "127.0.0.1:9010": options["aws_endpoint_url"].removeprefix("http://"),
            "KEY": options["aws_access_key_id"],
            "SECRET": options["aws_secret_access_key"],
        }


def _lines(lane: str, names: dict[str, str]) -> str:
    (block,) = blocks("gateway.md", lane)
    lines = block.text
    for name, value in names.items():
        assert re.search(rf"(?<=['=/]){name}\b", lines)
        lines = re.sub(rf"(?<=['=/]){name}\b", value, lines)
    return lines


def test_duckdb_reads_a_tag_and_a_branch(place: Path, names: dict[str, str]) -> None:
    def rows(text: str) -> list[list[int]]:
        command = [str(engines.python(place, "duckdb")), "-c", PROGRAM]
        return sorted(
            json.loads(subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout)
        )

    lines = _lines("httpfs", names)
    assert rows(lines) == [[1, 21], [2, 41]]
    assert rows(lines.replace("/v1/", "/main/")) == [[1, 11], [2, 41]]


def test_spark_sql_reads_a_tag_and_a_branch(place: Path, names: dict[str, str], tmp_path: Path) -> None:
    """The connector comes from where ``make test-engines`` has put it, not by ``--packages``."""
    lines, count = re.subn(
        r"--packages \S+", f"--driver-class-path '{engines.class_path(place)}'", _lines("sql", names)
    )
    assert count == 1
    environment = {name: value for name, value in os.environ.items() if name not in {"SPARK_HOME", "PYTHONPATH"}}
    environment |= {"PATH": f"{engines.python(place).parent}:{os.environ['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1"}

    def rows(text: str) -> list[str]:
        command = ["bash", "-c", text.replace("spark-sql ", "spark-sql --master 'local[1]' ", 1)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=tmp_path)
        return sorted(done.stdout.split("\n"))[-2:]

    assert rows(lines) == ["1\t21", "2\t41"]
    assert rows(lines.replace("/v1/", "/main/")) == ["1\t11", "2\t41"]
