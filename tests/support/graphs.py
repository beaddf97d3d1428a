"""Commit graphs for tests: drawn at random, held in memory, and counted when they are read."""

import random
from collections import Counter
from collections.abc import Sequence

from lakeops.model.errors import RefNotFound
from lakeops.model.graph import CommitSource, merge_bases
from lakeops.model.ids import make_commit
from lakeops.model.records import Commit


def merge_base(get: CommitSource, left: str, right: str) -> str | None:
    """The first of the best common ancestors of two commits."""
    found = merge_bases(get, [left], [right])
    return min(found, key=lambda one: (-one.generation, -one.creation_date, one.id)).id if found else None


def random_parents(rng: random.Random, size: int) -> list[tuple[int, ...]]:
    """Parents of ``size`` commits as indexes of earlier ones: as branches make them, criss-cross, or planless."""
    return rng.choice([_branching, _crossing, _planless])(rng, size)


def _branching(rng: random.Random, size: int) -> list[tuple[int, ...]]:
    """A few branches that commit and merge each other's heads, also stale ones: criss-crosses are common."""
    heads, merges = [0] * rng.randint(1, 4), rng.choice([0.1, 0.4, 0.7])
    parents: list[tuple[int, ...]] = [()]
    stale = list(heads)
    for index in range(1, size):
        lane = rng.randrange(len(heads))
        others = {*stale, *heads, rng.randrange(index)} - {heads[lane]}
        count = rng.choice([1, 1, 1, 2]) if rng.random() < merges else 0
        parents.append((heads[lane], *rng.sample(sorted(others), min(count, len(others)))))
        stale[lane], heads[lane] = heads[lane], index
    return parents


def _crossing(rng: random.Random, size: int) -> list[tuple[int, ...]]:
    """Two or three branches in step, each taking in what some of the others were a step ago."""
    width = rng.choice([2, 3])
    parents: list[tuple[int, ...]] = [()]
    for index in range(1, size):
        step = (index - 1) // width
        before = range(1 + (step - 1) * width, 1 + step * width) if step else range(1)
        parents.append(tuple(rng.sample(before, rng.randint(1, len(before)))))
    return parents


def _planless(rng: random.Random, size: int) -> list[tuple[int, ...]]:
    """Any earlier commits as parents, and now and then another root."""
    merges, reach = rng.choice([0.05, 0.3, 0.7]), rng.choice([2, 4, size])
    parents: list[tuple[int, ...]] = [()]
    for index in range(1, size):
        earlier = range(max(0, index - reach), index)
        count = rng.choice([2, 2, 2, 3]) if rng.random() < merges else 1
        parents.append(tuple(rng.sample(earlier, min(count, len(earlier)))) if rng.random() > 0.01 else ())
    return parents


def random_dates(rng: random.Random, size: int) -> list[int]:
    """Dates in seconds: growing, all different in any order, or few of them (clocks that go wrong)."""
    kind = rng.choice(["growing", "shuffled", "few"])
    if kind == "few":
        return [rng.randrange(4) for _ in range(size)]
    dates = [index * 10 for index in range(size)]
    if kind == "shuffled":
        rng.shuffle(dates)
    return dates


def make_history(parents: Sequence[tuple[int, ...]], dates: Sequence[int] | None = None) -> list[Commit]:
    """Real commits, one for each tuple of parents (indexes of earlier ones)."""
    commits: list[Commit] = []
    for index, own in enumerate(parents):
        commits.append(
            make_commit(
                parents=[commits[parent] for parent in own],
                committer="tester",
                message=f"commit {index}",
                creation_date=index if dates is None else dates[index],
                meta_range_id="",
            )
        )
    return commits


def random_history(rng: random.Random, size: int) -> list[Commit]:
    """Real commits of a graph drawn at random, with dates drawn at random."""
    return make_history(random_parents(rng, size), random_dates(rng, size))


class History:
    """Commits and refs in memory: a ``CommitSource`` and a ``RefLookup``. ``reads`` counts what was asked for."""

    def __init__(self, commits: Sequence[Commit]) -> None:
        self.by_id = {commit.id: commit for commit in commits}
        self.branches: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        self.reads: Counter[str] = Counter()

    def __call__(self, commit_id: str) -> Commit:
        found = self.commit(commit_id)
        if found is None:
            raise RefNotFound(commit_id)
        return found

    def commit(self, commit_id: str) -> Commit | None:
        self.reads[commit_id] += 1
        return self.by_id.get(commit_id)

    def branch(self, name: str) -> str | None:
        return self.branches.get(name)

    def tag(self, name: str) -> str | None:
        return self.tags.get(name)

    def commits_with_prefix(self, prefix: str) -> list[str]:
        return sorted(commit_id for commit_id in self.by_id if commit_id.startswith(prefix))[:8]
