"""Merges that squash, are previewed or say nothing new, and several commits that are undone at once."""

import pytest
from support.catalogs import expire_commits
from support.errors import raising
from support.scenes import tree

from lakeops.model.errors import CommitExpired, InvalidInput, MergeConflict, NoChanges, RefNotFound


@pytest.fixture
def main(repo, fill):
    fill(repo, "main", **{f"f{number:02}": "1" for number in range(30)})
    repo.create_branch("dev")
    fill(repo, "dev", f05="dev", new="dev", message="first of dev")
    fill(repo, "dev", f25=None, new="again", message="second of dev")
    fill(repo, "main", f15="main")
    return repo.branch("main")


def test_a_squash_has_one_parent_and_the_merges_contents(repo, main):
    repo.create_branch("merged", source="main")
    repo.merge("dev", "merged")
    before = main.commit_id
    result = repo.merge("dev", "main", squash=True, message="all of dev", metadata={"k": "v"})
    commit = main.head
    assert (commit.id, commit.parents, commit.message) == (result.reference, (before,), "all of dev")
    assert commit.metadata == {"k": "v", "squash-origin": repo.branch("dev").commit_id}
    assert tree(repo, "main") == tree(repo, "merged")
    assert result.summary.to_json() == {"added": 1, "removed": 1, "changed": 1}
    again = repo.merge("dev", "main", squash=True)
    assert (again.reference, again.up_to_date) == (None, True)
    assert main.head == commit
    assert len(repo.merge("dev", "main", squash=True, allow_empty=True).reference or "") == 64
    assert main.head.parents == (commit.id,)


def test_a_merge_that_brings_nothing(repo, main):
    assert repo.merge("main~1", "main").up_to_date
    before = main.head
    result = repo.merge("main~1", "main", allow_empty=True, message="for the record")
    assert main.head.parents == (before.id, before.parents[0])
    assert (result.up_to_date, result.summary.total, main.head.meta_range_id) == (False, 0, before.meta_range_id)
    assert [finding for finding in repo.fsck() if finding.severity.value != "info"] == []


def test_a_preview_is_what_the_merge_does(repo, main, fill):
    before = main.head
    shown = repo.preview_merge("dev", "main")
    assert (shown.reference, shown.up_to_date, main.head) == (None, False, before)
    assert repo.merge("dev", "main").summary == shown.summary
    assert repo.preview_merge("dev", "main").up_to_date
    fill(repo, "dev", f01="dev", f02="dev")
    fill(repo, "main", f01="main", f02="main")
    conflicts = []
    for call in (repo.preview_merge, repo.merge):
        with pytest.raises(MergeConflict) as caught:
            call("dev", "main")
        conflicts.append((caught.value.conflicts, caught.value.message))
    assert conflicts[0] == conflicts[1]
    shown = repo.preview_merge("dev", "main", strategy="source-wins")
    main.put("x", b"1")
    for call in (repo.preview_merge, repo.merge):
        with raising("dirty_branch"):
            call("dev", "main", strategy="source-wins")
    main.reset()
    assert repo.merge("dev", "main", strategy="source-wins").summary == shown.summary


def test_previews_of_nothing(repo, main):
    for source, destination, error in (
        ("nosuch", "main", RefNotFound),
        ("dev", "nosuch", RefNotFound),
        ("dev", "main~1", "invalid_ref"),
    ):
        with raising(error):
            repo.preview_merge(source, destination)
    with pytest.raises(InvalidInput):
        repo.preview_merge("dev", "main", strategy="mine")


@pytest.fixture
def line(repo, main, fill):
    """Four more commits, of which the newest two change the same object."""
    for number in range(4):
        fill(repo, "main", **{f"g{number}": "1", f"f0{number % 2}": f"{number}", "f20": f"{number}"})
    return main


def test_a_range_is_undone_in_one_commit(repo, line, fill):
    before, wanted = line.head, tree(repo, "main~3")
    commit = line.revert("main~3..main")
    assert commit.parents == (before.id,)
    assert tree(repo, "main") == wanted
    assert commit.metadata["revert-origin"].split() == [repo.ref(f"{before.id}~{n}").commit_id for n in range(3)]
    assert commit.message.splitlines()[0] == "Revert 3 commits"
    with pytest.raises(MergeConflict):  # the object that all of them changed is as none of the later ones left it
        line.revert(f"{before.id}~3..{before.id}")
    line.put("other", b"1")
    line.commit("other")
    line.revert("main")
    with pytest.raises(NoChanges):
        line.revert(["main~1", "main~1"])


def test_several_are_undone_in_the_given_order(repo, line):
    wanted = tree(repo, "main~2")
    line.revert(["main", "main~1"], message="both")
    assert tree(repo, "main") == wanted
    assert line.head.message == "both"


def test_a_conflict_of_one_undoes_none(repo, line):
    before = line.head
    with pytest.raises(MergeConflict) as caught:
        line.revert(["main", "main~2"])  # the one between them changed the same object
    assert list(caught.value.conflicts) == ["f20"]
    assert line.head == before


def test_merges_in_a_range(repo, line):
    wanted = tree(repo, "main")
    repo.create_tag("before", "main")
    repo.merge("dev", "main")
    line.put("g9", b"1")
    line.commit("after")
    with raising("invalid_ref", "parent number"):
        line.revert("before..main")
    line.revert("before..main", 1)
    assert tree(repo, "main") == wanted


def test_what_cannot_be_undone(repo, line):
    for ref, error in (
        ([], InvalidInput),
        ("main..main", "invalid_ref"),
        ("main..main~1", "invalid_ref"),
        ("nosuch..main", RefNotFound),
        ("..main", "invalid_ref"),
        ("main..", "invalid_ref"),
        ("main...dev", "invalid_ref"),
        (["main", "nosuch"], RefNotFound),
        (["main", "main~99"], RefNotFound),
    ):
        with raising(error):
            line.revert(ref)
    line.put("x", b"1")
    with raising("dirty_branch"):
        line.revert("main~3..main")
    line.reset()
    expire_commits(repo._ctx.catalog, "repo", [repo.ref("main~2").commit_id])
    with pytest.raises(CommitExpired):
        line.revert("main~4..main")


def test_under_a_key_once(repo, line):
    first = line.revert("main~2..main", idempotency_key="k")
    assert line.revert("main~2..main", idempotency_key="k") == first == line.head
