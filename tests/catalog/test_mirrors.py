"""Mirrors in the catalog: what may be shown is decided under a ticket; nothing else changes a read-only repository."""

import pytest
from support.catalogs import (
    FIRST,
    REPO,
    a_commit,
    a_mirror,
    commit_all,
    create,
    create_mirror,
    everything,
    mirror_needs,
    new_token,
)
from support.errors import raising

from lakeops.model.errors import (
    AlreadyExists,
    LakeopsError,
    MirrorOvertaken,
    NamespaceTaken,
    NotAMirror,
    NotFound,
    RefNotFound,
)
from lakeops.model.mirrors import Inspection, MirrorRef, RefName
from lakeops.model.records import RefKind, RepositoryRecord

MAIN = RefName(RefKind.BRANCH, "main")
DEV = RefName(RefKind.BRANCH, "dev")
V1 = RefName(RefKind.TAG, "v1")
HERE = "mirror"

ONE = a_commit("one", FIRST)
TWO = a_commit("two", ONE)
SIDE = a_commit("side", FIRST)
MERGE = a_commit("merge", TWO, SIDE)


@pytest.fixture
def mirror(empty):
    """A catalog with a mirror that knows four commits beside the first."""
    create_mirror(empty)
    empty.mirrors.copy_commits(HERE, [ONE, TWO, SIDE, MERGE])
    return empty


def see(catalog, **heads):
    """The refs that the source shows: ``main=commit``, ``tag_v1=commit``."""
    found = {}
    for name, commit in heads.items():
        kind = RefKind.TAG if name.startswith("tag_") else RefKind.BRANCH
        found[RefName(kind, name.removeprefix("tag_"))] = commit.id
    since = catalog.mirrors.mirror_state(HERE).mirror.sequence
    state = catalog.mirrors.observe_source(HERE, found, since=since, actor="ada")
    return {ref.ref: ref for ref in state.refs}


def promote(catalog, ref):
    assert ref.candidate is not None
    return catalog.mirrors.promote(HERE, ref.ref, ref.ticket, ref.candidate, token=new_token(), actor="ada")


def test_a_mirror_begins_read_only_at_the_sources_first_commit(empty):
    made = create_mirror(empty, branches=("main", "release-*"), tags=(), reports=False, created=7)
    assert empty.mirrors.get(HERE) == made
    assert empty.mirrors.all() == [made]
    assert empty.repositories.get(HERE).read_only
    assert empty.commits.initial_commit(HERE) == FIRST
    assert empty.refs.branch(HERE, "main").commit_id == FIRST.id
    (ref,) = empty.mirrors.mirror_state(HERE).refs
    assert ref == MirrorRef(RefKind.BRANCH, "main", FIRST.id, promoted=FIRST.id)
    assert empty.mirrors.mirror_state(HERE).needs == {FIRST.id}


def test_a_name_and_a_namespace_are_taken_once(catalog):
    before = everything(catalog)
    with pytest.raises(AlreadyExists, match="'repo'"):
        create_mirror(catalog, REPO)
    taken = RepositoryRecord("other", f"file:///{REPO}", "main", 1, read_only=True)
    with pytest.raises(NamespaceTaken, match="'repo'"):
        catalog.mirrors.create_mirror(taken, FIRST, a_mirror("other"), token=new_token(), actor="ada")
    assert everything(catalog) == before


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.mirrors.get(REPO),
        lambda c: c.mirrors.mirror_state(REPO),
        lambda c: c.mirrors.copy_commits(REPO, [ONE]),
        lambda c: c.mirrors.observe_source(REPO, {}, since=0, actor="ada"),
        lambda c: c.mirrors.give_up_candidate(REPO, MAIN, 1),
        lambda c: c.mirrors.record_arrivals(REPO, MAIN, 1, Inspection()),
        lambda c: c.mirrors.promote(REPO, MAIN, 1, FIRST.id, token="t", actor="ada"),
        lambda c: c.mirrors.note(REPO, error=None),
        lambda c: c.mirrors.note_metadata(REPO, {}),
        lambda c: c.mirrors.promote_writable(REPO, 0, actor="ada"),
    ],
)
def test_only_a_mirror_takes_what_is_for_mirrors(catalog, call):
    catalog.repositories.set_read_only(REPO, True)
    before = everything(catalog)
    with pytest.raises(NotAMirror, match="'repo' is no mirror"):
        call(catalog)
    assert everything(catalog) == before


