"""A server moved far away: a relay in front of it that delays each request and bounds the bandwidth.

It knows nothing of HTTP. On a connection of an S3 client, bytes of a request and of its answer take turns. So a request
begins when the client speaks after the server did, and it ends with the last byte before the client speaks again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Thread

PIECE = 64 * 1024


@dataclass
class Request:
    """One request on its way: when its first byte left the client, and when the last byte of the answer came back."""

    begun: float
    ended: float = 0.0


def longest_chain(requests: list[Request]) -> int:
    """The most requests of which each began after the one before had ended."""
    length, free = 0, 0.0
    for each in sorted(requests, key=lambda one: one.ended):
        if each.ended and each.begun >= free:
            length, free = length + 1, each.ended
    return length


class Line:
    """One direction, which all connections share."""

    def __init__(self) -> None:
        self._free = 0.0

    def through(self, size: int, bandwidth: float) -> float:
        """When so many bytes are through, behind those of others."""
        self._free = max(time.perf_counter(), self._free) + size / bandwidth
        return self._free


@dataclass
class Relay:
    """What a relay does, and the requests that went through it since ``forget``.

    Attributes:
        address: host and port of the server.
        delay: seconds that each request takes longer.
        bandwidth: bytes a second, of all connections together, in either direction.
    """

    address: tuple[str, int]
    delay: float
    bandwidth: float
    requests: list[Request] = field(default_factory=list)
    _there: Line = field(default_factory=Line)
    _here: Line = field(default_factory=Line)

    def forget(self) -> None:
        """Begin to count anew."""
        self.requests = []

    @contextmanager
    def running(self) -> Iterator[str]:
        """Relay for a ``with``; gives the URL that clients talk to."""
        loop = asyncio.new_event_loop()
        server = loop.run_until_complete(asyncio.start_server(self._connected, "127.0.0.1", 0))
        thread = Thread(target=loop.run_forever, name="relay", daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            asyncio.run_coroutine_threadsafe(_end(server), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    async def _connected(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        server, on = await asyncio.open_connection(*self.address)
        turns: list[Request] = []

        def asked() -> None:
            if not turns or turns[-1].ended:
                turns.append(Request(time.perf_counter()))
                self.requests.append(turns[-1])

        def answered() -> None:
            if turns:
                turns[-1].ended = time.perf_counter()

        with suppress(asyncio.CancelledError):  # at the end; asyncio's streams print one that gets out
            await asyncio.gather(
                self._carry(client, on, self._there, self.delay, asked),
                self._carry(server, back, self._here, 0.0, answered),
            )
        for writer in (on, back):
            writer.close()

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        line: Line,
        delay: float,
        on_read: Callable[[], None],
    ) -> None:
        """Bytes of one connection in one direction: each piece arrives ``delay`` seconds after it was sent."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=256)
        delivering = asyncio.create_task(_deliver(under_way, writer))
        with suppress(ConnectionError):
            while data := await reader.read(PIECE):
                on_read()
                await under_way.put((line.through(len(data), self.bandwidth) + delay, data))
        await under_way.put((0.0, b""))
        await delivering


async def _end(server: asyncio.Server) -> None:
    """Take no more connections, and let go of those that clients have kept."""
    server.close()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _deliver(under_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
    while True:
        due, data = await under_way.get()
        if not data:
            with suppress(OSError):
                writer.write_eof()
            return
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        with suppress(ConnectionError):
            writer.write(data)
            await writer.drain()
