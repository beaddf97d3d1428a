"""Commits beside others: what callers said is kept, nothing is lost or twice, a refusal changes nothing."""

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from contextlib import nullcontext, suppress
from itertools import pairwise
from pathlib import Path
from time import sleep

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget import examples
from support.errors import has_kind, raising
from support.scenes import tree

from lakeops import Commit, Lake, Settings, Split
from lakeops.model import errors
from lakeops.model.errors import BranchMoved, InvalidInput, NoChanges
from lakeops.model.ids import ALONG_BYTES, Origin, id_of
from lakeops.model.records import Along
from lakeops.testing import Crash


@pytest.fixture
def lake(faulty_lake):
    return faulty_lake


@pytest.fixture
def main(repo):
    for number in range(20):
        repo.branch("main").put(f"base/{number:02}", b"1")
    repo.branch("main").commit("base")
    return repo.branch("main")


def test_what_the_slower_one_said_is_kept(faults, repo, main):
    made: list[Commit] = []

    def faster():
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
def test_what_others_stage_meanwhile_is_left_to_them(faults, main, key):
    """The slower one's key stands for the faster one's commit already when it comes to publish."""
    made: list[Commit] = []

    def faster():
        made.append(main.commit("faster"))
        main.put("later", b"1")

    main.put("a", b"1")
    faults.hook("publish", action=lambda _: faster())
    assert main.commit("slower", idempotency_key=key) == made[0]
    assert [change.path for change in main.uncommitted()] == ["later"]


@pytest.mark.parametrize("verb", ["merge", "revert", "cherry_pick"])
def test_a_dirty_branch_is_refused_and_left_as_it_was(lake, repo, main, verb):
    dev = repo.create_branch("dev")
    for branch in (dev, main):
        branch.put(branch.id, b"1")
        branch.commit(branch.id)
    main.put("c", b"1")
    before = lake.catalog.refs.branch("repo", "main")
    with raising("dirty_branch"):
        main.revert("main@") if verb == "revert" else getattr(repo, verb)("dev", "main")
    assert lake.catalog.refs.branch("repo", "main") == before


def test_a_call_without_changes_gives_the_commit_that_its_key_made_meanwhile(faults, main):
    made: list[Commit] = []

    def other(_call):
        main.put("a", b"1")
        made.append(main.commit("same", idempotency_key="k"))

    faults.hook("seal", when="after", action=other)
    assert main.commit("same", idempotency_key="k") == made[0]


@pytest.mark.parametrize("lost", ["with its branch", "by a discard", "a race without rows"])
def test_a_commit_that_lost_its_rows_takes_none_of_others(faults, repo, main, lost):
    dev, empty = repo.create_branch("dev"), lost == "a race without rows"
    if not empty:
        dev.put("base/00", b"1" if lost == "by a discard" else b"2")

    def meanwhile(_):
        if lost == "with its branch":
            repo.delete_branch("dev")
            repo.create_branch("dev")
        else:
            with suppress(NoChanges):
                dev.commit("faster", allow_empty=empty)
        dev.put("half", b"1")

    faults.hook("discard" if lost == "by a discard" else "publish", action=meanwhile)
    with nullcontext() if empty else pytest.raises(NoChanges):
        dev.commit("slower", allow_empty=empty)
    assert [change.path for change in dev.uncommitted()] == ["half"]


def test_who_finds_its_rows_sealed_by_others_is_heard_too(faults, main):
    """Both staged under one token, and the faster one sealed it: its commit is made before the slower one comes."""
    made: list[Commit] = []
    main.put("a", b"1")
    main.put("b", b"1")

    def other():
        faults.hook("publish", action=lambda _: made.append(main.commit("first to publish")))
        made.append(main.commit("sealed it late"))

    faults.hook("publish", action=lambda _: other())
    outer = main.commit("sealed it")
    assert made == [outer, outer]
    assert (outer.message, {one.message for one in outer.along}) == (
        "first to publish",
        {"sealed it", "sealed it late"},
    )


