"""Objects copied, moved and described anew, without their contents being read."""

from collections.abc import Callable

import pytest
from sqlalchemy import Connection
from support.errors import raising
from support.scenes import tree

from lakeops import Branch
from lakeops.catalog.database import _UnknownError
from lakeops.model.errors import InvalidInput, InvalidPath, NoChanges, ObjectNotFound, RefNotFound


@pytest.fixture
def lake(faulty_lake):
    return faulty_lake


@pytest.fixture
def main(repo):
    branch = repo.branch("main")
    for number in range(30):
        branch.put(f"raw/{number:02}", f"{number}".encode(), metadata={"n": f"{number}"}, content_type="text/plain")
    branch.put("raw", b"an object that is called like a folder")
    branch.commit("load")
    branch.put("raw/99", b"staged")
    branch.delete("raw/00")
    return branch


def addresses(branch):
    return {entry.path: entry.physical_address for entry in branch.list()}


def test_a_folder_is_copied_as_the_branch_shows_it(repo, main):
    before, data = addresses(main), tree(repo, "main")
    stored = {item.key for item in repo._ctx.store.list("data/")}
    assert main.copy("raw", "old/", recursive=True) == 30
    shown = tree(repo, "main")
    assert shown == {**data, **{f"old/{path[4:]}": text for path, text in data.items() if path.startswith("raw/")}}
    assert addresses(main)["old/99"] == before["raw/99"]
    assert main.stat("old/05").metadata == {"n": "5"}
    assert main.stat("old/05").mtime == main.stat("raw/05").mtime
    assert {item.key for item in repo._ctx.store.list("data/")} == stored, "no object was written"
    main.commit("copied")
    assert [finding for finding in repo.fsck(data=True) if finding.severity.value != "info"] == []
    with pytest.raises(NoChanges):
        main.copy("raw", "old", recursive=True)
        main.commit("the same again")


def test_a_folder_moves_all_at_once(repo, main):
    data = tree(repo, "main")
    assert main.rename("raw", "raw/sub", recursive=True) == 30
    assert tree(repo, "main") == {
        (f"raw/sub/{path[4:]}" if path.startswith("raw/") else path): text for path, text in data.items()
    }
    main.commit("moved")
    assert main.rename("raw/sub/", "raw/", recursive=True) == 30
    assert tree(repo, "main") == data


def test_one_object(repo, main):
    assert main.copy("raw/01", "raw/02") == 1
    assert main.read("raw/02") == b"1"
    main.rename("raw", "other")
    assert (main.exists("raw"), main.exists("raw/01"), main.read("other")[:2]) == (False, True, b"an")
    assert main.copy("raw/00", "back", ref="main@") == 1, "from any ref"
    assert main.read("back") == b"0"


def test_what_cannot_be_copied(repo, main):
    before = tree(repo, "main")
    repo.create_branch("prod")
    repo.protect("prod")
    calls = [
        (lambda: main.copy("nosuch", "x"), ObjectNotFound),
        (lambda: main.copy("nosuch/", "x", recursive=True), ObjectNotFound),
        (lambda: main.copy("raw/00", "x"), ObjectNotFound),
        (lambda: main.copy("raw/01", "x", ref="nosuch"), RefNotFound),
        (lambda: main.copy("raw/01", "raw/01"), InvalidInput),
        (lambda: main.rename("raw", "raw/", recursive=True), InvalidInput),
        (lambda: main.copy("raw/01", "\0"), InvalidPath),
        (lambda: main.copy("raw/01", ""), InvalidPath),
        (lambda: main.copy("raw", "x" * 1023, recursive=True), InvalidPath),
        (lambda: repo.branch("prod").copy("raw/01", "x"), "protected_branch"),
        (lambda: repo.branch("prod").update_metadata("raw/01", {"a": "b"}), "protected_branch"),
        (lambda: main.update_metadata("raw/01"), InvalidInput),
        (lambda: main.update_metadata("raw/01", {"": "b"}), InvalidInput),
        (lambda: main.update_metadata("raw/01", {"a": "b" * 3000}), InvalidInput),
        (lambda: main.update_metadata("raw/01", content_type="a\nb"), InvalidInput),
        (lambda: main.update_metadata("nosuch", {"a": "b"}), ObjectNotFound),
    ]
    for call, error in calls:
        with raising(error):
            call()
    assert tree(repo, "main") == before


