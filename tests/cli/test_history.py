"""``log`` in its forms, and ``branch list``."""

from __future__ import annotations

import json
import re

import pytest
from support.catalogs import expire_commits

from lakeops.model.ids import Origin

R = "lakefs://flights"


@pytest.fixture
def merged(conflict):
    conflict.merge("left", "main", strategy="source-wins")
    conflict.branch("main").put("more", b"1")
    conflict.branch("main").commit("more\n\nand why")
    return conflict


def test_one_line_a_commit(run, merged):
    lines = run.ok("log", f"{R}/main", "--oneline").splitlines()
    commits = run.lines("log", f"{R}/main")
    assert lines == [f"{one['id'][:16]} {one['message'].partition(chr(10))[0]}" for one in commits]
    assert lines[0].endswith(" more")


def test_a_graph(run, merged):
    drawn = run.ok("log", f"{R}/main", "--oneline", "--graph")
    assert re.sub("[0-9a-f]{16}", "ID", drawn).splitlines() == [
        "* ID more",
        "* ID Merge 'left' into 'main'",
        "|\\",
        "| * ID left changes",
        "|/",
        "* ID load day 2",
        "* ID load day 1",
        "* ID Repository created",
    ]
    full = run.ok("log", f"{R}/main", "--graph")
    assert "| |     left changes" in full
    assert sum(line.lstrip("| ").startswith("* ") for line in full.splitlines()) == 6


def test_a_graph_of_crossing_branches(run, lake):
    repo = lake.create_repository("web")
    for name in ("a", "b", "c"):
        repo.create_branch(name).put(name, b"1")
        repo.branch(name).commit(f"on {name}")
    merges = (("a", "main"), ("b", "main"), ("c", "main"), ("a", "c"), ("main", "a"), ("c", "main"))
    for number, (source, name) in enumerate(merges):
        repo.branch(name).put(f"{number}", b"1")
        repo.branch(name).commit(f"before {source} into {name}")
        repo.merge(source, name)
    drawn = run.ok("log", "lakefs://web/main", "--oneline", "--graph").splitlines()
    commits = run.lines("log", "lakefs://web/main")
    stars = [line for line in drawn if "*" in line]
    assert [re.search("[0-9a-f]{16}", line)[0] for line in stars] == [commit["id"][:16] for commit in commits]
    assert all(set(line) <= set("|/\\_ ") for line in drawn if line not in stars)
    assert drawn[-1].startswith("* "), "all lanes end in the first commit"


def test_how_much_changed(run, merged):
    commits = run.lines("log", f"{R}/main", "--stat", "--first-parent")
    assert [tuple(commit["summary"].values()) for commit in commits] == [
        (1, 0, 0),
        (2, 0, 1),
        (1, 0, 0),
        (2, 0, 0),
        (0, 0, 0),
    ]
    assert "    2 added, 1 changed (" in run.ok("log", f"{R}/main", "--stat", "--first-parent")
    under = run.lines("log", f"{R}/main/raw/", "--stat", "--first-parent")
    assert [commit["summary"]["added"] for commit in under] == [0, 1, 1]


def test_paths_times_and_people(run, flights):
    def messages(*args):
        return [commit["message"] for commit in run.lines("log", *args)]

    assert messages(f"{R}/main/raw/b.csv") == ["load day 2"]
    assert messages(f"{R}/main/raw/") == messages(f"{R}/main", "--prefix", "raw/") == ["load day 2", "load day 1"]
    assert messages(f"{R}/main/raw") == [], "a path is no folder without its slash"
    assert messages(f"{R}/main", "--since", "1d", "--author", "ada", "-n", "1") == ["load day 2"]
    assert messages(f"{R}/main", "--until", "1d") == messages(f"{R}/main", "--since", "2999-01-01") == []
    assert messages(f"{R}/main", "--until", "2999-01-01T10:00+02:00", "--author", "nobody") == []


@pytest.mark.parametrize("prefix", ["", "raw/"])
def test_releases_that_are_named_newest_first(run, flights, prefix):
    old, new = f"{R}/main~1", f"{R}/main"
    narrow = ("--prefix", prefix) if prefix else ()
    for second in (old, "main~1"):
        shown = run("diff", new, second, *narrow)
        assert f"only main changed since both parted: lakeops diff {old} {new}" in shown.stderr
    assert run.lines("diff", new, old, *narrow) == []
    assert run.lines("diff", old, new, *narrow)
    for words in ((old, new), (new, new), (new, old, "--two-way"), (new, old, "--prefix", "none/")):
        assert "They differ" not in run("diff", *words).stderr
    for branch in (flights.create_branch("other"), flights.branch("main")):
        branch.put("raw/a.csv", branch.id.encode())
        branch.commit("both change it")
    for words in (("--strategy", "dest-wins"), ("--after", "zz")):
        shown = run("diff", f"{R}/main", f"{R}/other", *words)
        assert "No changes" in shown.output
        assert "They differ" not in shown.stderr


