"""The pages of the documentation, as tests read them: blocks of code, tables, links, and sessions that are run."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from textwrap import dedent
from typing import Any

from typer.testing import CliRunner

from lakeops import Settings
from lakeops.cli.app import app
from lakeops.model.retention import parse_rules

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

NOT_RUN = "not run: "
"""How the comment before a block begins that no test runs; the reason follows."""

LANES = {
    "": "docs/test_examples.py",
    "airflow": "airflow/test_page.py",
    "aws": "gateway/test_clients.py",
    "delta": "tables/test_delta_on_spark.py",
    "format": "support/format_page.py",
    "gateway": "gateway/test_page.py",
    "httpfs": "gateway/test_engines.py",
    "iceberg": "tables/test_iceberg_on_spark.py",
    "kit": "testing/test_kit.py",
    "spark": "spark/test_page.py",
    "sql": "gateway/test_engines.py",
    "tables": "tables/test_page.py",
    "trino": "gateway/test_engines.py",
}
"""Which file of tests runs a block, by the comment before it. It has the service that the block needs."""

_BLOCK = re.compile(
    r"^(?P<indent> *)(?:<!-- (?P<note>[^\n]+) -->\n *)?```(?P<language>\w+)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"\]\((?!https?://|mailto:)([^)\s#]*)(?:#[^)\s]*)?\)")
_ID = r"\d{14}[0-9a-v]{20}|[0-9a-f]{16,64}"
_TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
_VARYING = re.compile(rf"(?P<id>\b(?:{_ID})\b)|(?P<time>{_TIME})|(?P<any>\.\.\.)")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the words of the comment right before it.

    A word is a lane, ``other output`` where what is printed there is an example, or ``exit 1`` where the last command
    ends so.
    """

    language: str
    text: str
    note: str

    @property
    def words(self) -> list[str]:
        """The words of the comment."""
        return [self.note] if self.note.startswith(NOT_RUN) else [word for word in self.note.split(", ") if word]

    @property
    def lane(self) -> str:
        """Which tests run it, a key of ``LANES``; ``not run: `` and the reason where none does."""
        return next((word for word in self.words if word not in {"other output", "exit 1"}), "")


def blocks(page: str, lane: str | None = None) -> list[Block]:
    """The fenced blocks of a page of the site, or those of one lane."""
    found = blocks_of(ROOT / page if page == "README.md" else DOCS / page)
    return [block for block in found if lane is None or block.lane == lane]


def blocks_of(file: Path) -> list[Block]:
    """The fenced blocks of a Markdown file."""
    text = file.read_text(encoding="utf-8")
    return [Block(found["language"], dedent(found["text"]), found["note"] or "") for found in _BLOCK.finditer(text)]


def links(file: Path) -> list[str]:
    """The files that a Markdown file links to, as it spells them."""
    return [link for link in _LINK.findall(file.read_text(encoding="utf-8")) if link]


def first_cells(text: str) -> Iterator[str]:
    """The texts in backticks in the first cell of each row of all tables of a text."""
    for line in text.splitlines():
        if line.startswith("| "):
            yield from re.findall(r"`([^`]+)`", line.split(" | ")[0])


_INTERNAL = re.compile(r"<[A-Z]\w+[.:]| object at 0x|\b[A-Z]\w+\(\w+=")
"""How Python prints what nobody has formatted: members of enumerations, objects, records."""


