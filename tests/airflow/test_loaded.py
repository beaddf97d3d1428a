"""Tests of imports: a task loads its verb's modules, and nothing big that the verb does not use."""

import os
import subprocess
import sys

import pytest

READ = """
import sys
from airflow.sdk import DAG
before = set(sys.modules)
import lakeops.airflow.publish
print("READ", *sorted(set(sys.modules) - before))
"""


@pytest.mark.needs_airflow("3.3")
def test_reading_a_dag_loads_the_provider_and_the_model_alone(tmp_path):
    """Each task reads its DAG first, so this comes with every task."""
    done = subprocess.run([sys.executable, "-c", READ], capture_output=True, text=True, check=True, cwd=tmp_path)
    loaded = next(line.split()[1:] for line in done.stdout.splitlines() if line.startswith("READ"))
    ours = [name for name in loaded if name.partition(".")[0] == "lakeops"]
    rooms = {".".join(name.split(".")[:2]) for name in ours}
    assert (
        {"lakeops.airflow"}
        < rooms
        <= {"lakeops", "lakeops.airflow", "lakeops.machine", "lakeops.model", "lakeops.version"}
    )
    assert len(ours) <= 24


SMALL = """
import gc, sys
from types import SimpleNamespace
from airflow.sdk.execution_time.context import OutletEventAccessors
from lakeops.airflow import operators as o

class Branch(o.LakeopsCreateBranchOperator):
    def run_verb(self, repository, run):
        self.frozen = gc.get_freeze_count()
        return super().run_verb(repository, run)

instance = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=1)
task = Branch(task_id="t", repo="flights", branch="own")
task.execute({"ti": instance, "task": task, "outlet_events": OutletEventAccessors(), "logical_date": None})
print(task.frozen > 10_000, gc.get_freeze_count(), *(name for name in ("numpy", "pyarrow") if name in sys.modules))
"""


def test_a_task_of_the_catalog_alone_loads_no_arrow_and_searches_no_garbage_in_airflow(tmp_path):
    environment = {**os.environ, "LAKEOPS_HOME": str(tmp_path / "lake"), "LAKEOPS_FSYNC": "false"}
    make = "from lakeops import Lake; Lake.open().create_repository('flights')"
    for script in (make, SMALL):
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=False, env=environment, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-2:] == ["True", "0"]


PRELOAD = """
import sys
from airflow.jobs.job import Job
from airflow.listeners.listener import get_listener_manager
from airflow.sdk.execution_time.task_runner import TaskRunnerMarker

NAMES = ("lakeops.lake", "lakeops.catalog.refs", "lakeops.ops.commit", "lakeops.airflow.operators", "pyarrow")
get_listener_manager().hook.on_starting(component=TaskRunnerMarker())
print("TASK", *(name in sys.modules for name in NAMES))
Job()
print("SCHEDULER", *(name in sys.modules for name in NAMES), *(name in sys.modules for name in ("obstore", "boto3")))
"""


def test_a_scheduler_imports_lakeops_before_it_forks_tasks(tmp_path):
    """Neither client of a bucket is loaded: obstore does not survive a fork."""
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__LOAD_EXAMPLES": "false"}
    done = subprocess.run(
        [sys.executable, "-c", PRELOAD], capture_output=True, text=True, check=False, env=environment, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    said = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line.startswith(("TASK", "SCHE"))}
    assert said == {"TASK": ["False"] * 5, "SCHEDULER": ["True"] * 5 + ["False"] * 2}
