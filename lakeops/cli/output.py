"""Printing: answers go to stdout, everything else to stderr.

With ``--json`` stdout carries one JSON document, or one a line for commands that stream, and nothing else. Without it a
person reads: colours and tables on a terminal, plain columns in pipes and logs. All text goes through
``sanitising.safe``.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, TextIO, cast

import typer

from lakeops.model.encoding import encode
from lakeops.model.errors import InvalidInput
from lakeops.model.protection import FAILED, PASSED, WAITING, Verdict
from lakeops.model.records import BranchHead, Commit, RefRecord
from lakeops.model.sanitising import safe

VERDICT_COLOURS = {PASSED: "green", FAILED: "red", WAITING: "yellow"}
Styled = str | tuple[str, str]
"""A piece of a line: text, or text and its colour."""

SHORT_ID = 16
"""Characters of a commit id that lines with little room, and error messages, show."""

_LAST_COLUMN = 20
"""Cells that a table's last column has on any terminal."""


class StdoutClosed(Exception):
    """The reader of stdout has closed the pipe, as in ``lakeops log ... | head``."""


class StdoutFailed(Exception):
    """Stdout cannot be written, for example because its disk is full."""


def is_terminal(stream: TextIO) -> bool:
    """Whether a person watches this stream."""
    return stream.isatty()


def standard_input() -> BinaryIO:
    """Return stdin. Raises ``InvalidInput`` when the process was started without one: that is no empty input."""
    if not sys.stdin.readable():
        raise InvalidInput("this process has no stdin to read; name a file, or pipe the contents in")
    return sys.stdin.buffer


def plain(piece: Styled) -> str:
    """Return the text of a piece without colour, safe for a terminal."""
    return safe(piece if isinstance(piece, str) else piece[0])


def paint(pieces: Iterable[Styled], stream: TextIO) -> str:
    """Format one line for a stream, with colours where it is a terminal that shows them and ``NO_COLOR`` is not set."""
    colours = is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def styled(piece: Styled) -> str:
        if isinstance(piece, str):
            return plain(piece)
        look: dict[str, Any] = {piece[1]: True} if piece[1] in {"bold", "dim"} else {"fg": piece[1]}
        return typer.style(plain(piece), **look)

    return "".join(map(styled if colours else plain, pieces))


def commit_id(full: str) -> Styled:
    """Format a commit id for a table: short for people, whole for programs that read columns."""
    return (full[:SHORT_ID] if is_terminal(sys.stdout) else full, "yellow")


