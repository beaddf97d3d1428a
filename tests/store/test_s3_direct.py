"""Requests to S3 by obstore: which ones go that way, and that botocore takes over whatever is no success."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from support.forked import run_forked
from support.http_answers import Handler, answering, error

from lakeops.model.clock import stopwatch
from lakeops.model.errors import AlreadyExists, ObjectNotFound, StoreError, StoreUnavailable, Transient
from lakeops.model.records import Credentials
from lakeops.store.base import PutResult, StoreSettings
from lakeops.store.s3 import S3Store, direct
from lakeops.store.s3.client import client

DIRECT = "lakeops"
"""What obstore calls itself to the server. botocore's name is longer."""

Turn = Callable[[Handler], object]


class Bucket:
    """A server of one bucket that keeps whole objects, and does the next ``turns`` in place of its work.

    Attributes:
        asked: method and user agent of each request.
        objects: contents by name, with the write's mark.
    """

    def __init__(self):
        self.asked: list[tuple[str, str]] = []
        self.signed: list[str] = []
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.turns: list[Turn] = []
        self.one_at_a_time = threading.Lock()

    @property
    def ways(self):
        """Each request: its method, and who made it."""
        return [f"{method} {'obstore' if agent == DIRECT else 'botocore'}" for method, agent in self.asked]

    def store(self, **changes):
        """A store of it. Attempts are few, so that a failure takes no time."""
        settings = StoreSettings(endpoint_url=self.url, region="us-east-1", max_attempts=2, **changes)
        return S3Store("bucket", "p", replace(settings, connect_timeout=5, read_timeout=5))

    def serve(self):
        """Serve until the generator goes on."""
        bucket = self

        class Turns(Handler):
            def handle_any(self):
                self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                bucket.asked.append((self.command, self.headers["User-Agent"]))
                bucket.signed.append(self.headers.get("Authorization", "nobody"))
                with bucket.one_at_a_time:
                    turn = bucket.turns.pop(0) if bucket.turns else bucket.work
                    turn(self)

            do_GET = do_PUT = do_HEAD = handle_any  # noqa: N815 - http.server's

        with answering(Turns) as self.url:
            yield self

    def work(self, request):
        """Do what is asked."""
        name = request.path.partition("?")[0]
        if request.command == "PUT":
            if request.headers.get("If-None-Match") == "*" and name in self.objects:
                respond(412, "PreconditionFailed")(request)
                return
            self.objects[name] = request.body, request.headers.get("x-amz-meta-lakeops-write", "")
            send(request, 200, {"ETag": etag(request.body)})
        elif name in self.objects:
            body, mark = self.objects[name]
            send(request, 200, {"ETag": etag(body), "x-amz-meta-lakeops-write": mark}, body)
        else:
            respond(404, "NoSuchKey")(request)


def etag(body):
    return f'"{hashlib.md5(body).hexdigest()}"'


def send(request, status, headers, body=b""):
    request.send_response(status)
    for name, value in {"Last-Modified": "Mon, 02 Nov 2026 10:00:00 GMT", **headers}.items():
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body)


