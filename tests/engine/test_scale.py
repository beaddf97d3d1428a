"""Cost follows what changed, not what there is: counted on ten million entries, in memory that stays bounded."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
MOST_MEGABYTES = 400

pytestmark = pytest.mark.xdist_group("big repository")


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("big")
    done = subprocess.run(
        [sys.executable, "-m", "support.big_repository", str(folder), "10000000"],
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


def test_ten_million_entries_are_built_from_a_stream(steps):
    assert steps["build"]["entries"] == 10_000_000
    assert 350 < steps["build"]["ranges"] < 520
    assert steps["build"]["written"] == steps["build"]["ranges"]


def test_a_clustered_commit_touches_what_it_changes(steps):
    assert steps["clustered"]["total"] == 1_000
    assert steps["clustered"]["read"] <= 3
    assert steps["clustered"]["written"] <= 3


def test_a_scattered_commit_opens_only_touched_ranges(steps):
    assert steps["random"]["total"] == 1_000
    assert steps["random"]["read"] <= steps["build"]["ranges"]
    assert steps["random"]["written"] <= steps["random"]["read"] + 3


def test_a_diff_of_100_keys_in_10_ranges_opens_20_files(steps):
    assert steps["places"]["read"] == steps["places"]["written"] == 10
    assert steps["diff"]["total"] == 100
    assert steps["diff"]["read"] == 20
    assert steps["diff"]["written"] == 0


def test_memory_stays_bounded(steps):
    assert max(step["peak_mb"] for step in steps.values()) < MOST_MEGABYTES
