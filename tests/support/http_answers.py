"""Answers of an HTTP server for botocore's ``before-send`` event, and servers for what no event can play."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from botocore.awsrequest import AWSResponse
from botocore.httpsession import URLLib3Session


class _Raw(io.BytesIO):
    def stream(self, **_):
        while piece := self.read(65536):
            yield piece


def answer(status: int, body: bytes = b"", **headers: str) -> AWSResponse:
    """One answer."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return AWSResponse("http://answered.invalid", status, {"content-length": str(len(body)), **named}, _Raw(body))


def error(status: int, code: str, message: str = "said the server") -> AWSResponse:
    """One error of S3."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return answer(status, body.encode(), content_type="application/xml")


def listing(*names: str) -> AWSResponse:
    """A page of ``list_objects_v2``."""
    rows = "".join(
        f"<Contents><Key>{name}</Key><Size>1</Size><ETag>x</ETag>"
        "<LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"
        for name in names
    )
    body = f"<?xml version='1.0'?><ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
    return answer(200, body.encode())


class Answers:
    """Plays answers in turn; None lets a request through, a callable decides by the request, the last one repeats."""

    def __init__(self, *turns) -> None:
        self.turns = list(turns)
        self.requests = []

    def __call__(self, request, **_):
        self.requests.append(request)
        turn = self.turns[0] if len(self.turns) == 1 else self.turns.pop(0)
        turn = turn(request) if callable(turn) else turn
        if isinstance(turn, Exception):
            raise turn
        return turn


class Handler(BaseHTTPRequestHandler):
    """A handler that keeps connections open and prints nothing."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def answering(handler: type[Handler]) -> Iterator[str]:
    """A server with a handler, in threads of this process; gives its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def lost(request):
    """Let the request have its effect and lose the answer on the way back: the client sees a server error."""
    URLLib3Session().send(request)
    return error(500, "InternalError")