def test_expired_commits_are_told_of(run, lake, flights):
    expire_commits(lake.catalog, "flights", [flights.ref("main~1").commit_id])
    result = run("log", f"{R}/main/raw/")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "2 commits left out" in result.stderr
    assert "unknown: this commit or its parent has expired" in run.ok("log", f"{R}/main", "--stat")
    assert run.lines("log", f"{R}/main", "--stat")[0]["summary"] is None


def test_branches_by_what_is_merged(run, merged):
    merged_in, others = (run.json("branch", "list", R, option, "main") for option in ("--merged", "--no-merged"))
    assert [branch["id"] for branch in merged_in] == ["dev", "left", "main"]
    assert [branch["id"] for branch in others] == ["right"]
    line = next(line for line in run.ok("branch", "list", R).splitlines() if line.startswith("right"))
    assert line.endswith("ada")
    assert merged.branch("right").commit_id in line


@pytest.mark.parametrize(("last", "by"), [("create", "created by eve"), ("move", "moved by eve"), ("commit", "eve")])
def test_a_branch_without_a_commit_of_its_own_names_who_made_it(run, flights, monkeypatch, last, by):
    monkeypatch.setenv("LAKEOPS_COMMITTER", "eve")
    run.ok("branch", "create", f"{R}/new", "-s", "main~1" if last == "move" else "main")
    if last == "move":
        run.ok("branch", "move", f"{R}/new", "main", "--yes")
    elif last == "commit":
        run.ok("commit", f"{R}/new", "-m", "own", "--allow-empty-commit")
    lines = {line.split()[0]: line for line in run.ok("branch", "list", R).splitlines()}
    assert lines["new"].endswith(f" {by}")
    assert lines["main"].endswith(" ada")


def test_bisect_asks_a_command(run, flights, tmp_path):
    for number in range(6):
        flights.branch("main").put(f"n{number}", b"1")
        flights.branch("main").commit(f"number {number}")
    wanted = flights.ref("main~2").commit
    script = tmp_path / "check"
    bad = "|".join(flights.ref(f"main~{number}").commit_id for number in range(3))
    script.write_text(
        "#!/bin/sh\necho looked\n"
        'test "$BISECT_URI" = "lakefs://flights/$BISECT_COMMIT" || exit 200\n'
        f"case $BISECT_COMMIT in {bad}) exit 1;; esac\n"
    )
    script.chmod(0o755)
    args = ("bisect", "run", f"{R}/main~7", f"{R}/main")
    result = run(*args, "--json", "--", str(script))
    answer = json.loads(result.stdout)
    assert (result.exit_code, answer["id"], answer["looks"]) == (0, wanted.id, 3)
    shown = run(*args, "--", str(script))
    assert shown.stdout.startswith(f"The first bad commit, after 3 looks:\n\ncommit {wanted.id}\n")
    assert shown.stderr.count("Looking at") == 3
    for code in (126, 127, 200):
        script.write_text(f"#!/bin/sh\nexit {code}\n")
        assert run(*args, "--", str(script)).exit_code == 2
    script.write_text("#!/bin/sh\nkill -9 $$\n")
    assert "ended with -9" in run(*args, "--", str(script)).stderr
    script.write_text("#!/bin/sh\nexit 125\n")
    assert run(*args, "--", str(script)).exit_code == 4


def test_bisect_by_hand(run, flights):
    for number in range(6):
        flights.branch("main").put(f"n{number}", b"1")
        flights.branch("main").commit(f"number {number}")
    wanted = flights.ref("main~2").commit_id
    bad = {flights.ref(f"main~{number}").commit_id for number in range(3)}
    assert run("bisect", "good").exit_code == 4
    assert "waits for a bad and a good" in run("bisect", "start", R).stdout
    run("bisect", "bad", f"{R}/main")
    state = json.loads(run("bisect", "good", f"{R}/main~7", "--json").stdout)
    assert (state["left"], state["first_bad"]) == (7, None)
    looks = 0
    while state["next"]:
        looks += 1
        state = json.loads(run("bisect", "bad" if state["next"]["id"] in bad else "good", "--json").stdout)
    assert (state["first_bad"]["id"], looks) == (wanted, 3)
    assert run("bisect", "skip").exit_code == 2  # nothing waits for a look
    started = run("bisect", "start", f"{R}/main", f"{R}/main~7", f"{R}/main~5")
    assert f"{R}/" in started.stdout
    for _ in range(4):
        skipped = run("bisect", "skip", "--json")
    assert skipped.exit_code == 4
    untold = flights.bisection().untold
    assert (untold[0], len(untold)) == (flights.ref("main").commit_id, 5)
    assert all(one[:16] in skipped.stdout for one in untold)
    assert run("bisect", "start", f"{R}/main~3", f"{R}/main").exit_code == 2
    run("bisect", "start", f"{R}/main", f"{R}/main~7")
    again = run("bisect", "run", "--json", "--", "sh", "-c", f"! echo {' '.join(bad)} | grep -q $BISECT_COMMIT")
    assert json.loads(again.stdout)["id"] == wanted
    assert json.loads(run("bisect", "reset", R, "--json").stdout) == {"repository": "flights", "reset": True}
    assert run("bisect", "good").exit_code == 4


