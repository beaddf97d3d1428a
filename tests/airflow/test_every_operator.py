"""One table of all operators: run twice, killed at every effect and cleared, or mapped, the end state is the same."""

import inspect
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.airflow_tasks import kill_at, with_garbage
from support.dags import known
from support.scenes import tree

from lakeops import Lake
from lakeops.machine import cores
from lakeops.model.errors import AlreadyExists, RepositoryNotFound
from lakeops.settings import CATALOG_FILE

sdk = pytest.importorskip("airflow.sdk")

from lakeops.airflow import operators  # noqa: E402

Run = Callable[..., dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """An operator, its arguments (``{place}`` is a directory of the test's), and what it starts from."""

    operator: str
    arguments: dict[str, Any]
    prepare: Callable[[Lake, str], None]

    def make(self, lake, repo, place):
        return self.kind(task_id=self.operator, repo=repo, **self.given(place), **self.bound(lake, repo))

    def bound(self, lake, repo):
        """Arguments that are another for each repository."""
        return {"mark_id": lake.repository(repo).gc.marks()[0].id} if self.operator == "GcSweep" else {}

    @property
    def kind(self):
        return getattr(operators, f"Lakeops{self.operator}Operator")

    def given(self, place):
        return {
            name: value.replace("{place}", str(place)) if isinstance(value, str) else value
            for name, value in self.arguments.items()
        }


def history(lake, name):
    """Two commits on main, and one on dev that changes another object."""
    repo = lake.create_repository(name)
    main = repo.branch("main")
    for message in ("one", "two"):
        main.put("a", message.encode())
        main.commit(message)
    dev = repo.create_branch("dev")
    dev.put("b", b"dev")
    dev.commit("dev")
    return repo


def stage(branch):
    branch.put("c", b"staged")
    branch.delete("a")


def staged(lake, name):
    stage(history(lake, name).branch("dev"))


def folder(lake, name):
    dev = history(lake, name).branch("dev")
    dev.put("in/1", b"1")
    dev.commit("folder")


def tagged(lake, name):
    history(lake, name).create_tag("old", "main~1")


def protected(lake, name):
    history(lake, name).protect("main")


def garbage(lake, name):
    with_garbage(name)


def marked(lake, name):
    with_garbage(name)
    lake.repository(name).gc.mark()


def mirrored(lake, name):
    """A mirror whose source's objects have all arrived."""
    source = history(lake, f"{name}-source")
    source.create_tag("v1", "main")
    mirror = lake.create_mirror(name, source=lake, source_repository=source.id)
    shutil.copytree(place_of(source), place_of(mirror), dirs_exist_ok=True)


def elsewhere(lake, name):
    """A repository in another lake, which a mirror of any name may follow."""
    home = lake.settings.home.parent / "place-source"
    with Lake.open(home=home, database_url=f"sqlite:///{home}/{CATALOG_FILE}") as other, suppress(AlreadyExists):
        other.create_repository("flights")


CASES = [
    Case("CreateRepository", {"storage_namespace": None, "default_branch": "trunk"}, lambda lake, name: None),
    Case("DeleteRepository", {}, history),
    Case("CreateBranch", {"branch": "new", "source": "main~1"}, history),
    Case("DeleteBranch", {"branch": "dev"}, staged),
    Case("ResetBranch", {"branch": "dev", "prefix": "c"}, staged),
    Case("MoveBranch", {"branch": "main", "ref": "main~1"}, history),
    Case("ProtectBranch", {"pattern": "release-*"}, history),
    Case("ProtectBranch", {"pattern": "main", "protected": False}, protected),
    Case("CreateTag", {"tag": "v1", "ref": "main"}, history),
    Case("MoveTag", {"tag": "old", "ref": "main"}, tagged),
    Case("DeleteTag", {"tag": "old"}, tagged),
    Case("Commit", {"branch": "dev", "message": "load"}, staged),
    Case("Commit", {"branch": "dev", "message": "empty", "on_empty": "commit"}, history),
    Case("Merge", {"source": "dev", "destination": "main", "message": "publish"}, history),
    Case("Revert", {"ref": "main", "parent_number": "1", "branch": "dev", "message": "undo"}, tagged),
    Case("CherryPick", {"ref": "dev", "branch": "main"}, history),
    Case("Import", {"source": "file://{place}", "prefix": "in", "branch": "dev", "message": "import"}, history),
    Case("Upload", {"source": "{place}", "path": "up/", "branch": "dev"}, history),
    Case("Upload", {"data": "text", "path": "up.txt", "branch": "dev"}, history),
    Case("DeleteObjects", {"paths": ["a", "not there"], "prefix": "in", "branch": "dev"}, folder),
    Case("Diff", {"left": "main", "right": "dev"}, history),
    Case("SqlCheck", {"ref": "main", "sql": "SELECT 1 WHERE false", "tables": {}}, history),
    Case("Fsck", {"data": "true"}, history),
    Case("ExpireRefs", {}, garbage),
    Case("GcMark", {}, garbage),
    Case("GcSweep", {"force": "false"}, marked),
    Case("CreateMirror", {"source": "{place}-source#flights", "branches": "['ma*']", "tags": "*"}, elsewhere),
    Case("MirrorDiscover", {}, mirrored),
    Case("MirrorPromote", {}, mirrored),
    Case("MirrorPromote", {"branch": "dev", "commit_id": "not this one"}, mirrored),
    Case("MirrorPromote", {"tag": "v1"}, mirrored),
]
READS = {"Diff", "SqlCheck", "Fsck", "GcMark", "MirrorDiscover"}

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.operator}-{'-'.join(case.arguments)}")


