"""``lakeops audit`` on a real lake."""

from __future__ import annotations

import pytest

R = "lakefs://flights"


def test_it_says_who_did_what_and_what_is_only_claimed(run, flights, monkeypatch):
    monkeypatch.setenv("LAKEOPS_COMMITTER", "somebody else")
    run("branch", "protect", R, "release-*")
    first = run.lines("audit", R)[0]
    assert (first["action"], first["ref"], first["claimed"]) == ("protect", "release-*", "somebody else")
    assert first["actor"] == first["login"] != "somebody else"
    shown = run("audit", R, "--amount", "1").stdout
    assert "protect" in shown
    assert f"by {first['login']} (claimed: somebody else)" in shown


def test_a_deleted_repository_is_still_there(run, flights):
    run("repo", "delete", R, "--yes")
    assert run.lines("audit", R)[0]["action"] == "delete-repository"
    assert run.lines("audit")[0]["repository"] == "flights"


@pytest.mark.parametrize("moment", ["yesterday", "2026-13-01", ""])
def test_what_is_no_moment_is_a_usage_error(run, flights, moment):
    result = run("audit", R, "--since", moment)
    assert result.exit_code == 2
    assert "no moment" in result.stderr


def test_amounts_and_moments_narrow_it(run, flights):
    every = run.lines("audit", R)
    assert run.lines("audit", R, "--amount", "1") == every[:1]
    assert run("audit", R, "--until", "2001-01-01").stdout == ""
    assert run.lines("audit", R, "--actor", every[0]["actor"], "--since", "2001-01-01T00:00+02:00") == every
