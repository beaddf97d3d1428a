"""How failures are logged: mistakes by their message, anything else with its traceback."""

import io
import json
from typing import Any

import pytest
import structlog
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSensorTimeout

from lakeops.airflow.compat import LakeopsFailure, LakeopsTimeout, without_traceback
from lakeops.airflow.task import failing_at_once
from lakeops.model.errors import Corrupted, InvalidInput, MergeConflict, PreconditionFailed, RefNotFound, Transient


@pytest.fixture
def log():
    """The lines of a logger that was made, and used, before anything failed, as Airflow's is."""
    before = structlog.get_config()
    written = io.StringIO()
    tracebacks = structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(use_rich=False))
    structlog.configure(
        processors=[structlog.processors.add_log_level, tracebacks, structlog.processors.JSONRenderer()],
        logger_factory=structlog.PrintLoggerFactory(written),
        wrapper_class=structlog.make_filtering_bound_logger(0),
        cache_logger_on_first_use=True,
    )
    yield written
    structlog.configure(**before)


def logged(error, log):
    """How an error is logged that a task's work raises."""
    logger = structlog.get_logger("task")
    logger.info("begins")
    try:
        with failing_at_once():
            raise error
    except Exception:
        logger.exception("Task failed")
    found: dict[str, Any] = json.loads(log.getvalue().splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (InvalidInput("no repository"), "invalid_input: no repository"),
        (RefNotFound("no 'x'"), "ref_not_found: no 'x'"),
        (PreconditionFailed("read-only", kind="read_only_repository"), "read_only_repository: read-only"),
        (MergeConflict("dev", "main", ["a", "b"]), "'dev' conflicts with 'main' on 2 paths: a, b"),
    ],
)
def test_a_mistake_is_its_message(log, error, said):
    line = logged(error, log)
    assert line["event"].startswith(f"Task failed: {said}")
    assert line.keys() == {"event", "level"}
    assert line["level"] == "error"


@pytest.mark.parametrize("kind", [LakeopsFailure, LakeopsTimeout])
def test_so_is_a_failure_of_a_task_of_ours(log, kind):
    assert logged(kind("waited 5 s in vain"), log) == {"event": "Task failed: waited 5 s in vain", "level": "error"}


@pytest.mark.parametrize("kind", ["catalog_unavailable", "store_unavailable", "branch_moved"])
def test_so_is_an_error_that_may_pass(log, kind):
    line = logged(Transient("no answer", kind=kind), log)
    assert line == {"event": "Task failed: no answer", "level": "error"}


@pytest.mark.parametrize("error", [Corrupted("damaged"), ZeroDivisionError("mine")])
def test_anything_else_has_its_traceback(log, error):
    logged(InvalidInput("first"), log)
    line = logged(error, log)
    assert line["event"] == "Task failed"
    assert line["exception"][-1]["frames"]


def test_the_processor_is_put_in_once(log):
    for _ in range(2):
        logged(InvalidInput("again"), log)
    assert structlog.get_config()["processors"].count(without_traceback) == 1


def test_processors_that_cannot_be_changed_stay(log):
    structlog.configure(processors=tuple(structlog.get_config()["processors"]))
    assert logged(InvalidInput("first"), log)["exception"]


def test_airflow_knows_what_they_are():
    assert issubclass(LakeopsFailure, AirflowFailException)
    assert issubclass(LakeopsTimeout, AirflowSensorTimeout)