def test_a_mirror_stays_read_only(mirror):
    with raising("read_only_repository", "promote-writable"):
        mirror.repositories.set_read_only(HERE, False)
    mirror.repositories.set_read_only(HERE, True)


def test_commits_are_copied_parents_first_and_once(empty):
    create_mirror(empty)
    with pytest.raises(RefNotFound, match=ONE.id):
        empty.mirrors.copy_commits(HERE, [TWO])
    assert empty.mirrors.copy_commits(HERE, [ONE, SIDE]) == 2
    assert empty.mirrors.copy_commits(HERE, [ONE, TWO, SIDE, MERGE, MERGE]) == 2
    assert empty.commits.get(HERE, MERGE.id) == MERGE
    assert empty.mirrors.copy_commits(HERE, []) == 0


def test_a_candidate_is_not_replaced_while_it_waits(mirror):
    first = see(mirror, main=ONE)[MAIN]
    assert (first.promoted, first.candidate, first.source_head) == (FIRST.id, ONE.id, ONE.id)
    second = see(mirror, main=TWO)[MAIN]
    assert (second.candidate, second.ticket, second.source_head) == (ONE.id, first.ticket, TWO.id)
    assert mirror.refs.branch(HERE, "main").commit_id == FIRST.id
    after = promote(mirror, second)
    assert mirror.refs.branch(HERE, "main").commit_id == ONE.id
    assert (after.promoted, after.candidate) == (ONE.id, TWO.id)
    assert after.ticket > first.ticket
    done = promote(mirror, after)
    assert (done.promoted, done.candidate, done.noticed) == (TWO.id, None, None)
    moves = [(move.action, move.old, move.new) for move in mirror.refs.reflog(HERE, "main")]
    assert moves == [("promote", ONE.id, TWO.id), ("promote", FIRST.id, ONE.id), ("create-mirror", None, FIRST.id)]


def test_a_promotion_that_is_late_or_of_another_candidate_changes_nothing(mirror):
    waiting = see(mirror, main=ONE)[MAIN]
    assert mirror.mirrors.promote(HERE, MAIN, waiting.ticket, TWO.id, token="t", actor="ada") is None
    assert mirror.refs.branch(HERE, "main").commit_id == FIRST.id
    promote(mirror, waiting)
    before = everything(mirror)
    assert promote(mirror, waiting) is None
    assert mirror.mirrors.promote(HERE, DEV, waiting.ticket, ONE.id, token="t", actor="ada") is None
    assert everything(mirror) == before


def test_a_candidate_that_is_given_up_gives_way_to_the_newest_head(mirror):
    waiting = see(mirror, main=ONE)[MAIN]
    see(mirror, main=MERGE)
    new = mirror.mirrors.give_up_candidate(HERE, MAIN, waiting.ticket)
    assert (new.candidate, new.promoted) == (MERGE.id, FIRST.id)
    assert new.ticket > waiting.ticket
    assert mirror.mirrors.give_up_candidate(HERE, MAIN, waiting.ticket) is None
    assert promote(mirror, waiting) is None
    assert mirror.refs.branch(HERE, "main").commit_id == FIRST.id


def test_giving_up_for_what_is_shown_already_waits_for_nothing(mirror):
    waiting = see(mirror, main=ONE)[MAIN]
    see(mirror, main=FIRST)
    new = mirror.mirrors.give_up_candidate(HERE, MAIN, waiting.ticket)
    assert (new.candidate, new.noticed) == (None, None)


def test_branches_and_tags_come_and_go(mirror):
    refs = see(mirror, main=FIRST, dev=SIDE, tag_v1=ONE)
    assert refs[DEV].promoted is None
    with pytest.raises(NotFound):
        mirror.refs.branch(HERE, "dev")
    for name in (DEV, V1):
        promote(mirror, refs[name])
    assert mirror.refs.branch(HERE, "dev").commit_id == SIDE.id
    assert mirror.refs.tag(HERE, "v1").commit_id == ONE.id
    assert mirror.mirrors.mirror_state(HERE).needs == {FIRST.id, SIDE.id, ONE.id}
    assert [ref.ref for ref in mirror.mirrors.mirror_state(HERE).refs] == [MAIN, DEV, V1]
    moved = see(mirror, main=FIRST, tag_v1=TWO)
    assert set(moved) == {MAIN, V1}
    assert mirror.refs.tag(HERE, "v1").commit_id == ONE.id
    promote(mirror, moved[V1])
    assert mirror.refs.tag(HERE, "v1").commit_id == TWO.id
    with pytest.raises(NotFound):
        mirror.refs.branch(HERE, "dev")
    assert set(see(mirror, main=FIRST)) == {MAIN}
    with pytest.raises(NotFound):
        mirror.refs.tag(HERE, "v1")
    actions = [(move.action, move.ref) for move in mirror.refs.reflog(HERE)]
    assert ("delete-branch", "dev") in actions
    assert ("delete-tag", "v1") in actions