def test_a_commit_a_caller_where_nobody_is_overtaken(lake, faults, repo, main):
    """A commit leaves changes that were sealed later to their own caller, also when it has to try again."""

    def sealed(_call):
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
def died(faults, repo):
    """Seals what it has put, and is killed before it publishes."""

    def die(path, *given, **options):
        repo.branch("main").put(path, b"1")
        faults.crash(at=1, operations=("publish",))
        with pytest.raises(Crash):
            repo.branch("main").commit(*given, **options)
        faults.revive()

    return die


def test_a_key_of_a_caller_that_died_stands_for_the_commit(died, repo):
    """It sealed and was killed. The next commit takes its rows along, and the repeated call finds that one."""
    died("a", "died", {"k": "v"}, idempotency_key="died")
    main = repo.branch("main")
    main.put("b", b"1")
    taken = main.commit("next")
    assert taken.along == [Along("tester", "died", {"k": "v"})]
    assert main.commit("died", {"k": "v"}, idempotency_key="died") == taken


@pytest.mark.parametrize(("key", "number"), [(None, "1"), ("k", "2")])
def test_a_call_that_is_repeated_says_it_once(died, repo, key, number):
    died("a", "work", Origin(airflow_try_number="1"), idempotency_key=key)
    repo.branch("main").put("b", b"1")
    again = repo.branch("main").commit("work", Origin(airflow_try_number=number), idempotency_key=key)
    assert again.along == []


def test_what_was_reset_is_not_spoken_of(died, repo):
    died("a", "unwanted")
    repo.branch("main").reset()
    repo.branch("main").put("b", b"1")
    assert repo.branch("main").commit("wanted").along == []


def test_long_messages_are_cut_and_say_so(repo, main):
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


def test_nobody_speaks_for_others(main):
    main.put("a", b"1")
    with pytest.raises(InvalidInput, match="reserved"):
        main.commit("m", {"lakeops.along.1": json.dumps({"committer": "boss", "message": "yes", "metadata": {}})})


def test_what_45_callers_say_at_once_is_kept(lake_of_threads):
    repo = lake_of_threads.create_repository("repo", split=Split(4, 8, 16))
    ends: Counter[str] = Counter()
    wrong: list[str] = []
    start = threading.Barrier(45)

    def work(number):
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


TESTS = Path(__file__).parents[1]


def run_committers(home, url, processes, rounds):
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "support.committer", str(home), url, f"w{number}", str(rounds)],
            cwd=TESTS,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]
    for child in running:
        _, problems = child.communicate(timeout=240)
        assert child.returncode == 0, problems


def check_history(repo, wanted):
    leftover = [change.path for change in repo.branch("main").uncommitted()]
    assert leftover == [], "every put was followed by a commit"
    chain = list(repo.log("main", first_parent=True))
    assert [commit.parents for commit in chain] == [(older.id,) for older in chain[1:]] + [()]
    added = Counter(change.path for newer, older in pairwise(chain) for change in repo.diff(older.id, newer.id))
    assert added == Counter(wanted), "each path was added by exactly one commit"
    assert {item.path for item in repo.ref("main").list()} == wanted


@pytest.mark.parametrize(
    ("processes", "rounds", "postgres"), [(2, 8, False), (3, 4, True), pytest.param(8, 4, True, marks=pytest.mark.slow)]
)
def test_many_processes(request, tmp_path, processes, rounds, postgres):
    url = request.getfixturevalue("empty_postgres_url") if postgres else ""
    with Lake.open(settings=Settings.load(home=tmp_path, database_url=url or None, fsync=False)) as lake:
        repo = lake.create_repository("repo", split=Split(4, 8, 16))
        run_committers(tmp_path, url, processes, rounds)
        check_history(repo, {f"w{worker}/{number:03}" for worker in range(processes) for number in range(rounds)})


