"""Triggers in Airflow's own shared streams: one lake a repository, and a watcher's cursor that loses nothing."""

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from typing import Any

import pytest

from lakeops import Lake
from lakeops.model.errors import Transient
from lakeops.model.ids import Origin

pytest.importorskip("airflow.triggers.shared_stream", reason="triggers share streams since Airflow 3.3")

from airflow.sdk.module_loading import import_string
from airflow.triggers.shared_stream import SharedStreamManager

from lakeops.airflow import triggers
from lakeops.airflow.hook import LakeopsHook
from lakeops.airflow.triggers import CURSOR, Condition, HeadSince, LakeopsCommitTrigger, LakeopsConditionTrigger

DEADLINE = 120


class AssetState(dict[str, Any]):
    """Airflow's asset state store, which outlives the triggerer."""

    down = False

    async def aget(self, key, default=None):
        return self.get(key, default)

    async def aset(self, key, value):
        if self.down:
            raise ConnectionError("the API server does not answer")
        self[key] = value


class Triggerer:
    """As much of Airflow's triggerer as runs triggers over shared streams, and stores their events."""

    def __init__(self):
        self.manager = SharedStreamManager()
        self.events: dict[int, list[Any]] = {}
        self.unstored: list[int] = []
        self.storing = True
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, trigger, state=None):
        """Run a trigger; its events are added to the list that this gives."""
        path, kwargs = trigger.serialize()
        fresh = import_string(path)(**kwargs)
        fresh.asset_state_store = state
        number = len(self._tasks)
        self.events[number] = []
        self._tasks.append(asyncio.create_task(self._run(number, fresh)))
        return self.events[number]

    async def _run(self, number, trigger):
        key = trigger.shared_stream_key()
        raw = self.manager.subscribe(trigger_id=number, trigger=trigger, key=key)
        try:
            async for event in trigger.filter_shared_stream(raw):
                seq = self.manager.bind_pending_event(trigger_id=number, key=key)
                assert seq is not None, "the stream is acknowledged"
                self.unstored.append(seq)
                if self.storing:
                    self.events[number].append(event.payload)
                    self.store()
        finally:
            await self.manager.unsubscribe(number, key)

    def store(self):
        """Tell the streams that the events are in Airflow's database."""
        self.manager.confirm_persisted(self.unstored)
        self.unstored.clear()

    async def stop(self):
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        await self.manager.stop_all()


@asynccontextmanager
async def triggerer():
    running = Triggerer()
    try:
        yield running
    finally:
        await running.stop()


