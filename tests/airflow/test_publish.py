"""The write-audit-publish block: in every outcome the destination has all of it or nothing, and the branch says why."""

import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
from support.errors import raising

from lakeops import Lake
from lakeops.model.errors import BranchMoved, InvalidInput
from lakeops.model.ids import Origin

sdk = pytest.importorskip("airflow.sdk")

from airflow.providers.common.compat.sdk import (  # noqa: E402
    AirflowFailException,
    AirflowSkipException,
    TaskDeferred,
    mask_secret,
)
from support.dags import known, states, tries  # noqa: E402

from lakeops.airflow.approval import LakeopsApprovalOperator  # noqa: E402
from lakeops.airflow.compat import TaskAwaitingInput  # noqa: E402
from lakeops.airflow.operators import LakeopsCommitOperator, LakeopsCreateBranchOperator, LakeopsRevertOperator  # noqa: E402
from lakeops.airflow.previews import MergeOutcome  # noqa: E402
from lakeops.airflow.publish import WriteAuditPublish  # noqa: E402

pytestmark = pytest.mark.usefixtures("airflow_database")

OWN = ("create_branch", "commit", "merge", "drop_branch")


def write_to(url, text):
    Path(f"{url}/part-0".removeprefix("file://")).write_text(text)


def build(name, *, finding=None, breaks=False, checked=True, meanwhile=None, **block):
    """A DAG that publishes two tables; ``meanwhile`` happens between the check and the merge."""
    with sdk.DAG(name, schedule=None, params={"weather": "rain"}) as dag:
        with WriteAuditPublish(
            repo="flights", message="Publish", metadata={"day": "1"}, task_args={"retry_delay": timedelta(0)}, **block
        ) as publish:

            @publish.output("flights/")
            def flights(url, text):
                write_to(url, text)
                return len(text)

            @publish.output("weather/", retries=0)
            def weather(url, params=None):
                write_to(url, params["weather"])
                if breaks:
                    raise RuntimeError("the source is down")

            @publish.check
            def complete(ref, rows):
                assert ref.read("flights/part-0") == b"f" * rows
                assert ref.read("weather/part-0") == b"rain" or not checked
                if meanwhile is not None:
                    meanwhile()
                return [] if finding is None else [finding]

            complete(flights("fff"))
            weather()

        @sdk.task
        def after():
            """The tasks that follow the block."""

        publish.merge >> after()
    return known(dag)


def branches(repository):
    return [branch.id for branch in repository.branches() if branch.id != "main"]


# --- outcomes ----------------------------------------------------------------------------------------------------
def test_all_tables_are_published_in_one_merge(flights):
    start = flights.branch("main").commit_id
    run = build("good").test()
    assert set(states(run).values()) == {"success"}
    merged, loaded = list(flights.log("main", amount=2))
    assert merged.parents == (start, loaded.id)
    assert (merged.message, merged.metadata["day"], loaded.metadata["day"]) == ("Publish", "1", "1")
    assert [entry.path for entry in flights.ref("main").list()] == ["flights/part-0", "weather/part-0"]
    assert branches(flights) == []


def test_a_writer_says_what_it_has_staged(flights, monkeypatch):
    said: list[str] = []
    log = SimpleNamespace(info=lambda text, *values: said.append(text % values))
    monkeypatch.setattr("lakeops.airflow.publish.log", log)
    monkeypatch.setattr("lakeops.airflow.task.log", log)
    monkeypatch.setitem(sys.modules, "lakeops.airflow.plugin", ModuleType("plugin"))
    ended = build("says").test()
    assert sorted(line.rpartition("+00:00")[2] for line in said if "is staged" in line) == [
        "/flights/ is staged: 1 added",
        "/weather/ is staged: 1 added",
    ]
    shown = {"publish.flights": ("branch", "uncommitted"), "publish.complete": ("commit", "commit")}
    for task, (kind, page) in shown.items():
        key = f"_link_Lakeops{kind.title()}Link"
        path = ended.get_task_instance(task).xcom_pull(task_ids=task, key=key)
        assert path.startswith(f"/lakeops/lakeops_default/flights/{page}/"), "the task's link"
        assert f"See the {kind}: http://127.0.0.1:8080{path}" in said


def other_commit(flights, path):
    def act():
        with Lake.open() as lake:
            main = lake.repository("flights").branch("main")
            main.put(path, b"theirs")
            main.commit("meanwhile")

    return act


@pytest.mark.parametrize(
    ("name", "options", "failed", "kept"),
    [
        ("finding", {"finding": "too few rows"}, "publish.complete", True),
        ("breaks", {"breaks": True}, "publish.weather", True),
        ("conflict", {"meanwhile": "flights/part-0"}, "publish.merge", True),
        ("no-source", {"source": "nowhere"}, "publish.create_branch", False),
    ],
)
def test_what_goes_wrong_publishes_nothing(flights, name, options, failed, kept):
    if "meanwhile" in options:
        options = {"meanwhile": other_commit(flights, options["meanwhile"])}
    run = build(name, **options).test()
    ended = states(run)
    assert ended[failed] == "failed"
    assert ended["publish.merge"] in {"failed", "upstream_failed"}
    assert ended["after"] == "upstream_failed"
    assert str(run.state) == "failed"
    assert tries(run)[failed] == 1, "trying again cannot mend it"
    assert not flights.ref("main").exists("weather/part-0")
    assert bool(branches(flights)) is kept
    if kept:
        (branch,) = branches(flights)
        assert branch.startswith(f"{name}:publish:manual__")
        assert flights.ref(branch).read("flights/part-0") == b"fff"
    if name == "finding":
        (one,) = flights.ref(f"{branch}@").verdicts()
        by = f"{name}.publish.complete"
        assert (one.state, one.findings, one.said_by, one.run) == ("failed", "too few rows", by, run.run_id)
        with raising("missing_check", "too few rows"):
            flights.merge(branch, "main")