def test_metadata_is_changed_beside_the_contents(repo, main):
    before = main.stat("raw/07")
    after = main.update_metadata("raw/07", {"n": None, "source": "radar"}, content_type="text/csv")
    assert after == main.stat("raw/07")
    assert (after.metadata, after.content_type) == ({"source": "radar"}, "text/csv")
    assert (after.checksum, after.physical_address) == (before.checksum, before.physical_address)
    assert ("changed", "raw/07") in [(change.type.value, change.path) for change in main.uncommitted()]
    main.update_metadata("raw/07", {"more": "1"})
    assert main.stat("raw/07").metadata == {"source": "radar", "more": "1"}
    main.update_metadata("raw/99", {"staged": "too"})
    main.commit("described")
    assert repo.ref("main@").stat("raw/99").metadata == {"staged": "too"}


def test_what_moved_meanwhile_is_seen(repo, main, faults):
    def meanwhile(_call):
        main.commit("meanwhile")
        main.put("raw/late", b"1")

    faults.hook("put_staged", action=meanwhile)
    assert main.rename("raw", "new", recursive=True) == 31
    assert main.read("new/late") == b"1"
    assert [path for path in tree(repo, "main") if path.startswith("raw/")] == []


CALLS: dict[str, Callable[[Branch], object]] = {
    "move": lambda main: main.rename("raw/07", "new/07"),
    "move of a folder": lambda main: main.rename("raw", "new", recursive=True),
    "metadata": lambda main: main.update_metadata("raw/07", {"told": "1"}),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("when", ["staged", "committed"])
def test_what_was_put_meanwhile_is_not_lost(main, faults, call, when):
    if when == "staged":
        main.put("raw/07", b"before")
    faults.hook("put_staged", action=lambda _: main.put("raw/07", b"meanwhile", metadata={"late": "1"}))
    CALLS[call](main)
    found = [entry.path for entry in main.list() if entry.path.endswith("/07")]
    assert [main.read(path) for path in found] == [b"meanwhile"]
    assert main.stat(found[0]).metadata.get("late") == "1"


def test_what_was_done_to_an_object_meanwhile_stays_beside_new_metadata(main, faults):
    faults.hook("put_staged", action=lambda _: main.update_metadata("raw/07", {"other": "1"}))
    main.update_metadata("raw/07", {"told": "1"})
    assert main.stat("raw/07").metadata == {"n": "7", "other": "1", "told": "1"}
    faults.hook("put_staged", action=lambda _: main.delete("raw/07"))
    with pytest.raises(ObjectNotFound):
        main.update_metadata("raw/07", {"told": "2"})
    assert not main.exists("raw/07")


def test_a_move_whose_answer_was_lost_is_done(repo, main, monkeypatch):
    inner, lost = Connection.commit, []

    def commit(conn):
        inner(conn)
        if not lost:
            lost.append(True)
            raise _UnknownError("lost the catalog while committing")

    for call in (
        lambda: main.rename("raw/", "new/", recursive=True),
        lambda: main.update_metadata("new/07", {"a": "b"}),
    ):
        lost.clear()
        monkeypatch.setattr(Connection, "commit", commit)
        call()
        assert lost == [True]
    assert main.stat("new/07").metadata == {"n": "7", "a": "b"}
    assert [path for path in tree(repo, "main") if path.startswith("raw/")] == []
    assert len(tree(repo, "main")) == 31
    main.commit("moved")
    assert [finding for finding in repo.fsck(data=True) if finding.severity.value != "info"] == []


def test_collection_keeps_what_two_paths_share(repo, main, clock):
    main.rename("raw", "new", recursive=True)
    main.commit("moved")
    repo.gc.set_rules({"default_retention_days": 1})
    clock.advance(days=30)
    repo.gc.sweep(repo.gc.mark().id)
    assert len(tree(repo, "main")) == 31
