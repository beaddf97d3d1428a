"""Files that engines write below a table's location: staged by commits of the table, and garbage otherwise."""

import os
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from support.errors import raising
from support.scenes import SPLIT

from lakeops.model import errors
from lakeops.ops.tables import TableChange
from lakeops.store import layout


@pytest.fixture
def repo(faulty_lake):
    repo = faulty_lake.create_repository("repo", split=SPLIT)
    with repo.branch("main").batch() as batch:
        for number in range(40):  # so that the deletion limit is not reached
            batch.put(f"f{number}", b"x")
    repo.branch("main").commit("kept")
    return repo


@pytest.fixture
def location(repo):
    return repo.table_files.new_location()


@pytest.fixture
def write(repo, location, clock):
    """Write a file as an engine does, some days ago by the store's clock."""

    def write(name, days):
        path = Path(location.removeprefix("file://"), name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        moment = (clock.now() - timedelta(days=days)).timestamp()
        os.utime(path, (moment, moment))
        return path

    return write


def change(location, *names, gone=()):
    files = {f"t/{name}": (name, len(name)) for name in names}
    return TableChange(location, (f"metadata/{uuid4()}.json", b"{}"), "t/metadata.json", files, gone)


def commit_table(repo, made):
    repo.branch("main").update_tables("t/metadata.json", lambda: [made])


def collect(repo):
    repo.gc.sweep(repo.gc.mark().id, force=True)


def test_what_no_commit_staged_is_collected_by_its_age_in_the_store(repo, location, write, clock):
    old, young, staged, committed = (write(f"data/{name}", 3) for name in ("old", "young", "staged", "committed"))
    write("data/young", 0)
    commit_table(repo, change(location, "data/committed"))
    repo.branch("main").commit("A table")
    commit_table(repo, change(location, "data/staged", gone=("t/data/committed",)))
    collect(repo)
    assert [path.exists() for path in (old, young, staged, committed)] == [False, True, True, True]
    clock.advance(days=3)
    collect(repo)
    assert [path.exists() for path in (young, staged, committed)] == [False, True, True]
    assert repo.branch("main").read("t/data/staged") == b"data/staged"
    assert repo.ref("main@").read("t/data/committed") == b"data/committed"


def test_a_file_that_a_mark_holds_is_not_staged(repo, location, write):
    write("data/old", 3)
    mark = repo.gc.mark()
    young = write("data/young", 0)
    with raising("object_collected"):
        commit_table(repo, change(location, "data/old"))
    commit_table(repo, change(location, "data/young"))
    repo.gc.sweep(mark.id, force=True)
    assert young.exists()
    with pytest.raises(errors.ObjectNotFound):
        commit_table(repo, change(location, "data/old"))


@pytest.mark.parametrize(("days", "refused"), [(0, False), (3, True)])
def test_while_a_mark_is_made_young_files_are_staged(repo, location, write, faults, days, refused):
    path = write("data/one", days)
    outcomes = []

    def stage(_):
        try:
            commit_table(repo, change(location, "data/one"))
        except errors.Transient as error:
            outcomes.append(error.kind)
        else:
            outcomes.append("staged")

    faults.hook("put", prefix=layout.GC, action=stage)
    mark = repo.gc.mark()
    assert outcomes == ["collection_running" if refused else "staged"]
    repo.gc.sweep(mark.id, force=True)
    assert path.exists() == (not refused)


def test_a_change_is_computed_again_when_others_staged(repo, location, write):
    for name in ("data/a", "data/b"):
        write(name, 0)
    main, seen = repo.branch("main"), []

    def compute():
        seen.append(main.find("t/metadata.json"))
        if len(seen) == 1:
            commit_table(repo, change(location, "data/a"))
        return [change(location, "data/b", gone=("t/data/a",))]

    main.update_tables("t/metadata.json", compute)
    assert [one is None for one in seen] == [True, False]
    assert [one.path for one in main.list("t/data/")] == ["t/data/b"]


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "s3://elsewhere/data/tables/00000000000000000000/x",
        "{root}/data/tables/0000/x",
        "{root}/data/2026010100/0000aaaaaaaaaaaaaaaaaaaa",
        "{root}/_lakefs/ranges/x",
        "{root}/data/tables/00000000000000000000/../../x",
        "{root}/data/tables/00000000000000000000//x",
        "{root}",
        "",
    ],
)
def test_no_other_place_is_a_tables(repo, url):
    for do in (repo.table_files.size, repo.table_files.open, lambda place: repo.table_files.write(place, b"x")):
        with pytest.raises(errors.InvalidInput, match="is not where tables of repository 'repo' lie"):
            do(url.format(root=repo.storage_namespace))
