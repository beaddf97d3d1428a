"""Opening a mirror for writing: at its last whole heads, with nothing in it that could pass for whole and is not."""

from random import Random

import pytest
from support.catalogs import mirror_needs
from support.errors import raising
from support.mirrors import check_whole, open_lake, read_whole, replicator
from support.scenes import fill_paths

from lakeops.model.clock import Ids
from lakeops.model.errors import CommitExpired, MirrorOvertaken, NotAMirror
from lakeops.ops.mirror.failover import VerifiedHistory
from lakeops.store import layout
from lakeops.store.local import LocalStore


def test_a_mirror_becomes_a_repository_like_any_other(pair):
    one = pair.mirrored(a="1")
    two = pair.commit(a="2", b="2")
    pair.mirror.sync()
    [lost] = pair.mirror.loss().refs
    assert (lost.id, lost.source_head, lost.promoted, lost.commits) == ("main", two.id, one.id, 1)
    assert pair.mirror.loss().asked
    done = pair.mirror.promote_writable()
    assert done.promoted_writable == int(pair.clock.now().timestamp())
    repo = pair.there.repository("flights")
    assert not repo.record.read_only
    assert repo.ref("main").read("a") == b"1"
    with pytest.raises(CommitExpired):
        repo.create_branch("late", source=two.id)
    repo.branch("main").put("c", b"3")
    made = repo.branch("main").commit("after the source was lost")
    assert made.parents == (one.id,)
    assert mirror_needs(pair.here.catalog, "flights") == {}
    for call in (pair.mirror.sync, pair.mirror.promote_writable, pair.mirror.delete):
        with pytest.raises(NotAMirror):
            call()
    assert repo.branch("main").commit_id == made.id


def test_a_repository_that_took_the_sources_name_says_nothing_of_a_loss(pair, tmp_path):
    pair.mirrored(a="1")
    pair.here.delete_repository("flights")
    pair.clock.advance(seconds=1)
    pair.here.create_repository("flights", (tmp_path / "other").as_uri())
    assert (pair.mirror.loss().asked, pair.mirror.loss().refs) == (False, ())


def test_garbage_can_be_collected_and_the_repository_checked_afterwards(pair):
    pair.repo.gc.set_rules({"default_retention_days": 1, "branches": []})
    for number in range(3):
        pair.commit(a=str(number))
    pair.catch_up()
    pair.commit(a="never arrived", b="never arrived")
    pair.mirror.sync()
    repo = pair.fail_over()
    repo.gc.set_rules({"default_retention_days": 1, "branches": []})
    pair.clock.advance(days=40)
    repo.branch("main").put("z", b"z")
    repo.branch("main").commit("later")
    pair.clock.advance(days=3)
    repo.gc.mark()
    assert repo.ref("main").read("a") == b"2"
    assert pair.there.catalog.mirrors.unproved("flights") == frozenset()
    assert [finding for finding in repo.fsck() if finding.severity == "error"] == []


def test_history_is_unproved_until_somebody_looks_and_what_is_whole_comes_back(pair):
    one = pair.commit(a="1")
    two = pair.commit(a="2")
    three = pair.commit(a="3")
    pair.replicator.hold(f"{layout.METARANGES}{two.meta_range_file}")
    pair.catch_up()
    assert pair.head() == three.id
    repo = pair.fail_over()
    for older in (one, two):
        with pytest.raises(CommitExpired, match="mirror verify-history"):
            repo.ref(older.id).read("a")
    assert pair.mirror.verify_history() == VerifiedHistory(1, 1)
    assert repo.ref(one.id).read("a") == b"1"
    with pytest.raises(CommitExpired):
        repo.ref(two.id).read("a")
    with pytest.raises(CommitExpired):
        repo.branch("main").revert("main")
    assert repo.create_branch("old", source=one.id).read("a") == b"1"
    pair.replicator.release()
    pair.replicator.settle()
    assert pair.mirror.verify_history() == VerifiedHistory(1, 0)
    assert repo.ref(two.id).read("a") == b"2"


