"""How many statements the small verbs send: that is what they cost."""

from __future__ import annotations

from itertools import islice

import pytest
from support.statements import ours, statements

from lakeops import Lake, Repository


@pytest.fixture
def counted(lake: Lake):
    """Calls something twice, and returns how many statements the second call sent: the process has its caches then."""

    def counted(work) -> int:
        work()
        with statements(lake.catalog) as seen:
            work()
        return len(ours(seen))

    return counted


def test_reading_a_path_of_a_branch_is_one(repo: Repository, fill, counted) -> None:
    fill(repo, "main", a="1")
    main = repo.branch("main")
    main.put("b", b"2")
    for path in ("a", "b"):
        assert counted(lambda path=path: main.stat(path)) == 1
    assert counted(lambda: main.exists("none")) == 1
    at_commit = repo.ref(main.commit_id)
    assert counted(lambda: at_commit.stat("a")) == 1


def test_a_page_of_a_branch_is_two(repo: Repository, fill, counted) -> None:
    fill(repo, "main", **{f"f{number}": "" for number in range(20)})
    main = repo.branch("main")
    assert counted(lambda: list(islice(main.list(), 5))) == 2
    assert counted(lambda: list(main.list(delimiter="/"))) == 2


def test_a_log_of_known_length_is_two(repo: Repository, counted) -> None:
    main = repo.branch("main")
    for number in range(40):
        main.commit(str(number), allow_empty=True)
    assert counted(lambda: list(repo.log("main", amount=40))) == 2
    assert counted(lambda: list(repo.log("main", amount=1))) == 2
    assert 2 < counted(lambda: list(repo.log("main"))) < 10


def test_a_new_branch_is_five(repo: Repository, counted) -> None:
    names = iter("abcdef")
    assert counted(lambda: repo.create_branch(next(names), "main")) == 5
