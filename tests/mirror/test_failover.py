"""Opening a mirror for writing: at its last whole heads, with nothing in it that could pass for whole and is not."""

from __future__ import annotations

from random import Random

import pytest
from support.mirrors import check_whole, open_lake, replicator

from lakeops.model.errors import CommitExpired, MirrorOvertaken, NotAMirror
from lakeops.store import layout


def test_a_mirror_becomes_a_repository_like_any_other(pair):
    one = pair.commit(a="1")
    pair.replicator.settle()
    pair.mirror.sync()
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
    assert pair.here.catalog.history("flights").mirrors == {}
    for call in (pair.mirror.sync, pair.mirror.promote_writable, pair.mirror.delete):
        with pytest.raises(NotAMirror):
            call()
    assert repo.branch("main").commit_id == made.id


def test_garbage_can_be_collected_and_the_repository_checked_afterwards(pair):
    pair.repo.gc.set_rules({"default_retention_days": 1, "branches": []})
    for number in range(3):
        pair.commit(a=str(number))
    pair.replicator.settle()
    pair.mirror.sync()
    pair.commit(a="never arrived", b="never arrived")
    pair.mirror.sync()
    pair.mirror.promote_writable()
    repo = pair.there.repository("flights")
    repo.gc.set_rules({"default_retention_days": 1, "branches": []})
    pair.clock.advance(days=40)
    repo.branch("main").put("z", b"z")
    repo.branch("main").commit("later")
    pair.clock.advance(days=3)
    repo.gc.mark()
    assert repo.ref("main").read("a") == b"2"
    assert [finding for finding in repo.fsck() if finding.severity == "error"] == []


def test_history_that_is_not_whole_is_expired_and_the_rest_stays(pair):
    one = pair.commit(a="1")
    two = pair.commit(a="2")
    three = pair.commit(a="3")
    pair.replicator.hold(f"{layout.METARANGES}{two.meta_range_file}")
    pair.replicator.settle()
    pair.mirror.sync()
    assert pair.head() == three.id
    pair.mirror.promote_writable()
    repo = pair.there.repository("flights")
    assert repo.ref(one.id).read("a") == b"1"
    with pytest.raises(CommitExpired):
        repo.ref(two.id).read("a")
    with pytest.raises(CommitExpired):
        repo.branch("main").revert("main")
    assert repo.create_branch("old", source=one.id).read("a") == b"1"


def test_the_source_need_not_be_reachable(pair, tmp_path):
    made = pair.commit(a="1")
    pair.replicator.settle()
    pair.mirror.sync()
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
    pair.commit(a="1")
    pair.replicator.settle()
    pair.faults.hook("promote_writable", action=lambda _: pair.mirror.sync())
    with pytest.raises(MirrorOvertaken):
        pair.mirror.promote_writable()
    pair.faults.revive()
    assert pair.there.catalog.repository("flights").read_only
    pair.mirror.promote_writable()


def test_the_way_back_is_a_mirror_in_the_other_direction(pair, tmp_path):
    pair.commit(a="1")
    pair.replicator.settle()
    pair.mirror.sync()
    pair.mirror.promote_writable()
    new = pair.there.repository("flights")
    new.branch("main").put("b", b"2")
    made = new.branch("main").commit("at the new source")
    pair.here.delete_repository("flights")  # the old source's objects stay where they are
    back = pair.here.create_mirror("flights", pair.repo.storage_namespace, source=pair.there)
    replicator(new, back, Random(3)).settle()
    assert back.sync()["main"].promoted == made.id
    assert back.ref("main").read("a") == b"1"
    assert back.ref("main").read("b") == b"2"


def test_a_mirror_can_be_forgotten_and_made_anew(pair, tmp_path, clock):
    pair.commit(a="1")
    pair.replicator.settle()
    pair.mirror.sync()
    assert pair.here.catalog.history("flights").mirrors != {}
    assert pair.mirror.delete()
    assert pair.here.catalog.history("flights").mirrors == {}
    again = pair.there.create_mirror("flights", pair.mirror.storage_namespace, source=pair.here)
    assert again.sync().caught_up
    check_whole(pair)
    with open_lake(tmp_path / "there", clock) as lake:
        pair.here.close()
        (tmp_path / "here").rename(tmp_path / "gone")
        assert not lake.mirror("flights").delete()
        (tmp_path / "gone").rename(tmp_path / "here")