def test_a_mark_looks_at_unproved_history_keeps_what_is_whole_and_gives_up_the_rest(pair):
    commits = [pair.commit(a=str(number), **{f"only{number}": "x"}) for number in range(4)]
    lost = commits[1]
    pair.replicator.hold(f"{layout.METARANGES}{lost.meta_range_file}")
    pair.catch_up()
    beyond = pair.commit(a="beyond")
    pair.mirror.sync()
    repo = pair.fail_over()
    pair.clock.advance(days=40)
    foretold = repo.gc.mark(dry_run=True)
    assert len(pair.there.catalog.mirrors.unproved("flights")) == 4
    made = repo.gc.mark()
    assert (foretold.rows, foretold.report["commits"]) == (made.rows, repo.gc.report(made.id)["commits"])
    repo.gc.sweep(made.id)
    for commit in commits:
        if commit is lost:
            with pytest.raises(CommitExpired):
                repo.ref(commit.id).read("a")
        else:
            check_readable(pair, commit)
    assert pair.mirror.verify_history() == VerifiedHistory(0, 0), "what was given up may be swept"
    assert pair.there.catalog.commits.get("flights", beyond.id).expired
    assert [finding for finding in repo.fsck(data=True) if finding.severity == "error"] == []


def check_readable(pair, commit):
    ours = pair.there.catalog.commits.get("flights", commit.id)
    assert not ours.expired
    assert read_whole(pair.store, pair.mirror.storage_namespace, ours)


def test_what_a_mark_gave_up_is_not_revived_by_a_look_that_began_before_it(pair):
    older = pair.commit(a="1")
    pair.mirrored(a="2")
    pair.mirror.promote_writable()
    catalog = pair.there.catalog

    def begin(_):
        now = catalog.now()
        catalog.marks.begin_mark(
            "flights", layout.attempt(now, Ids()), cutoff=now - catalog.retention.grace("flights").at(now)
        )

    pair.faults.hook("revive_proved", action=begin)
    assert pair.mirror.verify_history().commits == 0
    pair.faults.revive()
    assert catalog.commits.get("flights", older.id).expired


def test_pruning_leaves_unproved_commits(pair):
    for number in range(3):
        pair.commit(a=str(number))
    pair.catch_up()
    repo = pair.fail_over()
    repo.gc.set_rules({"default_retention_days": 1, "branches": [], "log_days": 30})
    unproved = pair.there.catalog.mirrors.unproved("flights")
    pair.clock.advance(days=400)
    repo.gc.prune()
    assert len(unproved) == 2
    assert pair.there.catalog.mirrors.unproved("flights") == unproved


def test_the_source_need_not_be_reachable(pair, tmp_path):
    made = pair.mirrored(a="1")
    late = pair.commit(a="2")
    mirror = pair.there.mirror("flights")
    mirror.sync()
    pair.here.close()
    (tmp_path / "here").rename(tmp_path / "lost")
    loss = mirror.loss()
    assert not loss.asked
    assert [(ref.id, ref.source_head) for ref in loss.refs] == [("main", late.id)]
    mirror.promote_writable()
    assert pair.there.repository("flights").branch("main").commit_id == made.id
    (tmp_path / "lost").rename(tmp_path / "here")


def test_a_pass_that_went_on_meanwhile_is_not_overruled(pair):
    pair.arrived(a="1")
    pair.faults.hook("promote_writable", action=lambda _: pair.mirror.sync())
    with pytest.raises(MirrorOvertaken):
        pair.mirror.promote_writable()
    pair.faults.revive()
    assert pair.there.catalog.repositories.get("flights").read_only
    pair.mirror.promote_writable()


def test_a_mirror_that_becomes_writable_beside_its_deletion_keeps_its_commits(pair):
    pair.mirrored(a="1")
    made = []

    def promote(_):
        pair.there.mirror("flights").promote_writable()
        made.append(fill_paths(pair.there.repository("flights"), "main", {"b": "2"}))

    pair.faults.hook("delete_repository", action=promote)
    with pytest.raises(NotAMirror, match="lakeops repo delete"):
        pair.mirror.delete()
    assert [pair.there.repository("flights").branch("main").commit_id] == made


def test_the_way_back_is_a_mirror_in_the_other_direction(pair, tmp_path):
    pair.mirrored(a="1")
    new = pair.fail_over()
    new.branch("main").put("b", b"2")
    made = new.branch("main").commit("at the new source")
    pair.here.delete_repository("flights")  # the old source's objects stay where they are
    back = pair.here.create_mirror("flights", pair.repo.storage_namespace, source=pair.there)
    replicator(new, back, Random(3)).settle()
    assert back.sync()["main"].promoted == made.id
    assert back.ref("main").read("a") == b"1"
    assert back.ref("main").read("b") == b"2"


