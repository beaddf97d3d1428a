"""Logs, blame and the search for the first bad commit: against walks that compare whole contents."""

import random
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import product

import pytest
from sqlalchemy import insert, update
from support.catalogs import expire_commits
from support.graphs import History, make_history, merge_base, random_parents
from support.scenes import tree

from lakeops import ChangeType, Commit, Lake
from lakeops.catalog.records import commit_values
from lakeops.catalog.tables import COMMIT
from lakeops.model.errors import (
    CommitExpired,
    Corrupted,
    InvalidInput,
    InvalidPath,
    NotFound,
    ObjectNotFound,
    PreconditionFailed,
    RefNotFound,
)
from lakeops.model.ids import Origin
from lakeops.ops import blame as verbs
from lakeops.ops import history as histories


@pytest.fixture
def history(wander):
    """Twenty random steps on three branches, merges among them, each a minute after the one before."""
    return wander(7, steps=20, every=4, changes=4, seconds=(60,))


def naive_log(repo, trees, ref, keep, first_parent):
    """The log of some paths, by comparing the whole contents of each commit with those of its parents.

    ``trees`` keeps what was read of a commit.
    """

    def part(commit_id):
        if commit_id not in trees:
            trees[commit_id] = tree(repo, commit_id)
        return {path: data for path, data in trees[commit_id].items() if keep(path)}

    found = []
    for commit in repo.log(ref, first_parent=first_parent):
        parents = commit.parents[:1] if first_parent else commit.parents
        if parents and all(part(parent) != part(commit.id) for parent in parents):
            found.append(commit.id)
    return found


def test_logs_of_paths_and_prefixes(history):
    trees: dict[str, dict[str, bytes]] = {}
    for ref, first_parent in product(("main", "left"), (False, True)):
        for prefix in ("a", "a/", "ab/3", "nothing/"):
            log = history.log(ref, prefix=prefix, first_parent=first_parent)
            wanted = naive_log(history, trees, ref, lambda path, under=prefix: path.startswith(under), first_parent)
            assert [commit.id for commit in log] == wanted
        for path in ("a", "a/1", "top", "ab"):
            log = history.log(ref, path=path, first_parent=first_parent)
            assert [commit.id for commit in log] == naive_log(history, trees, ref, path.__eq__, first_parent)


def test_times_and_people(settings, clock, history):
    every = list(history.log("main"))
    for first, last in ((every[-4], every[2]), (every[3], every[3]), (every[2], every[-4])):
        since, until = (datetime.fromtimestamp(commit.creation_date, UTC) for commit in (first, last))
        log = list(history.log("main", since=since, until=until))
        assert log == [one for one in every if first.creation_date <= one.creation_date <= last.creation_date]
    with Lake.open(settings=settings.model_copy(update={"committer": "grace hopper"}), clock=clock) as lake:
        repo = lake.repository("repo")
        repo.branch("main").put("hers", b"1")
        hers = repo.branch("main").commit("hers")
        assert list(repo.log("main", author="hopper")) == [hers]
        assert list(repo.log("main", author="Hopper")) == []
        assert list(repo.log("main", author="hopper", path="hers", amount=5)) == [hers]
        assert list(repo.log("main", amount=2)) == [hers, every[0]]


@pytest.mark.parametrize("form", [lambda day: day, lambda day: day.isoformat(), lambda day: f"{day}T00:00+00:00"])
def test_a_date_is_its_first_moment(repo, clock, fill, form):
    for number in range(4):
        fill(repo, "main", message=str(number), a=str(number))
        clock.advance(seconds=86_400)
    one, _, two, *_ = list(repo.log("main"))
    day = datetime.fromtimestamp(two.creation_date, UTC).date()
    midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
    since, until = (list(repo.log("main", **{side: form(day)})) for side in ("since", "until"))
    assert one in since
    assert since == list(repo.log("main", since=midnight))
    assert until == list(repo.log("main", until=midnight))
    assert [*repo.audit(since=form(day))] == [*repo.audit(since=midnight)]


