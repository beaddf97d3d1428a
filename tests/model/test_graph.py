"""The commit graph without Git: what is read, what order ties have, and long histories."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.graphs import History, make_history, merge_base, random_history, random_parents

from lakeops.model.errors import RefNotFound
from lakeops.model.graph import divergences, heads_containing, is_ancestor, log, walk

LONG = 20_000


@pytest.fixture(scope="module")
def long_line():
    """A line of 20,000 commits, and a branch of three that left it 5 commits before its end."""
    parents = [(), *((index,) for index in range(LONG - 1)), (LONG - 6,), (LONG,), (LONG + 1,)]
    return make_history(parents)


def ancestors(history, start):
    seen, stack = set(), [start]
    while stack:
        commit_id = stack.pop()
        if commit_id not in seen:
            seen.add(commit_id)
            stack.extend(history.by_id[commit_id].parents)
    return seen


def test_a_merge_base_reads_only_what_is_near(long_line):
    history = History(long_line)
    assert merge_base(history, long_line[LONG - 1].id, long_line[-1].id) == long_line[LONG - 6].id
    assert sum(history.reads.values()) == 5 + 3 + 1


def test_a_commit_is_its_own_ancestor_unread():
    assert is_ancestor(History([]), "x", "x")


def test_ancestry_reads_only_what_is_near(long_line):
    history = History(long_line)
    assert not is_ancestor(history, long_line[LONG - 5].id, long_line[-1].id)
    assert is_ancestor(history, long_line[LONG - 8].id, long_line[-1].id)
    assert not is_ancestor(history, long_line[-1].id, long_line[0].id)
    assert sum(history.reads.values()) < 16


def test_a_log_reads_as_it_is_consumed(long_line):
    for first_parent in (False, True):
        history = History(long_line)
        taken = list(itertools.islice(log(history, long_line[-1].id, first_parent=first_parent), 10))
        assert [commit.id for commit in taken[:4]] == [c.id for c in [*reversed(long_line[-3:]), long_line[LONG - 6]]]
        assert sum(history.reads.values()) <= 11


def test_a_merge_of_an_old_branch_does_not_read_all_of_history() -> None:
    # 0 - 1 - ... - 2000 - merge, with a second parent that left at commit 1.
    commits = make_history([(), *((index,) for index in range(2000)), (1,), (2000, 2001)], [*range(2001), 2, 2001])
    history = History(commits)
    taken = list(itertools.islice(log(history, commits[-1].id), 20))
    assert taken[0] == commits[-1]
    assert sum(history.reads.values()) < 25


def test_long_histories_need_no_recursion(long_line):
    history = History(long_line)
    assert sum(1 for _ in log(history, long_line[-1].id)) == LONG - 5 + 3
    assert sum(1 for _ in log(history, long_line[LONG - 1].id, first_parent=True)) == LONG
    assert is_ancestor(history, long_line[0].id, long_line[LONG - 1].id)


def test_a_deep_lattice_is_walked_once():
    parents = [(), (0,), (0,)]
    for index in range(1, 2001, 2):
        parents += [(index, index + 1), (index + 1, index)]
    commits = make_history(parents)
    history = History(commits)
    assert not is_ancestor(history, commits[1].id, commits[2].id)
    assert is_ancestor(history, commits[0].id, commits[-1].id)
    assert merge_base(history, commits[-1].id, commits[-2].id) in {commits[-3].id, commits[-4].id}
    assert len(list(log(history, commits[-1].id))) == len(commits) - 1


@given(st.integers(0, 2**32))
def test_those_that_lead_to_a_commit_are_its_descendants(seed):
    rng = random.Random(seed)
    commits = random_history(rng, rng.randint(1, 25))
    history = History(commits)
    heads = [commit.id for commit in rng.choices(commits, k=6)]
    one = rng.choice(commits)
    assert heads_containing(history, one.id, heads) == {head for head in heads if one.id in ancestors(history, head)}


@given(st.integers(0, 2**32))
def test_a_merge_base_is_a_best_common_ancestor(seed):
    rng = random.Random(seed)
    commits = random_history(rng, size := rng.randint(1, 25))
    history = History(commits)
    left, right = rng.choices(commits, k=2)
    common = ancestors(history, left.id) & ancestors(history, right.id)
    best = [c for c in common if not any(c in ancestors(history, other) - {other} for other in common)]
    found = merge_base(history, left.id, right.id)
    assert found in best or (found is None and not common)
    assert merge_base(history, right.id, left.id) == found
    assert merge_base(History(rng.sample(commits, size)), left.id, right.id) == found


def test_a_criss_cross_is_settled_by_generation_then_date_then_id():
    crossed = [(), (0,), (0,), (1, 2), (2, 1)]
    for dates, expected in (([0, 5, 4, 6, 6], 1), ([0, 4, 5, 6, 6], 2)):
        commits = make_history(crossed, dates)
        assert merge_base(History(commits), commits[3].id, commits[4].id) == commits[expected].id
    commits = make_history(crossed, [0, 4, 4, 6, 6])
    assert merge_base(History(commits), commits[3].id, commits[4].id) == min(commits[1].id, commits[2].id)
    taller = make_history([(), (0,), (0,), (2,), (1, 3), (3, 1)], [0, 9, 0, 0, 9, 9])
    assert merge_base(History(taller), taller[4].id, taller[5].id) == taller[3].id


def test_no_shared_history():
    commits = make_history([(), (), (0,), (1,)])
    assert merge_base(History(commits), commits[2].id, commits[3].id) is None


def test_ties_of_a_log_go_by_generation_then_id():
    commits = make_history([(), (0,), (0,), (0,), (3,), (1, 2, 4)], [7] * 6)
    low = sorted([commits[1], commits[2], commits[3]], key=lambda commit: commit.id)
    assert list(log(History(commits), commits[5].id)) == [commits[5], commits[4], *low, commits[0]]


def test_a_child_with_a_date_before_its_parent_still_comes_first():
    commits = make_history([(), (0,), (1,), (0,), (2, 3)], [100, 1, 50, 70, 200])
    assert [commit.message for commit in log(History(commits), commits[4].id)] == [
        "commit 4", "commit 3", "commit 2", "commit 1", "commit 0",
    ]  # fmt: skip


def test_a_parent_named_twice_is_one_parent():
    commits = make_history([(), (0, 0)])
    history = History(commits)
    assert list(log(history, commits[1].id)) == [commits[1], commits[0]]
    assert merge_base(history, commits[1].id, commits[0].id) == commits[0].id
    assert max(history.reads.values()) <= 2


def test_a_missing_commit_is_an_error_and_not_an_end():
    commits = make_history([(), (0,), (1,)])
    history = History(commits[1:])
    for call in (
        lambda: merge_base(history, commits[2].id, commits[0].id),
        lambda: list(log(history, commits[2].id)),
        lambda: list(log(history, commits[2].id, first_parent=True)),
    ):
        with pytest.raises(RefNotFound):
            call()


@pytest.mark.parametrize("seed", range(20))
def test_a_walk_meets_every_commit_once_whatever_the_pages_are(seed):
    source = random.Random(seed)
    commits = make_history(random_parents(source, 40))
    history = History(commits)
    starts = [commit.id for commit in source.sample(commits, 2)]
    wanted = set().union(*(ancestors(history, start) for start in starts))
    for size in (1, 3, 100):
        found: list[str] = []
        waiting = starts
        while waiting:
            page, waiting = walk(history, waiting, size)
            assert page
            found += [commit.id for commit in page]
        assert len(found) == len(set(found))
        assert set(found) == wanted
        places = {commit_id: place for place, commit_id in enumerate(found)}
        for commit_id in found:
            assert all(places[parent] > places[commit_id] for parent in history.by_id[commit_id].parents)


@pytest.mark.parametrize("seed", range(20))
def test_how_far_many_are_from_one_is_counted_in_what_only_one_has_in_one_walk(seed):
    source = random.Random(seed)
    commits = make_history(random_parents(source, 60))
    base, *heads = (commit.id for commit in source.choices(commits, k=8))
    history = History(commits)
    found = divergences(history, base, heads, most=1000)
    assert max(history.reads.values()) == 1
    for one, told in zip(heads, found, strict=True):
        own = ancestors(history, one), ancestors(history, base)
        assert told == (len(own[0] - own[1]), len(own[1] - own[0]))
        assert divergences(History(commits), base, [one], most=1000) == [told]
    for most in (1, 5, 20):  # what is told is right, however early the walk ends
        some = divergences(History(commits), base, heads, most=most)
        assert all(one in (None, whole) for one, whole in zip(some, found, strict=True))


def test_commits_that_are_very_far_apart_are_not_counted(long_line):
    history = History(long_line)
    assert divergences(history, long_line[0].id, [long_line[LONG - 1].id], most=100)[0] is None
    assert sum(history.reads.values()) < 110
    near = History(long_line)
    assert divergences(near, long_line[LONG - 1].id, [long_line[-1].id], most=100)[0] == (3, 5)
    assert sum(near.reads.values()) < 20
