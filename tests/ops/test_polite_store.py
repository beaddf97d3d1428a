"""Every verb on a store that lies politely: the right result or an error of lakeops, and nothing is lost by either.

Afterwards the store is honest: the verb works, what was acknowledged is there, and ``fsck`` finds nothing wrong.
"""

import io
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest
from services.s3 import S3_KINDS
from support.lying_s3 import LIES, STALE, LyingServer
from support.scenes import tree

from lakeops import Lake, Repository, Settings, Split
from lakeops.model.errors import (
    Corrupted,
    LakeopsError,
    NamespaceTaken,
    NoChanges,
    NotAllReplicated,
    ObjectNotFound,
    StoreError,
    StoreUnavailable,
    Transient,
)
from lakeops.ops.fsck.findings import Severity
from lakeops.store.base import StoreSettings
from lakeops.store.s3 import S3Store, direct
from lakeops.store.s3.client import client
from lakeops.testing import ManualClock

Files = dict[str, bytes]

PAGE = 3
"""Keys on a page of a listing."""

RECORDED = {"fewer bytes", "a head of no bytes", "an old ETag"}
"""Lies that only what was recorded can tell, here or at the server. Contents are taken for damaged then."""

QUICK = ["an empty body", "a second page of HTML", "no ETag"]

BIG = bytes(range(256)) * (StoreSettings().part_bytes // 256) + b"end"


class World:
    """A repository, a source of imports and a mirror, all behind the proxy. Each act opens its lakes anew.

    Attributes:
        files: what branch ``main`` shows.
        name: a name for what the verb of now makes.
    """

    def __init__(self, home, liar, bucket):
        self.liar = liar
        self.clock = ManualClock()
        self.files: Files = {}
        self.root = f"s3://{bucket}/{uuid.uuid4().hex}"
        self.name = ""
        self._homes = {name: home / name for name in ("here", "there")}
        with self.lake() as lake:
            self.settings = lake.stores().settings
            repo = lake.create_repository("repo", storage_namespace=f"{self.root}/repo", split=Split(2, 4, 8))
            for text in ("old", "new"):
                self.put(repo, {f"f/{number}": f"{text}{number}".encode() for number in range(7)})
                repo.branch("main").commit(text)
            repo.gc.set_rules({"default_retention_days": 1})
            self.clock.advance(days=8)
            source = lake.stores().at(f"{self.root}/source")
            for number in range(7):
                source.put(f"{number}", f"imported {number}".encode())
            with self.lake("there") as there:
                there.create_mirror("repo", f"{self.root}/mirror", source=lake)

    def lake(self, name="here"):
        """One of the two lakes. It keeps nothing of what it has read."""
        home = self._homes[name]
        settings = Settings.load(home=home, s3_endpoint_url=self.liar.url, disk_cache_mb=0, committer="tester")
        return Lake.open(settings=settings, clock=self.clock)

    def put(self, repo, files):
        with repo.branch("main").batch() as batch:
            for path, data in files.items():
                batch.put(path, data)
        self.files |= files

    def shown(self):
        with self.lake() as lake:
            return tree(lake.repository("repo"), "main")

    def write(self, url, files):
        """Write files as an engine does that has a connection of its own."""
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        store = S3Store(bucket, prefix, replace(self.settings, endpoint_url=self.liar.endpoint))
        for name, data in files.items():
            store.put(name, data)


def _nothing(_world, _repo):
    """Prepare nothing."""


@dataclass(frozen=True)
class Verb:
    """The key of an operation, which may be done again after it failed.

    Attributes:
        act: does it.
        makes: what the branch shows afterwards, given what it shows before.
        prepare: what comes before it, without lies.
    """

    act: Callable[[World, Repository], object]
    makes: Callable[[World, Files], Files] = lambda _world, files: files
    prepare: Callable[[World, Repository], None] = _nothing


def _commit_all(_world, repo):
    with suppress(NoChanges):
        repo.branch("main").commit("before")


def _read(world, repo):
    assert tree(repo, "main") == world.files
    for path, data in world.files.items():
        with repo.ref("main").open(path) as file:
            assert file.read() == data


def _output(world, repo, mode):
    with repo.branch("main").output("f/", mode, idempotency_key=world.name) as url:
        world.write(url, {f"{world.name}-{number}": f"{mode} {number}".encode() for number in range(7)})


def _with_output(world, files, mode):
    kept = {path: data for path, data in files.items() if mode == "append" or not path.startswith("f/")}
    return kept | {f"f/{world.name}-{number}": f"{mode} {number}".encode() for number in range(7)}


def _commit(_world, repo):
    with suppress(NoChanges):
        repo.branch("main").commit("a commit")
    assert not list(repo.branch("main").uncommitted())


def _prepare_merge(world, repo):
    _commit_all(world, repo)
    repo.create_branch(world.name)
    repo.branch(world.name).put("m/source", world.name.encode())
    repo.branch(world.name).delete("p/small")
    repo.branch(world.name).commit("to be merged")
    world.put(repo, {"m/destination": world.name.encode()})
    repo.branch("main").commit("meanwhile")


def _import(world, repo):
    with suppress(NoChanges):
        repo.branch("main").import_objects(f"{world.root}/source", "imported", "import")


def _collect(_world, repo):
    mark = repo.gc.mark()
    assert repo.gc.sweep(mark.id).deleted == mark.rows


def _mirror(world, _repo):
    with world.lake("there") as there:
        mirror = there.mirror("repo")
        mirror.replicate()
        mirror.sync()


def _check(_world, repo):
    found = [finding for finding in repo.fsck(data=True) if finding.severity == Severity.ERROR]
    if found:  # this is how fsck says so
        unread = all("cannot be" in finding.message for finding in found)
        raise (StoreUnavailable if unread else Corrupted)(str(found))


VERBS: dict[str, Verb] = {
    "put": Verb(
        lambda _, repo: repo.branch("main").put("p/small", b"small"), lambda _, old: {**old, "p/small": b"small"}
    ),
    "put big": Verb(
        lambda _, repo: repo.branch("main").put("p/big", io.BytesIO(BIG)), lambda _, old: {**old, "p/big": BIG}
    ),
    "read": Verb(_read),
    "replace": Verb(
        lambda world, repo: _output(world, repo, "replace"), lambda world, old: _with_output(world, old, "replace")
    ),
    "append": Verb(
        lambda world, repo: _output(world, repo, "append"), lambda world, old: _with_output(world, old, "append")
    ),
    "commit": Verb(_commit),
    "merge": Verb(
        lambda world, repo: repo.merge(world.name, "main"),
        lambda world, files: (
            {path: data for path, data in files.items() if path != "p/small"} | {"m/source": world.name.encode()}
        ),
        _prepare_merge,
    ),
    "import": Verb(
        _import,
        lambda _, old: old | {f"imported/{number}": f"imported {number}".encode() for number in range(7)},
        _commit_all,
    ),
    "mirror": Verb(_mirror, prepare=_commit_all),
    "collect": Verb(_collect),
    "fsck": Verb(_check),
}


@pytest.fixture(scope="module", params=S3_KINDS)
def liar(request):
    with LyingServer(request.getfixturevalue("endpoint_of")(request.param)) as server:
        yield server


@pytest.fixture
def world(tmp_path, liar, buckets, monkeypatch):
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.0)
    liar.be_honest()
    made = World(tmp_path, liar, buckets(liar.endpoint))
    events = client(made.settings).meta.events
    events.register("before-parameter-build.s3.ListObjectsV2", _list_by_small_pages)
    yield made
    events.unregister("before-parameter-build.s3.ListObjectsV2", _list_by_small_pages)
    liar.be_honest()


