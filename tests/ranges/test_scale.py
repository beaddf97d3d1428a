"""Cost follows what changed, not what there is: counted on millions of entries, in memory that stays bounded."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
MOST_MEGABYTES = 400


def measured(folder: Path, entries: int) -> dict[str, dict[str, float]]:
    """What ``support.big_repository`` found; its files are removed."""
    done = subprocess.run(
        [sys.executable, "-m", "support.big_repository", str(folder), str(entries)],
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    for file in folder.rglob("*.parquet"):
        file.unlink()
    return json.loads(done.stdout)


@pytest.mark.parametrize("entries", [2_000_000, pytest.param(10_000_000, marks=pytest.mark.slow)])
def test_millions_of_entries(tmp_path, entries):
    steps = measured(tmp_path, entries)

    build = steps["build"]
    assert build["entries"] == entries
    assert entries / 3_000 < build["ranges"] < entries / 2_600
    assert build["written"] == build["ranges"]

    clustered = steps["clustered"]
    assert clustered["total"] == 1_000
    assert clustered["read"] <= 3
    assert clustered["written"] <= 3

    random = steps["random"]
    assert random["total"] == 1_000
    assert random["read"] <= build["ranges"]
    assert random["written"] <= random["read"] + 3

    # 100 changed keys in 10 ranges: 20 files, ten of each side.
    assert steps["places"]["read"] == steps["places"]["written"] == 10
    assert steps["diff"]["total"] == 100
    assert steps["diff"]["read"] == 20
    assert steps["diff"]["written"] == 0

    # Changes everywhere: both sides of every range that differs, however many, a few at a time.
    assert steps["random diff"]["total"] == 1_000
    assert steps["random diff"]["read"] == 2 * random["read"]
    assert steps["merge"]["total"] == 1_000
    assert steps["merge"]["opened"] <= 10
    assert steps["merge"]["read"] == steps["random diff"]["read"] + steps["merge"]["opened"]

    # With the lists that these commits keep, nothing is opened.
    assert [steps[f"listed {name}"]["read"] for name in ("diff", "random diff", "merge")] == [0, 0, 0]
    assert steps["listed merge"]["opened"] == 0
    assert [steps[f"listed {name}"]["total"] for name in ("diff", "random diff", "merge")] == [100, 1_000, 1_000]

    assert max(step["peak_mb"] for step in steps.values()) < MOST_MEGABYTES
