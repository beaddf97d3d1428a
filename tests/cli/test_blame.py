"""``blame`` and ``history``."""

from __future__ import annotations

from lakeops.model.ids import Origin

R = "lakefs://flights"


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
    lake.catalog.retention.expire_commits("flights", [flights.ref("main~1").commit_id])
    assert all(line.startswith("^") for line in run.ok("blame", f"{R}/main").splitlines())
    assert all(line["boundary"] for line in run.lines("blame", f"{R}/main"))
    assert run.error("blame", f"{R}/main~1")["exit_code"] == 5


def test_errors(run, flights):
    for args, kind, exit_code in (
        (["blame", R], "invalid_uri", 2),
        (["blame", f"{R}/nosuch"], "ref_not_found", 4),
        (["blame", "lakefs://nosuch/main"], "repository_not_found", 4),
        (["history", f"{R}/main"], "invalid_uri", 2),
        (["history", f"{R}/main/nosuch"], "object_not_found", 4),
    ):
        error = run.error(*args)
        assert (error["kind"], error["exit_code"]) == (kind, exit_code), args
