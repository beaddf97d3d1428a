"""One Git repository for the tests of a worker process."""

from __future__ import annotations

import pytest
from support.git_oracle import GitOracle


@pytest.fixture(scope="session")
def git(tmp_path_factory: pytest.TempPathFactory) -> GitOracle:
    return GitOracle(tmp_path_factory.mktemp("oracle") / "repository.git")