def test_history_comes_back_after_a_way_back_though_the_source_had_it_unproved(pair, clock):
    """Expired at the source when it was copied, and live there again since: by a look, or by ``gc restore``."""
    commits = [pair.commit(a=str(number)) for number in range(3)]
    pair.catch_up()
    new = pair.fail_over()
    pair.here.delete_repository("flights")
    back = pair.here.create_mirror("flights", pair.repo.storage_namespace, source=pair.there)
    back.sync()
    assert pair.mirror.verify_history() == VerifiedHistory(2, 0)
    new.branch("main").put("b", b"2")
    new.branch("main").commit("at the new source")
    back.replicate()  # the new site has a claim of its own, because none had arrived
    back.sync()
    back.promote_writable()
    assert back.verify_history() == VerifiedHistory(3, 0)
    old = pair.here.repository("flights")
    clock.advance(days=2)
    assert not old.gc.mark().objects
    assert [old.ref(one.id).read("a") for one in commits] == [b"0", b"1", b"2"]


def test_a_commit_that_lives_again_at_the_source_is_shown_by_mirrors_of_mirrors(pair, tmp_path, clock):
    one, _ = pair.commit(a="1"), pair.mirrored(a="2")
    pair.commit(a="3")
    pair.repo.gc.set_rules({"default_retention_days": 0, "branches": []})
    clock.advance(days=8)
    pair.repo.gc.confirm_clock()
    marked = pair.repo.gc.mark()
    with open_lake(tmp_path / "late", clock) as late:
        middle = late.create_mirror("flights", source=pair.here)
        assert list(middle.ref("main").list()) == []
        replicator(pair.repo, middle, Random(3)).settle()
        middle.sync()
        pair.repo.gc.restore(marked.id)
        pair.repo.create_branch("old", one.id)
        pair.repo.create_tag("first", pair.repo.ref("main~3").commit_id)
        middle.sync()
        assert middle.ref("old").read("a") == b"1"
        assert list(middle.ref("first").list()) == []
        assert [found for found in late.repository("flights").fsck(data=True) if found.severity == "error"] == []
        with open_lake(tmp_path / "last", clock) as last:
            follower = last.create_mirror("flights", source=late)
            replicator(middle, follower, Random(3)).settle()
            assert follower.sync()["old"].promoted == one.id
            assert follower.ref("old").read("a") == b"1"


def test_mirrors_of_a_mirror_go_on_after_its_fail_over_from_what_they_show(pair, tmp_path, clock):
    one = pair.mirrored(a="1")
    with open_lake(tmp_path / "last", clock) as last:
        follower = last.create_mirror("flights", source=pair.there)
        copies = replicator(pair.mirror, follower, Random(3))
        copies.settle()
        follower.sync()
        pair.mirror.sync()
        assert follower.sync()["main"].promoted == one.id
        two = pair.mirrored(a="2")
        new = pair.fail_over()
        follower.sync()
        assert new.ref(one.id).read("a") == b"1", "the old source has kept it for the follower"
        copies.settle()
        assert follower.sync()["main"].promoted == two.id


def test_unproved_history_comes_back_after_a_restore_from_a_dump(pair, tmp_path, clock):
    one, two, three = (pair.commit(a=str(number)) for number in range(3))
    pair.replicator.hold(f"{layout.METARANGES}{two.meta_range_file}")
    pair.catch_up()
    pair.fail_over().refs.dump()
    with open_lake(tmp_path / "heir", clock) as lake:
        lake.restore_repository("flights", pair.mirror.storage_namespace)
        heir = lake.repository("flights")
        heir.adopt()
        clock.advance(days=2)
        assert heir.gc.mark(dry_run=True).report["objects"] == 1
        assert heir.verify_history() == VerifiedHistory(1, 1)
        assert heir.gc.mark(dry_run=True).report["objects"] == 1
        heir.refs.accept()
        assert heir.gc.mark().objects == 1
        assert [heir.ref(commit.id).read("a") for commit in (one, three)] == [b"0", b"2"]
        with pytest.raises(CommitExpired):
            heir.ref(two.id).read("a")


