"""The pages of the documentation, as tests read them: blocks of code, tables, links, and sessions that are run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from typer.testing import CliRunner

from lakeops import Lake, Repository
from lakeops.cli.app import app

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_BLOCK = re.compile(
    r"^(?:<!-- (?P<note>[a-z ]+) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_LINK = re.compile(r"\]\((?!https?://|mailto:)([^)\s#]*)(?:#[^)\s]*)?\)")
_IDS = re.compile(r"\b[0-9a-f]{16,64}\b")
_TIMES = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and what a comment right before it says (``not run``, ``spark``)."""

    language: str
    text: str
    note: str


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page of the site."""
    return blocks_of(DOCS / page)


def blocks_of(file: Path) -> list[Block]:
    """The fenced blocks of a Markdown file."""
    text = file.read_text(encoding="utf-8")
    return [Block(found["language"], found["text"], found["note"] or "") for found in _BLOCK.finditer(text)]


def links(file: Path) -> list[str]:
    """The files that a Markdown file links to, as it spells them."""
    return [link for link in _LINK.findall(file.read_text(encoding="utf-8")) if link]


def first_cells(text: str) -> Iterator[str]:
    """What stands in backticks in the first cell of each row of all tables of a text."""
    for line in text.splitlines():
        if line.startswith("| "):
            yield from re.findall(r"`([^`]+)`", line.split(" | ")[0])


class Session:
    """Runs the blocks of a page one after another: shell commands as processes, Python in one set of names."""

    def __init__(self, names: dict[str, Any] | None = None) -> None:
        self._names: dict[str, Any] = names if names is not None else {}

    def run(self, block: Block) -> None:
        """Run a block; a console block's output must be what the page shows."""
        if block.language == "python":
            exec(compile(block.text, "<page>", "exec"), self._names)
        elif block.language == "console":
            for command, shown in commands(block.text):
                check_output(command, _output(command), shown)


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a console block, with the lines of output that the page shows below it."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        lines = part.splitlines()
        last = next(number for number, line in enumerate(lines) if not line.endswith("\\"))
        yield "\n".join(lines[: last + 1]), lines[last + 1 :]


def check_output(command: str, printed: str, shown: list[str]) -> None:
    """Compare what a command printed with what a page shows: ``...`` is anything, ids and times may be others."""
    if shown:
        parts = [r"(?:.*\n)*?" if line == "..." else _pattern(line) + r"\n" for line in shown]
        assert re.fullmatch("".join(parts), printed), f"$ {command}\n{printed}"


def _pattern(line: str) -> str:
    line = _TIMES.sub("TIME", _IDS.sub("ID", line))
    pattern = ".*".join(re.escape(part) for part in line.split("..."))
    return pattern.replace("TIME", _TIMES.pattern).replace("ID", "[0-9a-f]{16,64}")


def _output(command: str) -> str:
    """Stdout and then stderr of a command that must work; ``lakeops`` alone runs in this process, which is quicker."""
    words = shlex.split(command.replace("\\\n", " "))
    if words[0] == "lakeops" and not {*command} & {*"|<>&;$`"}:
        result = CliRunner().invoke(app, words[1:], prog_name="lakeops")
        code, printed = result.exit_code, result.stdout + result.stderr
    else:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", command], check=False, capture_output=True, text=True, env={**os.environ, "PATH": path}
        )
        code, printed = done.returncode, done.stdout + done.stderr
    assert code == 0, f"$ {command}\n{printed}"
    return printed


def nothing() -> None:
    """The page makes all that it needs."""


def shop() -> Repository:
    """A repository with two tables, published by a merge and tagged."""
    lake = Lake.open()
    repo = lake.create_repository("shop")
    load = repo.create_branch("load-1")
    load.put("customers.csv", b"id,name\n1,Ada\n2,Grace\n")
    load.put("orders.csv", b"id,amount\n1,10\n2,20\n")
    load.commit("Load day 1")
    repo.merge("load-1", "main")
    repo.create_tag("v1", "main")
    return repo


def overwritten() -> None:
    """The same, after somebody overwrote a table."""
    main = shop().branch("main")
    main.put("orders.csv", b"id,amount\n1,-999\n")
    main.commit("Update orders")


def partitioned() -> None:
    """The same, with a table of two days in a folder each."""
    main = shop().branch("main")
    for day in (1, 2):
        with main.output(f"orders/day={day}/") as url:
            pd.DataFrame({"id": [day], "amount": [10 * day]}).to_parquet(url.file("part-0.parquet"))
    main.commit("Orders by day")


PAGES = {
    "quickstart.md": nothing,
    "publish.md": shop,
    "roll-back.md": overwritten,
    "read.md": partitioned,
    "local.md": shop,
}
"""Pages whose commands and code are run, and what there is before the first of them."""
