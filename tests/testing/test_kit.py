"""The testing kit as its users have it: the page's examples, run by pytest in a directory of their own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lakeops import Lake, Settings
from lakeops.testing import Faults, open_faulty

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"


def test_the_examples_of_the_page_pass(tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    opt_in, *examples = blocks
    assert opt_in.startswith("pytest_plugins"), "the page begins with how a suite opts in"
    (tmp_path / "conftest.py").write_text(opt_in)
    for number, example in enumerate(examples):
        (tmp_path / f"test_{number}.py").write_text(example)
    nowhere = {"LAKEOPS_HOME": "/nowhere", "LAKEOPS_DATABASE_URL": "postgresql+psycopg://nowhere/x"}
    airflow = {"AIRFLOW_HOME": str(tmp_path), "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "sqlite:////nowhere/airflow.db"}
    environment = {**os.environ, **nowhere, **airflow}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    wanted = sum(len(re.findall(r"^def test_", example, re.MULTILINE)) for example in examples)
    assert wanted >= 6
    passed = re.search(r"(\d+) passed", run.stdout)
    assert passed is not None
    assert int(passed[1]) >= wanted


def test_each_test_has_a_lake_of_its_own(lake, lake_settings, lake_clock, tmp_path):
    assert list(lake.repositories()) == []
    repo = lake.create_repository("repo")
    assert repo.storage_namespace.startswith(tmp_path.as_uri())
    assert lake_settings.home.is_relative_to(tmp_path)
    assert repo.ref("main").commit.creation_date == lake_clock.seconds


def test_the_faulty_lake_has_the_settings_of_the_lake(tmp_path):
    settings = Settings.load(
        home=tmp_path / "home", fsync=False, grace_hours=1, s3_requester_pays=True, committer="ada"
    )
    with Lake.open(settings=settings) as plain, open_faulty(settings, Faults()) as faulty:
        assert faulty.store_settings == plain.store_settings == faulty.stores().settings
        graces = [lake.create_repository(name).gc.grace() for name, lake in (("plain", plain), ("faulty", faulty))]
        assert graces[0] == graces[1]


def test_the_faulty_lake_fails_on_demand_only(faulty_lake, lake_faults):
    main = faulty_lake.create_repository("repo").branch("main")
    lake_faults.revive()
    main.put("a", b"1")
    assert lake_faults.counts["put"] == 1
    lake_faults.fail("put", error=PermissionError("full"))
    with pytest.raises(PermissionError, match="full"):
        main.put("b", b"2")
    assert [change.path for change in main.uncommitted()] == ["a"]
