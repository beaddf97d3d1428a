"""How Airflow is started and asked on a machine that is busy with other things."""

import json
import sys
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "demo" / "airflow"))

import rest as rest_module  # noqa: E402
import serve  # noqa: E402
from rest import Rest  # noqa: E402
from serve import PARTS, ServeError, Server  # noqa: E402


class Process:
    """A part that was started, or has ended."""

    def __init__(self, code=None):
        self.pid = 0
        self.code = code

    def poll(self):
        return self.code


@pytest.fixture
def launched(monkeypatch):
    """The parts that were started, in order; every look finds one more healthy."""
    found: list[str] = []
    monkeypatch.setattr(Server, "_migrate", lambda self, env: None)
    monkeypatch.setattr(Server, "stop", lambda self: None)
    monkeypatch.setattr(serve.time, "sleep", lambda seconds: None)

    def launch(self, name, command, env):
        assert not found or "api-server" in self._healthy(), f"{name} starts before anything listens"
        found.append(name)
        return Process()

    monkeypatch.setattr(Server, "_launch", launch)
    return found


def test_the_web_server_listens_before_anything_calls_it(launched, tmp_path, monkeypatch):
    looks = iter(range(100))
    healthy: set[str] = set()

    def look(self):
        if next(looks) % 3 == 2:
            healthy.update(launched[: len(healthy) + 1])
        return set(healthy)

    monkeypatch.setattr(Server, "_healthy", look)
    told: list[str] = []
    Server(tmp_path / "home").start(patience=told.append)
    assert launched == list(PARTS)
    assert healthy == set(PARTS)
    assert told[1:] == ["waiting for api-server", "waiting for api-server, dag-processor, scheduler, triggerer"]


def test_what_is_still_waited_for_is_told(launched, tmp_path, monkeypatch):
    seconds = iter(range(0, 100_000, 20))
    monkeypatch.setattr(serve.time, "monotonic", lambda: float(next(seconds)))
    monkeypatch.setattr(Server, "_healthy", lambda self: {"api-server", "scheduler"} & set(launched))
    told: list[str] = []
    with pytest.raises(ServeError, match="dag-processor, triggerer is not ready after 900 s"):
        Server(tmp_path / "home").start(patience=told.append)
    assert "still waiting for dag-processor, triggerer, after 40 s" in told


def test_a_call_that_is_not_answered_in_time_is_tried_again(monkeypatch):
    monkeypatch.setattr(rest_module.time, "sleep", lambda seconds: None)
    calls: list[tuple[str, str]] = []

    def answer(request):
        calls.append((request.method, request.url.path))
        if len(calls) % 3 == 1:
            raise httpx.ReadTimeout("busy", request=request)
        if len(calls) % 3 == 2:
            return httpx.Response(500, text="database is locked")
        if request.url.path.endswith("/dagRuns") and request.method == "POST":
            assert json.loads(request.content)["dag_run_id"] == "one"
            return httpx.Response(409)  # the call that was not answered in time has queued it
        if request.url.path.endswith("/auth/token"):
            return httpx.Response(201, json={"access_token": "t"})
        return httpx.Response(200, json={"dag_runs": [{"dag_run_id": "one", "state": "success"}]})

    with Rest("http://127.0.0.1:1", "secret", httpx.MockTransport(answer)) as rest:
        rest.trigger("publish", "one", None, {})
        assert rest.run_states("publish") == {"one": "success"}
    runs = "/api/v2/dags/publish/dagRuns"
    assert calls == [("POST", "/auth/token")] * 3 + [("POST", runs)] * 3 + [("GET", runs)] * 3
