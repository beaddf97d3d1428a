"""Passes that overlap, come back late, or meet the source's garbage collection: each order on its own."""

from __future__ import annotations

from random import Random

import pytest
from support.faulty_catalog import FaultyCatalog
from support.mirrors import check_whole, replicator

from lakeops import Lake
from lakeops.model.errors import MirrorOvertaken
from lakeops.model.mirrors import RefKind, RefName

MAIN = RefName(RefKind.BRANCH, "main")


def watched(pair) -> Lake:
    """The source as a pass sees it: calls of its catalog may be hooked."""
    return Lake(FaultyCatalog(pair.here.catalog, pair.faults), pair.here.settings)  # type: ignore[arg-type]


def expire_all(pair) -> list[str]:
    """Expire all that the source may: what no ref and no mirror needs."""
    return pair.here.catalog.retention.expire_commits("flights", lambda history: history.commits)


def test_the_source_keeps_what_the_mirror_shows_and_waits_for(pair):
    one = pair.commit(a="1")
    pair.catch_up()
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
    assert pair.here.catalog.commits.history("flights").mirrors.keys() == {pair.mirror.configuration.registration}


def test_a_report_that_comes_late_does_not_take_back_what_a_later_pass_relies_on(pair):
    """A pass is held up just before its report; another one goes by and shows something newer."""
    pair.commit(a="1")
    pair.replicator.settle()

    def overtake(_call):
        pair.mirror.sync(pair.here)
        pair.commit(a="2")
        pair.replicator.settle()
        pair.mirror.sync(pair.here)

    pair.faults.hook("report_mirror", action=overtake)
    pair.mirror.sync(watched(pair))
    pair.faults.revive()
    head = pair.repo.branch("main").commit_id
    assert pair.head() == head
    [needed] = pair.here.catalog.commits.history("flights").mirrors.values()
    assert head in needed
    pair.commit(a="3")
    assert head not in expire_all(pair)
    check_whole(pair)


def test_heads_that_were_read_before_another_pass_do_not_take_the_mirror_back(pair):
    one = pair.commit(a="1")
    pair.replicator.settle()

    def overtake(_call):
        pair.commit(a="2")
        pair.replicator.settle()
        pair.mirror.sync(pair.here)

    pair.faults.hook("observe_source", action=overtake)
    pair.mirror.sync(watched(pair))
    pair.faults.revive()
    assert pair.head() == pair.repo.branch("main").commit_id != one.id
    assert one.id not in [move.new for move in pair.mirror.reflog("main")]


def test_a_late_promotion_of_an_older_wait_is_refused(pair):
    pair.commit(a="1")
    pair.mirror.sync()
    [waiting] = pair.there.catalog.mirrors.mirror_state("flights").refs
    pair.commit(a="2")
    pair.mirror.sync()
    pair.there.catalog.mirrors.give_up_candidate("flights", MAIN, waiting.ticket)
    late = pair.there.catalog.mirrors.promote(
        "flights", MAIN, waiting.ticket, waiting.candidate or "", token="t", actor="tester"
    )
    assert late is None
    with pytest.raises(MirrorOvertaken):
        pair.there.catalog.mirrors.observe_source("flights", {MAIN: waiting.source_head}, since=0, actor="tester")
