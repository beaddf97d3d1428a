"""Garbage collection with the storage namespace in S3; a bucket with versions says that they remain."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.clock import ManualClock
from support.s3_servers import S3_KINDS
from support.scenes import tree

from lakeops import Lake, Repository, Settings, Split
from lakeops.store import layout
from lakeops.store.s3.client import client


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=S3_KINDS)
def repo(request, endpoint_of, buckets, tmp_path: Path, clock: ManualClock) -> Iterator[Repository]:
    """Two commits, of which the rules keep one."""
    endpoint = endpoint_of(request.param)
    settings = Settings.load(home=tmp_path, s3_endpoint_url=endpoint)
    with Lake.open(settings=settings, clock=clock) as lake:
        namespace = f"s3://{buckets(endpoint)}/{uuid.uuid4().hex}"
        repo = lake.create_repository("repo", storage_namespace=namespace, split=Split(2, 4, 8))
        for text in ("old", "new"):
            for number in range(9):
                repo.branch("main").put(f"ö/{number} %2f", f"{text}{number}".encode())
            repo.branch("main").commit(text)
        repo.gc.set_rules({"default_retention_days": 1})
        clock.advance(days=3)
        yield repo


@pytest.fixture
def versions(repo: Repository) -> Iterator[Callable[[], int]]:
    """Switches the bucket's versioning on for one test; counts the delete markers of objects."""
    s3 = client(repo._ctx.stores.settings)
    bucket, _, prefix = repo.storage_namespace.removeprefix("s3://").partition("/")
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    try:
        yield lambda: len(
            s3.list_object_versions(Bucket=bucket, Prefix=f"{prefix}/{layout.DATA}").get("DeleteMarkers", [])
        )
    finally:
        s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Suspended"})


def test_what_nothing_needs_goes(repo: Repository) -> None:
    store = repo._ctx.store
    store.put("data/theirs.txt", b"not ours")
    mark = repo.gc.mark()
    report = repo.gc.report(mark.id)
    assert (mark.objects, report["versioned"], report["notes"]) == (9, False, [])
    assert report["strays"]["sample"] == ["data/theirs.txt"]
    done = repo.gc.sweep(mark.id)
    assert (done.deleted, done.versioned) == (mark.rows, False)
    assert tree(repo, "main") == {f"ö/{number} %2f": f"new{number}".encode() for number in range(9)}
    assert len(list(store.list(layout.DATA))) == 10
    assert len(list(store.list(layout.METARANGES))) == 1
    assert repo.gc.mark().rows == 0


def test_a_bucket_with_versions_says_that_they_remain(repo: Repository, versions: Callable[[], int]) -> None:
    mark = repo.gc.mark()
    report = repo.gc.report(mark.id)
    assert report["versioned"] is True
    assert "NoncurrentVersionExpiration" in report["notes"][0]
    done = repo.gc.sweep(mark.id)
    assert done.versioned is True
    assert versions() == 9
    assert len(tree(repo, "main")) == 9


def test_a_bucket_that_forbids_deletes_is_named(repo: Repository, monkeypatch) -> None:
    from lakeops.model.errors import SweepIncomplete
    from lakeops.store.base import DeleteFailure

    mark = repo.gc.mark()
    store = repo._ctx.store
    monkeypatch.setattr(store, "delete", lambda keys: [DeleteFailure(key, "AccessDenied") for key in keys])
    with pytest.raises(SweepIncomplete, match="AccessDenied"):
        repo.gc.sweep(mark.id)
    assert len(list(store.list(layout.DATA))) == 18
