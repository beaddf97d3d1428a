"""Credentials and signed URLs: where they come from, and that they show up nowhere else."""

import traceback
import urllib.request
import uuid

import pytest
from botocore.exceptions import ConnectionClosedError
from support.http_answers import Answers, error
from support.s3_calls import CALLS

from lakeops.model.errors import InvalidInput, InvalidPath, StoreError
from lakeops.store.s3.client import client


class TestSecrets:
    """Nothing secret in an error, however it is printed."""

    CANARY = "CANARY" + uuid.uuid4().hex

    @pytest.fixture
    def secret_store(self, monkeypatch, make_s3):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ID" + self.CANARY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", self.CANARY)
        monkeypatch.setenv("AWS_SESSION_TOKEN", "TOKEN" + self.CANARY)
        return make_s3("moto", own_client=True, max_attempts=1)

    def shown(self, store, call):
        with pytest.raises(Exception, match="bucket") as raised:
            call(store)
        return "".join(traceback.format_exception(raised.value)) + repr(raised.value) + str(raised.value.to_json())

    @pytest.mark.parametrize("operation", CALLS)
    def test_errors_that_the_server_fills_with_them(self, secret_store, operation):
        echo = f"key {self.CANARY} https://h/b?X-Amz-Signature={self.CANARY}"
        for status, code in (
            (403, "SignatureDoesNotMatch"),
            (403, "AccessDenied"),
            (500, "InternalError"),
            (400, "Odd"),
        ):
            answers = Answers(lambda _, status=status, code=code: error(status, code, echo))
            events = client(secret_store.settings).meta.events
            for name in (operation, "DeleteObject"):
                events.register(f"before-send.s3.{name}", answers)
            assert self.CANARY not in self.shown(secret_store, CALLS[operation])
            for name in (operation, "DeleteObject"):
                events.unregister(f"before-send.s3.{name}", answers)

    def test_errors_of_the_connection(self, secret_store):
        def broken(request):
            return ConnectionClosedError(endpoint_url=f"http://x/?X-Amz-Signature={self.CANARY}", request=request)

        client(secret_store.settings).meta.events.register("before-send.s3.GetObject", Answers(broken))
        assert self.CANARY not in self.shown(secret_store, CALLS["GetObject"])

    def test_the_store_itself(self, secret_store):
        assert self.CANARY not in repr(secret_store) + repr(secret_store.settings) + secret_store.url

    def test_no_credentials_at_all(self, monkeypatch, make_s3):
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        store = make_s3("moto", own_client=True)
        for call in CALLS.values():
            with pytest.raises(StoreError, match="no usable AWS credentials"):
                call(store)

    def test_a_profile_that_does_not_exist(self, monkeypatch, make_s3):
        store = make_s3("moto", own_client=True)
        monkeypatch.setenv("AWS_PROFILE", "nobody")
        with pytest.raises(StoreError, match="ProfileNotFound"):
            store.get("k")


class TestPresign:
    """URLs that read one object for a while."""

    def test_anybody_can_read_with_it(self, s3):
        s3.put("data/a b+c%20/é", b"contents")
        url = s3.presign("data/a b+c%20/é", 60)
        with urllib.request.urlopen(url) as answered:
            assert answered.read() == b"contents"
        assert "X-Amz-Expires=60" in url
        assert "X-Amz-Algorithm=AWS4-HMAC-SHA256" in url

    def test_limits(self, s3):
        for seconds in (0, -1, 7 * 24 * 3600 + 1):
            with pytest.raises(InvalidInput):
                s3.presign("k", seconds)
        with pytest.raises(InvalidPath):
            s3.presign("../../k")
