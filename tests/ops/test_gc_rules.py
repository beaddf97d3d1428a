"""Retention rules, and the branches and tags that they let go."""

import json

import pytest
from support.errors import raising

from lakeops.model.records import RefKind

RULES = {"default_retention_days": 3, "branches": [{"branch_id": "main", "retention_days": 5}]}


def test_rules_are_kept_with_the_repository(lake, repo):
    assert repo.gc.rules() is None
    assert repo.gc.set_rules(RULES) == RULES
    assert lake.repository("repo").gc.rules() == RULES
    assert repo.gc.set_rules(json.dumps(RULES)) == RULES
    assert repo.gc.set_rules(None) is None
    assert repo.gc.rules() is None


@pytest.mark.parametrize(
    "bad",
    [
        {"branch_id": "mian", "retention_days": 5},
        {"branch_id": "dev", "retention_days": 5},
        {"branch_id": "main", "retention_days": -5},
    ],
)
def test_bad_rules_leave_the_old_ones(repo, bad):
    repo.gc.set_rules(RULES)
    with raising("invalid_rules", r"mian|dev|-5"):
        repo.gc.set_rules({"default_retention_days": 1, "branches": [bad]})
    assert repo.gc.rules() == RULES


def test_an_unknown_tag_is_refused_and_a_pattern_never(repo):
    with raising("invalid_rules", "the tag 'v1'"):
        repo.gc.set_rules({"default_retention_days": 1, "tags": [{"tag_id": "v1", "expire_after_days": 9}]})
    rules = {"default_retention_days": 1, "branches": [{"branch_id": "dev-*", "retention_days": 5}]}
    assert repo.gc.set_rules(rules) == rules


def test_live_commits_follow_rules_and_clock(repo, fill, clock):
    first = repo.ref("main").commit.id
    one = fill(repo, "main", a="1")
    clock.advance(days=4)
    two = fill(repo, "main", a="2")
    assert repo.gc.live_commits() == {first, one, two}
    repo.gc.set_rules({"default_retention_days": 10})
    assert repo.gc.live_commits() == {first, one, two}  # one was made four days ago, and first was the head until then
    clock.advance(days=6)
    assert repo.gc.live_commits() == {one, two}
    clock.advance(days=4, seconds=-1)
    assert repo.gc.live_commits() == {one, two}
    clock.advance(seconds=1)
    assert repo.gc.live_commits() == {two}


IDLE_RULES = {
    "default_retention_days": 90,
    "branches": [{"branch_id": "*", "expire_after_days": 10}, {"branch_id": "keep-*"}],
    "tags": [{"tag_id": "nightly-*", "expire_after_days": 5}],
}
IDLE_RULES["branches"][1]["retention_days"] = 1


@pytest.fixture
def ruled(repo):
    repo.gc.set_rules(IDLE_RULES)
    for name in ("dev", "protected", "dirty", "busy"):
        repo.create_branch(name)
    repo.protect("prot*")
    repo.branch("dirty").put("a", b"1")
    repo.create_tag("nightly-1", "main")
    repo.create_tag("v1", "main")
    return repo


def names(found):
    return {(ref.type, ref.id): ref.kept for ref in found}


def test_without_rules_nothing_is_idle(repo, clock):
    repo.create_branch("dev")
    clock.advance(days=1000)
    assert repo.gc.idle_refs() == repo.gc.expire_refs() == []


def test_what_is_as_old_as_its_rule_says_goes_and_three_things_stay(ruled, clock):
    clock.advance(days=5)
    assert names(ruled.gc.idle_refs()) == {("tag", "nightly-1"): None}
    clock.advance(days=5, seconds=-1)
    ruled.branch("busy").put("a", b"1")
    ruled.branch("busy").commit("still at work")
    assert len(ruled.gc.idle_refs()) == 1, "a second too early"
    clock.advance(seconds=1)
    rules = ruled.gc.idle_refs()
    assert names(rules) == {
        ("branch", "dev"): None,
        ("branch", "dirty"): "it has uncommitted changes, such as 'a'",
        ("branch", "main"): "it is the default branch",
        ("branch", "protected"): "it is protected by 'prot*'",
        ("tag", "nightly-1"): None,
    }
    assert {ref.idle_days for ref in rules} == {10}
    assert names(ruled.gc.expire_refs()) == names(rules)
    assert [ref.id for ref in ruled.branches()] == ["busy", "dirty", "main", "protected"]
    assert [ref.id for ref in ruled.tags()] == ["v1"]
    assert {ref.kept is None for ref in ruled.gc.expire_refs()} == {False}


def test_a_tag_of_a_branchs_name_does_not_keep_it_young(ruled, clock):
    clock.advance(days=9)
    ruled.branch("busy").put("a", b"1")
    other = ruled.branch("busy").commit("elsewhere")
    catalog, repository = ruled._ctx.catalog, ruled._ctx.repository_id
    move = (repository, "dev", None, other.id, "create-tag", "ada")  # older versions allowed such a tag
    catalog.database.write(lambda conn: catalog.refs.record_move(conn, *move, kind=RefKind.TAG))
    clock.advance(days=1)
    assert ("branch", "dev") in names(ruled.gc.idle_refs())


@pytest.mark.parametrize("use", ["put", "commit", "delete"])
@pytest.mark.parametrize("at", [1, 2])
def test_a_branch_that_is_used_again_meanwhile_stays(faulty_lake, ruled, fill, clock, faults, use, at):
    """``dev`` is the second one to go, after ``busy``: it is used before either goes."""
    clock.advance(days=20)
    uses = {
        "put": lambda _: ruled.branch("dev").put("late", b"x"),
        "commit": lambda _: fill(ruled, "dev", late="x"),
        "delete": lambda _: (ruled.delete_branch("dev"), ruled.delete_tag("nightly-1")),
    }
    faults.hook("delete_branch", at=at, action=uses[use])
    gone = {ref.id for ref in faulty_lake.repository("repo").gc.expire_refs() if ref.kept is None}
    assert gone == ({"busy"} if use == "delete" else {"busy", "nightly-1"})
    assert ("dev" in {ref.id for ref in ruled.branches()}) is (use != "delete")