def test_the_default_branch_stays_whatever_the_source_shows(mirror):
    assert set(see(mirror, dev=SIDE)) == {MAIN, DEV}
    assert mirror.refs.branch(HERE, "main").commit_id == FIRST.id


def test_heads_that_were_read_before_another_pass_went_on_are_refused(mirror):
    since = mirror.mirrors.mirror_state(HERE).mirror.sequence
    see(mirror, main=TWO)
    before = everything(mirror)
    with pytest.raises(MirrorOvertaken):
        mirror.mirrors.observe_source(HERE, {MAIN: ONE.id}, since=since, actor="ada")
    assert everything(mirror) == before


def test_what_arrived_is_remembered_until_the_ref_is_promoted(mirror):
    waiting = see(mirror, main=TWO, dev=SIDE)
    ticket = waiting[MAIN].ticket
    mirror.mirrors.record_arrivals(HERE, MAIN, ticket, Inspection({"a": None, "b": "[1]"}, 3, 30))
    mirror.mirrors.record_arrivals(
        HERE, DEV, waiting[DEV].ticket, Inspection({"b": None}, 1, 5, error=LakeopsError("no"))
    )
    assert mirror.mirrors.arrivals(HERE) == {"a": None, "b": None}
    refs = {ref.ref: ref for ref in mirror.mirrors.mirror_state(HERE).refs}
    assert (refs[MAIN].missing_objects, refs[MAIN].missing_bytes, refs[MAIN].error) == (3, 30, None)
    assert refs[DEV].error == "no"
    assert refs[DEV].checked == int(mirror.now().timestamp()) or mirror.database.dialect.name == "postgresql"
    many = {f"f{number}": None for number in range(1200)}
    mirror.mirrors.record_arrivals(HERE, MAIN, ticket, Inspection({**many, "b": "[2]"}, 2, 20))
    assert mirror.mirrors.arrivals(HERE) == {**many, "a": None, "b": None}
    promote(mirror, refs[DEV])
    assert mirror.mirrors.arrivals(HERE)["b"] == "[2]"
    done = promote(mirror, waiting[MAIN])
    assert mirror.mirrors.arrivals(HERE) == {}
    assert (done.missing_objects, done.missing_bytes) == (0, 0)


def test_arrivals_of_an_older_wait_are_remembered_but_say_nothing_of_the_new_one(mirror):
    waiting = see(mirror, main=ONE)[MAIN]
    see(mirror, main=TWO)
    mirror.mirrors.give_up_candidate(HERE, MAIN, waiting.ticket)
    mirror.mirrors.record_arrivals(HERE, MAIN, waiting.ticket, Inspection({"a": None}, 3, 30))
    (ref,) = mirror.mirrors.mirror_state(HERE).refs
    assert ref.missing_objects == 0
    assert mirror.mirrors.arrivals(HERE) == {"a": None}


@pytest.mark.parametrize("after", [lambda mirror, _: see(mirror, main=FIRST), promote])
def test_arrivals_of_a_ref_that_is_gone_or_promoted_are_not_kept(mirror, after):
    """A pass that was overtaken tells what it saw."""
    waiting = see(mirror, main=FIRST, dev=SIDE)[DEV]
    after(mirror, waiting)
    mirror.mirrors.record_arrivals(HERE, DEV, waiting.ticket, Inspection({"a": None}, 0, 0))
    assert mirror.mirrors.arrivals(HERE) == {}


def test_arrivals_go_when_the_source_is_back_at_what_is_shown(mirror):
    waiting = see(mirror, main=ONE)[MAIN]
    mirror.mirrors.record_arrivals(HERE, MAIN, waiting.ticket, Inspection({"a": None}, 1, 1))
    see(mirror, main=FIRST)
    assert mirror.mirrors.give_up_candidate(HERE, MAIN, waiting.ticket).candidate is None
    assert mirror.mirrors.arrivals(HERE) == {}


