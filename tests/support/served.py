"""Repositories that gateways of tests serve, such as one whose names are hard to spell, and clients of them."""

import http.client
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials as Keys

from lakeops import Lake, Repository, Settings
from lakeops.gateway.app import Gateway, listening
from lakeops.model.records import Credentials
from lakeops.serving import server_of

KEYS = Credentials("reader", "a secret of the tests: +/=~")

ODD = (
    "a b.txt", "a+b.txt", "a%2Fb.txt", "~é@main.txt", "Ünï/çø∂é.txt", "x&y<z>'\".txt", "tab\there.txt", "/", "//x",
    "../up",
)  # fmt: skip
BIG = bytes(range(256)) * 12_000
"""About 3 MiB: more than one piece."""


def fill(lake: Lake) -> Repository:
    """A repository with three commits, a tag, a branch that sorts oddly, and uncommitted changes."""
    repo = lake.create_repository("shop")
    main = repo.branch("main")
    main.put("customers.csv", b"id,name\n1,Ada\n2,Grace\n", content_type="text/csv", metadata={"Who": "Grüße"})
    main.put("old.csv", b"old")
    main.commit("Load customers")
    for day in range(1, 4):
        for part in range(4):
            main.put(f"orders/day={day}/part-{part}.csv", f"id,amount\n{part},{day}\n".encode())
    for number, path in enumerate(ODD):
        main.put(path, str(number).encode())
    main.put("big.bin", BIG)
    main.delete("old.csv")
    main.commit("Load orders")
    repo.create_tag("v1", "main")
    repo.create_branch("main-2", source="main~1")
    main.put("orders/day=4/part-0.csv", b"id,amount\n9,4\n")
    main.delete("orders/day=1/part-0.csv")
    return repo


@dataclass(frozen=True)
class Served:
    """A gateway that answers: where, and the repository behind it."""

    url: str
    repo: Repository

    @property
    def address(self) -> str:
        return self.url.removeprefix("http://")


@pytest.fixture
def lake(tmp_path):
    """A lake on this machine's clock, which signatures are compared with."""
    with Lake.open(settings=Settings.model_construct(home=tmp_path / "home", fsync=False, committer="tester")) as lake:
        yield lake


@contextmanager
def running(lake: Lake, keys: Credentials | None = KEYS, *, write: bool = False) -> Iterator[str]:
    """A gateway in a thread of this process, which tests can patch; gives its URL."""
    server = server_of(Gateway(lake, keys, write=write))
    with listening("127.0.0.1", 0, keys=keys) as opened:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{opened.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def signed(
    s3: Any, method: str, path: str, body: bytes, headers: Mapping[str, str] | None = None, sha256: str | None = None
) -> tuple[int, str]:
    """Send a request as it is spelled, signed with the gateway's keys; gives the status and the text of the answer.

    ``sha256`` is what it says of its body in place of the truth.
    """
    request = AWSRequest(method, s3.meta.endpoint_url + path, headers=headers, data=body)
    signer = S3SigV4Auth(Keys(KEYS.access_key, KEYS.secret_key), "s3", "us-east-1")
    if sha256 is not None:
        signer.payload = lambda _: sha256
    signer.add_auth(request)
    connection = http.client.HTTPConnection(s3.meta.endpoint_url.removeprefix("http://"))
    connection.request(method, path, body, dict(request.headers))
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


@contextmanager
def s3_client(url: str, keys: Credentials = KEYS) -> Iterator[Any]:
    """A client of a gateway. It tries once, and several threads may use it."""
    client = boto3.client(
        "s3",
        endpoint_url=url,
        aws_access_key_id=keys.access_key,
        aws_secret_access_key=keys.secret_key,
        region_name="eu-central-1",
        config=Config(
            s3={"addressing_style": "path"},
            signature_version="s3v4",
            retries={"total_max_attempts": 1},
            max_pool_connections=16,
        ),
    )
    yield client
    client.close()
