"""Airflow's REST interface, as far as the demo needs it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import httpx

PATIENCE = 600
"""Seconds for which a call is tried again that a busy machine did not answer."""

PATIENCE_WITH_ERRORS = 60
"""Seconds for which a call is tried again that ends in a server error, such as SQLite's "database is locked"."""


class Rest:
    """A client that is logged in as ``admin``. Calls without an answer, or with a server error, are tried again."""

    def __init__(self, url: str, password: str, transport: httpx.BaseTransport | None = None) -> None:
        self._client = httpx.Client(base_url=url, timeout=60, transport=transport)
        answer = self._call("POST", "/auth/token", json={"username": "admin", "password": password})
        self._client.headers["Authorization"] = f"Bearer {answer.raise_for_status().json()['access_token']}"
        self._client.base_url = httpx.URL(f"{url}/api/v2")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    @property
    def token(self) -> str:
        """What a browser of ``admin`` shows as the cookie ``_token``."""
        return self._client.headers["Authorization"].removeprefix("Bearer ")

    def wait_for_dag(self, dag: str, seconds: float) -> None:
        """Return when Airflow has read the DAG. Raises ``httpx.HTTPError`` when it does not in time."""
        deadline = time.monotonic() + seconds
        while True:
            answer = self._call("GET", f"/dags/{dag}")
            if answer.status_code != httpx.codes.NOT_FOUND or time.monotonic() > deadline:
                answer.raise_for_status()
                return
            time.sleep(0.5)

    def unpause(self, dag: str) -> None:
        """Let a DAG's runs run."""
        self._call("PATCH", f"/dags/{dag}", json={"is_paused": False}).raise_for_status()

    def trigger(self, dag: str, run_id: str, logical_date: str | None, conf: Mapping[str, Any]) -> None:
        """Queue a run."""
        body = {"dag_run_id": run_id, "logical_date": logical_date, "conf": dict(conf)}
        answer = self._call("POST", f"/dags/{dag}/dagRuns", json=body)
        if answer.status_code != httpx.codes.CONFLICT:  # an earlier try of this call may have queued it
            answer.raise_for_status()

    def run_states(self, dag: str) -> dict[str, str]:
        """The state of each of a DAG's runs by run id."""
        return {run["dag_run_id"]: run["state"] for run in self._get(f"/dags/{dag}/dagRuns", limit=100)["dag_runs"]}

    def task_states(self, dag: str, run_id: str) -> dict[str, str]:
        """The state of each of a run's tasks by task id."""
        tasks = self._get(f"/dags/{dag}/dagRuns/{run_id}/taskInstances")["task_instances"]
        return {task["task_id"]: task["state"] or "" for task in tasks}

    def result(self, dag: str, run_id: str, task_id: str) -> Any:  # noqa: ANN401 - whatever a task returns
        """What a task returned."""
        return self._get(f"/dags/{dag}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/return_value")["value"]

    def mark(self, dag: str, run_id: str, task_id: str, state: str) -> None:
        """Set a task's state, as a person does who marks it failed."""
        path = f"/dags/{dag}/dagRuns/{run_id}/taskInstances/{task_id}"
        self._call("PATCH", path, json={"new_state": state}).raise_for_status()

    def question(self, dag: str, run_id: str, task_id: str) -> dict[str, Any]:
        """What a task asks a person: ``subject``, ``body``, ``options``."""
        return self._get(f"/dags/{dag}/dagRuns/{run_id}/taskInstances/{task_id}/-1/hitlDetails")

    def answer(self, dag: str, run_id: str, task_id: str, option: str) -> None:
        """Answer a task that asks a person."""
        path = f"/dags/{dag}/dagRuns/{run_id}/taskInstances/{task_id}/-1/hitlDetails"
        self._call("PATCH", path, json={"chosen_options": [option], "params_input": {}}).raise_for_status()

    def asset_state(self, name: str) -> dict[str, Any]:
        """What is kept with an asset, by key; nothing when there is no such asset."""
        found = [asset for asset in self._get("/assets", name_pattern=name)["assets"] if asset["name"] == name]
        if not found:
            return {}
        kept = self._get(f"/assets/{found[0]['id']}/state-store")
        (entries,) = (value for value in kept.values() if isinstance(value, list))
        return {entry["key"]: entry["value"] for entry in entries}

    def asset_events(self, name: str) -> list[dict[str, Any]]:
        """The extras of an asset's events, oldest first."""
        found = [asset for asset in self._get("/assets", name_pattern=name)["assets"] if asset["name"] == name]
        events = self._get("/assets/events", asset_id=found[0]["id"], order_by="timestamp")["asset_events"]
        return [event["extra"] for event in events]

    def log(self, dag: str, run_id: str, task_id: str) -> list[dict[str, Any]]:
        """The log of a task's first try: an event a line, with ``error_detail`` where there is a traceback."""
        log = self._get(f"/dags/{dag}/dagRuns/{run_id}/taskInstances/{task_id}/logs/1", full_content=True)["content"]
        return [line if isinstance(line, dict) else {"event": str(line)} for line in log]

    def failed_checks(self, dag: str, run_id: str, task_id: str) -> list[str]:
        """The rules that an audit task's log reports as broken."""
        lines = [str(line.get("event", "")) for line in self.log(dag, run_id, task_id)]
        return [line.removeprefix("FAILED").strip() for line in lines if line.startswith("FAILED")]

    def page(self, path: str) -> str:
        """The text of a page of Airflow's web server."""
        return self._call("GET", str(self._client.base_url.copy_with(path="")) + path).raise_for_status().text

    def _get(self, path: str, **query: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever a query takes
        answer = self._call("GET", path, params=query, headers={"Accept": "application/json"})
        found: dict[str, Any] = answer.raise_for_status().json()
        return found

    def _call(self, method: str, path: str, **arguments: Any) -> httpx.Response:  # noqa: ANN401 - httpx's
        start = time.monotonic()
        while True:
            try:
                answer = self._client.request(method, path, **arguments)
            except httpx.TransportError:
                if time.monotonic() > start + PATIENCE:
                    raise
            else:
                if not answer.is_server_error or time.monotonic() > start + PATIENCE_WITH_ERRORS:
                    return answer
            time.sleep(0.5)
