"""What verbs cost: counts of statements, transactions and requests, a file a room. What they do is tested elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.opened_catalogs import catalog, database_url, empty, opened, postgres_url, shared_postgres_url, sqlite_url

from lakeops import Lake, Repository, Split

__all__ = ["catalog", "database_url", "empty", "opened", "postgres_url", "shared_postgres_url", "sqlite_url"]


@pytest.fixture
def repo(lake: Lake) -> Repository:
    return lake.create_repository("repo", split=Split(2, 4, 8))


@pytest.fixture
def fill() -> Callable[..., str]:
    """Puts ``path=contents`` on a branch and commits; returns the commit id."""

    def fill(repository: Repository, branch: str, /, **files: str) -> str:
        handle = repository.branch(branch)
        with handle.batch() as batch:
            for path, contents in files.items():
                batch.put(path, contents.encode())
        return handle.commit(f"on {branch}").id

    return fill
