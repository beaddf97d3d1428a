from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.quick_joins import quick_joins
from support.scenes import open_faulty

from lakeops import Lake, Repository, Settings, Split
from lakeops.testing import Faults, ManualClock

__all__ = ["quick_joins"]

SMALL = Split(min_entries=2, target_entries=4, max_entries=8)


@pytest.fixture
def faulty_lake(settings: Settings, clock: ManualClock, faults: Faults) -> Iterator[Lake]:
    """A lake whose stores and catalog play the script of ``faults``."""
    with open_faulty(settings, faults, clock=clock) as opened:
        yield opened


@pytest.fixture(params=["sqlite", "postgresql"])
def lake_of_threads(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    """A lake for threads that work at the same time."""
    url = None if request.param == "sqlite" else request.getfixturevalue("empty_postgres_url")
    with Lake.open(settings=Settings.load(home=tmp_path / "home", database_url=url, fsync=False)) as lake:
        yield lake


@pytest.fixture
def repo(lake: Lake) -> Repository:
    return lake.create_repository("repo", split=SMALL)


@pytest.fixture
def fill() -> Callable[..., str]:
    """Puts ``path=contents`` (None deletes) on a branch and commits; returns the commit id."""

    def fill(repository: Repository, branch: str, /, *, message: str = "", **files: str | None) -> str:
        return fill_paths(repository, branch, files, message=message)

    return fill


def fill_paths(repository: Repository, branch: str, files: dict[str, str | None], *, message: str = "") -> str:
    handle = repository.branch(branch)
    with handle.batch() as batch:  # one transaction for all
        for path, contents in files.items():
            if contents is not None:
                batch.put(path, contents.encode())
    for path, contents in files.items():
        if contents is None:
            handle.delete(path)
    return handle.commit(message or f"on {branch}").id


@pytest.fixture
def contents() -> Callable[[Repository, str], dict[str, str]]:
    """Everything that a ref shows: path to contents."""

    def contents(repository: Repository, ref: str) -> dict[str, str]:
        handle = repository.ref(ref)
        return {item.path: handle.read(item.path).decode() for item in handle.list()}

    return contents
