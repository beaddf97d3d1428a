"""The first bad commit of random histories, against ``git bisect run``."""

import random
import re

import pytest
from support.git_oracle import Node
from support.graphs import History, make_history, random_dates, random_parents

from lakeops.model.graph import is_ancestor
from lakeops.ops.bisection import Search, between

SEEDS = range(14)


def found_by(get, line, culprit, skipped):
    """The commits that may be the first bad one at the end, and how many looks it took."""
    search, looks = Search(line), 0
    while not search.is_done and (commit := search.next()) is not None:
        looks += 1
        search.tell(commit, None if commit.id in skipped else not is_ancestor(get, culprit, commit.id))
    return {commit.id for commit in search.left}, looks


def git_bisect(git, good, bad, culprit, skipped):
    directory = str(git._directory)
    skip = "".join(f"test $now = {one} && exit 125; " for one in sorted(skipped))
    script = f"now=$(git rev-parse BISECT_HEAD); {skip}! git merge-base --is-ancestor {culprit} $now"
    try:
        git._git("update-ref", "refs/heads/main", bad)  # git asks for a HEAD
        git._git("bisect", "start", "--no-checkout", bad, good)
        done = git._run("bisect", "run", "sh", "-c", script)
        log = git._git("bisect", "log").decode()
    finally:
        git._run("bisect", "reset")
        git._git("update-ref", "-d", "refs/heads/main")
    text = done.stdout.decode()
    looks = len(re.findall(r"^git bisect (?:good|bad|skip) ", log, re.MULTILINE))
    sure = re.search(r"^([0-9a-f]{40}) is the first (?:bad|'bad') commit", text, re.MULTILINE)
    if sure:
        return {sure[1]}, looks
    assert "first bad commit could be any of" in text, (text, done.stderr, directory)
    return {*re.findall(r"^([0-9a-f]{40})$", text, re.MULTILINE)}, looks


@pytest.mark.parametrize("share", [0, 0.4])
def test_bisect_finds_what_git_finds(git, share):
    ours_all = theirs_all = cases = 0
    for seed in SEEDS:
        rng = random.Random(seed)
        size = rng.randint(5, 40)
        parents, dates = random_parents(rng, size), random_dates(rng, size)
        commits = make_history(parents, dates)
        get = History(commits)
        ids = git.import_dag([Node(each, date) for each, date in zip(parents, dates, strict=True)])
        theirs = {commit.id: git_id for commit, git_id in zip(commits, ids, strict=True)}
        bad = commits[-1]
        goods = [one for one in commits[:-1] if is_ancestor(get, one.id, bad.id)]
        if not goods:
            continue
        good = rng.choice(goods)
        line = between(get, [good.id], bad.id)
        listed = git._git("rev-list", theirs[bad.id], f"^{theirs[good.id]}").decode().split()
        assert sorted(theirs[one.id] for one in line) == sorted(listed)
        culprit = rng.choice(line)
        skipped = {one.id for one in line[1:] if rng.random() < share}
        mine, looks = found_by(get, line, culprit.id, skipped)
        wanted, their_looks = git_bisect(
            git, theirs[good.id], theirs[bad.id], theirs[culprit.id], {theirs[one] for one in skipped}
        )
        assert {theirs[one] for one in mine} == wanted, seed
        assert culprit.id in mine
        ours_all, theirs_all, cases = ours_all + looks, theirs_all + their_looks, cases + 1
    assert cases > 9
    if not share:
        assert ours_all <= theirs_all * 1.1, "as few looks as git's"


def test_first_parents_are_those_of_git(git):
    for seed in range(40):
        rng = random.Random(seed)
        size = rng.randint(2, 30)
        parents, dates = random_parents(rng, size), random_dates(rng, size)
        commits = make_history(parents, dates)
        get = History(commits)
        good, bad = rng.choice(commits), commits[-1]
        below, line = commits.index(bad), []
        while not is_ancestor(get, commits[below].id, good.id):
            line.append(commits[below].id)
            if not parents[below]:
                break
            below = parents[below][0]
        assert [one.id for one in between(get, [good.id], bad.id, first_parent=True)] == line


def test_a_long_line_takes_few_looks():
    size = 30_000
    commits = make_history([() if not index else (index - 1,) for index in range(size)], range(size))
    get = History(commits)
    line = between(get, [commits[0].id], commits[-1].id)
    position = {commit.id: place for place, commit in enumerate(commits)}
    assert len(line) == size - 1
    search, looks = Search(line), 0
    while not search.is_done:
        commit = search.next()
        looks += 1
        search.tell(commit, position[commit.id] < 12_345)
    assert search.left == [commits[12_345]]
    assert looks <= 15
