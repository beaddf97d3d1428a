"""A branch of a mirror always advances: a candidate that never arrives gives way, and none gives way too soon."""

import pytest
from support.mirrors import check_whole

from lakeops.model.errors import LakeopsError
from lakeops.model.mirrors import Inspection, RefName, Remaining, Wait
from lakeops.model.records import RefKind
from lakeops.ops.mirror.sync import is_due
from lakeops.store import layout

MAIN = RefName(RefKind.BRANCH, "main")
STEP = 300
"""Seconds between two passes."""

STALL_TIMEOUT = 3 * STEP


def lost_object(pair, path="a"):
    """Commit an object that replication loses; the rest of the commit arrives. Returns its address."""
    pair.commit_paths("main", {path: "lost"})
    address = pair.repo.ref("main").stat(path).physical_address
    key = layout.relative(pair.repo.storage_namespace, address)
    pair.replicator.hold(key)
    pair.replicator.settle()
    return key


def test_a_candidate_whose_object_never_comes_gives_way_to_a_complete_head(pair):
    pair.mirror.set_stall_timeout(STALL_TIMEOUT)
    key = lost_object(pair)
    begun = pair.clock.seconds
    lost = pair.mirror.sync()["main"].candidate
    for _ in range(3):
        newest = pair.commit_paths("main", {"a": f"{pair.clock.seconds}"})
        status = pair.catch_up()["main"]
        assert (status.candidate, status.stalled) == (lost, False), "it may still come"
        pair.clock.advance(seconds=STEP)
    status = pair.mirror.status()["main"]
    assert status.stalled
    told = status.to_json()
    assert (told["waiting_since"], told["last_arrival"]) == (begun, begun)
    assert told["missing"] == [{"path": "a", "physical_address": key, "size_bytes": 4}]
    status = pair.mirror.sync()["main"]
    assert (status.promoted, status.candidate, status.stalled) == (newest.id, None, False)
    check_whole(pair)


def test_discovering_alone_lets_it_give_way(pair):
    """A schedule that waits for what ``discover`` names must not wait for what never comes."""
    pair.mirror.set_stall_timeout(STALL_TIMEOUT)
    lost_object(pair)
    pair.mirror.sync()
    newest = pair.commit_paths("main", {"a": "new"})
    pair.replicator.settle()
    pair.clock.advance(seconds=STALL_TIMEOUT)
    assert pair.mirror.discover()["main"].candidate == newest.id
    assert pair.mirror.arrived(MAIN) == newest.id


def test_a_candidate_stays_as_long_as_something_of_it_arrives(pair):
    pair.mirror.set_stall_timeout(STALL_TIMEOUT)
    made = pair.commit_paths("main", {f"p/{number}": str(number) for number in range(12)})
    pair.replicator.hold(layout.DATA)
    pair.catch_up()
    for number in range(12):
        pair.commit_paths("main", {"other": str(number)})
        pair.clock.advance(seconds=STALL_TIMEOUT - 1)
        assert pair.mirror.sync()["main"].candidate == made.id
        address = pair.repo.ref(made.id).stat(f"p/{number}").physical_address
        pair.replicator.deliver(layout.relative(pair.repo.storage_namespace, address))
    assert pair.mirror.sync()["main"].promoted == made.id


def test_a_person_may_skip_it(pair):
    lost_object(pair)
    pair.mirror.sync()
    newest = pair.commit_paths("main", {"a": "new"})
    pair.replicator.settle()
    status = pair.mirror.skip("main")
    assert (status.candidate, status.promoted) == (newest.id, pair.head())
    assert pair.mirror.sync()["main"].promoted == newest.id
    assert pair.mirror.skip("main").candidate is None


def test_nothing_that_is_torn_holds_a_branch_up_for_ever(pair):
    pair.mirror.set_stall_timeout(STALL_TIMEOUT)
    pair.commit_paths("main", {"a": "torn"})
    pair.replicator.settle()
    [item] = pair.store.list(layout.RANGES)
    pair.store.put(item.key, bytes(item.size_bytes))
    with pytest.raises(LakeopsError):
        pair.mirror.sync()
    newest = pair.commit_paths("main", {"a": "whole"})
    pair.replicator.settle()
    pair.clock.advance(seconds=STALL_TIMEOUT)
    assert pair.mirror.sync()["main"].promoted == newest.id


@pytest.mark.parametrize(
    ("lag", "lost"),
    [
        pytest.param(12, 0, id="late", marks=pytest.mark.slow),
        pytest.param(0, 2, id="lossy", marks=pytest.mark.slow),
        pytest.param(7, 2, id="late and lossy"),
    ],
)
def test_it_always_advances(pair, lag, lost):
    """Every object comes late, later than the mirror is patient; of every second commit one never comes at all.

    And the source commits before every pass, so the newest head is never complete where replication is late.
    """
    pair.mirror.set_stall_timeout(STALL_TIMEOUT)
    due: dict[str, int] = {}
    shown = [pair.head()]
    for step in range(60):
        pair.commit_paths("main", {f"p/{step % 4}": str(step), "q": str(step)})
        if lost and step % lost == 0:
            address = pair.repo.ref("main").stat("q").physical_address
            due[layout.relative(pair.repo.storage_namespace, address)] = 10_000
        for item in pair.replicator.source.list():
            due.setdefault(item.key, step + lag)
        pair.replicator.deliver(*(key for key, when in due.items() if when <= step))
        pair.clock.advance(seconds=STEP)
        pair.mirror.sync()
        if pair.head() != shown[-1]:
            shown.append(pair.head())
            check_whole(pair)
    assert len(shown) > 3
    assert pair.repo.ref("main~40").commit.generation <= pair.mirror.branch("main").head.generation


def test_each_exchange_doubles_the_time_until_the_next():
    from lakeops.model.mirrors import MirrorRecord, parse_source

    mirror = MirrorRecord("flights", parse_source("/x", "flights"), "r", stall_timeout=10)
    more, less = Remaining(ranges=1), Remaining(objects=3)
    for given in range(6):
        wait = Wait(0, 100, best=Remaining(objects=4), fallbacks=given)
        assert not is_due(mirror, wait, 100 + (10 << given) - 1, less)
        assert is_due(mirror, wait, 100 + (10 << given), less)
        assert not is_due(mirror, wait, 100 + (20 << given) - 1, more)
        assert is_due(mirror, wait, 100 + (20 << given), more)


def test_what_arrives_makes_less_remain():
    """A metarange that comes shows ranges that are missing, a range that comes shows objects: it is progress."""
    looks = [Remaining(1), Remaining(0, 3), Remaining(0, 2, 50), Remaining(0, 2, 49), Remaining(0, 0, 7), Remaining()]
    wait = Wait(0, 0)
    for now, remaining in enumerate(looks, 1):
        wait = wait.seen(now, Inspection(remaining=remaining))
        assert wait.progressed == (now if now > 1 else 0)
    later = wait.seen(99, Inspection(remaining=Remaining(0, 0, 1)))
    assert later.progressed == len(looks), "what goes again is no progress"
    assert Wait.from_json(wait.to_json()) == wait
