"""What a newcomer does in the first five minutes, through the public interface."""

from __future__ import annotations

import io

import pytest
from support.errors import has_kind

from lakeops import Lake, MergeConflict, NotFound, Repository
from lakeops.model import errors


def test_branch_commit_merge_and_time_travel(repo: Repository, contents) -> None:
    main = repo.branch("main")
    main.put("raw/a.csv", b"1", metadata={"source": "sensor"}, content_type="text/csv")
    first = main.commit("load day 1", metadata={"rows": "1"})
    dev = repo.create_branch("dev", source="main")
    dev.put("raw/b.csv", io.BytesIO(b"2" * 100_000))
    dev.delete("raw/a.csv")
    assert contents(repo, "main") == {"raw/a.csv": "1"}
    dev.commit("load day 2")
    result = repo.merge("dev", "main")
    assert result.reference == repo.ref("main").commit.id
    assert result.to_json() == {
        "reference": result.reference,
        "up_to_date": False,
        "summary": {"added": 1, "removed": 1, "changed": 0},
        "source_uncommitted": False,
    }
    assert contents(repo, "main") == {"raw/b.csv": "2" * 100_000}
    assert contents(repo, "main~1") == contents(repo, first.id[:12]) == {"raw/a.csv": "1"}
    assert [commit.message for commit in repo.log("main", first_parent=True)] == [
        "Merge 'dev' into 'main'",
        "load day 1",
        "Repository created",
    ]
    assert repo.merge("dev", "main").up_to_date
    entry = repo.ref("main~1").stat("raw/a.csv")
    assert (entry.metadata, entry.content_type, entry.size_bytes) == ({"source": "sensor"}, "text/csv", 1)
    assert entry.physical_address.startswith(repo.storage_namespace + "/data/")


def test_uncommitted_changes_are_seen_on_the_branch_and_nowhere_else(repo: Repository, fill, contents) -> None:
    fill(repo, "main", a="1", b="1")
    main = repo.branch("main")
    main.put("a", b"2")
    main.put("c", b"3")
    main.delete("b")
    assert [(change.type.value, change.path) for change in main.uncommitted()] == [
        ("changed", "a"),
        ("removed", "b"),
        ("added", "c"),
    ]
    assert contents(repo, "main") == {"a": "2", "c": "3"}
    assert contents(repo, "main@") == contents(repo, "main~0") == {"a": "1", "b": "1"}
    with pytest.raises(errors.ObjectNotFound):
        main.read("b")
    assert main.reset(path="a") == 1
    assert main.read("a") == b"1"
    assert main.reset() == 2
    assert list(main.uncommitted()) == []
    assert contents(repo, "main") == {"a": "1", "b": "1"}


def test_writing_what_is_there_is_no_change(repo: Repository, fill) -> None:
    fill(repo, "main", a="1")
    main = repo.branch("main")
    before = main.stat("a").physical_address
    main.put("a", b"1")
    main.put("gone", b"x")
    main.delete("gone")
    assert list(main.uncommitted()) == []
    with pytest.raises(errors.NoChanges):
        main.commit("nothing")
    assert main.stat("a").physical_address == before, "the rows that changed nothing left the branch"
    assert main.commit("on purpose", allow_empty=True).message == "on purpose"


def test_a_put_that_changes_nothing_does_not_undo_a_merge(repo: Repository, fill, contents) -> None:
    fill(repo, "main", a="1")
    repo.create_branch("dev")
    fill(repo, "dev", a="2")
    repo.branch("main").put("a", b"1")
    repo.merge("dev", "main")
    assert contents(repo, "main") == {"a": "2"}
    assert list(repo.branch("main").uncommitted()) == []