def respond(status, code):
    """An error of S3."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>m</Message></Error>".encode()
    return lambda request: send(request, status, {"Content-Type": "application/xml"}, body)


def hang_up(request):
    request.close_connection = True


@pytest.fixture
def bucket(directly, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "first-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    yield from Bucket().serve()


def test_plain_requests_go_by_obstore(bucket):
    store = bucket.store()
    written = store.put("a", b"one")
    store.put("b", b"two", if_absent=True)
    assert (store.get("a"), store.head("a").etag) == (b"one", written.etag)
    assert bucket.ways == ["PUT obstore", "PUT obstore", "GET obstore", "HEAD obstore"]


@pytest.mark.parametrize("turn", [respond(503, "SlowDown"), respond(500, "InternalError"), respond(403, "X"), hang_up])
def test_botocore_takes_over_what_failed(bucket, turn):
    store = bucket.store()
    for work in (lambda: store.put("a", b"one"), lambda: store.get("a"), lambda: store.head("a")):
        bucket.turns.append(turn)
        work()
    assert store.get("a") == b"one"
    assert [way.split()[1] for way in bucket.ways] == ["obstore", "botocore"] * 3 + ["botocore"]


def test_large_contents_of_the_main_thread_are_botocores(bucket):
    store = bucket.store()
    for size in (direct.LARGEST_WRITE, direct.LARGEST_WRITE + 1):
        store.put("a", bytes(size))
    assert bucket.ways == ["PUT obstore", "PUT botocore"]


def test_threads_that_handle_no_signals_wait_longer_for_a_large_write(bucket, monkeypatch):
    """Else a slow network would break it off, and botocore would send all of it again."""
    waits, connect = [], direct._connect
    monkeypatch.setattr(direct, "_connect", lambda *given: waits.append(given[-1]) or connect(*given))
    store, contents = bucket.store(), b"x" * (direct.LARGEST_WRITE + 1)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(store.put, "a", contents[1:]).result()
        written = thread.submit(store.put, "b", contents).result()
    assert bucket.ways == ["PUT obstore", "PUT obstore"]
    assert waits == [direct.PATIENCE, direct.WRITE_PATIENCE]
    assert bucket.objects["/bucket/p/b"][0] == contents
    assert written == PutResult(len(contents), hashlib.sha256(contents).hexdigest(), etag(contents).strip('"'))


def test_a_signal_waits_for_the_patience_only(bucket, monkeypatch):
    """A task that is killed while a server is silent ends by the signal, and not by the server's answer."""
    monkeypatch.setattr(direct, "PATIENCE", 0.5)
    held, asked, passed = threading.Event(), threading.Event(), stopwatch()

    def stay_silent(request):
        asked.set()
        held.wait(60)
        hang_up(request)

    def kill():
        asked.wait(60)
        os.kill(os.getpid(), signal.SIGUSR1)

    class Killed(BaseException):
        pass

    def die(*_):
        raise Killed

    monkeypatch.setattr(bucket, "one_at_a_time", nullcontext())
    bucket.turns += [stay_silent] * 4
    store, before = bucket.store(), signal.signal(signal.SIGUSR1, die)
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with pytest.raises(Killed):
            store.get("a")
        assert passed() < 4, "botocore would have waited for five seconds"
    finally:
        held.set()
        killer.join()
        signal.signal(signal.SIGUSR1, before)


def test_a_bucket_that_keeps_failing_is_left_to_botocore_for_a_while(bucket, monkeypatch):
    store, gone = bucket.store(), [0.0]
    monkeypatch.setattr(direct, "stopwatch", lambda: lambda: gone[0])
    store.put("a", b"one")
    bucket.turns += [respond(301, "PermanentRedirect"), bucket.work] * 3
    for _ in range(4):
        store.get("a")
    assert bucket.ways[1:] == ["GET obstore", "GET botocore"] * 3 + ["GET botocore"]
    gone[0] = 61
    store.get("a")
    assert bucket.ways[-1] == "GET obstore"


def test_a_condition_that_does_not_hold_is_no_failure_of_the_way(bucket):
    store = bucket.store()
    store.put("a", b"one")
    for _ in range(5):
        with pytest.raises(AlreadyExists):
            store.put("a", b"two", if_absent=True)
    assert store.get("a") == b"one"
    assert bucket.ways[-1] == "GET obstore"


def test_what_is_missing_takes_one_request(bucket):
    with pytest.raises(ObjectNotFound):
        bucket.store().get("missing")
    assert bucket.ways == ["GET obstore"]


def test_a_missing_bucket_is_told_from_a_missing_object(bucket):
    bucket.turns += [respond(404, "NoSuchBucket")] * 2
    with pytest.raises(StoreError, match="does not exist; create it"):
        bucket.store().get("a")


def test_a_write_whose_answer_was_lost_is_recognised(bucket):
    def keep_and_hang_up(request):
        bucket.objects[request.path] = request.body, request.headers["x-amz-meta-lakeops-write"]
        hang_up(request)

    bucket.turns.append(keep_and_hang_up)
    assert bucket.store().put("a", b"one", if_absent=True).etag == etag(b"one").strip('"')
    assert bucket.ways == ["PUT obstore", "PUT botocore", "HEAD botocore"]


