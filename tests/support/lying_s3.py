"""An S3 server that lies politely: a proxy before a real one, whose answers look well and are none.

    with LyingServer(endpoint) as liar:
        liar.tell("an empty page", LIES["an empty page"])      # until told otherwise
        liar.tell(..., times=2)                                # twice, and the truth afterwards
        liar.be_honest()

Requests go on byte for byte with their ``Host``, so their signatures hold. A lie is a function of the request and of
the true answer. Some lies keep the request from the server, as the login page of a network does.
"""

from __future__ import annotations

import gzip
import http.client
import re
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Self
from urllib.parse import parse_qs, urlsplit

from support.http_answers import Handler, answering

HTML = (
    b"<!DOCTYPE html>\n<html><head><title>Sign in</title><br></head><body>Please sign in to this network.</body></html>"
)
XHTML = b'<?xml version="1.0"?><html><head><title>Sign in</title></head><body><p>Please sign in</p></body></html>'


@dataclass(frozen=True)
class Asked:
    """One request. ``operation`` is a word of this module for what it wants."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def query(self) -> dict[str, str]:
        """The query's parameters."""
        found = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        return {name: values[0] for name, values in found.items()}

    @property
    def operation(self) -> str:
        """The attribute that it wants."""
        query, copies = self.query, "x-amz-copy-source" in self.headers
        key = "/" in urlsplit(self.path).path.strip("/")
        match self.method:
            case "GET" if "list-type" in query:
                return "list"
            case "GET" | "HEAD" if key:
                return self.method.lower()
            case "PUT" if "partNumber" in query:
                return "copy part" if copies else "part"
            case "PUT" if key:
                return "copy" if copies else "put"
            case "POST" if "uploads" in query:
                return "begin"
            case "POST" if "uploadId" in query:
                return "complete"
            case "POST" if "delete" in query:
                return "delete many"
            case "DELETE" if key:
                return "abort" if "uploadId" in query else "delete"
        return "other"


