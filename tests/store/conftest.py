"""Stores to test against: a directory, moto's server in this process, and a real server when one is named."""

import itertools
import uuid
from contextlib import ExitStack
from dataclasses import replace

import pytest
from services.cloud import CLOUD_KINDS
from services.s3 import QUICK, S3_KINDS
from support.http_answers import Answers

from lakeops.store.local import LocalStore
from lakeops.store.s3 import S3Store, direct
from lakeops.store.s3.client import client


@pytest.fixture(scope="package", autouse=True)
def shielded(aws_environment):
    """Every test here: no credentials of the person who runs it."""


_fresh = itertools.count(1)


@pytest.fixture
def make_s3(endpoint_of, buckets):
    """A fresh prefix of the run's bucket; with ``own_client`` a client that takes the environment as it is now."""

    def make(kind, *, own_client=False, **changes):
        endpoint = endpoint_of(kind)
        settings = replace(QUICK, endpoint_url=endpoint, **changes)
        if own_client:
            settings = replace(settings, connect_timeout=settings.connect_timeout + next(_fresh) / 1000)
        return S3Store(buckets(endpoint), f"t/{uuid.uuid4().hex}", settings)

    return make


@pytest.fixture
def on_event():
    """Puts a handler on an event of a store's client, for the time of the test."""
    with ExitStack() as stack:

        def listen(store, event, handler):
            events = client(store.settings).meta.events
            events.register(event, handler)
            stack.callback(events.unregister, event, handler)

        yield listen


@pytest.fixture
def play(make_s3):
    """A store whose operation meets the given answers, and those answers; a second one ends the first."""
    with ExitStack() as stack:

        def playing(operation, *turns, kind="moto", **changes):
            stack.close()
            store = make_s3(kind, **changes)
            event, answers, events = f"before-send.s3.{operation}", Answers(*turns), client(store.settings).meta.events
            events.register(event, answers)
            stack.callback(events.unregister, event, answers)
            return store, answers

        yield playing


@pytest.fixture(params=S3_KINDS)
def s3(request, make_s3):
    return make_s3(request.param)


@pytest.fixture
def local(tmp_path):
    return LocalStore(tmp_path / "name space", fsync=False)


@pytest.fixture
def directly(monkeypatch):
    """Requests go by obstore though moto, which this process has loaded, could stand in for botocore's servers."""
    monkeypatch.setattr(direct, "_is_intercepted", lambda: False)
    monkeypatch.setattr(direct._buckets, "_made", {})


@pytest.fixture(params=["local", "directly", *S3_KINDS, *CLOUD_KINDS])
def store(request):
    """Every store that must keep the seam's promises."""
    if request.param == "directly":
        request.getfixturevalue("directly")
        return request.getfixturevalue("make_s3")("moto")
    if request.param == "local":
        return request.getfixturevalue("local")
    if request.param in {"memory", "azure"}:
        return request.getfixturevalue("make_cloud")(request.param)
    return request.getfixturevalue("make_s3")(request.param)
