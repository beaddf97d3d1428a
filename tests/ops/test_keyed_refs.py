"""Tags under an idempotency key; messages and metadata of reverts and cherry-picks."""

from __future__ import annotations

import pytest

from lakeops.model.errors import AlreadyExists, InvalidInput, KeyReused


def commit(repo, message, branch="main"):
    repo.branch(branch).put("a", message.encode())
    return repo.branch(branch).commit(message, {"who": message})


def test_a_tag_made_again_under_its_key_stays_where_it_was(repo):
    first = commit(repo, "one")
    tag = repo.create_tag("v1", "main", idempotency_key="k")
    assert tag.commit_id == first.id
    commit(repo, "two")
    assert repo.create_tag("v1", "main", idempotency_key="k") == tag
    repo.delete_tag("v1")  # as a crash leaves it between the key and the tag
    assert repo.create_tag("v1", "main", idempotency_key="k") == tag


def test_a_tag_elsewhere_is_refused_also_under_a_key(repo):
    commit(repo, "one")
    repo.create_tag("v1", "main")
    commit(repo, "two")
    with pytest.raises(AlreadyExists):
        repo.create_tag("v1", "main", idempotency_key="k")
    with pytest.raises(KeyReused):
        repo.create_tag("v2", "main", idempotency_key="k")


def test_a_revert_keeps_message_and_metadata(repo):
    commit(repo, "one")
    undone = commit(repo, "two")
    made = repo.branch("main").revert("main", message="no", metadata={"why": "wrong"})
    assert (made.message, made.metadata) == ("no", {"why": "wrong", "revert-origin": undone.id})


def test_a_cherry_pick_lays_metadata_over_the_originals(repo):
    repo.create_branch("dev")
    picked = commit(repo, "one", "dev")
    made = repo.cherry_pick("dev", "main", metadata={"who": "me", "why": "hotfix"})
    assert made.message == "one"
    assert made.metadata == {
        "who": "me",
        "why": "hotfix",
        "cherry-pick-origin": picked.id,
        "cherry-pick-committer": "tester",
    }


@pytest.mark.parametrize("given", [{"message": "\0"}, {"message": " "}, {"metadata": {"k": "x" * 70_000}}])
def test_bad_messages_and_metadata_are_refused(repo, given):
    commit(repo, "one")
    with pytest.raises(InvalidInput):
        repo.branch("main").revert("main", **given)
    with pytest.raises(InvalidInput):
        repo.cherry_pick("main", "main", **given)
