"""Merges of criss-cross histories, against Git's own merges of the same commits."""

import random
from collections import Counter
from dataclasses import dataclass
from itertools import permutations

import pyarrow as pa
import pytest
from support.git_oracle import Node
from support.graphs import History, make_history, merge_base, random_dates, random_parents
from support.machine import Model, ModelCommit, foretold, merged

from lakeops import Lake, Repository, Settings, Split
from lakeops.model.errors import MergeConflict
from lakeops.model.graph import merge_bases
from lakeops.testing import ManualClock

PATHS = [f"{letter}{digit}" for letter in "abc" for digit in range(5)]
SPLITS = [Split(1, 2, 4), Split(100, 100, 1000)]


def test_merge_bases_are_all_that_git_finds(git):
    drawn = []
    for seed in range(200):
        rng = random.Random(seed)
        parents = random_parents(rng, rng.randint(1, 40))
        drawn.append((rng, parents, random_dates(rng, len(parents))))
    graphs = [[Node(own, date) for own, date in zip(parents, dates, strict=True)] for _, parents, dates in drawn]
    found: Counter[int] = Counter()
    for (rng, parents, dates), ids in zip(drawn, git.import_dags(graphs), strict=True):
        commits = make_history(parents, dates)
        theirs = {commit.id: git_id for commit, git_id in zip(commits, ids, strict=True)}
        for left, right in (rng.choices(commits[-size:], k=2) for size in (3, 4, 6, 40)):
            history, first = History(commits), History(commits)
            best = merge_bases(history, [left.id], [right.id])
            assert {theirs[one.id] for one in best} == git.merge_base_all(theirs[left.id], theirs[right.id])
            assert best == sorted(best, key=lambda one: (one.creation_date, one.generation, one.id))
            assert best == merge_bases(History(commits), [right.id], [left.id])
            assert max(history.reads.values()) == 1
            one = merge_base(first, left.id, right.id)
            assert one is None if not best else one in {commit.id for commit in best}
            found[len(best)] += 1
    assert sum(found.values()) - found[0] - found[1] > 30, found


def test_bases_of_groups_are_those_of_merges_of_them(git):
    for seed in range(60):
        rng = random.Random(seed)
        parents = random_parents(rng, rng.randint(6, 30))
        groups = [tuple(rng.sample(range(len(parents)), rng.randint(1, 3))) for _ in range(2)]
        commits = make_history(parents)
        nodes = [*(Node(own, date) for date, own in enumerate(parents)), *(Node(group, 99) for group in groups)]
        ids = git.import_dag(nodes)
        theirs = {commit.id: git_id for commit, git_id in zip(commits, ids, strict=False)}
        best = merge_bases(History(commits), *([commits[one].id for one in group] for group in groups))
        assert {theirs[one.id] for one in best} == git.merge_base_all(*ids[-2:]), f"seed {seed}"


def test_a_simple_history_costs_no_more_than_its_one_base():
    line: list[tuple[int, ...]] = [(), *((number,) for number in range(50))]
    parents = [*line, (30,), (51,), (52,)]
    commits = make_history(parents)
    for left, right in ((50, 53), (53, 50), (50, 10), (50, 50)):
        one, several = History(commits), History(commits)
        base = merge_base(one, commits[left].id, commits[right].id)
        assert [found.id for found in merge_bases(several, [commits[left].id], [commits[right].id])] == [base]
        assert several.reads.keys() == one.reads.keys() | {base}


