"""Writers of one folder: at the same time, as a task that was taken for dead beside its next try, or once more."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.soundness import assert_sound

from lakeops import Branch, InvalidInput, Lake, PathTaken, Repository
from lakeops.ops.output import OnCollision, Output
from lakeops.testing import Faults, ManualClock


@pytest.fixture
def lake(faulty_lake: Lake) -> Lake:
    return faulty_lake


@pytest.fixture
def meanwhile(faults: Faults) -> Callable[[Callable[[], object]], None]:
    """Does something when the next rows have been worked out, before they are staged."""
    return lambda act: faults.hook("put_staged", action=lambda _: act())


def replace_folder(branch: Branch, name: str, *names: str) -> None:
    with branch.output("t/") as url:
        for file in names or (f"part-{name}-0", f"part-{name}-1"):
            Path(urlsplit(url).path, file).write_text(name)


def opened_with(branch: Branch, name: str) -> Output:
    output = branch.open_output("t/")
    output.store.put(output.address + name, name.encode())
    return output


def shown(branch: Branch) -> dict[str, str]:
    return {item.path.removeprefix("t/"): branch.read(item.path).decode() for item in branch.list("t/")}


def test_of_two_that_replace_a_folder_one_stays(repo: Repository, meanwhile) -> None:
    main = repo.branch("main")
    main.put("t/old", b"old")
    main.commit("old")
    one, other = opened_with(main, "part-1"), opened_with(main, "part-2")
    meanwhile(lambda: main.link_output(other))
    main.link_output(one)
    assert shown(main) == {"part-1": "part-1"}, "the rows of the other one would be there beside these"


def test_of_two_that_need_an_empty_folder_one_is_refused(repo: Repository, meanwhile) -> None:
    main = repo.branch("main")
    one, other = opened_with(main, "part-1"), opened_with(main, "part-2")
    meanwhile(lambda: main.link_output(other, empty=True))
    with pytest.raises(PathTaken):
        main.link_output(one, empty=True)
    assert shown(main) == {"part-2": "part-2"}


def test_an_output_beside_a_deletion_is_there_in_whole_or_not_at_all(repo: Repository, meanwhile) -> None:
    main = repo.branch("main")
    main.put("t/part-0", b"old")
    main.commit("old")
    meanwhile(lambda: replace_folder(main, "new", "part-0", "part-1"))
    main.delete_prefix("t/")
    assert shown(main) == {}


def test_writers_of_one_folder_leave_the_files_of_one(lake_of_threads: Lake) -> None:
    main = lake_of_threads.create_repository("repo").branch("main")
    with ThreadPoolExecutor(3) as pool:
        for turn in range(8):
            list(pool.map(lambda writer, turn=turn: replace_folder(main, f"{turn}-{writer}"), range(3)))
            found = shown(main)
            assert len(found) == 2, found
            assert len({*found.values()}) == 1, found
            assert found.keys() == {f"part-{value}-{number}" for value in found.values() for number in (0, 1)}


def append(branch: Branch, key: str | None, *names: str, collide: OnCollision = "refuse", text: str = "") -> None:
    with branch.output("t/", "append", collide, idempotency_key=key) as url:
        for name in names:
            Path(urlsplit(url).path, name).write_text(text or name)


@pytest.mark.parametrize("collide", ["refuse", "rename", "overwrite"])
@pytest.mark.parametrize("published", [False, True])
def test_what_a_task_appends_again_takes_the_place_of_what_it_appended(
    repo: Repository, contents, collide: OnCollision, published: bool
) -> None:
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


def test_an_append_under_a_key_replaces_nothing_of_others(repo: Repository, meanwhile) -> None:
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


def test_tries_of_one_task_add_their_rows_once(lake_of_threads: Lake) -> None:
    main = lake_of_threads.create_repository("repo").branch("main")
    with ThreadPoolExecutor(3) as pool:
        for turn in range(4):
            list(pool.map(lambda again, turn=turn: append(main, f"turn {turn}", f"{turn}-{again}"), range(3)))
            assert len(shown(main)) == turn + 1


def test_what_is_written_under_a_key_is_collected_when_nobody_needs_it(repo: Repository, clock: ManualClock) -> None:
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


def test_of_two_appends_of_one_path_one_is_refused(repo: Repository, meanwhile) -> None:
    """The second one has looked at the branch before the first one stages its file."""
    main = repo.branch("main")
    meanwhile(lambda: append(main, None, "part", text="first"))
    with pytest.raises(PathTaken):
        append(main, None, "part", text="second")
    assert shown(main) == {"part": "first"}
