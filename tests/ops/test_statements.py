"""How many statements the small verbs send, and how many transactions any verb takes: that is what they cost."""

from __future__ import annotations

from itertools import islice

import pytest
from support.statements import ours, statements, transactions

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


def test_a_new_branch_is_six(repo: Repository, counted) -> None:
    """On a server it is five: there, a move and its record in the audit are one statement."""
    names = iter("abcdef")
    assert counted(lambda: repo.create_branch(next(names), "main")) == 6


@pytest.fixture
def trips(repo: Repository, lake: Lake):
    """Runs something once; returns how many transactions read and how many write."""

    def trips(work) -> tuple[int, int]:
        with transactions(lake.catalog) as seen:
            work()
        return seen.count("read"), seen.count("write")

    return trips


def test_transactions_of_what_is_written(repo: Repository, trips) -> None:
    main = repo.branch("main")
    assert trips(lambda: main.put("a", b"1")) == (1, 1)
    assert trips(lambda: main.delete("a")) == (1, 1), "the look before the put was a moment ago"
    main.put("a", b"1")
    assert trips(main.reset) == (1, 1)
    main.put("a", b"1")
    # Seal, read the sealed rows, ask for the time, publish, remove the rows.
    assert trips(lambda: main.commit("one")) == (2, 3)
    main.put("a", b"2")
    assert trips(lambda: main.commit("two", idempotency_key="key")) == (2, 3)
    assert trips(lambda: main.commit("two", idempotency_key="key")) == (1, 1)
    assert trips(lambda: repo.create_branch("dev", "main")) == (1, 1)
    assert trips(lambda: repo.create_tag("v1", "main")) == (1, 1)
    repo.branch("dev").put("b", b"1")
    repo.branch("dev").commit("three")
    # The branches and the source, the destination's rows, the merge base, the time, publish.
    assert trips(lambda: repo.merge("dev", "main", idempotency_key="merge")) == (4, 1)
    assert trips(lambda: repo.merge("dev", "main", idempotency_key="merge")) == (2, 0)
    assert trips(lambda: repo.merge("dev", "main")) == (3, 0)
    assert trips(lambda: repo.delete_branch("dev")) == (0, 1)


def test_transactions_of_what_is_read(repo: Repository, trips, fill) -> None:
    for number in range(3):
        fill(repo, "main", a=str(number))
    main = repo.branch("main")
    repo.create_branch("dev", "main~1")
    assert trips(lambda: main.stat("a")) == (1, 0)
    assert trips(lambda: repo.ref("main~1").stat("a")) == (1, 0)
    assert trips(lambda: list(main.list())) == (1, 0)
    assert trips(lambda: list(main.uncommitted())) == (1, 0)
    assert trips(lambda: list(repo.log("main", amount=4))) == (1, 0)
    assert trips(lambda: list(repo.diff("main~1", "main"))) == (1, 0)
    assert trips(lambda: list(repo.compare("dev", "main"))) == (2, 0)
    assert trips(lambda: repo.merge_base("dev", "main")) == (1, 0)
