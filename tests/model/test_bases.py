"""Tests of merge bases: all best common ancestors of every two heads, as git defines them."""

import itertools
import random
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget import examples
from support.graphs import make_history, random_parents

from lakeops.model.graph import Node, shared


def graph(parents):
    return [Node(commit.id, commit.parents, 0, commit.generation) for commit in make_history(parents)]


def found(commits, *heads):
    index = {node.id: number for number, node in enumerate(commits)}
    return {index[commit_id] for commit_id in shared({n.id: n for n in commits}, [commits[h].id for h in heads])}


def ancestors(parents):
    """Each commit's ancestors, itself among them."""
    every: list[set[int]] = []
    for number, own in enumerate(parents):
        every.append({number}.union(*(every[parent] for parent in own)))
    return every


def best(every, left, right):
    common = left & right
    return common - {one for one in common for other in common if one != other and one in every[other]}


def needed(parents, heads):
    """Tests of bases of recursive merges of every two heads, and of bases that are merged first."""
    every = ancestors(parents)
    rests: set[int] = set()

    def merge(left, right):
        """As git does: several bases are merged one after the other, each a virtual commit with two parents."""
        bases = sorted(best(every, left, right))
        rests.update(bases)
        virtual: set[int] = set()
        for base in bases:
            if virtual:
                merge(virtual, every[base])
            virtual = virtual | every[base]

    for left, right in itertools.combinations(sorted(set(heads)), 2):
        merge(every[left], every[right])
    return rests


@given(seed=st.integers(0, 2**32), size=st.integers(1, 30))
@settings(max_examples=examples(120), deadline=None)
def test_everything_that_a_merge_of_two_heads_rests_on_is_found(seed, size):
    rng = random.Random(seed)
    parents = random_parents(rng, size)
    commits = graph(parents)
    heads = [rng.randrange(size) for _ in range(rng.randint(1, 5))]
    answer = found(commits, *heads) | set(heads)
    assert needed(parents, heads) <= answer
    shuffled = dict(rng.sample([(node.id, node) for node in commits], size))
    again = shared(shuffled, [commits[head].id for head in reversed(heads)])
    assert again | {commits[head].id for head in heads} == {commits[number].id for number in answer}


@given(seed=st.integers(0, 2**32), size=st.integers(2, 30))
@settings(max_examples=examples(60), deadline=None)
def test_what_is_found_is_reached_by_two_heads_and_a_single_head_needs_nothing(seed, size):
    rng = random.Random(seed)
    parents = random_parents(rng, size)
    commits = graph(parents)
    every = ancestors(parents)
    heads = {rng.randrange(size) for _ in range(4)}
    for number in found(commits, *heads):
        assert sum(number in every[head] for head in heads) >= 2
    assert found(commits, min(heads)) == set()


# main: 0 1 2 3 ...; every other day a branch from main that is merged the next day.
DAILY = [(), (0,), (0,), (1, 2), (3,), (3,), (4, 5), (6,), (6,), (7, 8)]


@pytest.mark.parametrize(
    ("parents", "heads", "expected"),
    [
        (DAILY, (9,), set()),
        ([*DAILY, (9,), (9,)], (10, 11), {9}),
        ([*DAILY, (9,), (4,)], (10, 11), {4}),
        ([(), (0,), (1,), (1,)], (2, 3), {1}),
        ([(), (0,), (1,), (2,)], (3, 1), set()),
        # main merged dev and went on; both went on: only the head that was merged last matters.
        ([(), (0,), (0,), (1, 2), (2,), (3, 4), (4,)], (5, 6), {4}),
        # a criss-cross: both bases, and what those two rest on.
        ([(), (0,), (1,), (1,), (2, 3), (3, 2)], (4, 5), {1, 2, 3}),
        # no shared history.
        ([(), (), (0,), (1,)], (2, 3), set()),
        # two parents that are the same.
        ([(), (0, 0), (0,)], (1, 2), {0}),
    ],
)
def test_shapes(parents, heads, expected):
    assert found(graph(parents), *heads) == expected


def test_heads_that_are_not_there_and_parents_that_are_gone_do_not_matter():
    commits = graph([(), (0,), (1,), (1,)])
    some = {node.id: node for node in commits[1:]}
    assert shared(some, [commits[2].id, commits[3].id, "f" * 64]) == {commits[1].id}


@pytest.mark.parametrize("shape", ["from main", "from each other", "criss-cross"])
def test_ten_thousand_branches_over_fifty_thousand_commits(shape):
    """Seconds, and memory for the commits that were reached and not yet passed alone."""
    rng = random.Random(7)
    trunk, branches = 40_000, 10_000
    ids = [f"{number:064x}" for number in range(trunk + branches)]
    commits = {ids[0]: Node(ids[0], (), 0, 1)}
    for number in range(1, trunk):
        above = (ids[number - 1],)
        if shape == "criss-cross" and number > 2:
            above = (ids[number - 2], ids[number - 1 if number % 2 else number - 3])
        generation = 1 + max(commits[parent].generation for parent in above)
        commits[ids[number]] = Node(ids[number], above, 0, generation)
    heads = [ids[trunk - 1]]
    for number in range(trunk, trunk + branches):
        below = trunk if shape == "from main" else number
        parent = ids[rng.randrange(below)]
        commits[ids[number]] = Node(ids[number], (parent,), 0, commits[parent].generation + 1)
        heads.append(ids[number])
    tracemalloc.start()
    began = time.process_time()
    answer = shared(commits, heads)
    took = time.process_time() - began
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(answer) > 1_000
    assert peak < 100e6
    assert took < 30
