"""Tests of a client without a key, by raw sockets against the real processes of gateway and pages."""

from __future__ import annotations

import json
import os
import re
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from services.process import die_with_parent
from support.served import KEYS, lake, s3_client

from lakeops import Lake, Settings
from lakeops.serving import LIMITS, Limits, server_of

__all__ = ["lake"]

SHORT = {"header_seconds": 1.5, "keep_alive_seconds": 1, "body_seconds": 1.5, "answer_seconds": 1.5}
GET = b"GET /shop/main/a HTTP/1.1\r\nHost: localhost\r\n"
BIG = 24 << 20
"""More than the buffers of a connection hold."""

_RUN = """
import resource, sys
from lakeops import serving
if {descriptors}:
    resource.setrlimit(resource.RLIMIT_NOFILE, ({descriptors}, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
serving.LIMITS = serving.Limits(**{limits})
from lakeops.cli.app import app
app(sys.argv[1:])
"""


@dataclass(frozen=True)
class Server:
    port: int
    process: psutil.Process

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def asks(self, connection: socket.socket | None = None) -> int:
        """The status of a plain request, on a connection of its own or on this one."""
        with ExitStack() as opened:
            found = connection or opened.enter_context(self.connect())
            found.sendall(GET + b"Connection: close\r\n\r\n")
            return status_of(everything(found))

    @property
    def megabytes(self) -> int:
        return self.process.memory_info().rss >> 20


Start = Callable[..., Server]
COMMANDS = {"gateway": ("gateway", "--port", "0", "--json"), "ui": ("ui", "--port", "0", "--no-browser", "--json")}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("limits")
    with Lake.open(settings=Settings.model_construct(home=home, fsync=False, committer="tester")) as lake:
        main = lake.create_repository("shop").branch("main")
        main.put("a", b"1")
        main.put("big", bytes(BIG))
        main.commit("Load")
    return home


@contextmanager
def _running(home: Path, command: str, descriptors: int, limits: dict[str, float]) -> Iterator[Server]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LAKEOPS_")}
    with subprocess.Popen(
        [sys.executable, "-c", _RUN.format(descriptors=descriptors, limits=limits), *COMMANDS[command]],
        stdout=subprocess.PIPE,
        env=environment | {"LAKEOPS_HOME": str(home)},
        cwd=home,
        preexec_fn=die_with_parent,  # noqa: PLW1509 - only for the case that the run is killed
    ) as process:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        port = int(re.findall(r":(\d+)/?$", said.get("url") or said["address"])[0])
        try:
            yield Server(port, psutil.Process(process.pid))
        finally:
            process.terminate()
            process.wait(30)


def _of_both(limits: dict[str, float], descriptors: int = 0) -> Any:
    """A fixture of each server with these limits."""

    @pytest.fixture(scope="module", params=COMMANDS)
    def server(request: pytest.FixtureRequest, home: Path) -> Iterator[Server]:
        with _running(home, request.param, descriptors, limits) as running:
            running.asks()  # what is imported late is there
            yield running

    return server


usual = _of_both({})
hasty = _of_both(SHORT)
small = _of_both({"header_seconds": 60, "answer_seconds": 60}, descriptors=256)


def everything(connection: socket.socket) -> bytes:
    """The bytes that come until the other side ends the connection."""
    pieces = []
    with suppress(ConnectionResetError):
        while piece := connection.recv(1 << 16):
            pieces.append(piece)
    return b"".join(pieces)


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


def statuses(answer: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3})", answer)]