def test_what_retention_took_is_left_out_of_logs_and_named(lake, history):
    every = list(history.log("main", first_parent=True))
    wanted = [commit.id for commit in history.log("main", first_parent=True, prefix="a")]
    expire_commits(lake.catalog, "repo", [every[3].id])
    unknown: list[Commit] = []
    log = history.log("main", first_parent=True, prefix="a", on_expired=unknown.append)
    assert [commit.id for commit in log] == [one for one in wanted if one not in {every[2].id, every[3].id}]
    assert [commit.id for commit in unknown] == [every[2].id, every[3].id]
    assert list(history.log("main", first_parent=True))[3].expired, "without a path they are listed"


def test_what_a_log_refuses(repo):
    for given, error in (
        ({"path": "a", "prefix": "b"}, InvalidInput),
        ({"path": ""}, InvalidPath),
        ({"prefix": "\0"}, InvalidPath),
        ({"since": datetime(2026, 1, 1)}, InvalidInput),  # noqa: DTZ001 - the point
        ({"since": "yesterday"}, InvalidInput),
        ({"until": 7}, InvalidInput),
        ({"author": "\ud800"}, InvalidInput),
        ({"amount": -1}, InvalidInput),
    ):
        with pytest.raises(error):
            list(repo.log("main", **given))
    for given in ({"merged": "nosuch"}, {"not_merged": "nosuch"}):
        with pytest.raises(RefNotFound):
            list(repo.heads(**given))


@pytest.fixture
def far_apart(lake, repo, monkeypatch):
    """Puts commits into the repository, and has every two of them count as far apart."""
    for name, value in {"WALKED": -1, "LINES": 0, "FIRST": 2, "LONGEST": 5, "MOST": 20}.items():
        monkeypatch.setattr(histories, name, value)

    def put(commits):
        rows = [commit_values(repo.id, one) for one in commits]
        lake.catalog.database.write(lambda conn: conn.execute(insert(COMMIT), rows))

    return put


@pytest.mark.parametrize("seed", range(10))
def test_commits_far_apart_have_the_merge_base_that_a_walk_from_commit_to_commit_finds(repo, far_apart, seed):
    rng = random.Random(seed)
    commits = make_history(random_parents(rng, 60))
    far_apart(commits)
    for _ in range(10):
        left, right = (one.id for one in rng.choices(commits, k=2))
        expected = merge_base(History(commits), left, right)
        if expected is None:
            with pytest.raises(PreconditionFailed, match="share no history"):
                repo.merge_base(left, right)
        else:
            assert repo.merge_base(left, right).id == expected


def test_a_commit_whose_parents_cannot_be_read_is_named_by_a_search_for_the_merge_base(lake, repo, far_apart):
    first, middle, left, right = make_history([(), (0,), (1,), (0,)])
    far_apart([first, middle, left, right])
    change = update(COMMIT).where(COMMIT.c.id == middle.id).values(parents={"a": 1})
    lake.catalog.database.write(lambda conn: conn.execute(change))
    with pytest.raises(Corrupted, match=middle.id):
        repo.merge_base(left.id, right.id)


def test_branches_by_what_is_merged(history):
    for number in range(4):
        history.create_branch(f"old{number}", source=f"main~{number}")
    history.branch("old0").put("x", b"1")
    history.branch("old0").commit("ahead")
    for ref in ("main", "left", "right", "main~2", "old0"):
        reached = {commit.id for commit in history.log(ref)}
        wanted = [head.id for head in history.branches() if head.commit_id in reached]
        assert [head.id for head in history.heads(merged=ref)] == wanted
        others = [head.id for head in history.heads(not_merged=ref)]
        assert sorted([*wanted, *others]) == [head.id for head in history.branches()]
    head = next(history.heads(prefix="old0"))
    assert (head.commit, head.to_json()["message"]) == (history.branch("old0").head, "ahead")


