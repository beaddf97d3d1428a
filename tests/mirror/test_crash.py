"""Killed at any effect, run again: the mirror shows what is whole, and gets where it would have got."""

from __future__ import annotations

from random import Random

import pytest
from support.faulty_catalog import ALL_EFFECTS, FaultyCatalog, count_effects
from support.mirrors import Pair, check_whole, open_pair

from lakeops import Lake
from lakeops.testing import Crash, ManualClock


@pytest.fixture
def scene(tmp_path):
    """Makes a mirror that has much to do: a waiting candidate, new and deleted branches, tags, more than one round."""
    count = iter(range(1000))

    def make() -> tuple[object, Pair]:
        place = tmp_path / f"scene{next(count)}"
        opened = open_pair(place, clock=ManualClock(), random=Random(5))
        pair = opened.__enter__()
        pair.commit(a="1", b="1")
        pair.repo.create_branch("old", source="main")
        pair.replicator.settle()
        pair.mirror.sync()
        pair.commit(a="2")
        pair.mirror.sync()  # waits for it
        pair.commit(c="3")
        pair.repo.create_branch("dev", source="main")
        pair.commit("dev", d="4")
        pair.repo.create_tag("v1", "main~1")
        pair.repo.delete_branch("old")
        pair.replicator.settle()
        pair.faults.revive()
        return opened, pair

    return make


def seen(pair: Pair) -> Lake:
    """The source as the mirror sees it: what is written there counts as an effect too."""
    return Lake(FaultyCatalog(pair.here.catalog, pair.faults), pair.here.settings)  # type: ignore[arg-type]


def wanted(pair: Pair) -> dict[str, str]:
    return {
        **{ref.id: ref.commit_id for ref in pair.repo.branches()},
        **{f"tag:{ref.id}": ref.commit_id for ref in pair.repo.tags()},
    }


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_pass_may_be_killed_at_every_effect(scene, when):
    opened, pair = scene()
    pair.mirror.sync(seen(pair))
    total = count_effects(pair.faults)
    assert total >= 9
    assert pair.heads() == wanted(pair)
    opened.__exit__(None, None, None)
    for effect in range(1, total + 1):
        opened, pair = scene()
        pair.faults.crash(at=effect, when=when, operations=ALL_EFFECTS)
        with pytest.raises(Crash):
            pair.mirror.sync(seen(pair))
        pair.faults.revive()
        check_whole(pair)
        pair.mirror.sync(seen(pair))
        pair.mirror.sync(seen(pair))
        assert pair.heads() == wanted(pair), effect
        check_whole(pair)
        needed = frozenset(pair.here.catalog.history("flights").mirrors.popitem()[1])
        assert set(pair.heads().values()) <= needed
        opened.__exit__(None, None, None)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_failover_may_be_killed_at_every_effect(scene, when):
    opened, pair = scene()
    pair.mirror.promote_writable(seen(pair))
    total = count_effects(pair.faults)
    assert total >= 2
    opened.__exit__(None, None, None)
    for effect in range(1, total + 1):
        opened, pair = scene()
        before = pair.heads()
        pair.faults.crash(at=effect, when=when, operations=ALL_EFFECTS)
        with pytest.raises(Crash):
            pair.mirror.promote_writable(seen(pair))
        pair.faults.revive()
        if pair.mirror.configuration.promoted_writable is None:
            assert pair.there.catalog.repository("flights").read_only
            pair.mirror.promote_writable(seen(pair))
        assert pair.heads() == before
        check_whole(pair)
        repo = pair.there.repository("flights")
        repo.branch("main").put("after", b"x")
        repo.branch("main").commit("after")
        opened.__exit__(None, None, None)
