"""The HTTP server of the gateway and of the pages. uvicorn's protocol over h11 bounds header blocks.

``_LimitedProtocol`` adds times to wait for a client, and bounds connections.
"""

from __future__ import annotations

import asyncio
import http
import resource
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import h11
import uvicorn
from starlette.responses import Response
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_BACKLOG = 128
"""Connections that the event loop takes at once, before it looks at how many there are."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a client. ``docs/gateway.md`` has the table."""

    header_bytes: int = 32 << 10
    headers: int = 200
    header_seconds: float = 20
    keep_alive_seconds: int = 30
    body_bytes: int = 5 << 30
    body_seconds: float = 30
    body_bytes_per_second: int = 1024
    answer_seconds: float = 300
    connections: int = 1000

    def connections_here(self) -> int:
        """The connections that this process takes: half of its descriptors stay free for stores and the catalog."""
        return max(1, min(self.connections, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2))


LIMITS: Limits = Limits()


def server_of(app: ASGIApp) -> uvicorn.Server:
    """A server of an application that is ready to run."""
    limits = LIMITS

    async def bounded(scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse header blocks that came in one piece, which h11 does not measure."""
        size = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        size += len(scope["raw_path"]) + len(scope["query_string"])
        if len(scope["headers"]) > limits.headers or size > limits.header_bytes:
            await _closing(431, "the headers are too many or too large\n")(scope, receive, send)
        else:
            await app(scope, receive, send)

    config = uvicorn.Config(
        bounded,
        access_log=False,  # the query of a presigned URL is a key to the object
        backlog=_BACKLOG,
        h11_max_incomplete_event_size=limits.header_bytes,
        http=cast("type[asyncio.Protocol]", partial(_LimitedProtocol, limits=limits)),
        lifespan="off",
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=10,
        timeout_keep_alive=limits.keep_alive_seconds,
        ws="none",
    )
    return uvicorn.Server(config)


def _closing(status: int, words: str, **headers: str) -> Response:
    return Response(words, status, {"connection": "close", **headers})


async def _busy(scope: Scope, receive: Receive, send: Send) -> None:
    await _closing(503, "too many connections; try again\n", **{"retry-after": "1"})(scope, receive, send)


class _LimitedProtocol(H11Protocol):
    """A connection that ends when its client sends or takes too little, or when others need its place."""

    def __init__(self, *args: Any, limits: Limits, **kwargs: Any) -> None:  # noqa: ANN401 - uvicorn's signature
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._most = limits.connections_here()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._idle_since = self.loop.time()
        self._body_bytes = 0

    @property
    def _waits_for_request(self) -> bool:
        return self.conn.their_state is h11.IDLE

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Take a connection. Past the limit the one that has waited longest for a request makes room for it."""
        super().connection_made(transport)
        self._expect("request", self._limits.header_seconds)
        known = cast("set[_LimitedProtocol]", self.connections)
        others = [one for one in known if one is not self and not one.transport.is_closing()]
        if len(others) < self._most:
            return
        idle = [one for one in others if one._waits_for_request]  # noqa: SLF001 - of this class
        if idle:
            min(idle, key=lambda one: one._idle_since)._break_off(503)  # noqa: SLF001
        else:
            self.app = cast("Any", _busy)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers."""
        for name in list(self._timers):
            self._expect(name, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handle what came, and wait for the rest of it."""
        in_body = self.conn.their_state is h11.SEND_BODY
        super().data_received(data)
        self._wait_for_rest(len(data) if in_body else 0)

    def on_response_complete(self) -> None:
        """Go on with the next request, unless the rest of this one was not wanted."""
        self._idle_since = self.loop.time()
        if self.conn.their_state is h11.SEND_BODY:
            self.transport.close()
        super().on_response_complete()
        if not self._waits_for_request or self.conn.trailing_data[0]:
            self._wait_for_rest(0)

    def _wait_for_rest(self, received: int) -> None:
        """Set the time that the rest of a request has: a header block in all, a body for its next bytes."""
        if self._waits_for_request:
            self._expect("body", None)
            if "request" not in self._timers:
                self._expect("request", self._limits.header_seconds)
            return
        self._expect("request", None)
        if self.conn.their_state is not h11.SEND_BODY:
            self._expect("body", None)
            self._body_bytes = 0
            return
        self._body_bytes += received
        if self._body_bytes > self._limits.body_bytes:
            self._break_off(413)
            return
        left, before = self._limits.body_seconds, self._timers.get("body")
        if before is not None:  # a byte now and then gains no time
            left = min(left, before.when() - self.loop.time() + received / self._limits.body_bytes_per_second)
        self._expect("body", left)

    def pause_writing(self) -> None:
        """Give the client time to take what was written."""
        super().pause_writing()
        self._expect("answer", self._limits.answer_seconds)

    def resume_writing(self) -> None:
        """Stop the timer: the client goes on."""
        super().resume_writing()
        self._expect("answer", None)

    def timeout_keep_alive_handler(self) -> None:
        """End an idle connection, also one whose client does not take the last answer."""
        super().timeout_keep_alive_handler()
        self._expect("answer", self._limits.answer_seconds)

    def _expect(self, what: str, seconds: float | None) -> None:
        """Break the connection off if something does not come in time. None: it came."""
        before = self._timers.pop(what, None)
        if before is not None:
            before.cancel()
        if seconds is not None and not (self.transport.is_closing() and what != "answer"):
            self._timers[what] = self.loop.call_later(seconds, self._overdue, what)

    def _overdue(self, what: str) -> None:
        del self._timers[what]
        if what == "answer":
            self.transport.abort()
        elif what == "body" and self.flow.read_paused:
            self._expect("body", self._limits.body_seconds)  # it is the application that does not read
        else:
            self._break_off(408)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's signature
        """Refuse a malformed or too long request."""
        self._break_off(getattr(sys.exception(), "error_status_hint", 400))

    def _break_off(self, status: int) -> None:
        """End the connection, with an answer where a request has begun and none was given yet."""
        begun = not self._waits_for_request or self.conn.trailing_data[0]
        if begun and self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            headers = [("content-length", "0"), ("connection", "close")]
            headers += [("retry-after", "1")] if status == 503 else []
            reason = http.HTTPStatus(status).phrase.encode()
            for event in (h11.Response(status_code=status, headers=headers, reason=reason), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self.transport.abort()
