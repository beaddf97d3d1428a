"""One DuckDB database for the joins of a file of tests: making one takes 27 ms of CPU, and most join a few rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from lakeops.ops.gc import unreferenced


@pytest.fixture(scope="module", autouse=True)
def quick_joins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """For a conftest to take over: each join of its folder's tests."""
    with one_database(tmp_path_factory.mktemp("joins")):
        yield


@contextmanager
def one_database(scratch: Path) -> Iterator[None]:
    """Inside the block, each join gets a cursor of one database, which has views of its own.

    Memory, threads and settings are those of the product. What spills goes to ``scratch``.
    """
    make = unreferenced._database
    kept: dict[int, tuple[AbstractContextManager[Any], Any]] = {}

    @contextmanager
    def share(_place: Path) -> Iterator[Any]:
        owner = os.getpid()  # the threads of a database do not live on in a forked process
        if owner not in kept:
            manager = make(scratch)
            kept[owner] = manager, manager.__enter__()
        with kept[owner][1].cursor() as database:
            yield database

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unreferenced, "_database", share)
        yield
    if os.getpid() in kept:
        kept.pop(os.getpid())[0].__exit__(None, None, None)