def test_conflicts_are_all_reported_and_nothing_is_published(repo: Repository, fill, contents) -> None:
    fill(repo, "main", a="1", b="1", c="1", same="1")
    repo.create_branch("dev")
    fill(repo, "dev", a="dev", b=None, c="dev", same="2", only="dev")
    head = fill(repo, "main", a="main", b="main", c=None, same="2")
    with pytest.raises(MergeConflict) as caught:
        repo.merge("dev", "main")
    assert caught.value.conflicts == ["a", "b", "c"]
    assert caught.value.to_json()["conflict_count"] == 3
    assert repo.ref("main").commit.id == head
    assert [(c.type.value, c.path) for c in repo.compare("main", "dev")] == [
        ("conflict", "a"),
        ("conflict", "b"),
        ("conflict", "c"),
        ("added", "only"),
    ]
    repo.create_branch("ours", source="main")
    repo.merge("dev", "ours", strategy="dest-wins")
    assert contents(repo, "ours") == {"a": "main", "b": "main", "same": "2", "only": "dev"}
    repo.merge("dev", "main", strategy="source-wins")
    assert contents(repo, "main") == {"a": "dev", "c": "dev", "same": "2", "only": "dev"}


def test_revert_and_cherry_pick(repo: Repository, fill, contents, clock) -> None:
    fill(repo, "main", a="1")
    second = fill(repo, "main", a="2", b="2")
    fill(repo, "main", c="3")
    reverted = repo.branch("main").revert(second)
    assert contents(repo, "main") == {"a": "1", "c": "3"}
    assert reverted.message == "Revert 'on main'"
    with pytest.raises(errors.NoChanges):
        repo.branch("main").revert(second)
    repo.create_branch("other", source="main~3")
    picked = repo.cherry_pick("main~1", "other")
    assert contents(repo, "other") == {"a": "1", "c": "3"}
    assert picked.metadata["cherry-pick-origin"] == repo.ref("main~1").commit.id
    assert len(picked.parents) == 1
    fill(repo, "other", a="x")
    with pytest.raises(MergeConflict) as caught:
        repo.cherry_pick(second, "other")
    assert caught.value.conflicts == ["a"]


def test_a_merge_is_reverted_against_one_of_its_parents(repo: Repository, fill, contents) -> None:
    fill(repo, "main", a="1")
    repo.create_branch("dev")
    fill(repo, "dev", b="1")
    fill(repo, "main", c="1")
    merged = repo.merge("dev", "main").reference
    with pytest.raises(errors.InvalidInput, check=has_kind("invalid_ref")):
        repo.branch("main").revert(merged)
    with pytest.raises(errors.InvalidInput, check=has_kind("invalid_ref")):
        repo.branch("main").revert(merged, parent_number=3)
    repo.branch("main").revert(merged, parent_number=1)
    assert contents(repo, "main") == {"a": "1", "c": "1"}
    with pytest.raises(errors.InvalidInput, check=has_kind("invalid_ref")):
        repo.branch("main").revert("main~4")


def test_tags_never_move_and_branches_are_deleted_without_their_commits(repo: Repository, fill) -> None:
    commit = fill(repo, "main", a="1")
    repo.create_tag("v1", "main")
    repo.create_branch("dev:joe-bugfix-1234", source="v1")
    fill(repo, "dev:joe-bugfix-1234", a="2")
    assert repo.ref("dev:joe-bugfix-1234~1").commit.id == repo.ref("v1").commit.id == commit
    with pytest.raises(errors.AlreadyExists):
        repo.create_tag("v1", "dev:joe-bugfix-1234")
    gone = repo.delete_branch("dev:joe-bugfix-1234")
    assert repo.ref(gone.commit_id).read("a") == b"2"
    with pytest.raises(errors.PreconditionFailed, check=has_kind("default_branch")):
        repo.delete_branch("main")
    repo.delete_tag("v1")
    assert list(repo.tags()) == []


def test_a_lake_is_found_again_by_its_settings(lake: Lake, repo: Repository, fill, settings) -> None:
    commit = fill(repo, "main", a="1")
    with Lake.open(settings=settings) as again:
        assert [found.id for found in again.repositories()] == ["repo"]
        assert again.repository("repo").ref("main").commit.id == commit
        with pytest.raises(NotFound):
            again.repository("other")
        again.delete_repository("repo")
    with pytest.raises(NotFound):
        lake.repository("repo")
