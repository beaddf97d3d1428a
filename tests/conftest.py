"""Fixtures for all tests."""

import gc
import os
from pathlib import Path

import hypothesis
import pytest
from support.budget import examples

from lakeops.machine import cores

pytest_plugins = ["lakeops.testing.fixtures", "services.s3", "services.cloud"]

# CI judges a change, so it tries the same examples each time; everywhere else new ones are tried. How long an example
# takes says more about the machine than about the code.
# Tests that damage a store want to see what is in it. Those of the disk cache switch it on.
os.environ["LAKEOPS_DISK_CACHE_MB"] = "0"

# Killed processes lose nothing without a wait for the disk, only machines do.
os.environ["LAKEOPS_FSYNC"] = "false"

quick = hypothesis.settings(max_examples=examples(30), deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", quick, derandomize=True)
hypothesis.settings.register_profile("default", quick)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


LONG_FILES = (
    "airflow/test_end_to_end.py", "spark/test_cluster.py", "airflow/test_every_operator.py", "spark/test_tables.py",
    "airflow/test_publish.py", "harness/test_mixed.py", "spark/test_as_spark_reads.py", "airflow/test_gc_dag.py",
    "airflow/test_admin.py", "tables/test_iceberg.py", "fs/test_writing.py", "gateway/test_limits.py",
    "airflow/test_spark_tasks.py", "spark/test_connect.py", "harness/test_killed_workers.py",
    "harness/test_nested.py", "ops/test_gc_interrupted.py", "ops/test_turns.py", "cost/test_far.py",
    "ops/test_far.py", "ops/test_links.py", "cli/test_records.py", "mirror/test_crash.py",
    "ops/test_hostile_calls.py", "ops/test_crash.py", "cli/test_hostile.py", "fsck/test_catalog_damage.py",
    "fsck/test_file_damage.py",
)  # fmt: skip
"""Files that take longest. They come first: a worker that begins one last leaves the others with nothing to do."""


def pytest_xdist_auto_num_workers():
    return cores()


def pytest_collection_modifyitems(items):
    ranks = {Path(__file__).parent / name: rank for rank, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


def pytest_collection_finish():
    """Leave what is loaded by now, which is never garbage, out of every later garbage collection."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish():
    """Let the interpreter find it at its end: DuckDB prints what nobody freed."""
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def quick_catalogs():
    """Catalogs of this process cost what tests ask of them; see ``support.quick_catalogs``."""
    from support.quick_catalogs import no_waits_for_the_disk, schema_made_once, statements_compiled_once

    with schema_made_once(), statements_compiled_once(), no_waits_for_the_disk():
        yield


@pytest.fixture(scope="session", autouse=True)
def frozen_objects_are_not_counted():
    """Tasks of Airflow ask whether any are there. Python counts each, in 0.1 s with all tests loaded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "get_freeze_count", lambda: 1)
        yield


@pytest.fixture(autouse=True)
def no_task_of_airflow(request, monkeypatch):
    """Let no test of Airflow before it, in the same process, make a test look like a task: tasks have another lake."""
    if "airflow" not in request.path.parts:
        monkeypatch.delenv("AIRFLOW_CTX_DAG_ID", raising=False)
        monkeypatch.setattr("lakeops.settings._default_connection", lambda: None)


@pytest.fixture(scope="session")
def postgres_socket(tmp_path_factory):
    """The directory of the socket of this run's PostgreSQL server; all workers share one."""
    from services.postgres import postgres_server, server_of_the_run

    if "PYTEST_XDIST_WORKER" in os.environ:
        yield server_of_the_run(tmp_path_factory.getbasetemp().parent)
    else:
        with postgres_server() as socket:
            yield socket


@pytest.fixture
def empty_postgres_url(postgres_socket):
    """The catalog URL of a new database on this run's server."""
    from services.postgres import fresh_database

    with fresh_database(postgres_socket) as url:
        yield url


@pytest.fixture
def clock(lake_clock):
    return lake_clock


@pytest.fixture
def faults(lake_faults):
    return lake_faults


@pytest.fixture
def settings(lake_settings):
    return lake_settings