async def until(holds):
    """Return when something holds."""
    async with asyncio.timeout(DEADLINE):
        while not holds():
            await asyncio.sleep(0.002)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A thousand beats a second, and a due tick at each."""
    monkeypatch.setattr(triggers, "TICK_SECONDS", 0.001)


@pytest.fixture
def opened(monkeypatch):
    """Every lake that a trigger has opened."""
    lakes: list[Lake] = []
    get_conn = LakeopsHook.get_conn

    def counted(hook):
        lakes.append(get_conn(hook))
        return lakes[-1]

    monkeypatch.setattr(LakeopsHook, "get_conn", counted)
    return lakes


def run(test):
    asyncio.run(test)


def watcher(branch="main", **kwargs):
    return LakeopsCommitTrigger(repo="flights", branch=branch, asset=branch, poll_interval=0.001, **kwargs)


def tag(name):
    return LakeopsConditionTrigger(condition=asdict(Condition("tag", (name,))), repo="flights", poll_interval=0.001)


def commit(repository, branch="main", **metadata):
    return repository.branch(branch).commit("load", metadata=Origin(metadata), allow_empty=True).id


# --- one poller a repository -------------------------------------------------------------------------------------
def test_everybody_who_waits_in_a_repository_shares_one_lake(flights, opened):
    flights.create_branch("dev")
    closed = []

    async def test():
        async with triggerer() as airflow:
            first, second = airflow.start(tag("v1")), airflow.start(tag("v2"))
            states = AssetState(), AssetState()
            main, dev = airflow.start(watcher(), states[0]), airflow.start(watcher("dev"), states[1])
            await until(lambda: all(CURSOR in state for state in states))
            flights.create_tag("v1", "main")
            await until(lambda: first)
            head = commit(flights, "dev")
            flights.create_tag("v2", "dev")
            await until(lambda: second and dev)
            assert not main
            assert dev[0]["commit_id"] == second[0]["result"]["commit_id"] == head
            (only,) = opened
            only.close, close = lambda: [closed.append(only), close()], only.close  # type: ignore[method-assign]

    run(test())
    assert closed == opened, "and it is closed when nobody is left"


def test_an_equal_question_at_one_tick_is_asked_once(flights, monkeypatch):
    asked = []
    met = Condition.met
    monkeypatch.setattr(
        Condition, "met", lambda self, repository: [asked.append(self.arguments[0]), met(self, repository)][1]
    )
    monkeypatch.setattr(triggers, "TICK_SECONDS", 1000.0)

    async def test():
        poller = triggers.Poller("lakeops_default", "flights")
        tick = triggers.Tick(poller, 0)
        assert await asyncio.gather(*(tick.ask(Condition("tag", ("v1",))) for _ in range(5))) == [None] * 5
        assert await triggers.Tick(poller, 1).ask(Condition("tag", ("v1",))) is None
        await poller.aclose()

    run(test())
    assert asked == ["v1", "v1"]


def test_a_trigger_that_is_cancelled_leaves_the_answer_to_the_others(flights):
    async def test():
        poller = triggers.Poller("lakeops_default", "flights")
        tick = triggers.Tick(poller, 0)
        one, other = (asyncio.create_task(tick.ask(Condition("tag", ("v1",)))) for _ in range(2))
        await asyncio.sleep(0)
        one.cancel()
        assert await other is None
        with pytest.raises(asyncio.CancelledError):
            await one
        await poller.aclose()

    run(test())


def test_who_is_due_at_which_tick(monkeypatch):
    monkeypatch.setattr(triggers, "TICK_SECONDS", 1.0)
    ticks = [triggers.Tick(triggers.Poller("", ""), number) for number in range(7)]
    due = {interval: [tick._number for tick in ticks if tick.due(interval)] for interval in (0.1, 1, 2.4, 3)}
    assert due == {0.1: list(range(7)), 1: list(range(7)), 2.4: [0, 2, 4, 6], 3: [0, 3, 6]}
    ticks[0].over = True
    assert not ticks[0].due(1), "who is late asks at the newest tick only"


@pytest.mark.usefixtures("flights")
def test_who_waits_follows_a_connection_that_names_another_lake(opened, monkeypatch, tmp_path):
    """The old one still answers: nobody would ever see what comes to the new one."""
    monkeypatch.setattr(triggers, "RENEW_SECONDS", 0.0)
    with Lake.open(home=tmp_path / "moved") as moved:
        moved.create_repository("flights")

    async def test():
        async with triggerer() as airflow:
            events, state = airflow.start(tag("v1")), AssetState()
            heads = airflow.start(watcher(), state)
            await until(lambda: CURSOR in state)
            monkeypatch.setenv("LAKEOPS_HOME", str(tmp_path / "moved"))
            with Lake.open() as lake:
                lake.repository("flights").create_tag("v1", "main")
                head = commit(lake.repository("flights"))
            await until(lambda: events and heads)
            assert events[0]["result"]["id"] == "v1"
            await until(lambda: head in [event["commit_id"] for event in heads])

    run(test())
    assert len(opened) == 2


@pytest.mark.parametrize("left", [None, '{"conn_type": "lakeops", "extra": {"hom": "/"}}', "no URI"])
def test_a_connection_that_is_deleted_ends_a_wait_as_after_a_restart(flights, monkeypatch, home, left):
    monkeypatch.setattr(triggers, "RENEW_SECONDS", 0.0)
    monkeypatch.setenv("AIRFLOW_CONN_MINE", json.dumps({"conn_type": "lakeops", "host": str(home)}))
    waiting = LakeopsConditionTrigger(
        condition=asdict(Condition("tag", ("v1",))), repo="flights", poll_interval=0.001, lakeops_conn_id="mine"
    )

    async def life(*, deleted):
        async with triggerer() as airflow:
            events, heads = (
                airflow.start(waiting),
                airflow.start(watcher(lakeops_conn_id="mine"), state := AssetState()),
            )
            if not deleted:
                await until(lambda: CURSOR in state)
                monkeypatch.delenv("AIRFLOW_CONN_MINE")
                if left is not None:
                    monkeypatch.setenv("AIRFLOW_CONN_MINE", left)
            await until(lambda: events)
            assert heads == []
            return events

    running = asyncio.run(life(deleted=False))
    assert running[0]["status"] == "error"
    assert "'mine'" in running[0]["message"]
    assert running == asyncio.run(life(deleted=True))


@pytest.mark.parametrize("every", [False, True])
def test_a_watcher_goes_on_after_a_head_that_a_restored_catalog_does_not_know(flights, every):
    async def test():
        async with triggerer() as airflow:
            heads = airflow.start(watcher(every=every), AssetState({CURSOR: "a" * 64}))
            await until(lambda: heads)
            head = flights.branch("main").commit_id
            assert (heads[0]["commit_id"], heads[0]["since"], heads[0]["summary"]) == (head, "a" * 64, None)

    run(test())


def test_after_an_outage_the_connection_is_read_anew(flights, opened, monkeypatch):
    met = Condition.met
    outages = [Transient("down", kind="catalog_unavailable")]

    def answer(self, repository):
        if outages:
            raise outages.pop()
        return met(self, repository)

    monkeypatch.setattr(Condition, "met", answer)

    async def test():
        flights.create_tag("v1", "main")
        async with triggerer() as airflow:
            events = airflow.start(tag("v1"))
            await until(lambda: events)
        assert events[0]["status"] == "success"

    run(test())
    assert len(opened) == 2


def test_a_question_that_cannot_be_answered_fails_only_who_asked(flights):
    never = asdict(triggers.Condition("object", ("main~5", "a")))
    broken = LakeopsConditionTrigger(condition=never, repo="flights", poll_interval=0.001)

    async def test():
        async with triggerer() as airflow:
            failed, waiting = airflow.start(broken), airflow.start(tag("v1"))
            await until(lambda: failed)
            assert failed[0]["status"] == "error"
            assert "main~5" in failed[0]["message"]
            flights.create_tag("v1", "main")
            await until(lambda: waiting)

    run(test())


# --- watching a branch -------------------------------------------------------------------------------------------
def test_a_watcher_tells_of_each_move_once_across_restarts(flights):
    state = AssetState()
    start = flights.branch("main").commit_id

    async def life(expected):
        async with triggerer() as airflow:
            events = airflow.start(watcher(), state)
            await until(lambda: CURSOR in state)
            await until(lambda: [event["commit_id"] for event in events] == expected)
            await until(lambda: state[CURSOR] == flights.branch("main").commit_id)
            return events

    async def test():
        assert await life([]) == [], "what was there before the first watch is no news"
        first, second = commit(flights), commit(flights)
        (event,) = await life([second])
        assert (event["since"], event["parents"]) == (start, [first])
        assert await life([]) == []
        third = commit(flights)
        (event,) = await life([third])
        assert event["since"] == second

    run(test())


def test_an_event_that_airflow_has_not_stored_comes_again(flights):
    state = AssetState()

    async def test():
        async with triggerer() as airflow:
            airflow.start(watcher(), state)
            await until(lambda: CURSOR in state)
            airflow.storing = False
            head = commit(flights)
            await until(lambda: airflow.unstored)
            assert state[CURSOR] != head
        async with triggerer() as airflow:
            events = airflow.start(watcher(), state)
            await until(lambda: events)
            assert events[0]["commit_id"] == head
            await until(lambda: state[CURSOR] == head)

    run(test())


def test_a_cursor_that_cannot_be_saved_stops_nobody(flights):
    state = AssetState()

    async def test():
        async with triggerer() as airflow:
            events, waiting = airflow.start(watcher(), state), airflow.start(tag("v1"))
            await until(lambda: CURSOR in state)
            state.down = True
            commit(flights)
            await until(lambda: len(events) == 1)
            state.down = False
            head = commit(flights)
            await until(lambda: state[CURSOR] == head)
            assert len(events) == 2
            flights.create_tag("v1", "main")
            await until(lambda: waiting)

    run(test())


def test_a_branch_that_appears_after_the_watch_began_is_news(flights):
    state = AssetState()

    async def test():
        async with triggerer() as airflow:
            events = airflow.start(watcher("late"), state)
            await until(lambda: state.get(CURSOR) == "")
            flights.create_branch("late")
            await until(lambda: events)
            assert events[0]["commit_id"] == flights.branch("late").commit_id
            flights.delete_branch("late")
            await until(lambda: state.get(CURSOR) == "")
            assert len(events) == 1

    run(test())


def test_a_repository_that_is_not_there_yet_is_waited_for(lake, opened):
    state, looks = AssetState(), opened

    async def test():
        async with triggerer() as airflow:
            events = airflow.start(watcher(), state)
            await until(lambda: looks)
            flights = lake.create_repository("flights")
            await until(lambda: CURSOR in state)
            head = commit(flights)
            await until(lambda: events)
            assert events[0]["commit_id"] == head

    run(test())


OURS = {"airflow_dag_id": "dag"}


@pytest.mark.parametrize(
    ("made", "every", "told"),
    [
        ([OURS], False, False),
        ([OURS, OURS], False, False),
        ([OURS], True, True),
        ([{}], False, True),
        ([{}, OURS], False, True),
        ([OURS, {}], False, True),
    ],
)
def test_a_watcher_tells_of_what_airflow_does_not_tell_of_itself(flights, made, every, told):
    cursor = flights.branch("main").commit_id
    for metadata in made:
        head = commit(flights, **metadata)
    seen, event = HeadSince("main", cursor, every).met(flights)
    assert seen == head
    assert (event is not None) is told
