"""The copier: whatever it is killed at, whatever fails, run again it ends with what the source has."""

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.budget import examples
from support.mirrors import open_pair

from lakeops.engine.base import LocalEngine
from lakeops.model.errors import (
    InvalidInput,
    NamespaceTaken,
    NotAllReplicated,
    NotFound,
    PreconditionFailed,
    StoreError,
    StoreUnavailable,
)
from lakeops.ops import deletion_limit
from lakeops.ops.mirror import copying
from lakeops.ops.mirror.replicate import MANAGED, Replicated, replicate
from lakeops.store.layout import CLAIM
from lakeops.store.local import LocalStore
from lakeops.testing import Crash, Faults, FaultyStore

ENGINE = LocalEngine(2)
CONTENTS = {
    CLAIM: b'{"format": 1, "repository": "flights"}',
    **{f"data/2026010{number % 3}/{number}": f"{number}".encode() * number for number in range(8)},
    **{f"_lakefs/ranges/r{number}.parquet": b"range" * number for number in range(3)},
    "_lakefs/metaranges/m0.parquet": b"metarange",
}
UNMANAGED = {"_lakefs/retention/gc/1/mark.parquet": b"m", "_lakefs/tasks/1/0.arrow": b"t", "elsewhere/x": b"e"}


def fill(store, contents):
    for key, data in contents.items():
        store.put(key, data)


def held(store):
    return {item.key: store.get(item.key) for item in store.list()}


def namespaces(root):
    source, destination = (LocalStore(root / name, fsync=False) for name in ("source", "destination"))
    fill(source, CONTENTS)
    return source, destination


@pytest.fixture
def stores(tmp_path):
    return namespaces(tmp_path)


@pytest.fixture
def pair(tmp_path, clock):
    with open_pair(tmp_path, clock=clock, random=Random(1)) as opened:
        yield opened


@pytest.fixture
def replicated(stores):
    replicate(*stores, ENGINE)
    return stores


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch):
    """Several tasks even for a few objects."""
    monkeypatch.setattr(copying, "MOST_OBJECTS", 3)


def test_what_is_managed_arrives_and_nothing_else(stores):
    source, destination = stores
    fill(source, UNMANAGED)
    found = replicate(source, destination, ENGINE)
    assert held(destination) == CONTENTS
    managed = {key: data for key, data in CONTENTS.items() if key.startswith(MANAGED)}
    assert found == Replicated(copied=len(managed), copied_bytes=sum(map(len, managed.values())))


def test_the_second_run_copies_nothing(stores):
    source, destination = stores
    faults = Faults()
    replicate(source, destination, ENGINE)
    again = replicate(faults.around(source), faults.around(destination), ENGINE)
    assert again == Replicated(present=12)
    assert faults.effects == 0
    assert dict(faults.counts) == {"list": 2, "scan": 6, "get_range": 2}


def test_only_what_is_missing_is_read(replicated):
    source, destination = replicated
    fill(source, {"data/20260103/new": b"new", "_lakefs/metaranges/m1.parquet": b"new"})
    faults = Faults()
    found = replicate(faults.around(source), faults.around(destination), ENGINE)
    assert (found.copied, found.present) == (2, 12)
    assert faults.keys_opened("data/") == {"data/20260103/new"}
    assert faults.counts["put"] == 2
    assert faults.counts["checksum"] == 2


def test_an_object_with_another_size_is_copied_again(replicated):
    source, destination = replicated
    destination.put("data/20260101/4", b"torn!")
    destination.put("data/20260101/1", b"x")
    found = replicate(source, destination, ENGINE)
    assert (found.copied, found.replaced) == (1, 1)
    assert destination.get("data/20260101/4") == CONTENTS["data/20260101/4"]
    assert destination.get("data/20260101/1") == b"x", "what has the right size is not looked at"


def test_a_file_that_an_engine_wrote_anew_is_copied_again(pair):
    """A run copies a file of an open output, and the engine's retry gives the file other contents of the same size."""
    main = pair.repo.branch("main")
    with main.output("day=1/") as url:
        file = Path(urlsplit(url).path) / "part-0"
        for contents in (b"first", b"retry"):
            file.write_bytes(contents)
            pair.mirror.replicate()
    os.utime(file, (0, 0))
    main.commit("a day")
    assert pair.mirror.replicate().replaced == 0, "the copy is newer by now"
    pair.mirror.sync()
    assert pair.mirror.ref("main").read("day=1/part-0") == b"retry"


