"""Tests of a newcomer's first five minutes, and of how far long work says that it is."""

import pytest

from lakeops import Lake
from lakeops.model import errors
from lakeops.model.errors import NotFound


def test_writing_what_is_there_is_no_change(repo, fill):
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


def test_a_lake_is_found_again_by_its_settings(lake, repo, fill, settings):
    commit = fill(repo, "main", a="1")
    with Lake.open(settings=settings) as again:
        assert [found.id for found in again.repositories()] == ["repo"]
        assert again.repository("repo").ref("main").commit.id == commit
        with pytest.raises(NotFound):
            again.repository("other")
        again.delete_repository("repo")
    with pytest.raises(NotFound):
        lake.repository("repo")


def _import(repo, place):
    (place / "from").mkdir()
    (place / "from/x").write_text("x")
    repo.branch("main").import_objects(str((place / "from").as_uri()), "taken/", "take over")


def _upload(repo, place):
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
