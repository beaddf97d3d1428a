from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from lakeops.model.clock import SystemClock
from lakeops.model.retention import Rules

RULES = {"default_retention_days": 21, "branches": [{"branch_id": "main", "retention_days": 28}]}


@pytest.fixture
def rules_file(tmp_path):
    def write(rules) -> str:
        file = tmp_path / "rules.json"
        file.write_text(rules if isinstance(rules, str) else json.dumps(rules))
        return str(file)

    return write


def test_rules_are_set_shown_and_removed(run, flights, rules_file):
    assert run.error("gc", "rules", "get", "lakefs://flights")["exit_code"] == 4
    assert run.json("gc", "rules", "set", "lakefs://flights", rules_file(RULES)) == RULES
    assert run.json("gc", "rules", "get", "lakefs://flights") == RULES
    shown = run.ok("gc", "rules", "get", "lakefs://flights")
    assert shown == "Default: 21 days\nBranch main: kept 28 days\n"
    assert run.json("gc", "rules", "delete", "lakefs://flights") == {"removed": RULES}
    assert run.error("gc", "rules", "get", "lakefs://flights")["kind"] == "not_found"


def test_rules_come_from_stdin_too(run, flights):
    more = RULES | {"tags": [{"tag_id": "n-*", "expire_after_days": 1}], "mirror_lag_days": 2}
    shown = run.ok("gc", "rules", "set", "lakefs://flights", stdin="\ufeff" + json.dumps(more))
    assert "Tag n-*: deleted after 1 day\nMirrors may lag: 2 days\n" in shown
    assert run.json("gc", "rules", "get", "lakefs://flights") == more


def test_every_rule_is_shown(run, flights):
    """Each with a number of its own, by which its line is found."""
    names = [name for name in Rules.model_fields if name.endswith("_days")]
    numbers = {name: 400 + index for index, name in enumerate(names)}
    entries = {"retention_days": 500, "expire_after_days": 501}
    rules = {
        **numbers,
        "branches": [{"branch_id": "main", **entries}],
        "tags": [{"tag_id": "n-*", "expire_after_days": 501}],
    }
    shown = run.ok("gc", "rules", "set", "lakefs://flights", stdin=json.dumps(rules))
    assert [number for number in (*numbers.values(), *entries.values()) if f" {number} days" not in shown] == []
    assert run.ok("gc", "rules", "get", "lakefs://flights") == shown.partition("\n")[2]


def test_bad_rules_are_refused(run, flights, rules_file):
    error = run.error("gc", "rules", "set", "lakefs://flights", rules_file("{"))
    assert (error["kind"], error["exit_code"]) == ("invalid_rules", 2)
    assert "not JSON" in error["message"]


def test_a_file_that_cannot_be_read_is_named(run, flights, tmp_path):
    assert "nowhere.json" in run.error("gc", "rules", "set", "lakefs://flights", "nowhere.json")["message"]
    (tmp_path / "latin").write_bytes(b"\xff\xfe\x00")
    assert "UTF-8" in run.error("gc", "rules", "set", "lakefs://flights", str(tmp_path / "latin"))["message"]


@pytest.fixture
def garbage(lake, flights, monkeypatch):
    """The repository with an object that nobody refers to, nine days later."""
    now = SystemClock().now
    dev = flights.branch("dev")
    dev.put("raw/c.csv", b"again")
    monkeypatch.setattr(SystemClock, "now", lambda _self: now() + timedelta(days=9))
    lake.catalog.marks.confirm_clock()
    return flights


def test_a_mark_says_when_young_files_go(run, flights, monkeypatch):
    flights.gc.set_grace("1h")
    flights.branch("dev").put("raw/c.csv", b"again")
    line = next(line for line in run.ok("gc", "mark", "lakefs://flights").splitlines() if "A mark after" in line)
    then = datetime.fromisoformat(line.split("A mark after ")[1].split(" may hold")[0].removesuffix(" UTC").strip())
    then = then if then.tzinfo else then.replace(tzinfo=UTC)
    for late, garbage in ((-60, 0), (60, 1)):
        monkeypatch.setattr(SystemClock, "now", lambda _self, now=then + timedelta(seconds=late): now)
        flights._ctx.catalog.marks.confirm_clock()
        assert run.json("gc", "mark", "lakefs://flights")["objects"] == garbage