@pytest.mark.parametrize("dropped", [False, True])
def test_a_failure_says_who_did_it_and_what_to_clear(flights, monkeypatch, dropped):
    monkeypatch.setitem(sys.modules, "lakeops.airflow.plugin", ModuleType("plugin"))
    told: list[str] = []
    heard = {"on_failure_callback": lambda context: told.append(str(context["exception"]))}
    with (
        sdk.DAG(f"told-{dropped}", schedule=None) as dag,
        WriteAuditPublish(repo="flights", message="m", task_args=heard) as publish,
    ):

        @publish.output("flights/", **heard)
        def write(url):
            write_to(url, "mine")
            with Lake.open() as lake:
                other = lake.repository("flights")
                if dropped:
                    other.delete_branch(branches(flights)[0])
                else:
                    made = Origin({"airflow_dag_id": "other", "airflow_run_id": "r", "airflow_task_id": "load"})
                    other.branch("main").put("flights/part-0", b"theirs")
                    other.branch("main").commit("their load", made)

        write()
    start = flights.branch("main").commit_id
    assert str(known(dag).test().state) == "failed"
    (said,) = told
    if dropped:
        deletion = next(one for one in flights.audit() if one.action == "delete-branch")
        words = (
            rf"{deletion.actor} deleted {deletion.ref!r} at 20[-\d]+ [:\d]+ .*, when it was at commit {start[:16]}\."
        )
        assert re.search(words.replace("+00:00", r"\+00:00"), said)
        assert "Clear the whole task group 'publish' to write it again" in said
        return
    (own,) = branches(flights)
    theirs = flights.branch("main").commit_id
    assert (
        "'flights/part-0' was changed at 'main' by ada, task 'load' of run 'r' of DAG 'other', "
        f"in commit {theirs[:16]} ('their load'). Branch {own!r} keeps the data of this run: "
        f"http://127.0.0.1:8080/lakeops/lakeops_default/flights/ref/{quote(own, safe='')}. "
        "Clear the whole task group 'publish' to begin anew at what 'main' is now"
    ) in said


def test_a_destination_that_moved_is_merged_with(flights):
    run = build("moved", meanwhile=other_commit(flights, "other/a")).test()
    assert str(run.state) == "success"
    assert [entry.path for entry in flights.ref("main").list()] == ["flights/part-0", "other/a", "weather/part-0"]


def test_a_strategy_settles_conflicts(flights):
    conflict = other_commit(flights, "flights/part-0")
    assert str(build("settled", meanwhile=conflict, strategy="source-wins").test().state) == "success"
    assert flights.ref("main").read("flights/part-0") == b"fff"


def test_a_head_that_others_move_all_the_time_is_tried_again(flights, monkeypatch):
    from lakeops.airflow.operators import LakeopsMergeOperator

    merge, moved = LakeopsMergeOperator.run_verb, [1, 2]

    def busy(self, *args):
        if moved:
            moved.pop()
            raise BranchMoved("others moved 'main' at every try")
        return merge(self, *args)

    monkeypatch.setattr(LakeopsMergeOperator, "run_verb", busy)
    run = build("busy").test()
    assert str(run.state) == "success"
    assert tries(run)["publish.merge"] == 3


def test_a_run_that_brings_nothing_new_publishes_nothing(flights):
    build("first").test()
    head = flights.branch("main").commit_id
    run = build("second").test()
    assert set(states(run).values()) == {"success"}
    assert flights.branch("main").commit_id == head
    assert branches(flights) == []


@pytest.mark.parametrize(("data", "merges"), [("rain", 1), ("snow", 2)])
def test_a_run_that_is_cleared_publishes_only_what_is_new(flights, first_parents, data, merges):
    dag, when = build(f"cleared-{data}", checked=False), datetime(2013, 1, 1, tzinfo=UTC)
    first = dag.test(run_after=when, logical_date=when)
    again = dag.test(run_after=when, logical_date=when, run_conf={"weather": data})
    assert (first.run_id, str(first.state), str(again.state)) == (again.run_id, "success", "success")
    assert first_parents("main") == ["Publish"] * merges
    assert flights.ref("main").read("weather/part-0") == data.encode()
    assert branches(flights) == []


def test_what_a_task_appends_is_there_once_however_often_it_runs(flights, monkeypatch):
    """It is killed when its files are staged, tried again, and cleared. Engines name files at random."""
    from lakeops.airflow.previews import DiffSummary

    summed_up, killed = DiffSummary.of, [True]

    def shown(*args):
        if killed.pop():
            killed.append(False)
            raise RuntimeError("killed")
        killed.append(True)
        return summed_up(*args)

    monkeypatch.setattr(DiffSummary, "of", shown)
    options: dict[str, Any] = {"repo": "flights", "message": "Publish", "task_args": {"retry_delay": timedelta(0)}}
    with sdk.DAG("appends", schedule=None) as dag, WriteAuditPublish(**options) as publish:

        @publish.output("events/", mode="append", retries=1, retry_delay=timedelta(0))
        def events(url):
            Path(f"{url}/{uuid4()}".removeprefix("file://")).write_text("rows")

        events()

    when = datetime(2013, 1, 1, tzinfo=UTC)
    known(dag)
    for moment, number in ((when, 1), (when, 1), (when + timedelta(days=1), 2)):
        ended = dag.test(run_after=moment, logical_date=moment)
        assert (str(ended.state), tries(ended)["publish.events"]) == ("success", 2)
        assert len(list(flights.ref("main").list("events/"))) == number


@pytest.mark.parametrize("native", [False, True])
def test_an_output_whose_prefix_a_template_made_no_text_of_replaces_nothing(flights, native):
    params: dict[str, Any] = {"empty": "", "none": None, "some": ["a", "b"], "day": 20130101}
    with (
        sdk.DAG(f"nothing-{native}", schedule=None, params=params, render_template_as_native_obj=native) as dag,
        WriteAuditPublish(repo="flights", message="Publish") as publish,
    ):
        for name in params:

            @publish.output(f"{{{{ params.{name} }}}}", task_id=name, retries=1, retry_delay=timedelta(0))
            def write(url):
                write_to(url, "x")

            write()
    other_commit(flights, "other/a")()
    ended = known(dag).test()
    failed = {name for name in params if states(ended)[f"publish.{name}"] == "failed"}
    assert failed == (params.keys() if native else params.keys() - {"day"})
    assert {tries(ended)[f"publish.{name}"] for name in failed} == {1}, "it says what is wrong, at once"
    assert [entry.path for entry in flights.ref("main").list()] == ["other/a"]


def once(act):
    left = [act]

    def first():
        if left:
            left.pop()()

    return first


@pytest.mark.parametrize("on_clear", ["anew", "keep"])
def test_a_run_that_ended_in_a_conflict_can_be_cleared_to_health(flights, on_clear):
    meanwhile = once(other_commit(flights, "flights/part-0"))
    dag, when = build(f"again-{on_clear}", meanwhile=meanwhile, on_clear=on_clear), datetime(2013, 1, 1, tzinfo=UTC)
    assert states(dag.test(run_after=when, logical_date=when))["publish.merge"] == "failed"
    assert len(branches(flights)) == 1
    again = states(dag.test(run_after=when, logical_date=when))
    if on_clear == "keep":
        assert again["publish.merge"] == "failed", "the branch still begins before what it conflicts with"
        return
    assert set(again.values()) == {"success"}
    assert flights.ref("main").read("flights/part-0") == b"fff"
    assert branches(flights) == []


