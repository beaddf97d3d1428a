"""Merge bases, ref expressions, logs and ancestry of random histories, against Git."""

import itertools
import random
from collections import Counter

import pytest
from support.git_oracle import EPOCH, GitMerge, GitOracle, Node
from support.graphs import History, make_history, merge_base, random_dates, random_parents

from lakeops.model.errors import RefNotFound
from lakeops.model.graph import is_ancestor, log, resolve
from lakeops.model.records import Commit

SEEDS = range(500)
EXPRESSIONS = 40


class Twin:
    """One random history, kept here and in Git; ``ours`` and ``theirs`` translate ids."""

    def __init__(self, seed):
        self.seed = seed
        self.rng = random.Random(seed)
        size = self.rng.randint(1, 40)
        self.parents = random_parents(self.rng, size)
        self.dates = random_dates(self.rng, size)
        self.commits: list[Commit] = make_history(self.parents, self.dates)
        self.history = History(self.commits)

    def nodes(self):
        return [Node(parents, date) for parents, date in zip(self.parents, self.dates, strict=True)]

    def bind(self, ids):
        self.git_ids = ids
        self.theirs = {commit.id: git_id for commit, git_id in zip(self.commits, ids, strict=True)}

    def pairs(self) -> list[tuple[Commit, Commit]]:
        # Any two, two of the youngest, and two tips: these have the bases that are hard to find.
        inner = {parent for parents in self.parents for parent in parents}
        tips = [commit for index, commit in enumerate(self.commits) if index not in inner]
        return [tuple(self.rng.choices(among, k=2)) for among in (self.commits, self.commits[-6:])] + [
            tuple(self.rng.sample(tips, k=2) if len(tips) > 1 else tips * 2)
        ]


@pytest.fixture(scope="module")
def twins(git):
    drawn = [Twin(seed) for seed in SEEDS]
    for twin, ids in zip(drawn, git.import_dags([twin.nodes() for twin in drawn]), strict=True):
        twin.bind(ids)
    return drawn


def test_the_histories_are_worth_comparing(twins):
    shapes = Counter(len(parents) for twin in twins for parents in twin.parents)
    assert all(shapes[count] > 100 for count in (0, 1, 2, 3))


def test_merge_base_is_the_first_of_the_best(git, twins):
    found = Counter()
    for twin in twins:
        for left, right in twin.pairs():
            best = git.merge_base_all(twin.theirs[left.id], twin.theirs[right.id])
            candidates = [commit for commit in twin.commits if twin.theirs[commit.id] in best]
            candidates.sort(key=lambda commit: (-commit.generation, -commit.creation_date, commit.id))
            expected = candidates[0].id if candidates else None
            assert merge_base(twin.history, left.id, right.id) == expected, f"seed {twin.seed}"
            assert merge_base(twin.history, right.id, left.id) == expected, f"seed {twin.seed}"
            found[len(best)] += 1
    assert found[0] > 3, found
    assert sum(found.values()) - found[0] - found[1] > 100, found


def test_ancestry(git: GitOracle, twins: list[Twin]) -> None:
    # An ancestor is its own merge base, so one question to Git answers two; a few are asked outright.
    answers = Counter()
    for twin in twins:
        left, right = twin.rng.choices(twin.commits, k=2)
        best = git.merge_base_all(twin.theirs[left.id], twin.theirs[right.id])
        for ancestor, descendant in ((left, right), (right, left)):
            expected = best == {twin.theirs[ancestor.id]}
            assert is_ancestor(twin.history, ancestor.id, descendant.id) == expected, f"seed {twin.seed}"
            answers[expected] += 1
        if twin.seed % 4 == 0:
            asked = git.is_ancestor(twin.theirs[left.id], twin.theirs[right.id])
            assert is_ancestor(twin.history, left.id, right.id) == asked, f"seed {twin.seed}"
    assert min(answers[True], answers[False]) > 100


