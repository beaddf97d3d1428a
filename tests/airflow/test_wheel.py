"""Tests of ``pip install lakeops`` for Airflow's users: the DAGs by one import line, and the plugin once."""

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
ALL = [
    f"lakeops_{name}"
    for name in (
        "branch",
        "create_mirror",
        "fsck",
        "gc",
        "import",
        "merge",
        "mirror",
        "reset",
        "revert",
        "sweep",
        "tag",
    )
]

LOOK = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
from airflow import plugins_manager as core
from airflow.sdk import plugins_manager as sdk
import lakeops

bag = DagBag(dag_folder=sys.argv[1], bundle_name="dags-folder")
found = {
    "lakeops": lakeops.__file__,
    "errors": bag.import_errors,
    "dags": {
        dag.dag_id: [str(dag.schedule), dag.fileloc, dag.params.dump(), sorted(dag.tags)]
        for dag in bag.dags.values()
    },
    "plugins": {},
}
for manager in (core, sdk):
    plugins, errors = manager._get_plugins()
    found["plugins"][manager.__name__] = [sorted(plugin.name for plugin in plugins), errors]
print(json.dumps(found))
"""

Look = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    place = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(place)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    [built] = place.glob("lakeops-*.whl")
    return built


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """All that is installed here, but lakeops."""
    place = tmp_path_factory.mktemp("others")
    for item in Path(sysconfig.get_path("purelib")).iterdir():
        if not item.name.startswith(("lakeops", "_lakeops", "__editable__")) and item.suffix != ".pth":
            (place / item.name).symlink_to(item)
    return place


@pytest.fixture(scope="module", params=["installed", "unpacked"])
def environment(request, wheel, others, tmp_path_factory):
    """A fresh environment's interpreter; whether the wheel is installed there, or only its package is on the path."""
    place = tmp_path_factory.mktemp(request.param)
    venv.create(place, with_pip=False)
    python = place / "bin" / "python"
    [site] = place.glob("lib/python3*/site-packages")
    (site / "others.pth").write_text(f"{others}\n")
    is_installed = request.param == "installed"
    if is_installed:
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index"]
        subprocess.run([*pip, str(wheel)], check=True, capture_output=True)
    else:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site, [name for name in archive.namelist() if name.startswith("lakeops/")])
    return python, is_installed


@pytest.fixture
def look(environment, tmp_path):
    """The DAGs and plugins that an Airflow of that environment finds in their folders."""
    python, _ = environment

    def look(dags, plugins=None):
        settings = {
            "AIRFLOW_HOME": str(tmp_path / "airflow"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(plugins or tmp_path / "plugins"),
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
        }
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW", "LAKEOPS", "PYTHON"))}
        done = subprocess.run(
            [str(python), "-c", LOOK, str(dags)],
            env=kept | settings,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout.splitlines()[-1])
        assert Path(found["lakeops"]).is_relative_to(python.parents[1]), "this is not the wheel's lakeops"
        return found

    return look


def test_the_wheel_holds_what_users_import_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    due = ("airflow/dags/__init__.py", "airflow/dags/upkeep.py", "airflow/plugin.py", "testing/fixtures.py", "py.typed")
    assert {f"lakeops/{name}" for name in due} <= set(names)
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"lakeops"}


def test_one_line_gives_the_dags_that_it_names(look, tmp_path):
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "mine.py").write_text("from lakeops.airflow.dags import lakeops_gc, lakeops_mirror\n")
    (dags / "other.py").write_text(
        "from lakeops.airflow.dags import gc_dag\n\n"
        "nightly = gc_dag(dag_id='nightly', schedule='0 3 * * *', tags=['ours'])\n"
        "nightly.params['connection'] = 'production'\n"
    )
    found = look(dags)
    assert found["errors"] == {}
    assert set(found["dags"]) == {"lakeops_gc", "lakeops_mirror", "nightly"}
    assert found["dags"]["lakeops_gc"][:2] == ["@daily", str(dags / "mine.py")]
    schedule, file, params, tags = found["dags"]["nightly"]
    assert (schedule, file, tags) == ("0 3 * * *", str(dags / "other.py"), ["ours"])
    assert params["connection"] == "production"
    assert params["dry_run"] is True, "what a person starts shows first; scheduled runs do the work"


def test_a_star_gives_all_of_them(look, tmp_path):
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "all.py").write_text("from lakeops.airflow.dags import *\n")
    found = look(dags)
    assert found["errors"] == {}
    assert sorted(found["dags"]) == ALL


@pytest.mark.parametrize("folder", ["no folder", "the folder of the sources"])
def test_the_plugin_is_registered_once(look, environment, folder):
    sources = folder == "the folder of the sources"
    found = look(ROOT / "dags", ROOT / "plugins" if sources else None)
    due = ["lakeops"] if sources or environment[1] else []
    managers = ("airflow.plugins_manager", "airflow.sdk.plugins_manager")
    ours = {
        name: [[one for one in found["plugins"][name][0] if one == "lakeops"], *found["plugins"][name][1:]]
        for name in managers
    }
    assert ours == {name: [due, {}] for name in managers}  # other providers of the environment have plugins too
    assert found["errors"] == {}
    assert sorted(found["dags"]) == [*ALL, "publish_flights", "publish_iceberg"]
