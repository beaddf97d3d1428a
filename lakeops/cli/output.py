"""What every command says, and where: answers on stdout, talk on stderr.

With ``--json`` stdout carries one JSON document, or one a line for commands that stream, and nothing else. Without it
a person reads: colours and tables on a terminal, plain columns in pipes and logs. All text goes through
``text.safe``; nothing here draws over what it has written.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TextIO

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lakeops.model.errors import LakeopsError
from lakeops.model.words import counted, human_size, moment, safe, seconds, span

__all__ = ["counted", "human_size", "moment", "safe", "seconds", "span"]


Part = str | tuple[str, str]
"""A piece of a line: text, or text and its colour."""

SHORT_ID = 16
"""How many characters of a commit id are shown where the line has little room; error messages show as many."""


class Jsonable(Protocol):
    """A record of the public contract."""

    def to_json(self) -> dict[str, Any]:
        """The record's JSON keys and values."""
        ...


class StdoutClosed(Exception):
    """Whoever read stdout is gone, as in ``lakeops log ... | head``."""


def is_terminal(stream: TextIO) -> bool:
    """Whether a person watches this stream."""
    return stream.isatty()


def paints(stream: TextIO) -> bool:
    """Whether colours go to this stream: a terminal that can show them, and nobody said ``NO_COLOR``."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def plain(part: Part) -> str:
    """A part's text, made safe, without colour."""
    return safe(part if isinstance(part, str) else part[0])


def paint(parts: Iterable[Part], stream: TextIO) -> str:
    """One line of text for a stream."""
    if not paints(stream):
        return "".join(plain(part) for part in parts)
    return "".join(
        plain(part)
        if isinstance(part, str)
        else typer.style(plain(part), fg=None if part[1] in {"bold", "dim"} else part[1],
                         bold=part[1] == "bold" or None, dim=part[1] == "dim" or None)
        for part in parts
    )  # fmt: skip


def commit_id(full: str) -> Part:
    """A commit id for a table: short for people, whole for programs that read columns."""
    return (full[:SHORT_ID] if is_terminal(sys.stdout) else full, "yellow")


class Output:
    """The voice of one command.

    Args:
        as_json: whether stdout carries JSON.
    """

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    def line(self, *parts: Part) -> None:
        """Print one line of the answer."""
        _write(paint(parts, sys.stdout) + "\n")

    def document(self, value: Any) -> None:  # noqa: ANN401 - any JSON value
        """Print one JSON document, on one line."""
        _write(json.dumps(value, separators=(", ", ": ")) + "\n")

    def growing(
        self, name: str, records: Iterable[Jsonable], rest: Callable[[], dict[str, Any]]
    ) -> LakeopsError | None:
        """Print one JSON document whose list is written as it comes, so that it may be of any length.

        Args:
            name: the list's key.
            records: the list.
            rest: the document's other keys, asked for at the end.

        Returns:
            What ended the list early; the document is whole then too, with an ``error`` in place of the rest.
        """
        _write(f'{{"{name}": [')
        failed = None
        try:
            for number, record in enumerate(records):
                _write((", " if number else "") + json.dumps(record.to_json()))
            last = rest()
        except LakeopsError as error:
            failed, last = error, {"error": error.to_json()}
        _write("], " + json.dumps(last)[1:] + "\n")
        return failed

    def answer(self, record: Jsonable | dict[str, Any], *lines: Sequence[Part]) -> None:
        """Print a command's whole answer: the record as JSON, or these lines for people."""
        if self.as_json:
            self.document(record if isinstance(record, dict) else record.to_json())
            return
        for parts in lines:
            self.line(*parts)

    def table(self, records: Iterable[Jsonable], header: Sequence[str], row: Callable[[Any], Sequence[Part]]) -> None:
        """Print records: a JSON array, a table on a terminal, or aligned columns without a header.

        Args:
            records: what to print.
            header: the columns' titles.
            row: one record's cells.
        """
        if self.as_json:
            self.document([record.to_json() for record in records])
            return
        rows = [row(record) for record in records]
        if not rows:
            self.note("Nothing to show.")
        elif is_terminal(sys.stdout):
            with _pipe():
                draw(header, rows)
        else:
            widths = [max(map(len, map(plain, column))) for column in zip(*rows, strict=True)]
            for cells in rows:
                padded = (plain(cell).ljust(width) for cell, width in zip(cells, widths, strict=True))
                self.line("  ".join(padded).rstrip())

    def binary(self, chunks: Iterable[bytes]) -> None:
        """Copy bytes to stdout as they are."""
        with _pipe():
            sys.stdout.flush()
            for chunk in chunks:
                sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()

    def say(self, *parts: Part) -> None:
        """Tell a person something that is no answer, on stderr and after what was printed so far."""
        self.flush()
        sys.stderr.write(paint(parts, sys.stderr) + "\n")
        sys.stderr.flush()

    def note(self, *parts: Part) -> None:
        """Tell a person how it went; programs that asked for JSON are not told."""
        if not self.as_json:
            self.say(*parts)

    def fail(self, error: dict[str, Any], details: Iterable[Sequence[Part]] = ()) -> None:
        """Print an error: as JSON on stdout, or as one line on stderr followed by its details."""
        if self.as_json:
            self.document({"error": error})
            return
        self.say(("Error:", "red"), " ", error["message"])
        for parts in details:
            self.say(*parts)

    def flush(self) -> None:
        """Push out what was printed so far."""
        with _pipe():
            sys.stdout.flush()


def _write(text: str) -> None:
    with _pipe():
        sys.stdout.write(text)


@contextmanager
def _pipe() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise StdoutClosed from None


def draw(header: Sequence[str], rows: Sequence[Sequence[Part]]) -> None:
    """Print a table on stdout, no wider than the terminal; the last column takes what is left and may wrap."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for title in header[:-1]:
        table.add_column(title, no_wrap=True, overflow="ellipsis")
    table.add_column(header[-1], overflow="fold")
    for row in rows:
        table.add_row(*(_cell(part) for part in row))
    Console().print(table, highlight=False)


def _cell(part: Part) -> Text:
    return Text(plain(part), style="" if isinstance(part, str) else part[1])
