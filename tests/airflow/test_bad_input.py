"""Half-filled, misspelt, misdirected: each task says what is wrong in one line that names it, and changes nothing."""

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from airflow.exceptions import AirflowException
from support.scenes import tree

from lakeops import Lake
from lakeops.airflow import approval, operators, sensors
from lakeops.airflow.compat import LakeopsFailure
from lakeops.airflow.task import PROSE, LakeopsTask, number
from lakeops.model.errors import InvalidInput

# --- what each kind of argument cannot be ---

LIST = ["a", "list"]
REF = ("", "a b", "nosuch", LIST)
DEFAULT = ("a b", "nosuch", LIST)  # a ref; nothing means the default branch
NEW = ("", "a b", LIST)  # a name; also one that is waited for
GONE = ("", LIST)  # a name that need not be there
NEEDED = ("", LIST)
TEXT = (LIST,)
FLAG = ("maybe", LIST)
NUMBER = ("two", LIST)
MAP = ("day=1", LIST)
MARK = ("", "nosuch", LIST)
STRATEGY = ("ours", LIST)
LOCATION = ("nowhere", LIST)

Row = dict[str, tuple[Any, tuple[Any, ...]]]
DESCRIBED: Row = {"message": (None, TEXT), "metadata": (None, MAP)}

OPERATORS: dict[str, Row] = {
    "CreateRepository": {
        "repo": ("fresh", ("", "A B", LIST)),
        "storage_namespace": (None, LOCATION),
        "default_branch": ("main", NEW),
    },
    "CreateMirror": {
        "repo": ("fresh", ("", "A B", LIST)),
        "source": ("airflow:lakeops_default#flights", ("", "nowhere://x#flights", "airflow:nosuch#flights", LIST)),
        "storage_namespace": ("file:///nothing/mirror", LOCATION),
        "branches": (["*"], ("[1]", [""], {"a": "b"})),
        "tags": ("*", ("[1]", [""])),
    },
    "DeleteRepository": {"repo": ("flights", ("",))},
    "CreateBranch": {"branch": ("new", NEW), "source": ("main", DEFAULT)},
    "DeleteBranch": {"branch": ("dev", GONE), "merged_into": ("main", ("", *DEFAULT))},
    "ResetBranch": {"branch": ("dev", REF), "prefix": (None, NEEDED), "path": (None, NEEDED)},
    "MoveBranch": {"branch": ("dev", REF), "ref": ("main", REF)},
    "ProtectBranch": {"pattern": ("main", NEEDED)},
    "CreateTag": {"tag": ("v2", NEW), "ref": ("main", DEFAULT)},
    "MoveTag": {"tag": ("v1", REF), "ref": ("main", REF)},
    "DeleteTag": {"tag": ("v1", GONE)},
    "Commit": {"branch": ("dev", REF), "message": ("load", NEEDED), "metadata": (None, MAP)},
    "Merge": {
        "source": ("dev", REF),
        "destination": ("main", DEFAULT),
        "strategy": (None, STRATEGY),
        "tables": (None, ("ours", LIST)),
        "despite_checks": ((), (5, ["a", ""], ["a\n"], "a\nb", [["a"]], ["x" * 251])),
        **DESCRIBED,
    },
    "Revert": {"ref": ("main", REF), "parent_number": (None, NUMBER), "branch": ("main", DEFAULT), **DESCRIBED},
    "CherryPick": {"ref": ("dev", REF), "parent_number": (None, NUMBER), "branch": ("main", DEFAULT), **DESCRIBED},
    "Import": {
        "source": ("file:///nothing/here", ("", "file:///nothing/here", *LOCATION)),
        "prefix": ("in/", NEEDED),
        "inventory": (None, TEXT),
        "branch": ("main", DEFAULT),
        **DESCRIBED,
    },
    "Upload": {
        "branch": ("dev", REF),
        "path": ("a", NEEDED),
        "source": (None, ("", "/nothing/here", LIST)),
        "data": ("text", (None, LIST)),
        "content_type": (None, TEXT),
        "metadata": (None, MAP),
    },
    "DeleteObjects": {
        "branch": ("dev", REF),
        "paths": (["a"], ("", "None", "[]", ["a", ""])),
        "prefix": (None, NEEDED),
    },
    "Diff": {"right": ("dev", REF), "left": ("main", DEFAULT), "prefix": ("", TEXT)},
    "SqlCheck": {
        "ref": ("main", REF),
        "sql": ("SELECT 1 WHERE false", (*NEEDED, "SELEC", "SELECT * FROM nosuch")),
        "tables": ({}, ("x", {"t": "nosuch/"}, {"t": 5}, {5: "a"})),
    },
    "Fsck": {"data": ("false", FLAG)},
    "ExpireRefs": {"only_show": ("false", FLAG), "abandoned_after_days": (7, (*NUMBER, -1, "-1"))},
    "GcMark": {"only_show": ("false", FLAG)},
    "GcSweep": {"mark_id": ("nosuch", MARK), "force": ("false", FLAG)},
    "MirrorDiscover": {},
    "MirrorPromote": {"branch": ("main", DEFAULT), "tag": (None, (*DEFAULT, "v1")), "commit_id": (None, TEXT)},
    "Approval": {"source": ("dev", REF), "destination": ("main", DEFAULT), "strategy": (None, STRATEGY)},
    "GcApproval": {
        "mark_id": ("nosuch", ("nosuch", LIST)),
        "above_bytes": (None, NUMBER),
        "only_show": ("false", FLAG),
    },
}
SENSORS: dict[str, Row] = {
    "Object": {"ref": ("main", NEW), "path": ("not/yet", NEEDED)},
    "Prefix": {"ref": ("main", NEW), "prefix": ("not/yet", TEXT)},
    "Tag": {"tag": ("v9", NEW)},
    "Uncommitted": {"branch": ("dev", NEW), "prefix": ("", TEXT)},
    "Commit": {"branch": ("main", ("a b", LIST)), "since": ("main", DEFAULT)},
    "Replication": {"branch": ("main", NEW), "tag": (None, ("a b", "v1", LIST))},
}
ROWS: dict[str, Row] = {
    **{f"Lakeops{verb}Operator": row for verb, row in OPERATORS.items()},
    **{f"Lakeops{what}Sensor": row for what, row in SENSORS.items()},
}
"""Each task: what its arguments are in these tests, and what they cannot be."""

