"""A proxy in front of an S3 server that flips one bit of what is read, and tells everything else as it is.

It is what a network card, a cache or a disk does: listing, HEAD and ETag stay right, and the bytes are wrong.
"""

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


@dataclass
class Flips:
    """Which answers are flipped.

    Attributes:
        url: where the proxy answers.
        names: texts, one of which the address of a flipped object holds. None flips nothing.
        left: how many answers are still to be flipped. None flips all.
        done: how many were.
    """

    url: str = ""
    names: tuple[str, ...] = ()
    left: int | None = None
    done: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def flip(self, path: str, body: bytes) -> bytes:
        """The body of an answer, with one bit of its middle changed when it is an answer's turn."""
        with self.lock:
            if not body or self.left == 0 or not any(name in path for name in self.names):
                return body
            self.left = None if self.left is None else self.left - 1
            self.done += 1
        middle = len(body) // 2
        return body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]


@contextmanager
def flipping(endpoint: str) -> Iterator[Flips]:
    """A proxy before a server."""
    flips, target = Flips(), urlsplit(endpoint)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None: ...

        def forward(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            inner = http.client.HTTPConnection(target.hostname or "", target.port)
            inner.request(self.command, self.path, self.rfile.read(length), dict(self.headers))
            answer = inner.getresponse()
            body = answer.read()
            inner.close()
            if self.command == "GET" and answer.status in {200, 206} and "?" not in self.path:
                body = flips.flip(self.path, body)
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in {"content-length", "transfer-encoding", "connection", "date", "server"}:
                    self.send_header(name, value)
            size = answer.getheader("content-length") if self.command == "HEAD" else str(len(body))
            self.send_header("content-length", size or "0")
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = forward  # noqa: N815 - the names of HTTP's methods

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    flips.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield flips
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
