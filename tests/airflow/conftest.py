"""An Airflow of the tests' own: its settings are in place before anything imports Airflow."""

import json
import os
import sys
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.version import Version

from lakeops import Lake, Split

ROOT = Path(__file__).resolve().parents[2]
HOME = tempfile.TemporaryDirectory(prefix="lakeops-airflow-")

os.environ.update(
    AIRFLOW_HOME=HOME.name,
    AIRFLOW__API_AUTH__JWT_SECRET="a secret of the tests' own, long enough to sign with; it signs nothing that matters",
    AIRFLOW__API__BASE_URL="http://127.0.0.1:8080",
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__CORE__DAGS_FOLDER=str(ROOT / "dags"),
    AIRFLOW__CORE__PLUGINS_FOLDER=str(ROOT / "plugins"),
    AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{HOME.name}/airflow.db",
    AIRFLOW__LOGGING__LOGGING_LEVEL="WARNING",
)

if find_spec("airflow") is None:
    collect_ignore = [str(one) for one in Path(__file__).parent.glob("test_*.py") if one.name != "test_compose.py"]

THEIRS = (
    "ignore:Using `httpx` with `starlette.testclient` is deprecated",
    "ignore:GitWildMatchPattern:DeprecationWarning",
)
"""Warnings that Airflow and its web framework raise about themselves."""


@pytest.hookimpl(tryfirst=True)  # xdist reads the group after this
def pytest_collection_modifyitems(items):
    """Airflow's own warnings are not ours to fix; everything else stays an error. One worker has all tests of Airflow.

    A test marked ``needs_airflow("3.3")`` is skipped with an older one.
    """
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("airflow"))
            for warning in THEIRS:
                item.add_marker(pytest.mark.filterwarnings(warning))
            for marker in item.iter_markers("needs_airflow"):
                if Version(found := version("apache-airflow-core")) < Version(marker.args[0]):
                    item.add_marker(pytest.mark.skip(reason=f"needs Airflow {marker.args[0]}, and this is {found}"))


@pytest.fixture(scope="session")
def airflow_database():
    """A fresh metadata database for DAGs that are really run."""
    import jsonschema
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.utils import db

    db.initdb()
    DagBundlesManager().sync_bundles_to_db()
    if Version(version("apache-airflow-core")) < Version("3.3"):
        from airflow.sdk.execution_time import supervisor

        # Before 3.3, dag.test builds the API that a task talks to anew for each task: seconds of CPU.
        supervisor.in_process_api_server = cache(supervisor.in_process_api_server)

    # Airflow looks at each parameter of a DAG many times, and each time at its schema, which is the longest part.
    check, checked = jsonschema.Draft202012Validator.check_schema, set()

    def check_once(schema, *given):
        if (text := json.dumps(schema, default=repr)) not in checked:
            check(schema, *given)
            checked.add(text)

    jsonschema.Draft202012Validator.check_schema = check_once


@pytest.fixture(scope="module")
def web(airflow_database):
    """Airflow's web server with the plugins of ``plugins/``, without a socket."""
    from airflow.api_fastapi.app import create_app
    from fastapi.testclient import TestClient

    app = create_app(apps="core")
    with TestClient(app, base_url="http://127.0.0.1:8080") as client:
        client.server = app
        yield client


@pytest.fixture
def home(tmp_path, monkeypatch):
    home = tmp_path / "lake"
    for name, value in {"HOME": str(home), "FSYNC": "false", "COMMITTER": "ada"}.items():
        monkeypatch.setenv(f"LAKEOPS_{name}", value)
    return home


@pytest.fixture
def lake(home):
    with Lake.open() as opened:
        yield opened


@pytest.fixture
def split(request):
    """How the repository is cut into ranges; modules that show changes ask for many as well."""
    found: Split = getattr(request, "param", Split())
    return found


@pytest.fixture
def flights(lake, split):
    return lake.create_repository("flights", split=split)


@pytest.fixture
def asked(monkeypatch):
    """Pages show what Airflow was asked to show to a person."""
    monkeypatch.delitem(sys.modules, "lakeops.airflow.plugin", raising=False)
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(
        "airflow.providers.standard.operators.hitl.upsert_hitl_detail", lambda **kwargs: found.append(kwargs)
    )
    return found


@dataclass(frozen=True)
class Running:
    """Runs an operator as one task of one DAG run would, without an Airflow around it."""

    run_id: str = "run-1"
    dag_id: str = "dag"
    xcoms: dict[str, Any] = field(default_factory=dict)
    events: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    state: Any = None

    def __call__(self, operator, *, try_number=1, map_index=-1):
        task = SimpleNamespace(
            dag_id=self.dag_id,
            run_id=self.run_id,
            task_id=operator.task_id,
            map_index=map_index,
            try_number=try_number,
            log_url="http://127.0.0.1:8080/dags/dag/runs/run-1/tasks/task?try_number=1",
            xcom_push=lambda *, key, value: self.xcoms.update({key: value}),
            **self.more,
        )
        from airflow.sdk.execution_time.context import OutletEventAccessors

        found = operator.execute(
            {
                "ti": task,
                "task": operator,
                "outlet_events": self.events.setdefault(operator.task_id, OutletEventAccessors()),
                "logical_date": datetime(2013, 1, 1, tzinfo=UTC),
                "task_state_store": self.state,
            }
        )
        assert isinstance(found, dict)
        return found


@pytest.fixture
def run():
    return Running()


@pytest.fixture
def other_run():
    return Running(run_id="run-2")


@pytest.fixture
def first_parents(flights):
    """Messages of a branch's first-parent history, newest first, without the repository's initial commit."""
    return lambda branch: [commit.message for commit in flights.log(branch, first_parent=True)][:-1]