@pytest.fixture
def place(tmp_path):
    """A directory to upload and import from."""
    place = tmp_path / "place"
    (place / "deep").mkdir(parents=True)
    (place / "x").write_bytes(b"1")
    (place / "deep" / "y").write_bytes(b"2")
    return place


def state(lake, name):
    """All that a user sees of a repository, without ids and times."""
    try:
        repo = lake.repository(name)
    except RepositoryNotFound:
        return None
    return {
        "follows": repo.record.read_only
        and lake.mirror(name).configuration.source.text.rpartition("/")[2].replace(name, ""),
        "branches": {
            ref.id: (
                [commit.message for commit in repo.log(ref.id, first_parent=True)],
                tree(repo, ref.id),
                [change.to_json() for change in repo.branch(ref.id).uncommitted()],
            )
            for ref in repo.branches()
        },
        "tags": {tag.id: repo.ref(tag.commit_id).commit.message for tag in repo.tags()},
        "protections": repo.protections(),
        "objects": repo.gc.rules() and len(list((place_of(repo) / "data").rglob("*"))),
    }


def place_of(repo):
    return Path(repo.storage_namespace.removeprefix("file://"))


@pytest.fixture
def wanted(lake, place, run):
    """The end state when an operator runs once."""

    def wanted(case):
        case.prepare(lake, "once")
        before = state(lake, "once")
        run(case.make(lake, "once", place))
        after = state(lake, "once")
        assert (before == after) is (case.operator in READS), "the case shows what its operator does"
        return after

    return wanted


def test_the_table_has_every_operator():
    named = {name for name in operators.__all__ if name.endswith("Operator")}
    listed = {f"Lakeops{case.operator}Operator" for case in CASES}
    assert named - listed == {"LakeopsOperator", "LakeopsPublishOperator"}


@each_case
def test_run_twice_is_run_once(case, lake, place, run, wanted):
    end = wanted(case)
    case.prepare(lake, "twice")
    task = case.make(lake, "twice", place)
    first = run(task)
    assert isinstance(first, dict)
    second = run(task, try_number=2)
    assert state(lake, "twice") == end
    if "parents" in first or "reference" in first or case.operator in {"CreateTag", "CreateRepository"}:
        assert second == first, "what was published is found again"


PUBLISHING = [
    case for case in CASES if issubclass(case.kind, (operators.LakeopsPublishOperator, operators.LakeopsMergeOperator))
]


def destination(repo, case):
    return repo.branch(case.arguments.get("destination") or case.arguments["branch"])


def published(found):
    return found.get("reference", found.get("id"))


@pytest.mark.parametrize("case", PUBLISHING, ids=lambda case: f"{case.operator}-{'-'.join(case.arguments)}")
def test_what_was_taken_off_its_branch_is_published_again_by_a_cleared_task(case, lake, place, run, wanted):
    end = wanted(case)
    case.prepare(lake, "moved")
    branch = destination(lake.repository("moved"), case)
    task = case.make(lake, "moved", place)
    first = run(task)
    branch.move(f"{branch.id}~1", force=True)
    if case.prepare is staged:
        stage(branch)
    for number in (2, 3):
        found = run(task, try_number=number)
        assert found != first
        assert published(found) == branch.commit_id
        assert state(lake, "moved") == end


