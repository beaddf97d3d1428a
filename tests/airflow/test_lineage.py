"""Lineage: what each operator tells of what it read and wrote, with OpenLineage's provider and without."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lakeops.airflow import operators
from lakeops.airflow.task import LineageDataset

Run = Callable[..., dict[str, Any]]


def traced(run, name, **arguments):
    task = getattr(operators, f"Lakeops{name}Operator")(task_id=name.lower(), repo="flights", **arguments)
    record = run(task)
    return task, record


def test_commits_and_merges_tell_the_versions_they_read_and_wrote(flights, run):
    flights.create_branch("dev").put("raw/a", b"1")
    trace, commit = traced(run, "Commit", branch="dev", message="load")
    assert (trace.read, trace.written) == ((), (LineageDataset("lakefs://flights", "dev", commit["id"]),))
    trace, merge = traced(run, "Merge", source="dev")
    assert trace.read == (LineageDataset("lakefs://flights", "dev", commit["id"]),)
    assert trace.written == (LineageDataset("lakefs://flights", "main", merge["reference"]),)
    trace, _ = traced(run, "Merge", source="dev~1")
    assert (trace.read, trace.written) == ((), ()), "nothing was merged"
    trace, revert = traced(run, "Revert", ref=commit["id"], branch="dev")
    assert trace.read == (LineageDataset("lakefs://flights", commit["id"], commit["id"]),)
    assert trace.written == (LineageDataset("lakefs://flights", "dev", revert["id"]),)
    trace, _ = traced(run, "Diff", left="main", right="dev", prefix="raw/")
    assert [place.name for place in trace.read] == ["main/raw", "dev/raw"]


def test_what_comes_from_outside_is_named_as_openlineage_names_it(flights, run, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "a").write_text("1")
    trace, made = traced(run, "Import", source=f"file://{source}", prefix="raw/")
    assert trace.read == (LineageDataset("file", str(source)),)
    assert trace.written == (LineageDataset("lakefs://flights", "main/raw", made["id"]),)
    trace, _ = traced(run, "Upload", source=str(source), path="up", branch="main")
    assert trace.read == (LineageDataset("file", str(source)),)
    assert trace.written == (LineageDataset("lakefs://flights", "main/up"),)
    assert LineageDataset.outside("s3://bucket/raw/day=1/") == LineageDataset("s3://bucket", "raw/day=1")
    assert LineageDataset.outside("s3://bucket") == LineageDataset("s3://bucket", "/")


def test_without_openlineage_nothing_is_told_and_nothing_breaks(flights, run, monkeypatch):
    flights.create_branch("dev").put("raw/a", b"1")
    monkeypatch.setitem(sys.modules, "airflow.providers.openlineage.extractors", None)
    task, _ = traced(run, "Commit", branch="dev", message="load")
    assert task.get_openlineage_facets_on_complete(None) is None


RUN = """
from airflow import sdk
from support.dags import known, states
from lakeops.airflow.operators import LakeopsCommitOperator, LakeopsMergeOperator
with sdk.DAG("told", schedule=None) as dag:
    commit = LakeopsCommitOperator(task_id="commit", repo="flights", branch="dev", message="load")
    commit >> LakeopsMergeOperator(task_id="merge", repo="flights", source="dev")
assert set(states(known(dag).test()).values()) == {"success"}
"""


def test_the_events_of_a_run_have_commit_ids(flights, airflow_database, tmp_path):
    """OpenLineage's own listener writes them, in a process whose settings turn it on."""
    flights.create_branch("dev").put("raw/a", b"1")
    transport = {"type": "file", "log_file_path": str(tmp_path / "events"), "append": True}
    environment = {
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport),
        "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
        "OPENLINEAGE_DISABLED": "false",
    }
    subprocess.run([sys.executable, "-c", RUN], env=os.environ | environment, check=True, capture_output=True)
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    told = {
        event["job"]["name"]: {
            (kind, place["name"], place["facets"]["version"]["datasetVersion"])
            for kind in ("inputs", "outputs")
            for place in event[kind]
        }
        for event in events
        if event["eventType"] == "COMPLETE" and event["job"]["facets"]["jobType"]["jobType"] == "TASK"
    }
    dev, main = (flights.branch(name).commit_id for name in ("dev", "main"))
    assert told == {
        "told.commit": {("outputs", "dev", dev)},
        "told.merge": {("inputs", "dev", dev), ("outputs", "main", main)},
    }


def test_operators_import_nothing_of_openlineage():
    script = "import sys, lakeops.airflow.operators; print(*(m for m in sys.modules if m.startswith('openlineage')))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
