"""A mirror whose catalog was restored from a backup notices that its source knows better, and starts over."""

from functools import partial

import pytest
from support.copies import copied_file
from support.mirrors import check_whole, forge, open_lake

from lakeops.model.errors import PreconditionFailed


def test_a_restored_mirror_catches_up_under_a_name_of_its_own(pair, tmp_path, clock):
    pair.mirrored(a="1")
    copied_file(tmp_path / "there", tmp_path / "backup")
    before = pair.mirror.configuration
    for number in range(5):
        pair.mirrored(a=str(number), b=str(number))
    pair.there.close()
    copied_file(tmp_path / "backup", tmp_path / "there")
    pair.arrived(a="new")
    pair.there = open_lake(tmp_path / "there", clock, pair.faults)
    pair.mirror = pair.there.mirror("flights")
    assert pair.mirror.configuration == before
    status = pair.mirror.sync()
    assert status.caught_up
    check_whole(pair)
    after = pair.mirror.configuration
    assert after.registration != before.registration
    known = {one.id: one for one in pair.repo.registrations()}
    assert known.keys() == {before.registration, after.registration}, "another copy may rely on the old one"
    assert pair.head() in known[after.registration].commits
    pair.commit(a="newer")
    assert pair.catch_up().caught_up
    assert pair.mirror.configuration.registration == after.registration


def test_two_copies_of_a_catalog_come_to_have_a_name_each(pair, tmp_path, clock):
    """A copy of the catalog, as for a drill: each shows what its source keeps for it, whoever reports first."""
    pair.mirrored(a="1")
    copied_file(tmp_path / "there", tmp_path / "copy")
    with open_lake(tmp_path / "copy", clock) as drill:
        other = drill.mirror("flights")
        for number in range(4):
            pair.arrived(a=str(number))
            for mirror in (other, pair.mirror, pair.mirror) if number % 2 else (pair.mirror, other, other, other):
                mirror.sync(pair.here)
        names = {mirror.configuration.registration for mirror in (other, pair.mirror)}
        assert len(names) == 2
        kept = {one.id: one.commits for one in pair.repo.registrations()}
        for mirror in (other, pair.mirror):
            assert mirror.branch("main").commit_id in kept[mirror.configuration.registration]


def test_a_source_that_was_restored_from_a_dump_keeps_what_its_mirrors_show(pair, tmp_path, clock):
    pair.mirrored(a="1")
    two = pair.commit(a="2")
    pair.repo.refs.dump()
    pair.catch_up()
    assert not pair.repo.refs.status().behind, "a report is no change"
    clock.advance(seconds=1)
    with open_lake(tmp_path / "heir", clock) as lake:
        lake.restore_repository("flights", pair.repo.storage_namespace)
        heir = lake.repository("flights")
        heir.adopt()
        with pytest.raises(PreconditionFailed, match="mirror drop"):
            heir.refs.accept()
        pair.mirror.sync(lake)
        heir.refs.accept()
        heir.gc.set_rules({"default_retention_days": 0, "branches": []})
        for number in range(3):
            heir.branch("main").put("a", b"later %d" % number)
            heir.branch("main").commit("later")
        clock.advance(days=8)
        heir.gc.confirm_clock()
        assert heir.gc.sweep(heir.gc.mark().id, force=True).deleted
        pair.replicator.settle()
        assert pair.head() == two.id
        check_whole(pair)


CHECKS = [f"{number:03}{'😀' * 247}" for number in range(1000)]


def merge_despite_many_checks(pair):
    for path in "abc":
        pair.repo.branch("dev").put(path, b"1")
        pair.repo.branch("dev").commit("declares", checks=CHECKS)
    pair.repo.merge("dev", "main", despite_checks=CHECKS)


def revert_much(pair, *, messages):
    main = pair.repo.branch("main")
    for number in range(messages):
        main.put("a", str(number).encode())
        main.commit(f"{number}" + "ä" * ((32 << 10) - 1))
    main.revert(f"main~{messages}..main")


LARGEST = {
    "findings": lambda pair: pair.repo.ref("main").fail_check("quality", "ä" * 5000),
    "merge of the head itself": lambda pair: pair.repo.merge("dev", "main", allow_empty=True),
    "one parent twice, as such a merge had": lambda pair: forge(pair, "main", parents=pair.commit().parents * 2),
    "merge despite many checks": merge_despite_many_checks,
    "revert of a long title": partial(revert_much, messages=1),
    "revert of many titles": partial(revert_much, messages=3),
}


@pytest.mark.parametrize("make", LARGEST.values(), ids=LARGEST)
def test_whatever_verbs_make_is_mirrored_and_restored(pair, tmp_path, clock, make):
    pair.repo.create_branch("dev")
    make(pair)
    pair.catch_up()
    assert pair.head() == pair.repo.branch("main").commit_id
    pair.repo.refs.dump()
    with open_lake(tmp_path / "heir", clock) as heir:
        restored = heir.restore_repository("flights", pair.repo.storage_namespace)
    assert (restored.missing, restored.expired) == ((), 0)
