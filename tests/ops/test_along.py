"""Commits that take other callers' changes along keep what these said, and their keys."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest

from lakeops import Branch, Commit, Lake, Repository, Split
from lakeops.model.errors import BranchMoved, InvalidInput, NoChanges
from lakeops.model.ids import ALONG_BYTES, Origin, id_of
from lakeops.model.records import Along
from lakeops.testing import Crash, Faults


@pytest.fixture
def lake(faulty_lake: Lake) -> Lake:
    return faulty_lake


@pytest.fixture
def main(repo: Repository) -> Branch:
    for number in range(20):
        repo.branch("main").put(f"base/{number:02}", b"1")
    repo.branch("main").commit("base")
    return repo.branch("main")


def test_what_the_slower_one_said_is_kept(faults: Faults, repo: Repository, main: Branch) -> None:
    made: list[Commit] = []

    def faster() -> None:
        main.put("b", b"1")
        made.append(main.commit("faster", {"of": "b"}))

    main.put("a", b"1")
    faults.hook("publish", action=lambda _: faster())
    slower = main.commit("slower", {"of": "a"}, idempotency_key="k")
    assert [slower] == made
    assert slower.message == "faster"
    assert slower.along == [Along("tester", "slower", {"of": "a"})]
    assert slower.metadata["of"] == "b"
    assert id_of(slower) == slower.id
    assert repo.ref("main").commit == slower
    assert main.commit("slower", {"of": "a"}, idempotency_key="k") == slower
    assert [finding for finding in repo.fsck() if finding.severity.value != "info"] == []
    main.put("c", b"1")
    assert main.commit("later").along == []


@pytest.mark.parametrize("key", [None, "k"])
def test_what_others_stage_meanwhile_is_left_to_them(faults: Faults, main: Branch, key: str | None) -> None:
    """The slower one's key stands for the faster one's commit already when it comes to publish."""
    made: list[Commit] = []

    def faster() -> None:
        made.append(main.commit("faster"))
        main.put("later", b"1")

    main.put("a", b"1")
    faults.hook("publish", action=lambda _: faster())
    assert main.commit("slower", idempotency_key=key) == made[0]
    assert [change.path for change in main.uncommitted()] == ["later"]


def test_who_finds_its_rows_sealed_by_others_is_heard_too(faults: Faults, main: Branch) -> None:
    """Both staged under one token, and the faster one sealed it: its commit is made before the slower one comes."""
    made: list[Commit] = []
    main.put("a", b"1")
    main.put("b", b"1")

    def other() -> None:
        faults.hook("publish", action=lambda _: made.append(main.commit("first to publish")))
        made.append(main.commit("sealed it late"))

    faults.hook("publish", action=lambda _: other())
    outer = main.commit("sealed it")
    assert made == [outer, outer]
    assert (outer.message, {one.message for one in outer.along}) == (
        "first to publish",
        {"sealed it", "sealed it late"},
    )


def test_a_commit_a_caller_where_nobody_is_overtaken(
    lake: Lake, faults: Faults, repo: Repository, main: Branch
) -> None:
    """What was sealed later is left to its own caller, also when the earlier one has to try again."""

    def sealed(_call: object) -> None:
        repo.create_branch("side").put("s", b"1")
        repo.branch("side").commit("side")
        main.put("newer", b"1")
        lake.catalog.staging.seal("repo", "main", token="t-newer")  # somebody who sealed and has not published yet
        faults.fail("publish", error=BranchMoved("moved"))

    faults.hook("seal", when="after", action=sealed)
    main.put("mine", b"1")
    mine = main.commit("mine")
    assert [change.path for change in repo.diff("main~1", "main@")] == ["mine"]
    assert [change.path for change in main.uncommitted()] == ["newer"]
    assert (mine.along, main.commit("newer").along) == ([], [])


@pytest.fixture
def died(faults: Faults, repo: Repository) -> Callable[..., None]:
    """Seals what it has put, and is killed before it publishes."""

    def die(path: str, *given: object, **options: object) -> None:
        repo.branch("main").put(path, b"1")
        faults.crash(at=1, operations=("publish",))
        with pytest.raises(Crash):
            repo.branch("main").commit(*given, **options)
        faults.revive()

    return die


def test_a_key_of_a_caller_that_died_stands_for_the_commit(died, repo: Repository) -> None:
    """It sealed and was killed. The next commit takes its rows along, and the repeated call finds that one."""
    died("a", "died", {"k": "v"}, idempotency_key="died")
    main = repo.branch("main")
    main.put("b", b"1")
    taken = main.commit("next")
    assert taken.along == [Along("tester", "died", {"k": "v"})]
    assert main.commit("died", {"k": "v"}, idempotency_key="died") == taken


@pytest.mark.parametrize(("key", "number"), [(None, "1"), ("k", "2")])
def test_a_call_that_is_repeated_says_it_once(died, repo: Repository, key: str | None, number: str) -> None:
    died("a", "work", Origin(airflow_try_number="1"), idempotency_key=key)
    repo.branch("main").put("b", b"1")
    again = repo.branch("main").commit("work", Origin(airflow_try_number=number), idempotency_key=key)
    assert again.along == []


def test_what_was_reset_is_not_spoken_of(died, repo: Repository) -> None:
    died("a", "unwanted")
    repo.branch("main").reset()
    repo.branch("main").put("b", b"1")
    assert repo.branch("main").commit("wanted").along == []


def test_long_messages_are_cut_and_say_so(repo: Repository, main: Branch) -> None:
    catalog = repo._ctx.catalog
    from lakeops.catalog.records import Intent

    count = ALONG_BYTES // 60_000 + 3
    for number in range(count):
        main.put(f"a{number}", b"1")
        catalog.staging.seal("repo", "main", token=f"t{number}", intent=Intent("ada", f"{number} " + "x" * 60_000))
    taken = main.commit("all")
    assert [one.message.split()[0] for one in taken.along] == [f"{number}" for number in range(count)]
    assert [one.cut for one in taken.along].count(True) == count - ALONG_BYTES // 60_100
    assert sum(len(text) for text in taken.metadata.values()) < ALONG_BYTES + 10_000


def test_nobody_speaks_for_others(main: Branch) -> None:
    main.put("a", b"1")
    with pytest.raises(InvalidInput, match="reserved"):
        main.commit("m", {"lakeops.along.1": json.dumps({"committer": "boss", "message": "yes", "metadata": {}})})


def test_what_45_callers_say_at_once_is_kept(lake_of_threads: Lake) -> None:
    repo = lake_of_threads.create_repository("repo", split=Split(4, 8, 16))
    ends: Counter[str] = Counter()
    wrong: list[str] = []
    start = threading.Barrier(45)

    def work(number: int) -> None:
        branch = repo.branch("main")
        branch.put(f"w{number:02}", b"1")
        start.wait()
        message, metadata = f"message {number}", {"caller": f"{number}"}
        try:
            made = branch.commit(message, metadata, idempotency_key=f"k{number}" if number % 2 else None)
        except NoChanges:  # its put was committed by somebody before this call began
            ends["told that nothing was left"] += 1
            return
        own = (made.message, made.metadata.get("caller")) == (message, f"{number}")
        ends["own" if own else "along"] += 1
        if not own and Along(lake_of_threads.settings.committer, message, metadata) not in made.along:
            wrong.append(message)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(45)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert ends.total() == 45
    chain = list(repo.log("main", first_parent=True))
    added = [change.path for newer, older in pairwise(chain) for change in repo.diff(older.id, newer.id)]
    assert sorted(added) == [f"w{number:02}" for number in range(45)]
    said = Counter(one.message for commit in chain for one in (commit, *commit.along))
    assert {count for message, count in said.items() if message.startswith("message")} == {1}