def an_answer(connection: socket.socket) -> bytes:
    """One answer, as long as it says that it is."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += connection.recv(1)
    length = int(re.findall(rb"content-length: (\d+)", answer.lower())[0])
    while length:
        piece = connection.recv(length)
        answer, length = answer + piece, length - len(piece)
    return answer


def works(server: Server) -> bool:
    return server.asks() in {200, 404}


def send_all(connection: socket.socket, pieces: Iterator[bytes]) -> int:
    """Send until the other side does not want more. Returns how much was sent."""
    sent = 0
    with suppress(ConnectionResetError, BrokenPipeError):
        for piece in pieces:
            connection.sendall(piece)
            sent += len(piece)
    return sent


# --- header blocks ---


def test_a_giant_header_line_is_refused_at_once(usual: Server) -> None:
    before = usual.megabytes
    with usual.connect() as connection:
        sent = send_all(connection, iter([GET + b"X: ", *[b"a" * (1 << 20)] * 64]))
        answer = everything(connection)
    assert sent < 64 << 20
    assert status_of(answer) in {431, 0}, "an unread rest may drop the answer"
    assert usual.megabytes - before < 20
    assert works(usual)


@pytest.mark.parametrize(
    "block",
    [
        b"".join(b"X-%d: 1\r\n" % number for number in range(10_000)),
        b"".join(b"X-%d: 1\r\n" % number for number in range(LIMITS.headers)),
        b"X: " + b"a" * LIMITS.header_bytes + b"\r\n",
        b"X:" + b" " * (1 << 20) + b"\r\n",
    ],
    ids=["10,000 headers", "one too many", "one too large", "spaces"],
)
def test_too_many_headers_are_refused(usual: Server, block: bytes) -> None:
    with usual.connect() as connection:
        send_all(connection, iter([GET + block + b"\r\n"]))
        assert status_of(everything(connection)) in {431, 400}
    assert works(usual)


def test_headers_within_the_limits_are_taken(usual: Server) -> None:
    block = b"".join(b"X-%d: 1\r\n" % number for number in range(LIMITS.headers - 2))
    with usual.connect() as connection:
        connection.sendall(GET + block + b"Connection: close\r\n\r\n")
        assert status_of(everything(connection)) in {200, 404}


def test_a_long_request_line_is_refused(usual: Server) -> None:
    with usual.connect() as connection:
        send_all(
            connection, iter([b"GET /shop/" + b"a" * LIMITS.header_bytes + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"])
        )
        assert status_of(everything(connection)) in {431, 400}


@pytest.mark.parametrize("junk", [b"\0" * 100, b"\r\n\r\n\r\n", b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n"])
def test_what_is_no_http_ends_the_connection(hasty: Server, junk: bytes) -> None:
    with hasty.connect() as connection:
        connection.sendall(junk)
        assert status_of(everything(connection)) in {400, 408, 0}
    assert works(hasty)


# --- time ---


@pytest.mark.parametrize("begun", [b"", b"GET / HT", GET, GET + b"X: 1\r\n"])
def test_a_request_that_does_not_go_on_is_given_up(hasty: Server, begun: bytes) -> None:
    with hasty.connect() as connection:
        connection.sendall(begun)
        assert status_of(everything(connection)) == (408 if begun else 0)


def trickle(connection: socket.socket, piece: bytes) -> float:
    """Send a piece now and then until the other side ends the connection. Returns after how many seconds."""
    begun = time.monotonic()
    connection.settimeout(0.05)
    while time.monotonic() - begun < 20:
        try:
            if not connection.recv(1 << 16):
                break
        except TimeoutError:
            with suppress(OSError):
                connection.sendall(piece)
        except ConnectionError:
            break
    return time.monotonic() - begun


@pytest.mark.parametrize(
    ("begun", "piece"),
    [
        (GET, b"X: 1\r\n"),
        (b"GET /", b"a"),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n", b"a"),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n"),
    ],
    ids=["headers", "request line", "body", "chunks"],
)
def test_a_byte_now_and_then_gains_no_time(hasty: Server, begun: bytes, piece: bytes) -> None:
    with hasty.connect() as connection:
        connection.sendall(begun)
        assert trickle(connection, piece) < 10
    assert works(hasty)


def test_an_idle_connection_is_ended(hasty: Server) -> None:
    with hasty.connect() as connection:
        connection.sendall(GET + b"\r\n")
        answer = everything(connection)
    assert len(statuses(answer)) == 1


def test_a_connection_serves_one_request_after_another(hasty: Server) -> None:
    with hasty.connect() as connection:
        for _ in range(3):
            connection.sendall(GET + b"\r\n")
            assert status_of(an_answer(connection)) in {200, 404}
        assert hasty.asks(connection) in {200, 404}


@pytest.mark.parametrize("method", [b"GET", b"POST"])
def test_a_body_that_never_ends_is_not_read_for_ever(usual: Server, method: bytes) -> None:
    before = usual.megabytes
    chunk = b"100000\r\n" + b"a" * (1 << 20) + b"\r\n"
    with usual.connect() as connection:
        connection.sendall(method + b" /shop/main/a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert send_all(connection, iter([chunk] * 128)) < 128 << 20
    assert usual.megabytes - before < 20
    assert works(usual)


def test_a_half_sent_body_holds_nothing(hasty: Server) -> None:
    with hasty.connect() as connection:
        connection.sendall(b"POST /shop/main/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nabc")
        assert len(statuses(everything(connection))) == 1


def test_an_answer_that_nobody_takes_is_given_up(home: Path) -> None:
    with _running(home, "gateway", 0, SHORT) as server, ExitStack() as opened:
        works(server)
        for _ in range(4):
            connection = opened.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", server.port))
            connection.sendall(b"GET /shop/main/big HTTP/1.1\r\nHost: localhost\r\n\r\n")
        ended = time.monotonic() + 30
        while [one for one in server.process.net_connections() if one.status == "ESTABLISHED"]:
            assert time.monotonic() < ended
            time.sleep(0.05)
        assert works(server)


# --- connections ---


@pytest.mark.parametrize(
    "begun",
    [b"", GET, b"POST /shop/main/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nabc", GET + b"\r\n"],
    ids=["silent", "half a header block", "half a body", "idle after an answer"],
)
def test_others_are_served_beside_many_that_wait(small: Server, begun: bytes) -> None:
    with ExitStack() as opened:
        for number in range(1000):
            connection = opened.enter_context(small.connect())
            with suppress(ConnectionError):
                connection.sendall(begun)
            if number % 50 == 0:
                assert works(small)
        for _ in range(20):
            assert works(small)
        assert small.process.num_fds() < 200
    assert works(small)


def test_a_connection_that_made_room_is_told_so(home: Path) -> None:
    with _running(home, "gateway", 0, {"connections": 2}) as server, ExitStack() as opened:
        works(server)
        first = opened.enter_context(server.connect())
        first.sendall(GET)
        answered = select.poll()
        answered.register(first, select.POLLIN)
        for _ in range(20):  # a busy server takes a moment to see them
            opened.enter_context(server.connect()).sendall(GET)
            if answered.poll(500):
                break
        answer = everything(first)
        assert status_of(answer) == 503
        assert b"retry-after: 1" in answer.lower()


def test_requests_past_those_under_way_are_refused_with_a_time_to_come_back(home: Path) -> None:
    with _running(home, "gateway", 0, {"connections": 2}) as server, ExitStack() as opened:
        works(server)
        for _ in range(2):
            connection = opened.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", server.port))
            connection.sendall(b"GET /shop/main/big HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(1)
        for _ in range(5):
            with server.connect() as late:
                late.sendall(GET + b"\r\n")
                answer = everything(late)
            assert status_of(answer) == 503
            assert b"retry-after: 1" in answer.lower()
    with _running(home, "gateway", 0, {"connections": 2}) as server:
        assert [works(server) for _ in range(10)] == [True] * 10


def test_pipelined_requests_are_answered_in_order_and_in_bounded_memory(usual: Server) -> None:
    before = usual.megabytes
    with usual.connect() as connection:
        connection.sendall((GET + b"\r\n") * 19 + GET + b"Connection: close\r\n\r\n")
        assert len(statuses(everything(connection))) == 20
    with usual.connect() as connection:  # one that sends, and reads no answer
        connection.settimeout(1)
        with suppress(TimeoutError):
            send_all(connection, iter([(GET + b"\r\n") * 100] * 10_000))
        assert works(usual)
    assert usual.megabytes - before < 40


def test_a_body_is_no_larger_than_s3_takes(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, serve: Callable[..., str]
) -> None:
    monkeypatch.setattr("lakeops.serving.LIMITS", Limits(body_bytes=1 << 20))
    lake.create_repository("shop")
    from botocore.exceptions import ClientError

    with s3_client(serve(lake, KEYS, write=True)) as s3:
        s3.put_object(Bucket="shop", Key="main/a", Body=bytes(1000 << 10))
        with pytest.raises(ClientError) as caught:
            s3.put_object(Bucket="shop", Key="main/b", Body=bytes(4 << 20))
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 413
    assert [entry.path for entry in lake.repository("shop").ref("main").list()] == ["a"]


def test_half_of_the_descriptors_are_left_for_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 4096))
    assert Limits().connections_here() == 512
    monkeypatch.setattr("resource.getrlimit", lambda _: (1 << 20, 1 << 20))
    assert Limits().connections_here() == LIMITS.connections
    assert server_of(lambda *_: None).config.h11_max_incomplete_event_size == LIMITS.header_bytes  # type: ignore[arg-type]