class Printer:
    """Prints the answer of one command on stdout, as JSON or for people, and everything else on stderr."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    # --- the answer, on stdout ---

    def line(self, *pieces: Styled) -> None:
        """Print one line of the answer."""
        _write(paint(pieces, sys.stdout) + "\n")

    def document(self, value: Any) -> None:  # noqa: ANN401 - any JSON value
        """Print one JSON document, on one line."""
        _write(json.dumps(encode(value)) + "\n")

    def answer(self, record: object, *lines: Sequence[Styled]) -> None:
        """Print a command's whole answer: the record as JSON, or these lines for people."""
        if self.as_json:
            self.document(record)
            return
        for pieces in lines:
            self.line(*pieces)

    def stream(self, records: Iterable[object], pieces: Callable[[Any], Iterable[Styled]]) -> None:
        """Print records while they are read: one JSON document a line, or one line for people each."""
        for record in records:
            if self.as_json:
                self.document(record)
            else:
                self.line(*pieces(record))

    def table(self, records: Iterable[object], header: Sequence[str], row: Callable[[Any], Sequence[Styled]]) -> None:
        """Print records: a JSON array, a table on a terminal, or aligned columns without a header."""
        if self.as_json:
            self.document([*records])
            return
        rows = [row(record) for record in records]
        if not rows:
            self.note("Nothing to show.")
        elif is_terminal(sys.stdout):
            with _pipe():
                _draw(header, rows)
        else:
            widths = [max(map(len, map(plain, column))) for column in zip(*rows, strict=True)]
            for cells in rows:
                padded = (plain(cell).ljust(width) for cell, width in zip(cells, widths, strict=True))
                self.line("  ".join(padded).rstrip())

    @contextmanager
    def paged(self) -> Iterator[None]:
        """Show the answer a page at a time while a person watches, with the program that ``PAGER`` names, else less."""
        pager = [] if self.as_json else _pager()
        if not pager:
            yield
            return
        terminal, options = sys.stdout, {"LESS": "FRX", **os.environ}
        with subprocess.Popen(pager, stdin=subprocess.PIPE, env=options) as child:
            sys.stdout = _PagerPipe(cast("Any", child.stdin), encoding="utf-8")
            try:
                yield
                self.flush()
            except StdoutClosed:
                pass
            finally:
                page, sys.stdout = sys.stdout, terminal
                with suppress(BrokenPipeError):
                    page.close()
                while child.poll() is None:
                    with suppress(KeyboardInterrupt):  # the pager's own business
                        child.wait()

    def binary(self, chunks: Iterable[bytes]) -> None:
        """Copy bytes to stdout as they are."""
        self.flush()
        for chunk in chunks:
            with _pipe():
                sys.stdout.buffer.write(chunk)
        with _pipe():
            sys.stdout.buffer.flush()

    def flush(self) -> None:
        """Flush stdout."""
        with _pipe():
            sys.stdout.flush()

    # --- everything else, on stderr ---

    def message(self, *pieces: Styled) -> None:
        """Print a line on stderr, after the answer so far. A stderr that cannot be written stops no command."""
        self.flush()
        with suppress(OSError):
            sys.stderr.write(paint(pieces, sys.stderr) + "\n")
            sys.stderr.flush()

    def note(self, *pieces: Styled) -> None:
        """Print a line on stderr, unless JSON is asked for."""
        if not self.as_json:
            self.message(*pieces)

    def fail(self, error: dict[str, Any], details: Iterable[Sequence[Styled]] = ()) -> None:
        """Print an error: as JSON on stdout, or as one line on stderr followed by its details."""
        if self.as_json:
            self.document({"error": error})
            return
        self.message(("Error:", "red"), " ", error["message"])
        for pieces in details:
            self.message(*pieces)


class _PagerPipe(io.TextIOWrapper):
    """A stream to a pager, which shows the text on the terminal of stdout."""

    def isatty(self) -> bool:
        """Whether colours may go here."""
        return True


def _pager() -> list[str]:
    if not is_terminal(sys.stdin) or not is_terminal(sys.stdout) or os.environ.get("TERM") == "dumb":
        return []
    try:
        words = shlex.split(os.environ.get("PAGER", "less"))
    except ValueError:
        return []
    return words if words and words != ["cat"] and shutil.which(words[0]) else []


def _write(text: str) -> None:
    with _pipe():
        sys.stdout.write(text)


@contextmanager
def _pipe() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise StdoutClosed from None
    except OSError as error:
        raise StdoutFailed(error.strerror or str(error)) from None


def _draw(header: Sequence[str], rows: Sequence[Sequence[Styled]]) -> None:
    """Print a table on stdout, as wide as the terminal. The last column takes the rest of the line and may wrap.

    A terminal that is too narrow for the others breaks their lines, so that nothing of a name or an id is lost.
    """
    from rich.cells import cell_len  # late: only tables on a terminal need it
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for title in header[:-1]:
        table.add_column(title, no_wrap=True)
    table.add_column(header[-1], overflow="fold")
    for row in rows:
        table.add_row(*(Text(plain(cell), style="" if isinstance(cell, str) else cell[1]) for cell in row))
    *widths, last = (
        max(map(cell_len, column)) for column in zip(header, *(map(plain, row) for row in rows), strict=True)
    )
    console = Console()
    console.width = max(console.width, sum(width + 3 for width in widths) + min(last, _LAST_COLUMN))
    console.print(table, highlight=False)


def with_checks(record: Commit | RefRecord | BranchHead, found: Sequence[Verdict]) -> dict[str, Any]:
    """A record as JSON, with the verdicts on its commit where there are any."""
    return {**record.to_json(), **({"checks": [one.to_json() for one in found]} if found else {})}


def verdict_lines(found: Sequence[Verdict]) -> Iterator[Sequence[Styled]]:
    """Format verdicts on a commit, a line each."""
    for one in found:
        rest = (f" by {one.said_by}" if one.said_by else "") + (f": {one.findings}" if one.findings else "")
        yield ("Check ", (one.name, "cyan"), " ", (one.word, VERDICT_COLOURS[one.state]), rest)
