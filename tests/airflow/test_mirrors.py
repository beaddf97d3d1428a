"""Mirrors in Airflow: waiting for replication in every form, showing what arrived, and the DAG that does both."""

import asyncio
import json
import shutil
import subprocess
import sys
from contextlib import aclosing
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
)
from support.dags import known, known_file
from support.errors import raising
from support.waiting import FAIL, FORMS, Waiting

from lakeops import Lake
from lakeops.airflow.assets import COMMITS, branch_asset
from lakeops.airflow.operators import (
    LakeopsCreateMirrorOperator,
    LakeopsMirrorDiscoverOperator,
    LakeopsMirrorPromoteOperator,
)
from lakeops.airflow.sensors import LakeopsReplicationSensor

DAG_FILE = Path(__file__).resolve().parents[2] / "dags" / "lakeops_mirror.py"


@pytest.fixture
def source(tmp_path):
    with Lake.open(home=tmp_path / "source", database_url=f"sqlite:///{tmp_path}/source/catalog.db") as lake:
        repo = lake.create_repository("flights")
        repo.branch("main").put("a", b"1")
        repo.branch("main").commit("day 1")
        repo.create_tag("v1", "main")
        yield repo


@pytest.fixture
def mirror(lake, source, tmp_path):
    return lake.create_mirror("flights", source=f"{tmp_path}/source#flights")


def place(repo):
    return Path(repo.storage_namespace.removeprefix("file://"))


def replicate(source, mirror):
    shutil.copytree(place(source), place(mirror), dirs_exist_ok=True)


@pytest.fixture(params=FORMS)
def wait(request, monkeypatch):
    return lambda *meanwhile: Waiting(request.param, monkeypatch, iter(meanwhile))


def sensor(**kwargs):
    return LakeopsReplicationSensor(**{"task_id": "wait", "repo": "flights", "poke_interval": 1, **kwargs})


@pytest.mark.parametrize("ref", [{"branch": "main"}, {"tag": "v1"}], ids=str)
def test_the_sensor_ends_when_everything_has_arrived(source, mirror, wait, ref):
    mirror.discover()
    waiting = wait(lambda: None, lambda: replicate(source, mirror))
    found = waiting.end(partial(sensor, **ref))
    [name] = ref.values()
    assert found == {"id": name, "commit_id": source.branch("main").commit_id}
    assert len(waiting.waits) == 2
    assert mirror.branch("main").commit_id != found["commit_id"], "nothing is promoted by waiting"


def test_what_waits_for_nothing_is_not_waited_for(source, mirror, wait):
    replicate(source, mirror)
    mirror.sync()
    waiting = wait()
    assert waiting.end(partial(sensor, branch="main"))["commit_id"] == source.branch("main").commit_id
    assert not waiting.waits


def test_a_wait_in_vain_says_for_what(source, mirror, wait):
    mirror.discover()
    wanted = "waited 0 s in vain in lakefs://flights until everything that branch 'main' waits for has been replicated"
    with pytest.raises(AirflowSensorTimeout, match=wanted):
        wait().end(partial(sensor, branch="main"), timeout=0)


def test_what_never_comes_is_no_green_task(source, mirror, wait, run):
    """A soft failure is for what is late; a task that skipped would hide that nothing arrives any more."""
    mirror.discover()
    with pytest.raises(AirflowSkipException):
        wait().end(partial(sensor, branch="main", soft_fail=True), timeout=0)
    mirror.set_stall_timeout(1)
    earlier = {"since": 0, "progressed": 0}
    change = "UPDATE lakeops_mirror_ref SET wait = json_patch(wait, :earlier)"
    with mirror._ctx.catalog.database.engine.begin() as conn:  # type: ignore[attr-defined]
        conn.exec_driver_sql(change, {"earlier": json.dumps(earlier)})
    with pytest.raises(AirflowFailException, match=r"'main' waits for commit .*nothing has arrived since 1970"):
        wait().end(partial(sensor, branch="main", soft_fail=True), timeout=0)
    with pytest.raises(AirflowException, match="replica_missing"):
        run(LakeopsMirrorPromoteOperator(task_id="promote", repo="flights", branch="main"))


