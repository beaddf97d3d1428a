"""What every part's tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

pytest_plugins = ["support.s3_servers"]

# CI judges a change, so it tries the same examples each time; everywhere else new ones are tried. How long an example
# takes says more about the machine than about the code.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("default", deadline=None, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(scope="session", autouse=True)
def migrated() -> Iterator[None]:
    """Catalogs of this process get the migrations' schema without running them again; see ``support.migrated``."""
    from support.migrated import schema_made_once

    with schema_made_once():
        yield
