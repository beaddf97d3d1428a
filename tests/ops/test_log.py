"""Logs of paths, prefixes, times and people; branches by what is merged. The oracle compares everything."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import product

import pytest
from support.scenes import tree

from lakeops import Commit, Lake, Repository
from lakeops.model.errors import InvalidInput, InvalidPath, RefNotFound
from lakeops.testing import ManualClock


@pytest.fixture
def history(wander: Callable[..., Repository]) -> Repository:
    """Twenty random steps on three branches, merges among them, each a minute after the one before."""
    return wander(7, steps=20, every=4, changes=4, seconds=(60,))


def naive(
    repo: Repository,
    trees: dict[str, dict[str, bytes]],
    ref: str,
    keep: Callable[[str], bool],
    first_parent: bool,
) -> list[str]:
    """The log of some paths, by comparing the whole contents of each commit with those of its parents.

    ``trees`` keeps what was read of a commit.
    """

    def part(commit_id: str) -> dict[str, bytes]:
        if commit_id not in trees:
            trees[commit_id] = tree(repo, commit_id)
        return {path: data for path, data in trees[commit_id].items() if keep(path)}

    found = []
    for commit in repo.log(ref, first_parent=first_parent):
        parents = commit.parents[:1] if first_parent else commit.parents
        if parents and all(part(parent) != part(commit.id) for parent in parents):
            found.append(commit.id)
    return found


def test_logs_of_paths_and_prefixes(history: Repository) -> None:
    trees: dict[str, dict[str, bytes]] = {}
    for ref, first_parent in product(("main", "left"), (False, True)):
        for prefix in ("a", "a/", "ab/3", "nothing/"):
            log = history.log(ref, prefix=prefix, first_parent=first_parent)
            wanted = naive(history, trees, ref, lambda path, under=prefix: path.startswith(under), first_parent)
            assert [commit.id for commit in log] == wanted
        for path in ("a", "a/1", "top", "ab"):
            log = history.log(ref, path=path, first_parent=first_parent)
            assert [commit.id for commit in log] == naive(history, trees, ref, path.__eq__, first_parent)


def test_times_and_people(settings, clock: ManualClock, history: Repository) -> None:
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


def test_what_retention_took_is_left_out_and_named(lake: Lake, history: Repository) -> None:
    every = list(history.log("main", first_parent=True))
    wanted = [commit.id for commit in history.log("main", first_parent=True, prefix="a")]
    lake.catalog.retention.expire_commits("repo", [every[3].id])
    unknown: list[Commit] = []
    log = history.log("main", first_parent=True, prefix="a", on_expired=unknown.append)
    assert [commit.id for commit in log] == [one for one in wanted if one not in {every[2].id, every[3].id}]
    assert [commit.id for commit in unknown] == [every[2].id, every[3].id]
    assert list(history.log("main", first_parent=True))[3].expired, "without a path they are listed"


def test_bad_input(repo: Repository) -> None:
    for given, error in (
        ({"path": "a", "prefix": "b"}, InvalidInput),
        ({"path": ""}, InvalidPath),
        ({"prefix": "\0"}, InvalidPath),
        ({"since": datetime(2026, 1, 1)}, InvalidInput),  # noqa: DTZ001 - the point
        ({"author": "\ud800"}, InvalidInput),
        ({"amount": -1}, InvalidInput),
    ):
        with pytest.raises(error):
            list(repo.log("main", **given))
    for given in ({"merged": "nosuch"}, {"not_merged": "nosuch"}):
        with pytest.raises(RefNotFound):
            list(repo.heads(**given))


def test_branches_by_what_is_merged(history: Repository) -> None:
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
