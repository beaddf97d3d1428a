"""Mirrors between buckets: by the server's own replication, and by lakeops' copies."""

import pytest
from support.mirrors import SPLIT, read_whole

from lakeops import Lake, Mirror, Repository, Settings
from lakeops.engine.base import LocalEngine
from lakeops.ops.mirror.replicate import replicate
from lakeops.ops.mirror.setup_s3 import carry_out, make_plan, replication_of
from lakeops.store.layout import owner_key
from lakeops.store.s3 import S3Store
from lakeops.store.s3.client import client

ROLE = "arn:aws:iam::123456789012:role/replicate"

Pair = tuple[Repository, Mirror, S3Store]


@pytest.fixture
def mirrored(two_buckets, tmp_path):
    """A repository in one bucket of a server, and its mirror in the other; the mirror's store beside them."""
    opened: list[Lake] = []

    def make(kind, prepare=lambda source, mirror: None):
        source, mirror = two_buckets(kind)
        prepare(source, mirror)
        for name in ("here", "there"):
            settings = Settings.load(
                home=tmp_path / name, fsync=False, s3_endpoint_url=source.settings.endpoint_url, committer="tester"
            )
            opened.append(Lake.open(settings=settings))
        repo = opened[0].create_repository("flights", source.url, split=SPLIT)
        return repo, opened[1].create_mirror("flights", mirror.url, source=opened[0]), mirror

    yield make
    for lake in opened:
        lake.close()


def commit(repo, **files):
    branch = repo.branch("main")
    for path, data in files.items():
        branch.put(path, data)
    return branch.commit("on main").id


def check(repo, mirror, store):
    """The mirror shows what the source shows, and all of it is there."""
    head = repo.ref("main").commit
    assert mirror.ref("main").commit.id == head.id
    found = read_whole(store, mirror.storage_namespace, head)
    assert found == {item.path: repo.ref("main").read(item.path) for item in repo.ref("main").list()}
    assert found == {item.path: mirror.ref("main").read(item.path) for item in mirror.ref("main").list()}
    return found


def set_up(source, mirror):
    carry_out(make_plan(replication_of(source.url, mirror.url, role=ROLE), source.settings))


def test_the_buckets_replication_serves_a_mirror(mirrored):
    repo, mirror, store = mirrored("ministack", set_up)
    for number in range(3):
        commit(repo, **{f"day{number}": f"{number}".encode(), "big": bytes([number]) * (9 << 20)})
        mirror.sync()
        assert len(check(repo, mirror, store)) == number + 2


def test_what_was_there_before_the_rule_is_copied(mirrored):
    """The rule concerns new objects; the copier brings the rest, and neither gets into the other's way."""
    repo, mirror, store = mirrored("ministack")
    first = commit(repo, before=b"1")
    source = S3Store(repo.storage_namespace.split("/")[2], "flights", store.settings)
    set_up(source, store)
    second = commit(repo, after=b"2")
    mirror.sync()
    assert mirror.ref("main").commit.id not in {first, second}
    assert mirror.replicate().copied >= 2
    mirror.sync()
    assert check(repo, mirror, store) == {"before": b"1", "after": b"2"}


def test_deletes_of_the_source_arrive_as_markers(mirrored):
    repo, mirror, store = mirrored("ministack", set_up)
    commit(repo, a=b"1")
    mirror.sync()
    garbage = "data/2026010100/garbage"
    source = S3Store(repo.storage_namespace.split("/")[2], "flights", store.settings)
    source.put(garbage, b"x")
    assert garbage in {item.key for item in store.list()}
    source.delete([garbage])
    assert garbage not in {item.key for item in store.list()}
    versions = client(store.settings).list_object_versions(Bucket=store.bucket, Prefix=f"flights/{garbage}")
    assert len(versions["DeleteMarkers"]) == 1, "what the destination's lifecycle rule is there for"
    check(repo, mirror, store)


@pytest.mark.parametrize("kind", ["moto", pytest.param("real", marks=pytest.mark.s3)])
def test_a_server_without_replication_is_copied_on(mirrored, kind):
    repo, mirror, store = mirrored(kind)
    commit(repo, a=b"1", big=bytes(9 << 20))
    mirror.replicate()
    mirror.sync()
    check(repo, mirror, store)
    source = S3Store(repo.storage_namespace.split("/")[2], "flights", store.settings)
    theirs = {item.key: item.etag for item in source.list("data/")}
    assert {item.key: item.etag for item in store.list("data/")} == theirs, "checksums of entries stay true"
    assert mirror.replicate().copied == 0
    for contents in (b"first", b"retry"):  # an engine writes a file of an output anew
        source.put("data/2026010100/0000output/part-0", contents)
        assert mirror.replicate().copied == 1
    assert store.get("data/2026010100/0000output/part-0") == b"retry"
    assert mirror.replicate().copied == 0
    source.delete([owner_key(source.url)])  # as `repo delete` does
    assert replicate(store, source, LocalEngine(2)).copied == 0, "on the way back equal ETags say that it is there"
