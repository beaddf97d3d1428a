"""One Git repository for the tests of a worker process."""

import pytest
from support.git_oracle import GitOracle


@pytest.fixture(scope="session")
def git(tmp_path_factory):
    return GitOracle(tmp_path_factory.mktemp("oracle") / "repository.git")