TASKS: dict[str, type[LakeopsTask]] = {
    name: kind
    for module in (operators, sensors, approval)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, LakeopsTask)
}
SHARED = {
    "LakeopsOperator",
    "LakeopsBranchOperator",
    "LakeopsPublishOperator",
    "LakeopsSensor",
    "LakeopsTask",
    "Asking",
}
PINNED = {"shown"}
"""What a preview has left: any text that is not what it says now ends the task."""

WHERE = {"repo": ("nosuch", "A B", LIST), "lakeops_conn_id": ("", "other", "nosuch", "web", LIST)}
MAKES = ("LakeopsCreateMirrorOperator", "LakeopsCreateRepositoryOperator", "LakeopsDeleteRepositoryOperator")
"""These work in another lake, and where there is no such repository."""


def repository_of(task):
    return "copy" if ("Mirror" in task and "Create" not in task) or "Replication" in task else "flights"


CALLS = [
    *((task, name, bad) for task, row in ROWS.items() for name, (_, wrong) in row.items() for bad in wrong),
    *((task, name, bad) for task in ROWS if task not in MAKES for name, wrong in WHERE.items() for bad in wrong),
    *((task, "repo", "flights") for task in ROWS if repository_of(task) == "copy"),
]


def state(repo):
    """A user's view of a repository."""
    refs = {ref.id: (ref.commit_id, tree(repo, ref.id)) for ref in (*repo.branches(), *repo.tags())}
    staged = {ref.id: [change.to_json() for change in repo.branch(ref.id).uncommitted()] for ref in repo.branches()}
    return {"refs": refs, "staged": staged, "protections": repo.protections(), "marks": repo.gc.marks()}


@pytest.fixture
def other(tmp_path, monkeypatch):
    """Another lake, without repositories, and what connections lead where."""
    there = str(tmp_path / "other")
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps({"conn_type": "lakeops", "host": there}))
    monkeypatch.setenv("AIRFLOW_CONN_WEB", json.dumps({"conn_type": "http", "host": "example.org"}))
    return there


def said_of(run, task, name, bad):
    """The failure of a task with one wrong argument."""
    given = {"repo": repository_of(task), **{argument: good for argument, (good, _) in ROWS[task].items()}, name: bad}
    if (task, name) == ("LakeopsUploadOperator", "source"):
        given["data"] = None
    if task.endswith("Sensor"):
        given["deferrable"] = True
    try:
        run(TASKS[task](task_id="task", **given))
    except LakeopsFailure as failure:
        return str(failure)
    except BaseException as other:  # a task that waits, or asks, leaves by one that is no Exception
        return f"not refused: {other!r}"
    return "not refused"