def test_damage_is_no_green_task(source, mirror, wait):
    replicate(source, mirror)
    mirror.discover()
    for file in (place(mirror) / "_lakefs" / "ranges").iterdir():
        file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(AirflowFailException, match="does not match its digest"):
        wait().end(partial(sensor, branch="main", soft_fail=True))


def test_what_waiting_cannot_mend_fails_at_once(source, mirror, lake, wait):
    replicate(source, mirror)
    mirror.discover()
    for file in (place(mirror) / "data").rglob("*"):
        if file.is_file():
            file.write_bytes(b"another size")
    with pytest.raises(AirflowFailException, match=r"replica_mismatch.*'a'"):
        wait().end(partial(sensor, branch="main"))
    lake.create_repository("plain")
    with pytest.raises(AirflowFailException, match="not_a_mirror"):
        wait().end(partial(sensor, repo="plain", branch="main"))
    for wrong in ({}, {"branch": "main", "tag": "v1"}):
        with pytest.raises(AirflowFailException, match="name one of them"):
            wait().end(partial(sensor, **wrong))
    assert FAIL


def test_a_promotion_tells_what_changed_and_how_far_it_is(source, mirror, run):
    discover = LakeopsMirrorDiscoverOperator(task_id="discover", repo="flights")
    assert run(discover)["waiting"] == [
        {"repo": "flights", "branch": "main", "tag": None},
        {"repo": "flights", "branch": None, "tag": "v1"},
    ]
    replicate(source, mirror)
    head = source.branch("main").commit_id
    task = LakeopsMirrorPromoteOperator(task_id="promote", repo="flights", branch="main", commit_id=head)
    found = run(task)
    assert [ref["promoted"] for ref in found["branches"]] == [head]
    assert [ref["promoted"] for ref in found["tags"]] == [None], "only the named ref is looked at"
    event = run.events["promote"][branch_asset("flights")].extra
    assert event["commit_id"] == head
    assert event["summary"] == {"added": 1, "removed": 0, "changed": 0}
    assert event["mirror"]["lag_commits"] == 0
    assert run.events["promote"][COMMITS].extra == event
    run.events.clear()
    run(task, try_number=2)
    again = run.events["promote"][branch_asset("flights")].extra
    assert again["commit_id"] == head, "a try that comes after it was shown tells again"
    assert run(discover)["waiting"] == [{"repo": "flights", "branch": None, "tag": "v1"}]


def test_a_promotion_that_went_past_what_the_sensor_found_is_told_again(source, mirror, run):
    replicate(source, mirror)
    main = source.branch("main")
    task = LakeopsMirrorPromoteOperator(task_id="promote", repo="flights", branch="main", commit_id=main.commit_id)
    mirror.discover()
    main.put("a", b"2")
    later = main.commit("day 2").id
    replicate(source, mirror)
    for try_number in (1, 2):  # the first one is killed when it has promoted
        run.events.clear()
        run(task, try_number=try_number)
        assert run.events["promote"][branch_asset("flights")].extra["commit_id"] == later


def test_a_source_may_be_an_airflow_connection(source, mirror, lake, run, tmp_path, monkeypatch):
    from sqlalchemy import update

    from lakeops.catalog.tables import MIRROR
    from lakeops.model.mirrors import parse_source

    reference = parse_source("airflow:source_lake#flights", "flights").to_json()
    lake.catalog.database.write(lambda conn: conn.execute(update(MIRROR).values(source=reference)) and None)  # type: ignore[attr-defined]
    with pytest.raises(AirflowFailException, match="source_lake"):
        run(LakeopsMirrorPromoteOperator(task_id="promote", repo="flights"))
    monkeypatch.setenv("AIRFLOW_CONN_SOURCE_LAKE", f'{{"conn_type": "lakeops", "host": "{tmp_path}/source"}}')
    replicate(source, mirror)
    found = run(LakeopsMirrorPromoteOperator(task_id="promote", repo="flights"))
    assert found["caught_up"]


@pytest.fixture
def connected(source, lake, tmp_path, monkeypatch):
    """The source's lake by a connection, and a place for its replica."""
    monkeypatch.setenv("AIRFLOW_CONN_SOURCE_LAKE", f'{{"conn_type": "lakeops", "host": "{tmp_path}/source"}}')
    return tmp_path / "replica"