def test_steps(git, twins):
    pieces = [
        "^", "~", "^0", "~0", "^1", "^2", "^3", "^4", "~1", "~2", "~3", "~7", "~100", "^02", "~0003", "~2147483647",
    ]  # fmt: skip
    asked: list[tuple[Twin, str, str]] = []
    for twin in twins:
        for _ in range(EXPRESSIONS):
            commit = twin.rng.choice(twin.commits)
            steps = "".join(twin.rng.choices(pieces, weights=[9] * 9 + [1] * 7, k=twin.rng.randint(1, 5)))
            asked.append((twin, commit.id, steps))
    answers = git.rev_parse(twin.theirs[commit_id] + steps for twin, commit_id, steps in asked)
    for (twin, commit_id, steps), expected in zip(asked, answers, strict=True):
        try:
            got = twin.theirs[resolve(commit_id + steps, twin.history)]
        except RefNotFound:
            got = None
        assert got == expected, f"seed {twin.seed}: {commit_id}{steps}"
    assert min(sum(a is None for a in answers), sum(a is not None for a in answers)) > 1000


def test_first_parent_log(git, twins):
    for twin in twins:
        tip = twin.commits[-1]
        line = [commit.id for commit in log(twin.history, tip.id, first_parent=True)]
        assert [twin.theirs[commit_id] for commit_id in line] == git.first_parents(twin.theirs[tip.id])


def test_full_log(git, twins):
    for twin in twins:
        tip = twin.commits[-1]
        got = list(log(twin.history, tip.id))
        expected = git.date_order(twin.theirs[tip.id])
        if len(set(twin.dates)) == len(twin.dates):
            assert [twin.theirs[commit.id] for commit in got] == expected, f"seed {twin.seed}"
        else:
            assert sorted(twin.theirs[commit.id] for commit in got) == sorted(expected), f"seed {twin.seed}"
        place = {commit.id: index for index, commit in enumerate(got)}
        assert all(place[commit.id] < place[parent] for commit in got for parent in commit.parents)


def test_each_commit_is_asked_for_once(twins):
    for twin in twins:
        (left, right), *_ = twin.pairs()
        for call in (
            lambda h, a=left.id, b=right.id: merge_base(h, a, b),
            lambda h, a=left.id, b=right.id: is_ancestor(h, a, b),
            lambda h, a=left.id: list(log(h, a)),
            lambda h, a=left.id: list(log(h, a, first_parent=True)),
        ):
            history = History(twin.commits)
            call(history)
            assert max(history.reads.values(), default=1) == 1, f"seed {twin.seed}"


def test_example_of_gitrevisions(git: GitOracle) -> None:
    #  G   H   I   J        Jon Loeliger's drawing in gitrevisions(7); parents are ordered left to right.
    #   \ /     \ /
    #    D   E   F
    #     \  |  / \
    #      \ | /   |
    #        B     C
    #         \   /
    #           A
    names = "GHIJDEFCBA"
    place = {name: index for index, name in enumerate(names)}
    drawn = {"D": "GH", "F": "IJ", "C": "F", "B": "DEF", "A": "BC"}
    parents = [tuple(place[parent] for parent in drawn.get(name, "")) for name in names]
    commits = make_history(parents)
    history = History(commits)
    history.branches = {name: commit.id for name, commit in zip(names, commits, strict=True)}
    git_ids = dict(zip(names, git.import_dag([Node(own) for own in parents]), strict=True))
    page = """
        A = A^0
        B = A^ = A^1 = A~1
        C = A^2
        D = A^^ = A^1^1 = A~2
        E = B^2 = A^^2
        F = B^3 = A^^3
        G = A^^^ = A^1^1^1 = A~3
        H = D^2 = B^^2 = A^^^2 = A~2^2
        I = F^ = B^3^ = A^^3^
        J = F^2 = B^3^2 = A^^3^2
    """
    for line in filter(None, map(str.strip, page.splitlines())):
        for one, other in itertools.pairwise(line.split(" = ")):
            assert resolve(one, history) == resolve(other, history), line
            assert git.rev_parse([git_ids[other[0]] + other[1:]]) == [git_ids[line[0]]], line


