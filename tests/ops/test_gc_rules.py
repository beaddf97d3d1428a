from __future__ import annotations

import json

import pytest
from support.errors import has_kind

from lakeops.model import errors

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
    with pytest.raises(errors.InvalidInput, match=r"mian|dev|-5", check=has_kind("invalid_rules")):
        repo.gc.set_rules({"default_retention_days": 1, "branches": [bad]})
    assert repo.gc.rules() == RULES


def test_an_unknown_tag_is_refused_and_a_pattern_never(repo):
    with pytest.raises(errors.InvalidInput, match="the tag 'v1'", check=has_kind("invalid_rules")):
        repo.gc.set_rules({"default_retention_days": 1, "tags": [{"tag_id": "v1", "expire_after_days": 9}]})
    rules = {"default_retention_days": 1, "branches": [{"branch_id": "dev-*", "retention_days": 5}]}
    assert repo.gc.set_rules(rules) == rules


def test_a_read_only_repository_takes_no_rules(repo):
    repo.set_read_only()
    with pytest.raises(errors.PreconditionFailed, check=has_kind("read_only_repository")):
        repo.gc.set_rules(RULES)


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
