"""Tests of a pass: it waits for what is missing, shows what is complete, and follows the source wherever it goes."""

from contextlib import nullcontext
from random import Random

import pytest
from support.catalogs import expire_commits, mirror_needs
from support.errors import has_kind, raising
from support.faulty_catalog import FaultyCatalog
from support.mirrors import check_whole, open_pair, replicator

from lakeops import Lake
from lakeops.fs import LakeopsFileSystem
from lakeops.model.errors import Corrupted, FileMissing
from lakeops.model.mirrors import RefName
from lakeops.model.records import RefKind
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
    with pytest.raises(FileMissing, match="not been replicated yet", check=has_kind("not_replicated")):
        pair.mirror.ref("main~1").read("a")
    fs = LakeopsFileSystem(lake=pair.there)
    for look in (fs.exists, fs.isfile, fs.find, fs.glob, fs.open):
        with pytest.raises(FileMissing):
            look("flights/main~1/a")
    pair.replicator.release()
    pair.replicator.hold("data/")
    pair.replicator.settle()
    with raising("read_only_repository"):
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
    with raising("read_only_repository"):
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


# --- garbage collection at a source and what its mirrors show: it stays whole, and no longer than was promised ---
def collected(pair):
    """The source collects, and its deletes are replicated; how many objects were deleted there."""
    deleted = pair.repo.gc.sweep(pair.repo.gc.mark().id, force=True).deleted
    pair.mirror.replicate(delete=True, force=True)
    return deleted


@pytest.mark.parametrize(("lag", "late"), [(20, 19), (8, 7.5), (0, 6.9)])
def test_old_heads_of_deleted_refs_stay_whole_until_the_lag_is_over(tmp_path, clock, lag, late):
    with open_pair(tmp_path, clock=clock, random=Random(1), reports=False) as pair:
        rules = {"default_retention_days": 1, "branches": [], "mirror_lag_days": lag}
        pair.repo.gc.set_rules(rules)
        pair.commit(a="garbage later")
        pair.commit(a="2")
        for name in ("dev", "old"):
            pair.repo.create_branch(name, source="main")
            pair.commit(name, **{name: f"only on {name}"})
        pair.repo.create_tag("v1", "old")
        pair.repo.delete_branch("old")
        pair.mirror.replicate()
        pair.mirror.sync()
        shown = pair.heads()
        assert {"dev", "tag:v1"} <= shown.keys()
        clock.advance(days=60)  # both heads are old, by any window
        pair.repo.delete_branch("dev")
        pair.repo.delete_tag("v1")
        clock.advance(days=late)
        assert collected(pair) > 0
        assert pair.heads() == shown
        check_whole(pair)
        clock.advance(days=2)
        assert collected(pair) > 0, "kept no longer than promised"
        pair.mirror.sync()
        assert set(pair.heads()) == {"main"}
        check_whole(pair)


def test_a_dead_mirror_is_named_with_its_age_and_what_only_it_keeps(pair, clock):
    pair.repo.gc.set_rules({"default_retention_days": 1, "branches": []})
    living = pair.there.create_mirror("living", source=pair.here, source_repository="flights")
    pair.mirrored(a="1")
    dead = pair.mirror.configuration.registration
    clock.advance(days=1)
    pair.commit(a="2")
    clock.advance(days=40)
    living.sync()
    report = pair.repo.gc.mark(dry_run=True).report
    first, second = report["mirrors"]
    assert (first["id"], first["silent_days"], first["only_for_it"]) == (dead, 41, 1)
    assert (second["silent_days"], second["only_for_it"]) == (0, 0)
    [note] = report["notes"]
    assert f"{dead} has not reported for 41 days" in note
    assert "mirror drop" in note
    mark = pair.repo.gc.mark()
    assert pair.repo.gc.report(mark.id)["mirrors"] == report["mirrors"]
    pair.mirror.sync()
    report = pair.repo.gc.mark(dry_run=True).report
    assert report["notes"] == []
    assert [row["silent_days"] for row in report["mirrors"]] == [0, 0]


