"""``put(if_absent=True)``: of several writers of one path exactly one succeeds, whatever else happens to the branch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from lakeops import InvalidInput, Lake, PathTaken


def test_one_writer_of_a_path_succeeds(lake_of_threads: Lake) -> None:
    repo = lake_of_threads.create_repository("repo")
    main = repo.branch("main")

    def write(number: int) -> list[int]:
        done = []
        for turn in range(6):
            try:
                main.put(f"log/{turn}", str(number).encode(), if_absent=True)
                done.append(turn)
            except PathTaken as error:
                assert error.paths == (f"log/{turn}",)
            if number == 0:
                main.commit(f"turn {turn}", allow_empty=True)  # what was staged becomes committed under the others
        return done

    with ThreadPoolExecutor(4) as pool:
        won = dict(zip(range(4), pool.map(write, range(4)), strict=True))
    assert sorted(turn for turns in won.values() for turn in turns) == list(range(6))
    for number, turns in won.items():
        for turn in turns:
            assert main.read(f"log/{turn}") == str(number).encode()


def test_absent_is_what_the_branch_does_not_show(lake: Lake) -> None:
    main = lake.create_repository("repo").branch("main")
    main.put("a", b"1")
    main.commit("a")
    with pytest.raises(PathTaken):
        main.put("a", b"2", if_absent=True)
    assert list(main.uncommitted()) == []
    main.delete("a")
    main.put("a", b"3", if_absent=True)
    main.reset(path="a")
    assert main.read("a") == b"1"


def test_one_copy_to_a_path_succeeds(lake_of_threads: Lake) -> None:
    main = lake_of_threads.create_repository("repo").branch("main")
    for number in range(4):
        main.put(f"from/{number}", str(number).encode())

    def copy(number: int) -> list[int]:
        done = []
        for turn in range(4):
            with suppress(PathTaken):
                main.copy(f"from/{number}", f"log/{turn}", if_absent=True)
                done.append(turn)
        return done

    with ThreadPoolExecutor(4) as pool:
        won = dict(zip(range(4), pool.map(copy, range(4)), strict=True))
    assert sorted(turn for turns in won.values() for turn in turns) == list(range(4))
    assert all(main.read(f"log/{turn}") == str(number).encode() for number, turns in won.items() for turn in turns)
    main.commit("all")
    with pytest.raises(PathTaken):
        main.copy("from/1", "from/2", if_absent=True)
    with pytest.raises(InvalidInput, match="leave out recursive"):
        main.copy("from/", "to/", recursive=True, if_absent=True)


def test_what_is_put_while_an_object_moves_is_kept(lake_of_threads: Lake) -> None:
    main = lake_of_threads.create_repository("repo").branch("main")
    with ThreadPoolExecutor(2) as pool:
        for turn in range(25):
            main.put("here", b"before")
            late = f"late {turn}".encode()
            both = pool.submit(main.put, "here", late), pool.submit(main.rename, "here", f"there/{turn}")
            for one in both:
                one.result()
            assert late in {main.read(entry.path) for entry in main.list()}, f"turn {turn}"


def test_a_writer_whose_object_was_committed_before_it_got_its_answer_has_succeeded(lake: Lake) -> None:
    """It would write its version of a table again under another name, and the rows would be there twice."""
    main = lake.create_repository("repo").branch("main")
    inner, lost = lake.catalog.staging.put_staged, [1]

    def put_staged(*args, **kwargs):
        answer = inner(*args, **kwargs)
        while lost and lost.pop():
            main.commit("by somebody else")
            answer = inner(*args, **kwargs)  # as a transition does whose connection broke at COMMIT
        return answer

    lake.catalog.staging.put_staged = put_staged  # type: ignore[method-assign]
    main.put("log/1", b"mine", if_absent=True)
    assert (main.read("log/1"), list(main.uncommitted())) == (b"mine", [])
    with pytest.raises(PathTaken):
        main.put("log/1", b"mine", if_absent=True)