def test_a_branch_that_only_some_writers_write_again_is_kept(flights, run):
    """Clearing one writer clears the task that makes the branch too, and the other one's data must not go with it."""
    with sdk.DAG("some", schedule=None):
        create = LakeopsCreateBranchOperator(task_id="create", repo="flights", branch="own", anew=True)
        create >> [sdk.task(lambda: None, task_id=name)() for name in ("one", "two")]
    asked: list[Any] = []

    def below(state):
        def get_task_states(**which):
            asked.append(which["task_ids"])
            return {run.run_id: {"one": None, "two": state}}

        return replace(run, more={"get_task_states": get_task_states})

    below(None)(create)
    own = flights.branch("own")
    own.put("a", b"1")
    below("success")(create)
    assert own.exists("a")
    below(None)(create)
    assert not flights.branch("own").exists("a")
    assert asked == [["one", "two"]] * 3
    flights.branch("own").put("b", b"1")
    flights.branch("own").commit("by hand")
    with pytest.raises(AirflowFailException, match="already_exists"):
        below(None)(create)
    assert flights.branch("own").exists("b"), "somebody else's commit is kept"


@pytest.mark.parametrize(
    ("on_newer", "state", "data"),
    [
        ("publish", "success", "hail"),
        ("publish", "success", "rain"),
        ("skip", "skipped", "hail"),
        ("fail", "failed", "hail"),
    ],
)
def test_an_older_run_that_is_cleared_goes_over_newer_data_only_if_it_may(flights, on_newer, state, data):
    dag = build(f"newer-{on_newer}-{data}", checked=False, on_newer=on_newer)
    older, newer = (datetime(2013, 1, day, tzinfo=UTC) for day in (1, 2))
    for when, weather in ((older, "rain"), (newer, "snow")):
        ended = states(dag.test(run_after=when, logical_date=when, run_conf={"weather": weather}))
        assert ended["publish.merge"] == "success"
    ended = states(dag.test(run_after=older, logical_date=older, run_conf={"weather": data}))
    assert ended["publish.merge"] == state
    assert flights.ref("main").read("weather/part-0") == (data.encode() if on_newer == "publish" else b"snow")


@pytest.mark.parametrize("on_newer", ["skip", "fail"])
def test_a_backfill_of_daily_partitions_publishes_all_of_them(flights, on_newer):
    """The latest day comes first, so a run of a later date has always published before."""
    with (
        sdk.DAG(f"backfill-{on_newer}", schedule=None, params={"all": 0}) as dag,
        WriteAuditPublish(repo="flights", message="Publish {{ ds }}", on_newer=on_newer) as publish,
    ):

        @publish.output("days/day={{ ds }}/")
        def day(url, day):
            write_to(url, day)

        @publish.output("all/", allow_empty=True)
        def everything(url, params=None):
            if params["all"]:
                write_to(url, str(params["all"]))

        day("{{ ds }}")
        everything()
    dag = known(dag)
    dates = [datetime(2013, 1, number, tzinfo=UTC) for number in range(14, 0, -1)]
    for when in dates:
        ended = states(dag.test(run_after=when, logical_date=when))
        assert ended["publish.merge"] == "success"
    published = [entry.path for entry in flights.ref("main").list()]
    assert published == [f"days/day=2013-01-{number:02}/part-0" for number in range(1, 15)]
    for when, state in ((dates[0], "success"), (dates[1], {"skip": "skipped", "fail": "failed"}[on_newer])):
        ended = states(dag.test(run_after=when, logical_date=when, run_conf={"all": when.day}))
        assert ended["publish.merge"] == state
    assert flights.ref("main").read("all/part-0") == b"14", "the run of an earlier day wrote the same output"


@pytest.mark.parametrize(
    "operator",
    [
        LakeopsCommitOperator(task_id="t", repo="flights", branch="main", message="m", on_empty="skip"),
        LakeopsRevertOperator(task_id="t", repo="flights", ref="main~1", branch="main", on_empty="skip"),
    ],
)
def test_the_reason_of_a_skip_is_the_tasks_last_line(flights, run, operator, capsys):
    for text in (b"1", b"2", b"1"):
        flights.branch("main").put("a", text)
        flights.branch("main").commit("load")
    with pytest.raises(AirflowSkipException) as skipped:
        run(operator)
    assert f"Skipped: {skipped.value}" in capsys.readouterr().out.splitlines()[-1]


def test_what_is_merged_is_what_was_checked(flights):
    def sneak():
        with Lake.open() as lake:
            repository = lake.repository("flights")
            branch = repository.branch(next(name.id for name in repository.branches() if name.id != "main"))
            branch.put("flights/late", b"unchecked")
            branch.commit("after the check")

    run = build("sneak", meanwhile=sneak).test()
    assert str(run.state) == "success"
    assert not flights.ref("main").exists("flights/late")
    (branch,) = branches(flights)
    assert flights.ref(branch).read("flights/late") == b"unchecked", "it is not lost either"


# --- how it is put together --------------------------------------------------------------------------------------
def test_the_order_of_a_block(home):
    dag = build("order", approval=True)
    downstream = {name.removeprefix("publish."): task.downstream_task_ids for name, task in dag.task_dict.items()}
    assert downstream == {
        "create_branch": {"publish.flights", "publish.weather", "publish.drop_branch"},
        "flights": {"publish.commit", "publish.complete"},
        "weather": {"publish.commit"},
        "commit": {"publish.complete"},
        "complete": {"publish.approve"},
        "approve": {"publish.merge"},
        "merge": {"publish.drop_branch", "after"},
        "drop_branch": set(),
        "after": set(),
    }
    assert dag.get_task("publish.create_branch").is_setup
    assert dag.get_task("publish.drop_branch").is_teardown
    assert dag.get_task("publish.flights").doc is None or "flights" in str(dag.get_task("publish.flights").doc)
    assert dag.get_task("publish.merge").retries == 3


def test_tasks_of_any_kind_may_stand_in_a_block(home):
    with (
        sdk.DAG("any", schedule=None) as dag,
        WriteAuditPublish("load", repo="flights", message="m", prefix_group_id=False) as publish,
    ):

        @sdk.task
        def spark(uri):
            """Anything that writes."""

        @publish.check
        def rows(ref):
            """Anything that looks."""

        @sdk.task
        def tell(found):
            """Anything that comes after a check."""

        spark(publish.uri("events/"))
        tell(rows())
    assert dag.get_task("commit").downstream_task_ids == {"rows"}
    assert dag.get_task("tell").downstream_task_ids == {"merge"}
    assert dag.get_task("spark").op_args == (
        "lakefs://flights/{{ dag.dag_id }}:load:{{ run_id | replace('~', '-') }}/events/",
    )


