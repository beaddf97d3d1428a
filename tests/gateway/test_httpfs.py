"""DuckDB reads a ref through the gateway, by its own extension httpfs. ``make test-engines`` brings both."""

from __future__ import annotations

import json
import os
import subprocess
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from services import engines
from support.doc_pages import blocks

from lakeops import Lake, Settings
from lakeops.gateway.server import serving

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]

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


def test_the_lines_of_the_page_read_a_tag(tmp_path: Path) -> None:
    if "LAKEOPS_TEST_ENGINES" not in os.environ:
        pytest.skip("make test-engines brings DuckDB and httpfs")
    python = engines.python(Path(os.environ["LAKEOPS_TEST_ENGINES"]), "duckdb")
    (block,) = blocks("gateway.md", "httpfs")
    settings = Settings.model_construct(home=tmp_path / "home", fsync=False, committer="tester")
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
        names = {
            "127.0.0.1:9010": options["aws_endpoint_url"].removeprefix("http://"),
            "'KEY'": f"'{options['aws_access_key_id']}'",
            "'SECRET'": f"'{options['aws_secret_access_key']}'",
        }
        lines = block.text
        for name, value in names.items():
            assert name in lines
            lines = lines.replace(name, value)

        def rows(text: str) -> list[list[int]]:
            done = subprocess.run([str(python), "-c", PROGRAM], input=text, capture_output=True, text=True, check=True)
            return sorted(json.loads(done.stdout))

        assert rows(lines) == [[1, 21], [2, 41]]
        assert rows(lines.replace("/v1/", "/main/")) == [[1, 11], [2, 41]]
