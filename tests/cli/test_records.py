"""Every command's JSON, against the public contract."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from lakeops.cli.app import app
from lakeops.lake import Repository

COMMIT = {"id", "parents", "committer", "message", "creation_date", "metadata", "meta_range_id", "generation"}
REF = {"id", "commit_id"}
MARK = {"id", "state", "creation_date", "objects", "bytes", "files", "listed", "swept", "refused", "failures"}
REPOSITORY = {"id", "storage_namespace", "default_branch", "creation_date", "read_only", "metadata"}
OBJECT = {"path", "path_type", "physical_address", "checksum", "size_bytes", "mtime", "metadata", "content_type"}
CHANGE = {"type", "path", "size_bytes"}
MERGE = {"reference", "up_to_date", "summary", "source_uncommitted"}
CHECK = {"commit_id", "name", "state", "said_by", "at", "findings", "run"}
AUDIT = {
    "sequence", "repository", "action", "kind", "ref", "before", "after", "actor", "login", "claimed", "at",
}  # fmt: skip
RULE = {"type", "pattern", "check", "prefix"}
REFLOG = {"sequence", "ref", "old", "new", "action", "actor", "at"}
WRITTEN = {"path", "size_bytes", "commit_id", "committer", "creation_date", "message", "dag_run", "boundary"}

R = "lakefs://flights"
ONE, MANY, LINES = "one", "many", "lines"

COMMANDS: dict[str, tuple[list[str], str, set[str]]] = {
    "repo create": (["lakefs://other"], ONE, REPOSITORY),
    "repo list": ([], MANY, REPOSITORY),
    "repo metadata": ([R, "--meta", "k=v", "--remove", "j"], ONE, {"metadata"}),
    "repo adopt": ([R], ONE, {"owner", "before"}),
    "repo delete": ([R, "--yes"], ONE, REPOSITORY),
    "branch create": ([f"{R}/new", "--source", f"{R}/main~1"], ONE, REF),
    "branch list": ([R], MANY, {*REF, "committer", "creation_date", "message"}),
    "branch show": ([f"{R}/dev"], ONE, REF),
    "branch delete": ([f"{R}/dev", "--yes"], ONE, REF),
    "branch move": ([f"{R}/main", "main~1", "--force", "--yes"], ONE, {*REF, "old"}),
    "branch reset": ([f"{R}/dev", "--yes"], ONE, {*REF, "reset"}),
    "branch revert": ([f"{R}/main", "main"], ONE, COMMIT),
    "branch protect": ([R, "main"], ONE, RULE),
    "protection add": ([R, "main", "--check", "quality", "--prefix", "raw/"], ONE, RULE),
    "protection delete": ([R, "safe-*", "--check", "quality"], ONE, RULE),
    "protection list": ([R], MANY, RULE),
    "check pass": ([f"{R}/main", "quality"], ONE, CHECK),
    "check fail": ([f"{R}/main", "quality", "it is late"], ONE, CHECK),
    "check withdraw": ([f"{R}/main", "lint"], ONE, {"commit_id", "name"}),
    "check list": ([f"{R}/main"], MANY, CHECK),
    "tag create": ([f"{R}/v2", f"{R}/main"], ONE, REF),
    "tag list": ([R], MANY, REF),
    "tag show": ([f"{R}/v1"], ONE, REF),
    "tag move": ([f"{R}/v1", f"{R}/main~1"], ONE, {*REF, "old"}),
    "tag delete": ([f"{R}/v1"], ONE, REF),
    "fs upload": (["-s", "local.txt", f"{R}/dev/up.txt"], ONE, OBJECT),
    "fs download": ([f"{R}/main/raw/a.csv", "down.csv"], ONE, {*OBJECT, "file"}),
    "fs cat": ([f"{R}/main/raw/a.csv"], ONE, {*OBJECT, "encoding", "content"}),
    "fs ls": ([f"{R}/dev/"], LINES, OBJECT),
    "fs stat": ([f"{R}/main/raw/a.csv"], ONE, OBJECT),
    "fs cp": ([f"{R}/main/raw/", f"{R}/dev/old/", "-r"], ONE, {"path", "destination", "objects"}),
    "fs mv": ([f"{R}/dev/raw/a.csv", f"{R}/dev/b"], ONE, {"path", "destination", "objects"}),
    "fs update-metadata": ([f"{R}/dev/raw/a.csv", "--meta", "k=v", "--remove", "rows"], ONE, OBJECT),
    "fs rm": ([f"{R}/dev/raw/a.csv"], ONE, {"path", "removed"}),
    "import": (["--from", "incoming", "--to", f"{R}/main/raw", "-m", "take over"], ONE, COMMIT),
    "commit": ([f"{R}/dev", "-m", "go"], ONE, COMMIT),
    "log": ([f"{R}/main"], LINES, COMMIT),
    "blame": ([f"{R}/main/raw/"], LINES, WRITTEN),
    "history": ([f"{R}/main/raw/a.csv"], LINES, {*WRITTEN, "type", "checksum"}),
    "show commit": ([f"{R}/v1"], ONE, COMMIT),
    "merge-base": ([f"{R}/main", f"{R}/dev"], ONE, COMMIT),
    "reflog": ([R], LINES, REFLOG),
    "audit": ([R], LINES, AUDIT),
    "diff": ([f"{R}/dev"], LINES, CHANGE),
    "merge": ([f"{R}/left", f"{R}/main"], ONE, MERGE),
    "cherry-pick": ([f"{R}/left", f"{R}/main"], ONE, COMMIT),
    "gc rules set": ([R, "rules.json"], ONE, {"default_retention_days", "branches"}),
    "gc rules get": ([R], ONE, {"default_retention_days", "branches"}),
    "gc rules delete": ([R], ONE, {"removed"}),
    "gc grace": ([R], ONE, {"grace_seconds", "pending_seconds", "pending_from"}),
    "gc confirm-clock": ([], ONE, {"time"}),
    "gc mark": ([R], ONE, MARK),
    "gc list": ([R], MANY, MARK),
    "config show": ([], ONE, set()),
    "cache show": ([], ONE, {"folder", "usable", "files", "size_bytes", "max_bytes"}),
    "cache clear": ([], ONE, {"files", "size_bytes"}),
    "mirror replicate": (
        [R, "--destination", "copied"],
        ONE,
        {"copied", "copied_bytes", "present", "replaced", "vanished", "extra", "deleted"},
    ),
    "doctor": ([], ONE, {"ok", "results"}),
    "fsck": ([R], ONE, {"ok", "findings", "severities", "checked"}),
}
"""Arguments, shape and keys of each command but for those below."""

ELSEWHERE = [
    "db grants",  # on PostgreSQL
    *(f"bisect {verb}" for verb in ("start", "good", "bad", "skip", "reset", "run")),
    *(f"refs {verb}" for verb in ("dump", "status", "restore", "accept", "automatic")),
    *(f"hook {verb}" for verb in ("set", "list", "remove")),
    *(f"local {verb}" for verb in ("clone", "init", "status", "pull", "checkout", "commit", "list")),
    *("fs presign", "gateway", "mirror setup-s3", "gc report", "gc sweep", "gc idle", "gc restore", "gc prune"),
    *(
        f"mirror {verb}"
        for verb in ("create", "sync", "status", "skip", "stall-timeout", "list", "delete", "registrations", "drop")
    ),
    "mirror promote-writable",
    "mirror verify-history",
    "ui",
]
"""Tested elsewhere: for its error, as a process, on servers in place of S3, with a mark, between two lakes."""


def leaves(command: Any, name: str = "") -> Iterator[str]:
    """Names of all commands that do something."""
    children = getattr(command, "commands", None)
    if children is None:
        yield name
        return
    for child_name in children:
        yield from leaves(command.get_command(None, child_name), f"{name} {child_name}".strip())


def test_every_command_is_in_the_table():
    assert {*leaves(typer.main.get_command(app))} == {*COMMANDS, *ELSEWHERE}


def test_every_command_is_documented():
    text = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    assert [name for name in [*COMMANDS, *ELSEWHERE] if f"`{name}" not in text] == []


READS = {
    *("repo list", "branch list", "branch show", "protection list", "check list", "tag list"),
    *("tag show", "fs cat", "fs ls", "fs stat", "log", "blame", "history", "show commit", "merge-base"),
    *("reflog", "audit", "diff", "gc rules get", "gc list", "config show", "cache show", "doctor", "fsck"),
}
"""Commands that change nothing: they share a repository."""


@pytest.fixture
def prepared(request: pytest.FixtureRequest) -> Repository:
    """A repository with something of everything, for the command of the test."""
    return request.getfixturevalue("rich" if request.node.callspec.params["name"] in READS else "rich_again")


@pytest.mark.parametrize("name", COMMANDS)
def test_json_has_the_contracts_keys(run, prepared, name):
    args, shape, keys = COMMANDS[name]
    if shape == LINES:
        found = run.lines(*name.split(), *args)
    else:
        document = run.json(*name.split(), *args)
        found = [document] if shape == ONE else document
    assert found
    for record in found:
        assert isinstance(record, dict)
        assert set(record) in (keys, keys | {"checks"}) or not keys


@pytest.mark.parametrize("name", ["branch list", "log", "fs stat", "merge", "config show"])
def test_json_before_the_command_means_the_same(run, prepared, name):
    result = run("--json", *name.split(), *COMMANDS[name][0])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(("{", "["))
    assert result.stderr == ""


def test_every_command_takes_json_in_the_same_way():
    for name in [*COMMANDS, *ELSEWHERE]:
        command = typer.main.get_command(app)
        for word in name.split():
            command = command.get_command(None, word)
        option = next(param for param in command.params if "--json" in param.opts)
        assert option.name == "json"
        assert option.callback is not None, "or --json before the command is lost"


@pytest.mark.parametrize("name", COMMANDS)
def test_text_is_no_json_and_has_no_escape_codes(run, prepared, name):
    result = run(*name.split(), *COMMANDS[name][0])
    assert result.exit_code == 0, result.output
    assert result.stdout.strip()
    assert not result.stdout.startswith(("{", "["))
    assert "\x1b" not in result.output
    assert "\r" not in result.output


@pytest.mark.parametrize("name", [*COMMANDS, *ELSEWHERE])
def test_every_command_explains_itself(run, name):
    result = run(*name.split(), "--help")
    assert result.exit_code == 0
    assert "--json" in result.stdout


def test_values_of_records(run, flights):
    head = run.json("branch", "show", "lakefs://flights/main")["commit_id"]
    commit = run.json("show", "commit", "lakefs://flights/main")
    first = run.json("show", "commit", "lakefs://flights/main~1")
    assert commit["id"] == head
    assert (commit["message"], commit["committer"], commit["parents"]) == ("load day 2", "ada", [first["id"]])
    assert (first["metadata"], first["generation"], commit["generation"]) == ({"day": "1"}, 2, 3)
    assert [line["id"] for line in run.lines("log", "lakefs://flights/main", "--amount", "2")] == [head, first["id"]]
    entry = run.json("fs", "stat", "lakefs://flights/main/raw/a.csv")
    assert (entry["size_bytes"], entry["content_type"], entry["metadata"]) == (6, "text/csv", {"rows": "1"})
    assert entry["physical_address"].startswith("file:///")
    assert run.lines("diff", "lakefs://flights/dev") == [{"type": "added", "path": "raw/c.csv", "size_bytes": 2}]
    assert run.json("merge-base", "lakefs://flights/dev", "lakefs://flights/v1") == commit


def test_listing_sums_up_folders_unless_recursive(run, flights):
    shallow = run.lines("fs", "ls", "lakefs://flights/main/")
    assert [(item["path_type"], item["path"]) for item in shallow] == [
        ("common_prefix", "raw/"),
        ("object", "readme.md"),
    ]
    assert shallow[0]["size_bytes"] is None
    deep = run.lines("fs", "ls", "lakefs://flights/main", "--recursive")
    assert [item["path"] for item in deep] == ["raw/a.csv", "raw/b.csv", "readme.md"]


@pytest.mark.parametrize(("target", "path"), [("x/", "x/a.csv"), ("x", "x"), ("", "a.csv")])
def test_an_object_that_goes_to_a_folder_keeps_its_name(run, flights, target, path):
    dev = flights.branch("dev")
    dev.put("in/a.csv", b"a")
    for verb in ("cp", "mv"):
        shown = run.json("fs", verb, "lakefs://flights/dev/in/a.csv", f"lakefs://flights/dev/{target}")
        assert shown["destination"] == path
        assert dev.read(path) == b"a"
    assert not dev.exists("in/a.csv")


def test_merge_says_what_it_did(run, conflict):
    merged = run.json("merge", "lakefs://flights/left", "lakefs://flights/main")
    assert merged["summary"] == {"added": 2, "removed": 0, "changed": 1}
    assert merged["reference"] == run.json("branch", "show", "lakefs://flights/main")["commit_id"]
    again = run.json("merge", "lakefs://flights/left", "lakefs://flights/main")
    assert again == {
        "reference": None,
        "up_to_date": True,
        "summary": {"added": 0, "removed": 0, "changed": 0},
        "source_uncommitted": False,
    }


def test_merge_says_that_the_source_has_uncommitted_changes(run, conflict):
    conflict.branch("left").put("staged", b"1")
    said = "Uncommitted changes of left were left out"
    assert said in run("merge", "lakefs://flights/left", "lakefs://flights/main", "--no-commit").stderr
    assert said in run("merge", "lakefs://flights/left", "lakefs://flights/main").stderr
    assert run.json("merge", "lakefs://flights/left", "lakefs://flights/main")["source_uncommitted"] is True
    assert said not in run("merge", "lakefs://flights/left@", "lakefs://flights/main").stderr
    assert conflict.ref("main").find("staged") is None


@pytest.mark.parametrize(("strategy", "content"), [("source-wins", b"left"), ("dest-wins", b"right")])
def test_a_strategy_settles_conflicts(run, conflict, strategy, content):
    run.ok("merge", "lakefs://flights/left", "lakefs://flights/right", "--strategy", strategy)
    assert conflict.ref("right").read("raw/a.csv") == content


def test_a_conflict_lists_every_path(run, conflict):
    error = run.error("merge", "lakefs://flights/left", "lakefs://flights/right")
    assert error["exit_code"] == 3
    assert error["kind"] == "merge_conflict"
    assert error["conflicts"] == ["raw/a.csv", "z/last.csv"]
    assert error["conflict_count"] == 2
    text = run("merge", "lakefs://flights/left", "lakefs://flights/right").stderr
    assert "! conflict raw/a.csv\n! conflict z/last.csv\n" in text


def test_metadata_keeps_line_ends(run, flights):
    pairs = {"query": "select *\nfrom t\r\nwhere a=1", "more": "1\n2"}
    given = f'"query={pairs["query"]}",more={pairs["more"]}'
    assert run.json("commit", "lakefs://flights/dev", "-m", "x", "--meta", given)["metadata"] == pairs
    alone = f"query={pairs['query']}"
    made = run.json("commit", "lakefs://flights/dev", "-m", "x", "--meta", alone, "--allow-empty-commit")
    assert made["metadata"] == {"query": pairs["query"]}


def test_an_idempotency_key_gives_the_same_commit(run, flights):
    args = ("commit", f"{R}/dev", "-m", "once", "--meta", "a=1", "--meta", "b=x=y", "--idempotency-key", "k")
    first = run.json(*args)
    assert first["metadata"] == {"a": "1", "b": "x=y"}
    assert run.json(*args)["id"] == first["id"]


@pytest.mark.parametrize("strategy", ["source-wins", "dest-wins"])
def test_a_diff_with_a_strategy_is_what_the_merge_does(run, conflict, strategy):
    sides = "lakefs://flights/left", "lakefs://flights/right"
    told = run.lines("diff", *sides, "--strategy", strategy)
    made = run.json("merge", *sides[::-1], "--strategy", strategy)
    done = run.lines("diff", f"lakefs://flights/{made['reference']}~1", sides[0], "--two-way")
    assert told == done
    assert "right.csv" in {change["path"] for change in done}


def test_two_way_and_three_way_diffs_differ(run, conflict):
    def changes(*options):
        found = run.lines("diff", "lakefs://flights/left", "lakefs://flights/right", *options)
        return [(change["type"], change["path"]) for change in found]

    assert changes() == [("conflict", "raw/a.csv"), ("added", "right.csv"), ("conflict", "z/last.csv")]
    assert sorted(changes("--two-way")) == [
        ("added", "right.csv"),
        ("changed", "raw/a.csv"),
        ("changed", "z/last.csv"),
        ("removed", "left.csv"),
    ]


def test_reset_can_be_limited(run, flights):
    dev = flights.branch("dev")
    dev.put("other/d.csv", b"7")
    dev.put("other/e.csv", b"8")
    assert run.json("branch", "reset", "lakefs://flights/dev", "--object", "other/d.csv", "--yes")["reset"] == 1
    assert run.json("branch", "reset", "lakefs://flights/dev", "--prefix", "raw/", "--yes")["reset"] == 1
    assert [change.path for change in dev.uncommitted()] == ["other/e.csv"]


def test_first_parent_leaves_out_what_was_merged(run, conflict):
    run.ok("merge", "lakefs://flights/left", "lakefs://flights/main", "-m", "merge left")
    messages = [commit["message"] for commit in run.lines("log", "lakefs://flights/main")]
    first = [commit["message"] for commit in run.lines("log", "lakefs://flights/main", "--first-parent")]
    assert messages[:2] == ["merge left", "left changes"]
    assert first[:2] == ["merge left", "load day 2"]


def test_version(run):
    from lakeops.version import __version__

    assert run.ok("--version") == f"lakeops {__version__}\n"
    assert run.json("--version") == {"version": __version__}


def test_a_diff_of_two_refs_says_that_it_leaves_uncommitted_changes_out(run, conflict):
    refs = ("lakefs://flights/main", "lakefs://flights/left")
    assert "left out" not in run("diff", *refs).stderr
    for branch in ("left", "main"):
        conflict.branch(branch).put("staged", b"1")
    for more in ([], ["--two-way"]):
        shown = run("diff", *refs, *more)
        assert "Uncommitted changes of main and left were left out." in shown.stderr
        assert "staged" not in shown.stdout
    assert "changes of left were" in run("diff", "lakefs://flights/main@", "lakefs://flights/left").stderr
    assert "left out" not in run("diff", *(f"{ref}@" for ref in refs)).stderr
    assert "left out" not in run("diff", "lakefs://flights/left").stderr, "they are what is shown"


def test_a_clone_says_that_it_leaves_uncommitted_changes_out(run, conflict, tmp_path):
    conflict.branch("left").put("staged", b"1")
    assert (
        "Uncommitted changes of left were left out." in run("local", "clone", f"{R}/left/", str(tmp_path / "a")).stderr
    )
    assert "left out" not in run("local", "clone", f"{R}/left@/", str(tmp_path / "b")).stderr
    assert not (tmp_path / "a" / "staged").exists()


def test_a_declared_check_stops_a_merge_until_it_passes_or_is_named(run, flights):
    head = run.json("commit", "lakefs://flights/dev", "-m", "more", "--check", "amount", "--check", "size")["id"]
    run.json("check", "fail", f"lakefs://flights/{head}", "amount", "it is -1")
    for more in ([], ["--no-commit"], ["--despite-check", "size"]):
        result = run("merge", "lakefs://flights/dev", "lakefs://flights/main", *more)
        assert result.exit_code == 5
        assert "'amount' failed by" in result.stderr
    for command in (["branch", "list", "lakefs://flights"], ["branch", "show", "lakefs://flights/dev"]):
        assert "failed" in run(*command).stdout
    shown = run("show", "commit", "lakefs://flights/dev").stdout
    assert "it is -1" in shown
    assert "size waiting" in shown
    around = ["--despite-check", "amount", "--despite-check", "size"]
    merged = run.json("merge", "lakefs://flights/dev", "lakefs://flights/main", *around)
    metadata = run.json("show", "commit", f"lakefs://flights/{merged['reference']}")["metadata"]
    assert metadata["lakeops.checks.despite"] == f"{head} amount\n{head} size"


NAMED = {"prefix", "after", "amount"}
LISTS = {
    "repo list": ([], "id"),
    "branch list": ([R], "id"),
    "tag list": ([R], "id"),
    "protection list": ([R], "pattern"),
    "check list": ([f"{R}/main"], "name"),
    "gc list": ([R], "id"),
    "fs ls": ([f"{R}/main/"], "path"),
    "diff": ([f"{R}/main", "left"], "path"),
    "log": ([f"{R}/main"], "id"),
    "blame": ([f"{R}/main/"], "path"),
    "history": ([f"{R}/main/raw/a.csv"], "commit_id"),
    "reflog": ([R], "sequence"),
    "audit": ([R], "sequence"),
}
"""What has more than one record in ``rich``: its arguments, and the key that ``--after`` goes by."""


def _options_of(name: str) -> set[str]:
    command: Any = typer.main.get_command(app)
    for word in name.split():
        command = command.get_command(None, word)
    return {param.name for param in command.params}


def test_every_list_can_be_read_in_parts():
    names = [name for name, (_, shape, _keys) in COMMANDS.items() if shape in {MANY, LINES}]
    lists = [*names, *(name for name in ELSEWHERE if name.endswith((" list", "registrations")))]
    assert {name: NAMED - _options_of(name) for name in lists if not _options_of(name) >= NAMED} == {
        "blame": {"prefix"},  # the prefix stands in the URI
        "history": {"prefix"},  # it is of one object
        "reflog": {"prefix"},  # records without a name
        "audit": {"prefix"},
    }


@pytest.mark.parametrize("name", LISTS)
def test_the_parts_of_a_list_make_the_list(run, rich, name):
    args, key = LISTS[name]

    def read(*more: str) -> list[Any]:
        if name in COMMANDS and COMMANDS[name][1] == LINES:
            return run.lines(*name.split(), *args, *more)
        return run.json(*name.split(), *args, *more)

    whole = read()
    assert whole
    parts, after = [], []
    while part := read("--amount", "1", *after):
        parts += part
        after = ["--after", str(part[-1][key])]
        assert len(parts) <= len(whole)
    assert parts == whole
    assert read("--amount", "0") == []
    assert read("--amount", str(sys.maxsize)) == whole
    assert run(*name.split(), *args, "--amount", str(sys.maxsize + 1)).exit_code == 2
    if "prefix" in _options_of(name) and name not in {"log", "fs ls"}:  # there it goes on with the URI
        first = str(whole[0][key])
        assert read("--prefix", first) == [one for one in whole if str(one[key]).startswith(first)]
        assert read("--prefix", "no-such") == []


@pytest.mark.parametrize("name", LISTS)
def test_a_place_that_a_list_does_not_have(run, rich, name):
    args, _key = LISTS[name]
    order = {"repo list", "branch list", "tag list", "check list", "fs ls", "diff", "blame"}
    if name in order:  # a place in the order of names, which need not be one's
        assert run.ok(*name.split(), *args, "--after", "~~~") == ""
        return
    error = run.error(*name.split(), *args, "--after", "no-such")
    assert (error["exit_code"], error["kind"]) == (4, "not_found")
    assert "--after 'no-such'" in str(error["message"])
    assert run(*name.split(), *args, "--after", "no-such", "--amount", "1").exit_code == 4


SHORT = {
    "merge": ([f"{R}/left"], "main"),
    "diff": ([f"{R}/main"], "dev"),
    "cherry-pick": ([f"{R}/left"], "main"),
    "merge-base": ([f"{R}/main"], "left"),
    "tag create": ([f"{R}/v2"], "main~1"),
    "tag move": ([f"{R}/v1"], "main~1"),
    "branch move": ([f"{R}/dev2"], "main"),
    "branch revert": ([f"{R}/main"], "main"),
    "branch create": ([f"{R}/new", "--source"], "main~1"),
    "branch list": ([R, "--merged"], "main"),
    "bisect start": ([f"{R}/main"], "v1~1"),
    "bisect run": ([f"{R}/main~1"], "main"),
}


@pytest.mark.parametrize("name", SHORT)
def test_a_ref_is_short_where_the_repository_is_known(run, rich_again, name):
    rich_again.create_branch("dev2", source="main~1")
    args, ref = SHORT[name]
    more = ["--", "false"] if name == "bisect run" else []
    assert run(*name.split(), *args, ref, *more).exit_code == 0
    others = run(*name.split(), *args, f"lakefs://other/{ref}", *more)
    assert others.exit_code == 2


def test_a_branch_with_its_uncommitted_changes_as_lakefs_spells_it(run, flights):
    assert run.ok("fs", "cat", f"{R}/dev$/raw/c.csv") == run.ok("fs", "cat", f"{R}/dev/raw/c.csv") == "6\n"
    assert run.lines("diff", f"{R}/dev", f"{R}/dev$") == run.lines("diff", f"{R}/dev") != []
    for words in STAGED_READS:
        assert run.ok(*words.split(), f"{R}/dev$/raw/") == run.ok(*words.split(), f"{R}/dev/raw/") != ""
    assert run.lines("diff", f"{R}/dev$") == run.lines("diff", f"{R}/dev")
    assert "left out" not in run("diff", f"{R}/dev", "dev$").stderr
    flights.create_branch("dev$", source="main")
    assert run.error("fs", "cat", f"{R}/dev$/raw/c.csv")["kind"] == "object_not_found"
    assert run.lines("diff", f"{R}/dev$") == [] == run.lines("diff", f"{R}/dev$", "dev")
    flights.branch("dev$").put("only-here", b"")
    assert [line["path"] for line in run.lines("diff", f"{R}/dev$")] == ["only-here"]


STAGED_READS = ("fs ls", "fs ls --recursive", "blame")
COMMITS_ALONE = {
    "branch create": [f"{R}/new", "--source", "dev$"],
    "branch revert": [f"{R}/main", "dev$"],
    "branch delete": [f"{R}/dev$", "--yes"],
    "branch reset": [f"{R}/dev$", "--yes"],
    "branch show": [f"{R}/dev$"],
    "cherry-pick": [f"{R}/dev$", "main"],
    "commit": [f"{R}/dev$", "-m", "x"],
    "diff": [f"{R}/main", "dev$"],
    "diff --two-way": [f"{R}/dev$", "main"],
    "fs rm": [f"{R}/dev$/raw/c.csv"],
    "fs upload": ["-s", "local.txt", f"{R}/dev$/x"],
    "fs cp": [f"{R}/main/readme.md", f"{R}/dev$/x"],
    "log": [f"{R}/dev$"],
    "merge": [f"{R}/dev$", "main"],
    "merge --strategy source-wins": [f"{R}/left", "dev$"],
    "merge-base": [f"{R}/main", "dev$"],
    "tag create": [f"{R}/v2", "dev$"],
    "import": ["--from", ".", "--to", f"{R}/dev$/x/", "-m", "x"],
    "bisect run": [f"{R}/main", "dev$", "--", "true"],
}


@pytest.mark.parametrize("name", COMMITS_ALONE)
def test_uncommitted_changes_where_a_commit_or_a_branch_is_meant(run, rich, name):
    error = run.error(*name.split(), *COMMITS_ALONE[name])
    assert error["exit_code"] == 4
    assert str(error["message"]).endswith(
        ": 'dev$' is 'dev' with its uncommitted changes, which are only read; write 'dev'"
    )


@pytest.mark.parametrize(
    ("words", "signed"),
    [(["--pre-sign"], True), (["--pre-sign=true"], True), (["--pre-sign=false"], False), ([], False)],
)
def test_an_address_that_anyone_can_read(run, flights, words, signed):
    result = run("fs", "stat", *words, f"{R}/main/raw/a.csv", "--json")
    assert ("presign" in result.stdout or "kind" in result.stdout) is signed  # local files have no such URLs
    assert run("fs", "cat", f"{R}/main/raw/a.csv", *words).stdout == "1,2,3\n"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["a=1,b=2"], {"a": "1", "b": "2"}),
        (["a=1", "b=2"], {"a": "1", "b": "2"}),
        (["a=1,2"], {"a": "1,2"}),
        (["a=b=c"], {"a": "b=c"}),
        (['"a=1,b=2"'], {"a": "1,b=2"}),
        (["a="], {"a": ""}),
    ],
)
def test_metadata_in_pairs(run, flights, given, kept):
    words = [word for text in given for word in ("--meta", text)]
    assert run.json("repo", "metadata", R, *words)["metadata"] == kept