def test_a_mirror_can_be_forgotten_and_made_anew(pair, tmp_path, clock):
    pair.mirrored(a="1")
    assert mirror_needs(pair.here.catalog, "flights") != {}
    assert pair.mirror.delete()
    assert mirror_needs(pair.here.catalog, "flights") == {}
    again = pair.there.create_mirror("flights", pair.mirror.storage_namespace, source=pair.here)
    assert again.sync().caught_up
    check_whole(pair)
    with open_lake(tmp_path / "there", clock) as lake:
        pair.here.close()
        (tmp_path / "here").rename(tmp_path / "gone")
        assert not lake.mirror("flights").delete()
        (tmp_path / "gone").rename(tmp_path / "here")


def test_rules_and_protections_of_the_source_hold_after_a_fail_over(pair):
    rules = {"default_retention_days": 9, "branches": [{"branch_id": "main", "retention_days": 90}]}
    pair.mirrored(a="1")
    pair.repo.gc.set_rules(rules)
    pair.repo.protect("main")
    pair.repo.protect("release-*")
    pair.repo.protect_tags("v*")
    pair.repo.require_check("main", "quality")
    pair.mirror.sync()
    assert pair.mirror.gc.rules() is None, "they are for the fail-over"
    pair.repo.unprotect("release-*")
    pair.mirror.sync()
    repo = pair.fail_over()
    assert repo.gc.rules() == rules
    assert list(repo.protections()) == ["main"]
    assert repo.tag_protections() == ["v*"]
    assert [(one.pattern, one.check) for one in repo.required_checks()] == [("main", "quality")]
    with raising("protected_branch"):
        repo.branch("main").put("a", b"2")
    assert [finding for finding in repo.fsck() if finding.severity == "error"] == []


@pytest.mark.parametrize("prefix", [layout.DATA, layout.RANGES, layout.METARANGES])
@pytest.mark.parametrize("harm", ["gone", "torn"])
def test_the_check_at_the_end_says_what_was_lost(pair, prefix, harm):
    pair.commit_paths("main", {f"p/{number:02}": str(number) for number in range(12)})
    pair.repo.create_branch("dev", source="main")
    pair.mirrored("dev", **{"p/07": "dev"})
    pair.mirror.promote_writable()
    assert pair.mirror.verify() == []
    new = pair.repo.ref("dev").stat("p/07").physical_address
    key = layout.relative(pair.repo.storage_namespace, new)
    if prefix != layout.DATA:
        key = min(item.key for item in pair.store.list(prefix))
    if harm == "gone":
        pair.store.delete([key])
    else:
        pair.store.put(key, pair.store.get(key) + b"more")
    found = pair.mirror.verify()
    assert found
    assert any(("p/07" if prefix == layout.DATA else key.rpartition("/")[2]) in one for one in found)


@pytest.mark.parametrize("omitted", [layout.RANGES, layout.METARANGES])
def test_a_listing_that_omits_files_leaves_no_commit_out(pair, monkeypatch, omitted):
    """The next mark would give up for good what one answer of the store did not name."""
    pair.commit(a="1")
    pair.mirrored(a="2")
    repo, found = pair.fail_over(), LocalStore.list
    monkeypatch.setattr(LocalStore, "list", lambda self, under="": found(self, under) if under != omitted else iter(()))
    assert repo.verify_history() == VerifiedHistory(1, 0)


@pytest.mark.parametrize("prefix", [layout.DATA, layout.RANGES, layout.METARANGES])
@pytest.mark.parametrize("harm", ["gone", "torn"])
def test_history_of_which_something_is_not_there_stays_unproved(pair, prefix, harm):
    """A revert to it would show what is not there, and a mark that reads its ranges would stop."""
    before = {item.key for item in pair.replicator.source.list(prefix)}
    older = pair.commit(a="1", b="1")
    [key, *_] = sorted({item.key for item in pair.replicator.source.list(prefix)} - before)
    pair.commit(a="2", b="2")
    pair.replicator.hold(key)
    pair.catch_up()
    assert pair.mirror.promote_writable()
    if harm == "torn":
        data = bytearray(pair.replicator.source.get(key))
        data[len(data) // 2] ^= 0x40
        pair.store.put(key, bytes(data) + (b"more" if prefix == layout.DATA else b""))
    assert pair.mirror.verify_history() == VerifiedHistory(0, 1)
    repo = pair.there.repository("flights")
    with pytest.raises(CommitExpired):
        repo.branch("main").revert("main")
    pair.clock.advance(days=3)
    repo.gc.mark()
    assert repo.ref("main").read("a") == b"2"
    with pytest.raises(CommitExpired):
        repo.ref(older.id).read("a")
