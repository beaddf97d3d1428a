"""What a pass does: wait for what is missing, show what is complete, follow the source wherever it goes."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from support.errors import has_kind
from support.mirrors import check_whole

from lakeops.model.errors import Corrupted, NotReplicated, PreconditionFailed
from lakeops.store import layout


def test_a_mirror_begins_where_its_source_began(pair):
    assert pair.head() == list(pair.repo.log("main"))[-1].id
    status = pair.mirror.sync()
    assert status["main"].promoted == pair.head() == status["main"].source_head
    assert status.caught_up


def test_a_head_is_shown_once_everything_of_it_is_there(pair):
    made = pair.commit(a="1", b="2")
    first = pair.head()
    waiting = pair.mirror.sync()["main"]
    assert (waiting.promoted, waiting.candidate) == (first, made.id)
    assert (waiting.lag_commits, waiting.missing_objects) == (1, 1)
    pair.replicator.hold("data/")
    waiting = pair.catch_up()["main"]
    assert (waiting.promoted, waiting.missing_objects, waiting.missing_bytes) == (first, 2, 2)
    pair.replicator.release()
    done = pair.catch_up()["main"]
    assert (done.promoted, done.candidate, done.lag_commits, done.lag_seconds) == (made.id, None, 0, 0)
    assert done.missing_objects == done.missing_bytes == 0
    assert pair.mirror.ref("main").read("a") == b"1"
    check_whole(pair)


def test_branches_and_tags_come_move_back_and_go(pair):
    one = pair.commit(a="1")
    pair.repo.create_branch("dev", source="main")
    two = pair.commit("dev", b="2")
    pair.repo.create_tag("v1", "main")
    pair.catch_up()
    assert pair.heads() == {"main": one.id, "dev": two.id, "tag:v1": one.id}
    pair.repo.delete_branch("dev")
    pair.repo.delete_tag("v1")
    pair.repo.create_tag("v1", two.id)
    pair.mirror.sync()
    assert pair.heads() == {"main": one.id, "tag:v1": two.id}


@pytest.mark.parametrize("late", ["metarange", "range"])
def test_older_commits_are_not_promised(pair, late):
    one = pair.commit(a="1")
    [range_key] = [item.key for item in pair.repo._ctx.store.list(layout.RANGES)]
    pair.commit(a="2")
    pair.replicator.hold(f"_lakefs/metaranges/{one.meta_range_file}" if late == "metarange" else range_key)
    pair.catch_up()
    assert pair.mirror.ref("main").read("a") == b"2"
    with pytest.raises(NotReplicated, match="not been replicated yet"):
        pair.mirror.ref("main~1").read("a")
    pair.replicator.release()
    pair.replicator.hold("data/")
    pair.replicator.settle()
    with pytest.raises(PreconditionFailed, check=has_kind("read_only_repository")):
        pair.mirror.branch("main").put("a", b"3")


@pytest.mark.usefixtures("only_leaves")
@pytest.mark.parametrize("damaged", [False, True])
def test_a_head_is_shown_once_the_leaves_of_its_metarange_are_whole(pair, damaged):
    first = pair.commit(a="1")
    pair.catch_up()
    made = pair.commit(b="2")
    (leaf,) = pair.repo._ctx.metarange(made).leaf_files
    key = layout.range_key(leaf)
    pair.replicator.hold(key)
    pair.replicator.settle()
    if damaged:
        pair.store.put(key, pair.replicator.source.get(key)[:-1] + b"?")
    with pytest.raises(Corrupted, match=leaf) if damaged else nullcontext():
        pair.mirror.sync()
    status = pair.mirror.status().branches["main"]
    assert (status.promoted, status.candidate) == (first.id, made.id)
    pair.replicator.release()
    pair.store.put(key, pair.replicator.source.get(key))
    assert pair.catch_up()["main"].promoted == made.id
    check_whole(pair)


def test_a_mirror_shows_the_metadata_of_its_source(pair):
    pair.repo.update_metadata({"owner": "ada", "tier": "1"})
    pair.mirror.sync()
    assert pair.mirror.metadata == {"owner": "ada", "tier": "1"}
    with pytest.raises(PreconditionFailed, check=has_kind("read_only_repository")):
        pair.mirror.update_metadata({"owner": "eve"})
    pair.repo.update_metadata({"tier": None})
    pair.mirror.sync()
    assert pair.mirror.metadata == {"owner": "ada"}
    pair.catch_up()
    pair.mirror.promote_writable()
    own = pair.there.repository(pair.mirror.id)
    assert own.update_metadata({"owner": "grace"}) == {"owner": "grace"}


def test_how_far_it_was_behind_stays_on_record_while_it_waits(pair):
    pair.mirror.sync()
    assert pair.mirror.lags() == [], "a pass that waits for nothing leaves nothing"
    pair.commit(a="1")
    pair.mirror.sync()
    pair.clock.advance(seconds=100)
    pair.mirror.sync()
    assert [one.number("seconds") for one in pair.mirror.lags()] == [100], "of five minutes the largest"
    pair.clock.advance(seconds=900)
    pair.catch_up()
    assert [(one.number("seconds"), one.number("objects")) for one in pair.mirror.lags()] == [(100, 1), (0, 0)]


def test_reserved_keys_arrive_with_the_commits_that_have_them(pair):
    dev = pair.repo.create_branch("dev", "main")
    dev.put("squashed", b"1")
    dev.commit("dev")
    pair.repo.merge("dev", "main", squash=True)
    pair.repo.branch("main").revert("main")
    pair.catch_up()
    said = [commit.metadata for commit in pair.mirror.log("main")]
    assert said == [commit.metadata for commit in pair.repo.log("main")]
    assert {"squash-origin", "revert-origin"} <= {key for each in said for key in each}


def test_it_always_advances_while_the_source_never_stops(pair):
    seen = []
    for number in range(20):
        pair.commit(**{f"f{number}": "x"})
        pair.mirror.sync()
        pair.replicator.settle()
        pair.commit(**{f"g{number}": "y"})  # what replication has not even begun with
        pair.clock.advance(seconds=30)
        pair.mirror.sync()
        seen.append(pair.head())
        check_whole(pair)
    assert len(set(seen)) == 20