def test_a_put_during_a_commit_lands_in_it_or_stays_staged(lake, repo):
    """A thread puts without pause while another commits: each path ends in one commit, or staged at the end."""
    stop = threading.Event()
    done: list[str] = []
    problems: list[BaseException] = []

    def keep_putting():
        branch = repo.branch("main")
        try:
            while not stop.is_set():
                path = f"p{len(done):05}"
                branch.put(path, path.encode())
                done.append(path)
                assert branch.exists(path), "what was put is seen at once and from then on"
        except BaseException as error:
            problems.append(error)

    writer = threading.Thread(target=keep_putting)
    writer.start()
    try:
        commits = 0
        while commits < 15 and not problems:
            try:
                repo.branch("main").commit("meanwhile")
                commits += 1
            except NoChanges:
                continue
    finally:
        stop.set()
        writer.join()
    assert not problems
    assert [item.path for item in repo.ref("main").list()] == done
    try:
        repo.branch("main").commit("rest")
    except NoChanges:
        pass
    check_history(repo, set(done))


def test_a_branch_that_never_holds_still_is_reported(repo, monkeypatch):
    waits: list[float] = []
    monkeypatch.setattr("lakeops.ops.publish.pause", lambda seconds: waits.append(seconds) or sleep(0.01))
    settings = Settings.load(home=repo._ctx.settings.home, fsync=False, publish_minutes=0.005)
    with Lake.open(settings=settings) as lake:
        inner = lake.catalog.commits.publish

        def publish(request):
            if request.commit.message == "mine":
                raise BranchMoved("branch 'main' moved")
            return inner(request)

        lake.catalog.commits.publish = publish  # type: ignore[method-assign]
        main = lake.repository("repo").branch("main")
        main.put("a", b"")
        with pytest.raises(BranchMoved, match="publish_minutes"):
            main.commit("mine")
        assert [change.path for change in main.uncommitted()] == ["a"]
        assert len(waits) > 1
        assert max(waits) <= 1
        lake.catalog.commits.publish = inner  # type: ignore[method-assign]
        main.commit("its place is given up")


REFUSALS = ("merge_conflict", "dirty_branch", "no_changes")


@pytest.fixture
def scene(repo, fill):
    """``main`` and ``dev`` disagree about "both"; ``old`` has nothing new; reverting or picking on main conflicts."""
    fill(repo, "main", both="0", same="0")
    repo.create_branch("dev")
    repo.create_branch("old")
    fill(repo, "dev", both="dev")
    fill(repo, "main", both="main")
    fill(repo, "main", both="main again")
    return repo


REFUSED_VERBS = {
    "merge": lambda repo: repo.merge("dev", "main"),
    "revert": lambda repo: repo.branch("main").revert("main~1"),
    "cherry-pick": lambda repo: repo.cherry_pick("dev", "main"),
}


@pytest.mark.parametrize("verb", REFUSED_VERBS)
@pytest.mark.parametrize("staged", ["nothing", "no change", "a change"])
def test_a_refusal_adds_no_token(lake, scene, verb, staged):
    main = scene.branch("main")
    for number in range(3):
        if staged != "nothing":
            main.put("same", b"0" if staged == "no change" else f"changed {number}".encode())
        before = lake.catalog.refs.branch("repo", "main")
        with pytest.raises(errors.LakeopsError, check=has_kind(*REFUSALS)):
            REFUSED_VERBS[verb](scene)
        assert lake.catalog.refs.branch("repo", "main") == before
    assert before.sealed_tokens == ()


def test_nothing_to_do_adds_no_token(lake, scene, tmp_path):
    main = scene.branch("main")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_text("1")
    main.import_objects((tmp_path / "source").as_uri(), "in", "import")
    main.revert("main", message="undone")
    main.put("same", b"0")
    before = lake.catalog.refs.branch("repo", "main")
    assert scene.merge("old", "main").up_to_date
    with pytest.raises(errors.NoChanges):
        main.revert("main~1")
    assert lake.catalog.refs.branch("repo", "main") == before
    main.reset()
    main.import_objects((tmp_path / "source").as_uri(), "in", "import")
    main.put("same", b"0")
    before = lake.catalog.refs.branch("repo", "main")
    with pytest.raises(errors.NoChanges):
        main.import_objects((tmp_path / "source").as_uri(), "in", "again")
    assert lake.catalog.refs.branch("repo", "main") == before
    main.put("same", b"changed")
    with raising("dirty_branch"):
        main.import_objects((tmp_path / "source").as_uri(), "elsewhere", "import")
    assert lake.catalog.refs.branch("repo", "main") == before


