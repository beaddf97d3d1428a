"""Every block of every page is run by a test, or says why not, and can be understood.

The command line understands commands, Python code, and files their parsers: of blocks that are not run, too.
"""

import ast
import importlib
import json
import re
import shlex
import tomllib
from itertools import takewhile

import pytest
import typer
from support.doc_pages import DOCS, LANES, NOT_RUN, ROOT, blocks_of
from support.doc_scenes import PAGES as RUN
from typer._click.exceptions import UsageError
from typer.core import TyperGroup

from lakeops.cli.app import app
from lakeops.cli.options import BadArgument

PAGES = {
    str(file.relative_to(ROOT)): blocks_of(file)
    for file in [ROOT / "README.md", *sorted(DOCS.glob("**/*.md"))]
    if "adr" not in file.parts
}
SHELL = {"console", "bash"}
TESTS = ROOT / "tests"
NOT_RUN_BLOCKS = 8
"""How many blocks no test runs. Each says why in the comment before it."""
ENDS = re.compile(r"[|<>&;#)]|\d>")


def test_every_block_is_run_or_says_why_not():
    lanes: dict[str, set[str]] = {}
    for page, found in PAGES.items():
        for block in found:
            if block.language != "text":
                lanes.setdefault(block.lane, set()).add(page.removeprefix("docs/"))
    not_run = [(lane, page) for lane, pages in lanes.items() for page in pages if lane.startswith(NOT_RUN)]
    assert {*lanes} - {lane for lane, _ in not_run} == {*LANES}, "each comment names tests that there are"
    assert lanes[""] == {*RUN}, "tests/docs/test_examples.py runs these pages"
    for lane, pages in lanes.items():
        if lane in LANES and lane:
            text = (TESTS / LANES[lane]).read_text(encoding="utf-8")
            assert [page for page in pages if page not in text and page.removesuffix(".md") not in text] == [], lane
    count = sum(block.lane.startswith(NOT_RUN) for found in PAGES.values() for block in found)
    assert count == NOT_RUN_BLOCKS, "\n".join(f"{page}: {lane}" for lane, page in not_run)
    assert all(len(lane) > len(NOT_RUN) + 10 for lane, _ in not_run)


def test_what_pages_install_is_there():
    """Commands of pip are not run, because the packages are there. Their extras are those of the package.

    On the public index the name ``lakeops`` is somebody else's.
    """
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    shown = [extra for page in PAGES for extra in re.findall(r"pip install [^\n]*\.\[([\w,]+)\]", text_of(page))]
    assert len(shown) > 3
    assert [page for page in PAGES if re.search(r"pip install ['\"]?lakeops", text_of(page))] == []
    assert {extra for group in shown for extra in group.split(",")} <= {*extras}


def text_of(page):
    return (ROOT / page).read_text(encoding="utf-8")


def shown(block):
    """The words of each ``lakeops`` command of a block of a shell, without what the shell does with it."""
    for line in block.text.replace("\\\n", " ").splitlines():
        if block.language == "console" and not line.startswith("$ "):
            continue
        words = shlex.split(line.removeprefix("$ "), comments=True)
        if "lakeops" in words and "airflow" not in words:  # Airflow's command line has a group of that name
            after = words[words.index("lakeops") + 1 :]
            yield [*takewhile(lambda word: not ENDS.match(word), after)]


def understand(words):
    """Parse a command as the command line does, without doing anything. Raises ``UsageError``."""
    name, command, context = "lakeops", typer.main.get_command(app), None
    while isinstance(command, TyperGroup):
        context = command.make_context(name, [*words], parent=context)
        name, command, words = command.resolve_command(context, [*context._protected_args, *context.args])
    command.make_context(name, [*words], parent=context)


@pytest.mark.parametrize("page", [page for page, found in PAGES.items() if any(one.language in SHELL for one in found)])
def test_commands_are_those_of_the_command_line(page):
    wrong = []
    for block in PAGES[page]:
        for words in shown(block) if block.language in SHELL else ():
            try:
                understand(words)
            except typer.Exit:
                pass  # --help and --version
            except (UsageError, BadArgument) as error:
                wrong.append((words, str(error)))
    assert not wrong


@pytest.mark.parametrize("page", [page for page, found in PAGES.items() if any(b.language == "python" for b in found)])
def test_code_imports_what_there_is(page):
    for block in PAGES[page]:
        for node in ast.walk(ast.parse(block.text)) if block.language == "python" else ():
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "lakeops":
                module = importlib.import_module(str(node.module))
                assert [one.name for one in node.names if not hasattr(module, one.name)] == [], node.module
            elif isinstance(node, ast.Import):
                for one in node.names:
                    if one.name.partition(".")[0] == "lakeops":
                        importlib.import_module(one.name)


def test_files_can_be_parsed():
    parsers = {"json": json.loads, "toml": tomllib.loads}
    for found in PAGES.values():
        for block in found:
            parsers.get(block.language, str)(block.text)


@pytest.mark.parametrize(
    "command",
    [
        "gc rulez",
        "gc mark lakefs://flights --dryrun",
        "branch list nowhere",
        "gc mark",
        "fs upload",
        "merge a b --strategy x",
    ],
)
def test_a_command_that_is_none_is_noticed(command):
    with pytest.raises((UsageError, BadArgument)):
        understand(command.split())
