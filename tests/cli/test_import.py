"""``lakeops import``: a directory becomes a folder of a branch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lakeops import Split

R = "lakefs://flights"


@pytest.fixture
def source(home) -> Path:
    for name in ("x/1", "x/2", "y b/3"):
        path = Path("source", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return Path("source").resolve()


def paths(flights, prefix=""):
    return [item.path for item in flights.branch("main").list(prefix)]


@pytest.mark.parametrize("spelling", ["source", "./source/", "../{here}/source", "{source}", "file://{source}/"])
def test_a_directory_however_it_is_named(run, flights, source, spelling):
    place = spelling.format(source=source, here=Path.cwd().name)
    record = run.json("import", "--from", place, "--to", f"{R}/main/raw", "-m", "take over")
    assert record["message"] == "take over"
    assert record["metadata"]["lakeops.import.source"] == f"file://{source}"
    assert paths(flights, "raw/") == ["raw/x/1", "raw/x/2", "raw/y b/3"]
    assert paths(flights)[-1] == "readme.md"
    assert flights.branch("main").commit_id == record["id"]


def test_what_people_see(run, flights, source):
    shown = run.ok("import", "--from", "source", "--to", f"{R}/main/raw/", "-m", "take over", "--meta", "by=me")
    assert shown.startswith("Imported 3 objects (11 B) to main/raw/:")
    assert "by = me" in shown


def test_the_same_key_is_the_same_commit(run, flights, source):
    args = ("import", "--from", "source", "--to", f"{R}/main/raw/", "-m", "m", "--idempotency-key", "k")
    assert run.json(*args) == run.json(*args)


@pytest.mark.parametrize("known", [False, True], ids=["a listing", "an inventory"])
def test_progress_tells_a_rate_and_where_the_total_is_known_an_end(run, lake, home, monkeypatch, known):
    for seconds in ("LINE_SECONDS", "RATE_SECONDS"):
        monkeypatch.setattr(f"lakeops.cli.session.{seconds}", 0)
    lake.create_repository("many", split=Split(2, 4, 8))
    Path("many").mkdir()
    for number in range(60):
        Path("many", f"{number:02}").touch()
    Path("keys.csv").write_text("\n".join(["key", *(f"{number:02}" for number in range(60))]))
    inventory = ("--inventory", "keys.csv") if known else ()
    args = ("import", "--from", "many", "--to", "lakefs://many/main/raw", "-m", "m", *inventory)
    lines = [line for line in run(*args, "--progress").stderr.splitlines() if line.startswith("import: ")]
    shown = r"import: \d+ of 60, [\d,]+/s, \d+ s left" if known else r"import: \d+, [\d,]+/s"
    assert any(re.fullmatch(shown, line) for line in lines), lines
    assert re.fullmatch(r"import: 60( of 60)?, [\d,]+/s", lines[-1])


@pytest.mark.parametrize(
    ("change", "code", "kind", "words"),
    [
        ({"--from": "none"}, 4, "not_found", "no directory"),
        ({"--from": "sourec"}, 4, "not_found", "/source?"),
        ({"--from": "source/y_b"}, 4, "not_found", "/source/y b?"),
        ({"--from": "ftp://host/x"}, 2, "invalid_uri", "not a location"),
        ({"--from": "../home/storage/flights"}, 2, "invalid_input", "overlaps"),
        ({"--to": f"{R}/none/raw"}, 4, "ref_not_found", "none"),
        ({"--to": f"{R}/dev/raw"}, 5, "dirty_branch", "raw/c.csv"),
        ({"-m": " "}, 2, "invalid_input", "message is empty"),
    ],
)
def test_what_is_refused(run, flights, source, change, code, kind, words):
    head = flights.branch("main").commit_id
    options = {"--from": "source", "--to": f"{R}/main/raw", "-m": "m"} | change
    error = run.error("import", *(word for pair in options.items() for word in pair))
    assert (error["exit_code"], error["kind"]) == (code, kind) or error["kind"].endswith(kind)
    assert words in error["message"]
    assert flights.branch("main").commit_id == head


def test_links_are_named_or_skipped(run, flights, source):
    Path("source/link").symlink_to("x")
    args = ("import", "--from", "source", "--to", f"{R}/main/raw", "-m", "m")
    assert "'link' (a symbolic link)" in str(run.error(*args)["message"])
    run.ok(*args, "--skip-special")
    assert "raw/link" not in paths(flights)


def test_an_empty_source(run, flights):
    Path("empty").mkdir()
    args = ("import", "--from", "empty", "--to", f"{R}/main/raw", "-m", "m")
    assert run.error(*args)["exit_code"] == 4
    assert run.json(*args, "--allow-empty-source")["metadata"]["lakeops.import.objects"] == "0"
    assert paths(flights) == ["readme.md"]