PATHS = [f"{folder}/{number}" for folder in ("a", "ab", "b") for number in range(9)] + ["a", "top"]


@pytest.fixture
def told(wander):
    """Twenty-four random steps on three branches, a third of them merges."""
    return lambda seed: wander(seed, steps=24, every=3, changes=5, seconds=(0, 1, 60))


class Naive:
    """The answers from the whole contents of commits, one path at a time."""

    def __init__(self, repo):
        self._commits = {commit.id: commit for ref in repo.branches() for commit in repo.log(ref.id)}
        self.trees = {commit_id: tree(repo, commit_id) for commit_id in self._commits}

    def writer(self, commit_id, path):
        for parent in self._commits[commit_id].parents:
            if self.trees[parent].get(path) == self.trees[commit_id][path]:
                return self.writer(parent, path)
        return commit_id

    def versions(self, commit_id, path):
        parents = self._commits[commit_id].parents
        here = self.trees[commit_id].get(path)
        for parent in parents:
            if self.trees[parent].get(path) == here:
                return self.versions(parent, path)
        before = set().union(*(self.versions(parent, path) for parent in parents))
        return before | ({commit_id} if here is not None or parents else set())


@pytest.mark.parametrize(
    ("seed", "limit", "most"),
    [(0, "PAGE", 3), pytest.param(1, "PAGE", 7, marks=pytest.mark.slow), (2, "PAGE", 100_000), (4, "PAGE_BYTES", 60)],
)
def test_the_naive_walk_gives_the_same(told, monkeypatch, seed, limit, most):
    monkeypatch.setattr(verbs, limit, most)
    repo = told(seed)
    naive = Naive(repo)
    for name in ("main", "left", "right"):
        head = repo.branch(name).commit_id
        found = list(repo.ref(name).blame())
        assert [(one.path, one.commit.id) for one in found] == [
            (path, naive.writer(head, path)) for path in sorted(naive.trees[head])
        ]
        assert not any(one.boundary for one in found)
        assert list(repo.ref(name).blame("a")) == [one for one in found if one.path.startswith("a")]
        rest = [one for one in found if one.path.startswith("a") and one.path > "a/4"]
        assert list(repo.branch(name).blame("a", after="a/4", amount=3)) == rest[:3]
        for path in PATHS[::3]:
            if not any(path in tree for tree in naive.trees.values()):
                continue
            wanted = naive.versions(head, path)
            if not wanted:
                with pytest.raises(ObjectNotFound):
                    list(repo.ref(name).history(path))
                continue
            versions = list(repo.ref(name).history(path))
            assert {one.commit.id for one in versions} == wanted
            assert len(versions) == len(wanted)
            generations = [one.commit.generation for one in versions]
            assert generations == sorted(generations, reverse=True)
            assert list(repo.ref(name).history(path, amount=1)) == versions[:1]


def test_beyond_a_depth_an_earlier_commit_may_have_written_it(told):
    repo = told(3)
    naive = Naive(repo)
    whole = {one.path: one for one in repo.ref("main").blame()}
    paths = [path for path in PATHS if any(path in held for held in naive.trees.values())][::3]
    versions = {path: list(repo.ref("main").history(path)) for path in paths}
    for depth in (0, 1, 5, 11, 100):
        found = list(repo.ref("main").blame(depth=depth))
        assert [one.path for one in found] == list(whole)
        for one in found:
            if one.boundary:
                assert naive.trees[one.commit.id][one.path] == naive.trees[whole[one.path].commit.id][one.path]
                assert one.commit.generation >= whole[one.path].commit.generation
            else:
                assert one == whole[one.path]
        if depth in (0, 100):
            assert {one.boundary for one in found} == {depth == 0}
        for path in paths:
            some = list(repo.ref("main").history(path, depth=depth))
            sure = [one for one in some if not one.boundary]
            assert sure == [one for one in versions[path] if one in sure]
            assert all(one.path == path and naive.trees[one.commit.id].get(path) for one in some if one.boundary)