def test_progress_is_told(stores):
    told = []
    replicate(*stores, ENGINE, progress=lambda *told_now: told.append(told_now))
    assert told[-1] == ("Copying", 12, 12)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)


# --- deletes ---
def test_deletes_are_followed_when_asked(replicated):
    source, destination = replicated
    fill(destination, UNMANAGED)
    gone = ["data/20260100/0", "_lakefs/ranges/r1.parquet"]
    source.delete(gone)
    assert replicate(source, destination, ENGINE) == Replicated(present=10, extra=2)
    assert replicate(source, destination, ENGINE, delete=True) == Replicated(present=10, extra=2, deleted=2)
    left = {key: data for key, data in CONTENTS.items() if key not in gone}
    assert held(destination) == {**left, **UNMANAGED}


def test_what_names_others_is_deleted_first(stores, monkeypatch):
    monkeypatch.setattr(copying, "_BATCH", 1)
    source, destination = stores
    faults = Faults()
    replicate(source, destination, ENGINE)
    source.delete(gone := ["data/20260100/0", "_lakefs/ranges/r1.parquet", "_lakefs/metaranges/m0.parquet"])
    replicate(source, faults.around(destination), LocalEngine(1), delete=True)
    assert [call.key for call in faults.calls if call.operation == "delete"] == gone[::-1]


def test_an_object_that_came_meanwhile_is_not_deleted(replicated):
    """Another replicator was quicker: it was listed at the destination, and not at the source a moment before."""
    source, destination = replicated
    destination.put("data/20260102/zz", b"new")
    faults = Faults()
    faults.hook("head", action=lambda _: source.put("data/20260102/zz", b"new"))
    found = replicate(faults.around(source), destination, ENGINE, delete=True)
    assert (found.extra, found.deleted) == (1, 0)
    assert destination.get("data/20260102/zz") == b"new"


def test_a_large_share_is_deleted_only_by_force(replicated, monkeypatch):
    monkeypatch.setattr(deletion_limit, "FLOOR", 3)
    source, destination = replicated
    source.delete(key for key in CONTENTS if key.startswith("data/"))
    with pytest.raises(PreconditionFailed, match="8 of the 12 objects"):
        replicate(source, destination, ENGINE, delete=True)
    assert held(destination) == CONTENTS
    assert replicate(source, destination, ENGINE, delete=True, force=True).deleted == 8
    assert held(destination) == held(source)


def test_nothing_is_deleted_when_something_could_not_be_copied(replicated):
    source, destination = replicated
    source.delete(["data/20260100/0"])
    source.put("data/20260109/new", b"new")
    faults = Faults()
    faults.fail("put", error=StoreError("no space left"))
    with pytest.raises(NotAllReplicated):
        replicate(source, faults.around(destination), ENGINE, delete=True)
    assert destination.get("data/20260100/0") == b""


def test_a_refused_delete_is_told(replicated):
    source, destination = replicated
    (destination.root / "data/20260109/not-a-file").mkdir(parents=True)
    (destination.root / "data/20260109/x").write_bytes(b"")
    source.delete(["data/20260100/0"])
    faults = Faults()
    faults.fail("delete", error=StoreError("denied"))
    with pytest.raises(StoreError, match="denied"):
        replicate(source, faults.around(destination), ENGINE, delete=True)
    assert replicate(source, destination, ENGINE, delete=True).deleted == 2


# --- places ---
def test_a_source_that_is_no_namespace(stores, tmp_path):
    """A directory that is not mounted at the moment must not empty the mirror."""
    _, destination = stores
    fill(destination, CONTENTS)
    with pytest.raises(NotFound, match="no repository's storage namespace"):
        replicate(LocalStore(tmp_path / "nothing", fsync=False), destination, ENGINE, delete=True, force=True)
    assert held(destination) == CONTENTS


