"""A store whose answers look well and are none: every operation ends in the right result or in a passing error."""

import base64
import io
import itertools
import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest
from services.s3 import QUICK as QUICK_SETTINGS
from services.s3 import S3_KINDS
from support.lying_s3 import LIES, STALE, LyingServer

from lakeops.model.errors import AlreadyExists, ObjectNotFound, StoreError, StoreUnavailable, Transient
from lakeops.store.base import MIN_PART_BYTES
from lakeops.store.cloud import CloudStore
from lakeops.store.s3 import S3Store

KEYS = [f"f/{number}" for number in range(7)]
BIG = bytes(range(256)) * (MIN_PART_BYTES // 256) + b"end"
PAGE = 3
"""Keys on a page of a listing."""

UNTOLD = {"fewer bytes", "a head of no bytes", "an old ETag"}
"""Lies that only somebody sees who knows the object: those who recorded its size and digest."""


def contents(key):
    return f"contents of {key}".encode()


def put_big(store):
    store.put("big", io.BytesIO(BIG))
    return store.get("big")


def put_new(store):
    try:
        store.put("new", b"new", if_absent=True)
    except AlreadyExists:
        assert store.get("new") == b"new", "of an earlier try whose answer was none"
    return store.get("new")


def read_open(store):
    with store.open(KEYS[2]) as file:
        return file.read()


def delete(store):
    return store.delete([KEYS[0], KEYS[1]])


def copy(store):
    copied = S3Store(store.bucket, f"{store.prefix}-copied", store.settings)
    return copied.copy_from(store, replace(store.head(KEYS[3]), key=KEYS[3])), copied.get(KEYS[3])


OPERATIONS: dict[str, tuple[Callable[[S3Store], object], object]] = {
    "get": (lambda store: store.get(KEYS[0]), contents(KEYS[0])),
    "range": (lambda store: store.get_range(KEYS[0], 3, 5), contents(KEYS[0])[3:8]),
    "open": (read_open, contents(KEYS[2])),
    "head": (lambda store: store.head(KEYS[0]).size_bytes, len(contents(KEYS[0]))),
    "put": (lambda store: store.put("put", b"put").size_bytes, 3),
    "put if absent": (put_new, b"new"),
    "put big": (put_big, BIG),
    "swap": (lambda store: store.swap("swap", b"1", expected=None), True),
    "list": (lambda store: [item.key for item in store.list("f/")], KEYS),
    "scan": (lambda store: [key for page in store.scan() for key in page.keys if key in KEYS], KEYS),
    "delete": (delete, []),
    "copy": (copy, (True, contents(KEYS[3]))),
}


_fresh = itertools.count(1)


@pytest.fixture(scope="module", params=S3_KINDS)
def liar(request):
    with LyingServer(request.getfixturevalue("endpoint_of")(request.param)) as server:
        yield server


@pytest.fixture
def lied_to(liar, buckets, on_event, monkeypatch):
    """A store behind the proxy that holds ``KEYS`` and is listed by small pages."""
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.0)
    # A client of its own: botocore's stop to ask again after so many failures.
    own = 5 + next(_fresh) / 1000
    settings = replace(QUICK_SETTINGS, endpoint_url=liar.url, max_attempts=2, connect_timeout=own)
    store = S3Store(buckets(liar.endpoint), f"lies/{uuid.uuid4().hex}", settings)
    on_event(store, "before-parameter-build.s3.ListObjectsV2", _list_by_small_pages)
    liar.be_honest()
    for key in KEYS:
        store.put(key, contents(key))
    yield store
    liar.be_honest()


def _list_by_small_pages(params, **_):
    params["MaxKeys"] = PAGE


def _hold(liar, store, name, operations):
    untold, operations = [], list(operations)
    for operation in operations:
        act, wanted = OPERATIONS[operation]
        for key in KEYS:
            store.put(key, contents(key))
        store.delete(["put", "new", "big", "swap"])
        liar.tell(LIES[name])
        try:
            assert act(store) == wanted, (operation, liar.told)
        except Transient as error:
            assert liar.told, (operation, error)
        except StoreError as error:
            assert "does not list names in byte order" in error.message, operation
        except ObjectNotFound as error:
            raise AssertionError((operation, liar.told)) from error
        untold += [] if liar.told else [operation]
        liar.be_honest()
        assert act(store) in {True, False} if operation == "swap" else act(store) == wanted, operation
    assert len(untold) < len(operations), "the lie was never told"


QUICK = {"get": "get", "range": "get", "head": "head", "list": "list", "put": "put", "delete": "delete many"}
"""Operations that send little, and the request that each of them is about."""


@pytest.mark.parametrize("name", sorted(LIES.keys() - UNTOLD))
def test_an_answer_that_is_none_is_not_believed(liar, lied_to, name):
    told = LIES[name].operations
    some = [operation for operation, request in QUICK.items() if request in told]
    _hold(liar, lied_to, name, some or ["put big", "copy"])


@pytest.mark.slow
@pytest.mark.parametrize("way", ["by botocore", "directly"])
@pytest.mark.parametrize("name", sorted(LIES.keys() - UNTOLD))
def test_nor_by_any_operation(liar, lied_to, request, way, name):
    if way == "directly":
        request.getfixturevalue("directly")
    _hold(liar, lied_to, name, OPERATIONS)


def test_it_is_asked_again(liar, lied_to):
    for name in ("a page of HTML", "a second page of HTML", "truncated without a token", "no ETag", "half of the XML"):
        liar.tell(LIES[name], times=1)
        assert [item.key for item in lied_to.list("f/")] == KEYS
        assert lied_to.get(KEYS[0]) == contents(KEYS[0])
        assert len(liar.told) == 1, name


def test_the_error_says_what_is_wrong_and_what_to_do(liar, lied_to):
    liar.tell(LIES["truncated without a token"])
    with pytest.raises(StoreUnavailable, match=r"malformed answers about .*: it is truncated.*proxy.*try again"):
        list(lied_to.list("f/"))
    liar.tell(LIES["no upload id"])
    with pytest.raises(StoreUnavailable, match="it has no UploadId"):
        lied_to.put("big", io.BytesIO(BIG))


def test_a_probe_finds_listings_that_come_late(liar, lied_to):
    assert lied_to.probe().consistent_listing
    liar.tell(STALE)
    assert not lied_to.probe().consistent_listing


PAGES = ["an empty body", "a page of HTML", "a page of HTML that is XML", "JSON", "packed junk", "no content"]


@pytest.mark.parametrize("name", PAGES)
def test_obstore_does_not_believe_them_of_azure(monkeypatch, name):
    with LyingServer("http://127.0.0.1:9") as azure:
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"{azure.url}/account")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", base64.b64encode(bytes(64)).decode())
        azure.tell(LIES[name])
        store = CloudStore("az", f"c{uuid.uuid4().hex}", settings=replace(QUICK_SETTINGS, max_attempts=1))
        for act in (lambda: list(store.list()), lambda: store.head("k"), lambda: store.put("k", b"x")):
            with pytest.raises(StoreUnavailable):
                act()
        assert len(azure.told) >= 3