def by_operator(run, place):
    given = {"source": "airflow:source_lake#flights", "storage_namespace": place.as_uri(), "branches": "['ma*']"}
    create = LakeopsCreateMirrorOperator(task_id="create", repo="new", tags="*", **given)
    assert run(create) == run(create, try_number=2)
    other = LakeopsCreateMirrorOperator(task_id="create", repo="new", tags="v*", **given)
    with pytest.raises(AirflowFailException, match="already_exists: "):
        run(other)


def by_airflows_command(_run, place):
    from airflow.cli.cli_parser import get_parser

    words = ["lakeops", "mirrors", "create", "new", place.as_uri(), "--source", "airflow:source_lake#flights"]
    given = get_parser().parse_args([*words, "--branch", "ma*"])
    given.func(given)
    given.func(given)
    wrong = get_parser().parse_args([*words[:-1], "airflow:nosuch#flights"])
    with pytest.raises(SystemExit, match="no connection 'nosuch'"):
        wrong.func(wrong)


def by_command(_run, place):
    command = [sys.executable, "-m", "lakeops", "mirror", "create", "lakefs://new", place.as_uri(), "--branch", "ma*"]
    subprocess.run([*command, "--source", "airflow:source_lake#flights"], check=True)


def by_form(_run, place):
    from lakeops.airflow.dags import create_mirror_dag

    dag = known(create_mirror_dag("create_mirror"))
    values = {"mirror": "new", "source": "airflow:source_lake#flights", "storage_namespace": place.as_uri()}
    assert str(dag.test(run_conf=values).state) == "success"


@pytest.mark.needs_airflow("3.2")
@pytest.mark.parametrize("create", [by_operator, by_airflows_command, by_command, by_form])
def test_a_mirror_of_a_connections_repository_can_be_created(
    source, connected, lake, run, create, airflow_database, monkeypatch
):
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "")
    create(run, connected)
    mirror = lake.mirror("new")
    assert mirror.configuration.source.text == "airflow:source_lake#flights"
    replicate(source, mirror)
    assert mirror.sync().caught_up
    assert mirror.branch("main").commit_id == source.branch("main").commit_id


# --- when there is something to do -------------------------------------------------------------------------------
def test_a_mirror_has_something_to_do_until_it_shows_what_its_source_shows(source, mirror, tmp_path):
    assert mirror.due(), "it has never looked"
    mirror.sync()
    assert mirror.due(), "nothing has arrived"
    replicate(source, mirror)
    mirror.sync()
    before = mirror.configuration
    assert not mirror.due()
    after = mirror.configuration
    assert (after.sequence, after.kept) == (before.sequence, before.kept), "looking changes nothing"
    source.protect("release-*")
    assert mirror.due()
    mirror.sync()
    assert not mirror.due()
    source.delete_tag("v1")
    assert mirror.due()
    mirror.sync()
    assert not mirror.due()
    (tmp_path / "source").rename(tmp_path / "away")
    with raising("catalog_unavailable"):
        mirror.due()
    with raising("catalog_unavailable"):
        mirror.sync()
    (tmp_path / "away").rename(tmp_path / "source")
    assert mirror.due(), "the last pass failed"


def test_looking_records_that_the_source_was_seen(source, mirror, lake):
    replicate(source, mirror)
    mirror.sync()
    with mirror._ctx.catalog.database.engine.begin() as conn:  # type: ignore[attr-defined]
        conn.exec_driver_sql("UPDATE lakeops_mirror SET last_sync = 7")
    assert not mirror.due()
    assert mirror.configuration.last_sync > 7


