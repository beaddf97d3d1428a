"""Branches that require checks, and tags that stay."""

from __future__ import annotations

import pytest
from support.errors import has_kind

from lakeops import Repository
from lakeops.model.errors import InvalidInput, NotFound, PreconditionFailed


@pytest.fixture
def work(repo: Repository) -> str:
    """A commit on a branch, to be merged into a branch that requires two checks."""
    repo.require_check("ma*", "quality")
    repo.require_check("main", "approval")
    branch = repo.create_branch("dev", "main")
    branch.put("a", b"1")
    return branch.commit("load").id


def test_a_merge_needs_every_check_of_this_very_commit(repo: Repository, work: str) -> None:
    with pytest.raises(
        PreconditionFailed, match=f"{work[:16]} lacks 'approval', 'quality'", check=has_kind("missing_check")
    ):
        repo.merge("dev", "main")
    repo.ref("dev").pass_check("quality")
    with pytest.raises(PreconditionFailed, match="lacks 'approval';", check=has_kind("missing_check")):
        repo.merge("dev", "main")
    repo.ref("dev").pass_check("approval", by="ada")
    repo.branch("dev").put("b", b"2")
    later = repo.branch("dev").commit("more").id
    with pytest.raises(PreconditionFailed, match=later[:16], check=has_kind("missing_check")):
        repo.merge("dev", "main")
    assert repo.merge(work, "main").reference
    assert [(one.name, one.passed_by) for one in repo.ref(work).passed_checks()][0] == ("approval", "ada")


@pytest.mark.parametrize("squash", [False, True])
def test_a_preview_says_what_the_merge_would(repo: Repository, work: str, squash: bool) -> None:
    for act in (repo.preview_merge, repo.merge):
        with pytest.raises(
            PreconditionFailed, match=f"{work[:16]} lacks 'approval', 'quality'", check=has_kind("missing_check")
        ):
            act("dev", "main", squash=squash)
    for name in ("quality", "approval"):
        repo.ref("dev").pass_check(name)
    repo.set_read_only()
    for act in (repo.preview_merge, repo.merge):
        with pytest.raises(PreconditionFailed, check=has_kind("read_only_repository")):
            act("dev", "main", squash=squash)
    repo.set_read_only(False)
    foretold = repo.preview_merge("dev", "main", squash=squash).summary
    assert foretold == repo.merge("dev", "main", squash=squash).summary
    for more in ({}, {"allow_empty": True}):
        foretold = repo.preview_merge("dev", "main", squash=squash, **more)
        assert foretold.up_to_date is not bool(more)
        assert repo.merge("dev", "main", squash=squash, **more).up_to_date is foretold.up_to_date


def test_a_squash_needs_the_checks_of_what_it_brings(repo: Repository, work: str) -> None:
    """The head, which is the only parent of a squash, says nothing of what comes."""
    for name in ("quality", "approval"):
        repo.ref("main").pass_check(name)
    with pytest.raises(
        PreconditionFailed, match=f"{work[:16]} lacks 'approval', 'quality'", check=has_kind("missing_check")
    ):
        repo.merge("dev", "main", squash=True)
    for name in ("quality", "approval"):
        repo.ref("main").withdraw_check(name)
        repo.ref("dev").pass_check(name)
    assert repo.merge("dev", "main", squash=True).reference


def test_nothing_but_merges_reaches_such_a_branch(repo: Repository, work: str) -> None:
    main = repo.branch("main")
    repo.create_branch("mars", "main")
    for change in (
        lambda: main.put("x", b""),
        lambda: main.commit("x", allow_empty=True),
        lambda: repo.cherry_pick("dev", "main"),
        lambda: repo.delete_branch("mars"),
    ):
        with pytest.raises(PreconditionFailed, check=has_kind("protected_branch")):
            change()


def test_what_is_withdrawn_counts_no_longer(repo: Repository, work: str) -> None:
    for name in ("quality", "approval"):
        repo.ref(work).pass_check(name)
    repo.ref(work).withdraw_check("quality")
    with pytest.raises(PreconditionFailed, match="lacks 'quality';", check=has_kind("missing_check")):
        repo.merge("dev", "main")
    with pytest.raises(NotFound, match="no check 'quality'"):
        repo.ref(work).withdraw_check("quality")
    repo.drop_check("ma*", "quality")
    assert repo.merge("dev", "main").reference
    with pytest.raises(NotFound, match="no required check 'quality'"):
        repo.drop_check("ma*", "quality")
    assert [(one.pattern, one.check) for one in repo.required_checks()] == [("main", "approval")]


def test_who_passed_a_check_first_stays(repo: Repository) -> None:
    first = repo.ref("main").pass_check("quality", by="ada")
    assert repo.ref("main").pass_check("quality", by="bob") == first
    assert repo.ref("main").passed_checks() == [first]


@pytest.mark.parametrize("name", ["", " ", "a\n", "x" * 101])
def test_a_check_has_a_name(repo: Repository, name: str) -> None:
    with pytest.raises(InvalidInput, check=has_kind("invalid_name")):
        repo.ref("main").pass_check(name)
    with pytest.raises(InvalidInput, check=has_kind("invalid_name")):
        repo.require_check("main", name)


def test_a_protected_tag_stays_where_it_is(repo: Repository) -> None:
    repo.create_tag("v1", "main")
    repo.create_tag("w1", "main")
    repo.protect_tags("v*")
    assert repo.tag_protections() == ["v*"]
    assert repo.protections() == []
    with pytest.raises(PreconditionFailed, match="protected by 'v\\*'", check=has_kind("protected_tag")):
        repo.delete_tag("v1")
    repo.delete_tag("w1")
    repo.branch("main").commit("more", allow_empty=True)
    with pytest.raises(PreconditionFailed, check=has_kind("protected_tag")):
        repo.move_tag("v1", "main")
    repo.unprotect_tags("v*")
    repo.delete_tag("v1")
    with pytest.raises(NotFound):
        repo.unprotect_tags("v*")
