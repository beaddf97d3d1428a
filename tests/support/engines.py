"""Helpers for tests of other programs that read and write through the gateway: where these are, and how they run."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from services import engines
from services.process import die_with_parent
from support.doc_pages import blocks

DRIVER = Path(__file__).with_name("spark_driver.py")
QUICK = {
    "spark.master": "local[1]",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
}


@pytest.fixture(scope="session")
def place():
    """Where ``make test-engines`` has put the programs. For a conftest to take over."""
    if "LAKEOPS_TEST_ENGINES" not in os.environ:
        pytest.skip("make test-engines brings Spark with Delta and S3A, DuckDB with httpfs, and Trino")
    return Path(os.environ["LAKEOPS_TEST_ENGINES"])


def spark_environment(place: Path, name: str = "spark") -> dict[str, str]:
    """The environment in which commands of Spark are those of this place, whatever Spark this process has."""
    kept = {name: value for name, value in os.environ.items() if name not in {"SPARK_HOME", "PYTHONPATH"}}
    python = engines.python(place, name)
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    kept["AWS_REQUEST_CHECKSUM_CALCULATION"] = "when_required"  # the tests' radosgw knows no trailing checksums
    return {**kept, "PATH": path, "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"}


class Driver:
    """A Spark driver in a process of its own, with these lines of configuration."""

    def __init__(self, place: Path, folder: Path, lines: dict[str, str], name: str = "spark") -> None:
        folder.mkdir()
        text = "".join(f"{key} {value}\n" for key, value in {**lines, **QUICK}.items())
        (folder / "spark-defaults.conf").write_text(text)
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(engines.python(place, name)), str(DRIVER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=spark_environment(place, name) | {"SPARK_CONF_DIR": str(folder)},
                cwd=folder,
                preexec_fn=die_with_parent,  # noqa: PLW1509
            )

    def start(self, code: str) -> Callable[[], dict]:
        """Send code; gives what waits for ``value`` and ``error``."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(code) + "\n")
        self.process.stdin.flush()
        return self._answer

    def run(self, code: str) -> object:
        """The ``value`` of code that has to work."""
        answer = self.start(code)()
        assert not answer["error"], answer["error"]
        return answer["value"]

    def stop(self) -> None:
        """End it."""
        self.process.kill()
        self.process.communicate()

    def _answer(self) -> dict:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self._log.read_text()[-4000:]
        return json.loads(line)


def iceberg_configuration(place: Path, options: dict[str, str]) -> dict[str, str]:
    """The page's lines, with this gateway and these keys, and the jars that were fetched with their hashes."""
    text = blocks("gateway.md", "iceberg")[0].text.replace("http://127.0.0.1:9010", options["aws_endpoint_url"])
    text = text.replace("KEY:SECRET", f"{options['aws_access_key_id']}:{options['aws_secret_access_key']}")
    lines = dict(line.split("=", 1) for line in text.splitlines())
    return {**lines, "spark.driver.extraClassPath": engines.class_path(place, "iceberg-jars")}
