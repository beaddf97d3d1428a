"""Tests of a store with all answers that a bucket can give."""

import io
import socket
import uuid
from dataclasses import replace

import obstore
import pytest
from botocore.exceptions import ConnectionClosedError
from support.errors import raising
from support.http_answers import Answers, Handler, answer, answering, error, listing, lost
from support.s3_calls import CALLS

from lakeops.model.errors import AlreadyExists, InvalidPath, ObjectNotFound, StoreError, StoreUnavailable, Transient
from lakeops.store.base import MIN_PART_BYTES, StoreSettings
from lakeops.store.s3 import S3Store, direct

pytestmark = pytest.mark.usefixtures("aws_environment")


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
def test_keys_that_have_expired_and_cannot_be_renewed(make_s3, monkeypatch, operation):
    settings = replace(make_s3("moto").settings, read_timeout=7.25)  # a client of its own
    monkeypatch.setenv("AWS_CREDENTIAL_EXPIRATION", "2020-01-01T00:00:00Z")
    with raising(StoreError, "no usable AWS credentials"):
        CALLS[operation](S3Store("bucket", "p", settings))


def test_a_get_gives_the_code_that_a_head_cannot(play, on_event):
    store, _ = play("HeadObject", lambda _: answer(400, b""), max_attempts=1)
    on_event(store, "before-send.s3.GetObject", Answers(lambda _: error(400, "ExpiredToken")))
    with raising(StoreError, "renew or correct them"):
        store.head("k")


