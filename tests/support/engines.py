"""What the tests of other programs share that read and write through the gateway: where these are, and how they run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from services import engines


@pytest.fixture(scope="session")
def place() -> Path:
    """Where ``make test-engines`` has put the programs. For a conftest to take over."""
    if "LAKEOPS_TEST_ENGINES" not in os.environ:
        pytest.skip("make test-engines brings Spark with Delta and S3A, DuckDB with httpfs, and Trino")
    return Path(os.environ["LAKEOPS_TEST_ENGINES"])


def spark_environment(place: Path) -> dict[str, str]:
    """The environment in which commands of Spark are those of this place, whatever Spark this process has."""
    kept = {name: value for name, value in os.environ.items() if name not in {"SPARK_HOME", "PYTHONPATH"}}
    path = f"{engines.python(place).parent}{os.pathsep}{os.environ['PATH']}"
    return {**kept, "PATH": path, "PYSPARK_PYTHON": str(engines.python(place)), "SPARK_LOCAL_IP": "127.0.0.1"}
