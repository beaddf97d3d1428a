"""A watcher where triggers share no stream and assets have no state, as in Airflow 3.1 and 3.2 and in ``dag.test``."""

import asyncio

from lakeops.airflow import triggers
from lakeops.airflow.triggers import LakeopsCommitTrigger

DEADLINE = 120


def test_a_watcher_alone_tells_of_each_commit(flights, monkeypatch):
    monkeypatch.setattr(triggers, "TICK_SECONDS", 0.001)
    looked = asyncio.Event()
    begin = triggers.Poller.begin

    def noted(poller, question):
        task = begin(poller, question)
        task.add_done_callback(lambda _: looked.set())
        return task

    monkeypatch.setattr(triggers.Poller, "begin", noted)

    async def watch():
        main = flights.branch("main")
        events = LakeopsCommitTrigger(repo="flights", branch="main", asset="main", poll_interval=0.001).run()
        told: list[str] = []
        for number in ("1", "2"):
            event = asyncio.create_task(anext(events))
            async with asyncio.timeout(DEADLINE):
                await looked.wait()  # it counts from the head that it has seen
                await asyncio.to_thread(main.put, "a", number.encode())
                await asyncio.to_thread(main.commit, number)
                told.append((await event).payload["commit_id"])
            assert told[-1] == main.commit_id
        await events.aclose()
        return told

    assert len(asyncio.run(watch())) == 2
