"""A store whose answers look well and are none: every operation ends in the right result or in a passing error."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from services.s3 import S3_KINDS
from support.lying_s3 import LIES, LyingServer

from lakeops.model.errors import AlreadyExists, ObjectNotFound, StoreError, StoreUnavailable, Transient
from lakeops.store.base import MIN_PART_BYTES
from lakeops.store.s3 import S3Store

KEYS = [f"f/{number}" for number in range(7)]
BIG = bytes(range(256)) * (MIN_PART_BYTES // 256) + b"end"
PAGE = 3
"""Keys on a page of a listing."""

UNTOLD = {"fewer bytes", "a head of no bytes", "an old ETag"}
"""Lies that only somebody sees who knows the object: those who recorded its size and digest."""


def contents(key: str) -> bytes:
    return f"contents of {key}".encode()


def put_big(store: S3Store) -> bytes:
    store.put("big", io.BytesIO(BIG))
    return store.get("big")


def put_new(store: S3Store) -> bytes:
    try:
        store.put("new", b"new", if_absent=True)
    except AlreadyExists:
        assert store.get("new") == b"new", "of an earlier try whose answer was none"
    return store.get("new")


def read_open(store: S3Store) -> bytes:
    with store.open(KEYS[2]) as file:
        return file.read()


def delete(store: S3Store) -> object:
    return store.delete([KEYS[0], KEYS[1]])


def copy(store: S3Store) -> object:
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


@pytest.fixture(scope="module", params=S3_KINDS)
def liar(request) -> Iterator[LyingServer]:
    endpoint = request.getfixturevalue("moto_endpoint") if request.param == "moto" else None
    if endpoint is None:
        import os

        endpoint = os.environ.get("LAKEOPS_TEST_S3_ENDPOINT") or pytest.skip("LAKEOPS_TEST_S3_ENDPOINT names no server")
    with LyingServer(endpoint) as server:
        yield server


@pytest.fixture
def lied_to(liar, make_s3, buckets, on_event, monkeypatch, request) -> Iterator[S3Store]:
    """A store behind the proxy that holds ``KEYS`` and is listed by small pages."""
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.0)
    kind = "moto" if "moto" in request.node.name else "real"
    near = make_s3(kind)
    store = S3Store(near.bucket, near.prefix, replace(near.settings, endpoint_url=liar.url, max_attempts=2))
    on_event(store, "before-parameter-build.s3.ListObjectsV2", _list_by_small_pages)
    liar.be_honest()
    for key in KEYS:
        store.put(key, contents(key))
    yield store
    liar.be_honest()


def _list_by_small_pages(params, **_):
    params["MaxKeys"] = PAGE


def _hold(liar: LyingServer, store: S3Store, name: str) -> None:
    untold = []
    for operation, (act, wanted) in OPERATIONS.items():
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
    assert len(untold) < len(OPERATIONS), "the lie was never told"


@pytest.mark.parametrize("name", sorted(LIES.keys() - UNTOLD))
def test_an_answer_that_is_none_is_not_believed(liar, lied_to, name):
    _hold(liar, lied_to, name)


@pytest.mark.parametrize("name", sorted(LIES.keys() - UNTOLD))
def test_nor_by_requests_that_go_directly(liar, lied_to, directly, name):
    _hold(liar, lied_to, name)


def test_it_is_asked_again(liar, lied_to):
    for name in ("a page of HTML", "a second page of HTML", "truncated without a token", "no ETag", "half of the XML"):
        liar.tell(LIES[name], times=1)
        assert [item.key for item in lied_to.list("f/")] == KEYS
        assert lied_to.get(KEYS[0]) == contents(KEYS[0])
        assert len(liar.told) == 1, name


def test_the_error_says_what_is_wrong_and_what_to_do(liar, lied_to):
    liar.tell(LIES["truncated without a token"])
    with pytest.raises(StoreUnavailable, match=r"what is no answer: it is truncated.*proxy.*try again"):
        list(lied_to.list("f/"))
    liar.tell(LIES["no upload id"])
    with pytest.raises(StoreUnavailable, match="it has no UploadId"):
        lied_to.put("big", io.BytesIO(BIG))