def test_what_each_version_was(repo):
    main = repo.branch("main")
    for data in (b"1", b"two", None, b"4"):
        if data is None:
            main.delete("x")
        else:
            main.put("x", data)
        main.put("other", data or b"")
        main.commit(f"{data!r}")
    kinds = [(one.type, one.size_bytes) for one in main.history("x")]
    assert kinds == [(ChangeType.ADDED, 1), (ChangeType.REMOVED, 3), (ChangeType.CHANGED, 3), (ChangeType.ADDED, 1)]
    assert next(main.history("x")).checksum == main.stat("x").checksum


def test_the_same_contents_put_again_are_no_new_object(repo):
    main = repo.branch("main")
    main.put("x", b"1")
    first = main.commit("first")
    main.put("x", b"1")
    main.put("y", b"1")
    second = main.commit("second")
    assert [(one.path, one.commit) for one in main.blame()] == [("x", first), ("y", second)]
    assert [one.commit for one in main.history("x")] == [first]
    main.put("x", b"1", metadata={"k": "v"})
    third = main.commit("third")
    assert [one.commit for one in main.history("x")] == [third, first]


def test_what_retention_took_is_a_boundary(lake, repo):
    main = repo.branch("main")
    made = []
    for number in range(4):
        main.put(f"o{number}", b"1")
        main.put("x", f"{number}".encode())
        made.append(main.commit(f"{number}"))
    expire_commits(lake.catalog, "repo", [made[1].id])
    assert [(one.path, one.commit.message, one.boundary) for one in main.blame()] == [
        ("o0", "2", True),
        ("o1", "2", True),
        ("o2", "2", True),
        ("o3", "3", False),
        ("x", "3", False),
    ]
    versions = [(one.type.value, one.commit.message, one.boundary) for one in main.history("x")]
    assert versions == [("changed", "3", False), ("added", "2", True)]
    with pytest.raises(CommitExpired):
        repo.ref(made[1].id).blame()
    with pytest.raises(CommitExpired):
        repo.ref(made[1].id).history("x")


def test_uncommitted_changes_are_not_looked_at(repo):
    main = repo.branch("main")
    assert list(main.blame()) == []
    main.put("x", b"1")
    assert list(main.blame()) == []
    with pytest.raises(ObjectNotFound, match="leads to has 'x'"):
        list(main.history("x"))


def test_the_dag_run_is_told(repo):
    run = Origin({"airflow_dag_id": "load", "airflow_run_id": "r1", "airflow_task_id": "publish"})
    main = repo.branch("main")
    main.put("x", b"1")
    main.commit("by hand")
    main.put("y", b"1")
    main.commit("by a task", metadata=Origin({**run, "airflow_link": "https://airflow/log", "rows": "1"}))
    main.put("z", b"1")
    main.commit("by a task without a link", metadata=run)
    told = {"dag_id": "load", "run_id": "r1", "task_id": "publish"}
    assert [one.to_json()["dag_run"] for one in main.blame()] == [
        None,
        {**told, "link": "https://airflow/log"},
        {**told, "link": None},
    ]


def test_what_blame_refuses(repo):
    main = repo.branch("main")
    for given, error in (
        ({"prefix": "\0"}, InvalidPath),
        ({"after": "\ud800"}, InvalidPath),
        ({"amount": -1}, InvalidInput),
        ({"amount": True}, InvalidInput),
        ({"depth": -1}, InvalidInput),
    ):
        with pytest.raises(error):
            main.blame(**given)
    for given, error in (({"path": ""}, InvalidPath), ({"path": "x", "amount": -1}, InvalidInput)):
        with pytest.raises(error):
            main.history(**given)
    with pytest.raises(RefNotFound):
        repo.ref("nosuch").blame()
    assert list(main.blame(amount=0)) == []