@dataclass(frozen=True)
class Answer:
    """One answer. ``length`` is what its header says of the body, when that is not true."""

    status: int
    headers: dict[str, str]
    body: bytes
    length: int | None = None

    def without(self, *names: str) -> Answer:
        """The answer without some headers."""
        gone = {name.lower() for name in names}
        return replace(self, headers={name: value for name, value in self.headers.items() if name.lower() not in gone})

    def header(self, name: str) -> str:
        """A header's value, empty where there is none."""
        return next((value for given, value in self.headers.items() if given.lower() == name.lower()), "")

    def having(self, **headers: str) -> Answer:
        """The answer with other headers."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return replace(self.without(*named), headers={**self.without(*named).headers, **named})

    def edited(self, pattern: bytes, by: bytes, count: int = 0) -> Answer:
        """The answer with another body."""
        return replace(self, body=re.sub(pattern, by, self.body, count=count, flags=re.DOTALL))


@dataclass(frozen=True)
class Lie:
    """The answer in place of the truth. ``make`` gives None where it has nothing to lie about."""

    operations: frozenset[str]
    make: Callable[[Asked, Answer], Answer | None]
    reaches_server: bool = True


ANY = frozenset(
    {"list", "get", "head", "put", "part", "copy", "copy part", "begin", "complete", "delete many", "delete", "abort"}
)
XML = frozenset({"list", "copy", "copy part", "begin", "complete", "delete many"})
_LATER = b"<Contents>"


def _plain(body: bytes, kind: str = "text/html", status: int = 200) -> Answer:
    return Answer(status, {"Content-Type": kind}, body)


def _instead(answer: Answer, operations: frozenset[str] = ANY) -> Lie:
    """A lie that keeps the request from the server."""
    return Lie(operations, lambda _asked, _true: answer, reaches_server=False)


def _edit(pattern: bytes, by: bytes, count: int = 0, operations: frozenset[str] = frozenset({"list"})) -> Lie:
    """A lie that changes the body, where there is something to change."""

    def make(_asked: Asked, true: Answer) -> Answer | None:
        made = true.edited(pattern, by, count)
        return None if true.status >= 300 or made.body == true.body else made

    return Lie(operations, make)


def _of_headers(change: Callable[[Answer], Answer], *operations: str) -> Lie:
    return Lie(frozenset(operations), lambda _asked, true: change(true) if true.status < 300 else None)


def _later_page(change: Callable[[Answer], Answer]) -> Lie:
    """A lie about pages that are not the first."""
    return Lie(
        frozenset({"list"}),
        lambda asked, true: change(true) if asked.query.keys() & {"continuation-token", "start-after"} else None,
    )


def _reversed_page(_asked: Asked, true: Answer) -> Answer | None:
    items = re.findall(rb"<Contents>.*?</Contents>", true.body, re.DOTALL)
    if len(items) < 2:
        return None
    at = true.body.index(_LATER)
    rest = re.sub(rb"<Contents>.*?</Contents>", b"", true.body, flags=re.DOTALL)
    return replace(true, body=rest[:at] + b"".join(reversed(items)) + rest[at:])


class _FirstPage:
    """Answers each page of a listing with its first one."""

    def __init__(self) -> None:
        self._first: dict[str, Answer] = {}

    def __call__(self, asked: Asked, true: Answer) -> Answer | None:
        prefix = asked.query.get("prefix", "")
        if "continuation-token" not in asked.query:
            self._first[prefix] = true
            return None
        return self._first.get(prefix)


def _same_token(asked: Asked, true: Answer) -> Answer | None:
    token = asked.query.get("continuation-token")
    if token is None:
        return None
    made = true.edited(rb"<IsTruncated>\w+</IsTruncated>", b"<IsTruncated>true</IsTruncated>")
    made = made.edited(rb"<NextContinuationToken>.*?</NextContinuationToken>", b"")
    told = b"<NextContinuationToken>" + token.encode() + b"</NextContinuationToken></ListBucketResult>"
    return made.edited(rb"</ListBucketResult>", told.replace(b"\\", b"\\\\"))


def _other_range(asked: Asked, true: Answer) -> Answer | None:
    found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", true.header("Content-Range"))
    if found is None or int(found[2]) <= int(found[1]):
        return None
    first, last, size = map(int, found.groups())
    return replace(true, body=true.body[1:]).having(Content_Range=f"bytes {first + 1}-{last}/{size}")


def _fewer_bytes(_asked: Asked, true: Answer) -> Answer | None:
    return replace(true, body=true.body[: len(true.body) // 2]) if true.status < 300 and len(true.body) > 1 else None


def _cut_short(_asked: Asked, true: Answer) -> Answer | None:
    if true.status >= 300 or len(true.body) < 2:
        return None
    return replace(true, body=true.body[: len(true.body) // 2], length=len(true.body))


_ERROR = b"<?xml version='1.0'?><Error><Code>InternalError</Code><Message>try again</Message></Error>"

LIES: dict[str, Lie] = {
    "an empty body": _instead(_plain(b"")),
    "a page of HTML": _instead(_plain(HTML)),
    "a page of HTML that is XML": _instead(_plain(XHTML, "application/xml")),
    "no content": _instead(Answer(204, {}, b"")),
    "a way to a page": _instead(Answer(302, {"Location": "/sign-in", "Content-Type": "text/html"}, HTML)),
    "a temporary way to a page": _instead(Answer(307, {"Location": "/sign-in", "Content-Type": "text/html"}, HTML)),
    "JSON": _instead(_plain(b'{"status": "ok"}', "application/json")),
    "packed junk": _instead(_plain(gzip.compress(b"junk"), "application/octet-stream")),
    "a page of HTML after the work": Lie(ANY, lambda _asked, true: _plain(HTML) if true.status < 300 else None),
    "half of the XML": Lie(XML, _fewer_bytes),
    "another root": _edit(rb"\w+Result\b", b"SomethingElse", operations=XML),
    "an error with status 200": Lie(XML, lambda _asked, _true: _plain(_ERROR, "application/xml")),
    "an error in place of the work": _instead(_plain(_ERROR, "application/xml"), XML),
    "another bucket's listing": _edit(rb"<Name>.*?</Name>", b"<Name>other</Name>"),
    "entries of another prefix": _edit(rb"(<Contents>.*?<Key>)", rb"\1zz-"),
    "a listing of another prefix": _edit(rb"<Prefix>[^<]+</Prefix>", b"<Prefix>zz</Prefix>", 1),
    "the first page again": Lie(frozenset({"list"}), _FirstPage()),
    "a page in another order": Lie(frozenset({"list"}), _reversed_page),
    "an empty second page": _later_page(lambda true: replace(true, body=b"")),
    "a second page of HTML": _later_page(lambda _true: _plain(HTML)),
    "a second page of HTML that is XML": _later_page(lambda _true: _plain(XHTML, "application/xml")),
    "truncated without a token": _edit(
        rb"<IsTruncated>.*?</IsTruncated>(?:.*?<NextContinuationToken>.*?</NextContinuationToken>)?",
        b"<IsTruncated>true</IsTruncated>",
    ),
    "one token for ever": Lie(frozenset({"list"}), _same_token),
    "fewer entries than counted": _edit(rb"<Contents>.*?</Contents>", b"", 1),
    "no entries, and a count": _edit(rb"<Contents>.*</Contents>", b""),
    "truncated or not untold": _edit(rb"<IsTruncated>.*?</IsTruncated>", b""),
    "truncated with no word": _edit(rb"<IsTruncated>.*?</IsTruncated>", b"<IsTruncated></IsTruncated>"),
    "a count that is no number": _edit(rb"<KeyCount>.*?</KeyCount>", b"<KeyCount>many</KeyCount>"),
    "an entry of negative size": _edit(rb"<Size>(\d+)</Size>", rb"<Size>-\1</Size>"),
    "an entry without a size": _edit(rb"<Size>\d+</Size>", b"", 1),
    "an entry whose size is no number": _edit(rb"<Size>\d+</Size>", b"<Size>big</Size>", 1),
    "an entry without a key": _edit(rb"<Contents>(.*?)<Key>.*?</Key>", rb"<Contents>\1", 1),
    "an entry without an ETag": _edit(rb"<ETag>.*?</ETag>", b"", 1),
    "an entry of no known time": _edit(rb"<LastModified>.*?</LastModified>", b"<LastModified>soon</LastModified>", 1),
    "folders in place of objects": _edit(
        rb"<Contents>.*?<Key>(.*?)</Key>.*?</Contents>", rb"<CommonPrefixes><Prefix>\1/</Prefix></CommonPrefixes>"
    ),
    "no ETag": _of_headers(lambda true: true.without("etag"), "get", "head", "put", "part"),
    "an empty ETag": _of_headers(lambda true: true.having(ETag='""'), "get", "head", "put", "part"),
    "an old ETag": _of_headers(lambda true: true.having(ETag=f'"{"0" * 32}"'), "get", "head", "put", "part"),
    "no time": _of_headers(lambda true: true.without("last-modified"), "get", "head"),
    "a time that is none": _of_headers(lambda true: true.having(Last_Modified="soon"), "get", "head"),
    "a head of no bytes": Lie(
        frozenset({"head"}), lambda _asked, true: replace(true, length=0) if true.status < 300 else None
    ),
    "a page of HTML that says that it is not there": Lie(
        frozenset({"get", "head"}), lambda _asked, _true: _plain(HTML, status=404)
    ),
    "another range": Lie(frozenset({"get"}), _other_range),
    "a part without its range": Lie(
        frozenset({"get"}), lambda asked, true: true.without("content-range") if true.status == 206 else None
    ),
    "a range of fewer bytes": Lie(
        frozenset({"get"}), lambda asked, true: _fewer_bytes(asked, true) if true.status == 206 else None
    ),
    "fewer bytes": Lie(frozenset({"get"}), _fewer_bytes),
    "a body that ends early": Lie(ANY - {"head"}, _cut_short),
    "no upload id": _edit(rb"<UploadId>.*?</UploadId>", b"", operations=frozenset({"begin"})),
    "an empty upload id": _edit(rb"<UploadId>.*?</UploadId>", b"<UploadId/>", operations=frozenset({"begin"})),
    "a result without an ETag": _edit(
        rb"<ETag>.*?</ETag>", b"", operations=frozenset({"copy", "copy part", "complete"})
    ),
    "a refusal to delete other keys": Lie(
        frozenset({"delete many"}),
        lambda _asked, _true: _plain(
            b"<DeleteResult><Error><Key>elsewhere</Key><Code>AccessDenied</Code></Error></DeleteResult>",
            "application/xml",
        ),
    ),
    "a refusal to delete no key": Lie(
        frozenset({"delete many"}),
        lambda _asked, _true: _plain(
            b"<DeleteResult><Error><Code>AccessDenied</Code></Error></DeleteResult>", "application/xml"
        ),
    ),
}


def _as_before(_asked: Asked, true: Answer) -> Answer:
    found = true.edited(rb"<Contents>.*</Contents>", b"").edited(
        rb"<KeyCount>\d+</KeyCount>", b"<KeyCount>0</KeyCount>"
    )
    found = found.edited(rb"<NextContinuationToken>.*?</NextContinuationToken>", b"")
    return found.edited(rb"<IsTruncated>\w+</IsTruncated>", b"<IsTruncated>false</IsTruncated>")


STALE = Lie(frozenset({"list"}), _as_before)
"""A listing of before the last writes. Nothing in it tells that it is a lie."""


@dataclass
class LyingServer:
    """The proxy. Threads may use it at the same time.

    Attributes:
        endpoint: the real server.
        url: where the proxy listens.
        told: operations that were lied about since ``tell``.
        asked: every request.
    """

    endpoint: str
    told: list[str] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._lie: Lie | None = None
        self._times = 0
        self._lock = threading.Lock()
        self._running = ExitStack()
        self.url = self._running.enter_context(answering(self._handler()))
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def tell(self, lie: Lie, times: int = 1_000_000) -> None:
        """Answer the next requests that the lie is about with it, so many times."""
        with self._lock:
            self._lie, self._times = lie, times
            self.told.clear()

    def be_honest(self) -> None:
        """Answer with what the server says."""
        with self._lock:
            self._lie = None

    def answer(self, asked: Asked) -> Answer:
        """The answer that a request gets."""
        self.asked.append(asked)
        if asked.path.startswith("/sign-in"):
            return _plain(HTML)
        with self._lock:
            lie = self._lie if self._times > 0 else None
        if lie is None or asked.operation not in lie.operations:
            return self._true(asked)
        true = self._true(asked) if lie.reaches_server else Answer(0, {}, b"")
        made = lie.make(asked, true)
        if made is None:
            return true
        with self._lock:
            self._times -= 1
            self.told.append(asked.operation)
        return made

    def _true(self, asked: Asked) -> Answer:
        host = urlsplit(self.endpoint)
        assert host.hostname is not None
        connection = http.client.HTTPConnection(host.hostname, host.port, timeout=60)
        try:
            connection.putrequest(asked.method, asked.path, skip_host=True, skip_accept_encoding=True)
            for name, value in asked.headers.items():
                if name.lower() not in {"connection", "expect"}:
                    connection.putheader(name, value)
            connection.endheaders(asked.body or None)
            given = connection.getresponse()
            body = given.read()
            length = int(given.headers.get("Content-Length", 0)) if asked.method == "HEAD" else None
            skipped = {"content-length", "transfer-encoding", "connection", "date", "server"}
            headers = {name: value for name, value in given.headers.items() if name.lower() not in skipped}
            return Answer(given.status, headers, body, length)
        finally:
            connection.close()

    def _handler(self) -> type[Handler]:
        liar = self

        class Lying(Handler):
            def _do(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                answer = liar.answer(Asked(self.command, self.path, headers, body))
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                if answer.status != 204:
                    length = len(answer.body) if answer.length is None else answer.length
                    self.send_header("Content-Length", str(length))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer.body)
                    if answer.length not in {None, len(answer.body)}:
                        self.close_connection = True

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _do  # noqa: N815

        return Lying
