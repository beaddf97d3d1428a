"""Sensors: each form of each of them ends alike, whatever happens while it waits."""

import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
)
from airflow.sdk import DAG
from support.catalogs import expire_commits
from support.waiting import FAIL, FORMS, TIMED_OUT, Waiting

from lakeops.airflow import compat, triggers
from lakeops.airflow.sensors import (
    LakeopsCommitSensor,
    LakeopsObjectSensor,
    LakeopsPrefixSensor,
    LakeopsTagSensor,
    LakeopsUncommittedSensor,
)
from lakeops.model.errors import InvalidInput, Transient

Wait = Callable[..., Waiting]
PATH = "events/day=1/part-0"


@pytest.fixture(params=FORMS)
def wait(request, monkeypatch):
    """Makes a waiting task of one form; what happens meanwhile happens before its questions, one at a time."""
    return lambda *meanwhile, **more: Waiting(request.param, monkeypatch, iter(meanwhile), **more)


def sensor(kind, **kwargs):
    return partial(kind, **{"task_id": "wait", "repo": "flights", "poke_interval": 1, **kwargs})


def put(repository, branch="main", path=PATH):
    return lambda: repository.branch(branch).put(path, b"x")


def commit(repository, branch="main"):
    return lambda: repository.branch(branch).commit("load", allow_empty=True)


SENSORS = {
    "commit": sensor(LakeopsCommitSensor),
    "commit-since": sensor(LakeopsCommitSensor, branch="main", since="v0"),
    "object": sensor(LakeopsObjectSensor, ref="main", path=PATH),
    "prefix": sensor(LakeopsPrefixSensor, ref="main@", prefix="events/", min_objects=2),
    "tag": sensor(LakeopsTagSensor, tag="v1"),
    "uncommitted": sensor(LakeopsUncommittedSensor, branch="main"),
}
"""What each waits for comes true at the last step of ``story``, not before."""


@pytest.fixture
def story(flights):
    flights.create_tag("v0", "main")
    put(flights, path="staged")()
    both = [put(flights, path=f"events/{number}") for number in range(2)]
    return [lambda: None, *both, lambda: [put(flights)(), commit(flights)(), flights.create_tag("v1", "main")]]


# --- what is waited for ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", SENSORS)
def test_each_sensor_ends_when_it_has_come_true(flights, wait, story, name):
    waiting = wait(*story)
    found = waiting.end(SENSORS[name])
    head = flights.branch("main").head
    assert (
        found
        == {
            "commit": head.to_json(),
            "commit-since": head.to_json(),
            "object": flights.ref("main").stat(PATH).to_json(),
            "prefix": {"ref": "main@", "prefix": "events/", "commit_id": head.id},
            "tag": {"id": "v1", "commit_id": head.id},
            "uncommitted": {"id": "main", "commit_id": head.id},
        }[name]
    )
    assert len(waiting.waits) == len(story), "it ended at the last step"


@pytest.mark.parametrize("name", sorted(set(SENSORS) - {"commit"}))
def test_what_is_so_already_is_not_waited_for(flights, wait, story, name):
    for step in story:
        step()
    waiting = wait()
    assert waiting.end(SENSORS[name])
    assert not waiting.waits


@pytest.mark.parametrize("name", SENSORS)
def test_each_sensor_says_what_it_waited_for_in_vain(flights, wait, story, name, monkeypatch):
    wanted = {
        "commit": "the default branch has a commit that 'the last run' does not have",
        "commit-since": "branch 'main' has a commit that 'v0' does not have",
        "object": "there is an object 'events/day=1/part-0' at 'main'",
        "prefix": "there is at least 2 objects under 'events/' at 'main@'",
        "tag": "there is a tag 'v1'",
        "uncommitted": "branch 'main' has no uncommitted changes",
    }[name]
    monkeypatch.delitem(sys.modules, "lakeops.airflow.plugin", raising=False)  # without it there is no page
    with pytest.raises(AirflowSensorTimeout) as raised:
        wait().end(SENSORS[name], timeout=0)
    assert str(raised.value) == f"waited 0 s in vain in lakefs://flights until {wanted}"
    monkeypatch.setitem(sys.modules, "lakeops.airflow.plugin", ModuleType("plugin"))
    with pytest.raises(AirflowSensorTimeout) as raised:
        wait().end(SENSORS[name], timeout=0)
    page = "http://127.0.0.1:8080/lakeops/lakeops_default/flights"
    assert str(raised.value).endswith(f"{wanted}. See the repository: {page}")
    with pytest.raises(AirflowSkipException):
        wait().end(SENSORS[name], timeout=0, soft_fail=True)