def test_the_sources_garbage_goes_and_what_the_mirror_shows_stays(pair, clock):
    """The source's deletes are followed, and never take anything that the mirror shows."""
    pair.repo.gc.set_rules({"default_retention_days": 1})
    pair.commit("main", a="1", b="1", c="1")
    shown = pair.commit("main", a="2", b=None).id
    pair.mirror.replicate()
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


# --- passes that overlap, come back late, or meet the source's garbage collection: each order on its own ---

MAIN = RefName(RefKind.BRANCH, "main")


def watched(pair):
    """The source as a pass sees it: calls of its catalog may be hooked."""
    return Lake(FaultyCatalog(pair.here.catalog, pair.faults), pair.here.settings)  # type: ignore[arg-type]


def expire_all(pair):
    """Expire all that the source may: what no ref and no mirror needs."""
    return expire_commits(pair.here.catalog, "flights")


def test_the_source_keeps_what_the_mirror_shows_and_waits_for(pair):
    one = pair.mirrored(a="1")
    two = pair.commit(a="2")
    pair.mirror.sync()
    three = pair.commit(a="3")
    pair.commit(a="4")
    expired = expire_all(pair)
    assert three.id in expired
    assert {one.id, two.id}.isdisjoint(expired)


def test_a_candidate_that_expired_is_given_up_for_the_newest_head(pair):
    first = pair.head()
    pair.commit(a="1")
    pair.mirror.sync()
    registration = pair.mirror.configuration.registration
    pair.here.catalog.mirrors.drop_mirror("flights", registration)  # as a restored database would
    new = pair.commit(a="2")
    expire_all(pair)
    status = pair.mirror.sync()["main"]
    assert (status.promoted, status.candidate) == (first, new.id)
    assert pair.catch_up()["main"].promoted == new.id


def test_a_mirror_that_only_reads_does_not_show_what_expired_while_it_looked(pair):
    mirror = pair.there.create_mirror(
        "other", pair.mirror.storage_namespace + "-2", source=pair.here, source_repository="flights", reports=False
    )
    other = replicator(pair.repo, mirror, Random(1))
    pair.commit(a="1")
    other.settle()
    pair.faults.hook("head", action=lambda _: (pair.commit(a="2"), expire_all(pair)))
    mirror.sync()
    pair.faults.revive()
    assert mirror.branch("main").commit_id == list(pair.repo.log("main"))[-1].id
    other.settle()
    assert mirror.sync().caught_up
    assert mirror_needs(pair.here.catalog, "flights").keys() == {pair.mirror.configuration.registration}


def test_a_report_that_comes_late_does_not_take_back_what_a_later_pass_relies_on(pair):
    """A pass is held up just before its report; another one goes by and shows something newer."""
    pair.arrived(a="1")

    def overtake(_call):
        pair.mirror.sync(pair.here)
        pair.arrived(a="2")
        pair.mirror.sync(pair.here)

    pair.faults.hook("report_mirror", action=overtake)
    pair.mirror.sync(watched(pair))
    pair.faults.revive()
    head = pair.repo.branch("main").commit_id
    assert pair.head() == head
    [needed] = mirror_needs(pair.here.catalog, "flights").values()
    assert head in needed
    pair.commit(a="3")
    assert head not in expire_all(pair)
    check_whole(pair)


def test_heads_that_were_read_before_another_pass_do_not_take_the_mirror_back(pair):
    one = pair.arrived(a="1")

    def overtake(_call):
        pair.arrived(a="2")
        pair.mirror.sync(pair.here)

    pair.faults.hook("observe_source", action=overtake)
    pair.mirror.sync(watched(pair))
    pair.faults.revive()
    assert pair.head() == pair.repo.branch("main").commit_id != one.id
    assert one.id not in [move.new for move in pair.mirror.reflog("main")]
