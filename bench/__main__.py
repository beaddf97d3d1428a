"""Measure lakeops beside git; usage: python -m bench [--size SIZE] [--repeats N] [--no-page | --page-only].

Prints a table, and writes docs/performance.md, .json and .png from this run and the last ones of other sizes. From 30M
on most of the repository is made up, and git is left out: ``bench.large``.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import chart, page
from bench.lines import HEADINGS, cells, facts
from bench.rows import SECTIONS, Row
from bench.run import measure

SIZES = {"100k": 100_000, "1M": 1_000_000, "10M": 10_000_000}
LARGE = {"30M": 30_000_000, "100M": 100_000_000, "1000M": 1_000_000_000}
REPEATS = {"100k": (7, 3), "1M": (7, 3), "10M": (3, 1)}
"""How often a row is run, and how often one that takes seconds."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=[*SIZES, *LARGE], default="100k")
    parser.add_argument("--repeats", type=int, help="of every row")
    parser.add_argument("--no-page", action="store_true", help="leave docs/ as it is")
    parser.add_argument("--page-only", action="store_true", help="write docs/ from the last numbers, measure nothing")
    arguments = parser.parse_args()
    if arguments.page_only:
        _write(page.known())
        return
    if arguments.size in LARGE:
        from bench import large  # it imports this module

        large.show(["1M", "10M", arguments.size], arguments.repeats or 9)
        return
    repeats, heavy = (arguments.repeats,) * 2 if arguments.repeats else REPEATS[arguments.size]
    progress = Console(stderr=True)
    result = measure(SIZES[arguments.size], repeats, heavy, lambda row: _announce(progress, row))
    _show(result)
    if not arguments.no_page:
        _write(page.remember(result))


def _write(results: dict[int, dict[str, Any]]) -> None:
    page.write(results)
    chart.draw(results)


def _announce(progress: Console, row: Row) -> None:
    progress.print(f"[dim]{row.name} ...[/]", highlight=False)


def _show(result: dict[str, Any]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 200)
    table = Table(*HEADINGS, title=f"{result['size']:,} entries", box=None, header_style="bold", title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for section in SECTIONS:
        table.add_row(f"[bold]{section.title}[/]")
        for row in section.rows:
            table.add_row(*cells(row, result["rows"][row.name], result["size"]))
    console.print(table)
    for line in facts(result):
        console.print("  ".join(filter(None, line)), highlight=False)


if __name__ == "__main__":
    main()