def test_blocks_of_one_name_in_two_groups_work_on_branches_of_their_own(flights):
    """They would publish what the other one has staged, or drop it."""
    with sdk.DAG("twice", schedule=None) as dag:
        for name in ("flights", "weather"):
            with sdk.TaskGroup(name), WriteAuditPublish(repo="flights", message=name) as publish:

                @publish.output(f"{name}/")
                def write(url, text):
                    write_to(url, text)

                @publish.check
                def alone(ref, name):
                    return [entry.path for entry in ref.list() if not entry.path.startswith(f"{name}/")]

                alone(name)
                write(name)
    assert known(dag).test().state == "success"
    assert [entry.path for entry in flights.ref("main").list()] == ["flights/part-0", "weather/part-0"]
    assert {commit.message for commit in flights.log("main", amount=4)} == {"flights", "weather"}


def test_a_block_in_a_mapped_group_is_one_for_each_instance(flights):
    with sdk.DAG("mapped-group", schedule=None) as dag:

        @sdk.task_group
        def load(name):
            with WriteAuditPublish(repo="flights", message="Publish") as publish:

                @publish.output("{{ ti.map_index }}/")
                def write(url, text):
                    write_to(url, text)

                @publish.check
                def alone(ref, ti=None):
                    return [] if ref.exists(f"{ti.map_index}/part-0") else [f"{ti.map_index} is not there"]

                alone()
                write(name)

        load.expand(name=["a", "b", "c"])
    run = known(dag).test()
    assert (run.state, set(states(run).values())) == ("success", {"success"})
    main = flights.ref("main")
    assert {entry.path: main.read(entry.path) for entry in main.list()} == {
        "0/part-0": b"a",
        "1/part-0": b"b",
        "2/part-0": b"c",
    }
    merged = list(flights.log("main", first_parent=True))[:3]
    assert {commit.metadata["airflow_map_index"] for commit in merged} == {"0", "1", "2"}
    assert branches(flights) == []


def test_a_block_in_a_mapped_group_begins_anew_where_its_own_instance_was_cleared(flights):
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import update

    with sdk.DAG("mapped-clear", schedule=None) as dag:

        @sdk.task
        def other_instance_has_written(run_id=None):
            first = (TaskInstance.task_id == "load.publish.write", TaskInstance.map_index == 0)
            with Lake.open() as lake, create_session() as session:
                for index in (0, 1):
                    name = f"mapped-clear:load.publish:{run_id}:{index}"
                    lake.repository("flights").create_branch(name).put(f"{index}/old", b"old")
                session.execute(update(TaskInstance).where(*first).values(state="success"))

        @sdk.task_group
        def load(name):
            with WriteAuditPublish(repo="flights", message="Publish") as publish:

                @publish.output("{{ ti.map_index }}/new/")
                def write(url, text):
                    write_to(url, text)

                write(name)

        other_instance_has_written() >> load.expand(name=["a", "b"])
    assert set(states(known(dag).test()).values()) == {"success"}
    assert [entry.path for entry in flights.ref("main").list()] == ["0/old", "1/new/part-0"]


def test_branches_of_two_dags_are_never_one():
    """Scheduled runs of the same moment have the same id."""
    names = set()
    for dag, group in (("load", "flights-publish"), ("load-flights", "publish")):
        with sdk.DAG(dag, schedule=None):
            named = WriteAuditPublish(group, repo="flights", message="m").branch
        names.add(named.replace("{{ dag.dag_id }}", dag))
    assert len(names) == 2


def test_tasks_of_a_block_may_be_mapped(flights):
    with sdk.DAG("mapped-block", schedule=None) as dag, WriteAuditPublish(repo="flights", message="m") as publish:

        @publish.output("days/{{ task.op_kwargs['day'] }}/")
        def days(url, day, text):
            write_to(url, text * day)
            return day

        @publish.check
        def sizes(ref, day):
            return [] if len(ref.read(f"days/{day}/part-0")) == day else [f"day {day}"]

        sizes.expand(day=days.partial(text="x").expand(day=[1, 2, 3]))
    assert set(states(known(dag).test()).values()) == {"success"}
    assert [entry.path for entry in flights.ref("main").list()] == [f"days/{day}/part-0" for day in (1, 2, 3)]
    assert len(list(flights.log("main", first_parent=True))) == 2, "one merge, whatever the number of days"


CALLS: dict[str, Callable[[Any, list[int]], Any]] = {
    "call": lambda task, days: [task(day) for day in days],
    "override": lambda task, days: [task.override(task_id=f"{task.__name__}_{day}", retries=0)(day) for day in days],
    "partial": lambda task, days: [task.partial(day=day)() for day in days],
    "override and expand": lambda task, days: task.override(retries=0).expand(day=days),
    "expand_kwargs": lambda task, days: task.expand_kwargs([{"day": day} for day in days]),
    "override and expand_kwargs": lambda task, days: (
        task.partial().override(retries=0).expand_kwargs([{"day": day} for day in days])
    ),
}
"""The ways to make tasks of a function, as TaskFlow has them."""


@pytest.mark.parametrize("way", CALLS)
def test_the_tasks_of_a_block_are_made_as_any_taskflow_task_is(flights, way):
    dag = sdk.DAG(f"way-{way.replace(' ', '-')}", schedule=None)
    with dag, WriteAuditPublish(repo="flights", message="m") as publish:

        @publish.output("days/{{ (task.op_args or [task.op_kwargs['day']])[0] }}/", pool="default_pool")
        def write(url, day):
            write_to(url, "x" * day)

        @publish.check(pool="default_pool", retries=1, queue="audits")
        def size(ref, day):
            return [] if len(ref.read(f"days/{day}/part-0")) == day else [f"day {day}"]

        CALLS[way](write, [1, 2])
        CALLS[way](size, [1, 2])
    run = known(dag).test()
    assert set(states(run).values()) == {"success"}
    main = flights.branch("main")
    assert [entry.path for entry in main.list()] == ["days/1/part-0", "days/2/part-0"]
    found = {one.name: one.state for one in flights.ref(main.head.parents[1]).verdicts()}
    sizes = {name.removeprefix("publish."): task for name, task in dag.task_dict.items() if "size" in name}
    assert {name.partition("[")[0] for name in found} == sizes.keys()
    assert set(found.values()) == {"passed"}
    wanted = 0 if "override" in way else 1
    assert {(task.queue, task.retries) for task in sizes.values()} == {("audits", wanted)}