@pytest.fixture
def line(repo):
    """Twenty commits, oldest first; one is a merge whose other side is older than all but the first."""
    branch = repo.branch("main")
    side = repo.create_branch("side")
    side.commit("aside", allow_empty=True)
    for number in range(19):
        if number == 9:
            repo.merge("side", "main", allow_empty=True)
        branch.commit(f"{number}", allow_empty=True)
    return [*repo.log("main", first_parent=True)][::-1]


def looking(line, first_bad, skip=()):
    seen: list[int] = []

    def is_good(commit):
        seen.append(line.index(commit))
        return None if seen[-1] in skip else seen[-1] < first_bad

    return is_good, seen


def test_each_commit_is_found_in_few_looks(repo, line):
    for first_bad in range(1, len(line)):
        is_good, seen = looking(line, first_bad)
        assert repo.bisect(line[0].id, "main", is_good, first_parent=True) == line[first_bad]
        assert len(seen) == len({*seen}) <= 5
        assert not {0, len(line) - 1} & {*seen}


def test_what_cannot_be_told_is_passed_over(repo, line):
    for first_bad in (3, 10, 17):
        skip = tuple(place for place in range(1, 20) if abs(place - first_bad) > 1)
        is_good, _ = looking(line, first_bad, skip)
        assert repo.bisect(line[0].id, "main", is_good, first_parent=True) == line[first_bad]
    is_good, _ = looking(line, 10, (9, 10, 11))
    with pytest.raises(NotFound, match=line[10].id[:16]):
        repo.bisect(line[0].id, "main", is_good, first_parent=True)


@pytest.mark.parametrize("seed", range(6))
def test_a_search_by_hand_finds_the_first_bad_commit_of_histories_with_merges(repo, seed):
    dice, branches = random.Random(seed), ["main"]
    first = repo.branch("main").commit("first", allow_empty=True)
    culprit = dice.randrange(1, 12)
    for number in range(12):
        name = dice.choice(branches)
        if number == culprit:
            repo.branch(name).put("fault", b"")
        repo.branch(name).commit(f"{number}", allow_empty=True)
        if len(branches) < 3:
            branches.append(repo.create_branch(f"b{number}", name).id)
        repo.merge(dice.choice(branches), dice.choice(branches), allow_empty=True)
    for name in branches:
        repo.merge(name, "main", allow_empty=True)
    goods = [one.id for one in repo.log("main") if not repo.ref(one.id).exists("fault")]
    state = repo.start_bisect("main", first.id, *dice.sample(goods, min(2, len(goods))))
    while state.next is not None:
        state = repo.mark_bisect("bad" if repo.ref(state.next.id).exists("fault") else "good")
    assert state.first_bad is not None
    assert state.first_bad.message == f"{culprit}"


def test_each_lake_with_one_home_has_its_own_search(tmp_path):
    repos = []
    with ExitStack() as stack:
        for name in "ab":
            lake = Lake.open(home=tmp_path, database_url=f"sqlite:///{tmp_path}/{name}.db")
            repos.append(stack.enter_context(lake).create_repository("flights", f"file://{tmp_path}/{name}"))
            repos[-1].branch("main").commit(name, allow_empty=True)
        one, other = repos
        begun = one.start_bisect("main")
        with pytest.raises(NotFound, match="no bisection"):
            other.bisection()
        other.start_bisect("main~1")
        other.end_bisect()
        assert one.bisection() == begun


def test_what_a_bisect_refuses(repo, line):
    is_good, _ = looking(line, 5)
    for good, bad, error in (
        ("main", "main~1", InvalidInput),
        ("main", "main", InvalidInput),
        ("nosuch", "main", RefNotFound),
        ("main~3", "nosuch", RefNotFound),
    ):
        with pytest.raises(error):
            repo.bisect(good, bad, is_good)
    expire_commits(repo._ctx.catalog, "repo", [line[10].id])
    with pytest.raises(CommitExpired):
        repo.bisect(line[8].id, line[12].id, is_good)