def test_a_bisection_that_cannot_be_kept_is_an_error_that_names_the_place(run, flights, home):
    (home / "bisect").write_bytes(b"")
    assert str(home / "bisect")[:60] in run("bisect", "start", R).stderr.replace("\n", "")  # long paths are cut
    assert run("bisect", "good").exit_code == 4
    assert run("bisect", "reset", R).exit_code == 0


# --- ``blame`` and ``history`` ---


def test_who_wrote_each_object(run, flights):
    lines = run.lines("blame", f"{R}/main")
    commits = {commit["message"]: commit["id"] for commit in run.lines("log", f"{R}/main")}
    assert [(line["path"], line["commit_id"], line["committer"]) for line in lines] == [
        ("raw/a.csv", commits["load day 1"], "ada"),
        ("raw/b.csv", commits["load day 2"], "ada"),
        ("readme.md", commits["load day 1"], "ada"),
    ]
    text = run.ok("blame", f"{R}/main/raw/").splitlines()
    assert [line.split()[0] for line in text] == [line["commit_id"][:16] for line in lines[:2]]
    assert [line.split()[-1] for line in text] == ["raw/a.csv", "raw/b.csv"]
    assert run.lines("blame", f"{R}/main", "--after", "raw/a.csv", "-n", "1") == lines[1:2]


def test_what_became_of_an_object(run, flights):
    main = flights.branch("main")
    main.put("raw/a.csv", b"9", metadata={"k": "v"})
    made = Origin({"airflow_dag_id": "load", "airflow_run_id": "r1", "airflow_link": "https://log"})
    main.commit("again", metadata=made)
    main.delete("raw/a.csv")
    main.commit("gone\n\nand why")
    lines = run.lines("history", f"{R}/main/raw/a.csv")
    assert [(line["type"], line["size_bytes"], line["message"].partition("\n")[0]) for line in lines] == [
        ("removed", 1, "gone"),
        ("changed", 1, "again"),
        ("added", 6, "load day 1"),
    ]
    assert lines[1]["dag_run"] == {"dag_id": "load", "run_id": "r1", "task_id": None, "link": "https://log"}
    text = run.ok("history", f"{R}/main/raw/a.csv").splitlines()
    assert text[0].endswith("- removed  gone")
    assert "load r1 https://log" in text[1]
    assert len(run.lines("history", f"{R}/main/raw/a.csv", "-n", "1")) == 1


def test_a_caret_where_retention_took_what_was_before(run, lake, flights):
    expire_commits(lake.catalog, "flights", [flights.ref("main~1").commit_id])
    assert all(line.startswith("^") for line in run.ok("blame", f"{R}/main").splitlines())
    assert all(line["boundary"] for line in run.lines("blame", f"{R}/main"))
    assert run.error("blame", f"{R}/main~1")["exit_code"] == 5


def test_a_log_of_nothing_says_so(run, flights):
    for path in ("raw", "nosuch"):
        assert run("log", f"{R}/main/{path}").stderr == "No commits; a folder ends in a slash.\n"
    assert run("log", f"{R}/main/nosuch/").stderr == "No commits.\n"
    assert run("log", f"{R}/main/raw/").stderr == ""


@pytest.mark.parametrize("refs", [["dev"], ["v1~1", "main"]])
def test_a_part_of_a_diff_is_no_total(run, flights, refs):
    args = ["diff", f"{R}/{refs[0]}", *refs[1:]]
    for amount in (0, 1):
        assert (
            f"{amount} change{'' if amount else 's'} shown, as --amount asks." in run(*args, "-n", str(amount)).stderr
        )
    assert "1 added" in run(*args, "-n", "2").stderr


# --- ``lakeops audit`` on a real lake ---


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
    assert "no time" in result.stderr


def test_amounts_and_moments_narrow_it(run, flights):
    every = run.lines("audit", R)
    assert run.lines("audit", R, "--amount", "1") == every[:1]
    assert run("audit", R, "--until", "2001-01-01").stdout == ""
    assert run.lines("audit", R, "--since", "3d") == every
    assert run.lines("audit", R, "--actor", every[0]["actor"], "--since", "2001-01-01T00:00+02:00") == every
