"""The copier as a process that dies by SIGKILL in the middle, and names that no directory should ever see."""

import io
import os
import signal
import subprocess
import sys
from dataclasses import replace
from random import Random

import pytest
from support.mirrors import check_whole

from lakeops import Lake, Settings
from lakeops.engine.base import LocalEngine
from lakeops.model.errors import NotAllReplicated, NotAMirror, PreconditionFailed
from lakeops.ops.mirror.replicate import MANAGED, replicate
from lakeops.store.base import Listing, Opened
from lakeops.store.layout import CLAIM
from lakeops.store.local import LocalStore
from lakeops.store.s3 import S3Store
from lakeops.testing import FaultyStore


def managed(store):
    return {item.key: store.get(item.key) for prefix in MANAGED for item in store.list(prefix)}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
def test_killed_in_the_middle_and_run_again(tmp_path, seed):
    random = Random(seed)
    source, destination = (LocalStore(tmp_path / name, fsync=False) for name in ("source", "destination"))
    source.put(CLAIM, b"{}")
    for number in range(300):
        source.put(f"data/2026010100/{number:03}", random.randbytes(random.randrange(200_000)))
    command = [sys.executable, "-m", "lakeops", "mirror", "replicate", "--source", source.url]
    command += ["--destination", destination.url]
    enough = random.randrange(1, 200)
    with subprocess.Popen(
        command,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("LAKEOPS_")},
            "LAKEOPS_HOME": str(tmp_path / "home"),
        },
    ) as process:
        while process.poll() is None and sum(1 for _ in destination.list("data/")) < enough:
            pass
        process.send_signal(signal.SIGKILL)
    contents = managed(source)
    arrived = managed(destination)
    assert arrived.items() <= contents.items(), "nothing torn has a name"
    found = replicate(source, destination, LocalEngine())
    assert (found.copied, found.present) == (len(contents) - len(arrived), len(arrived))
    assert managed(destination) == contents


NAMES = [
    *(f"data/{'../' * depth}evil" for depth in range(1, 9)),
    *("data//evil", "data/./evil", "data/x/", "data/.lakeops/tmp/evil", "data/" + "x" * 300, "data/\0"),
]


class Hostile(FaultyStore):
    """A source that lists names which lead elsewhere, and has contents for each."""

    def scan(self, *, under="", skip_special=False, moving=False):
        found = {item.key: item.size_bytes for item in self.inner.list(under)}
        found |= {name: 4 for name in NAMES if name.startswith(under)}
        keys = sorted(found, key=str.encode)
        yield Listing(keys, [found[key] for key in keys], [0] * len(keys), [""] * len(keys))

    def open_checked(self, item):
        return Opened(io.BytesIO(b"evil")) if item.key in NAMES else self.inner.open_checked(item)


def test_hostile_names_lead_nowhere(tmp_path):
    """Whoever may write to the source's bucket must not write to the mirror's machine."""
    source = LocalStore(tmp_path / "source", fsync=False)
    source.put(CLAIM, b"{}")
    source.put("data/2026010100/good", b"1")
    root = tmp_path / "a" / "b" / "c" / "mirror"
    destination = LocalStore(root, fsync=False)
    with pytest.raises(NotAllReplicated) as caught:
        replicate(Hostile(source), destination, LocalEngine())
    assert {key for key, _ in caught.value.failures} == {*NAMES}
    assert {error.kind for _, error in caught.value.failures} == {"invalid_path"}
    places = {path for path in tmp_path.rglob("*") if path.is_file() and tmp_path / "source" not in path.parents}
    assert places == {root / CLAIM, root / "data/2026010100/good"}


def test_a_source_on_another_server(two_buckets, tmp_path):
    source, _ = two_buckets("moto")
    settings = Settings.load(home=tmp_path / "source", fsync=False, s3_endpoint_url=source.settings.endpoint_url)
    with Lake.open(settings=settings) as lake:
        lake.create_repository("flights", source.url).branch("main").put("a", b"1")
    _, mirror = two_buckets("ministack")
    settings = Settings.load(home=tmp_path / "mirror", fsync=False, s3_endpoint_url=mirror.settings.endpoint_url)
    with Lake.open(settings=settings) as lake:
        copied = lake.replicate(source.url, mirror.url, source_endpoint=source.settings.endpoint_url).copied
    assert copied == len([*source.list("data/")]) + len([*source.list("_lakefs/ranges/")]) + len(
        [*source.list("_lakefs/metaranges/")]
    )
    same = S3Store(mirror.bucket, mirror.prefix, replace(mirror.settings))
    assert [item.key for item in same.list("data/")] == [item.key for item in source.list("data/")]


# --- a mirror whose objects lakeops copies itself: no other replication is needed ---
def copied(pair, **options):
    return pair.mirror.replicate(**options).copied


def test_copy_and_sync_brings_the_mirror_up_to_date(pair):
    for number in range(5):
        pair.commit("main", **{f"day{number}": str(number)})
    head = pair.commit("main", day0=None, last="x").id
    pair.mirror.sync()
    assert pair.head() != head
    assert copied(pair) > 6
    pair.mirror.sync()
    assert pair.head() == head
    assert copied(pair) == 0
    pair.store.put("data/2026010100/garbage", b"g")
    assert pair.mirror.replicate(delete=True).deleted == 1
    check_whole(pair)
    assert pair.mirror.source_namespace() == pair.repo.storage_namespace


def test_it_helps_a_replicator_that_is_stuck(pair):
    """Two may copy at the same time: whatever comes twice is the same."""
    random = Random(4)
    pair.replicator.hold("data/")
    for number in range(6):
        head = pair.commit("main", **{f"day{number}": str(number)}).id
        pair.replicator.run(random.randrange(20))
    copied(pair)
    pair.replicator.run(50)
    pair.mirror.sync()
    assert pair.head() == head
    check_whole(pair)


def test_nothing_is_copied_over_a_mirror_that_was_promoted(pair):
    pair.commit("main", a="1")
    copied(pair)
    pair.mirror.sync()
    pair.mirror.promote_writable()
    pair.mirror.branch("main").put("own", b"1")
    with pytest.raises(NotAMirror):
        pair.mirror.replicate(delete=True, force=True)
    with pytest.raises(PreconditionFailed, match="storage namespace of repository 'flights'"):
        pair.there.replicate(pair.repo.storage_namespace, pair.mirror.storage_namespace, delete=True, force=True)
    assert pair.mirror.ref("main").read("own") == b"1"


def test_nothing_is_copied_over_a_repository(pair, tmp_path):
    other = pair.here.create_repository("other")
    with pytest.raises(PreconditionFailed, match="storage namespace of repository 'other'"):
        pair.here.replicate(pair.repo.storage_namespace, other.storage_namespace)