def test_the_functions_of_a_block_are_tested_without_airflow(home, tmp_path):
    with sdk.DAG("functions", schedule=None), WriteAuditPublish(repo="flights", message="m") as publish:

        @publish.output("a/")
        def write(url, text="x"):
            """Write a file."""
            write_to(url, text)
            return text

        @publish.check
        def complete(ref):
            return ["nothing"]

        write()
    assert write.partial(text="a").override(retries=1).function(f"file://{tmp_path}", "abc") == "abc"
    assert (tmp_path / "part-0").read_text() == "abc"
    assert (write.__name__, write.__doc__, complete.function(None)) == ("write", "Write a file.", ["nothing"])


def test_a_block_that_cannot_work_is_refused_when_the_dag_is_read(home):
    with (
        pytest.raises(InvalidInput, match="block 'publish' has nothing to publish"),
        sdk.DAG("empty", schedule=None),
        WriteAuditPublish(message="m"),
    ):
        pass
    with pytest.raises(InvalidInput, match="give the block a repo"), sdk.DAG("uri", schedule=None):
        WriteAuditPublish(message="m").uri("a")


def test_a_call_that_does_not_fit_is_refused_when_the_dag_is_read(home):
    with (
        sdk.DAG("call", schedule=None),
        pytest.raises(TypeError, match="'day'"),
        WriteAuditPublish(message="m") as publish,
    ):

        @publish.output("flights/")
        def flights(url, day):
            """Write a day."""

        flights(days="1")


# --- approval ----------------------------------------------------------------------------------------------------
def change(flights):
    branch = flights.create_branch("dev")
    branch.put("flights/`a`", b"12")
    return branch.commit("load").id


def approve(**kwargs):
    return LakeopsApprovalOperator(
        **{"task_id": "approve", "repo": "flights", "source": "dev", "destination": "main", **kwargs}
    )


def ask(task, context):
    """Park a task that asks, and return what Airflow keeps for the process that takes the answer."""
    with pytest.raises((TaskAwaitingInput, TaskDeferred)) as parked:
        task.execute(context)
    return parked.value.kwargs


def answered_with(event, monkeypatch, meanwhile=lambda: None):
    """Answer each question of an approval in the same process, and return the tasks' sources."""
    asks, seen = LakeopsApprovalOperator.execute, []
    monkeypatch.setattr("airflow.providers.standard.operators.hitl.upsert_hitl_detail", lambda **_: None)

    def answered(self, context):
        seen.append(self.source)
        with pytest.raises((TaskAwaitingInput, TaskDeferred)) as parked:
            asks(self, context)
        meanwhile()
        return self.execute_complete(context, event, **parked.value.kwargs)

    monkeypatch.setattr(LakeopsApprovalOperator, "execute", answered)
    return seen


AT, ADA = datetime(2026, 1, 1, tzinfo=UTC), {"id": "7", "name": "ada"}


def answer(option, user=ADA):
    """The event of an answer in Airflow's form."""
    return {"chosen_options": [option], "params_input": {}, "responded_at": AT, "responded_by_user": user}


HEADER = ("| change | path | bytes |", "|---|---|---|")


class Told(dict[str, Any]):
    """A task instance that keeps its XComs. Whoever may edit those edits them here."""

    task_id, map_index, max_tries = "approve", -1, 3

    def xcom_push(self, *, key, value):
        self[key] = value

    def xcom_pull(self, *, key, **_):
        return self.get(key)


CONTEXT: Any = {"task_instance": SimpleNamespace(id="1"), "ti": Told()}


def test_a_person_sees_the_diff(flights, asked):
    head = change(flights)
    with pytest.raises(TaskAwaitingInput):
        approve(body="Look closely.").execute(CONTEXT)
    (form,) = asked
    assert form["subject"] == "Publish 'load' to lakefs://flights/main?"
    assert form["options"] == ["Approve", "Reject"]
    assert form["body"].split("\n\n") == [
        "Look closely.",
        f"Merging commit `{head[:16]}` into `lakefs://flights/main` changes this: **1 added** (2 B)",
        "\n".join([*HEADER, "| added | `flights/'a'` | 2 |"]),
    ]


def test_a_form_sums_up_what_is_much_and_leads_to_the_whole(flights, asked, monkeypatch):
    monkeypatch.setitem(sys.modules, "lakeops.airflow.plugin", ModuleType("plugin"))
    monkeypatch.setattr("lakeops.airflow.previews.FOLDERS", 2)
    branch = flights.create_branch("dev")
    with branch.batch() as batch:
        for path in ("alone", "c/d/1", "d/1", *(f"b/{number:02}" for number in range(18))):
            batch.put(path, b"12")
    head = branch.commit("load").id
    context = {"task_instance": SimpleNamespace(id="1"), "ti": Told()}
    task = approve()
    kept = ask(task, context)
    page = f"/lakeops/lakeops_default/flights/diff?left=main&right={head}"
    _, by_folder, _, link = asked[0]["body"].split("\n\n")
    assert by_folder.splitlines() == [
        "| folder | changes | size |",
        "|---|---|---|",
        "| outside of folders | 1 | 2 B |",
        "| `b/` | 18 | 36 B |",
        "| other folders | 2 | 4 B |",
    ]
    assert link == f"[Compare `lakefs://flights/main` with `{head[:16]}`]({page})"
    later = approve(fail_on_reject=True)
    with pytest.raises(AirflowFailException, match=r"somebody rejected it: Publish 'load' to lakefs://"):
        later.execute_complete(context, answer("Reject", user=None), **kept)
    for asking in (task, later):
        (found,) = asking.operator_extra_links
        assert found.get_link(asking, ti_key=None) == page, "also in the process that takes the answer"


def test_a_form_is_safe_from_what_paths_hold_and_stays_short(flights, asked, monkeypatch):
    monkeypatch.setattr("lakeops.airflow.previews.LISTED", 2)
    branch = flights.create_branch("dev")
    for path in ("a|b`![x](http://x)", "c\n| d |", "e", "f"):
        branch.put(path, b"1")
    branch.commit("load")
    with pytest.raises(TaskAwaitingInput):
        approve().execute(CONTEXT)
    assert asked[0]["body"].split("\n\n")[1:] == [
        "\n".join([*HEADER, "| added | `a\\|b'![x](http://x)` | 1 |", "| added | `c?\\| d \\|` | 1 |"]),
        "... and 2 more",
    ]


class Store(dict[str, Any]):
    """A task's state, as tries share it."""

    def set(self, key, value):
        self[key] = value


