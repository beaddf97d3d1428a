from __future__ import annotations

import json

import pytest

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


@pytest.mark.parametrize(
    ("rules", "kind", "words"),
    [
        ("{", "invalid_rules", "not JSON"),
        ({"default_retention_days": -1}, "invalid_rules", "between 0 and"),
        (RULES | {"branches": [{"branch_id": "mian", "retention_days": 1}]}, "invalid_rules", "'mian'"),
    ],
)
def test_bad_rules_are_refused(run, flights, rules_file, rules, kind, words):
    error = run.error("gc", "rules", "set", "lakefs://flights", rules_file(rules))
    assert (error["kind"], error["exit_code"]) == (kind, 2)
    assert words in error["message"]


def test_a_file_that_cannot_be_read_is_named(run, flights, tmp_path):
    assert "nowhere.json" in run.error("gc", "rules", "set", "lakefs://flights", "nowhere.json")["message"]
    (tmp_path / "latin").write_bytes(b"\xff\xfe\x00")
    assert "UTF-8" in run.error("gc", "rules", "set", "lakefs://flights", str(tmp_path / "latin"))["message"]