def test_the_trigger_fires_for_mirrors_that_have_something_to_do(source, mirror, lake, tmp_path, monkeypatch):
    from airflow.sdk.module_loading import import_string

    from lakeops.airflow import triggers

    monkeypatch.setattr(triggers, "TICK_SECONDS", 0.001)
    idle = lake.create_mirror("idle", source=f"{tmp_path}/source#flights")
    replicate(source, idle)
    idle.sync()
    asked = []
    met = triggers.MirrorsDue.met
    monkeypatch.setattr(triggers.MirrorsDue, "met", lambda self, lake: [asked.append(1), met(self, lake)][1])

    async def test():
        path, kwargs = triggers.LakeopsMirrorTrigger(poll_interval=0.001, rest=0.003).serialize()
        async with aclosing(import_string(path)(**kwargs).run()) as events, asyncio.timeout(120):
            assert (await anext(events)).payload == {"mirrors": ["flights"]}
            assert (await anext(events)).payload == {"mirrors": ["flights"]}, "it goes on until there is nothing left"
            replicate(source, mirror)
            mirror.sync()
            waiting = asyncio.ensure_future(anext(events))
            looked = len(asked)
            while len(asked) < looked + 5:
                await asyncio.sleep(0.001)
            assert not waiting.done(), "an idle mirror starts nothing"
            source.branch("main").put("b", b"2")
            source.branch("main").commit("day 2")
            found = set((await waiting).payload["mirrors"])  # one may have been looked at before the commit was there
            while found != {"flights", "idle"}:
                found |= set((await anext(events)).payload["mirrors"])
            (tmp_path / "source").rename(tmp_path / "away")
            assert sorted((await anext(events)).payload["mirrors"]) == ["flights", "idle"], "its run says what is wrong"

    asyncio.run(test())


# --- the DAG -----------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def lakeops_mirror(airflow_database):
    return known_file(DAG_FILE)["lakeops_mirror"]


def states(run):
    found: dict[str, list[str]] = {}
    for task in sorted(run.get_task_instances(), key=lambda task: task.map_index):
        found.setdefault(task.task_id.removeprefix("follow."), []).append(str(task.state))
    return found


def test_a_run_shows_what_has_arrived(source, mirror, lakeops_mirror):
    replicate(source, mirror)
    run = lakeops_mirror.test()
    assert str(run.state) == "success"
    assert states(run)["promote"] == ["success", "success"]
    shown = {task.task_id: [] for task in run.get_task_instances()}
    for task in run.get_task_instances():
        shown[task.task_id].append(task.rendered_map_index)
    assert shown["discover"] == ["flights"], "people see names in place of numbers"
    assert sorted(shown["follow.promote"]) == ["flights/main", "flights/v1"]
    head = source.branch("main").commit_id
    assert mirror.branch("main").commit_id == mirror.tag("v1").commit_id == head
    again = lakeops_mirror.test()
    assert str(again.state) == "success"
    assert states(again)["promote"] == ["skipped"]


def test_a_mirror_that_cannot_be_seen_fails_the_run_and_holds_no_other_up(
    source, mirror, lake, lakeops_mirror, tmp_path
):
    replicate(source, mirror)
    with Lake.open(home=tmp_path / "gone", database_url=f"sqlite:///{tmp_path}/gone/catalog.db") as gone:
        gone.create_repository("lost")
        lake.create_mirror("lost", source=gone)
    (tmp_path / "gone").rename(tmp_path / "away")
    run = lakeops_mirror.test(run_conf={})
    assert str(run.state) == "failed"
    found = states(run)
    assert max(found["discover"]) == "success"
    assert found["promote"] == ["success", "success"]
    assert mirror.branch("main").commit_id == source.branch("main").commit_id


def test_a_run_works_on_the_mirrors_that_have_something_to_do(source, mirror, lake, tmp_path):
    from lakeops.airflow.dags.upkeep import mirrors

    lake.create_mirror("other", source=f"{tmp_path}/source#flights")
    form = {"connection": "lakeops_default", "mirror": None}

    def event(*names):
        return SimpleNamespace(extra={"from_trigger": True, "payload": {"mirrors": list(names)}})

    chosen = mirrors.function
    assert chosen(form) == ["flights", "other"]
    assert chosen(form, {"asset": [event("other"), event("gone", "other")]}) == ["other"]
    assert chosen({**form, "mirror": "flights"}) == ["flights"]


def test_the_dag_costs_nothing_while_there_is_nothing_to_do():
    from lakeops.airflow.dags import mirror_dag

    (asset,) = list(mirror_dag(connection="far").schedule)
    assert asset.watchers[0].trigger.lakeops_conn_id == "far"
    assert mirror_dag(schedule=None).schedule is None
    assert mirror_dag(schedule="0 3 * * *").schedule == "0 3 * * *"
