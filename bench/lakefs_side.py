"""lakeFS on the same bucket behind the same relay, or on the same disk: its server, asked through its HTTP API.

The server runs the whole time and keeps ranges on its local disk, as it does where it is installed. Its key-value store
is the embedded one, or in PostgreSQL. What it needs is its program, which this project does not install.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import local
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np

from bench.dataset import Changes, DataSet

KEY, SECRET = "AKIAIOSFODNN7EXAMPLE", "bench-bench-bench-bench-bench-bench-bench"
PATIENCE = 120.0
"""Seconds for the server to answer, and for an import to end."""
WORKERS = 8
TOO_MANY = 429
"""What it answers after too many attempts at a branch that others moved. Its clients ask again, as this one does."""


@dataclass
class Api:
    """A connection of each thread to lakeFS's API."""

    port: int
    _mine: local = field(default_factory=local)

    def call(self, method: str, place: str, body: Any = None, **query: object) -> Any:
        """What the server answers to a request: from JSON, or None where it is something else.

        One that others were quicker than is sent again until it is served.

        Raises:
            RuntimeError: the server refused it.
        """
        sent = json.dumps(body).encode() if not isinstance(body, bytes) else body
        kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
        again = True
        while again:
            status, answer = self._answer(method, place, sent if body is not None else None, kind, query)
            again = status == TOO_MANY
        if status >= 300:
            raise RuntimeError(f"lakeFS refused {method} {place}: {status} {answer[:500]!r}")
        return json.loads(answer) if answer[:1] in (b"{", b"[") else None

    def _answer(
        self, method: str, path: str, body: bytes | None, kind: str, query: dict[str, object]
    ) -> tuple[int, bytes]:
        connection = getattr(self._mine, "connection", None)
        if connection is None:
            connection = self._mine.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
            connection.connect()
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        asked = f"/api/v1{path}?{urlencode(query)}" if query else f"/api/v1{path}"
        credentials = base64.b64encode(f"{KEY}:{SECRET}".encode()).decode()
        headers = {"Authorization": f"Basic {credentials}", "Content-Type": kind}
        connection.request(method, asked, body=body, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


@contextmanager
def server(program: Path, place: Path, endpoint: str | None = None, *, database: str | None = None) -> Iterator[Api]:
    """A new lakeFS whose objects are in the S3 server at ``endpoint``, with the credentials of the environment.

    Without an endpoint they are files below ``place``. ``database`` is the URL of a PostgreSQL database for its
    key-value store.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "LAKEFS_LISTEN_ADDRESS": f"127.0.0.1:{port}",
        **_key_value_store(place / "kv", database),
        "LAKEFS_COMMITTED_LOCAL_CACHE_DIR": str(place / "cache"),
        "LAKEFS_AUTH_ENCRYPT_SECRET_KEY": "bench",
        **(_files(place / "objects") if endpoint is None else _s3(endpoint)),
        "LAKEFS_STATS_ENABLED": "false",
        "LAKEFS_SECURITY_CHECK_LATEST_VERSION": "false",
        "LAKEFS_LOGGING_LEVEL": "WARN",
    }
    place.mkdir(parents=True, exist_ok=True)
    with (place / "log").open("wb") as log:
        process = subprocess.Popen([str(program), "run"], env=os.environ | settings, stdout=log, stderr=log, cwd=place)
        try:
            api = Api(port)
            _wait(lambda: process.poll() is not None or _answers(port), f"see {place / 'log'}")
            api.call(
                "POST",
                "/setup_lakefs",
                {"username": "bench", "key": {"access_key_id": KEY, "secret_access_key": SECRET}},
            )
            yield api
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def _key_value_store(place: Path, database: str | None) -> dict[str, str]:
    if database is None:
        return {"LAKEFS_DATABASE_TYPE": "local", "LAKEFS_DATABASE_LOCAL_PATH": str(place)}
    return {"LAKEFS_DATABASE_TYPE": "postgres", "LAKEFS_DATABASE_POSTGRES_CONNECTION_STRING": database}


def _files(place: Path) -> dict[str, str]:
    return {"LAKEFS_BLOCKSTORE_TYPE": "local", "LAKEFS_BLOCKSTORE_LOCAL_PATH": str(place)}


def _s3(endpoint: str) -> dict[str, str]:
    return {
        "LAKEFS_BLOCKSTORE_TYPE": "s3",
        "LAKEFS_BLOCKSTORE_S3_ENDPOINT": endpoint,
        "LAKEFS_BLOCKSTORE_S3_FORCE_PATH_STYLE": "true",
        "LAKEFS_BLOCKSTORE_S3_DISCOVER_BUCKET_REGION": "false",
        "LAKEFS_BLOCKSTORE_S3_CREDENTIALS_ACCESS_KEY_ID": os.environ["AWS_ACCESS_KEY_ID"],
        "LAKEFS_BLOCKSTORE_S3_CREDENTIALS_SECRET_ACCESS_KEY": os.environ["AWS_SECRET_ACCESS_KEY"],
    }


def _answers(port: int) -> bool:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
        connection.request("GET", "/_health")
        return connection.getresponse().status == 200
    except OSError:
        return False


def _wait(over: Callable[[], Any], what: str) -> None:
    until = time.monotonic() + PATIENCE
    while not over():
        if time.monotonic() > until:
            raise TimeoutError(what)
        time.sleep(0.005)


class LakeFs:
    """The verbs of the benchmark on a repository of lakeFS.

    Args:
        api: the server.
        namespace: where its objects lie, as a URL.
        data: what it shall hold.
        source: a bucket's folder with the objects of the data set, which are imported. It stays empty without one.
    """

    def __init__(self, api: Api, namespace: str, data: DataSet, source: str = "") -> None:
        self._api = api
        self.data = data
        self.some_path = data.paths(np.arange(data.size // 3, data.size // 3 + 1, dtype=np.uint64))[0].as_py()
        self._source = source
        self._addresses = namespace
        api.call(
            "POST", "/repositories", {"name": "bench", "storage_namespace": self._addresses, "default_branch": "main"}
        )
        if source:
            self.import_all("main", "")

    def branch(self, name: str) -> None:
        """A new branch of main."""
        self._api.call("POST", "/repositories/bench/branches", {"name": name, "source": "main"})

    def stage(self, name: str, changes: Changes) -> None:
        """Put changes into a branch's staging area. No object is uploaded."""
        with ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(lambda row: self._stage(name, row), changes.staged.to_pylist()))

    def _stage(self, name: str, row: dict[str, Any]) -> None:
        place = f"/repositories/bench/branches/{name}/objects"
        if row["tombstone"]:
            self._api.call("DELETE", place, path=row["path"])
            return
        entry = {
            "physical_address": f"{self._addresses}/{row['physical_address']}",
            "checksum": row["checksum"],
            "size_bytes": row["size_bytes"],
            "content_type": row["content_type"],
            "metadata": dict(row["metadata"] or ()),
        }
        self._api.call("PUT", place, entry, path=row["path"])

    def commit(self, name: str) -> None:
        """Commit what is staged."""
        self._api.call("POST", f"/repositories/bench/branches/{name}/commits", {"message": "changes"})

    def diff(self, left: str, right: str) -> int:
        """How many paths differ between two refs, from all pages."""
        count, after, more = 0, "", True
        while more:
            page = self._api.call(
                "GET", f"/repositories/bench/refs/{left}/diff/{right}", amount=1_000, after=after, type="two_dot"
            )
            count += len(page["results"])
            more, after = page["pagination"]["has_more"], page["pagination"]["next_offset"]
        return count

    def merge(self, source: str, destination: str) -> None:
        """Merge a branch into another."""
        self._api.call("POST", f"/repositories/bench/refs/{source}/merge/{destination}", {})

    def page(self) -> int:
        """The first thousand objects."""
        return len(self._api.call("GET", "/repositories/bench/refs/main/objects/ls", amount=1_000)["results"])

    def stat(self, path: str) -> None:
        """Look at one object."""
        self._api.call("GET", "/repositories/bench/refs/main/objects/stat", path=path)

    def put(self, name: str, path: str, data: bytes) -> None:
        """Upload an object."""
        self._api.call("POST", f"/repositories/bench/branches/{name}/objects", data, path=path)

    def import_all(self, name: str, to: str) -> None:
        """Import the source and wait until it is committed."""
        place = f"/repositories/bench/branches/{quote(name)}/import"
        asked = {
            "paths": [{"path": self._source, "destination": to, "type": "common_prefix"}],
            "commit": {"message": "import"},
        }
        begun = self._api.call("POST", place, asked)["id"]

        def over() -> bool:
            told = self._api.call("GET", place, id=begun)
            if told.get("error"):
                raise RuntimeError(f"lakeFS could not import: {told['error']}")
            return bool(told["completed"])

        _wait(over, "the import of lakeFS did not end")
