"""Exit codes and error texts: the same in text and JSON, one line, never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.damage import failing_disk

from lakeops.cli.app import OTHER_WORDS

R = "lakefs://flights"

CASES = {
    "unknown branch": (["log", f"{R}/nosuch"], 4, "ref_not_found"),
    "past the root": (["show", "commit", f"{R}/main~99"], 4, "ref_not_found"),
    "unknown repository": (["branch", "list", "lakefs://nosuch"], 4, "repository_not_found"),
    "unknown object": (["fs", "stat", f"{R}/main/nosuch"], 4, "object_not_found"),
    "unknown object to read": (["fs", "cat", f"{R}/main/nosuch"], 4, "object_not_found"),
    "unknown object to remove": (["fs", "rm", f"{R}/dev/nosuch"], 4, "object_not_found"),
    "unknown folder to download": (["fs", "download", "-r", f"{R}/main/nosuch/", "d"], 4, "object_not_found"),
    "unknown tag": (["tag", "show", f"{R}/nosuch"], 4, "ref_not_found"),
    "unknown tag to delete": (["tag", "delete", f"{R}/nosuch"], 4, "ref_not_found"),
    "unknown branch to delete": (["branch", "delete", f"{R}/nosuch", "--yes"], 4, "ref_not_found"),
    "unknown pattern": (["protection", "delete", R, "nosuch"], 4, "not_found"),
    "tags require nothing": (["protection", "add", R, "v*", "--tag", "--check", "q"], 2, "invalid_input"),
    "a prefix without a check": (["protection", "add", R, "main", "--prefix", "raw/"], 2, "invalid_input"),
    "one pair or two": (["commit", f"{R}/dev", "-m", "x", "--meta", "a=1,2 b=3"], 2, "invalid_input"),
    "short ref first": (["merge", "dev", f"{R}/main"], 2, "invalid_uri"),
    "ambiguous": (["log", f"{R}/AMBIGUOUS"], 2, "ambiguous_ref"),
    "bad repository name": (["repo", "create", "lakefs://No"], 2, "invalid_uri"),
    "bad branch name": (["branch", "create", f"{R}/a..b", "--source", f"{R}/main"], 2, "invalid_uri"),
    "expression as branch name": (["branch", "create", f"{R}/a~1", "--source", f"{R}/main"], 2, "invalid_name"),
    "bad tag name": (["tag", "create", f"{R}/-x", f"{R}/main"], 2, "invalid_uri"),
    "bad ref": (["log", f"{R}/main^{{tree}}"], 2, "invalid_uri"),
    "not a URI": (["log", "main"], 2, "invalid_uri"),
    "too much of a URI": (["branch", "list", f"{R}/main"], 2, "invalid_uri"),
    "too little of a URI": (["log", R], 2, "invalid_uri"),
    "no path": (["fs", "stat", f"{R}/main"], 2, "invalid_uri"),
    "two repositories": (["merge", f"{R}/dev", "lakefs://other/main"], 2, "invalid_uri"),
    "long metadata": (["commit", f"{R}/dev", "-m", "x", "--meta", "=" * (128 << 10) + "x"], 2, "invalid_input"),
    "bad metadata": (["commit", f"{R}/dev", "-m", "x", "--meta", "novalue"], 2, "invalid_input"),
    "two limits": (["branch", "reset", f"{R}/dev", "--prefix", "a", "--object", "b"], 2, "invalid_input"),
    "two-way alone": (["diff", f"{R}/dev", "--two-way"], 2, "invalid_input"),
    "strategy alone": (["diff", f"{R}/dev", "--strategy", "source-wins"], 2, "invalid_input"),
    "two ways and strategy": (
        ["diff", f"{R}/left", f"{R}/right", "--two-way", "--strategy", "dest-wins"],
        2,
        "invalid_input",
    ),
    "bad pre-sign": (["fs", "stat", f"{R}/main/raw/a.csv", "--pre-sign=maybe"], 2, "invalid_input"),
    "bad strategy": (["merge", f"{R}/dev", f"{R}/main", "--strategy", "mine"], 2, "usage"),
    "bad namespace": (["repo", "create", "lakefs://other", "ftp://user:secret@host/x"], 2, "invalid_uri"),
    "no message": (["commit", f"{R}/dev"], 2, "usage"),
    "no arguments": (["merge"], 2, "usage"),
    "no command of a noun": (["branch"], 2, "usage"),
    "unknown command": (["brunch"], 2, "usage"),
    "unknown option": (["log", f"{R}/main", "--nosuch"], 2, "usage"),
    "bad number": (["log", f"{R}/main", "--amount", "many"], 2, "usage"),
    "negative number": (["log", f"{R}/main", "--amount", "-1"], 2, "usage"),
    "nothing to commit": (["commit", f"{R}/main", "-m", "x"], 1, "no_changes"),
    "nobody to ask, branch": (["branch", "delete", f"{R}/dev"], 2, "invalid_input"),
    "nobody to ask, reset": (["branch", "reset", f"{R}/dev"], 2, "invalid_input"),
    "nobody to ask, repository": (["repo", "delete", R], 2, "invalid_input"),
    "move back": (["branch", "move", f"{R}/main", "main~1"], 5, "not_forward"),
    "move sideways": (["branch", "move", f"{R}/left", "right"], 5, "not_forward"),
    "move of a protected branch": (["branch", "move", f"{R}/prod", "main"], 5, "protected_branch"),
    "move of a dirty branch": (["branch", "move", f"{R}/dev", "left"], 5, "dirty_branch"),
    "move of a tag as a branch": (["branch", "move", f"{R}/v1", "main"], 4, "ref_not_found"),
    "move to nowhere": (["branch", "move", f"{R}/main", "nosuch"], 4, "ref_not_found"),
    "nobody to ask, move": (["branch", "move", f"{R}/main", "main~1", "--force"], 2, "invalid_input"),
    "move of no tag": (["tag", "move", f"{R}/nosuch", f"{R}/main"], 4, "ref_not_found"),
    "move of a tag to nowhere": (["tag", "move", f"{R}/v1", f"{R}/nosuch"], 4, "ref_not_found"),
    "move of a mirror's tag": (["tag", "move", "lakefs://mirror/v1", "lakefs://mirror/main"], 4, "ref_not_found"),
    "log of two places": (["log", f"{R}/main/raw/", "--prefix", "raw/"], 2, "invalid_input"),
    "log since never": (["log", f"{R}/main", "--since", "tomorrow"], 2, "invalid_input"),
    "log before all time": (["log", f"{R}/main", "--until", "99999999d"], 2, "invalid_input"),
    "log of the edge of time": (["log", f"{R}/main", "--since", "0001-01-01T00:00+14:00"], 2, "invalid_input"),
    "upload of an empty name": (["fs", "upload", "-r", "-s", "", f"{R}/dev/x"], 2, "invalid_input"),
    "download to an empty name": (["fs", "download", f"{R}/main/raw/a.csv", ""], 2, "invalid_input"),
    "import of an empty name": (["import", "--from", "", "--to", f"{R}/dev/x", "-m", "m"], 2, "invalid_input"),
    "repository in an empty place": (["repo", "create", "lakefs://other", ""], 2, "invalid_uri"),
    "branch of an empty source": (["branch", "create", f"{R}/new", "--source", ""], 2, "invalid_ref"),
    "reset of an empty prefix": (["branch", "reset", f"{R}/dev", "--prefix", "", "--yes"], 2, "invalid_input"),
    "graph of a path": (["log", f"{R}/main/raw/a.csv", "--graph"], 2, "invalid_input"),
    "merged into nothing": (["branch", "list", R, "--merged", "nosuch"], 4, "ref_not_found"),
    "bisect backwards": (["bisect", "run", f"{R}/main", f"{R}/main~1", "--", "true"], 2, "invalid_input"),
    "bisect without a command": (["bisect", "run", f"{R}/main~1", f"{R}/main"], 2, "usage"),
    "bisect by nothing": (["bisect", "run", f"{R}/main~2", f"{R}/main", "--", "/no/such"], 2, "invalid_input"),
    "copy between repositories": (["fs", "cp", f"{R}/main/a", "lakefs://other/main/a"], 2, "invalid_input"),
    "copy of nothing": (["fs", "cp", f"{R}/main/nosuch", f"{R}/dev/x"], 4, "object_not_found"),
    "move between branches": (["fs", "mv", f"{R}/main/readme.md", f"{R}/dev/x"], 2, "invalid_input"),
    "metadata of nothing": (["fs", "update-metadata", f"{R}/dev/nosuch", "--meta", "a=b"], 4, "object_not_found"),
    "no metadata": (["fs", "update-metadata", f"{R}/dev/readme.md"], 2, "invalid_input"),
    "preview of a conflict": (["merge", f"{R}/left", f"{R}/right", "--no-commit"], 3, "merge_conflict"),
    "revert of an empty range": (["branch", "revert", f"{R}/main", "main..main~1"], 2, "invalid_ref"),
    "branch exists": (["branch", "create", f"{R}/dev", "--source", f"{R}/main"], 5, "already_exists"),
    "tag exists": (["tag", "create", f"{R}/v1", f"{R}/main"], 5, "already_exists"),
    "repository exists": (["repo", "create", R], 5, "already_exists"),
    "default branch": (["branch", "delete", f"{R}/main", "--yes"], 5, "default_branch"),
    "protected": (["fs", "rm", f"{R}/prod/readme.md"], 5, "protected_branch"),
    "cherry-pick conflict": (["cherry-pick", f"{R}/left", f"{R}/right"], 3, "merge_conflict"),
    "branch command on a tag": (["branch", "show", f"{R}/v1"], 4, "ref_not_found"),
    "commit to an expression": (["commit", f"{R}/main~1", "-m", "x"], 2, "invalid_ref"),
    "dirty": (["merge", f"{R}/left", f"{R}/dev"], 5, "dirty_branch"),
    "read-only": (["branch", "create", "lakefs://mirror/new", "--source", "lakefs://mirror/main"], 5,
                  "read_only_repository"),
    "no presigned URL": (["fs", "presign", f"{R}/main/readme.md"], 1, "unsupported"),
    "no such file": (["fs", "upload", "-s", "nosuch.txt", f"{R}/dev/x"], 2, "invalid_input"),
    "folder without recursive": (["fs", "upload", "-s", ".", f"{R}/dev/x"], 2, "invalid_input"),
    "stdin without a path": (["fs", "upload", "-s", "-", f"{R}/dev"], 2, "invalid_uri"),
    "fsck of nothing": (["fsck", "lakefs://none"], 4, "repository_not_found"),
    "fsck of a ref": (["fsck", f"{R}/main"], 2, "invalid_uri"),
    "import to no branch": (["import", "--from", ".", "--to", R, "-m", "m"], 2, "invalid_uri"),
    "blame of a repository": (["blame", R], 2, "invalid_uri"),
    "blame of nothing": (["blame", f"{R}/nosuch"], 4, "ref_not_found"),
    "history of a ref": (["history", f"{R}/main"], 2, "invalid_uri"),
    "history of nothing": (["history", f"{R}/main/nosuch"], 4, "object_not_found"),
    "mirror setup of nothing": (["mirror", "setup-s3", "lakefs://none", "--destination", "s3://else/x"], 4,
          "repository_not_found"),
    "copy of no path": (["fs", "cp", f"{R}/main/", f"{R}/dev/x"], 2, "invalid_uri"),
    "audit of nothing": (["audit", "lakefs://none", "--since", "3d"], 4, "repository_not_found"),
    "settings in an empty place": (["--config", "", "repo", "list"], 2, "invalid_input"),
    "a failure without findings": (["check", "fail", f"{R}/main", "quality", " "], 2, "invalid_input"),
    "stdin with recursive": (["fs", "upload", "-s", "-", "-r", f"{R}/dev/x"], 2, "invalid_input"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_error(run, unchanged, case):
    args, exit_code, kind = CASES[case]
    error = run.error(*(arg.replace("AMBIGUOUS", ambiguous(unchanged)) if "AMB" in arg else arg for arg in args))
    assert (error["exit_code"], error["kind"]) == (exit_code, kind), error
    assert error["message"]
    assert "\n" not in error["message"]
    assert "secret" not in error["message"]


@pytest.mark.parametrize(
    "command", ["fs cat {0}/main/large", "fs download {0}/main/large copy", "local clone {0}/main/ copy",
                "mirror replicate {0} --destination {1}-copy", "fsck {0} --data"]
)  # fmt: skip
def test_a_file_that_the_disk_refuses_to_read_is_named(run, flights, command):
    address = flights.branch("main").put("large", bytes(1 << 20)).physical_address
    flights.branch("main").commit("large")
    with failing_disk(address):
        result = run(*command.format(R, flights.storage_namespace).split())
    assert result.exit_code == 1
    assert f"'{address}': Bad file descriptor" in result.output
    assert "unexpected" not in result.output


def ambiguous(repository):
    """The first character of several commit ids of main; commits are added until there is one that is no branch."""
    main = repository.branch("main")
    for number in range(40):
        ids = [commit.id[0] for commit in repository.log("main")]
        for first in ids:
            if ids.count(first) > 1:
                return first
        main.commit(f"number {number}", allow_empty=True)
    raise AssertionError("40 ids with 16 first characters, all different")


def test_nothing_happens_without_a_yes(run, flights):
    before = run.lines("reflog", "lakefs://flights")
    for args in (["branch", "delete", "lakefs://flights/dev"], ["branch", "reset", "lakefs://flights/dev"]):
        result = run(*args)
        assert result.exit_code == 2
        assert "--yes" in result.stderr
        assert "+ added raw/c.csv" in result.stderr, "what would go is shown first"
    assert run("repo", "delete", "lakefs://flights").exit_code == 2
    assert run.lines("reflog", "lakefs://flights") == before
    assert [change.path for change in flights.branch("dev").uncommitted()] == ["raw/c.csv"]


def test_an_option_of_the_command_to_run_is_its_own(run, unchanged):
    result = run("bisect", "run", f"{R}/main~2", f"{R}/main", "--", "/no/such", "--json")
    assert (result.exit_code, result.stdout, result.stderr[:6]) == (2, "", "Error:")


def test_the_wrong_part_of_a_uri_is_named_once(run, home):
    assert run("log", "lakefs://No/main").stderr.startswith("Error: 'lakefs://No/main': 'No' is not a repository name:")
    assert run("log", f"{R}/a..b").stderr.startswith(f"Error: '{R}/a..b': 'a..b' cannot be a ref, it has '..'")


def test_usage_errors_say_where_to_look(run):
    assert run("log", f"{R}/main", "-n", "x").stderr.endswith(" as an integer. Try 'lakeops log --help'.\n")
    assert run("brnch").stderr == "Error: No such command 'brnch'. Did you mean 'branch'? Try 'lakeops --help'.\n"
    assert "No such command 'upload'. Did you mean 'fs upload'?" in run("upload").stderr
    assert "Did you mean 'diff', 'local status'?" in run("status").stderr
    assert run("tag", "show").stderr.endswith("Try 'lakeops tag show --help'.\n")


@pytest.mark.parametrize("word", OTHER_WORDS)
def test_words_of_git_and_lakectl_lead_to_a_command(run, word):
    meant = OTHER_WORDS[word].split(", ")
    for group in ([], ["db"]):  # whatever group the word is tried in
        result = run(*group, word, "lakefs://flights")
        assert result.exit_code == 2
        assert f"No such command {word!r}. Did you mean {', '.join(map(repr, meant))}?" in result.stderr
    assert [one for one in meant if run(*one.split(), "--help").exit_code] == []


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("flights", "write lakefs://flights for a repository, lakefs://REPO/flights for a ref of it"),
        ("flights/main", "write lakefs://flights/main"),
        ("s3://flights/main", "write lakefs://REPO, lakefs://REPO/REF[/KEY]"),
        ("a b", "write lakefs://REPO, lakefs://REPO/REF[/KEY]"),
    ],
)
def test_a_uri_without_its_scheme_is_shown_with_it(run, given, meant):
    assert run("log", given).stderr.endswith(f" is not a lakefs:// URI; {meant}\n")


def test_nothing_at_all_shows_help(run):
    result = run()
    assert result.exit_code == 2
    assert "First steps" in result.output


@pytest.mark.parametrize("args", [["log", "lakefs://flights/main"], ["config", "show"], ["doctor"]])
def test_bad_settings_are_told_apart(run, monkeypatch, args):
    monkeypatch.setenv("LAKEOPS_ENGINE", "steam")
    result = run(*args)
    assert result.exit_code in {1, 2}
    assert "LAKEOPS_ENGINE" in result.output
    assert "Traceback" not in result.output


def test_an_unexpected_error_is_one_line_without_credentials(run, monkeypatch):
    from lakeops.lake import Lake

    def fail(*_args, **_options):
        raise RuntimeError("cannot reach postgresql://ada:secret@db/lake\nmore lines")

    monkeypatch.setattr(Lake, "open", fail)
    error = run.error("repo", "list")
    assert (error["exit_code"], error["kind"]) == (1, "internal")
    assert error["message"] == "unexpected RuntimeError: cannot reach postgresql://ada:***@db/lake"
    monkeypatch.setenv("LAKEOPS_DEBUG", "1")
    assert "Traceback" in run("repo", "list").stderr
    assert run("repo", "list", "--json").stdout.count("\n") == 1


@pytest.mark.parametrize("verb", [("rm",), ("download",), ("cp", f"{R}/dev/x/"), ("mv", f"{R}/dev/x/")])
@pytest.mark.parametrize("folder", ["raw/", "raw"])
def test_a_folder_without_its_option_is_told_the_option(run, unchanged, verb, folder):
    result = run("fs", verb[0], f"{R}/dev/{folder}", *verb[1:])
    assert (result.exit_code, f"no object '{folder}'" in result.stderr) == (4, True)
    assert result.stderr.endswith("; a folder needs --recursive\n")
    assert "--recursive" not in run("fs", verb[0], f"{R}/dev/nosuch", *verb[1:]).stderr


def test_a_conflict_is_told_of_options_that_the_command_has(run, conflict):
    merging = run("merge", f"{R}/left", f"{R}/right")
    assert "source-wins" in merging.stderr
    picking = run("cherry-pick", f"{R}/left", f"{R}/right")
    conflict.branch("left").put("raw/a.csv", b"again")
    conflict.branch("left").commit("again")
    reverting = run("branch", "revert", f"{R}/left", "left~1")
    for result in (picking, reverting):
        assert result.exit_code == 3
        assert "source-wins" not in result.stderr
        assert "change these paths yourself" in result.stderr


def test_an_object_whose_file_is_gone_is_named(run, flights):
    address = flights.ref("main").stat("raw/a.csv").physical_address
    Path(address.removeprefix("file://")).unlink()
    error = run.error("fs", "cat", f"{R}/main/raw/a.csv")
    assert (error["kind"], error["exit_code"]) == ("object_not_found", 4)
    assert error["message"].startswith(
        f"the contents of object 'raw/a.csv' are missing: there is no object '{address}'"
    )
    assert "lakeops fsck --data" in error["message"]


def test_a_ref_that_never_was_has_no_reflog(run, flights):
    assert run.error("reflog", f"{R}/nosuch")["kind"] == "ref_not_found"
    assert run.ok("reflog", f"{R}/main", "-n", "0") == ""
    flights.delete_branch("dev")
    assert "delete" in run.ok("reflog", f"{R}/dev").splitlines()[0]


def test_a_place_of_a_deleted_repository_is_refused_under_each_name_alike(run, lake, home):
    place = (home / "place").as_uri()
    repository = lake.create_repository("first", place)
    repository.branch("main").put("a", b"1")
    run.ok("repo", "delete", "lakefs://first", "--yes")
    for name in ("first", "second"):
        error = run.error("repo", "create", f"lakefs://{name}", place)
        assert error["kind"] == "namespace_taken"
        assert "choose an empty location" in error["message"]


def test_a_merge_under_a_used_key_says_so(run, flights):
    flights.branch("dev").commit("day 3")
    keyed = ("merge", f"{R}/dev", f"{R}/main", "--idempotency-key", "k")
    first = run.ok(*keyed)
    assert first.startswith("Merged dev into main")
    again = run.ok(*keyed)
    assert again == first.replace("Merged ", "Merged before, under the same key: ")


@pytest.mark.parametrize(
    "words",
    [
        ["log", "lakefs://flihgts/main"],
        ["commit", "lakefs://flihgts/main", "-m", "m"],
        ["fs", "ls", "lakefs://flihgts/main/"],
        ["fs", "upload", "-s", "local.txt", "lakefs://flihgts/dev/x"],
        ["gc", "mark", "lakefs://flihgts"],
        ["branch", "create", "lakefs://flihgts/x", "--source", "lakefs://flihgts/main"],
    ],
)
def test_a_misspelt_repository_is_guessed(run, flights, words):
    Path("local.txt").write_text("1")
    error = run.error(*words)
    assert (error["kind"], error["exit_code"]) == ("repository_not_found", 4)
    assert error["message"].endswith("no repository 'flihgts'; did you mean 'flights'?")


def test_a_name_that_is_like_no_other_is_not_guessed(run, flights):
    assert run.error("log", "lakefs://weather/main")["message"] == "no repository 'weather'"
    assert run.error("commit", "lakefs://flights/zzz", "-m", "m")["message"].endswith("no branch 'zzz'")


@pytest.mark.parametrize(
    ("name", "meant"), [("mian", "main"), ("v11", "v1"), ("dve", "dev"), ("V1", "v1"), ("DEV", "dev")]
)
@pytest.mark.parametrize("ref", ["{}", "{}~1", "{}^", "{}^2~3", "{}@"])
@pytest.mark.parametrize(
    "words",
    [
        ["log", "lakefs://flights/REF"],
        ["show", "commit", "lakefs://flights/REF"],
        ["diff", "lakefs://flights/main", "lakefs://flights/REF"],
        ["fs", "cat", "lakefs://flights/REF/x"],
        ["tag", "create", "lakefs://flights/v3", "lakefs://flights/REF"],
        ["cherry-pick", "lakefs://flights/REF", "lakefs://flights/dev"],
        ["branch", "revert", "lakefs://flights/dev", "REF"],
    ],
)
def test_a_misspelt_ref_is_guessed_in_expressions(run, flights, words, ref, name, meant):
    error = run.error(*(word.replace("REF", ref.format(name)) for word in words))
    assert error["kind"] == "ref_not_found"
    assert error["message"].endswith(f"; did you mean {meant!r}?")
    assert error["message"].count("did you mean") == 1


@pytest.mark.parametrize(
    ("name", "says"),
    [("v11", "no tag 'v11'; did you mean 'v1'?"), ("dev", "'dev' is a branch"), ("zzz", "no tag 'zzz'")],
)
@pytest.mark.parametrize("words", [["show", "{}"], ["delete", "{}", "--yes"], ["move", "{}", "main", "--yes"]])
def test_a_misspelt_tag_is_guessed(run, flights, words, name, says):
    error = run.error("tag", *(word.format(f"lakefs://flights/{name}") for word in words))
    assert (error["kind"], error["exit_code"]) == ("ref_not_found", 4)
    assert error["message"].endswith(says)


@pytest.mark.parametrize(
    "words",
    [
        ["branch", "create", "{}", "--source", "main"],
        ["branch", "delete", "{}", "--yes"],
        ["tag", "create", "{}", "main"],
        ["commit", "{}", "-m", "m"],
        ["merge", "{}", "main"],
        ["branch", "create", "lakefs://flights/new", "--source", "{}"],
    ],
)
def test_a_name_with_a_slash_is_told_how_to_be_spelt(run, flights, words):
    error = run.error(*(word.format("lakefs://flights/feature/x") for word in words))
    assert (error["kind"], error["exit_code"]) == ("invalid_uri", 2)
    assert "lakefs://flights/feature-x" in error["message"]


@pytest.mark.parametrize("name", ["v1", "dve"])
@pytest.mark.parametrize(
    "words",
    [
        ["commit", "{}", "-m", "m"],
        ["diff", "{}"],
        ["merge", "lakefs://flights/dev", "{}"],
        ["fs", "upload", "-s", "local.txt", "{}/x"],
        ["fs", "rm", "{}/x"],
        ["fs", "rm", "{}/raw/", "-r"],
        ["import", "--from", "incoming", "--to", "{}/in/", "-m", "m"],
        ["branch", "reset", "{}", "--yes"],
        ["branch", "delete", "{}", "--yes"],
        ["cherry-pick", "lakefs://flights/main", "{}"],
    ],
)
def test_what_is_no_branch_is_named(run, flights, words, name):
    Path("local.txt").write_text("1")
    Path("incoming").mkdir()
    Path("incoming/day").write_text("1")
    error = run.error(*(word.format(f"lakefs://flights/{name}") for word in words))
    assert (error["kind"], error["exit_code"]) == ("ref_not_found", 4)
    assert {"v1": "'v1' is a tag", "dve": "did you mean 'dev'?"}[name] in error["message"]
