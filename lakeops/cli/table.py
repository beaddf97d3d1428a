"""Tables on a terminal. Imported only when one is drawn: rich costs as much time as the rest of a short command."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lakeops.cli.output import Part, plain


def draw(header: Sequence[str], rows: Sequence[Sequence[Part]]) -> None:
    """Print a table on stdout, as wide as it has to be and no wider than the terminal."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in header:
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(part) for part in row))
    Console().print(table, highlight=False)


def _cell(part: Part) -> Text:
    return Text(plain(part), style="" if isinstance(part, str) else part[1])
