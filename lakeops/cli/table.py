"""Tables on a terminal. Imported only when one is drawn: rich costs as much time as the rest of a short command."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lakeops.cli.output import Part, plain


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