NAMED = {"CreateRepository", "DeleteRepository", "CreateMirror"}
"""Operators that are told which repository to make or to delete."""


@pytest.mark.parametrize("case", [case for case in CASES if case.operator not in NAMED], ids=lambda case: case.operator)
def test_without_a_repository_it_is_the_connections_default_one(case, lake, home, place, run, wanted, monkeypatch):
    end = wanted(case)
    case.prepare(lake, "default")
    connection = {"conn_type": "lakeops", "host": str(home), "extra": {"default_repository": "default"}}
    monkeypatch.setenv("AIRFLOW_CONN_MINE", json.dumps(connection))
    run(case.kind(task_id="t", lakeops_conn_id="mine", **case.given(place), **case.bound(lake, "default")))
    assert state(lake, "default") == end


Kill = Callable[[Case, int, str], bool]


@pytest.fixture
def kill(home, lake, place, run, wanted):
    """Kills a case's operator at an effect, clears it, and says whether it came as far as that effect."""
    ends: list[Any] = []

    def kill(case, effect, when):
        if not ends:
            ends.append(wanted(case))
        name = f"killed-{when}-{effect}"
        case.prepare(lake, name)
        task = case.make(lake, name, place)
        died = kill_at(home, effect, when, partial(run, task))
        found = run(task, try_number=2)
        assert state(lake, name) == ends[0], f"killed {when} effect {effect}"
        if case in PUBLISHING:
            assert published(found) == destination(lake.repository(name), case).commit_id
        return died

    return kill


@pytest.mark.parametrize("step", [6, pytest.param(1, marks=pytest.mark.slow)])
@each_case
def test_killed_at_every_effect_and_cleared_is_run_once(case, kill, step):
    """At the first and every sixth one in the default run, which are others for each operator; each of a publish."""
    step = 1 if case.operator in {"Commit", "Merge"} else step
    changes = kill(case, 1, "before")
    assert changes or case.operator in READS
    effect = 2 + CASES.index(case) % step
    while kill(case, effect, "before"):
        effect += step
    if step == 1 and changes:  # after one effect is before the next, but for the last one
        assert kill(case, effect - 1, "after")


@pytest.mark.slow
@each_case
def test_killed_after_every_effect_and_cleared_is_run_once(case, kill):
    effects = next(effect for effect in range(60) if not kill(case, effect + 1, "after"))
    assert effects >= (0 if case.operator in READS else 1)


@pytest.mark.parametrize("cases", [CASES[::9], pytest.param(CASES, marks=pytest.mark.slow)], ids=["some", "all"])
def test_mapped_over_two_repositories_each_is_run_once(airflow_database, lake, place, run, cases):
    ends = {}
    for number, case in enumerate(cases):
        for part in ("alone", "a", "b"):
            case.prepare(lake, f"{part}-{number:02}")
        run(case.make(lake, f"alone-{number:02}", place))
        ends.update(dict.fromkeys((f"a-{number:02}", f"b-{number:02}"), state(lake, f"alone-{number:02}")))
    with sdk.DAG(f"mapped-{len(cases)}", schedule=None) as dag:
        for number, case in enumerate(cases):
            each = [{"repo": name, **case.bound(lake, name)} for name in (f"a-{number:02}", f"b-{number:02}")]
            case.kind.partial(task_id=f"task-{number}", **case.given(place)).expand_kwargs(each)
    done = known(dag).test()
    assert {str(task.state) for task in done.get_task_instances()} == {"success"}
    assert {name: state(lake, name) for name in ends} == ends


LOADS = {
    "CreateBranch DeleteBranch DeleteTag ProtectBranch": set(),
    "CherryPick Commit CreateRepository CreateTag DeleteObjects DeleteRepository Diff ExpireRefs Import Merge "
    "CreateMirror GcSweep MirrorDiscover MirrorPromote MoveBranch MoveTag ResetBranch Revert Upload": {"pyarrow"},
    "SqlCheck": {"pyarrow", "duckdb"},
    "Fsck GcMark": {"pyarrow", "pandas"},
}
"""What operators load of the big packages. pyarrow loads pandas by itself, where that is installed, as soon as it makes
an array of Python values. Who runs each minute avoids that (``lakeops.model.arrow``), who runs once a day does not."""