def _list_by_small_pages(params, **_):
    params["MaxKeys"] = PAGE


def _do(world, act):
    with world.lake() as lake:
        act(world, lake.repository("repo"))


def _hold(world, lie):
    told = 0
    for name, verb in VERBS.items():
        world.name = f"{name.replace(' ', '-')}"
        _do(world, verb.prepare)
        wanted, failed = verb.makes(world, world.files), False
        with world.lake() as lake:
            repo = lake.repository("repo")
            world.liar.tell(LIES[lie])
            try:
                verb.act(world, repo)
            except Transient:
                failed = True
            except LakeopsError as error:
                says_why = any(words in error.message for words in ("in byte order", "malformed answers", "try again"))
                known = (
                    isinstance(error, (Corrupted, NamespaceTaken, NotAllReplicated, StoreError))
                    or error.kind == "replica_mismatch"
                )
                known = known if lie in RECORDED else says_why
                assert known, (name, error)
                failed = True
            finally:
                told += len(world.liar.told)
                world.liar.be_honest()
        shown = world.shown()
        assert shown == wanted or (failed and shown == world.files), (name, failed)
        _do(world, verb.act)
        world.files = wanted
        assert world.shown() == wanted, name
    assert told, "the lie was never told"
    _do(world, _check)
    with world.lake("there") as there:
        mirror = there.mirror("repo")
        assert tree(mirror, "main").items() <= world.files.items()


@pytest.mark.parametrize("lie", QUICK)
def test_a_lie_is_no_answer(world, lie):
    _hold(world, lie)


def test_an_empty_listing_that_comes_late_removes_nothing(world):
    """Nothing tells such an answer from the truth. But an output without files is seldom meant."""
    with world.lake() as lake:
        main = lake.repository("repo").branch("main")
        with pytest.raises(ObjectNotFound, match="allow_empty=True"), main.output("f/") as url:
            world.write(url, {"part-0": b"0"})
            world.liar.tell(STALE)
        world.liar.be_honest()
    assert world.shown() == world.files


@pytest.mark.slow
@pytest.mark.parametrize("lie", sorted(LIES))
def test_nor_is_any_other_where_requests_go_directly(world, lie, monkeypatch):
    monkeypatch.setattr(direct, "_is_intercepted", lambda: False)
    monkeypatch.setattr(direct._buckets, "_made", {})
    _hold(world, lie)
