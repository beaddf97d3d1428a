"""S3 servers to test against: moto's in this process, ministack (which performs replication) beside it, a real one.

The real one is whatever the environment names.

A plugin: its fixtures are there for every part's tests.
"""

import logging
import os
import socket
import subprocess
import sys
import threading
import uuid
from dataclasses import replace

import pytest
from services.process import die_with_parent

from lakeops.store.base import MIN_PART_BYTES, StoreSettings
from lakeops.store.s3 import S3Store
from lakeops.store.s3.client import client

QUICK = StoreSettings(max_attempts=2, connect_timeout=5, read_timeout=20, part_bytes=MIN_PART_BYTES)

S3_KINDS = ["moto", pytest.param("real", marks=pytest.mark.s3)]


@pytest.fixture(scope="session")
def aws_environment(tmp_path_factory):
    """No credentials or configuration of the person who runs the tests, but those meant for the real server."""
    with pytest.MonkeyPatch.context() as patch:
        nowhere = str(tmp_path_factory.mktemp("aws") / "none")
        patch.setenv("AWS_CONFIG_FILE", nowhere)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", nowhere)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_SESSION_TOKEN"):
            patch.delenv(name, raising=False)
        if "LAKEOPS_TEST_S3_ENDPOINT" not in os.environ:
            patch.setenv("AWS_ACCESS_KEY_ID", "test-access-key")
            patch.setenv("AWS_SECRET_ACCESS_KEY", "test-secret-key")
        yield


@pytest.fixture(scope="session")
def moto_endpoint(aws_environment):
    from moto.s3.responses import S3Response
    from moto.server import ThreadedMotoServer

    # S3 looks at a condition and writes in one step. moto does one after the other.
    put, one_at_a_time = S3Response.put_object, threading.Lock()

    def put_object(response: S3Response) -> object:
        with one_at_a_time:
            return put(response)

    S3Response.put_object = put_object  # type: ignore[method-assign]
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()
    S3Response.put_object = put  # type: ignore[method-assign]


@pytest.fixture(scope="session")
def ministack_endpoint(aws_environment, tmp_path_factory):
    """A server that copies what a bucket's replication rules ask for. Its port is open before it starts, so that
    clients wait for it by themselves."""
    place = tmp_path_factory.mktemp("ministack")
    environment = {**os.environ, "SERVICES": "s3", "IOT_MTLS_ENABLED": "0", "S3_PERSIST": "0"}
    with socket.socket() as listening, (place / "log").open("wb") as log:
        listening.bind(("127.0.0.1", 0))
        listening.listen(128)
        number = listening.fileno()
        command = [sys.executable, "-m", "hypercorn", "ministack.app:app", "--bind", f"fd://{number}"]
        with subprocess.Popen(
            command,
            pass_fds=[number],
            cwd=place,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent,  # noqa: PLW1509
        ) as server:
            try:
                yield f"http://127.0.0.1:{listening.getsockname()[1]}"
            finally:
                server.terminate()


@pytest.fixture(scope="session")
def buckets(aws_environment):
    """The bucket of this run on an endpoint, made when first asked for, emptied and removed at the end."""
    made: dict[str, str] = {}

    def bucket_on(endpoint: str) -> str:
        if endpoint not in made:
            name = f"lakeops-test-{uuid.uuid4().hex[:12]}"
            client(replace(QUICK, endpoint_url=endpoint)).create_bucket(Bucket=name)
            made[endpoint] = name
        return made[endpoint]

    yield bucket_on
    for endpoint, name in made.items():
        if endpoint != os.environ.get("LAKEOPS_TEST_S3_ENDPOINT"):
            continue
        settings = replace(QUICK, endpoint_url=endpoint)
        store = S3Store(name, "", settings)
        assert store.delete(item.key for item in store.list()) == []
        client(settings).delete_bucket(Bucket=name)


@pytest.fixture
def two_buckets(endpoint_of):
    """Two fresh buckets on a kind of server, as stores of one prefix; removed again where they would stay."""
    lasting: list[S3Store] = []

    def make(kind: str, prefix: str = "flights") -> tuple[S3Store, S3Store]:
        settings = replace(QUICK, endpoint_url=endpoint_of(kind))
        names = [f"{side}-{uuid.uuid4().hex[:12]}" for side in ("source", "mirror")]
        for name in names:
            client(settings).create_bucket(Bucket=name)
        source, mirror = (S3Store(name, prefix, settings) for name in names)
        lasting.extend(S3Store(name, "", settings) for name in names if kind == "real")
        return source, mirror

    yield make
    for store in lasting:
        assert store.delete(item.key for item in store.list()) == []
        client(store.settings).delete_bucket(Bucket=store.bucket)


@pytest.fixture(scope="session")
def endpoint_of(request):
    """The endpoint of a kind of S3 server; skips when it is not there."""

    def endpoint(kind: str) -> str:
        if kind in {"moto", "ministack"}:
            return request.getfixturevalue(f"{kind}_endpoint")
        named = os.environ.get("LAKEOPS_TEST_S3_ENDPOINT")
        if not named:
            pytest.skip("LAKEOPS_TEST_S3_ENDPOINT names no server")
        return named

    return endpoint
