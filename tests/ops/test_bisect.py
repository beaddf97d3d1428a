"""The first bad commit, found in few looks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lakeops import Commit, Repository
from lakeops.model.errors import CommitExpired, InvalidInput, NotFound, RefNotFound


@pytest.fixture
def line(repo: Repository) -> list[Commit]:
    """Twenty commits, oldest first; one is a merge whose other side is older than all but the first."""
    branch = repo.branch("main")
    side = repo.create_branch("side")
    side.commit("aside", allow_empty=True)
    for number in range(19):
        if number == 9:
            repo.merge("side", "main", allow_empty=True)
        branch.commit(f"{number}", allow_empty=True)
    return [*repo.log("main", first_parent=True)][::-1]


def looking(line: list[Commit], first_bad: int, skip: tuple[int, ...] = ()) -> tuple[Callable, list[int]]:
    seen: list[int] = []

    def is_good(commit: Commit) -> bool | None:
        seen.append(line.index(commit))
        return None if seen[-1] in skip else seen[-1] < first_bad

    return is_good, seen


def test_each_commit_is_found_in_few_looks(repo: Repository, line: list[Commit]) -> None:
    for first_bad in range(1, len(line)):
        is_good, seen = looking(line, first_bad)
        assert repo.bisect(line[0].id, "main", is_good, first_parent=True) == line[first_bad]
        assert len(seen) == len({*seen}) <= 5
        assert not {0, len(line) - 1} & {*seen}


def test_what_cannot_be_told_is_passed_over(repo: Repository, line: list[Commit]) -> None:
    for first_bad in (3, 10, 17):
        skip = tuple(place for place in range(1, 20) if abs(place - first_bad) > 1)
        is_good, _ = looking(line, first_bad, skip)
        assert repo.bisect(line[0].id, "main", is_good, first_parent=True) == line[first_bad]
    is_good, _ = looking(line, 10, (9, 10, 11))
    with pytest.raises(NotFound, match=line[10].id[:16]):
        repo.bisect(line[0].id, "main", is_good, first_parent=True)


def test_bad_input(repo: Repository, line: list[Commit]) -> None:
    is_good, _ = looking(line, 5)
    for good, bad, error in (
        ("main", "main~1", InvalidInput),
        ("main", "main", InvalidInput),
        ("nosuch", "main", RefNotFound),
        ("main~3", "nosuch", RefNotFound),
    ):
        with pytest.raises(error):
            repo.bisect(good, bad, is_good)
    repo._ctx.catalog.retention.expire_commits("repo", [line[10].id])
    with pytest.raises(CommitExpired):
        repo.bisect(line[8].id, line[12].id, is_good)