def test_an_upload_that_others_aborted_is_tried_again_later(play):
    store, _ = play("UploadPart", lambda _: error(404, "NoSuchUpload"), max_attempts=1)
    with raising(StoreUnavailable, "NoSuchUpload"):
        CALLS["CreateMultipartUpload"](store)


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

    def store(self, url, **changes):
        return S3Store("bucket", "p", StoreSettings(endpoint_url=url, **{"max_attempts": 1, **changes}))

    def test_nobody_listens(self):
        with socket.create_server(("127.0.0.1", 0)) as gone:
            port = gone.getsockname()[1]
        for call in CALLS.values():
            with pytest.raises(StoreUnavailable, match="does not answer"):
                call(self.store(f"http://127.0.0.1:{port}"))

    def test_an_answer_that_never_comes(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            store = self.store(f"http://127.0.0.1:{silent.getsockname()[1]}", read_timeout=0.3)
            with pytest.raises(StoreUnavailable, match=r"does not answer.*ReadTimeout"):
                store.get("k")

    @pytest.fixture(params=[0, 1], ids=["by botocore", "directly"])
    def direct_requests(self, request, monkeypatch):
        """How many requests go by obstore first."""
        monkeypatch.setattr(direct, "_is_intercepted", lambda: not request.param)
        monkeypatch.setattr(direct._buckets, "_made", {})
        return request.param

    @pytest.fixture
    def cutting(self, direct_requests):
        """A server that sends half of an object so many times, then all of it."""
        state = {"cuts": 0, "requests": 0}

        class Cutting(Handler):
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

        with answering(Cutting) as url:
            yield url, state

    def test_a_download_that_breaks_once(self, cutting):
        url, state = cutting
        state["cuts"] = 1
        assert self.store(url, max_attempts=2).get("k") == b"x" * 100_000
        assert state["requests"] == 2

    def test_a_download_that_always_breaks(self, cutting, direct_requests):
        url, state = cutting
        state["cuts"] = 99
        with pytest.raises(StoreUnavailable, match="does not answer"):
            self.store(url, max_attempts=2).get("k")
        assert state["requests"] == direct_requests + 2

    def test_a_server_that_ignores_ranges(self, cutting):
        url, _ = cutting
        assert self.store(url).get_range("k", 99_990, 20) == b"x" * 10


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

    @pytest.mark.parametrize(("status", "expected"), [(500, StoreUnavailable), (404, Transient), (403, StoreError)])
    def test_an_object_that_cannot_be_looked_at_is_nobodys(self, play, on_event, status, expected):
        """The second try is refused, and only a HEAD could tell that the object is the first one's."""
        store, _ = play("PutObject", lost, None)
        on_event(store, "before-send.s3.HeadObject", Answers(lambda _: error(status, "Said")))
        with pytest.raises(expected):
            store.put("k", b"mine", if_absent=True)

    def test_nor_is_it_in_other_clouds(self, make_cloud, monkeypatch):
        def fails(*_, **__):
            raise obstore.exceptions.GenericError("Server returned 500")

        store = make_cloud("memory")
        store.put("k", b"mine")
        monkeypatch.setattr(obstore, "get", fails)
        with pytest.raises(StoreUnavailable):
            store.put("k", b"mine", if_absent=True)

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


# --- servers that do not do all of S3, as some do not ---
class TestPoorServers:
    """Servers that do not do all of S3."""

    def test_two_conditional_writes_at_once(self, play):
        store, answers = play("PutObject", error(409, "ConditionalRequestConflict"), None)
        store.put("k", b"x", if_absent=True)
        assert len(answers.requests) == 2
        store, answers = play("PutObject", lambda _: error(409, "ConditionalRequestConflict"), max_attempts=3)
        with pytest.raises(StoreUnavailable):
            store.put("k", b"x", if_absent=True)
        assert len(answers.requests) == 3

    def test_no_conditional_writes(self, play):
        def refuse(request):
            return error(501, "NotImplemented") if "If-None-Match" in request.headers else None

        store, _ = play("PutObject", refuse, max_attempts=1)
        store.put("k", b"one", if_absent=True)
        with pytest.raises(AlreadyExists):
            store.put("k", b"two", if_absent=True)
        assert store.get("k") == b"one"
        found = store.probe()
        assert not found.conditional_put
        assert any("conditional" in note for note in found.notes)

    def test_no_conditional_swaps(self, play):
        def refuse(request):
            return error(501, "NotImplemented") if {"If-None-Match", "If-Match"} & set(request.headers) else None

        store, _ = play("PutObject", refuse, max_attempts=1)
        assert store.swap("k", b"one", expected=None)
        assert not store.swap("k", b"two", expected=None)
        assert store.swap("k", b"two", expected=b"one")
        assert store.get("k") == b"two"

    @pytest.mark.parametrize(("status", "code"), [(412, "PreconditionFailed"), (409, "ConditionalRequestConflict")])
    def test_a_swap_that_came_too_late(self, play, status, code):
        store, _ = play("PutObject", error(status, code), None)
        assert not store.swap("k", b"one", expected=None)
        assert store.swap("k", b"one", expected=None)

    def test_a_server_that_knows_the_bare_etag_alone(self, play):
        def refuse(request):
            quoted = '"' in str(request.headers.get("If-Match", ""))
            return error(412, "PreconditionFailed") if quoted else None

        store, answers = play("PutObject", refuse)
        assert store.swap("k", b"one", expected=None)
        assert store.swap("k", b"two", expected=b"one")
        assert "If-Match" in answers.requests[-1].headers
        assert not store.swap("k", b"three", expected=b"one")
        assert store.get("k") == b"two"

    def test_a_server_that_refuses_every_condition(self, play):
        def refuse(request):
            return error(412, "PreconditionFailed") if "If-Match" in request.headers else None

        store, _ = play("PutObject", refuse)
        assert store.swap("k", b"one", expected=None)
        assert store.swap("k", b"two", expected=b"one")
        assert not store.swap("k", b"three", expected=b"one")
        assert store.get("k") == b"two"

    def test_a_swap_whose_answer_was_lost(self, play):
        store, answers = play("PutObject", lost, None)
        assert store.swap("k", b"one", expected=None)
        assert len(answers.requests) == 2
        assert store.get("k") == b"one"

    def test_no_conditional_end_of_an_upload(self, play):
        def refuse(request):
            return error(400, "InvalidArgument") if "If-None-Match" in request.headers else None

        store, answers = play("CompleteMultipartUpload", refuse)
        data = bytes(MIN_PART_BYTES + 1)
        store.put("k", io.BytesIO(data), if_absent=True)
        assert len(answers.requests) == 2
        with pytest.raises(AlreadyExists):
            store.put("k", io.BytesIO(data), if_absent=True)

    def test_conditions_are_ignored(self, make_s3, on_event):
        store = make_s3("moto")
        on_event(store, "before-call.s3.PutObject", _drop_condition)
        found = store.probe()
        assert not found.conditional_put
        assert found.range_reads
        assert list(store.list()) == []

    @pytest.mark.parametrize(
        ("status", "code"), [(501, "NotImplemented"), (405, "MethodNotAllowed"), (400, "MalformedXML")]
    )
    def test_no_batch_deletes(self, play, status, code):
        store, _ = play("DeleteObjects", lambda _: error(status, code))
        for key in ("a", "b", "c"):
            store.put(key, b"")
        assert store.delete(["a", "c"]) == []
        assert [item.key for item in store.list()] == ["b"]
        assert not store.probe().batch_delete
        assert [item.key for item in store.list()] == ["b"]

    def test_batch_deletes_carry_the_digest_that_older_servers_want(self, play):
        store, answers = play("DeleteObjects", None)
        store.delete(["a"])
        assert len(answers.requests[0].headers["Content-MD5"]) == 24

    def test_keys_that_a_batch_refuses(self, play):
        body = (
            b"<DeleteResult><Error><Key>%s/a</Key><Code>AccessDenied</Code><Message>m</Message></Error></DeleteResult>"
        )
        store, answers = play("DeleteObjects", None)
        answers.turns = [lambda _: answer(200, body % store.prefix.encode())]
        [failure] = store.delete(["a", "b"])
        assert (failure.key, failure.reason) == ("a", "AccessDenied")

    def test_one_by_one_deletes_report_too(self, play):
        store, _ = play("DeleteObject", lambda _: error(403, "AccessDenied"))
        [failure] = store.delete(["a\x01b"])
        assert (failure.key, failure.reason) == ("a\x01b", "AccessDenied")
        store, _ = play("DeleteObject", lambda _: error(500, "InternalError"), max_attempts=1)
        with pytest.raises(StoreUnavailable):
            store.delete(["a\x01b"])

    @pytest.mark.parametrize("names", [("{p}b", "{p}a"), ("{p}a", "{p}a")])
    def test_listings_that_cannot_be_trusted(self, play, names):
        store, answers = play("ListObjectsV2", None)
        answers.turns = [lambda _: listing(*(name.format(p=store.prefix + "/") for name in names))]
        with pytest.raises(StoreError, match="does not list names in byte order"):
            list(store.list())

    def test_a_folder_marker_is_no_object(self, play):
        store, answers = play("ListObjectsV2", None)
        answers.turns = [lambda _: listing(store.prefix + "/", store.prefix + "/a")]
        assert [item.key for item in store.list()] == ["a"]

    def test_what_a_server_cannot_do(self, play):
        store, _ = play("GetObject", lambda _: error(501, "NotImplemented"), max_attempts=1)
        with raising("unsupported", "NotImplemented"):
            store.get("k")
        store, _ = play("PutObject", lambda _: error(400, "KeyTooLongError"))
        with pytest.raises(InvalidPath):
            store.put("k", b"")
        store, _ = play("PutObject", lambda _: error(400, "EntityTooLarge"))
        with pytest.raises(StoreError, match="EntityTooLarge"):
            store.put("k", b"")


def _drop_condition(params, **_):
    params["headers"].pop("If-None-Match", None)
