"""The verbs with their storage namespace in S3: moto in every run, a real server with ``make test-s3``."""

from __future__ import annotations

import hashlib
import io
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from services.s3 import S3_KINDS
from support.scenes import tree

from lakeops import Lake, Repository, Settings, Split
from lakeops.model import errors
from lakeops.model.errors import MergeConflict
from lakeops.store.s3.client import client
from lakeops.testing import ManualClock


@pytest.fixture(params=S3_KINDS)
def repo(request: pytest.FixtureRequest, endpoint_of, buckets, tmp_path: Path) -> Iterator[Repository]:
    endpoint = endpoint_of(request.param)
    settings = Settings.load(home=tmp_path, s3_endpoint_url=endpoint)
    with Lake.open(settings=settings, clock=ManualClock()) as lake:
        namespace = f"s3://{buckets(endpoint)}/{uuid.uuid4().hex}"
        yield lake.create_repository("repo", storage_namespace=namespace, split=Split(2, 4, 8))


def test_a_session(repo: Repository) -> None:
    main = repo.branch("main")
    for number in range(20):
        main.put(f"f{number:02}", str(number).encode())
    main.put("big", io.BytesIO(b"x" * (6 << 20)))
    main.commit("base")
    repo.create_branch("dev")
    repo.branch("dev").put("f03", b"dev")
    repo.branch("dev").delete("f07")
    repo.branch("dev").commit("dev")
    main.put("f15", b"main")
    main.commit("main")
    assert repo.merge("dev", "main").summary.to_json() == {"added": 0, "removed": 1, "changed": 1}
    files = tree(repo, "main")
    assert (files["f03"], files["f15"], "f07" in files, len(files["big"])) == (b"dev", b"main", False, 6 << 20)
    assert tree(repo, "main~2")["f03"] == b"3"
    with repo.ref("main").open("big") as file:
        file.seek(-3, io.SEEK_END)
        assert file.read() == b"xxx"
    with urllib.request.urlopen(repo.ref("main").presign("f03")) as answer:
        assert answer.read() == b"dev"
    repo.branch("dev").put("f15", b"dev")
    repo.branch("dev").commit("conflict")
    with pytest.raises(MergeConflict):
        repo.merge("dev", "main")


def test_an_output_directory(repo: Repository) -> None:
    s3 = client(_settings(repo))
    bucket, _, prefix = repo.storage_namespace.removeprefix("s3://").partition("/")
    with repo.branch("main").output("events/") as url:
        assert url.startswith(f"s3://{bucket}/{prefix}/data/")
        key = url.removeprefix(f"s3://{bucket}/")
        s3.put_object(Bucket=bucket, Key=f"{key}/part-0.csv", Body=b"a,b")
        s3.put_object(Bucket=bucket, Key=f"{key}/_temporary/0/part", Body=b"unfinished")
    assert tree(repo, "main") == {"events/part-0.csv": b"a,b"}
    assert repo.ref("main").stat("events/part-0.csv").checksum == hashlib.md5(b"a,b").hexdigest()


def test_a_taken_namespace(repo: Repository, tmp_path: Path) -> None:
    settings = Settings.load(home=tmp_path / "other", s3_endpoint_url=_settings(repo).endpoint_url)
    with Lake.open(settings=settings) as other, pytest.raises(errors.NamespaceTaken):
        other.create_repository("other", storage_namespace=repo.storage_namespace)


def _settings(repo: Repository):
    return repo._ctx.stores.settings