def test_half_of_the_contents_is_not_taken_for_all(bucket):
    def send_half(request):
        request.send_response(200)
        for name, value in (("ETag", etag(b"x" * 1000)), ("Last-Modified", "Mon, 02 Nov 2026 10:00:00 GMT")):
            request.send_header(name, value)
        request.send_header("Content-Length", "1000")
        request.end_headers()
        request.wfile.write(b"x" * 500)
        hang_up(request)

    store = bucket.store()
    store.put("a", b"x" * 1000)
    bucket.turns.append(send_half)
    assert store.get("a") == b"x" * 1000


def test_an_object_that_changes_while_it_is_read(bucket):
    store = bucket.store()
    store.put("a", b"one")
    with store.open("a") as file:
        bucket.turns += [respond(412, "PreconditionFailed")] * 2
        with pytest.raises(Transient, match="was replaced while it was read"):
            file.read()


def test_nobody_answers(bucket):
    store = bucket.store()
    bucket.turns += [hang_up] * 9
    with pytest.raises(StoreUnavailable, match="does not answer"):
        store.get("a")


def test_renewed_keys_are_used_at_once(bucket, monkeypatch):
    keys = Credentials("old-key", "secret", "token")
    monkeypatch.setattr(direct, "_current_keys", lambda *_: keys)
    store = bucket.store()
    store.put("a", b"one")
    keys = Credentials("new-key", "secret", "token")
    store.get("a")
    assert ["old-key" in bucket.signed[0], "new-key" in bucket.signed[1]] == [True, True]


def test_keys_of_variables_need_no_botocore(bucket):
    bucket.store().put("a", b"one")
    script = """
import sys
from lakeops.store.base import StoreSettings
from lakeops.store.s3 import S3Store
store = S3Store("bucket", "p", StoreSettings(endpoint_url=sys.argv[1]))
store.put("b", store.get("a"), if_absent=True)
print([name for name in ("botocore.session", "botocore.client") if name in sys.modules])
"""
    command = [sys.executable, "-c", script, bucket.url]
    assert subprocess.run(command, check=True, timeout=60, capture_output=True, text=True).stdout.strip() == "[]"
    assert "first-key" in bucket.signed[-1]


def test_keys_that_last_for_some_time_are_botocores(bucket, monkeypatch):
    monkeypatch.setenv("AWS_CREDENTIAL_EXPIRATION", "2036-01-01T00:00:00Z")
    assert direct._keys_of_variables() is None
    bucket.store().put("a", b"one")
    assert bucket.ways == ["PUT obstore"]
    assert "first-key" in bucket.signed[0]


def test_a_profile_has_the_keys(bucket, monkeypatch, tmp_path):
    (tmp_path / "keys").write_text("[default]\naws_access_key_id = of-the-file\naws_secret_access_key = x\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    bucket.store().put("a", b"one")
    assert bucket.ways == ["PUT obstore"]
    assert "of-the-file" in bucket.signed[0]


def test_keys_that_were_handed_in_sign(bucket, monkeypatch):
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-somebody-else")
    store = bucket.store(credentials=Credentials("given-key", "secret"))
    store.put("a", b"one")
    assert bucket.ways == ["PUT obstore"]
    assert "given-key" in bucket.signed[0]
    assert "x-amz-security-token" not in bucket.signed[0]


def test_variables_of_other_programs_move_no_request(bucket, monkeypatch):
    nowhere = "http://127.0.0.1:9"
    for name in ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.setenv(name, nowhere)
    for name in ("AWS_SKIP_SIGNATURE", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "AWS_S3_EXPRESS", "AWS_UNSIGNED_PAYLOAD"):
        monkeypatch.setenv(name, "true")
    monkeypatch.setenv("AWS_BUCKET", "another")
    store = bucket.store()
    store.put("a", b"one")
    assert (bucket.ways, list(bucket.objects)) == (["PUT obstore"], ["/bucket/p/a"])
    assert "first-key" in bucket.signed[0]


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "http_proxy", "AWS_USE_FIPS_ENDPOINT"])
def test_a_route_of_somebodys_own_is_botocores(bucket, monkeypatch, name):
    monkeypatch.setenv(name, "")
    bucket.store().put("a", b"one")
    assert bucket.ways == ["PUT botocore"]


