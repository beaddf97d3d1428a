"""The forms: what each shows before it does it, what it does, and what it refuses before anything is done."""

import sys
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from airflow.sdk.definitions.param import ParamsDict
from airflow.sdk.exceptions import AirflowFailException, ParamValidationError
from support.airflow_tasks import with_garbage
from support.dags import known_file, states

from lakeops import Lake
from lakeops.airflow.previews import VERBS, preview
from lakeops.web.page import Site
from lakeops.web.pages import ROUTES, Pages

DAG_FILE = Path(__file__).resolve().parents[2] / "dags" / "lakeops_admin.py"


@pytest.fixture
def history(flights, tmp_path):
    """``main`` with two commits, ``dev`` one ahead of it, and something uncommitted on ``wip``; files to import."""
    main = flights.branch("main")
    for name in ("a", "b"):
        main.put(f"{name}/1", name.encode())
        main.commit(f"add {name}")
    flights.create_branch("dev").put("c/1", b"ccc")
    flights.branch("dev").commit("add c")
    flights.create_branch("wip").put("d/1", b"d")
    flights.create_tag("v1", "main~1")
    (tmp_path / "lying").mkdir()
    for name in ("x", "y"):
        (tmp_path / "lying" / name).write_text(name * 5)
    return flights


FORMS: dict[str, tuple[str, dict[str, Any], str]] = {
    "create-branch": (
        "lakeops_branch",
        {"action": "create", "branch": "new", "source": "v1"},
        r"creates branch lakefs://flights/new at commit \w{16} \(v1\) 'add a'$",
    ),
    "delete-branch": (
        "lakeops_branch",
        {"action": "delete", "branch": "wip"},
        r"deletes branch lakefs://flights/wip, at commit .* 'add b'; it has uncommitted changes, such as 'd/1': that",
    ),
    "move-branch": (
        "lakeops_branch",
        {"action": "move", "branch": "dev", "source": "v1"},
        (
            r"moves branch lakefs://flights/dev from commit \w{16} to commit \w{16} \(v1\) 'add a'\n"
            r"Its history gains 0 commits and loses 2 commits"
        ),
    ),
    "move-tag": (
        "lakeops_tag",
        {"action": "move", "tag": "v1", "ref": "main"},
        r"moves tag lakefs://flights/v1 from commit \w{16} to commit \w{16} \(main\) 'add b'$",
    ),
    "merge": (
        "lakeops_merge",
        {"source": "dev"},
        r"merges commit \w{16} \(dev\) 'add c' into lakefs://flights/main\n1 changes: 1 added\n\+ c/1 \(3 B\)$",
    ),
    "revert": (
        "lakeops_revert",
        {"ref": "v1"},
        r"undoes commit \w{16} \(v1\) 'add a' on lakefs://flights/main\n1 changes: 1 removed\n- a/1 \(1 B\)$",
    ),
    "create-tag": (
        "lakeops_tag",
        {"action": "create", "tag": "v2", "ref": None},
        r"creates tag lakefs://flights/v2 at commit \w{16} 'add b'$",
    ),
    "delete-tag": (
        "lakeops_tag",
        {"action": "delete", "tag": "v1"},
        r"deletes tag lakefs://flights/v1, at commit \w{16} 'add a'$",
    ),
    "reset": (
        "lakeops_reset",
        {"branch": "wip", "prefix": "d/"},
        r"drops uncommitted changes of lakefs://flights/wip under 'd/'\n1 changes: 1 added\n\+ d/1 \(1 B\)$",
    ),
    "import": (
        "lakeops_import",
        {"prefix": "a/", "source": "{lying}"},
        r"imports 2 objects \(10 B\) from file://.*/lying, uncopied, to lakefs://flights/main/a/\n.* the 1 objects",
    ),
}


@pytest.fixture(scope="module")
def forms(airflow_database):
    found = known_file(DAG_FILE)
    assert all(dag.params["dry_run"] for dag in found.values()), "a form does nothing unless it is told to"
    return found


