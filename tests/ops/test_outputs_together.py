"""Writers of one folder at the same time: a task that a scheduler took for dead beside its second try, for instance."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from lakeops import Branch, Lake, PathTaken, Repository
from lakeops.ops.output import Output


@pytest.fixture
def meanwhile(lake: Lake) -> Callable[[Callable[[], object]], None]:
    """Does something when the next rows have been worked out, before they are staged."""
    inner, waiting = lake.catalog.put_staged, []

    def put_staged(*args, **kwargs):
        while waiting:
            waiting.pop()()
        return inner(*args, **kwargs)

    lake.catalog.put_staged = put_staged  # type: ignore[method-assign]
    return waiting.append


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
