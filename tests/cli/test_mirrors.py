"""``lakeops mirror``: create, sync, status, list, delete, promote-writable, between two homes."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from support.catalogs import mirror_needs

from lakeops.lake import Lake, Repository


class Two:
    """A source in a lake of its own, and the command line on another lake."""

    def __init__(self, place: Path, source: Lake, repository: Repository) -> None:
        self.source = source
        self.repository = repository
        self.text = f"{place}/source#flights"
        self.replica = place / "replica"

    def replicate(self) -> None:
        shutil.copytree(self.source.settings.home / "storage" / "flights", self.replica, dirs_exist_ok=True)


@pytest.fixture
def two(home, tmp_path):
    with Lake.open(home=tmp_path / "source") as source:
        repository = source.create_repository("flights")
        repository.branch("main").put("a.csv", b"1,2\n")
        repository.branch("main").commit("day 1")
        repository.create_tag("v1", "main")
        yield Two(tmp_path, source, repository)


def create(run, two, *options: str) -> dict[str, object]:
    made = run.json("mirror", "create", "lakefs://flights-eu", two.replica.as_uri(), "--source", two.text, *options)
    assert isinstance(made, dict)
    return made


def test_a_mirror_is_made_synced_and_read(run, two):
    made = create(run, two)
    assert (made["id"], made["read_only"]) == ("flights-eu", True)
    assert made["mirror"]["source"] == two.text  # type: ignore[index]
    waiting = run.json("mirror", "sync", "lakefs://flights-eu")
    [main] = waiting["branches"]
    assert (main["id"], main["candidate"]) == ("main", two.repository.branch("main").commit_id)
    assert main["lag_commits"] == 1
    assert main["missing_objects"] == 1
    assert not waiting["caught_up"]
    two.replicate()
    done = run.json("mirror", "sync", "lakefs://flights-eu")
    assert done["caught_up"]
    assert [tag["promoted"] for tag in done["tags"]] == [main["candidate"]]
    keys = {"id", "promoted", "candidate", "source_head", "lag_commits", "lag_seconds", "missing_objects"}
    keys |= {"missing_bytes", "last_pass", "error", "waiting_since", "last_arrival", "missing", "stalled"}
    assert keys == set(done["branches"][0])
    assert run.json("mirror", "status", "lakefs://flights-eu") == done
    assert run.ok("fs", "cat", "lakefs://flights-eu/v1/a.csv") == "1,2\n"
    assert run.error("fs", "rm", "lakefs://flights-eu/main/a.csv")["kind"] == "read_only_repository"


def test_people_see_how_far_it_is(run, two):
    create(run, two)
    assert "never" in run.ok("mirror", "status", "lakefs://flights-eu")
    waiting = run.ok("mirror", "sync", "lakefs://flights-eu")
    assert "1 commit" in waiting
    assert "1 object" in waiting
    assert "tag v1" in waiting
    assert two.text in run.ok("mirror", "list")
    [listed] = run.json("mirror", "list")
    assert (listed["id"], listed["source"], listed["branch_patterns"]) == ("flights-eu", two.text, ["*"])


def test_what_is_followed_can_be_chosen(run, two):
    two.repository.create_branch("release-1", source="main")
    two.repository.create_branch("dev", source="main")
    create(run, two, "--branch", "release-*", "--no-tags", "--read-only-source", "--trust-imported")
    two.replicate()
    done = run.json("mirror", "sync", "lakefs://flights-eu")
    assert [ref["id"] for ref in done["branches"]] == ["release-1"]
    assert done["tags"] == []
    assert mirror_needs(two.source.catalog, "flights") == {}


def test_older_commits_are_said_to_be_not_replicated(run, two):
    create(run, two)
    two.replicate()
    two.repository.branch("main").put("a.csv", b"3\n")
    two.repository.branch("main").commit("day 2")
    run.ok("mirror", "sync", "lakefs://flights-eu")
    late = two.repository.branch("main").commit_id
    error = run.error("fs", "cat", f"lakefs://flights-eu/{late}/a.csv")
    assert (error["kind"], error["exit_code"]) == ("not_replicated", 4)


def test_fail_over_shows_what_is_lost_and_needs_a_yes(run, two):
    create(run, two)
    two.replicate()
    run.ok("mirror", "sync", "lakefs://flights-eu")
    two.repository.branch("main").put("b.csv", b"3\n")
    two.repository.branch("main").commit("day 2")
    refused = run("mirror", "promote-writable", "lakefs://flights-eu")
    assert refused.exit_code == 2
    assert "1 ref would lose commits" in refused.stderr
    assert "branch main: 1 commit, from" in refused.stderr
    made = run.json("mirror", "promote-writable", "lakefs://flights-eu", "--yes")
    assert made["read_only"] is False
    assert made["lost"]["source_asked"] is True
    assert [ref["commits"] for ref in made["lost"]["refs"]] == [1]
    for verb in ("sync", "promote-writable", "delete"):
        options = [] if verb == "sync" else ["--yes"]
        error = run.error("mirror", verb, "lakefs://flights-eu", *options)
        assert (error["kind"], error["exit_code"]) == ("not_a_mirror", 5)
    assert "follows no source" in run.ok("mirror", "status", "lakefs://flights-eu")
    run.ok("commit", "lakefs://flights-eu/main", "-m", "on", "--allow-empty-commit")


def test_a_mirror_that_is_deleted_as_a_repository_leaves_a_word_at_its_source(run, two):
    create(run, two)
    registered = run.json("mirror", "sync", "lakefs://flights-eu")
    assert registered
    assert "mirror delete" in run("repo", "delete", "lakefs://flights-eu").stderr
    note = run("repo", "delete", "lakefs://flights-eu", "--yes").stderr
    [left] = mirror_needs(two.source.catalog, "flights")
    assert f"keeps commits for {left!r} until you run `lakeops mirror drop` there" in note
    run.ok("repo", "create", "lakefs://plain")
    assert "source" not in run("repo", "delete", "lakefs://plain", "--yes").stderr


def test_a_mirror_is_forgotten_also_when_its_source_is_gone(run, two, home, tmp_path, monkeypatch):
    create(run, two)
    assert run.error("mirror", "delete", "lakefs://flights-eu")["kind"] == "invalid_input"
    assert run.json("mirror", "delete", "lakefs://flights-eu", "--yes")["source_told"] is True
    create(run, two)
    two.source.close()
    (tmp_path / "source").rename(tmp_path / "gone")
    error = run.error("mirror", "sync", "lakefs://flights-eu")
    assert (error["kind"], error["exit_code"]) == ("catalog_unavailable", 1)
    assert "cannot be reached" in run.ok("mirror", "status", "lakefs://flights-eu")
    result = run("mirror", "delete", "lakefs://flights-eu", "--yes")
    assert result.exit_code == 0
    assert "could not be told" in result.stderr
    (tmp_path / "gone").rename(tmp_path / "source")
    monkeypatch.setenv("LAKEOPS_HOME", str(tmp_path / "source"))
    [left] = run.json("mirror", "registrations", "lakefs://flights")
    assert left["id"] in result.stderr
    assert left["id"] in run.ok("mirror", "registrations", "lakefs://flights")
    assert run.error("mirror", "drop", "lakefs://flights", left["id"])["kind"] == "invalid_input"
    assert run.json("mirror", "drop", "lakefs://flights", left["id"], "--yes") == left
    assert run.json("mirror", "registrations", "lakefs://flights") == []
    assert run.error("mirror", "drop", "lakefs://flights", left["id"], "--yes")["kind"] == "not_found"
    monkeypatch.setenv("LAKEOPS_HOME", str(home))
    assert run.json("mirror", "list") == []


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("postgresql://ada:s3cr3t@db/lake#flights", "invalid_input"),
        ("s3://bucket/flights", "invalid_input"),
        ("env:NOT_SET_AT_ALL#flights", "invalid_settings"),
        ("airflow:source#flights", "invalid_settings"),
        ("/nowhere/at/all#flights", "catalog_unavailable"),
    ],
)
def test_sources_that_cannot_be_are_refused_without_a_secret(run, home, tmp_path, source, kind):
    result = run("mirror", "create", "lakefs://flights-eu", f"file://{tmp_path}/replica", "--source", source)
    assert "s3cr3t" not in result.output
    assert (
        run.error("mirror", "create", "lakefs://flights-eu", f"file://{tmp_path}/r", "--source", source)["kind"] == kind
    )
    assert run.json("repo", "list") == []


def let_pass(home: Path, seconds: int) -> None:
    """Let everything that the catalog has noted of mirrors have happened earlier."""
    with sqlite3.connect(home / "catalog.db") as database:
        database.execute("UPDATE lakeops_mirror SET last_sync = last_sync - ?", (seconds,))
        for name, text in database.execute("SELECT name, wait FROM lakeops_mirror_ref").fetchall():
            wait = json.loads(text)
            if wait is not None:
                wait["progressed"] -= seconds
                values = (json.dumps(wait), name)
                database.execute("UPDATE lakeops_mirror_ref SET wait = ? WHERE name = ?", values)
    database.close()


def test_status_fails_where_somebody_should_look(run, two, home):
    create(run, two)
    run.json("mirror", "sync", "lakefs://flights-eu")
    assert run.ok("mirror", "status", "lakefs://flights-eu")
    assert run.ok("mirror", "status", "lakefs://flights-eu", "--max-lag", "1d")
    let_pass(home, 7200)
    late = run("mirror", "status", "lakefs://flights-eu", "--max-lag", "15m")
    assert late.exit_code == 1
    assert "the source was last seen 7,2" in late.stderr
    assert "branch 'main' waits for commit" in late.stderr
    stalled = run("mirror", "status", "lakefs://flights-eu", "--json")
    assert stalled.exit_code == 1
    assert json.loads(stalled.stdout)["branches"][0]["stalled"]
    assert "nothing has arrived since" in run("mirror", "status", "lakefs://flights-eu").stderr
    two.replicate()
    run.json("mirror", "sync", "lakefs://flights-eu")
    assert run.ok("mirror", "status", "lakefs://flights-eu", "--max-lag", "15m")
    assert run("mirror", "status", "lakefs://flights-eu", "--max-lag", "soon").exit_code == 2


def test_a_candidate_is_skipped_and_patience_is_set(run, two):
    create(run, two)
    waiting = run.json("mirror", "sync", "lakefs://flights-eu")["branches"][0]["candidate"]
    two.repository.branch("main").put("b.csv", b"3\n")
    newest = two.repository.branch("main").commit("day 2").id
    skipped = run.json("mirror", "skip", "lakefs://flights-eu", "main")
    assert (skipped["candidate"], skipped["promoted"] == waiting) == (newest, False)
    assert run.json("mirror", "skip", "lakefs://flights-eu", "v1", "--tag")["id"] == "v1"
    assert run.error("mirror", "skip", "lakefs://flights-eu", "none")["kind"] == "ref_not_found"
    assert run.json("mirror", "stall-timeout", "lakefs://flights-eu", "30m")["stall_timeout"] == 1800
    assert run.error("mirror", "stall-timeout", "lakefs://flights-eu", "0")["kind"] == "invalid_input"
