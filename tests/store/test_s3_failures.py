"""What a bucket can answer, and what a store makes of it."""

from __future__ import annotations

import io
import socket
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from botocore.exceptions import ConnectionClosedError
from support.http_answers import Answers, error, lost
from support.s3_calls import CALLS

from lakeops.model.errors import AlreadyExists, ObjectNotFound, StoreError, StoreUnavailable
from lakeops.store.base import MIN_PART_BYTES, StoreSettings
from lakeops.store.s3 import S3Store


@pytest.mark.parametrize("operation", CALLS)
@pytest.mark.parametrize(
    ("status", "code", "expected", "says"),
    [
        (500, "InternalError", StoreUnavailable, "keeps failing"),
        (503, "SlowDown", StoreUnavailable, "SlowDown"),
        (503, "", StoreUnavailable, "try again later"),
        (429, "TooManyRequests", StoreUnavailable, "TooManyRequests"),
        (403, "AccessDenied", StoreError, "access to .* is denied"),
        (403, "InvalidAccessKeyId", StoreError, "refuses the credentials"),
        (403, "SignatureDoesNotMatch", StoreError, "refuses the credentials"),
        (400, "ExpiredToken", StoreError, "renew"),
        (403, "RequestTimeTooSkewed", StoreError, "clock"),
        (403, "InvalidObjectState", StoreError, "restore it first"),
        (301, "PermanentRedirect", StoreError, "another region"),
        (507, "InsufficientStorage", StoreUnavailable, "keeps failing"),
    ],
)
def test_errors_say_what_to_do(play, on_event, operation, status, code, expected, says):
    store, _ = play(operation, lambda _: error(status, code), max_attempts=1)
    if operation == "DeleteObjects" and status == 400:
        on_event(store, "before-send.s3.DeleteObject", Answers(lambda _: error(status, code)))
    with pytest.raises(expected, match=says) as raised:
        CALLS[operation](store)
    assert type(raised.value) is expected
    assert repr(store.bucket) in raised.value.message
    assert "\n" not in raised.value.message
    assert "said the server" not in raised.value.message


@pytest.mark.parametrize("operation", CALLS)
def test_one_failure_is_tried_again(play, operation):
    store, answers = play(operation, error(503, "SlowDown"), None)
    if operation in {"GetObject", "HeadObject"}:
        store.put("k", b"x")
    CALLS[operation](store)
    assert len(answers.requests) == 2


def test_a_store_gives_up_after_so_many_attempts(play):
    store, answers = play("GetObject", lambda _: error(500, "InternalError"), max_attempts=2)
    with pytest.raises(StoreUnavailable):
        store.get("k")
    assert len(answers.requests) == 2


def test_a_bucket_that_is_not_there(make_s3, endpoint_of):
    for call in CALLS.values():
        store = S3Store(f"missing-{uuid.uuid4().hex[:8]}", "p", make_s3("moto").settings)
        with pytest.raises(StoreError, match="does not exist; create it") as raised:
            call(store)
        assert repr(store.bucket) in raised.value.message


@pytest.mark.s3
def test_wrong_credentials_on_a_real_server(endpoint_of, monkeypatch, make_s3):
    real = make_s3("real")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    store = S3Store(real.bucket, real.prefix, StoreSettings(endpoint_url=real.settings.endpoint_url, read_timeout=7.5))
    for name in ("GetObject", "PutObject", "ListObjectsV2", "DeleteObjects"):
        with pytest.raises(StoreError, match="refuses the credentials"):
            CALLS[name](store)
    with pytest.raises(StoreError, match="denied"):
        store.head("k")