def test_a_branch_shows_what_is_not_committed(flights, wait):
    assert wait(put(flights)).end(sensor(LakeopsObjectSensor, ref="main", path=PATH))["path"] == PATH
    with pytest.raises(AirflowSensorTimeout):
        wait().end(sensor(LakeopsObjectSensor, ref="main@", path=PATH, timeout=0))


@pytest.mark.parametrize(
    "make",
    [
        sensor(LakeopsCommitSensor, branch="late"),
        sensor(LakeopsCommitSensor, branch="late", since="main"),
        sensor(LakeopsObjectSensor, ref="late", path=PATH),
        *(sensor(LakeopsPrefixSensor, ref=ref, prefix="events/") for ref in ("late", "late@", "late~0")),
        sensor(LakeopsUncommittedSensor, branch="late"),
    ],
)
def test_a_branch_that_does_not_exist_yet_is_waited_for(flights, wait, make):
    def appears():
        flights.create_branch("late")
        put(flights, "late")()
        commit(flights, "late")()

    waiting = wait(lambda: None, appears)
    assert waiting.end(make)
    assert len(waiting.waits) == 2


def test_uncommitted_changes_elsewhere_do_not_matter(flights, wait):
    put(flights, path="other/a")()
    assert wait().end(sensor(LakeopsUncommittedSensor, branch="main", prefix="events/"))["id"] == "main"


# --- since the last run ------------------------------------------------------------------------------------------
def test_a_commit_sensor_counts_from_its_last_run(flights, wait):
    seen = flights.branch("main").head.to_json()
    commit(flights)()
    waiting = wait(previous=seen)
    assert waiting.end(SENSORS["commit"])["id"] == flights.branch("main").commit_id
    assert not waiting.waits, "the commit came before this run"


def test_a_commit_that_a_restored_catalog_does_not_know_keeps_nobody_waiting(flights, wait):
    """Each run would fail, because only one that succeeds is counted from."""
    seen = {**flights.branch("main").head.to_json(), "id": "a" * 64}
    waiting = wait(previous=seen)
    assert waiting.end(SENSORS["commit"])["id"] == flights.branch("main").commit_id
    assert not waiting.waits


def test_a_first_run_counts_from_its_beginning_also_at_a_later_try(flights, wait):
    waiting = wait(commit(flights))
    found = waiting.end(SENSORS["commit"])
    again = wait(state=waiting.state)
    assert again.end(SENSORS["commit"]) == found
    assert not again.waits, "the first try decided where this run counts from"


def test_a_head_that_moved_back_is_no_new_commit(flights, wait):
    flights.branch("main").commit("one", allow_empty=True)
    flights.create_tag("ahead", "main")
    with pytest.raises(AirflowSensorTimeout):
        wait().end(sensor(LakeopsCommitSensor, branch="main", since="ahead", timeout=0))


# --- what waiting cannot mend ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (sensor(LakeopsTagSensor, tag="v1", repo="nowhere"), "repository_not_found.*'nowhere'"),
        (sensor(LakeopsTagSensor, tag="v1", repo=None), "invalid_input: no repository: set repo"),
        (sensor(LakeopsCommitSensor, since="gone"), "ref_not_found.*'gone'"),
        (sensor(LakeopsObjectSensor, ref="main~9", path=PATH), "ref_not_found.*main~9"),
        (sensor(LakeopsObjectSensor, ref="f" * 64, path=PATH), "ref_not_found.*ffff"),
        (sensor(LakeopsObjectSensor, ref="a b", path=PATH), "invalid_ref"),
        (sensor(LakeopsPrefixSensor, ref="main", prefix="\0"), "invalid_path"),
        (sensor(LakeopsPrefixSensor, ref="main~9", prefix="in/"), "ref_not_found"),
    ],
)
def test_what_cannot_come_true_fails_at_once(flights, wait, make, message):
    with pytest.raises(AirflowFailException, match=message):
        wait().end(make)
    with pytest.raises(AirflowSkipException):
        wait().end(make, soft_fail=True)
    with pytest.raises(AirflowSkipException):
        wait().end(make, never_fail=True)