class Session:
    """Runs the blocks of a page one after another: shell commands as processes, Python in one set of names.

    Args:
        names: what Python blocks find.
        replaced: what stands for a text of the page where it is run, such as a bucket of the test's own for the page's.
            Ids that the page shows are added, each with the one that was printed in its place.
    """

    def __init__(self, names: dict[str, Any] | None = None, replaced: dict[str, str] | None = None) -> None:
        self.names: dict[str, Any] = names if names is not None else {}
        self.replaced: dict[str, str] = replaced if replaced is not None else {}
        self.sql: Callable[[str], object] | None = None
        """Runs a statement of SQL, where a page has some."""

    def run(self, block: Block) -> None:
        """Run a block; a console block's output must be what the page shows."""
        if block.language == "python":
            with redirect_stdout(StringIO()) as printed:
                exec(compile(self.as_run(block.text), "<page>", "exec"), self.names)
            assert not _INTERNAL.search(printed.getvalue()), f"a reader would see {printed.getvalue()!r}"
            told = re.findall(r"^ *print\(.*\)  # (.+)$", block.text, re.MULTILINE)
            assert [one for one in told if one not in printed.getvalue().splitlines()] == [], printed.getvalue()
        elif block.language == "console":
            shown = [*commands(block.text)]
            for number, (command, lines) in enumerate(shown, 1):
                code = 1 if number == len(shown) and "exit 1" in block.words else 0
                printed = _output(self.as_run(command), code)
                if "other output" not in block.words:
                    self.replaced |= check_output(command, printed, [self.as_run(line) for line in lines])
        elif block.language == "sql":
            assert self.sql
            for statement in filter(str.strip, self.as_run(block.text).split(";")):
                self.sql(statement)
        elif block.language == "toml" and block.text.startswith("# lakeops.toml"):
            Path("lakeops.toml").write_text(block.text)
            Settings.load()
        elif block.language == "json" and "default_retention_days" in block.text:
            parse_rules(json.loads(block.text))
        elif block.language == "bash":
            for command in block.text.replace("\\\n", " ").splitlines():
                if not command.startswith("pip install"):  # the packages are there
                    _output(self.as_run(command))

    def as_run(self, text: str) -> str:
        """A text of the page with what stands for its places and ids."""
        if not self.replaced:
            return text
        pages = "|".join(re.escape(page) for page in sorted(self.replaced, key=len, reverse=True))
        return re.sub(pages, lambda found: self.replaced[found[0]], text)


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a console block, with the lines of output that the page shows below it."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        lines = part.splitlines()
        last = next(number for number, line in enumerate(lines) if not line.endswith("\\"))
        yield "\n".join(lines[: last + 1]), lines[last + 1 :]


def check_output(command: str, printed: str, shown: list[str]) -> dict[str, str]:
    """Compare what a command printed with what a page shows: ``...`` is anything, ids and times may be others.

    Returns the id that was printed for each id that the page shows.
    """
    if not shown:
        return {}
    ids: list[str] = []
    parts = [r"(?:.*\n)*?" if line == "..." else _pattern(line, ids) + r"\n" for line in shown]
    found = re.fullmatch("".join(parts), printed)
    assert found, f"$ {command}\n{printed}"
    return dict(zip(ids, found.groups(), strict=True))


def _pattern(line: str, ids: list[str]) -> str:
    parts, end = [], 0
    for found in _VARYING.finditer(line):
        parts.append(re.escape(line[end : found.start()]))
        if found["id"]:
            ids.append(found["id"])
        parts.append({"id": f"({_ID})", "time": _TIME, "any": ".*"}[str(found.lastgroup)])
        end = found.end()
    return "".join([*parts, re.escape(line[end:])])


def _output(command: str, expected: int = 0) -> str:
    """Stdout and then stderr of a command, which must end with a code. It is told yes where it asks.

    ``lakeops`` alone runs in this process, which is quicker, and ``export`` changes this process's environment.
    """
    words = shlex.split(command.replace("\\\n", " "), comments=True)
    if words and words[0] == "export":
        os.environ.update(word.split("=", 1) for word in words[1:])
        return ""
    if words and words[0] == "lakeops" and not {*"".join(words)} & {*"|<>;$`"}:
        result = CliRunner().invoke(app, words[1:], prog_name="lakeops")
        if "pass --yes" in result.stderr:  # it asks, and no person is here
            result = CliRunner().invoke(app, [*words[1:], "--yes"], prog_name="lakeops")
        code, printed = result.exit_code, result.stdout + result.stderr
    else:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", command], check=False, capture_output=True, text=True, env={**os.environ, "PATH": path}
        )
        code, printed = done.returncode, done.stdout + done.stderr
    assert code == expected, f"$ {command}\n{printed}"
    return printed
