"""Objects that lie elsewhere: imported ones, in directories and buckets."""

import os
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.soundness import assert_sound, worse_than_information

from lakeops import Lake, Repository, Settings, Split
from lakeops.catalog.open import open_catalog
from lakeops.model.errors import StoreError
from lakeops.ops.fsck.findings import Severity
from lakeops.store.base import StoreSettings
from lakeops.store.open import Stores
from lakeops.testing import Faults, ManualClock

COUNT = 60


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    for number in range(COUNT):
        (folder / f"{number:02}").write_text(f"imported {number}")
    return folder


@pytest.fixture
def imported(repo, source):
    repo.branch("main").reset()
    repo.branch("main").import_objects(f"file://{source}", "in/", "import")
    return repo


@pytest.mark.parametrize(
    ("harm", "kind", "severity"),
    [
        (Path.unlink, "object_missing", "error"),
        (lambda file: file.write_text("something of another length"), "object_size_mismatch", "error"),
        (lambda file: os.utime(file, ns=(7, 7)), "object_changed", "warning"),
    ],
)
def test_harm_to_an_imported_file(imported, source, harm, kind, severity):
    assert_sound(imported, data=True)
    harm(source / "07")
    assert_sound(imported)
    found = worse_than_information(imported, data=True)
    assert [(one.kind, one.severity.value, one.where) for one in found] == [(kind, severity, "object in/07")]
    assert str(source) in found[0].message


def test_objects_elsewhere_are_no_leftovers_here(imported):
    assert "stray_files" not in {finding.kind for finding in imported.fsck()}


@dataclass(frozen=True)
class InBucket:
    """A local repository whose objects are imported from a bucket, and what is asked of any store."""

    repo: Repository
    url: str
    faults: Faults


@pytest.fixture
def in_bucket(moto_endpoint, buckets, tmp_path):
    url = f"s3://{buckets(moto_endpoint)}/{uuid.uuid4().hex}"
    store = Stores(StoreSettings(endpoint_url=moto_endpoint)).at(url)
    for number in range(COUNT):
        store.put(f"{number:02}", f"imported {number}".encode())
    settings = Settings.load(home=tmp_path, fsync=False, committer="tester", s3_endpoint_url=moto_endpoint)
    faults = Faults()
    stores = Stores(StoreSettings(endpoint_url=moto_endpoint, fsync=False), wrap=faults.around)
    with Lake(open_catalog(settings.catalog_url, clock=ManualClock()), settings, stores=stores) as lake:
        repo = lake.create_repository("repo", split=Split(40, 50, 100))
        repo.branch("main").import_objects(url, "in/", "import")
        faults.revive()
        yield InBucket(repo, url, faults)


def test_objects_of_a_bucket_are_listed_instead_of_asked_for(in_bucket):
    check = in_bucket.repo.fsck(data=True)
    assert [one for one in check if one.severity != Severity.INFO] == []
    assert check.checked["objects"] == COUNT
    asked = in_bucket.faults.counts
    assert asked["head"] + asked["open"] == 0
    assert asked["list"] <= 1 + check.checked["ranges"]


def test_a_bucket_that_may_not_be_listed_is_asked_for_each_object(in_bucket):
    bucket = "s3://" + in_bucket.url.removeprefix("s3://").partition("/")[0]

    def refuse(call):
        if call.url == bucket:
            raise StoreError("no listing")

    in_bucket.faults.hook("list", at=None, action=refuse)
    assert_sound(in_bucket.repo, data=True)
    assert in_bucket.faults.counts["head"] == COUNT


def test_harm_to_imported_objects_of_a_bucket(in_bucket):
    store = in_bucket.repo._ctx.stores().at(in_bucket.url)
    store.delete(["03"])
    store.put("05", b"imported x")
    store.put("07", b"IMPORTED 7")
    store.put("09", b"imported 9")
    found = worse_than_information(in_bucket.repo, data=True)
    assert sorted((one.kind, one.where) for one in found) == [
        ("object_checksum_mismatch", "object in/05"),
        ("object_checksum_mismatch", "object in/07"),
        ("object_missing", "object in/03"),
    ]
    store.put("05", b"imported and longer")
    assert "object_size_mismatch" in {one.kind for one in worse_than_information(in_bucket.repo, data=True)}