# --- merges ------------------------------------------------------------------------------------------------------
@dataclass
class Story:
    """A repository whose branches take each other's changes at once, and the same as trees."""

    repo: Repository
    clock: ManualClock
    model: Model
    count: int = 0

    def write(self, branch, files):
        self.count += 1
        here = self.model.tree(self.model.branches[branch])
        ordered = sorted(path for path, text in files.items() if text is not None)
        handle = self.repo.branch(branch)
        table = {
            "path": ordered,
            "physical_address": [f"data/{self.count}/{path}" for path in ordered],
            "checksum": [f"sum-{files[path]}" for path in ordered],
            "size_bytes": [len(files[path] or "") for path in ordered],
            "mtime": [self.count] * len(ordered),
        }
        if ordered:
            handle.stage(pa.table(table))
        for path, text in files.items():
            if text is None and path in here:
                handle.delete(path)
        tree = {path: text for path, text in {**here, **files}.items() if text is not None}
        self._note(branch, handle.commit("write", allow_empty=True), tree)

    def take(self, source, branch, strategy):
        """Merge a commit into a branch."""
        head = self.model.branches[branch]
        if source in self.model.ancestors(head):
            return
        tree, _ = merged(self.model.base({source}, {head}), self.model.tree(source), self.model.tree(head), strategy)
        made = self.repo.merge(source, branch, strategy=strategy).reference
        self._note(branch, self.repo.ref(str(made)).commit, tree)

    def read(self, ref):
        table = self.repo.ref(ref).entries().read_all()
        sums = table["checksum"].to_pylist()
        return {path: text.removeprefix("sum-") for path, text in zip(table["path"].to_pylist(), sums, strict=True)}

    def in_git(self, git):
        """Commit ids here to those of the same commits there."""
        known = [self.repo.ref(one).commit for one in self.model.commits]
        known.sort(key=lambda commit: commit.generation)
        place = {commit.id: number for number, commit in enumerate(known)}
        start = min(commit.creation_date for commit in known)
        nodes = [
            Node(
                tuple(place[parent] for parent in commit.parents),
                commit.creation_date - start,
                self.model.tree(commit.id),
            )
            for commit in known
        ]
        return dict(zip((commit.id for commit in known), git.import_dag(nodes), strict=True))

    def begin(self):
        root = self.repo.ref("main").commit
        self.model.commits[root.id] = ModelCommit({}, (), root.creation_date)
        self.model.branches["main"] = root.id

    def branch(self, name):
        self.repo.create_branch(name)
        self.model.branches[name] = self.model.branches["main"]

    def _note(self, branch, commit, tree):
        self.clock.advance(seconds=1)  # Git orders merge bases by date
        self.model.commits[commit.id] = ModelCommit(tree, commit.parents, commit.creation_date)
        self.model.branches[branch] = commit.id


@pytest.fixture(params=SPLITS, ids=["many-ranges", "one-range"])
def story(request, tmp_path):
    clock = ManualClock()
    with Lake.open(settings=Settings.load(home=tmp_path, fsync=False, committer="oracle"), clock=clock) as lake:
        story = Story(lake.create_repository("repo", split=request.param), clock, Model())
        story.begin()
        yield story


def tell(story, rng):
    story.write("main", dict.fromkeys(PATHS[::2], "0"))
    names = ["main", "b", "c"][: rng.choice((2, 2, 3))]
    for name in names[1:]:
        story.branch(name)
    for _ in range(rng.randint(3, 6)):
        for name in names:
            for _ in range(rng.randint(0, 2)):
                paths = rng.sample(PATHS, rng.randint(1, 3))
                story.write(name, {path: rng.choice((None, "0", "1", "2")) for path in paths})
        heads = dict(story.model.branches)
        strategy = rng.choice(("source-wins", "dest-wins"))
        for name in names:
            for other in rng.sample(names, len(names)):
                if other != name and rng.random() < 0.8:
                    story.take(heads[other], name, strategy)
    for name in names:
        story.write(name, {rng.choice(PATHS): rng.choice((None, "0", "1", "2"))})


