"""Outputs: a folder that an engine writes is staged in one step, beside other writers and by tasks that run again."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.scenes import table
from support.soundness import assert_sound

from lakeops.model import errors
from lakeops.model.errors import InvalidInput, PathTaken
from lakeops.store.local import LocalStore


def write(url, name, text):
    Path(urlsplit(url).path, name).write_text(text)


def test_output_replaces_a_prefix_in_one_step(repo, fill, contents):
    fill(repo, "main", **{"events/day=1/old": "1", "events/day=2/kept": "2"})
    main = repo.branch("main")
    main.put("events/day=1/staged", b"3")
    with main.output("events/day=1/") as url:
        assert url.startswith(repo.storage_namespace + "/data/")
        pq.write_table(pa.table({"n": [1, 2]}), url + "/part-0.parquet")
        write(url, "_SUCCESS", "")
        write(url, ".part-0.parquet.crc", "engine's own")
        assert "events/day=1/old" in contents(repo, "main"), "nothing shows before the block ends"
    assert [item.path for item in main.list()] == [
        "events/day=1/_SUCCESS",
        "events/day=1/part-0.parquet",
        "events/day=2/kept",
    ]
    with main.open("events/day=1/part-0.parquet") as file:
        assert pq.read_table(file)["n"].to_pylist() == [1, 2]
    main.commit("day 1")
    with main.output("events/day=1", mode="append") as url:
        write(url, "more", "4")
    assert main.read("events/day=1/more") == b"4"
    assert main.exists("events/day=1/_SUCCESS")


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"mtime": 1_790_000_000_000}, "'t/a': mtime"),
        ({"size_bytes": -1}, "'t/a': size_bytes"),
        ({"content_type": "text/html\r\nSet-Cookie: x"}, "'t/a': content type"),
    ],
)
def test_what_a_store_says_of_an_output_is_checked(repo, monkeypatch, told, says):
    listed = LocalStore.list

    def odd(self, *args, **given):
        return (replace(item, **told) for item in listed(self, *args, **given))

    with pytest.raises(errors.InvalidInput, match=says), repo.branch("main").output("t/") as url:
        write(url, "a", "1")
        monkeypatch.setattr(LocalStore, "list", odd)
        monkeypatch.setattr(LocalStore, "remote", True)
    assert list(repo.branch("main").uncommitted()) == []


def test_the_same_output_again_is_no_change(repo):
    main = repo.branch("main")
    for _ in range(2):
        with main.output("t/") as url:
            write(url, "part", "same")
        if list(main.uncommitted()):
            main.commit("once")
    assert len(list(repo.log("main"))) == 2


def test_an_output_without_files_is_refused_unless_that_is_meant(repo, fill, contents):
    fill(repo, "main", **{"t/old": "1", "other": "2"})
    main = repo.branch("main")
    with pytest.raises(errors.ObjectNotFound, match=r"replacing 't/'.*allow_empty=True"), main.output("t/"):
        pass
    opened = main.open_output("t/")
    with pytest.raises(errors.ObjectNotFound, match="nothing was staged"):
        main.link_output(opened)
    assert list(main.uncommitted()) == []
    with main.output("t/", mode="append"):
        pass
    assert list(main.uncommitted()) == []
    with main.output("t/", allow_empty=True):
        pass
    assert contents(repo, "main") == {"other": "2"}


def test_an_output_whose_files_are_named_may_have_none(repo, fill, contents):
    """An engine that says which files it has written says also that there are none."""
    fill(repo, "main", **{"t/old": "1"})
    main = repo.branch("main")
    assert main.link_output(main.open_output("t/"), names=()) == 0
    assert contents(repo, "main") == {}


def test_a_file_beside_the_directory_is_no_silent_loss(repo):
    """Without the slash the directory stays empty, and ``replace`` would empty the prefix."""
    main = repo.branch("main")
    main.put("t/kept", b"kept")
    with (
        pytest.raises(errors.InvalidInput, match="'part-0' was written beside the directory"),
        main.output("t/") as url,
    ):
        Path(urlsplit(url + "part-0").path).write_bytes(b"1")
    with main.output("t/", mode="append") as url:
        Path(urlsplit(url + "_$folder$").path).write_bytes(b"")
        Path(urlsplit(url.file("a")).path).write_bytes(b"1")
    assert [entry.path for entry in main.list()] == ["t/a", "t/kept"]


@pytest.mark.parametrize("name", ["part-0", "region=x/part-0", "a/b/c/part-0", "ö x/part-0"])
def test_the_folder_of_a_file_is_there(repo, name):
    main = repo.branch("main")
    with main.output("t/") as url:
        Path(url.file(name).removeprefix("file://")).write_bytes(b"1")
    assert main.read(f"t/{name}") == b"1"


@pytest.mark.parametrize("name", ["../part-0", "a/../../part-0", "./part-0"])
def test_a_file_outside_of_the_output_is_refused(repo, name):
    with pytest.raises(errors.InvalidPath), repo.branch("main").output("t/") as url:
        url.file(name)


def _deep(folder):
    for letter in "abcd":
        folder /= letter * 240
    folder.mkdir(parents=True)
    (folder / ("p" * 50)).touch()


@pytest.mark.parametrize(
    ("write_odd", "words"),
    [
        (lambda folder: (folder / "part-1").symlink_to("/etc/hosts"), "part-1' .a symbolic link.*remove it$"),
        (lambda folder: os.mkfifo(folder / "part-1"), "part-1' .a pipe"),
        (lambda folder: Path(os.fsdecode(os.fsencode(folder) + b"/part-\xff")).touch(), "name is not UTF-8"),
        (_deep, "too long"),
    ],
    ids=["link", "pipe", "no text", "long"],
)
def test_what_cannot_be_an_object_is_refused_and_not_left_out(repo, write_odd, words):
    main = repo.branch("main")
    main.put("t/old", b"1")
    with pytest.raises(InvalidInput, match=words), main.output("t/") as url:
        write(url, "part-0", "0")
        write_odd(Path(urlsplit(url).path))
    assert [item.path for item in main.list()] == ["t/old"]


def test_a_failed_output_stages_nothing(lake, repo):
    main = repo.branch("main")
    with pytest.raises(ZeroDivisionError), main.output("t/") as url:
        write(url, "part", "x")
        raise ZeroDivisionError
    assert list(main.list()) == []
    assert lake.catalog.retention.roots("repo").uploads == {}


def test_an_output_of_a_deleted_branch_is_refused(repo):
    repo.create_branch("dev")
    with pytest.raises(errors.RefNotFound), repo.branch("dev").output("t/") as url:
        write(url, "part", "x")
        repo.delete_branch("dev")


def test_an_output_of_a_branch_that_was_made_anew_is_refused(repo):
    dev = repo.create_branch("dev")
    with pytest.raises(errors.AttemptExpired, match="was deleted since"), dev.output("t/") as url:
        write(url, "old", "x")
        repo.delete_branch("dev")
        repo.create_branch("dev").put("t/new", b"1")
    assert [item.path for item in dev.list()] == ["t/new"]


def test_names_that_urls_spell_otherwise(repo):
    main = repo.branch("main")
    with main.output("t") as url:
        write(url, "a b%41é.csv", "odd")
    assert main.read("t/a b%41é.csv") == b"odd"
    shown = main.stat("t/a b%41é.csv").physical_address
    assert main.entries().read_all()["physical_address"].to_pylist() == [shown]
    assert Path(url2pathname(urlsplit(shown).path)).read_text() == "odd"
    main.stage(table({"again": shown}, size_bytes=[3]))
    assert main.read("again") == b"odd"


def test_what_was_deleted_stays_deleted_when_its_prefix_is_replaced(repo, fill, contents):
    fill(repo, "main", **{"a/1": "1", "a/2": "2"})
    main = repo.branch("main")
    main.delete("a/1")
    with main.output("a/") as url:
        write(url, "3", "3")
    assert contents(repo, "main") == {"a/3": "3"}


def appended(branch, text, name="part-0.csv", **options):
    with branch.output("t/", mode="append", **options) as url:
        write(url, name, text)


@pytest.mark.parametrize("committed", [True, False])
def test_an_append_refuses_a_path_that_is_taken(repo, lake, committed):
    main = repo.branch("main")
    appended(main, "1")
    if committed:
        main.commit("first")
    with (
        pytest.raises(
            errors.PathTaken, match=r"1 of 2 new files have the path .*'main': 't/part-0.csv'; nothing"
        ) as told,
        main.output("t/", mode="append") as url,
    ):
        write(url, "part-0.csv", "2")
        write(url, "part-1.csv", "2")
    assert told.value.exit_code == 5
    assert told.value.to_json()["paths"] == ["t/part-0.csv"]
    assert [main.read(item.path) for item in main.list()] == [b"1"]
    assert lake.catalog.retention.roots("repo").uploads == {}


def test_an_append_may_rename_or_overwrite(repo):
    main = repo.branch("main")
    appended(main, "1")
    appended(main, "2", on_collision="rename")
    first, second = main.list()
    assert second.path == "t/part-0.csv" or first.path == "t/part-0.csv"
    assert {main.read(one.path) for one in (first, second)} == {b"1", b"2"}
    assert all(one.path.endswith(".csv") for one in (first, second))
    appended(main, "3", on_collision="overwrite")
    assert main.read("t/part-0.csv") == b"3"
    with pytest.raises(errors.InvalidInput, match="'merge' is not one of"):
        appended(main, "4", on_collision="merge")


def test_an_append_takes_a_path_that_was_deleted_or_holds_the_same(repo):
    main = repo.branch("main")
    appended(main, "1")
    main.commit("first")
    appended(main, "1")
    assert list(main.uncommitted()) == []
    main.delete("t/part-0.csv")
    appended(main, "2")
    assert main.read("t/part-0.csv") == b"2"


@pytest.mark.parametrize("on_collision", ["refuse", "rename"])
def test_what_was_committed_can_be_appended_any_number_of_times(repo, on_collision):
    main = repo.branch("main")
    for number in range(4):
        appended(main, "the same", on_collision=on_collision)
        if not number:
            main.commit("once")
    assert [entry.path for entry in main.list("t/")] == ["t/part-0.csv"]


@pytest.fixture
def lake(faulty_lake):
    return faulty_lake


@pytest.fixture
def meanwhile(faults):
    """Does something when the next rows have been worked out, before they are staged."""
    return lambda act: faults.hook("put_staged", action=lambda _: act())


def replace_folder(branch, name, *names):
    with branch.output("t/") as url:
        for file in names or (f"part-{name}-0", f"part-{name}-1"):
            Path(urlsplit(url).path, file).write_text(name)


def opened_with(branch, name):
    output = branch.open_output("t/")
    output.store.put(output.address + name, name.encode())
    return output


def shown(branch):
    return {item.path.removeprefix("t/"): branch.read(item.path).decode() for item in branch.list("t/")}


def test_of_two_that_replace_a_folder_one_stays(repo, meanwhile):
    main = repo.branch("main")
    main.put("t/old", b"old")
    main.commit("old")
    one, other = opened_with(main, "part-1"), opened_with(main, "part-2")
    meanwhile(lambda: main.link_output(other))
    main.link_output(one)
    assert shown(main) == {"part-1": "part-1"}, "the rows of the other one would be there beside these"


def test_of_two_that_need_an_empty_folder_one_is_refused(repo, meanwhile):
    main = repo.branch("main")
    one, other = opened_with(main, "part-1"), opened_with(main, "part-2")
    meanwhile(lambda: main.link_output(other, empty=True))
    with pytest.raises(PathTaken):
        main.link_output(one, empty=True)
    assert shown(main) == {"part-2": "part-2"}


def test_an_output_beside_a_deletion_is_there_in_whole_or_not_at_all(repo, meanwhile):
    main = repo.branch("main")
    main.put("t/part-0", b"old")
    main.commit("old")
    meanwhile(lambda: replace_folder(main, "new", "part-0", "part-1"))
    main.delete_prefix("t/")
    assert shown(main) == {}


def test_writers_of_one_folder_leave_the_files_of_one(lake_of_threads):
    main = lake_of_threads.create_repository("repo").branch("main")
    with ThreadPoolExecutor(3) as pool:
        for turn in range(8):
            list(pool.map(lambda writer, turn=turn: replace_folder(main, f"{turn}-{writer}"), range(3)))
            found = shown(main)
            assert len(found) == 2, found
            assert len({*found.values()}) == 1, found
            assert found.keys() == {f"part-{value}-{number}" for value in found.values() for number in (0, 1)}


def append(branch, key, *names, collide="refuse", text=""):
    with branch.output("t/", "append", collide, idempotency_key=key) as url:
        for name in names:
            Path(urlsplit(url).path, name).write_text(text or name)


@pytest.mark.parametrize("collide", ["refuse", "rename", "overwrite"])
@pytest.mark.parametrize("published", [False, True])
def test_what_a_task_appends_again_takes_the_place_of_what_it_appended(repo, contents, collide, published):
    """Engines name their files at random, so the rows of a second run would be there beside those of the first."""
    main = repo.branch("main")
    main.put("t/there", b"there")
    main.put("other", b"other")
    append(main, "day 1", "a-1", "a-2", "same", collide=collide)
    append(main, "day 2", "b-1", collide=collide)
    if published:
        main.commit("published before the answer came")
    append(main, "day 1", "a-3", "same", collide=collide, text="again")
    wanted = {"t/there": "there", "t/b-1": "b-1", "t/a-3": "again", "t/same": "again", "other": "other"}
    assert contents(repo, "main") == wanted
    append(main, None, "c-1")
    append(main, None, "c-2")
    append(main, "day 1", collide=collide)
    main.commit("and another time with nothing")
    assert contents(repo, "main") == {
        "t/there": "there", "t/b-1": "b-1", "t/c-1": "c-1", "t/c-2": "c-2", "other": "other",
    }  # fmt: skip


def test_an_append_under_a_key_replaces_nothing_of_others(repo, meanwhile):
    main = repo.branch("main")
    append(main, "key", "a")
    main.put("t/b", b"theirs")
    with pytest.raises(PathTaken):
        append(main, "key", "b")
    assert shown(main) == {"a": "a", "b": "theirs"}
    append(main, "key", "b", collide="rename")
    found = shown(main)
    assert (found.pop("b"), [*found.values()]) == ("theirs", ["b"])
    append(main, "key", "b", collide="rename")
    assert len(shown(main)) == 2, "the file that got another name is replaced too"
    meanwhile(lambda: append(main, "key", "zombie"))
    append(main, "key", "c", collide="overwrite")
    assert shown(main) == {"b": "theirs", "c": "c"}
    with pytest.raises(InvalidInput, match="idempotency key"):
        append(main, "", "d")


def test_tries_of_one_task_add_their_rows_once(lake_of_threads):
    main = lake_of_threads.create_repository("repo").branch("main")
    with ThreadPoolExecutor(3) as pool:
        for turn in range(4):
            list(pool.map(lambda again, turn=turn: append(main, f"turn {turn}", f"{turn}-{again}"), range(3)))
            assert len(shown(main)) == turn + 1


def test_what_is_written_under_a_key_is_collected_when_nobody_needs_it(repo, clock):
    main = repo.branch("main")
    append(main, "key", "a")
    append(main, "key", "b")
    main.commit("b")
    repo.gc.set_rules({"default_retention_days": 0, "branches": []})
    for _ in range(2):
        clock.advance(days=30)
        repo.gc.sweep(repo.gc.mark().id, force=True)
    assert shown(main) == {"b": "b"}
    store = main.open_output("x/").store
    assert len([item for item in store.list("data/") if "/key-" in item.key]) == 1
    assert_sound(repo, data=True)


@pytest.mark.parametrize("collide", ["refuse", "rename"])
def test_appends_beside_one_another_do_not_start_over(repo, faults, meanwhile, collide):
    main = repo.branch("main")
    meanwhile(lambda: append(main, None, "theirs", collide=collide))
    append(main, None, "mine", "mine-too", collide=collide)
    assert shown(main) == {"mine": "mine", "mine-too": "mine-too", "theirs": "theirs"}
    assert faults.counts["put_staged"] == 2


def test_of_two_appends_of_one_path_one_is_refused(repo, meanwhile):
    """The second one has looked at the branch before the first one stages its file."""
    main = repo.branch("main")
    meanwhile(lambda: append(main, None, "part", text="first"))
    with pytest.raises(PathTaken):
        append(main, None, "part", text="second")
    assert shown(main) == {"part": "first"}
