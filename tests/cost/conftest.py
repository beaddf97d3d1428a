"""Tests of cost: counts of statements, transactions and requests, a file for each room."""

import pytest
from support.opened_catalogs import catalog, database_url, empty, opened, postgres_url, shared_postgres_url, sqlite_url

from lakeops import Split

__all__ = ["catalog", "database_url", "empty", "opened", "postgres_url", "shared_postgres_url", "sqlite_url"]


@pytest.fixture
def repo(lake):
    return lake.create_repository("repo", split=Split(2, 4, 8))


@pytest.fixture
def fill():
    """Puts ``path=contents`` on a branch and commits; returns the commit id."""

    def fill(repository, branch, /, **files):
        handle = repository.branch(branch)
        with handle.batch() as batch:
            for path, contents in files.items():
                batch.put(path, contents.encode())
        return handle.commit(f"on {branch}").id

    return fill