LOADED = """
import json, os, sys
from types import SimpleNamespace
from airflow.sdk.execution_time.context import OutletEventAccessors
from lakeops import Lake
from lakeops.airflow import operators, sensors

with Lake.open():  # what all of them load is loaded once
    pass
instance = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=1)
for name, arguments in json.load(sys.stdin):
    if os.fork() == 0:
        task = getattr(sensors if name.endswith("Sensor") else operators, name)(task_id="t", **arguments)
        task.execute({"ti": instance, "task": task, "outlet_events": OutletEventAccessors(), "logical_date": None})
        roots = {module.partition(".")[0] for module in sys.modules}
        big = roots & {"boto3", "duckdb", "pandas", "polars", "pyarrow", "pyspark"}
        print("LOADED", name, *sorted(big), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0, name
"""


def in_a_process(program, given, place, environment=None):
    """The output of a new process that gets something as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
        cwd=place,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("small", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["small", "all"])
def test_each_operator_loads_what_its_verb_uses_and_nothing_else(lake, place, tmp_path, small):
    """In the default run those of refs and merges, and a sensor."""
    some = {"CreateBranch", "DeleteBranch", "ResetBranch", "ProtectBranch", "CreateTag", "DeleteTag", "Merge", "Diff"}
    wanted = {name: modules for names, modules in LOADS.items() for name in names.split()}
    wanted = {name: modules for name, modules in wanted.items() if not small or name in some | {"ExpireRefs"}}
    tagged(lake, "waits")
    given = [("LakeopsTagSensor", {"repo": "waits", "tag": "old", "deferrable": False})]
    for number, case in enumerate({case.operator: case for case in CASES if case.operator in wanted}.values()):
        name = f"loads-{number:02}"
        case.prepare(lake, name)
        arguments = {"repo": name, **case.given(place), **case.bound(lake, name)}
        given.append((f"Lakeops{case.operator}Operator", arguments))
    printed = in_a_process(LOADED, given, tmp_path)
    lines = [line.split()[1:] for line in printed.splitlines() if line.startswith("LOADED")]
    found = {name.removeprefix("Lakeops").removesuffix("Operator"): set(modules) for name, *modules in lines}
    assert found == {**wanted, "TagSensor": set()}


THREADS = """
import json, os, sys
from types import SimpleNamespace
from lakeops.airflow import operators

instance = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=1)
task = operators.LakeopsCommitOperator(task_id="t", **json.load(sys.stdin))
assert "numpy" not in sys.modules
task.execute({"ti": instance, "task": task, "outlet_events": {}, "logical_date": None})
assert "numpy" in sys.modules
print("THREADS", len(os.listdir("/proc/self/task")))
"""


@pytest.mark.slow
@pytest.mark.skipif(cores() < 2 or not Path("/proc/self/task").exists(), reason="one core has one thread anyway")
def test_a_task_starts_no_threads_for_linear_algebra(lake, place, tmp_path):
    case = next(case for case in CASES if case.operator == "Commit")

    def threads(asked):
        name = f"threads-{len(asked)}"
        case.prepare(lake, name)
        environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")} | asked
        arguments = {"repo": name, **case.given(place), "outlets": []}  # no events, so no server of Airflow is asked
        return int(in_a_process(THREADS, arguments, tmp_path, environment).split("THREADS")[1])

    assert threads({"OPENBLAS_NUM_THREADS": "2"}) == threads({}) + 1


FLAGS = {
    "allow_empty_source", "anew", "fail_on", "max_findings", "exist_ok", "max_changes", "checks", "on_empty",
    "on_newer", "protected", "reports", "skip_special", "two_way",
}  # fmt: skip
"""Parameters that are decided when the DAG is written."""


@pytest.mark.parametrize("name", sorted({f"Lakeops{case.operator}Operator" for case in CASES}))
def test_everything_a_user_names_is_a_template(name):
    kind = getattr(operators, name)
    named = {
        parameter.name
        for parent in kind.__mro__
        if parent.__module__.startswith("lakeops.")
        for parameter in inspect.signature(parent.__init__).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    } - FLAGS
    assert set(kind.template_fields) == named
    values = {"metadata": {"day": "{{ ds }}"}, "paths": ["{{ ds }}"]}
    with sdk.DAG(f"templates-{name}", schedule=None):
        operator = kind(task_id="task", **{field: values.get(field, "x-{{ ds }}") for field in named})
        operator.render_template_fields({"ds": "2013-01-01"})
    for field in named:
        assert "2013-01-01" in str(getattr(operator, field)), field
        assert "{{" not in str(getattr(operator, field)), field