def test_a_source_that_goes_away_during_a_run(replicated, tmp_path):
    source, destination = replicated
    faults = Faults()
    faults.hook("scan", prefix="data/", action=lambda _: source.root.rename(tmp_path / "away"))
    with pytest.raises(NotFound, match=CLAIM):
        replicate(faults.around(source), destination, ENGINE, delete=True, force=True)
    assert held(destination) == CONTENTS


@pytest.mark.parametrize("place", ["source", "source/data", "."])
def test_overlapping_places(stores, tmp_path, place):
    with pytest.raises(InvalidInput, match="overlap"):
        replicate(stores[0], LocalStore(tmp_path / place, fsync=False), ENGINE)


@pytest.mark.parametrize("claim", [b'{"format": 1, "repository": "weather"}', b"not json"])
def test_the_destination_of_another_repository(stores, claim):
    source, destination = stores
    destination.put(CLAIM, claim)
    with pytest.raises(NamespaceTaken):
        replicate(source, destination, ENGINE)
    assert held(destination) == {CLAIM: claim}


def test_a_claim_that_is_spelled_in_another_way_is_the_same(stores):
    source, destination = stores
    destination.put(CLAIM, b'{"repository":"flights","format":1}')
    assert replicate(source, destination, ENGINE).copied == 12


# --- failures ---
def test_an_object_that_goes_meanwhile_is_passed_over(stores):
    source, destination = stores
    faults = Faults()
    faults.hook("open_checked", action=lambda call: source.delete([call.key]))
    found = replicate(faults.around(source), destination, ENGINE)
    assert (found.copied, found.vanished) == (11, 1)
    assert held(destination) == held(source)


def test_an_object_that_cannot_be_read_holds_up_no_other(stores):
    source, destination = stores
    faults = Faults()
    faults.fail("open_checked", at=None, prefix="data/20260101/4", error=StoreError("archived"))
    with pytest.raises(NotAllReplicated) as caught:
        replicate(faults.around(source), destination, ENGINE)
    assert caught.value.done == 11
    assert [(key, error.message) for key, error in caught.value.failures] == [("data/20260101/4", "archived")]
    assert "1 object was not copied" in caught.value.message
    assert {*CONTENTS} - {*held(destination)} == {"data/20260101/4"}
    assert replicate(source, destination, ENGINE) == Replicated(copied=1, copied_bytes=4, present=11)


def test_a_destination_that_refuses_is_not_asked_for_ever(stores):
    source, destination = stores
    fill(source, {f"data/20260105/{number:03}": b"x" for number in range(100)})
    faults = Faults()
    faults.fail("put", at=None, prefix="data/", error=StoreError("access denied"))
    with pytest.raises(NotAllReplicated, match="access denied") as caught:
        replicate(source, faults.around(destination), ENGINE)
    assert "the rest was not tried" in caught.value.message
    assert faults.counts["put"] < 60
    assert len(caught.value.failures) >= copying.GIVE_UP


def test_odd_objects_are_no_refusals(stores):
    """However many there are of them: whatever can be copied is."""
    source, destination = stores
    fill(source, {f"data/20260105/{number:03}": b"x" for number in range(100)})
    for number in range(40):
        (destination.root / f"data/20260105/{number:03}/in the way").mkdir(parents=True)
    with pytest.raises(NotAllReplicated, match="40 objects were not copied, for instance") as caught:
        replicate(source, destination, ENGINE)
    assert caught.value.done == 12 + 60
    assert {error.kind for _, error in caught.value.failures} == {"invalid_path"}


def test_a_file_that_a_program_still_writes_is_taken_later(stores):
    source, destination = stores
    faults = Faults()
    faults.hook("open_checked", prefix="data/20260101/4", action=lambda _: source.put("data/20260101/4", b"444444"))
    with pytest.raises(NotAllReplicated, match="6 bytes instead of 4") as caught:
        replicate(faults.around(source), destination, ENGINE)
    assert caught.value.failures[0][1].kind == "transient"
    replicate(source, destination, ENGINE)
    assert destination.get("data/20260101/4") == b"444444"


