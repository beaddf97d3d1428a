"""Killed at any effect, run again: the mirror shows what is whole, and gets where it would have got."""

from contextlib import contextmanager
from random import Random

import pytest
from support.catalogs import mirror_needs
from support.faulty_catalog import ALL_EFFECTS, FaultyCatalog, count_effects
from support.mirrors import check_whole, open_pair, read_whole

from lakeops import Lake
from lakeops.model.errors import StoreUnavailable
from lakeops.store import layout
from lakeops.testing import Crash, ManualClock

# After one effect is before the next.
WHEN = pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.slow), "after"])


@pytest.fixture
def scene(tmp_path):
    """Makes a mirror that has much to do: a waiting candidate, new and deleted branches, tags, more than one round."""
    count = iter(range(1000))

    @contextmanager
    def make():
        with open_pair(tmp_path / f"scene{next(count)}", clock=ManualClock(), random=Random(5)) as pair:
            pair.commit(a="1", b="1")
            pair.repo.create_branch("old", source="main")
            pair.catch_up()
            pair.commit(a="2")
            pair.mirror.sync()  # waits for it
            pair.commit(c="3")
            pair.repo.create_branch("dev", source="main")
            pair.commit("dev", d="4")
            pair.repo.create_tag("v1", "main~1")
            pair.repo.delete_branch("old")
            pair.replicator.settle()
            pair.faults.revive()
            yield pair

    return make


def seen(pair):
    """The source as the mirror sees it: what is written there counts as an effect too."""
    return Lake(FaultyCatalog(pair.here.catalog, pair.faults), pair.here.settings)  # type: ignore[arg-type]


def wanted(pair):
    return {
        **{ref.id: ref.commit_id for ref in pair.repo.branches()},
        **{f"tag:{ref.id}": ref.commit_id for ref in pair.repo.tags()},
    }


@WHEN
@pytest.mark.parametrize("leaves", [False, True])
def test_a_pass_may_be_killed_at_every_effect(scene, when, request, leaves):
    if leaves:
        request.getfixturevalue("only_leaves")
    with scene() as pair:
        pair.mirror.sync(seen(pair))
        total = count_effects(pair.faults)
        assert total >= 9
        assert pair.heads() == wanted(pair)
    for effect in range(1, total + 1):
        with scene() as pair:
            pair.faults.crash(at=effect, when=when, operations=ALL_EFFECTS)
            with pytest.raises(Crash):
                pair.mirror.sync(seen(pair))
            pair.faults.revive()
            check_whole(pair)
            pair.mirror.sync(seen(pair))
            pair.mirror.sync(seen(pair))
            assert pair.heads() == wanted(pair), effect
            check_whole(pair)
            needed = frozenset(mirror_needs(pair.here.catalog, "flights").popitem()[1])
            assert set(pair.heads().values()) <= needed


@WHEN
def test_a_failover_may_be_killed_at_every_effect(scene, when):
    with scene() as pair:
        pair.mirror.promote_writable(seen(pair))
        total = count_effects(pair.faults)
        assert total >= 2
    for effect in range(1, total + 1):
        with scene() as pair:
            before = pair.heads()
            pair.faults.crash(at=effect, when=when, operations=ALL_EFFECTS)
            with pytest.raises(Crash):
                pair.mirror.promote_writable(seen(pair))
            pair.faults.revive()
            if pair.mirror.configuration.promoted_writable is None:
                assert pair.there.catalog.repositories.get("flights").read_only
                pair.mirror.promote_writable(seen(pair))
            assert pair.heads() == before
            check_whole(pair)
            repo = pair.there.repository("flights")
            repo.branch("main").put("after", b"x")
            repo.branch("main").commit("after")


@pytest.fixture
def taken_over(tmp_path, monkeypatch):
    """Makes a mirror that has taken over. Two of its older commits are not whole: a torn range, an object gone."""
    monkeypatch.setattr("lakeops.ops.mirror.failover.STEP", 2)
    count = iter(range(1000))

    @contextmanager
    def make():
        with open_pair(tmp_path / f"scene{next(count)}", clock=ManualClock(), random=Random(5)) as pair:
            source, held = pair.replicator.source, []
            for number in range(6):
                there = {item.key for item in source.list()}
                pair.commit(a=str(number))
                prefix = {1: layout.RANGES, 4: layout.DATA}.get(number)
                if prefix is not None:
                    held += [item.key for item in source.list(prefix) if item.key not in there]
            pair.replicator.hold(*held)
            pair.replicator.settle()
            pair.store.put(held[0], source.get(held[0])[:-1] + b"?")
            pair.mirror.sync()
            pair.mirror.promote_writable()
            pair.faults.revive()
            yield pair

    return make


def live(pair):
    """The live commits at the mirror, each of which is whole, by their place in history."""
    commits = pair.there.catalog.commits.all("flights").values()
    found = sorted((commit for commit in commits if not commit.expired), key=lambda commit: commit.generation)
    for commit in found:
        read_whole(pair.store, pair.mirror.storage_namespace, commit)
    return [commit.message + str(commit.generation) for commit in found]


PLACES = [("before", 1), ("after", 2), ("refused", 3)]
MORE_PLACES = [(when, first + more) for when, first in PLACES for more in (9, 18, 27)]


@pytest.mark.parametrize(
    ("when", "first"), [*PLACES, *(pytest.param(*one, marks=pytest.mark.slow) for one in MORE_PLACES)]
)
def test_a_look_at_history_may_be_killed_or_refused(taken_over, when, first):
    """At every transaction, and at some calls of a store."""
    with taken_over() as pair:
        pair.mirror.verify_history()
        calls, effects, whole = len(pair.faults.calls), count_effects(pair.faults), live(pair)
        assert (effects, len(whole)) == (3, 5)
    harms = [(at, ("revive_proved",)) for at in range(1, effects + 1)] + [(at, ()) for at in range(first, calls, 36)]
    for at, operations in harms:
        with taken_over() as pair:
            if when == "refused":
                pair.faults.fail(*operations, at=at, error=StoreUnavailable("the store is away"))
            else:
                pair.faults.crash(at=at, when=when, operations=operations)
            with pytest.raises((Crash, StoreUnavailable)):
                pair.mirror.verify_history()
            pair.faults.revive()
            assert {*live(pair)} <= {*whole}
            if at % 2:
                assert pair.mirror.verify_history().unproved == 2
            pair.clock.advance(days=2)
            repo = pair.there.repository("flights")
            repo.gc.sweep(repo.gc.mark().id, force=True)
            assert live(pair) == whole, (at, operations)