def test_rows_that_change_nothing_leave_with_the_merge(lake, scene):
    """They would undo the merge, had they stayed."""
    main = scene.branch("main")
    main.put("both", b"main again")
    scene.merge("dev", "main", strategy="source-wins")
    assert main.read("both") == b"dev"
    assert list(main.uncommitted()) == []
    assert not lake.catalog.staging.has_staged("repo", "main")


@pytest.mark.parametrize("row", ["no change", "a change"])
def test_rows_that_come_while_a_merge_is_planned(scene, faulty_lake, faults, row):
    """Between its look and its seal: what changes something refuses the merge, what does not leaves with it."""
    main = scene.branch("main")
    main.put("both", b"main again")
    faults.hook("seal", action=lambda _: main.put("same", b"0" if row == "no change" else b"1"))
    repo = faulty_lake.repository("repo")
    if row == "a change":
        with raising("dirty_branch"):
            repo.merge("dev", "main", strategy="source-wins")
        assert [change.path for change in main.uncommitted()] == ["same"]
    else:
        repo.merge("dev", "main", strategy="source-wins")
        assert list(main.uncommitted()) == []
        assert main.read("both") == b"dev"


WRITES = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("01")), max_size=3)


@settings(max_examples=examples(8))
@given(sealed=WRITES, active=WRITES, where=st.sampled_from(["a", "b", "c", "", "z"]))
def test_a_reset_stops_a_commit_only_when_it_takes_its_rows(tmp_path_factory, sealed, active, where):
    """The commit has sealed and read its rows when the reset comes; it publishes what is not reset."""
    with Lake.open(settings=Settings.load(home=tmp_path_factory.mktemp("lake"), fsync=False)) as lake:
        repo = lake.create_repository("repo")
        main = repo.branch("main")
        for path, text in [("keep", "0"), *sealed]:
            main.put(path, text.encode())
        inner, tries = lake.catalog.commits.publish, []

        def publish(request):
            tries.append(request)
            if len(tries) == 1:
                for path, text in active:
                    main.put(path, text.encode())
                main.reset(prefix=where or "none")
            return inner(request)

        lake.catalog.commits.publish = publish  # type: ignore[method-assign]
        main.commit("commit")
        gone = {path for path, _ in sealed if where and path.startswith(where)}
        assert len(tries) == 1 + bool(gone)
        if not gone:
            assert tree(repo, "main@") == {path: text.encode() for path, text in [("keep", "0"), *sealed]}
        everything = {"keep": "0", **dict(sealed), **dict(active)}
        assert tree(repo, "main") == {
            path: text.encode() for path, text in everything.items() if not (where and path.startswith(where))
        }


def test_no_verb_lets_a_caller_speak_for_airflow(scene, tmp_path):
    main = scene.branch("main")
    (tmp_path / "file").write_text("1")
    main.put("new", b"1")
    head = main.commit_id
    for key in ("airflow_run_id", "approved_by"):
        told = {"metadata": {key: "somebody"}}
        for publish in (
            lambda told=told: main.commit("m", **told),
            lambda told=told: scene.merge("dev", "main", strategy="source-wins", **told),
            lambda told=told: main.revert("main~1", **told),
            lambda told=told: scene.cherry_pick("dev", "main", **told),
            lambda told=told: main.import_objects(tmp_path.as_uri(), "in", "m", **told),
        ):
            with pytest.raises(errors.InvalidInput, match=f"'{key}' is reserved"):
                publish()
    assert main.commit_id == head