def names(said, name, bad):
    """Whether a message is one line that names what is wrong: the argument; of where to look also what it was."""
    named = re.search(rf"\b{name}\b", said) is not None or (name in WHERE and repr(bad) in said)
    return named and "\n" not in said and not said.startswith("not refused")


def test_each_says_what_is_wrong_and_changes_nothing(lake, flights, run, other, asked):
    main = flights.branch("main")
    for name in ("a", "b"):
        main.put(name, name.encode())
        main.commit(f"add {name}")
    flights.create_tag("v1", "main~1")
    dev = flights.create_branch("dev")
    dev.put("d", b"new")
    dev.commit("add d")
    dev.put("c", b"staged")
    mirror = lake.create_mirror("copy", source=lake, source_repository="flights")
    before = state(flights), state(mirror)
    said = {(task, name, str(bad)): (said_of(run, task, name, bad), bad) for task, name, bad in CALLS}
    unclear = [(*call, text) for call, (text, bad) in said.items() if not names(text, call[1], bad)]
    assert unclear == [], "\n".join(map(str, unclear))
    assert (state(flights), state(lake.mirror("copy"))) == before
    assert asked == []
    assert sorted(repository.id for repository in lake.repositories()) == ["copy", "flights"]
    with Lake.open(home=other) as elsewhere:
        assert list(elsewhere.repositories()) == []


def test_the_table_has_every_task_and_every_argument_that_is_a_template():
    assert set(ROWS) == set(TASKS) - SHARED
    for task, row in ROWS.items():
        airflows = next(base for base in TASKS[task].__mro__ if not base.__module__.startswith("lakeops."))
        theirs = set(getattr(airflows, "template_fields", ()))
        assert set(TASKS[task].template_fields) - theirs - PINNED - WHERE.keys() == row.keys() - {"repo"}, task


@pytest.mark.parametrize(
    ("task", "name", "bad"),
    [
        ("LakeopsCommitOperator", "on_empty", "perhaps"),
        ("LakeopsRevertOperator", "on_empty", "commit"),
        ("LakeopsMergeOperator", "on_newer", "perhaps"),
        ("LakeopsApprovalOperator", "on_reject", "perhaps"),
        ("LakeopsFsckOperator", "fail_on", "perhaps"),
        ("LakeopsPrefixSensor", "min_objects", 0),
    ],
)
def test_what_is_decided_with_the_dag_is_refused_when_it_is_read(task, name, bad):
    given = {argument: good for argument, (good, _) in ROWS[task].items()}
    with pytest.raises(InvalidInput, match=f"{name} must be .*not {bad!r}"):
        TASKS[task](task_id="task", **given, **{name: bad})


# --- what a template makes of a list or a map ---

SEVERAL = [
    (task, name, kind)
    for task in sorted(set(TASKS) - SHARED)
    for name, one in TASKS[task].parameters(object.__new__(TASKS[task])).items()
    for kind in ("Sequence", "Mapping")
    if str(one.annotation).startswith(kind)
]
PATHS = ["a/1", 'it\'s "b"', "ü, b", "c]"]
LISTS = [
    json.dumps(PATHS),
    json.dumps(PATHS, indent=2),
    str(PATHS),
    str(tuple(PATHS)),
    f" {PATHS} ",
    f"{{{str(PATHS)[1:-1]}}}",
]
MAPS = [json.dumps({"day": "1"}), str({"day": "1"})]
NO_LISTS = ["[a, b]", "[1, 2]", "['a', None]", "[['a']]", '["a", ["b"]]', '{"a": "b"}', [1], {"a": "b"}]
NO_MAPS = ["{[1]: 2}", "{1, 'a'}", "day=1", "{day: 1}", "['day']", "[]x"]


ANY = [
    (task, name)
    for task in sorted(set(TASKS) - SHARED)
    for name, one in TASKS[task].parameters(object.__new__(TASKS[task])).items()
    if str(one.annotation).removeprefix("StrategyName | ").removesuffix(" | None") == "str"
]
ONE = [(task, name) for task, name in ANY if name not in PROSE]
NO_TEXTS = ["None", " null\n", " ", "['a']", '["a", "b"]', "('a',)", "[]", "{}", '{"a": "b"}', "{'a'}"]


