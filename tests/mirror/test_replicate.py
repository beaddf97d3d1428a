"""A mirror whose objects lakeops copies itself: no other replication is needed."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from support.mirrors import Pair, check_whole

from lakeops.model.errors import NotAMirror, PreconditionFailed


def copied(pair: Pair, **options: bool) -> int:
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


def test_nothing_is_copied_over_a_repository(pair, tmp_path: Path):
    other = pair.here.create_repository("other")
    with pytest.raises(PreconditionFailed, match="storage namespace of repository 'other'"):
        pair.here.replicate(pair.repo.storage_namespace, other.storage_namespace)


def test_the_sources_garbage_goes_and_what_the_mirror_shows_stays(pair, clock):
    """The source's deletes are followed, and never take anything that the mirror shows."""
    pair.repo.gc.set_rules({"default_retention_days": 1})
    pair.commit("main", a="1", b="1", c="1")
    shown = pair.commit("main", a="2", b=None).id
    copied(pair)
    pair.mirror.sync()
    assert pair.head() == shown
    clock.advance(days=700)  # files carry the machine's own time
    head = pair.commit("main", a="3", c=None).id
    pair.mirror.sync()  # the source learns what the mirror shows and waits for
    swept = [pair.repo.gc.sweep(pair.repo.gc.mark().id, force=True).deleted]
    assert pair.mirror.replicate(delete=True, force=True).deleted > 0
    assert pair.head() == shown
    check_whole(pair)
    pair.mirror.sync()
    assert pair.head() == head
    clock.advance(days=9)  # past the undo window
    pair.mirror.sync()
    swept.append(pair.repo.gc.sweep(pair.repo.gc.mark().id, force=True).deleted)
    assert min(swept) > 0
    pair.mirror.replicate(delete=True, force=True)
    check_whole(pair)
    source = pair.replicator.source
    for prefix in ("data/", "_lakefs/ranges/", "_lakefs/metaranges/"):
        assert [item.key for item in pair.store.list(prefix)] == [item.key for item in source.list(prefix)]