@pytest.mark.needs_airflow("3.3")  # tasks have a state
def test_an_answer_counts_though_airflow_has_failed_the_try(flights, asked):
    change(flights)
    told = Told()
    context: Any = {**CONTEXT, "ti": told, "task_state_store": Store()}
    kept = ask(approve(), context)
    with pytest.raises(TaskDeferred) as again:
        approve().execute(context)
    assert len(asked) == 1, "asking again would throw the answer away"
    assert again.value.kwargs == kept
    _, given = again.value.trigger.serialize()
    assert (again.value.method_name, given["ti_id"], given["options"]) == (
        "execute_complete",
        "1",
        ["Approve", "Reject"],
    )
    flights.branch("dev").put("more", b"1")
    flights.branch("dev").commit("more")
    kept = ask(approve(), context)
    assert len(asked) == 2, "the answer was about something else"
    for _ in range(2):
        approve().execute_complete(context, answer("Approve"), **kept)
        with pytest.raises(TaskDeferred):
            approve().execute(context)
        assert len(asked) == 2, "Airflow has failed a try that had gone by the answer"
    told.max_tries = 4
    with pytest.raises(TaskAwaitingInput):
        approve().execute(context)
    assert len(asked) == 3, "a task that is cleared after its answer asks again"


def test_an_approval_outlives_some_failed_tries():
    assert (approve().retries, approve(retries=0).retries) == (3, 0)


def test_a_form_keeps_its_answer_in_the_next_try(airflow_database):
    """The question that an approval rests on: Airflow moves it to the next try, with its answer."""
    from airflow.models.hitl import HITLDetail
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with sdk.DAG("keeps", schedule=None) as dag:
        sdk.task(lambda: None, task_id="approve")()
    (task,) = known(dag).test().get_task_instances()
    with create_session() as session:
        session.add(HITLDetail(ti_id=task.id, options=["Yes"], subject="?", chosen_options=["Yes"]))
    with create_session() as session:
        kept = session.scalar(select(TaskInstance).where(TaskInstance.id == task.id))
        kept.prepare_db_for_next_try(session=session)
        session.flush()
        assert kept.id != task.id
        assert session.scalar(select(HITLDetail.chosen_options).where(HITLDetail.ti_id == kept.id)) == ["Yes"]


def test_airflow_gives_a_parked_task_what_it_was_parked_with(airflow_database):
    """The commit that an answer is about rests on it: no XCom and no template names that commit."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.trigger import handle_event_submit
    from airflow.sdk.serde import deserialize, serialize
    from airflow.triggers.base import TriggerEvent
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with sdk.DAG("parks", schedule=None) as dag:
        sdk.task(lambda: None, task_id="approve")()
    (task,) = known(dag).test().get_task_instances()
    with create_session() as session:
        parked = session.scalar(select(TaskInstance).where(TaskInstance.id == task.id))
        parked.next_kwargs = serialize({"about": "abc"})
        handle_event_submit(TriggerEvent({"chosen_options": ["Approve"]}), task_instance=parked, session=session)
        assert deserialize(parked.next_kwargs) == {"about": "abc", "event": {"chosen_options": ["Approve"]}}


@pytest.mark.parametrize(
    ("user", "name"), [({"id": "7", "name": "ada"}, "ada"), ({"id": "7", "name": ""}, "7"), (None, None)]
)
def test_the_answer_says_who_approved(flights, asked, user, name):
    change(flights)
    kept = ask(approve(), CONTEXT)
    found = approve().execute_complete(CONTEXT, answer("Approve", user=user), **kept)
    assert (found["approved_by"], found["approved_at"], found["source"]) == (name, AT.isoformat(), "dev")


@pytest.mark.parametrize("option", ["Approve", "Reject"])
def test_an_approval_is_a_check_that_the_shown_commit_has_passed(flights, asked, option):
    shown = change(flights)
    kept = ask(approve(), CONTEXT)
    flights.branch("dev").put("more", b"1")
    later = flights.branch("dev").commit("after the question").id
    CONTEXT["ti"].update(dict.fromkeys(["commit", *CONTEXT["ti"]], later))  # somebody edits the XComs
    event = answer(option)
    event["params_input"] = {"reason": "seen it"}
    approve(on_reject="skip").execute_complete(CONTEXT, event, **kept)
    found = [(one.name, one.word, one.said_by, one.findings) for one in flights.ref(shown).verdicts()]
    good = ("passed", "ada", "") if option == "Approve" else ("rejected", "ada", "seen it")
    assert found == [("approval", *good)]
    assert flights.ref(later).verdicts() == []


def test_an_answer_about_another_commit_counts_for_none(flights, asked):
    """The source of a block's approval is an XCom, which somebody may edit while the form waits."""
    shown = change(flights)
    flights.branch("dev").put("more", b"1")
    later = flights.branch("dev").commit("not shown").id
    kept = ask(approve(source=shown), CONTEXT)
    for parked in (kept, {}):
        with pytest.raises(AirflowFailException, match=f"nobody was asked about source '{later}'.*clear the task"):
            approve(source=later).execute_complete(CONTEXT, answer("Approve"), **parked)
    assert flights.ref(shown).verdicts() == flights.ref(later).verdicts() == []


def test_a_rejection_and_silence_are_not_asked_about_again(flights, asked):
    change(flights)
    kept, rejected = ask(approve(subject="Now?"), CONTEXT), answer("Reject")
    with pytest.raises(AirflowFailException, match=r"^ada rejected it: Now\?$"):
        approve().execute_complete(CONTEXT, rejected, **kept)
    rejected["params_input"] = {"reason": "the tenth is missing"}
    with pytest.raises(AirflowFailException, match=r"^ada rejected it: Now\? \(the tenth is missing\)$"):
        approve().execute_complete(CONTEXT, rejected, **kept)
    with pytest.raises(AirflowFailException, match=r"^nobody answered in time: Now\?$"):
        approve().execute_complete(CONTEXT, {"error": "no response", "error_type": "timeout"}, **kept)


def test_nobody_is_asked_about_nothing(flights, asked):
    flights.create_branch("dev")
    assert approve().execute(CONTEXT)["approved_by"] is None
    assert not asked


def test_a_merge_that_changes_no_object_is_asked_about(flights, asked):
    """It publishes a commit; and until then the destination may lose what makes it change nothing."""
    change(flights)
    flights.branch("main").put("flights/`a`", b"12")
    flights.branch("main").commit("the same")
    with pytest.raises(TaskAwaitingInput):
        approve().execute(CONTEXT)
    assert "changes **no object**" in asked[0]["body"]
    flights.merge("dev", "main")
    assert approve().execute(CONTEXT)["approved_by"] is None
    assert len(asked) == 1


