"""Which pool Arrow takes memory from in a process that imports lakeops."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

POOL = "ARROW_DEFAULT_MEMORY_POOL"
USED = "import pyarrow; print(pyarrow.default_memory_pool().backend_name)"


def pool_of_new_process(code: str, **environment: str) -> str:
    plain = {name: value for name, value in os.environ.items() if name != POOL}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=plain | environment, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.skipif(sys.platform != "linux", reason="Arrow's packages for other systems may lack jemalloc")
def test_arrow_takes_memory_by_small_pages() -> None:
    assert pool_of_new_process(f"import lakeops; {USED}") == "jemalloc"


def test_who_chose_a_pool_keeps_it() -> None:
    assert pool_of_new_process(f"import lakeops; {USED}", **{POOL: "system"}) == "system"


def test_a_process_that_loaded_arrow_first_passes_nothing_on() -> None:
    code = f"import os, pyarrow, lakeops; print(os.environ.get({POOL!r}))"
    assert pool_of_new_process(code) == "None"