def test_a_promoted_mirror_is_a_repository_like_any_other(mirror):
    waiting = see(mirror, main=ONE)[MAIN]
    promote(mirror, waiting)
    see(mirror, main=TWO)
    mirror.mirrors.note(HERE, error="the source is gone")
    sequence = mirror.mirrors.mirror_state(HERE).mirror.sequence
    made = mirror.mirrors.promote_writable(HERE, sequence, actor="ada")
    assert made.promoted_writable is not None
    assert made.error == "the source is gone"
    assert not mirror.repositories.get(HERE).read_only
    assert mirror.commits.get(HERE, TWO.id).expired
    assert mirror.commits.get(HERE, MERGE.id).expired
    assert not mirror.commits.get(HERE, ONE.id).expired
    unproved = mirror.mirrors.unproved(HERE)
    assert {FIRST.id, TWO.id, MERGE.id} <= unproved
    assert ONE.id not in unproved
    assert mirror.mirrors.revive_proved(HERE, [FIRST.id, ONE.id]) == 1
    assert not mirror.commits.get(HERE, FIRST.id).expired
    assert mirror.mirrors.unproved(HERE) == unproved - {FIRST.id}
    assert commit_all_here(mirror).parents == (ONE.id,)
    before = everything(mirror)
    for call in (
        lambda: see(mirror, main=TWO),
        lambda: mirror.mirrors.copy_commits(HERE, []),
        lambda: mirror.mirrors.note(HERE, error=None),
        lambda: mirror.mirrors.promote_writable(HERE, sequence, actor="ada"),
    ):
        with pytest.raises(NotAMirror, match="promoted to a writable repository"):
            call()
    assert everything(mirror) == before
    mirror.repositories.set_read_only(HERE, True)
    mirror.repositories.set_read_only(HERE, False)


def commit_all_here(catalog):
    from support.catalogs import draft

    state = catalog.staging.seal(HERE, "main", token=new_token()).state
    head = catalog.commits.get(HERE, state.commit_id)
    return catalog.commits.publish(draft(catalog, state, a_commit("here", head)))


def test_a_mirror_is_not_promoted_to_writable_beside_a_pass(mirror):
    sequence = mirror.mirrors.mirror_state(HERE).mirror.sequence
    see(mirror, main=ONE)
    with pytest.raises(MirrorOvertaken):
        mirror.mirrors.promote_writable(HERE, sequence, actor="ada")
    assert mirror.repositories.get(HERE).read_only


def test_reports_of_a_held_up_pass_are_refused(catalog):
    one = commit_all(catalog, "one")
    catalog.mirrors.report_mirror(REPO, "there", frozenset({one.id}), sequence=5)
    with pytest.raises(MirrorOvertaken, match="later pass"):
        catalog.mirrors.report_mirror(REPO, "there", frozenset({FIRST.id}), sequence=4)
    assert mirror_needs(catalog, REPO) == {"there": {one.id}}
    catalog.mirrors.report_mirror(REPO, "there", frozenset({FIRST.id}), sequence=5)
    catalog.mirrors.report_mirror(REPO, "elsewhere", frozenset({one.id}), sequence=1)
    assert mirror_needs(catalog, REPO) == {"there": {FIRST.id}, "elsewhere": {one.id}}


def test_registrations_say_who_reported_and_when(catalog):
    assert catalog.mirrors.registrations(REPO) == []
    catalog.mirrors.report_mirror(REPO, "there", frozenset({FIRST.id}), sequence=1)
    catalog.mirrors.report_mirror(REPO, "elsewhere", frozenset())
    found = catalog.mirrors.registrations(REPO)
    assert [(one.id, one.commits) for one in found] == [("elsewhere", frozenset()), ("there", {FIRST.id})]
    assert abs(found[1].at - catalog.now().timestamp()) < 60


def test_the_initial_commit_is_found_whatever_came_after(catalog):
    for number in range(3):
        commit_all(catalog, f"c{number}")
    assert catalog.commits.initial_commit(REPO) == FIRST


def test_mirrors_of_one_catalog_do_not_mix(mirror):
    create_mirror(mirror, "another")
    see(mirror, main=ONE)
    assert [each.repository_id for each in mirror.mirrors.all()] == ["another", HERE]
    assert mirror.mirrors.mirror_state("another").refs[0].candidate is None
    create(mirror)
    mirror.repositories.delete_repository(HERE)
    assert [each.repository_id for each in mirror.mirrors.all()] == ["another"]