def test_a_conflict_fails_before_anybody_is_asked(flights, asked, monkeypatch):
    change(flights)
    other_commit(flights, "flights/`a`")()
    task, (link,) = approve(), LakeopsApprovalOperator.operator_extra_links
    with monkeypatch.context() as shown:
        shown.setitem(sys.modules, "lakeops.airflow.plugin", ModuleType("plugin"))
        with pytest.raises(AirflowFailException, match=r"(?s)conflicts with 'main' on 1 path.*\nflights/`a`$"):
            task.execute(CONTEXT)
    assert not asked
    assert "/diff?left=main&right=" in link.get_link(task, ti_key=None), "whoever must settle it wants to see it"
    with pytest.raises(TaskAwaitingInput):
        approve(strategy="source-wins").execute(CONTEXT)
    assert "changes this: **1 changed** (2 B) (`source-wins` settles **1 conflict**)" in asked[0]["body"]
    with pytest.raises(TaskAwaitingInput):
        approve(strategy="dest-wins").execute(CONTEXT)
    assert "changes **no object**; it records that the commit is merged (`dest-wins`" in asked[1]["body"]


def test_a_missing_ref_is_named(flights, asked):
    with pytest.raises(AirflowFailException, match=r"ref_not_found.*'gone'"):
        approve(source="gone").execute(CONTEXT)


@pytest.mark.parametrize(("path", "published"), [("flights/part-0", False), ("else/where", True)])
def test_what_was_approved_is_published_or_nothing(flights, monkeypatch, path, published):
    answered_with(answer("Approve"), monkeypatch, other_commit(flights, path))
    run = build(f"approved-{published}", approval=True, strategy="source-wins").test()
    assert states(run)["publish.merge"] == ("success" if published else "failed")
    assert tries(run)["publish.merge"] == 1
    assert flights.ref("main").exists("weather/part-0") is published
    if not published:
        assert flights.ref("main").read("flights/part-0") == b"theirs", "nobody has agreed to undo that"


def test_an_approval_counts_for_what_it_has_shown_alone(flights, monkeypatch):
    """Others change what the merge would do, so the approval is cleared. Then somebody marks it as success."""
    answered_with(answer("Approve"), monkeypatch, other_commit(flights, "flights/part-0"))
    dag, when = build("once", approval=True, strategy="source-wins", on_clear="keep"), datetime(2013, 1, 1, tzinfo=UTC)
    for marked in (None, r"publish\.approve"):
        ended = states(dag.test(run_after=when, logical_date=when, mark_success_pattern=marked))
        assert (ended["publish.approve"], ended["publish.merge"]) == ("success", "failed")
        assert flights.ref("main").read("flights/part-0") == b"theirs"


@pytest.mark.parametrize(
    "event", [None, answer("Approve", user=None), {"error": "no response", "error_type": "timeout"}]
)
def test_what_was_shown_is_told_once_a_person_has_answered(flights, asked, event):
    change(flights)
    told = Told()
    context: Any = {**CONTEXT, "ti": told}
    kept = ask(approve(), context)
    if event:
        with suppress(AirflowFailException):
            approve().execute_complete(context, event, **kept)
    assert "shown" not in told
    approve().execute_complete(context, answer("Approve"), **kept)
    assert told["shown"] == MergeOutcome.of(flights, "main", "dev").shown


def test_a_branch_that_requires_the_checks_of_a_block_takes_what_it_checked(flights):
    flights.require_check("main", "complete")
    flights.create_branch("dev").put("x", b"1")
    flights.branch("dev").commit("unchecked")
    with raising("missing_check", "lacks 'complete'"):
        flights.merge("dev", "main")
    run = build("checked").test()
    assert states(run)["publish.merge"] == "success"
    source = flights.branch("main").head.parents[1]
    assert [check.name for check in flights.ref(source).verdicts()] == ["complete"]


@pytest.mark.parametrize(("option", "on_reject"), [("Approve", "fail"), ("Reject", "fail"), ("Reject", "skip")])
def test_the_answer_decides(flights, monkeypatch, option, on_reject):
    seen = answered_with(answer(option), monkeypatch)
    run = build(f"answer-{option}-{on_reject}", approval={"subject": "Now?", "on_reject": on_reject}).test()
    ended = states(run)
    agreed = option == "Approve"
    stopped = "skipped" if on_reject == "skip" else "upstream_failed"
    assert (ended["publish.merge"], ended["after"]) == (("success",) * 2 if agreed else (stopped,) * 2)
    assert (run.state == "failed") is (not agreed and on_reject == "fail")
    assert ended["publish.drop_branch"] == "success"
    assert flights.ref("main").exists("flights/part-0") is agreed
    assert bool(branches(flights)) is not agreed, "what was rejected stays to be looked at"
    head = flights.branch("main").head
    if agreed:
        assert head.metadata["approved_by"] == "ada"
        assert seen == [head.parents[1]], "what was approved is what was merged"


# --- verdicts: what a check found, and not what a task's state says -----------------------------------------------
def verdicts_of(repository):
    """The verdicts on the commit of the branch that a block has left."""
    (branch,) = branches(repository)
    return {one.name: str(one) for one in repository.ref(f"{branch}@").verdicts()}


@pytest.mark.parametrize("finding", [None, "amount -1"])
@pytest.mark.parametrize("marked", ["complete", "approve"])
def test_a_task_that_is_marked_as_success_is_no_verdict(flights, marked, finding, monkeypatch):
    answered_with(answer("Approve"), monkeypatch)
    dag = build(f"marked-{marked}-{finding is None}", finding=finding, approval=True, on_clear="keep")
    run = dag.test(mark_success_pattern=rf"publish\.{marked}")
    if marked == "approve" and finding:
        assert states(run)["publish.complete"] == "failed"
        assert verdicts_of(flights)["complete"].startswith("'complete' failed by marked-approve-False.publish")
    else:
        assert states(run)[f"publish.{marked}"] == "success"
        assert (states(run)["publish.merge"], tries(run)["publish.merge"]) == ("failed", 1)
    name = {"complete": "complete", "approve": "approval"}[marked]
    assert verdicts_of(flights)[name] == f"{name!r} waiting"
    assert not flights.ref("main").exists("flights/part-0")
    (branch,) = branches(flights)
    for act in (flights.preview_merge, flights.merge):
        with raising("missing_check", f"{name!r} waiting"):
            act(branch, "main")


def many_checks(name, answers, at_first=lambda: None):
    """A DAG whose block has a mapped check, with an instance for each answer."""
    once_each = {"retries": 0}
    with (
        sdk.DAG(name, schedule=None) as dag,
        WriteAuditPublish(repo="flights", message="Publish", task_args=once_each) as publish,
    ):

        @publish.output("flights/")
        def write(url):
            write_to(url, "f")
            at_first()

        @publish.check
        def right(ref, number):
            return answers[number]

        write()
        right.expand(number=list(range(len(answers))))
    return known(dag)


