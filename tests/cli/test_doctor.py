"""``doctor`` and ``config``: what is in force, what is wrong, and no secret in either."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

from lakeops.settings import Settings
from lakeops.store.disk_cache import DiskCache
from lakeops.store.local import LocalStore


def results(document):
    return {result["name"]: result for result in document["results"]}


def test_everything_is_in_order(run, flights):
    document = run.json("doctor")
    found = results(document)
    assert document["ok"] is True
    assert {result["status"] for result in found.values()} <= {"ok", "absent"}
    assert found["catalog dialect"]["detail"] == "sqlite"
    assert "range reads" in found["repository flights"]["detail"]
    assert found["pyarrow"]["detail"]
    place = Path(flights.storage_namespace.removeprefix("file://"))
    assert list(place.glob("_lakefs/probe/**/*")) == [], "the probe cleans up"


def test_a_broken_store_is_a_problem(run, flights):
    place = Path(flights.storage_namespace.removeprefix("file://"))
    shutil.rmtree(place)
    place.write_text("a file where the store was")
    result = run("doctor", "--json")
    assert result.exit_code == 1
    assert '"ok": false' in result.stdout
    text = run("doctor")
    assert text.exit_code == 1
    assert "1 problem found." in text.stderr


def test_a_store_whose_listings_come_late_is_a_problem(run, flights, monkeypatch):
    """Garbage collection and outputs believe what a listing shows."""
    monkeypatch.setattr(LocalStore, "list", lambda *_, **__: iter(()))
    document = json.loads(run("doctor", "--json").stdout)
    found = results(document)["repository flights"]
    assert (document["ok"], found["status"]) == (False, "problem")
    assert "use another store" in found["detail"]


@pytest.mark.parametrize("moved", [False, True], ids=["copied", "moved"])
def test_a_home_that_was_copied_or_moved_writes_where_it_was_made(run, flights, home, monkeypatch, moved):
    """Its catalog names directories of the old home: what comes there is garbage to the old one, or begins anew."""
    other = home.parent / "other"
    home.rename(other) if moved else shutil.copytree(home, other)
    monkeypatch.setenv("LAKEOPS_HOME", str(other))
    result = run("doctor", "--json")
    assert result.exit_code == 1
    found = results(json.loads(result.stdout))["repository flights"]
    assert found["status"] == "problem"
    assert ("it has no owner record" if moved else "this catalog is a copy of it") in found["detail"]
    if moved:
        shutil.rmtree(home)  # the probe made it
        home.symlink_to(other)
    run.ok("repo", "adopt", "lakefs://flights", "--yes")
    assert run.json("doctor")["ok"] is True
    run.ok("fsck", "lakefs://flights", "--data")


def test_a_catalog_that_does_not_answer(run, home, monkeypatch):
    monkeypatch.setenv("LAKEOPS_DATABASE_URL", "postgresql+psycopg://ada:hunter2@127.0.0.1:1/lake?password=hunter3")
    for options in ([], ["--json"], ["--upgrade"]):
        result = run("doctor", *options)
        assert result.exit_code == 1
        assert "hunter" not in result.output
        assert "Traceback" not in result.output


def test_upgrade_is_safe_to_repeat(run, flights):
    first, second = (results(run.json("doctor", "--upgrade")) for _ in range(2))
    for found in (first, second):
        del found["disk cache"]  # other processes fill it meanwhile
    assert first == second


def test_java_is_optional(run, home, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    document = run.json("doctor")
    assert results(document)["java"]["status"] == "absent"
    assert document["ok"] is True


def test_settings_and_where_they_come_from(run, home, monkeypatch):
    Path("lakeops.toml").write_text('engine = "local"\ncache_mb = 7\n')
    Path("pyproject.toml").write_text("[tool.lakeops]\ncache_mb = 8\npublish_minutes = 9\n")
    monkeypatch.setenv("LAKEOPS_COMMITTER", "grace")
    shown = run.json("config", "show")
    assert shown["committer"] == {"value": "grace", "source": "LAKEOPS_COMMITTER"}
    assert shown["engine"] == {"value": "local", "source": "lakeops.toml"}
    assert shown["cache_mb"] == {"value": 7, "source": "lakeops.toml"}
    assert shown["publish_minutes"] == {"value": 9.0, "source": "pyproject.toml"}
    assert shown["s3_region"] == {"value": None, "source": "default"}
    assert "home" in run.ok("config", "show")


def test_what_looks_like_a_setting_and_is_none(run, home, monkeypatch):
    monkeypatch.setenv("LAKEOPS_ENGIN", "local")
    Path("lakeops.toml").write_text("cache_md = 7\n")
    document = run.json("doctor")
    assert document["ok"] is True
    found = results(document)
    assert found["setting LAKEOPS_ENGIN"]["detail"].endswith(
        "changes nothing (environment); did you mean LAKEOPS_ENGINE?"
    )
    assert found["setting cache_md"]["detail"].endswith("lakeops.toml); did you mean cache_mb?")

    text = run("doctor")
    assert "2 names that are no settings" in text.stderr
    assert "in order" not in text.stderr


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", None])
def test_a_server_that_only_lakeops_is_told_of(run, home, monkeypatch, variable):
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    assert "other programs" not in {result["name"] for result in run.json("doctor")["results"]}
    monkeypatch.setenv("LAKEOPS_S3_ENDPOINT_URL", "http://127.0.0.1:9")
    if variable is not None:
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    told = [result["detail"] for result in run.json("doctor")["results"] if result["name"] == "other programs"]
    assert ["AWS_ENDPOINT_URL=http://127.0.0.1:9" in one for one in told] == [True] * (variable is None)


def test_any_command_warns_of_a_misspelt_variable(run, home, monkeypatch):
    run.ok("repo", "create", "lakefs://shop")
    assert "Warning" not in run("repo", "list").stderr
    monkeypatch.setenv("LAKEOPS_DATABASE_ULR", "postgresql://elsewhere")
    for given in ([], ["--json"]):
        result = run("repo", "list", *given)
        assert result.exit_code == 0
        assert "LAKEOPS_DATABASE_ULR is no setting of lakeops" in result.stderr
        assert "did you mean LAKEOPS_DATABASE_URL?" in result.stderr
        assert "Warning" not in result.stdout


def test_any_command_warns_of_a_misspelt_key(run, home):
    run.ok("repo", "create", "lakefs://shop")
    Path("lakeops.toml").write_text("cache_md = 7\n")
    result = run("repo", "list", "--json")
    assert (result.exit_code, result.stderr.count("Warning: cache_md is no setting")) == (0, 1)
    assert "lakeops.toml); did you mean cache_mb?" in result.stderr


def test_an_engine_that_does_not_answer_is_a_problem(run, home, monkeypatch):
    monkeypatch.setenv("LAKEOPS_SPARK_MASTER", "spark://127.0.0.1:1")
    result = run("doctor", "--json")
    assert result.exit_code == 1
    assert "no Spark master answers at 127.0.0.1:1" in result.stdout


def test_an_engine_that_is_not_installed_is_a_problem(run, home, monkeypatch):
    monkeypatch.setenv("LAKEOPS_ENGINE", "spark")
    monkeypatch.setattr("lakeops.engine.spark.session.find_spec", lambda _: None)
    result = run("doctor", "--json")
    assert result.exit_code == 1
    assert "PySpark is not installed" in result.stdout


def test_the_disk_cache(run, home, monkeypatch, tmp_path):
    monkeypatch.setenv("LAKEOPS_DISK_CACHE_MB", "100")
    monkeypatch.setenv("LAKEOPS_DISK_CACHE", str(tmp_path / "kept"))
    DiskCache(tmp_path / "kept", 100 << 20).put(hashlib.sha256(b"data").digest(), b"data")
    assert run.json("cache", "show") == {
        "folder": str(tmp_path / "kept"),
        "usable": True,
        "files": 1,
        "size_bytes": 4,
        "max_bytes": 100 << 20,
    }
    assert "1 file, 4 B" in results(run.json("doctor"))["disk cache"]["detail"]
    assert run.json("cache", "clear") == {"files": 1, "size_bytes": 4}
    assert "0 files" in run("cache", "show").stdout
    monkeypatch.setenv("LAKEOPS_DISK_CACHE_MB", "0")
    assert "off" in run("cache", "show").stdout


def test_a_disk_cache_that_cannot_be_used_is_no_problem(run, home, monkeypatch, tmp_path):
    (tmp_path / "kept").write_text("a file where the folder would be")
    monkeypatch.setenv("LAKEOPS_DISK_CACHE_MB", "100")
    monkeypatch.setenv("LAKEOPS_DISK_CACHE", str(tmp_path / "kept"))
    document = run.json("doctor")
    assert results(document)["disk cache"]["status"] == "absent"
    assert document["ok"] is True


def test_a_user_without_a_home_has_a_disk_cache(monkeypatch, tmp_path):
    def nobody(_: int) -> None:
        raise KeyError

    for name in ("HOME", "XDG_CACHE_HOME", "LAKEOPS_DISK_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    settings = Settings.load(home=tmp_path / "lake", committer="me")
    assert settings.disk_cache == tmp_path / f"lakeops-{os.geteuid()}"