@pytest.mark.parametrize(
    ("profile", "way"),
    [
        ("region = eu-west-1\naws_access_key_id = from-file\naws_secret_access_key = x", "PUT obstore"),
        ("s3 =\n  addressing_style = path", "PUT botocore"),
        ("endpoint_url = http://127.0.0.1:9", "PUT botocore"),
        ("ca_bundle = /nowhere", "PUT botocore"),
    ],
)
def test_a_profile_that_says_how_is_botocores(bucket, monkeypatch, tmp_path, profile, way):
    (tmp_path / "config").write_text(f"[default]\n{profile}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    store = bucket.store(part_bytes=6 * 1024 * 1024)
    store.put("a", b"one")
    assert bucket.ways == [way]


def test_names_that_obstore_changes_are_botocores(bucket):
    store = bucket.store()
    for key in ("a//b", "a/./b", "a\x01b", "folder/"):
        store.put(key, b"one")
        assert store.get(key) == b"one"
    assert {way.split()[1] for way in bucket.ways} == {"botocore"}


def test_a_forked_process_has_botocore_only(bucket):
    store = bucket.store()
    store.put("a", b"one")
    assert run_forked(store.get, ["a"]) == [b"one"]
    assert bucket.ways == ["PUT obstore", "GET botocore"]


FORKED_BEFORE = """
import os, sys
from lakeops.store.base import StoreSettings
from lakeops.store.s3 import S3Store
store = S3Store("bucket", "p", StoreSettings(endpoint_url=sys.argv[1], region="us-east-1"))
if (child := os.fork()) == 0:
    store.put("a", b"one")
    os._exit(store.get("a") != b"one")
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_process_that_was_forked_before_has_both(bucket):
    subprocess.run([sys.executable, "-c", FORKED_BEFORE, bucket.url], check=True, timeout=60)
    assert bucket.ways == ["PUT obstore", "GET obstore"]


@pytest.mark.parametrize(
    ("name", "region", "url"),
    [
        ("data", "eu-west-1", "https://data.s3.eu-west-1.amazonaws.com"),
        ("data", "us-gov-west-1", "https://data.s3.us-gov-west-1.amazonaws.com"),
        ("with.dots", "eu-west-1", None),
        ("Upper", "eu-west-1", None),
        ("data--use1-az5--x-s3", "us-east-1", None),
        ("point-s3alias", "us-east-1", None),
        ("data", "cn-north-1", None),
        ("data", "us-iso-east-1", None),
    ],
)
def test_where_a_bucket_of_aws_is(monkeypatch, name, region, url):
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    assert direct._where(name, None, region).get("endpoint") == url


def test_a_server_that_only_botocore_knows(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert direct._where("data", None, "eu-west-1") == {}


def test_a_machine_without_obstore(bucket, monkeypatch):
    monkeypatch.setattr(direct, "find_spec", lambda _: None)
    bucket.store().put("a", b"one")
    assert bucket.ways == ["PUT botocore"]


def test_mocks_of_botocore_are_asked(monkeypatch):
    import moto

    assert moto
    assert direct._is_intercepted()


AT_AWS = {
    "bucket": "bucket.s3.eu-west-1.amazonaws.com",
    "arn:aws:s3:eu-west-1:123456789012:accesspoint:raw": "raw-123456789012.s3-accesspoint.eu-west-1.amazonaws.com",
}


@pytest.mark.parametrize(("name", "host"), AT_AWS.items(), ids=["bucket", "access point"])
def test_the_host_of_a_bucket_or_access_point_at_aws(aws_environment, monkeypatch, name, host):
    """Both clients ask it. A bucket is in the region of the settings, and an access point in that of its name."""
    hosts: list[str] = []
    for variable in filter(direct._TRUST.fullmatch, list(os.environ)):
        monkeypatch.delenv(variable)
    monkeypatch.setattr(direct, "_is_intercepted", lambda: False)
    monkeypatch.setattr(direct, "_connect", lambda *given: hosts.append(given[3]["endpoint"].removeprefix("https://")))
    region = "eu-west-1" if name == "bucket" else "us-east-2"
    store = S3Store(name, "p", StoreSettings(region=region, max_attempts=1, connect_timeout=7))

    def send(request, **_):
        hosts.append(urlsplit(request.url).netloc)
        return error(404, "NoSuchKey")

    client(store.settings).meta.events.register("before-send.s3.GetObject", send)
    with pytest.raises(ObjectNotFound):
        store.get("a")
    assert hosts == [host] * 2
