"""``lakeops fsck``: what people and programs see, and the exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path

from lakeops.lake import Repository
from lakeops.model.errors import Transient

R = "lakefs://flights"


def files_of(repository: Repository, folder: str) -> list[Path]:
    root = Path(repository.storage_namespace.removeprefix("file://"))
    return sorted(path for path in (root / folder).rglob("*") if path.is_file())


def test_a_healthy_repository(run, flights):
    text = run.ok("fsck", R)
    assert text == "Checked 3 commits, 3 ranges, 3 entries, 1 staged row: everything is in order.\n"
    assert "4 objects" in run.ok("fsck", R, "--data")
    found = run.json("fsck", R)
    assert found["ok"] is True
    assert found["findings"] == []
    assert found["severities"] == {"error": 0, "warning": 0, "info": 0}
    assert found["checked"]["commits"] == 3


def test_damage_leaves_with_1_and_says_what_and_where(run, flights):
    gone = files_of(flights, "_lakefs/ranges")[0]
    gone.unlink()
    result = run("fsck", R)
    assert result.exit_code == 1
    named = rf"^error +range_missing _lakefs/ranges/{gone.name}: the file is not there$"
    assert re.search(named, result.stdout, re.MULTILINE)
    assert re.search(r"^ +needed by [0-9a-f]{16}", result.stdout, re.MULTILINE)
    assert result.stdout.endswith(": 1 error, 0 warnings.\n")
    as_json = run("fsck", R, "--json")
    assert as_json.exit_code == 1
    found = json.loads(as_json.stdout)
    assert found["ok"] is False
    error = next(one for one in found["findings"] if one["severity"] == "error")
    assert (error["kind"], error["where"]) == ("range_missing", f"_lakefs/ranges/{gone.name}")
    assert error["commit_count"] == len(error["commits"]) >= 1
    assert error["advice"]


def test_information_alone_leaves_with_0(run, flights):
    flights.branch("dev").reset()
    found = run.json("fsck", R)
    assert [one["kind"] for one in found["findings"]] == ["unreferenced_objects"]
    assert found["ok"] is True
    assert "everything is in order" in run.ok("fsck", R)


def test_a_check_that_ends_early_is_still_one_document(run, flights, monkeypatch):
    def gone(*_args, **_given):
        raise Transient("the catalog is away", kind="catalog_unavailable")

    files_of(flights, "_lakefs/ranges")[0].unlink()
    monkeypatch.setattr("lakeops.catalog.audit.Audit.staged_rows", gone)
    result = run("fsck", R, "--json")
    assert result.exit_code == 1
    assert result.stdout.count("\n") == 1
    found = json.loads(result.stdout)
    assert [one["kind"] for one in found["findings"]] == ["range_missing"]
    assert found["error"] == {"kind": "catalog_unavailable", "message": "the catalog is away"}
    assert "ok" not in found
    assert run("fsck", R).stderr == "Error: the catalog is away\n"