def test_a_repository_that_goes_meanwhile_fails_the_task_alike(lake, flights, wait):
    with pytest.raises(AirflowFailException, match=r"repository_not_found.*'flights'"):
        wait(lambda: lake.delete_repository("flights")).end(SENSORS["tag"])


def test_a_commit_that_expires_meanwhile_is_named(lake, flights, wait):
    flights.branch("main").commit("old", allow_empty=True)
    old = flights.branch("main").commit_id
    flights.create_branch("side", old)
    commit(flights)()
    flights.delete_branch("side")
    with pytest.raises(AirflowFailException, match=rf"expired.*{old[:12]}"):
        wait(lambda: expire_commits(lake.catalog, "flights", [old])).end(
            sensor(LakeopsObjectSensor, ref=old, path=PATH)
        )


def test_a_lake_that_does_not_answer_for_a_while_is_waited_out(flights, wait, monkeypatch):
    met = triggers.Condition.met
    down: list[bool] = []

    def answer(self, repository):
        if down:
            raise Transient("the database does not answer", kind="catalog_unavailable")
        return met(self, repository)

    monkeypatch.setattr(triggers.Condition, "met", answer)
    there = lambda: [flights.create_tag("v1", "main"), down.clear()]  # noqa: E731
    waiting = wait(lambda: down.append(True), lambda: None, there)
    assert waiting.end(SENSORS["tag"])["id"] == "v1"
    assert len(waiting.waits) == 3


def test_a_trigger_that_dies_is_told_of_by_what_it_waited_for(flights, monkeypatch):
    task = SENSORS["tag"](deferrable=True)
    context = Waiting("deferrable", monkeypatch).context()
    with pytest.raises(AirflowException, match=r"could not go on waiting until there is a tag 'v1'; its log says why"):
        task.resume_execution(FAIL, {"error": "Trigger failure"}, context)
    with pytest.raises(AirflowSensorTimeout):
        task.resume_execution(FAIL, {"error": TIMED_OUT}, context)


# --- how it waits ------------------------------------------------------------------------------------------------
def test_a_resumed_task_rests_until_the_executor_has_noticed(flights, monkeypatch):
    monkeypatch.setenv("AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL", "3")
    waiting = Waiting("deferrable", monkeypatch, iter([lambda: flights.create_tag("v1", "main")]))
    waiting.end(SENSORS["tag"])
    assert waiting.settled == [pytest.approx(4, abs=0.9)]


def test_a_deferrable_sensor_is_tried_twice_unless_told_otherwise(monkeypatch):
    tries = {
        "plain": SENSORS["tag"]().retries,
        "deferrable": SENSORS["tag"](deferrable=True).retries,
        "told": SENSORS["tag"](deferrable=True, retries=0).retries,
    }
    assert tries == {"plain": 0, "deferrable": 1, "told": 0}
    with DAG("told", schedule=None, default_args={"retries": 5}):
        assert SENSORS["tag"](deferrable=True).retries == 5
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "True")
    assert SENSORS["tag"]().deferrable


def test_numbers_that_make_no_sense_are_refused_when_the_dag_is_read():
    with pytest.raises(InvalidInput, match="poll_interval must be a positive number"):
        triggers.check_interval("poll_interval", -1)


def test_an_airflow_that_forgets_where_a_wait_began_refuses_to_count_from_there(monkeypatch):
    make = partial(LakeopsCommitSensor, task_id="wait", repo="flights", mode="reschedule")
    monkeypatch.setattr(compat, "KNOWN", (3, 2))
    with pytest.raises(InvalidInput, match=r"needs Airflow 3\.3"):
        make()
    assert make(since="main~1").since == "main~1"
    monkeypatch.setattr(compat, "KNOWN", (3, 3))
    assert make().since is None