class TestNoServer:
    """Servers that cannot be reached or do not finish what they say, over real sockets."""

    def settings(self, port: int, **changes) -> StoreSettings:
        return StoreSettings(endpoint_url=f"http://127.0.0.1:{port}", **{"max_attempts": 1, **changes})

    def test_nobody_listens(self):
        with socket.create_server(("127.0.0.1", 0)) as gone:
            port = gone.getsockname()[1]
        for call in CALLS.values():
            with pytest.raises(StoreUnavailable, match="does not answer"):
                call(S3Store("bucket", "p", self.settings(port)))

    def test_an_answer_that_never_comes(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            store = S3Store("bucket", "p", self.settings(silent.getsockname()[1], read_timeout=0.3))
            with pytest.raises(StoreUnavailable, match=r"does not answer.*ReadTimeout"):
                store.get("k")

    @pytest.fixture
    def cutting(self):
        """A server that sends half of an object so many times, then all of it."""
        state = {"cuts": 0, "requests": 0}

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                state["requests"] += 1
                self.send_response(200)
                self.send_header("Content-Length", "100000")
                self.send_header("ETag", '"x"')
                self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
                self.end_headers()
                if state["requests"] <= state["cuts"]:
                    self.wfile.write(b"x" * 50_000)
                    self.close_connection = True
                else:
                    self.wfile.write(b"x" * 100_000)

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1], state
        server.shutdown()
        thread.join()
        server.server_close()

    def test_a_download_that_breaks_once(self, cutting):
        port, state = cutting
        state["cuts"] = 1
        assert S3Store("bucket", "p", self.settings(port, max_attempts=2)).get("k") == b"x" * 100_000
        assert state["requests"] == 2

    def test_a_download_that_always_breaks(self, cutting):
        port, state = cutting
        state["cuts"] = 99
        with pytest.raises(StoreUnavailable, match="does not answer"):
            S3Store("bucket", "p", self.settings(port, max_attempts=2)).get("k")
        assert state["requests"] == 2

    def test_a_server_that_ignores_ranges(self, cutting):
        port, _ = cutting
        assert S3Store("bucket", "p", self.settings(port)).get_range("k", 99_990, 20) == b"x" * 10


class TestLostAnswers:
    """The write went through and nobody said so."""

    def test_a_conditional_put_knows_its_own_object(self, play):
        store, answers = play("PutObject", lost, None)
        result = store.put("k", b"mine", if_absent=True)
        assert len(answers.requests) == 2, "the second try is refused: the key exists by then"
        assert store.get("k") == b"mine"
        assert result.etag == store.head("k").etag

    def test_even_when_no_try_is_answered(self, play):
        store, _ = play("PutObject", lost, max_attempts=1)
        assert store.put("k", b"mine", if_absent=True).size_bytes == 4

        def broken(request):
            lost(request)
            return ConnectionClosedError(endpoint_url="http://x")

        store, _ = play("PutObject", broken, max_attempts=1)
        assert store.put("k", b"mine", if_absent=True).size_bytes == 4

    def test_and_another_writers_object_with_equal_contents(self, play):
        store, _ = play("PutObject", None)
        store.put("k", b"same")

        other, _ = play("PutObject", error(500, "InternalError"), None)
        twin = S3Store(store.bucket, store.prefix, other.settings)
        with pytest.raises(AlreadyExists):
            twin.put("k", b"same", if_absent=True)

    def test_a_conditional_put_that_never_arrived(self, play):
        store, _ = play("PutObject", lambda _: error(500, "InternalError"), max_attempts=1)
        with pytest.raises(StoreUnavailable):
            store.put("k", b"x", if_absent=True)
        with pytest.raises(ObjectNotFound):
            store.head("k")

    @pytest.mark.parametrize("if_absent", [False, True])
    def test_the_last_request_of_an_upload(self, play, if_absent):
        store, answers = play("CompleteMultipartUpload", lost, None)
        data = bytes(MIN_PART_BYTES + 1)
        assert store.put("k", io.BytesIO(data), if_absent=if_absent).size_bytes == len(data)
        assert len(answers.requests) == 2
        assert store.head("k").size_bytes == len(data)