@pytest.mark.parametrize(("task", "name"), ONE)
def test_a_list_or_nothing_is_no_text_of_one_value(task, name):
    """A reset of prefix "None" would drop nothing and be green, and an import to it would make a folder."""
    given = {argument: good for argument, (good, _) in ROWS[task].items()}
    for text in NO_TEXTS:
        with pytest.raises(InvalidInput, match=rf"\b{name}\b"):
            TASKS[task](task_id="task", **{"repo": "flights", **given, name: text}).check_values()


@pytest.mark.parametrize(("task", "name"), ANY)
def test_half_a_character_is_no_text(task, name):
    given = {argument: good for argument, (good, _) in ROWS[task].items()}
    with pytest.raises(InvalidInput, match=rf"^{name}: .*is not text"):
        TASKS[task](task_id="task", **{"repo": "flights", **given, name: "a\ud800"}).check_values()


@pytest.mark.parametrize("metadata", [{7: "a"}, {"a": None}])
def test_metadata_of_a_commit_become_text(flights, run, metadata):
    flights.create_branch("dev").put("a", b"1")
    made = run(
        operators.LakeopsCommitOperator(task_id="t", repo="flights", branch="dev", message="m", metadata=metadata)
    )
    [(key, value)] = metadata.items()
    assert made["metadata"][str(key)] == str(value)


@pytest.mark.parametrize("value", [2.5, True, "2.0", "two", "[1]", [1], {"a": 1}])
def test_a_number_is_whole(value):
    with pytest.raises(InvalidInput, match="parent_number"):
        number("parent_number", value)
    assert [number("n", text) for text in (3, " 3 ", "None", "null", "", None)] == [3, 3, None, None, None, None]


def test_the_kinds_that_take_several_values_are_known():
    assert ("LakeopsDeleteObjectsOperator", "paths", "Sequence") in SEVERAL
    assert ("LakeopsCommitOperator", "metadata", "Mapping") in SEVERAL


@pytest.mark.parametrize(("task", "name", "kind"), SEVERAL)
def test_several_values_are_read_from_what_a_template_makes_of_them(task, name, kind):
    given = {argument: good for argument, (good, _) in ROWS[task].items()}
    for text in LISTS if kind == "Sequence" else MAPS:
        made = TASKS[task](task_id="task", **{"repo": "flights", **given, name: text})
        made.check_values()
        value = getattr(made, name)
        assert sorted(value) == sorted(PATHS) if kind == "Sequence" else value == {"day": "1"}
        made.check_values()
        assert getattr(made, name) == value, "a second try reads it alike"
    for text in NO_LISTS if kind == "Sequence" else NO_MAPS:
        wrong = TASKS[task](task_id="task", **{"repo": "flights", **given, name: text})
        with pytest.raises(InvalidInput, match=name):
            wrong.check_values()


@pytest.mark.parametrize("text", LISTS)
def test_what_a_form_lists_is_deleted(lake, flights, run, text):
    main = flights.branch("main")
    for path in (*PATHS, "kept"):
        main.put(path, b"x")
    delete = operators.LakeopsDeleteObjectsOperator(task_id="t", repo="flights", branch="main", paths=text)
    assert run(delete) == {"branch": "main", "objects": len(PATHS), "missing": []}
    assert [entry.path for entry in main.list()] == ["kept"]
    again = run(delete)
    assert (again["objects"], sorted(again["missing"])) == (0, sorted(PATHS))


def test_a_deletion_does_not_take_a_lost_file_of_metadata_for_a_missing_object(flights, run):
    main = flights.branch("main")
    main.put("a", b"x")
    main.commit("a")
    for file in Path(urlsplit(flights.storage_namespace).path, "_lakefs/ranges").iterdir():
        file.unlink()
    with pytest.raises(AirflowException, match=r"object_not_found: .*lakeops fsck"):
        run(operators.LakeopsDeleteObjectsOperator(task_id="t", repo="flights", branch="main", paths="a"))


@pytest.mark.parametrize("given", [{"paths": "gone"}, {"paths": ["gone", "too"]}, {"prefix": "gone/"}])
def test_a_deletion_that_found_nothing_says_so(flights, run, capsys, given):
    run(operators.LakeopsDeleteObjectsOperator(task_id="t", repo="flights", branch="main", **given))
    assert "Nothing was deleted on lakefs://flights/main: no object at 'gone" in capsys.readouterr().out