def conf(given, tmp_path, **more):
    lying = f"file://{tmp_path}/lying"
    return {
        "repository": "flights",
        **{key: lying if value == "{lying}" else value for key, value in given.items()},
    } | more


def everything(repository):
    refs = [*repository.branches(), *repository.tags()]
    return {ref.id: (ref.commit_id, [entry.path for entry in repository.ref(ref.id).list()]) for ref in refs}


def shown_at(lake, page):
    """The text of a page of the repository, found as the web server finds it."""
    from urllib.parse import parse_qsl, urlsplit

    from starlette.routing import Match, Route

    where = urlsplit(page)
    scope = {"type": "http", "path": f"/flights/{where.path}", "method": "GET", "headers": []}
    for path, view in ROUTES:
        match, found = Route(path, lambda: None).matches(scope)
        if match is Match.FULL:
            return str(view(Pages(Site("", "mine"), lake, found["path_params"], dict(parse_qsl(where.query)))))
    return ""


@pytest.mark.parametrize("name", FORMS)
def test_a_form_shows_and_only_then_does(history, forms, tmp_path, name, monkeypatch):
    import re

    monkeypatch.setitem(sys.modules, "lakeops.airflow.plugin", ModuleType("plugin"))
    dag, given, shown = FORMS[name]
    before = everything(history)
    run = forms[dag].test(run_conf=conf(given, tmp_path, dry_run=True))
    assert str(run.state) == "success"
    task = run.get_task_instance("preview")
    assert re.match(shown, task.xcom_pull(task_ids="preview", key="preview")), task.xcom_pull(key="preview")
    assert set(states(run).values()) == {"success", "skipped"}
    page = task.xcom_pull(task_ids="preview", key="_link_LakeopsPageLink").removeprefix(
        "/lakeops/lakeops_default/flights/"
    )
    with Lake.open() as lake:
        assert shown_at(lake, page), "a page that there is"
    assert everything(history) == before, f"a dry run does nothing: {states(run)}"

    run = forms[dag].test(run_conf=conf(given, tmp_path, dry_run=False))
    assert str(run.state) == "success"
    did = [task for task, state in states(run).items() if state == "success" and task not in {"preview", "chosen"}]
    assert len(did) == 1
    after = everything(history)
    assert after != before
    changed = {ref for ref in {*before, *after} if before.get(ref) != after.get(ref)}
    assert changed == {given.get("branch") or given.get("tag") or "main"}


def on_main(history):
    history.branch("main").put("e/1", b"meanwhile")
    history.branch("main").commit("meanwhile")


def over_c(history):
    history.branch("main").put("c/1", b"theirs")
    history.branch("main").commit("theirs")


def later(history):
    history.branch("main").put("b/1", b"later")
    history.branch("main").commit("later")


def more(history):
    history.branch("wip").put("d/2", b"more")


def other_contents(history):
    history.branch("wip").put("d/1", b"D")


def tag_elsewhere(history):
    history.delete_tag("v1")
    history.create_tag("v1", "main")


def dev_moves(history):
    history.branch("dev").put("c/2", b"not shown")
    history.branch("dev").commit("not shown")


