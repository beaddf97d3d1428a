"""Operators: each verb once, however often its task runs, is killed or is cleared."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.scenes import open_faulty

from lakeops import Settings
from lakeops.model.errors import BranchMoved
from lakeops.model.ids import Origin
from lakeops.testing import Faults

airflow = pytest.importorskip("airflow.sdk")

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException  # noqa: E402

from lakeops.airflow import idempotent, operators  # noqa: E402
from lakeops.airflow.hook import LakeopsHook  # noqa: E402
from lakeops.airflow.operators import (  # noqa: E402
    LakeopsCommitOperator,
    LakeopsCreateBranchOperator,
    LakeopsDeleteBranchOperator,
    LakeopsMergeOperator,
    LakeopsMoveTagOperator,
)
from lakeops.airflow.previews import MergeOutcome, preview  # noqa: E402

Messages = Callable[[str], list[str]]
Run = Callable[..., dict[str, Any]]


def create(**kwargs):
    return LakeopsCreateBranchOperator(**{"task_id": "create", "repo": "flights", "branch": "dev", **kwargs})


def commit(**kwargs):
    return LakeopsCommitOperator(
        **{"task_id": "commit", "repo": "flights", "branch": "dev", "message": "load", **kwargs}
    )


def merge(**kwargs):
    return LakeopsMergeOperator(
        **{"task_id": "merge", "repo": "flights", "source": "dev", "message": "publish", **kwargs}
    )


def delete(**kwargs):
    return LakeopsDeleteBranchOperator(**{"task_id": "drop", "repo": "flights", "branch": "dev", **kwargs})


# --- run twice ---------------------------------------------------------------------------------------------------
def test_each_operator_run_twice_works_once(flights, run, first_parents):
    assert run(create()) == run(create()) == {"id": "dev", "commit_id": flights.ref("main").commit_id}
    flights.branch("dev").put("a", b"1")
    made = run(commit(metadata={"rows": "1"}))
    assert run(commit(metadata={"rows": "1"}), try_number=2) == made
    merged = run(merge())
    assert run(merge(), try_number=2) == merged
    assert merged == {
        "reference": flights.ref("main").commit_id,
        "up_to_date": False,
        "summary": {"added": 1, "removed": 0, "changed": 0},
        "source_uncommitted": False,
    }
    assert run(delete()) == {"id": "dev", "commit_id": made["id"], "deleted": True}
    assert run(delete()) == {"id": "dev", "commit_id": None, "deleted": False}
    assert first_parents("main") == ["publish"]
    assert flights.ref("main").read("a") == b"1"


def test_a_tag_that_was_moved_is_moved_once_although_its_ref_went_on(flights, run):
    old = flights.create_tag("latest", "main").commit_id
    flights.branch("main").put("a", b"1")
    new = flights.branch("main").commit("a").id
    move = LakeopsMoveTagOperator(task_id="move", repo="flights", tag="latest", ref="main", shown=old)
    assert run(move) == {"id": "latest", "commit_id": new}
    flights.branch("main").commit("later", allow_empty=True)
    assert run(move, try_number=2) == {"id": "latest", "commit_id": new}


def test_a_branch_that_gets_something_at_the_last_moment_stays(flights, run, monkeypatch):
    run(create())
    inner = idempotent.unpublished

    def unpublished(*args):
        found = inner(*args)
        if found is None:
            flights.branch("dev").put("late", b"acknowledged")
        return found

    monkeypatch.setattr(idempotent, "unpublished", unpublished)
    assert run(delete(merged_into="main"))["deleted"] is False
    assert flights.branch("dev").read("late") == b"acknowledged"


def test_a_commit_says_which_task_made_it(flights, run):
    flights.create_branch("dev").put("a", b"1")
    made = run(commit(metadata={"rows": 1, "airflow_run_id": "forged"}), try_number=3, map_index=7)
    assert made == flights.branch("dev").head.to_json()
    assert made["metadata"] == {
        "rows": "1",
        "airflow_dag_id": "dag",
        "airflow_run_id": "run-1",
        "airflow_task_id": "commit",
        "airflow_map_index": "7",
        "airflow_try_number": "3",
        "airflow_logical_date": "2013-01-01T00:00:00+00:00",
        "airflow_link": "http://127.0.0.1:8080/dags/dag/runs/run-1/tasks/task?try_number=1",
        "airflow_start_date": made["metadata"]["airflow_start_date"],
    }


def test_mapped_tasks_and_other_runs_have_keys_of_their_own(flights, run, other_run):
    branch = flights.create_branch("dev")
    made = set()
    for number, (runner, index) in enumerate([(run, -1), (run, 0), (run, 1), (other_run, 1)]):
        branch.put(f"f{number}", b"x")
        made.add(runner(commit(), map_index=index)["id"])
    assert len(made) == 4


# --- killed ------------------------------------------------------------------------------------------------------
def _shown_import(flights, source):
    found = preview(
        "import",
        {"repository": "flights", "branch": "main", "source": source, "prefix": "in"},
        lakeops_conn_id="lakeops_default",
    )
    return {"shown": found.pinned["shown"]}


def _shown_merge(flights, source):
    return {"shown": MergeOutcome.of(flights, "main", "dev").shown}


def _change(flights, branch, metadata=None):
    flights.branch(branch).put("b", branch.encode())
    flights.branch(branch).commit("meanwhile", metadata)


def _conflict(flights, source):
    _change(flights, "main")
    _change(flights, "dev")


def _later_run(flights, source):
    later = {"dag_id": "dag", "task_id": "t", "run_id": "later", "logical_date": "2014-01-01T00:00:00+00:00"}
    _change(flights, "main", Origin({f"airflow_{name}": value for name, value in later.items()}))
    _change(flights, "dev")


MEANWHILE: dict[str, tuple[str, Callable[..., Any], Callable[..., Any]]] = {
    "what was shown was done": ("Import", _shown_import, lambda *_: None),
    "others stage": ("Import", lambda *_: {}, lambda flights, _: flights.branch("main").put("b", b"1")),
    "nothing is at the source": ("Import", lambda *_: {}, lambda _, source: Path(urlsplit(source).path, "a").unlink()),
    "the source is another than was shown": ("Merge", _shown_merge, lambda flights, _: _change(flights, "dev")),
    "both sides go on": ("Merge", lambda *_: {}, _conflict),
    "a later run publishes": ("Merge", lambda *_: {"on_newer": "skip", "strategy": "source-wins"}, _later_run),
}


@pytest.mark.parametrize("case", MEANWHILE)
def test_a_task_that_was_killed_after_it_published_needs_no_more_to_do(flights, run, tmp_path, case):
    """One that is cleared is asked for what is so now."""
    kind, given, meanwhile = MEANWHILE[case]
    source = (tmp_path / "source").as_uri()
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a").write_bytes(b"1")
    flights.create_branch("dev").put("a", b"1")
    flights.branch("dev").commit("a")
    where = {"source": source, "prefix": "in", "branch": "main"} if kind == "Import" else {"source": "dev"}
    task = getattr(operators, f"Lakeops{kind}Operator")(
        task_id="t", repo="flights", retries=1, **where, **given(flights, source)
    )
    since = replace(run, more={"max_tries": 1})
    made = since(task)
    meanwhile(flights, source)
    head = flights.branch("main").commit_id
    assert since(task, try_number=2) == made
    with pytest.raises((AirflowFailException, AirflowSkipException)):
        replace(run, more={"max_tries": 3})(task, try_number=3)
    assert flights.branch("main").commit_id == head


@pytest.mark.parametrize("make", [commit, merge])
def test_a_task_that_is_tried_again_publishes_nothing_that_others_have_begun(flights, run, make):
    since, dev = replace(run, more={"max_tries": 1}), flights.create_branch("dev")
    for path in ("mine", "half of theirs"):
        dev.put(path, b"1")
        if make is merge:
            dev.commit(path)
        made = since(make(retries=1), try_number=1 if path == "mine" else 2)
        head = flights.branch("main" if make is merge else "dev").head
        assert made.get("reference", made.get("id")) == head.id
    assert not flights.ref(head.id).exists("half of theirs")


# --- cleared -----------------------------------------------------------------------------------------------------
def _publish(flights, run, data, try_number):
    run = replace(run, more={"max_tries": try_number - 1})
    run(create(), try_number=try_number)
    flights.branch("dev").put("a", data)
    made = run(commit(), try_number=try_number)
    merged = run(merge(), try_number=try_number)
    run(delete(merged_into="main"), try_number=try_number)
    return made["id"], merged["reference"]


def test_a_cleared_run_with_the_same_data_publishes_nothing_twice(flights, run, first_parents):
    first = _publish(flights, run, b"1", 1)
    assert _publish(flights, run, b"1", 2) == first
    assert first_parents("main") == ["publish"]
    assert [branch.id for branch in flights.branches()] == ["main"]


def test_a_cleared_run_with_new_data_publishes_it_once(flights, run, first_parents):
    first = _publish(flights, run, b"1", 1)
    second = _publish(flights, run, b"2", 2)
    assert _publish(flights, run, b"2", 3) == second != first
    assert first_parents("main") == ["publish", "publish"]
    assert flights.ref("main").read("a") == b"2"


@pytest.mark.parametrize("cleared", [True, False], ids=["cleared", "deleted and made anew"])
@pytest.mark.parametrize("direct", [True, False])
def test_a_run_publishes_again_what_others_have_changed_since(flights, run, other_run, direct, cleared):
    for number, (runner, data) in enumerate([(run, b"1"), (other_run, b"2"), (run, b"1"), (run, b"3"), (run, b"1")]):
        tries = number if cleared else 0
        if direct:
            flights.branch("main").put("a", data)
            replace(runner, more={"max_tries": tries})(commit(branch="main"), try_number=tries + 1)
        else:
            _publish(flights, runner, data, tries + 1)
        assert flights.ref("main@").read("a") == data


def test_a_branch_deleted_before_its_merge_is_built_again(flights, run):
    """The key of the commit that was lost with the branch must not stand for the new one."""
    run(create())
    flights.branch("dev").put("a", b"1")
    run(commit())
    flights.delete_branch("dev")
    assert _publish(flights, run, b"1", 2)[1] == flights.ref("main").commit_id
    assert flights.ref("main").read("a") == b"1"


def test_a_commit_that_was_taken_off_its_branch_is_none_of_a_cleared_task(flights, run):
    run(create())
    flights.branch("dev").put("a", b"1")
    lost = run(commit())["id"]
    flights.branch("dev").move("main", force=True)
    assert run(commit(), try_number=2)["id"] == flights.ref("main").commit_id != lost
    with pytest.raises(AirflowSkipException, match="no changes"):
        run(commit(on_empty="skip"), try_number=3)


def test_a_merge_that_was_taken_off_the_destination_is_none_of_a_cleared_task(flights, run):
    _, lost = _publish(flights, run, b"1", 1)
    head = flights.branch("main").move("main~1", force=True).commit_id
    with pytest.raises(AirflowFailException, match=r"ref_not_found: .*'dev'"):
        run(merge(), try_number=2)
    flights.merge(f"{lost}^2", "main", message="by hand")
    flights.create_branch("dev", source=f"{lost}^2")
    assert run(merge(), try_number=3)["reference"] is None, "the destination has the source, and not by this task"
    assert flights.ref("main~1").commit_id == head


def test_a_merge_whose_source_is_gone_is_found_again(flights, run):
    _, merged = _publish(flights, run, b"1", 1)
    assert run(merge(), try_number=2)["reference"] == merged


# --- creating and deleting branches ------------------------------------------------------------------------------
def test_a_branch_with_somebody_elses_commits_is_not_taken(flights, run, other_run):
    run(create())
    flights.branch("dev").put("a", b"1")
    made = run(commit())
    assert run(create())["commit_id"] == made["id"], "the run's own branch"
    with pytest.raises(AirflowFailException, match=r"already_exists: branch 'dev' exists and holds commit"):
        other_run(create())
    assert other_run(create(exist_ok=True))["commit_id"] == made["id"]


def test_a_name_that_a_tag_has_is_refused(flights, run):
    flights.create_tag("dev", "main")
    for exist_ok in (False, True):
        with pytest.raises(AirflowFailException, match=r"already_exists: tag 'dev' exists already"):
            run(create(exist_ok=exist_ok))


def test_a_branch_that_lags_behind_its_source_is_taken(flights, run):
    head = run(create())["commit_id"]
    flights.branch("main").put("b", b"1")
    flights.branch("main").commit("meanwhile")
    assert run(create())["commit_id"] == head


@pytest.mark.parametrize("committed", [False, True])
def test_a_branch_with_unpublished_work_stays(flights, run, committed):
    branch = flights.create_branch("dev")
    branch.put("a", b"1")
    if committed:
        branch.commit("by hand")
    assert run(delete(merged_into="main")) == {"id": "dev", "commit_id": branch.commit_id, "deleted": False}
    assert flights.branch("dev").read("a") == b"1"
    assert run(delete())["deleted"]


def test_the_default_branch_is_not_deleted(flights, run):
    with pytest.raises(AirflowFailException, match="default_branch"):
        run(delete(branch="main"))
    assert flights.branch("main").id == "main"


# --- nothing to commit -------------------------------------------------------------------------------------------
def test_what_happens_when_there_is_nothing_to_commit(flights, run):
    head = flights.create_branch("dev").commit_id
    assert run(commit())["id"] == head
    with pytest.raises(AirflowSkipException):
        run(commit(on_empty="skip"))
    with pytest.raises(AirflowFailException, match="no_changes"):
        run(commit(on_empty="fail"))
    assert flights.branch("dev").commit_id == head
    empty = run(commit(on_empty="commit"))
    assert empty["parents"] == [head]
    assert run(commit(on_empty="commit"), try_number=2) == empty
    assert flights.branch("dev").commit_id == empty["id"]


def test_no_checks_are_none(flights, run):
    flights.create_branch("dev").put("a", b"1")
    run(commit(checks=None))
    assert run(merge(checks=None, despite_checks=None))["reference"] == flights.ref("main").commit_id


# --- errors ------------------------------------------------------------------------------------------------------
def test_a_conflict_fails_without_retry_and_lists_every_path(flights, run):
    paths = [f"day={number:02}" for number in range(20)]
    for branch in ("dev", "main"):
        if branch != "main":
            flights.create_branch(branch)
        for path in paths:
            flights.branch(branch).put(path, branch.encode())
    for branch in ("dev", "main"):
        flights.branch(branch).commit("mine")
    head = flights.ref("main").commit_id
    with pytest.raises(AirflowFailException) as caught:
        run(merge())
    assert str(caught.value).split("All conflicting paths:\n")[1].splitlines() == paths
    assert flights.ref("main").commit_id == head
    assert run(merge(strategy="source-wins"))["summary"] == {"added": 0, "removed": 0, "changed": 20}


def test_a_transient_error_is_left_to_airflows_retries(flights, run, monkeypatch):
    flights.create_branch("dev").put("a", b"1")
    faults = Faults()
    settings = Settings.load(publish_minutes=0.001)
    monkeypatch.setattr(LakeopsHook, "get_conn", lambda _: open_faulty(settings, faults))

    def moved(_):
        raise BranchMoved("branch 'dev' moved at every try")

    faults.hook("publish", at=None, when="before", action=moved)
    with pytest.raises(BranchMoved):
        run(commit())


# --- what a failed task shows ------------------------------------------------------------------------------------
def test_a_users_mistake_is_one_error_and_names_the_lake(flights, home, run):
    task = LakeopsMergeOperator(task_id="merge", repo="flights", source="gone")
    with pytest.raises(AirflowFailException, match=r"ref_not_found.*'gone'") as failed:
        run(task)
    assert failed.value.__cause__ is None
    assert failed.value.__suppress_context__, "Airflow would show every error that led to this one"
    assert str(home / "catalog.db") in str(failed.value)
    assert "connection 'lakeops_default'" in str(failed.value)
