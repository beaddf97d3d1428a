"""Tests of the base of tasks: arguments are declared once, and a task asks the catalog as often as it must."""

import inspect
from contextlib import contextmanager

import pytest

sdk = pytest.importorskip("airflow.sdk")

from lakeops.airflow.approval import LakeopsApprovalOperator  # noqa: E402
from lakeops.airflow.operators import (  # noqa: E402
    LakeopsCommitOperator,
    LakeopsCreateBranchOperator,
    LakeopsMergeOperator,
    LakeopsRevertOperator,
)
from lakeops.airflow.sensors import LakeopsObjectSensor  # noqa: E402
from lakeops.airflow.task import LakeopsTask  # noqa: E402
from lakeops.catalog.sqlite import Sqlite  # noqa: E402
from lakeops.model.errors import InvalidInput  # noqa: E402


# --- arguments ---------------------------------------------------------------------------------------------------
def test_the_signature_shows_every_argument_and_its_default():
    shown = {
        name: parameter.default
        for kind in reversed(LakeopsCommitOperator.__mro__)
        if kind.__module__.startswith("lakeops.")
        for name, parameter in inspect.signature(kind.__init__).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    assert shown == {
        "repo": None,
        "lakeops_conn_id": "lakeops_default",
        "branch": inspect.Parameter.empty,
        "message": inspect.Parameter.empty,
        "metadata": None,
        "on_empty": "succeed",
        "checks": (),
    }


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (LakeopsCommitOperator, {"branch": "dev"}, "missing keyword argument 'message'"),
        (LakeopsCommitOperator, {"branch": "dev", "message": "m", "mesage": "m"}, "mesage"),
        (LakeopsObjectSensor, {"ref": "main"}, "missing keyword argument 'path'"),
        (LakeopsApprovalOperator, {}, "missing keyword argument 'source'"),
    ],
)
def test_a_call_that_cannot_be_right_is_refused_when_the_dag_is_read(kind, arguments, message):
    with pytest.raises(TypeError, match=message):
        kind(task_id="task", **arguments)


def test_default_arguments_of_a_dag_count_for_every_kind_of_task():
    with sdk.DAG("defaults", schedule=None, default_args={"repo": "flights", "branch": "dev", "retries": 4}):
        tasks = [
            LakeopsCommitOperator(task_id="commit", message="m"),
            LakeopsRevertOperator(task_id="revert", ref="main", repo="own"),
            LakeopsObjectSensor(task_id="wait", ref="main", path="a"),
            LakeopsApprovalOperator(task_id="ask", source="dev"),
        ]
    assert [task.repo for task in tasks] == ["flights", "own", "flights", "flights"]
    assert [task.branch for task in tasks[:2]] == ["dev", "dev"]
    assert {task.retries for task in tasks} == {4}


def test_a_class_of_ones_own_adds_arguments_as_any_operator_does():
    class Loud(LakeopsMergeOperator):
        template_fields = (*LakeopsMergeOperator.template_fields, "word")

        def __init__(self, *, word, times=2, message="{{ ds }}", **kwargs):
            super().__init__(message=message, **kwargs)
            self.word = word
            self.times = times

    task = Loud(task_id="task", source="dev", word="{{ ds }}")
    assert (task.word, task.times, task.message, task.destination) == ("{{ ds }}", 2, "{{ ds }}", None)
    task.render_template_fields({"ds": "2013-01-01"})
    assert (task.word, task.message) == ("2013-01-01", "2013-01-01")
    task.check_values()
    task.word = ""
    with pytest.raises(InvalidInput, match="word must not be empty"):
        task.check_values()

    class Grown(LakeopsCreateBranchOperator):
        def __init__(self, *, day, **kwargs):
            super().__init__(branch=f"day-{day}", **kwargs)
            self.day = day

    grown = Grown(task_id="task", day="1", source="main")
    assert (grown.branch, grown.source, grown.day) == ("day-1", "main", "1")
    assert issubclass(Grown, LakeopsTask)


# --- trips to the catalog ----------------------------------------------------------------------------------------
@contextmanager
def transactions(monkeypatch):
    """Collects the transactions of a block: for each, whether it may write."""
    seen: list[bool] = []
    begin = Sqlite.begin

    def counted(self, conn, *, write):
        seen.append(write)
        begin(self, conn, write=write)

    with monkeypatch.context() as patch:
        patch.setattr(Sqlite, "begin", counted)
        yield seen


def test_a_commit_task_asks_little_beside_the_commit(flights, run, monkeypatch):
    branch = flights.create_branch("dev")
    branch.put("a", b"1")
    with transactions(monkeypatch) as core:
        branch.commit("by hand", idempotency_key="by hand")
    branch.put("b", b"1")
    with transactions(monkeypatch) as task:
        run(LakeopsCommitOperator(task_id="commit", repo="flights", branch="dev", message="load"))
    # Open the lake, find the repository and the branch, read its head before and after, and both sides for the event.
    assert len(task) - len(core) <= 6
    assert sum(task) == sum(core)