# --- the oracle is worth something only if it drives Git rightly: cases with answers known beforehand ---
def test_imports_the_graph_as_drawn(git):
    root, left, right, merge, other = git.import_dag(
        [Node(()), Node((0,), 1), Node((0,), 2), Node((1, 2), 3), Node(())]
    )
    assert git.rev_parse([f"{merge}^1", f"{merge}^2", f"{merge}~2", f"{merge}^3", f"{merge}~3", f"{other}^"]) == [
        left,
        right,
        root,
        None,
        None,
        None,
    ]
    assert git.merge_base_all(left, right) == {root}
    assert git.merge_base_all(left, other) == set()
    assert git.first_parents(merge) == [merge, left, root]
    assert git.date_order(merge) == [merge, right, left, root]
    assert git.is_ancestor(right, merge)
    assert not git.is_ancestor(merge, right)


def test_dates_are_seconds_after_the_epoch(git):
    (commit,) = git.import_dag([Node((), 77)])
    assert git._git("show", "--no-patch", "--format=%ct", commit).decode().strip() == str(EPOCH + 77)


def test_equal_nodes_stay_apart(git):
    assert len(set(git.import_dag([Node(()), Node(())]))) == 2
    assert git.import_dag([Node(())]) != git.import_dag([Node(())])


def test_merges_whole_files_by_path(git):
    base = {"same": "1", "ours": "1", "theirs": "1", "both": "1", "alike": "1", "gone/ours": "1", "gone/theirs": "1"}
    ours = {"same": "1", "ours": "2", "theirs": "1", "both": "2", "alike": "2", "gone/theirs": "1", "new": "1"}
    theirs = {"same": "1", "ours": "1", "theirs": "2", "both": "3", "alike": "2", "gone/ours": "1", "neu": "1"}
    merged = {"same": "1", "ours": "2", "theirs": "2", "alike": "2", "new": "1", "neu": "1"}
    assert git.merge_trees(base, ours, theirs) == GitMerge(merged, {"both"})


def test_a_deletion_against_a_change_conflicts_and_an_equal_addition_does_not(git):
    assert git.merge_all(
        [
            ({"p": "1"}, {}, {"p": "2"}),
            ({"p": "1"}, {"p": "2"}, {}),
            ({}, {"p": "1"}, {"p": "1"}),
            ({}, {"p": "1"}, {"p": "2"}),
            ({"p": "1"}, {}, {}),
            ({}, {}, {}),
        ]
    ) == [
        GitMerge({}, {"p"}),
        GitMerge({}, {"p"}),
        GitMerge({"p": "1"}, set()),
        GitMerge({}, {"p"}),
        GitMerge({}, set()),
        GitMerge({}, set()),
    ]


def test_lines_are_never_merged_and_renames_are_never_followed(git):
    text = "".join(f"line {n}\n" for n in range(40))
    changed_above, changed_below = "first\n" + text, text + "last\n"
    assert git.merge_trees({"p": text}, {"p": changed_above}, {"p": changed_below}).conflicts == {"p"}
    assert git.merge_trees({"old": text}, {"new": text}, {"old": changed_below}) == GitMerge({"new": text}, {"old"})
    assert git.merge_trees({"a/x": "1"}, {"b/x": "1"}, {"a/x": "1", "a/y": "2"}) == GitMerge(
        {"b/x": "1", "a/y": "2"}, set()
    )


def test_paths_may_hold_anything_that_git_takes(git):
    tree = {'a "quoted" \\ path': "1", "line\nend": "2", "tab\tand space ": "3", "é/日本/🦆": "4", "a/b/c": "5\n"}
    assert git.merge_trees({}, tree, {}) == GitMerge(tree, set())