def test_what_failed_is_told_to_programs(stores):
    source, destination = stores
    faults = Faults()
    faults.fail("put", at=2, error=StoreUnavailable("no answer"))
    with pytest.raises(NotAllReplicated) as caught:
        replicate(source, faults.around(destination), ENGINE)
    document = caught.value.to_json()
    assert document["kind"] == "not_all_replicated"
    assert [failure["kind"] for failure in document["failures"]] == ["store_unavailable"]


class Short(FaultyStore):
    """A source whose listing promises more than there is."""

    def scan(self, **options):
        for listing in self.inner.scan(**options):
            sizes = [
                9 if key == "data/20260101/4" else size for key, size in zip(listing.keys, listing.sizes, strict=True)
            ]
            yield replace(listing, sizes=sizes)


def test_what_comes_short_gets_no_name(stores):
    source, destination = stores
    with pytest.raises(NotAllReplicated, match="gave 4 bytes instead of 9"):
        replicate(Short(source), destination, ENGINE)
    assert "data/20260101/4" not in held(destination)


class Lossy(FaultyStore):
    """A destination that keeps something else than it was given."""

    def put(self, key, data, *, if_absent=False, content_type=""):
        done = self.inner.put(key, data, if_absent=if_absent, content_type=content_type)
        if key == "data/20260101/4":
            self.inner.put(key, b"4x44")
        return done


def test_what_was_not_kept_as_written_is_removed_again(stores):
    source, destination = stores
    with pytest.raises(NotAllReplicated, match="not what was written") as caught:
        replicate(source, Lossy(destination), ENGINE)
    assert caught.value.failures[0][1].kind == "corrupted"
    assert "data/20260101/4" not in held(destination)


def effects_of_a_run():
    with tempfile.TemporaryDirectory() as root:
        source, destination = namespaces(Path(root))
        spoil(source, destination)
        faults = Faults()
        replicate(source, faults.around(destination), ENGINE, delete=True)
        return faults.effects


def spoil(source, destination):
    """A destination with everything that a run has to do something about."""
    fill(destination, {"data/20260100/0": b"wrong size", "data/20260100/3": b"333", "data/old": b"o", **UNMANAGED})
    destination.put("_lakefs/ranges/old.parquet", b"o")


EFFECTS = effects_of_a_run()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("effect", range(1, EFFECTS + 1))
def test_killed_at_any_effect_it_goes_on(tmp_path, effect, when):
    source, destination = namespaces(tmp_path)
    spoil(source, destination)
    faults = Faults()
    faults.crash(at=effect, when=when, operations=("put", "delete", "copy_from"))
    with pytest.raises(Crash):
        replicate(source, faults.around(destination), ENGINE, delete=True)
    for key, data in held(destination).items():
        assert data in {CONTENTS.get(key), UNMANAGED.get(key), b"wrong size", b"o"}, "nothing torn has a name"
    replicate(source, destination, ENGINE, delete=True)
    assert held(destination) == {**CONTENTS, **UNMANAGED}


@given(random=st.randoms(use_true_random=False), kills=st.lists(st.integers(1, 30), max_size=6))
@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_interleaving_of_kills_and_changes_ends_equal(random, kills):
    """The source goes on writing and deleting while runs are killed at random effects."""
    with tempfile.TemporaryDirectory() as root:
        source, destination = namespaces(Path(root))
        for at, kill in enumerate(kills):
            faults = Faults()
            faults.crash(at=kill, when=random.choice(["before", "after"]))
            faults.hook("list", "scan", at=random.randrange(1, 8), action=lambda _, at=at: change(source, random, at))
            try:
                replicate(
                    faults.around(source), faults.around(destination), LocalEngine(1), delete=random.random() < 0.5
                )
            except (Crash, NotAllReplicated):
                pass
            assert all(data == CONTENTS.get(key, key.encode()) for key, data in held(destination).items())
        replicate(source, destination, ENGINE, delete=True)
        assert held(destination) == held(source)


def change(source, random, at):
    for number in range(random.randrange(4)):
        key = f"data/2026020{random.randrange(3)}/{at}-{number}"
        source.put(key, key.encode())
    there = [item.key for item in source.list() if item.key != CLAIM]
    source.delete(random.sample(there, min(len(there), random.randrange(3))))