def test_a_mark_is_made_shown_and_swept(run, garbage):
    shown = run.ok("gc", "mark", "lakefs://flights")
    assert "Garbage:   1 of 5 objects (2 B, 20.0%)" in shown
    assert "kept: 2 by branches, 2 without rules" in shown or "kept: 1 by branches, 2 without rules" in shown
    mark = run.json("gc", "mark", "lakefs://flights")
    assert {"id", "objects", "bytes", "state"} <= mark.keys()
    assert (mark["objects"], mark["state"]) == (1, "marked")
    report = run.json("gc", "report", "lakefs://flights", mark["id"])
    assert report["mark"] == mark
    assert "Mark " + mark["id"] + " is marked\n" in run.ok("gc", "report", "lakefs://flights", mark["id"])
    marks = run.json("gc", "list", "lakefs://flights")
    assert sorted(row["state"] for row in marks) == ["marked", "stale"]
    assert mark["id"] in run.ok("gc", "list", "lakefs://flights")
    done = run.json("gc", "sweep", "lakefs://flights", mark["id"], "--yes")
    assert (done["deleted"], done["mark"]["state"]) == (done["mark"]["objects"] + done["mark"]["files"], "swept")
    assert run.ok("gc", "sweep", "lakefs://flights", mark["id"], "--yes") == "Deleted 0 files (0 B)\n"


def test_a_sweep_shows_what_would_go_and_does_nothing_without_a_yes(run, garbage):
    mark = run.json("gc", "mark", "lakefs://flights")
    error = run.error("gc", "sweep", "lakefs://flights", mark["id"])
    assert (error["kind"], error["exit_code"]) == ("invalid_input", 2)
    assert "Garbage:   1 of 5" in run("gc", "sweep", "lakefs://flights", mark["id"]).stderr
    assert run.json("gc", "report", "lakefs://flights", mark["id"])["mark"]["state"] == "marked"


@pytest.mark.parametrize("verb", [("report",), ("restore",), ("sweep", "--yes")])
def test_an_unknown_mark_is_not_found(run, flights, verb):
    error = run.error("gc", verb[0], "lakefs://flights", "nonsense", *verb[1:])
    assert (error["kind"], error["exit_code"]) == ("mark_not_found", 4)


def test_expired_commits_are_marked_in_the_log(run, lake, garbage):
    garbage.gc.set_rules({"default_retention_days": 0})
    run.ok("gc", "mark", "lakefs://flights")
    assert run.ok("log", "lakefs://flights/main").count("(expired)") == 2
    assert [line.get("expired", False) for line in run.lines("log", "lakefs://flights/main")] == [False, True, True]
    assert run.error("fs", "ls", "lakefs://flights/main~1")["kind"] == "expired"


def test_a_dry_run_shows_what_a_mark_would_do_and_changes_nothing(run, lake, garbage):
    garbage.gc.set_rules({"default_retention_days": 0})
    shown = run.ok("gc", "mark", "lakefs://flights", "--dry-run")
    assert shown.startswith("A mark made now would hold this; nothing was changed:\n")
    assert "Commits:   2 expired now; kept: " in shown
    foretold = run.json("gc", "mark", "lakefs://flights", "-n")
    assert (foretold["commits"]["expired_now"], foretold["mark"]["id"]) == (2, "")
    assert run.json("gc", "list", "lakefs://flights") == []
    assert run.ok("log", "lakefs://flights/main").count("(expired)") == 0
    mark = run.json("gc", "mark", "lakefs://flights")
    assert mark["objects"] == foretold["objects"]


def test_a_mark_is_restored_until_it_is_swept(run, lake, garbage):
    garbage.gc.set_rules({"default_retention_days": 0})
    first = run.json("gc", "mark", "lakefs://flights")["id"]
    done = run("gc", "mark", "lakefs://flights")
    second = run.json("gc", "list", "lakefs://flights")[0]["id"]
    assert f"To let its commits live again instead: lakeops gc restore lakefs://flights {second}\n" in done.stderr
    assert "0 expired now, 2 by earlier marks; kept: " in done.stdout
    earlier = run("gc", "restore", "lakefs://flights", first)
    assert f"A newer mark decided about its commits: lakeops gc restore lakefs://flights {second}\n" in earlier.stderr
    done = run.json("gc", "restore", "lakefs://flights", second)
    assert (done["commits"], done["mark"]["state"], done["newer"]) == (2, "restored", None)
    assert run.ok("log", "lakefs://flights/main").count("(expired)") == 0
    assert run.error("gc", "sweep", "lakefs://flights", second, "--yes")["kind"] == "mark_refused"
    third = run.json("gc", "mark", "lakefs://flights")["id"]
    run.ok("gc", "sweep", "lakefs://flights", third, "--yes", "--force")
    error = run.error("gc", "restore", "lakefs://flights", third)
    assert (error["kind"], error["exit_code"]) == ("mark_refused", 5)


