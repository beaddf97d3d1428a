"""Tests of what operators return: results, conflict tables, refusals of bad input, and the effect of a kill."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.catalogs import expire_commits

from lakeops.airflow.previews import DiffSummary

airflow = pytest.importorskip("airflow.sdk")

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException  # noqa: E402

from lakeops.airflow import operators  # noqa: E402
from lakeops.airflow.operators import LakeopsOperator, TaskKilled  # noqa: E402

Run = Callable[..., dict[str, Any]]


def make(name, **arguments):
    found = getattr(operators, f"Lakeops{name}Operator")(**{"task_id": "task", "repo": "flights", **arguments})
    assert isinstance(found, LakeopsOperator)
    return found


@pytest.fixture
def history(flights):
    """``a`` changed on both sides, ``gone`` deleted on dev and changed on main, ``b`` new on dev."""
    main = flights.branch("main")
    main.put("a", b"1")
    main.put("gone", b"1")
    main.commit("base")
    dev = flights.create_branch("dev")
    dev.put("a", b"dev's")
    dev.put("b", b"new")
    dev.delete("gone")
    dev.commit("dev")
    main.put("a", b"main's")
    main.put("gone", b"changed")
    main.commit("main")
    return flights


# --- results -----------------------------------------------------------------------------------------------------
def test_a_diff_counts_everything_and_lists_the_first(history, run):
    found = run(make("Diff", left="main", right="dev", max_changes=2))
    assert found == {
        "total": 3,
        "added": 1,
        "removed": 0,
        "changed": 0,
        "conflict": 2,
        "changes": [
            {"type": "conflict", "path": "a", "size_bytes": 5},
            {"type": "added", "path": "b", "size_bytes": 3},
        ],
        "truncated": True,
    }
    two_way = run(make("Diff", left="main", right="dev", two_way=True, prefix="g"))
    assert [change["path"] for change in two_way["changes"]] == ["gone"]
    history.branch("dev").put("later", b"1")
    assert run(make("Diff", right="dev"))["added"] == 1, "without a left side: what is not committed"


@pytest.mark.parametrize(("most", "last"), [(5, "- b (0 B)"), (1, "... and 1 more")])
def test_a_tally_reads_well(most, last):
    from lakeops.model.records import Change, ChangeType

    tally = DiffSummary.of([Change(ChangeType.ADDED, "a", 1234), Change(ChangeType.REMOVED, "b", 0)], most)
    assert str(tally).splitlines() == ["2 changes: 1 added, 1 removed", "+ a (1,234 B)", last]
    assert str(DiffSummary.of([], 5)) == "No changes"


def test_an_upload_says_what_was_staged(flights, run, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for number in range(120):
        (source / f"{number:03}").write_text("x")
    found = run(make("Upload", branch="main", path="up/", source=str(source), metadata={"k": "v"}))
    assert (found["branch"], found["objects"], found["bytes"], len(found["paths"])) == ("main", 120, 120, 100)
    assert found["paths"][0] == "up/000"
    assert flights.branch("main").stat("up/119").metadata == {"k": "v"}
    assert run(make("Upload", branch="main", path="t", data="é"))["bytes"] == 2


def test_deleting_counts_what_was_there(history, run):
    assert run(make("DeleteObjects", branch="dev", paths="a"))["objects"] == 1
    assert run(make("DeleteObjects", branch="dev", paths=["a", "nowhere"]))["objects"] == 0


@pytest.mark.parametrize("folder", ["raw", "raw/"])
def test_deleting_a_folder_leaves_what_only_begins_with_its_name(history, run, folder):
    inside, beside = ["raw/1", "raw/day=1/2"], ["raw.csv", "raw-old/3", "raw2/4"]
    with history.branch("dev").batch() as batch:
        for path in inside + beside:
            batch.put(path, b"1")
    assert run(make("DeleteObjects", branch="dev", prefix=folder))["objects"] == 2
    assert [path for path in inside + beside if history.ref("dev").exists(path)] == beside


def test_a_reset_drops_what_is_staged(history, run):
    history.branch("dev").put("x", b"1")
    history.branch("dev").put("y", b"1")
    assert run(make("ResetBranch", branch="dev", path="x"))["reset"] == 1
    assert [change.path for change in history.branch("dev").uncommitted()] == ["y"]


def test_protections_are_listed(flights, run):
    assert run(make("ProtectBranch", pattern="main")) == {"pattern": "main", "protections": ["main"]}
    assert run(make("ProtectBranch", pattern="main", protected=False))["protections"] == []


@pytest.mark.parametrize("name", ["Revert", "CherryPick"])
@pytest.mark.parametrize(("way", "error"), [("skip", AirflowSkipException), ("fail", AirflowFailException)])
def test_a_change_that_is_there_already(history, run, name, way, error):
    dev = history.branch("dev")
    ref = dev.commit_id
    if name == "Revert":
        dev.revert(ref)
    head = dev.commit_id
    arguments: dict[str, Any] = {"ref": ref, "branch": "dev"}
    assert run(make(name, **arguments))["id"] == head
    with pytest.raises(error):
        run(make(name, on_empty=way, **arguments))
    assert dev.commit_id == head


def test_a_cleared_import_brings_what_has_come_since(flights, run, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "one").write_text("1")
    task = {"source": f"file://{source}", "prefix": "in"}
    first = run(make("Import", **task))
    assert first["message"] == f"Import file://{source}"
    assert first["metadata"]["airflow_task_id"] == "task"
    assert run(make("Import", **task), try_number=2) == first
    (source / "two").write_text("2")
    cleared = replace(run, more={"max_tries": 2})
    second = cleared(make("Import", **task), try_number=3)
    assert second["parents"] == [first["id"]]
    assert cleared(make("Import", **task), try_number=4) == second
    assert [entry.path for entry in flights.ref("main").list()] == ["in/one", "in/two"]
    run(make("Import", **task | {"prefix": None}), try_number=5)
    assert [entry.path for entry in flights.ref("main").list()] == ["one", "two"], "in place of the whole branch"


def test_a_tag_stays_where_its_task_put_it(history, run, other_run):
    tag = run(make("CreateTag", tag="v1"))
    history.branch("main").put("a", b"later")
    history.branch("main").commit("later")
    assert run(make("CreateTag", tag="v1"), try_number=2) == tag
    with pytest.raises(AirflowFailException, match="already_exists: tag 'v1'"):
        other_run(make("CreateTag", tag="v1"))


def test_a_repository_elsewhere_is_not_taken(lake, run, tmp_path):
    there = {"storage_namespace": f"file://{tmp_path}/there"}
    assert run(make("CreateRepository", **there))["storage_namespace"] == f"file://{tmp_path}/there"
    assert run(make("CreateRepository", **there))["id"] == "flights"
    with pytest.raises(AirflowFailException, match=r"already_exists: repository 'flights' exists at file://.*there"):
        run(make("CreateRepository"))
    with pytest.raises(AirflowFailException, match="already_exists"):
        run(make("CreateRepository", default_branch="trunk", **there))


# --- conflicts ---------------------------------------------------------------------------------------------------
def test_a_conflict_is_told_in_log_error_and_xcom(history, run, capfd):
    head = history.ref("main").commit_id
    with pytest.raises(AirflowFailException, match="All conflicting paths:\na\ngone"):
        run(make("Merge", source="dev"))
    assert run.xcoms["conflicts"] == {
        "source": "dev",
        "destination": "main",
        "conflict_count": 2,
        "conflicts": ["a", "gone"],
        "table": [{"path": "a", "source": 5, "destination": 6}, {"path": "gone", "source": None, "destination": 7}],
    }
    logged = capfd.readouterr()
    for line in ("Conflicts: 2", "path  source   destination", "a     5 B      6 B", "gone  deleted  7 B"):
        assert line in logged.out + logged.err
    assert history.ref("main").commit_id == head
    settled = run(make("Merge", source="dev", strategy="source-wins"))
    assert settled["summary"] == {"added": 1, "removed": 1, "changed": 1}


def test_a_conflicting_revert_lists_its_paths(history, run):
    with pytest.raises(AirflowFailException, match="All conflicting paths:\na"):
        run(make("Revert", ref="main~1", branch="dev"))
    assert run.xcoms["conflicts"]["table"] == [{"path": "a"}]


# --- events ------------------------------------------------------------------------------------------------------
def told(run, task):
    """Commit ids of the events that a task has sent to branches."""
    return [event.extra["commit_id"] for asset, event in run.events[task].items() if asset.uri.startswith("lakefs:")]


def test_what_a_task_publishes_it_tells(history, run):
    history.branch("dev").put("x", b"1")
    made = run(make("Commit", task_id="commit", branch="dev", message="load"))
    merged = run(make("Merge", task_id="merge", source="dev", strategy="source-wins"))
    reverted = run(make("Revert", task_id="revert", ref=made["id"], branch="dev"))
    assert told(run, "commit") == [made["id"]]
    assert told(run, "merge") == [merged["reference"]]
    assert told(run, "revert") == [reverted["id"]]


def test_what_was_there_already_is_no_news(history, run):
    run(make("Commit", task_id="commit", branch="dev", message="nothing"))
    run(make("Merge", task_id="merge", source="main", destination="main"))
    run(make("Diff", task_id="diff", left="main", right="dev"))
    for task in ("commit", "merge", "diff"):
        assert told(run, task) == []


# --- bad input ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("CreateBranch", {"branch": "no way"}, "invalid_name"),
        ("CreateBranch", {"branch": "new", "repo": None}, "no repository: set repo"),
        ("Commit", {"branch": "nosuch", "message": "m"}, r"ref_not_found: .*'nosuch'"),
        ("Merge", {"source": "dev", "strategy": "mine"}, "unknown strategy 'mine'; choose one of"),
        ("Revert", {"ref": "main", "parent_number": 3}, "there is no parent 3"),
        ("CherryPick", {"ref": "main~9"}, "main~9"),
        ("Upload", {"branch": "dev", "path": "x"}, "give either source or data"),
        ("Upload", {"branch": "dev", "path": "", "data": "x"}, "invalid_path"),
        ("DeleteObjects", {"branch": "dev"}, "give paths or a prefix"),
        ("ProtectBranch", {"pattern": "a/b"}, "invalid_name"),
        ("Diff", {"repo": "elsewhere", "right": "dev"}, "repository_not_found: .*'elsewhere'"),
        ("ResetBranch", {"branch": "dev", "path": "a", "prefix": "b"}, "not both"),
    ],
)
def test_bad_input_fails_at_once_and_names_it(history, run, name, arguments, message):
    before = {ref.id: ref.commit_id for ref in history.branches()}
    with pytest.raises(AirflowFailException, match=message):
        run(make(name, **arguments))
    assert {ref.id: ref.commit_id for ref in history.branches()} == before


def test_an_expired_commit_is_named(history, lake, run):
    lost = history.branch("dev").commit_id
    history.delete_branch("dev")
    expire_commits(lake.catalog, "flights", [lost])
    for name, arguments in {
        "CherryPick": {"ref": lost},
        "Merge": {"source": lost},
        "CreateBranch": {"branch": "again", "source": lost},
        "CreateTag": {"tag": "again", "ref": lost},
    }.items():
        with pytest.raises(AirflowFailException, match=f"expired: commit {lost[:16]}"):
            run(make(name, **arguments))
    assert [branch.id for branch in history.branches()] == ["main"]


# --- killed ------------------------------------------------------------------------------------------------------
def test_sigterm_ends_the_verb_where_it_stands(history, run, monkeypatch):
    """Airflow's handler calls ``on_kill`` in the main thread, which must not go on as if nothing had happened."""
    task = make("Merge", source="dev", strategy="source-wins")
    before = signal.signal(signal.SIGTERM, lambda *_: task.on_kill())
    head = history.branch("main").commit_id
    work = type(task).run_verb

    def killed(self, repository, attempt):
        os.kill(os.getpid(), signal.SIGTERM)
        return work(self, repository, attempt)

    monkeypatch.setattr(type(task), "run_verb", killed)
    try:
        with pytest.raises(TaskKilled, match="task 'task' was killed"):
            run(task)
        assert history.branch("main").commit_id == head
        task.on_kill()  # when nothing is under way, as after a timeout, there is nothing to end

        def killed_again(self, repository, attempt):
            try:
                return killed(self, repository, attempt)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
                cleaned.append(True)

        cleaned: list[bool] = []
        monkeypatch.setattr(type(task), "run_verb", killed_again)
        with pytest.raises(TaskKilled):
            run(task)
        assert cleaned == [True], "a second signal lets the first one's way out end"
    finally:
        signal.signal(signal.SIGTERM, before)
