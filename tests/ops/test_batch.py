"""Many puts in few transactions: what they stage, and what is left when they break off."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from support.clock import ManualClock
from support.scenes import open_faulty, tree

from lakeops import Repository
from lakeops.model import errors
from lakeops.ops import batch as batches
from lakeops.store.faulty import Crash, Faults


@pytest.fixture
def faulty(settings, repo):
    faults = Faults()
    with open_faulty(settings, faults) as lake:
        found = lake.repository("repo")
        faults.revive()
        yield found, faults


def put_many(repo: Repository, count: int) -> None:
    with repo.branch("main").batch() as batch, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: batch.put(f"f{n:03}", str(n).encode(), metadata={"n": str(n)}), range(count)))


def test_everything_is_staged_in_few_transactions(faulty, monkeypatch):
    monkeypatch.setattr(batches, "MOST_OBJECTS", 20)
    repo, faults = faulty
    put_many(repo, 50)
    assert faults.counts["put"] == 50
    assert faults.counts["put_staged"] == 3
    assert tree(repo, "main") == {f"f{n:03}": str(n).encode() for n in range(50)}
    assert repo.branch("main").stat("f007").metadata == {"n": "7"}


def test_big_objects_are_linked_sooner(faulty, monkeypatch):
    monkeypatch.setattr(batches, "MOST_BYTES", 100)
    repo, faults = faulty
    with repo.branch("main").batch() as batch:
        for name in "abc":
            batch.put(name, b"x" * 60)
    assert faults.counts["put_staged"] == 2


def test_entries_are_those_of_put(repo):
    main = repo.branch("main")
    with main.batch() as batch:
        entry = batch.put("a", b"1", content_type="text/csv")
    assert entry == main.stat("a")
    assert entry.content_type == "text/csv"


def test_nothing_is_shown_before_it_is_linked(repo):
    main = repo.branch("main")
    with main.batch() as batch:
        batch.put("a", b"1")
        assert not main.exists("a")
        batch.link()
        assert main.exists("a")


def test_after_an_error_what_was_uploaded_is_staged(repo):
    main = repo.branch("main")
    with pytest.raises(errors.InvalidPath), main.batch() as batch:
        batch.put("a", b"1")
        batch.put("", b"2")
    assert [change.path for change in main.uncommitted()] == ["a"]


def test_an_empty_batch_does_nothing(faulty):
    repo, faults = faulty
    put_many(repo, 0)
    assert faults.counts["put_staged"] == 0


def test_branches_that_take_no_changes(repo):
    repo.protect("main")
    with pytest.raises(errors.ProtectedBranch), repo.branch("main").batch():
        pytest.fail("the batch was opened")


def test_killed_before_it_is_linked(faulty):
    repo, faults = faulty
    faults.crash(at=1, when="before", operations=("put_staged",))
    with pytest.raises(Crash):
        put_many(repo, 5)
    faults.revive()
    assert tree(repo, "main") == {}
    put_many(repo, 5)
    assert len(tree(repo, "main")) == 5


def test_objects_that_waited_too_long_are_not_linked(settings, repo, clock: ManualClock):
    """The oldest one decides: it may have been collected."""
    main = repo.branch("main")
    with pytest.raises(errors.AttemptExpired), main.batch() as batch:
        batch.put("a", b"1")
        clock.advance(hours=13)
        batch.put("b", b"2")
    assert list(main.uncommitted()) == []


def test_entries_open_as_they_were_found(repo):
    main = repo.branch("main")
    main.put("a", b"old")
    found = main.stat("a")
    main.put("a", b"new")
    with main.open_entry(found) as file:
        assert file.read() == b"old"