def test_idle_branches_are_listed_and_deleted_when_asked_for(run, garbage, monkeypatch):
    garbage.create_branch("spare")
    rules = {"default_retention_days": 1, "branches": [{"branch_id": "*", "expire_after_days": 1}]}
    garbage.gc.set_rules(rules)
    found = run.json("gc", "idle", "lakefs://flights")
    assert [(ref["id"], ref["idle_days"], ref["kept"] is None) for ref in found] == [
        ("dev", 9, False),
        ("main", 9, False),
    ]
    assert found[0].keys() == {"type", "id", "commit_id", "idle_days", "kept"}
    now = SystemClock().now
    monkeypatch.setattr(SystemClock, "now", lambda _self: now() + timedelta(days=2))
    assert run.error("gc", "idle", "lakefs://flights", "--delete")["exit_code"] == 2
    done = run.json("gc", "idle", "lakefs://flights", "--delete", "--yes")
    assert [ref["id"] for ref in done if ref["kept"] is None] == ["spare"]
    assert {ref.id for ref in garbage.branches()} == {"dev", "main"}


def test_the_grace_period_is_shown_and_changed(run, flights):
    assert run.ok("gc", "grace", "lakefs://flights") == "Grace period of lakefs://flights: 24 h\n"
    assert run.json("gc", "grace", "lakefs://flights", "48h") == {
        "grace_seconds": 172_800, "pending_seconds": None, "pending_from": None,
    }  # fmt: skip
    shown = run.ok("gc", "grace", "lakefs://flights", "3600")
    assert "lakefs://flights: 48 h\n" in shown
    assert "on: 1 h; until then the longer one counts\n" in shown
    found = run.json("gc", "grace", "lakefs://flights")
    assert (found["grace_seconds"], found["pending_seconds"]) == (172_800, 3600)
    assert "on: 24 s; until" in run.ok("gc", "grace", "lakefs://flights", "24")
    error = run.error("gc", "grace", "lakefs://flights", "soon")
    assert (error["kind"], error["exit_code"]) == ("invalid_input", 2)


def test_a_clock_in_doubt_is_confirmed(run, garbage, monkeypatch):
    now = SystemClock().now
    monkeypatch.setattr(SystemClock, "now", lambda _self: now() + timedelta(days=30))
    error = run.error("gc", "mark", "lakefs://flights", "--dry-run", "--confirm-clock")
    assert (error["kind"], error["exit_code"]) == ("invalid_input", 2)
    dry = [(verb, "--dry-run") for verb in ("mark", "prune")]
    for verb in (*dry, ("mark",), ("prune",), ("idle", "--delete", "--yes")):
        error = run.error("gc", verb[0], "lakefs://flights", *verb[1:])
        assert (error["kind"], error["exit_code"]) == ("clock_in_doubt", 5)
        assert "lakeops gc confirm-clock" in error["message"]
    assert run.ok("gc", "confirm-clock").startswith("The time is ")
    run.ok("gc", "mark", "lakefs://flights")
    monkeypatch.setattr(SystemClock, "now", lambda _self: now() + timedelta(days=60))
    mark = run.json("gc", "mark", "lakefs://flights", "--confirm-clock")
    monkeypatch.setattr(SystemClock, "now", lambda _self: now() + timedelta(days=64))
    assert run.error("gc", "sweep", "lakefs://flights", mark["id"], "--yes")["kind"] == "clock_in_doubt"
    run.ok("gc", "sweep", "lakefs://flights", mark["id"], "--yes", "--confirm-clock")
    assert run.json("gc", "confirm-clock", "lakefs://flights")["time"] >= mark["creation_date"]
    assert run.error("gc", "confirm-clock", "lakefs://nowhere")["exit_code"] == 4