BETWEEN: dict[str, tuple[str, dict[str, Any], Any, bool]] = {
    "revert-moving-ref": ("lakeops_revert", {"ref": "main~0"}, on_main, True),
    "revert-conflict": ("lakeops_revert", {"ref": "main"}, later, False),
    "merge-moving-source": ("lakeops_merge", {"source": "dev"}, dev_moves, True),
    "merge-beside": ("lakeops_merge", {"source": "dev"}, on_main, True),
    "merge-over": ("lakeops_merge", {"source": "dev", "strategy": "source-wins"}, over_c, False),
    "branch-moving-source": ("lakeops_branch", {"action": "create", "branch": "new", "source": "main"}, on_main, True),
    "branch-in-use": ("lakeops_branch", {"action": "delete", "branch": "wip"}, more, False),
    "tag-moving-ref": ("lakeops_tag", {"action": "create", "tag": "v2"}, on_main, True),
    "tag-elsewhere": ("lakeops_tag", {"action": "delete", "tag": "v1"}, tag_elsewhere, False),
    "move-branch-elsewhere": ("lakeops_branch", {"action": "move", "branch": "dev", "source": "v1"}, dev_moves, False),
    "move-tag-elsewhere": ("lakeops_tag", {"action": "move", "tag": "v1", "ref": "dev"}, tag_elsewhere, False),
    "branch-of-the-same-size": ("lakeops_branch", {"action": "delete", "branch": "wip"}, other_contents, False),
    "reset-of-the-same-size": ("lakeops_reset", {"branch": "wip"}, other_contents, False),
    "reset-more": ("lakeops_reset", {"branch": "wip"}, more, False),
    "import-beside": ("lakeops_import", {"prefix": "a/", "source": "{lying}"}, on_main, True),
    "import-over": ("lakeops_import", {"source": "{lying}", "prefix": None}, on_main, False),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_a_form_does_what_it_has_shown_or_nothing(history, forms, tmp_path, name, monkeypatch):
    from lakeops.airflow import previews as module

    dag, given, meanwhile, done = BETWEEN[name]
    heads = {ref.id: ref.commit_id for ref in history.branches()}

    def shown_and_then(*args, **options):
        found = preview(*args, **options)
        meanwhile(history)
        before.update(everything(history))
        return found

    before: dict[str, Any] = {}
    monkeypatch.setattr(module, "preview", shown_and_then)
    run = forms[dag].test(run_conf=conf(given, tmp_path, dry_run=False))
    after = everything(history)
    assert (after != before) is done, states(run)
    assert str(run.state) == ("success" if done else "failed")
    main = history.branch("main")
    if name == "revert-moving-ref":
        assert main.head.metadata["revert-origin"] == heads["main"], "what was shown is undone, not what came since"
    elif name == "merge-moving-source":
        assert main.head.parents[1] == heads["dev"]
        assert not main.exists("c/2")
    elif name == "branch-moving-source":
        assert history.branch("new").commit_id == heads["main"]
    elif name == "tag-moving-ref":
        assert history.tag("v2").commit_id == heads["main"]


def test_every_verb_has_a_form():
    assert {name.replace("-", " ") for name in FORMS} | {"sweep"} == set(VERBS)


def test_a_mark_is_shown_and_only_then_swept(history, forms, monkeypatch):
    monkeypatch.setitem(sys.modules, "lakeops.airflow.plugin", ModuleType("plugin"))
    mark = history.gc.mark()
    given = {"repository": "flights", "mark": mark.id}
    run = forms["lakeops_sweep"].test(run_conf=given)
    shown = run.get_task_instance("preview").xcom_pull(task_ids="preview", key="preview")
    assert shown.startswith(f"deletes what mark {mark.id} holds\nlakefs://flights: 0 of ")
    forms["lakeops_sweep"].get_task("sweep").retries = 0
    forms["lakeops_sweep"].test(run_conf=given, mark_success_pattern="preview")
    assert [one.state.value for one in history.gc.marks()] == ["marked"]
    assert str(forms["lakeops_sweep"].test(run_conf={**given, "dry_run": False}).state) == "success"
    assert [one.state.value for one in history.gc.marks()] == ["swept"]
    with pytest.raises(AirflowFailException, match="is swept, so there is nothing to sweep"):
        preview("sweep", given, lakeops_conn_id="lakeops_default")


@pytest.mark.parametrize(
    ("verb", "given", "message"),
    [
        ("create branch", {"branch": "dev", "source": None}, "already_exists: branch 'dev' exists"),
        ("create branch", {"branch": "x..y", "source": None}, "invalid_name"),
        ("create branch", {"branch": "new", "source": "gone"}, "ref_not_found.*'gone'"),
        ("delete branch", {"branch": "main"}, "default_branch: 'main' is the default branch"),
        ("delete branch", {"branch": "gone"}, "ref_not_found.*'gone'"),
        ("merge", {"source": "gone", "destination": None, "strategy": "fail"}, "ref_not_found.*'gone'"),
        ("merge", {"source": "main", "destination": "wip", "strategy": "fail"}, "dirty_branch: branch 'wip'"),
        ("revert", {"branch": "main", "ref": "main~2", "parent_number": None}, "invalid_ref.*'main~2'.*initial"),
        ("move branch", {"branch": "wip", "source": "v1"}, "dirty_branch: branch 'wip'"),
        ("move tag", {"tag": "v9", "ref": "v1"}, "ref_not_found.*'v9'"),
        ("sweep", {"mark": "nosuch"}, "mark_not_found"),
        ("create tag", {"tag": "v1", "ref": None}, "already_exists: tag 'v1' exists"),
        ("delete tag", {"tag": "v9"}, "ref_not_found.*'v9'"),
        ("reset", {"branch": "gone", "prefix": None}, "ref_not_found.*'gone'"),
        ("import", {"branch": "main", "prefix": None, "source": "file:///nowhere/at/all"}, "object_not_found|invalid"),
        ("import", {"branch": "main", "prefix": None, "source": "ftp://x"}, "invalid_uri"),
        ("reset", {"repository": "nowhere", "branch": "main", "prefix": None}, "repository_not_found.*'nowhere'"),
    ],
)
def test_a_preview_refuses_what_the_verb_would(history, verb, given, message):
    with pytest.raises(AirflowFailException, match=message):
        preview(verb, {"repository": "flights", **given}, lakeops_conn_id="lakeops_default")


@pytest.mark.parametrize(
    ("verb", "given"),
    [
        ("delete branch", {"branch": "dev"}),
        ("move branch", {"branch": "dev", "source": "v1"}),
        ("import", {"branch": "dev", "prefix": None, "source": "{lying}"}),
        ("import", {"branch": "wip", "prefix": None, "source": "{lying}"}),
        ("delete tag", {"tag": "v1"}),
        ("move tag", {"tag": "v1", "ref": "main"}),
    ],
)
def test_a_preview_refuses_what_is_protected_or_dirty(history, tmp_path, verb, given):
    history.protect("dev")
    history.protect_tags("v*")
    with pytest.raises(AirflowFailException, match=r"^(protected_branch|protected_tag|dirty_branch): "):
        preview(verb, conf(given, tmp_path), lakeops_conn_id="lakeops_default")


def test_a_preview_refuses_a_mark_of_a_large_share_without_force(lake, monkeypatch):
    monkeypatch.setattr("lakeops.ops.deletion_limit.FLOOR", 0)
    with_garbage("one")
    given = {"repository": "one", "mark": lake.repository("one").gc.mark().id, "force": False}
    with pytest.raises(AirflowFailException, match=r"^mark_refused: .* holds 1 of 3 objects, more than 30%"):
        preview("sweep", given, lakeops_conn_id="lakeops_default")
    shown = preview("sweep", {**given, "force": True}, lakeops_conn_id="lakeops_default").text
    assert "1 of 3 objects are garbage" in shown


def test_a_read_only_repository_is_told_at_once(history):
    history.set_read_only()
    with pytest.raises(AirflowFailException, match="read_only_repository: repository 'flights'"):
        preview("reset", {"repository": "flights", "branch": "wip", "prefix": None}, lakeops_conn_id="lakeops_default")


def test_conflicts_are_shown_before_anything_is_tried(history):
    history.branch("main").put("c/1", b"other")
    history.branch("main").commit("also c")
    given = {"repository": "flights", "source": "dev", "destination": "main", "strategy": "fail"}
    with pytest.raises(AirflowFailException, match=r"(?s)merge_conflict|conflicts with 'main'.*\nc/1"):
        preview("merge", given, lakeops_conn_id="lakeops_default")
    settled = preview("merge", given | {"strategy": "source-wins"}, lakeops_conn_id="lakeops_default").text
    assert "conflicts settled by source-wins\n1 changes: 1 changed\n~ c/1 (3 B)" in settled


def test_a_merge_is_refused_while_a_check_has_not_passed(history):
    history.create_branch("dec", "main")
    history.branch("dec").put("d/x", b"1")
    made = history.branch("dec").commit("declares", checks=["amount", "size"])
    history.ref(made.id).fail_check("amount", "it is -1", by="ada")
    history.ref(made.id).pass_check("size")
    given = {"repository": "flights", "source": "dec", "destination": "main", "strategy": "fail", "message": None}
    with pytest.raises(AirflowFailException, match=r"missing_check.*'amount' failed by ada \(it is -1\)"):
        preview("merge", given, lakeops_conn_id="lakeops_default")
    shown = preview("merge", given | {"despite_checks": "size, amount"}, lakeops_conn_id="lakeops_default")
    assert "Check 'amount' failed by ada (it is -1)\nCheck 'size' passed" in shown.text


def test_a_merge_that_publishes_nothing_says_so(history):
    given = {"repository": "flights", "source": "v1", "destination": "main", "strategy": "fail"}
    shown = preview("merge", given, lakeops_conn_id="lakeops_default").text
    first = history.tag("v1").commit_id[:16]
    assert shown == f"merges nothing: lakefs://flights/main has all of commit {first} (v1) 'add a'"


@pytest.mark.parametrize(
    ("branch", "message"),
    [
        ("wip", "dirty_branch: branch 'wip'"),
        ("done", "no_changes: revert of 'v1'"),
        ("main", r"(?s)conflicts with 'main' on 1 path.*\na/1"),
    ],
)
def test_a_revert_that_cannot_be_is_refused_in_its_preview(history, branch, message):
    history.create_branch("done")
    history.branch("done").revert("v1")
    history.branch("main").put("a/1", b"later")
    history.branch("main").commit("later")
    given = {"repository": "flights", "branch": branch, "ref": "v1", "parent_number": None}
    with pytest.raises(AirflowFailException, match=message):
        preview("revert", given, lakeops_conn_id="lakeops_default")


def test_a_form_refuses_a_field_that_it_lacks(history, forms):
    run = forms["lakeops_reset"].test(
        run_conf={"repository": "flights", "branch": "wip", "path": "elsewhere/", "dry_run": False}
    )
    assert (str(run.state), [change.path for change in history.branch("wip").uncommitted()]) == ("failed", ["d/1"])


NAMES = {"branch", "tag", "destination"}
REFS = {"source", "ref", "mark"}
WRONG = {
    "repository": ["Flights", "a b", "lakefs://flights", 5],
    "dry_run": ["no", None],
    "connection": ["", "a b", None],
    "force": ["yes"],
    "action": ["", "rename", None],
    "strategy": ["", "mine"],
    "parent_number": [0, -1, "one"],
    "message": [5],
    "despite_checks": [5, ["amount"]],
    "prefix": [5],
    **{name: ["a b", "-x", "a~1", "a..b?", 5] for name in NAMES},
    **{name: ["a b", "", 5] for name in REFS},
}
"""What nobody can mean, for each field that a form has."""


def test_each_field_of_each_form_refuses_what_nobody_can_mean_and_is_named(forms):
    accepted = []
    for dag_id, dag in forms.items():
        for name in dag.params:
            param = dag.params.get_param(name)
            wrong = list(WRONG[name])
            if dag_id == "lakeops_import" and name == "source":
                wrong = ["", "/data", "ftp://x", 5]
            for value in [*wrong, *([] if "null" in param.schema["type"] else [None])]:
                field = ParamsDict({name: deepcopy(param)})
                try:
                    field[name] = value
                    field.validate()
                except ParamValidationError as error:
                    assert name in str(error).splitlines()[0], (dag_id, name, value)
                else:
                    accepted.append((dag_id, name, value))
    assert not accepted, "\n".join(map(str, accepted))
