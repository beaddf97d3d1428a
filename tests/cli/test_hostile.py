"""Values that would draw on a terminal, forge lines or leave a directory: shown escaped, kept exact, never obeyed."""

from __future__ import annotations

import json
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.hostile import HOSTILE

from lakeops.model.formatting import counted, human_size, moment
from lakeops.model.sanitising import safe

R = "lakefs://flights"
ESCAPES = {
    "colour": "a\x1b[31mred\x1b[0m",
    "title": "a\x1b]0;owned\x07b",
    "newline": "a\nError: forged",
    "carriage return": "a\rb",
    "tab": "a\tb",
    "C1 control": "a\x9b31mb",
    "delete": "a\x7fb",
    "line separator": "a\u2028b",
    "right to left": "a\u202egnp.exe",
    "isolate": "a\u2066b\u2069",
    "markup": "a[bold]b[link]y",
    "option": "--yes",
    "accents": "é e\u0301 日本 🦆",
}


def harmless(text: str) -> bool:
    """Whether a terminal would print this as it is, line by line."""
    return all(line == safe(line) for line in text.split("\n"))


@pytest.mark.parametrize("value", ESCAPES.values(), ids=ESCAPES)
def test_paths_and_metadata(run, flights, value):
    path = f"x/{value}"
    flights.branch("dev").put(path, b"content", metadata={"k": value})
    uri = f"{R}/dev/{path}"
    assert run.json("fs", "stat", uri)["path"] == path
    assert run.json("fs", "stat", uri)["metadata"] == {"k": value}
    assert [item["path"] for item in run.lines("fs", "ls", f"{R}/dev/x/")] == [path]
    assert path in [change["path"] for change in run.lines("diff", f"{R}/dev")]
    assert run.ok("fs", "cat", uri) == "content"
    for args in (["fs", "stat", uri], ["fs", "ls", f"{R}/dev/x/"], ["diff", f"{R}/dev"]):
        result = run(*args)
        assert harmless(result.output)
        assert safe(value) in result.stdout
    assert run.json("fs", "rm", uri)["removed"] == 1


@pytest.mark.parametrize("value", ESCAPES.values(), ids=ESCAPES)
def test_messages(run, flights, value):
    commit = run.json("commit", f"{R}/dev", f"--message={value}", "--meta", f"k={value}", "--meta", f"{value}=v")
    assert commit["message"] == value
    assert commit["metadata"] == {"k": value, value: "v"}
    for args in (["log", f"{R}/main"], ["log", f"{R}/dev"], ["show", "commit", f"{R}/dev"]):
        output = run.ok(*args)
        assert harmless(output)
    assert not any(line.startswith("Error") for line in run.ok("log", f"{R}/dev").splitlines())


def test_json_is_plain_ascii(run, flights):
    """A JSON document may be printed to a terminal too."""
    flights.branch("dev").put("\u202e\x9b\u2028é", b"")
    text = run.ok("fs", "ls", f"{R}/dev", "--recursive", "--json")
    assert text.isascii()
    assert "\x1b" not in text
    assert json.loads(text.splitlines()[-1])["path"] == "\u202e\x9b\u2028é"


@pytest.mark.parametrize("chunk", [0, 3, 6, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 4, 5, 7))])
def test_any_text_as_any_argument(run, unchanged, chunk):
    """An error of ours or an answer: one document, a documented exit code, nothing that a terminal obeys."""
    for value in HOSTILE[chunk::8]:
        if "\0" in value or len(value) > 5000:
            continue  # no process can be started with these
        for args in (
            ["log", f"{R}/{value}"],
            ["fs", "stat", f"{R}/main/{value}"],
            ["tag", "show", "--", value],
            ["commit", f"{R}/prod", f"--meta={value}", "-m", value],
        ):
            result = run("--json", *args)
            assert result.exit_code in {0, 1, 2, 3, 4, 5}, (args, result.output)
            documents = [json.loads(line) for line in result.stdout.splitlines()]
            kinds = {document["error"]["kind"] for document in documents if "error" in document}
            assert bool(kinds) == bool(result.exit_code)
            assert "internal" not in kinds, (args, result.output)
            text = run(*args)
            assert harmless(text.output), (args, text.output)
            assert "Traceback" not in text.output


def test_errors_are_escaped(run, unchanged):
    result = run("fs", "stat", f"{R}/main/a\x1b[31m\nError: no")
    assert result.exit_code == 4
    assert harmless(result.stderr)
    assert result.stderr.count("\n") == 1


def test_conflicts_are_escaped(run, flights):
    name = "a\x1b[2J\n! conflict forged"
    for branch in ("one", "two"):
        handle = flights.create_branch(branch, source="main")
        handle.put(name, branch.encode())
        handle.commit("x")
    assert run.error("merge", f"{R}/one", f"{R}/two")["conflicts"] == [name]
    text = run("merge", f"{R}/one", f"{R}/two").stderr
    assert harmless(text)
    assert text.count("\n! conflict") == 1


@pytest.mark.parametrize("name", ["n" * 5000, "a/" * 3000 + "b"])
def test_a_file_name_that_is_too_long_is_bad_input(run, flights, name: str) -> None:
    assert run.error("fs", "download", "lakefs://flights/main/raw/a.csv", name)["kind"] == "invalid_input"
    assert run.error("--config", name, "repo", "list")["kind"] == "invalid_settings"


# --- how text, sizes and times are written for people ---


def test_no_control_character_is_left():
    """Every code point that Unicode calls a control, a surrogate or a separator of lines, and all that turn text."""
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        turns = unicodedata.bidirectional(character) in {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
        if turns or unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"}:
            assert safe(character).isascii()
            assert safe(character).startswith("\\")


@given(st.text())
def test_safe_text_stays_as_it_is(text):
    once = safe(text)
    assert "\n" not in once
    assert safe(once) == once
    if text.isprintable():
        assert once == text


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1234, "1.2 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (5 * 10**9, "5.0 GB"),
        (10**15, "1.0 PB"),
        (2**63, "9.2 EB"),
    ],
)
def test_human_size(size, shown):
    assert human_size(size) == shown


def test_moment():
    assert moment(0) == "1970-01-01 00:00:00 +0000 UTC"
    assert moment(1_762_091_317) == "2025-11-02 13:48:37 +0000 UTC"


def test_counted():
    assert [counted(n, "branch") for n in (0, 1, 2)] == ["0 branches", "1 branch", "2 branches"]
    assert counted(1234, "object") == "1,234 objects"
