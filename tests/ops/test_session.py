"""What a newcomer does in the first five minutes, and how far long work says that it is."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from support.errors import has_kind

from lakeops import Lake, Repository
from lakeops.model import errors
from lakeops.model.errors import MergeConflict, NotFound


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


def test_revert_and_cherry_pick(repo: Repository, fill, contents) -> None:
    fill(repo, "main", a="1")
    second = fill(repo, "main", a="2", b="2")
    fill(repo, "main", c="3")
    assert repo.branch("main").revert(second).message == "Revert 'on main'"
    assert contents(repo, "main") == {"a": "1", "c": "3"}
    repo.create_branch("other", source="main~3")
    assert len(repo.cherry_pick("main~1", "other").parents) == 1
    assert contents(repo, "other") == {"a": "1", "c": "3"}
    fill(repo, "other", a="x")
    with pytest.raises(MergeConflict) as caught:
        repo.cherry_pick(second, "other")
    assert (caught.value.conflicts, caught.value.to_json()["conflict_count"]) == (["a"], 1)


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


def _import(repo, place: Path) -> None:
    (place / "from").mkdir()
    (place / "from/x").write_text("x")
    repo.branch("main").import_objects(str((place / "from").as_uri()), "taken/", "take over")


def _upload(repo, place: Path) -> None:
    (place / "up").mkdir()
    (place / "up/x").write_text("x")
    repo.branch("dev").upload(place / "up", "up/")


VERBS = {
    "commit": lambda repo, _: repo.branch("dirty").commit("more"),
    "merge": lambda repo, _: repo.merge("dev", "main"),
    "cherry-pick": lambda repo, _: repo.cherry_pick("dev", "main"),
    "import": _import,
    "upload": _upload,
    "copy": lambda repo, _: repo.branch("dev").copy("a/", "b/", recursive=True),
    "rename": lambda repo, _: repo.branch("dev").rename("a/", "b/", recursive=True),
    "delete_prefix": lambda repo, _: repo.branch("dev").delete_prefix("a/"),
    "diff": lambda repo, _: list(repo.diff("main~1", "main")),
    "blame": lambda repo, _: list(repo.ref("main").blame()),
    "history": lambda repo, _: list(repo.ref("main").history("a/1")),
    "log": lambda repo, _: list(repo.log("main", path="a/1")),
    "mark": lambda repo, _: repo.gc.mark(),
    "fsck": lambda repo, _: list(repo.fsck()),
    "clone": lambda repo, place: repo.ref("main").clone(place / "clone"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_progress_is_told(lake, repo, fill, tmp_path, verb):
    fill(repo, "main", **{f"a/{number}": "1" for number in range(4)})
    repo.gc.set_rules({"default_retention_days": 1, "branches": []})
    for name in ("dev", "dirty"):
        repo.create_branch(name, source="main")
    fill(repo, "dev", **{"a/1": "2", "c": "3"})
    fill(repo, "main", d="4")
    repo.branch("dirty").put("e", b"5")
    told = []
    lake.progress = lambda *report: told.append(report)
    VERBS[verb](repo, tmp_path)
    assert told
    assert all(isinstance(label, str) and done >= 0 and (done <= total or not total) for label, done, total in told)


def test_long_work_says_what_it_will_do_and_how_far_it_is(lake, repo, fill):
    fill(repo, "main", **{f"f{number:02}": "1" for number in range(30)})
    shown = []
    lake.progress = lambda *report: shown.append(report)
    fill(repo, "main", f05="2", f25="2")
    label, done, total = shown[0]
    assert label.startswith("commit: will rewrite 2 of ")
    assert label.endswith("in process")
    assert (done, total) == (0, 2)
    assert shown[-1] == (label, 2, 2)
