"""Fill pages when the site is built: with the reference of all commands, and with files of the repository's root.

A page that holds the marker ``<!-- generated: commands -->`` gets the text in its place. ``<!-- included: NAME -->`` is
replaced by a file, in which links to ``docs/`` become links of the site. ``mkdocs.yml`` names this file as a hook.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import typer.main

from lakeops.cli.app import app

MARKER = "<!-- generated: commands -->"
INCLUDED = re.compile(r"^<!-- included: (\S+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: object) -> str:
    """The text of a page with its markers replaced. mkdocs calls this for each page."""
    markdown = INCLUDED.sub(lambda found: included(found[1]), markdown)
    return markdown.replace(MARKER, commands()) if MARKER in markdown else markdown


def included(name: str) -> str:
    """A file of the repository's root as a page of the site."""
    return (Path(__file__).parents[1] / name).read_text(encoding="utf-8").replace("](docs/", "](")


def commands() -> str:
    """All commands as Markdown, by the panels of the help page: usage, arguments, options and example of each."""
    root: Any = typer.main.get_command(app)
    tops = [root.get_command(None, name) for name in root.list_commands(None)]
    panels = groupby(tops, key=lambda command: command.rich_help_panel)
    return "\n".join(line for panel, members in panels for line in [f"## {panel}\n", *_below("lakeops", members)])


def _below(name: str, members: Any) -> Iterator[str]:
    for member in members:
        full_name = f"{name} {member.name}"
        if hasattr(member, "commands"):
            yield from _below(full_name, member.commands.values())
        else:
            yield from _command(full_name, member)


def _command(name: str, command: Any) -> Iterator[str]:
    options = [param for param in command.params if param.opts[0].startswith("-")]
    arguments = [param for param in command.params if param not in options]
    yield f"### {name}\n"
    yield f"```text\n{' '.join([name, *map(_in_usage, arguments), '[OPTIONS]'])}\n```\n"
    yield f"{command.help}\n"
    yield "| argument or option | meaning |\n|---|---|"
    for param in [*arguments, *options]:
        yield f"| {_spelling(param)} | {_meaning(param)} |"
    yield ""
    if command.epilog:
        yield f"```console\n$ {command.epilog.removeprefix('Example: ')}\n```\n"


def _in_usage(argument: Any) -> str:
    return _value(argument) if argument.required or _value(argument).startswith("[") else f"[{_value(argument)}]"


def _spelling(param: Any) -> str:
    if not param.opts[0].startswith("-"):
        return f"`{_value(param)}`"
    names = ", ".join(f"`{name}`" for name in [*param.opts, *param.secondary_opts])
    return names if param.is_flag else f"{names} `{_value(param)}`"


def _value(param: Any) -> str:
    """How the value of an argument or option is written: its metavar, its choices, or the name of its type."""
    kind = param.type_descriptor.annotation
    if param.metavar:
        return str(param.metavar)
    if hasattr(kind, "__members__"):
        return r"\|".join(member.value for member in kind)
    return str(getattr(kind, "__name__", kind)).upper()


def _meaning(param: Any) -> str:
    text = (param.help or "").replace("|", r"\|")
    if param.required and param.opts[0].startswith("-"):
        return f"{text} Required."
    if param.show_default and param.default not in {None, False, ""}:
        return f"{text} Default: `{getattr(param.default, 'value', param.default)}`."
    return text
