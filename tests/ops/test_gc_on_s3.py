"""Garbage collection with the storage namespace in S3; a bucket with versions says that they remain."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from services.s3 import QUICK, S3_KINDS
from support.scenes import tree

from lakeops import Lake, Repository, Settings, Split
from lakeops.store import layout
from lakeops.store.s3.client import client
from lakeops.testing import ManualClock


@pytest.fixture(params=S3_KINDS)
def endpoint(request, endpoint_of) -> str:
    return endpoint_of(request.param)


@pytest.fixture
def bucket(endpoint: str) -> Iterator[str]:
    """A bucket of the test's own: one that ever had versions is not as others are, even when they are off again."""
    s3 = client(replace(QUICK, endpoint_url=endpoint))
    name = f"lakeops-test-{uuid.uuid4().hex[:12]}"
    s3.create_bucket(Bucket=name)
    yield name
    for page in s3.get_paginator("list_object_versions").paginate(Bucket=name):
        for version in [*page.get("Versions", []), *page.get("DeleteMarkers", [])]:
            s3.delete_object(Bucket=name, Key=version["Key"], VersionId=version["VersionId"])
    s3.delete_bucket(Bucket=name)


@pytest.fixture
def repo(endpoint: str, bucket: str, tmp_path: Path, clock: ManualClock) -> Iterator[Repository]:
    """Two commits, of which the rules keep one."""
    settings = Settings.load(home=tmp_path, s3_endpoint_url=endpoint)
    with Lake.open(settings=settings, clock=clock) as lake:
        repo = lake.create_repository("repo", storage_namespace=f"s3://{bucket}/flights", split=Split(2, 4, 8))
        for text in ("old", "new"):
            for number in range(9):
                repo.branch("main").put(f"ö/{number} %2f", f"{text}{number}".encode())
            repo.branch("main").commit(text)
        repo.gc.set_rules({"default_retention_days": 1})
        clock.advance(days=8)
        yield repo


@pytest.fixture
def versions(repo: Repository, bucket: str) -> Callable[[], int]:
    """Switches the bucket's versioning on; counts the delete markers of objects."""
    s3 = client(repo._ctx.stores.settings)
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    return lambda: len(s3.list_object_versions(Bucket=bucket, Prefix=f"flights/{layout.DATA}").get("DeleteMarkers", []))


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