def check(story, git):
    """Every pair of branches merges as the model says, as it was foretold, and as Git does."""
    in_git, seen = story.in_git(git), Counter()
    pairs = list(permutations(story.model.branches.values(), 2))
    theirs = git.merge_commits((in_git[destination], in_git[source]) for source, destination in pairs)
    for number, ((source, destination), wanted) in enumerate(zip(pairs, theirs, strict=True)):
        base, bases = (
            story.model.base({source}, {destination}),
            story.model.best_common_ancestors({source}, {destination}),
        )
        before, brought = story.model.tree(destination), story.model.tree(source)
        seen["criss-cross"] += len(bases) > 1
        for strategy in (None, "source-wins", "dest-wins"):
            tree, conflicts = merged(base, brought, before, strategy)
            ahead = list(story.repo.compare(destination, source, strategy=strategy))
            if source in bases:
                assert ahead == []
                continue
            told = {change.path: (change.type.value, change.size_bytes) for change in ahead}
            assert told == foretold(before, brought, tree, conflicts)
            name = f"try-{number}-{strategy}"
            story.repo.create_branch(name, source=destination)
            if conflicts:
                with pytest.raises(MergeConflict) as caught:
                    story.repo.merge(source, name)
                assert caught.value.conflicts == conflicts
            else:
                story.repo.merge(source, name, strategy=strategy)
                assert story.read(name) == tree
            if strategy is None:
                # Git takes the ancestor's state where one base changed a path and the other deleted it; here that is
                # a conflict of the bases, as any other is.
                more = set(conflicts) - wanted.conflicts
                assert wanted.conflicts <= set(conflicts)
                assert all(base.get(path, "").startswith("conflict of") for path in more)
                shared = wanted.merged.keys() - more
                assert {path: tree.get(path) for path in shared} == {path: wanted.merged[path] for path in shared}
                assert tree.keys() <= shared
                seen["conflict"] += bool(conflicts)
                seen["more"] += len(more)
                seen["clean"] += len(bases) > 1 and not conflicts
    return seen


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_random_criss_crosses(story, git, seed):
    tell(story, random.Random(seed))
    assert check(story, git)["criss-cross"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_random_criss_crosses(tmp_path, git):
    seen: Counter[str] = Counter()
    for seed in range(1000, 1040):
        clock = ManualClock()
        settings = Settings.load(home=tmp_path / str(seed), fsync=False, committer="oracle")
        with Lake.open(settings=settings, clock=clock) as lake:
            story = Story(lake.create_repository("repo", split=SPLITS[seed % 2]), clock, Model())
            story.begin()
            tell(story, random.Random(seed))
            seen += check(story, git)
    assert seen["criss-cross"] > 40, seen
    assert seen["clean"] > 8, seen
    assert seen["conflict"] > 8, seen


def test_what_was_taken_back_stays_taken_back(story, git):
    story.write("main", dict.fromkeys(PATHS, "0"))
    story.branch("b")
    story.write("main", {"a0": "1"})
    story.write("b", {"c4": "1"})
    heads = dict(story.model.branches)
    story.take(heads["b"], "main", "dest-wins")
    story.take(heads["main"], "b", "dest-wins")
    story.write("main", {"c4": "0"})
    assert list(story.repo.compare("main", "b")) == []
    story.repo.merge("b", "main")
    assert story.read("main")["c4"] == "0"
    assert check(story, git)["criss-cross"]


def test_bases_that_conflict_ask_which_side_is_right(story, git):
    story.write("main", dict.fromkeys(PATHS, "0"))
    story.branch("b")
    story.write("main", {"b2": "1", "b3": "1"})
    story.write("b", {"b2": "2", "b3": "2"})
    heads = dict(story.model.branches)
    story.take(heads["b"], "main", "source-wins")  # main: 2
    story.take(heads["main"], "b", "source-wins")  # b: 1
    story.write("main", {"b3": "3"})
    story.write("b", {"b3": "3"})
    with pytest.raises(MergeConflict) as caught:
        story.repo.merge("b", "main")
    assert caught.value.conflicts == ["b2"], "on b3 both agree"
    check(story, git)


@pytest.mark.parametrize("days", [4, pytest.param(7, marks=pytest.mark.slow)])
def test_a_long_row_of_criss_crosses_is_merged_at_any_depth(story, git, days):
    """Two jobs that merge both ways every day and change the same path in between: each day is a level deeper."""
    story.write("main", dict.fromkeys(PATHS, "0"))
    story.branch("b")
    for day in range(days):
        story.write("main", {"a1": f"main {day}", f"b{day % 5}": f"{day}"})
        story.write("b", {"a1": f"b {day}", f"c{day % 5}": f"{day}"})
        heads = dict(story.model.branches)
        story.take(heads["b"], "main", "source-wins" if day % 2 else "dest-wins")
        story.take(heads["main"], "b", "dest-wins" if day % 2 else "source-wins")
    story.write("main", {"c0": "x"})
    assert check(story, git)["criss-cross"]