def test_nothing_but_none_and_texts_is_an_answer_of_a_check(flights):
    """``return ref.exists(path)`` is no list of findings, nor is what a generator gives that breaks."""
    mask_secret("hunter2hunter2")

    def broken():
        yield from ()
        raise ConnectionError("login of etl with hunter2hunter2 refused")

    good, bad = [None, [], (), iter(())], [False, 0, "", b"", True, 1, "too few", ["too few"], [""], broken()]
    assert states(many_checks("answers", good + bad).test())["publish.merge"] == "upstream_failed"
    found = verdicts_of(flights)
    is_good = [found[f"right[{number}]"].startswith(f"'right[{number}]' passed") for number in range(len(good + bad))]
    assert is_good == [True] * len(good) + [False] * len(bad)
    assert not [text for text in found.values() if "waiting" in text]
    assert "False" in found["right[4]"]
    assert "login of etl with *** refused" in found[f"right[{len(is_good) - 1}]"], "Airflow masks the secret in logs"


def test_a_mapped_check_that_has_fewer_instances_when_it_is_cleared_passes(flights):
    """Airflow keeps the others, and calls them removed."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import update

    def remove():
        last = (TaskInstance.dag_id == "fewer", TaskInstance.map_index == 2)
        with create_session() as session:
            session.execute(update(TaskInstance).where(*last).values(state="removed"))

    ended = states(many_checks("fewer", [None] * 3, remove).test())
    assert (ended["publish.right[2]"], ended["publish.merge"]) == ("removed", "success")


def with_audits(name, **broken):
    """A DAG whose block has audits of all kinds; those that are named fail."""
    from airflow.providers.standard.operators.bash import BashOperator
    from airflow.providers.standard.operators.empty import EmptyOperator

    told: list[str] = []
    with sdk.DAG(name, schedule=None) as dag, WriteAuditPublish(repo="flights", message="Publish") as publish:

        @publish.output("flights/")
        def flights_(url):
            write_to(url, "a,b\n1,-1\n" if broken.get("no_negatives") else "a,b\n1,1\n")
            Path(f"{url}/part-0".removeprefix("file://")).rename(Path(f"{url}/p.csv".removeprefix("file://")))

        @sdk.task
        def function():
            if broken.get("function"):
                raise ValueError("function is broken")

        @sdk.task
        def many(number):
            if broken.get("many") and number == 2:
                raise ValueError("the second is broken")

        with sdk.TaskGroup("group") as group:
            bash = BashOperator(task_id="bash", bash_command="exit 1" if broken.get("bash") else "true")
            last = BashOperator(
                task_id="last", bash_command=f"test {publish.commit_id}", post_execute=lambda *_: told.append("own")
            )
            EmptyOperator(task_id="begin") >> bash >> last >> EmptyOperator(task_id="end")
        publish.sql("no_negatives", "SELECT a, b FROM flights WHERE b < 0")
        publish.audit(function(), group, many.expand(number=[1, 2, 3]))
        flights_()
    return known(dag)


@pytest.mark.parametrize("broken", [None, "no_negatives", "function", "many", "bash"])
def test_any_task_may_be_a_check(flights, broken):
    ended = with_audits(f"audits-{broken}", **({broken: True} if broken else {})).test()
    if broken is None:
        assert states(ended)["publish.merge"] == "success"
        source = flights.branch("main").head.parents[1]
        names = ["function", "group.bash", "group.last", "many", "many[0]", "many[1]", "many[2]", "no_negatives"]
        assert [(one.name, one.state) for one in flights.ref(source).verdicts()] == [(one, "passed") for one in names]
        return
    assert states(ended)["publish.merge"] == "upstream_failed"
    said = {
        "no_negatives": "not published: a=1, b=-1",
        "function": "function is broken",
        "many": "the second is broken",
        "bash": "Bash command failed",
    }[broken]
    found = verdicts_of(flights)
    assert said in found["group.bash" if broken == "bash" else broken]
    assert " failed by " in found["group.bash" if broken == "bash" else broken]
    if broken == "many":
        assert ["passed" in found[f"many[{number}]"] for number in range(3)] == [True, False, True]


@pytest.mark.parametrize("marked", ["function", r"group\.bash", "many", "no_negatives"])
def test_an_audit_that_is_marked_as_success_is_no_verdict(flights, marked):
    ended = with_audits(f"marked-audit-{marked[:5]}").test(mark_success_pattern=rf"publish\.{marked}")
    assert states(ended)["publish.merge"] == "failed"
    name = marked.replace("\\", "")
    assert verdicts_of(flights)[name] == f"{name!r} waiting"
    assert not flights.ref("main").exists("flights/p.csv")


def test_an_audit_judges_the_commit_that_it_began_with(flights):
    """Meanwhile the writer and the commit are cleared, and the XCom of the commit is another one's."""
    from airflow.sdk.execution_time.xcom import XCom

    read: dict[str, str] = {}
    with sdk.DAG("replaced", schedule=None) as dag, WriteAuditPublish(repo="flights", message="Publish") as publish:

        @publish.output("flights/")
        def flights_(url):
            write_to(url, "f")

        @sdk.task(retries=0)
        def audit(name, commit_id, branch, ti=None):
            with Lake.open() as lake:
                later = lake.repository("flights").branch(branch).commit(name, allow_empty=True)
            read[name] = commit_id
            where = {"dag_id": ti.dag_id, "run_id": ti.run_id, "task_id": "publish.commit"}
            XCom.set(key="return_value", value=later.to_json(), **where)
            if name == "bad":
                raise ValueError("broken")

        own = (publish.commit_id, publish.branch)
        publish.audit(*(audit.override(task_id=name)(name, *own) for name in ("good", "bad")))
        publish.audit(audit.override(task_id="many").partial(commit_id=own[0], branch=own[1]).expand(name=["many[0]"]))
        flights_()
    known(dag).test()
    assert len(set(read.values())) == 3
    for name, commit in read.items():
        found = {one.name: one.state for one in flights.ref(commit).verdicts()}
        assert found[name] == ("failed" if name == "bad" else "passed")


def test_no_check_answers_for_a_person():
    with (
        pytest.raises(InvalidInput, match="is a person's answer"),
        sdk.DAG("forged", schedule=None),
        WriteAuditPublish(repo="flights", message="Publish") as publish,
    ):

        @publish.output("flights/")
        def flights_(url): ...

        @publish.check
        def approval(ref): ...

        flights_()
        approval()
