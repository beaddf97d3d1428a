"""``log`` in its forms, and ``branch list``."""

from __future__ import annotations

import json
import re

import pytest

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


def test_expired_commits_are_told_of(run, lake, flights):
    lake.catalog.retention.expire_commits("flights", [flights.ref("main~1").commit_id])
    result = run("log", f"{R}/main/raw/")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "2 commits left out" in result.stderr
    assert "unknown: retention took" in run.ok("log", f"{R}/main", "--stat")
    assert run.lines("log", f"{R}/main", "--stat")[0]["summary"] is None


def test_branches_by_what_is_merged(run, merged):
    merged_in, others = (run.json("branch", "list", R, option, "main") for option in ("--merged", "--no-merged"))
    assert [branch["id"] for branch in merged_in] == ["dev", "left", "main"]
    assert [branch["id"] for branch in others] == ["right"]
    line = next(line for line in run.ok("branch", "list", R).splitlines() if line.startswith("right"))
    assert line.endswith("ada")
    assert merged.branch("right").commit_id in line


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
    script.write_text("#!/bin/sh\nexit 200\n")
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
