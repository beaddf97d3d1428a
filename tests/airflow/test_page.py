"""Tests run what pages show of Airflow as it is printed: commands by Airflow's own parser, DAGs by ``dag.test``."""

import inspect
import os
import re
import shlex

import pandas as pd
import pytest

from lakeops.fs import LakeopsFileSystem

sdk = pytest.importorskip("airflow.sdk")

from airflow.providers.standard.operators.bash import BashOperator  # noqa: E402
from support.dags import known, states  # noqa: E402
from support.doc_pages import DOCS, blocks, first_cells  # noqa: E402

from lakeops.airflow import approval, operators, sensors  # noqa: E402
from lakeops.airflow.hook import read_fields  # noqa: E402
from lakeops.airflow.publish import WriteAuditPublish  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("airflow_database"),
    pytest.mark.needs_airflow("3.3"),
    pytest.mark.filterwarnings("ignore:UPath 'lakefs' filesystem not explicitly implemented:UserWarning"),
]


BLOCKS = {
    "a dag": ("README.md", "from airflow.sdk import DAG"),
    "the block": ("airflow.md", "from lakeops.airflow.publish"),
    "connect": ("airflow.md", "airflow connections add"),
    "check": ("airflow.md", "airflow lakeops connections"),
    "writers": ("airflow.md", "@publish.output"),
    "audits": ("airflow.md", "publish.sql("),
    "sensors": ("airflow.md", "from lakeops.airflow.sensors"),
    "urls": ("airflow.md", "import pandas"),
    "assets": ("airflow.md", "from airflow.sdk import dag"),
    "ready-made": ("airflow.md", "from lakeops.airflow.dags import lakeops_gc"),
    "made": ("airflow.md", "from lakeops.airflow.dags import admin_dags"),
    "pool": ("airflow.md", "airflow pools"),
    "an operator": ("airflow.md", "from lakeops.airflow.operators"),
    "hook": ("provider.md", "from lakeops.airflow.hook"),
    "paths": ("read.md", "from airflow.sdk import ObjectStoragePath"),
}
"""The blocks of the lane, each by its page and how it begins."""


def shown(name):
    page, start = BLOCKS[name]
    (found,) = (block for block in blocks(page, "airflow") if block.text.startswith(start))
    return found


def test_these_are_all_blocks_of_the_lane():
    pages = {page for page, _ in BLOCKS.values()}
    assert sum(len(blocks(page, "airflow")) for page in pages) == len({shown(name).text for name in BLOCKS})


def run(block, **names):
    """The names that a block of Python leaves."""
    exec(compile(block.text, "<page>", "exec"), names)
    return names


def test_the_block_publishes(flights):
    days: list[str] = []

    def read(day):
        days.append(day)
        return pd.DataFrame({"id": [1]})

    with sdk.DAG("page_publish", schedule=None) as dag:
        run(shown("the block"), read=read)
    assert set(states(known(dag).test()).values()) == {"success"}
    (path,) = (entry.path for entry in flights.ref("main@").list())
    assert path == f"flights/day={days[0]}/part-0.parquet"


def test_dags_are_built(flights):
    with sdk.DAG("page_built", schedule=None) as dag, WriteAuditPublish(repo="flights", message="x") as publish:
        found = run(shown("writers"), publish=publish, BashOperator=BashOperator)
        found["flights"]()
        found["tables"].expand(table=["a", "b"])
        run(shown("audits"), publish=publish, task=sdk.task, BashOperator=BashOperator)
    made = {"flights", "tables", "job", "no_negatives", "expectations", "dbt"}
    assert {f"publish.{name}" for name in made} <= dag.task_dict.keys()
    with sdk.DAG("page_tasks", schedule=None) as dag:
        run(shown("sensors"))
        run(shown("an operator"))
    assert {*dag.task_dict} == {"fresh", "day", "merge"}
    with_asset = run(shown("assets"))
    assert with_asset["refresh"]().schedule
    ready = run(shown("ready-made"))
    made = run(shown("made"))
    ids = [ready["lakeops_gc"].dag_id, ready["lakeops_mirror"].dag_id, made["nightly"].dag_id, made["checks"].dag_id]
    assert ids[:3] == ["lakeops_gc", "lakeops_mirror", "nightly_gc"]
    readme = run(shown("a dag"), extract_orders=None, find_faults=None)
    assert readme["publish"].branch


def test_files_and_the_hook(lake, flights, monkeypatch):
    for name in ("PRODUCTION", "LAKEOPS_DEFAULT"):
        monkeypatch.setenv(
            f"AIRFLOW_CONN_{name}", f'{{"conn_type": "lakeops", "host": "{os.environ["LAKEOPS_HOME"]}"}}'
        )
    monkeypatch.setattr(LakeopsFileSystem, "_opened", {})
    monkeypatch.setattr("airflow.sdk.io.store._STORE_CACHE", {})
    flights.create_branch("load", source="main")
    run(shown("hook"))
    with flights.branch("main").output("flights/day=2013-01-01/") as url:
        pd.DataFrame({"id": [1]}).to_parquet(url.file("part-0.parquet"))
    run(shown("urls"))
    shop = lake.create_repository("shop").branch("main")
    shop.put("customers.csv", b"id\n")
    assert run(shown("paths"))["text"] == "id\n"


@pytest.mark.filterwarnings("ignore:ProvidersManager.hooks is deprecated")  # by Airflow's own command
def test_commands(flights, monkeypatch, capsys):
    from airflow.cli.cli_parser import get_parser
    from airflow.models import Connection, Pool
    from airflow.utils.session import create_session
    from sqlalchemy import delete, select

    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "")
    monkeypatch.setenv("AIRFLOW_CONN_LAKEOPS_DEFAULT", '{"conn_type": "lakeops"}')
    for name in ("check", "pool", "connect"):
        given = get_parser().parse_args(shlex.split(shown(name).text)[1:])
        given.func(given)
    capsys.readouterr()
    assert Pool.get_pool("lakeops_spark").slots == 1
    mine = Connection.conn_id == "lakeops_default"
    with create_session() as session:
        made = session.scalars(select(Connection).where(mine)).one()
        kind, fields = made.conn_type, read_fields(made)
        session.execute(delete(Connection).where(mine))  # other tests have no such connection
    assert (kind, fields["database_url"]) == ("lakeops", "postgresql+psycopg://db/lakeops")


def test_the_reference_has_every_argument():
    page = (DOCS / "provider.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`(Lakeops\w+)\(.*?) \| ", page, re.MULTILINE)
    assert len(rows) > 30
    for cell, name in rows:
        made = next(getattr(room, name) for room in (operators, sensors, approval) if hasattr(room, name))
        own = {*inspect.signature(made.__init__).parameters} - {"self", "kwargs", "shown"}
        assert own - {*re.findall(r"\w+", cell)} == set(), name
    arguments = {*inspect.signature(WriteAuditPublish.__init__).parameters} - {"self"}
    block = page.split("## The block")[1].split("\n## ")[0]
    assert arguments - {*first_cells(block)} == set()
