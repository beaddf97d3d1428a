"""Writing HTML out of text that anybody may have written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from lakeops.model.words import safe

STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1d2733 }
h1 { font-size: 1.3rem } h2 { font-size: 1.05rem; margin-top: 2rem }
table { border-collapse: collapse } td, th { padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top }
th { color: #5b6b7b; font-weight: 500 } code, pre, .path { font-family: ui-monospace, monospace; font-size: 13px }
pre { white-space: pre-wrap; overflow-wrap: anywhere } .path { overflow-wrap: anywhere }
.added { color: #177245 } .removed { color: #b3261e } .changed { color: #8a5a00 } .conflict { color: #b3261e }
nav { color: #5b6b7b } a { color: #0b57d0 } .number { text-align: right; font-variant-numeric: tabular-nums }
@media (prefers-color-scheme: dark) { body { background: #14181d; color: #dde4ea } a { color: #8ab4f8 } }
"""


class Markup(str):
    """HTML that is made here, and not escaped again."""

    __slots__ = ()


Cell = str | int | Markup | None


def text(value: Cell) -> Markup:
    """Any text as HTML: escaped, on one line, without characters that turn or hide others."""
    if isinstance(value, Markup):
        return value
    return Markup("" if value is None else escape(safe(str(value))))


def join(parts: Iterable[Cell], separator: str = "") -> Markup:
    """Parts after each other."""
    return Markup(separator.join(text(part) for part in parts))


def tag(name: str, *parts: Cell, **attributes: str) -> Markup:
    """An element; ``class_`` stands for the attribute ``class``."""
    given = "".join(f' {key.rstrip("_")}="{text(value)}"' for key, value in attributes.items())
    return Markup(f"<{name}{given}>{join(parts)}</{name}>")


def block(value: str) -> Markup:
    """A text of several lines."""
    return Markup(f"<pre>{join(value.splitlines(), chr(10))}</pre>")


def table(rows: Iterable[Sequence[Cell]], *, head: Sequence[str] = ()) -> Markup:
    """Rows of cells."""
    lines = [tag("tr", *(tag("th", cell) for cell in head))] if head else []
    lines += [tag("tr", *(cell if _is_cell(cell) else tag("td", cell) for cell in row)) for row in rows]
    return tag("table", *lines)


def number(value: str) -> Markup:
    """A cell that is aligned as numbers are."""
    return tag("td", value, class_="number")


def page(title: str, *parts: Cell) -> str:
    """A whole document."""
    head = f"<meta charset=utf-8><title>{text(title)}</title><style>{STYLE}</style>"
    return f"<!doctype html><html lang=en><head>{head}</head><body>{tag('h1', title)}{join(parts)}</body></html>"


def _is_cell(cell: Cell) -> bool:
    return isinstance(cell, Markup) and cell.startswith(("<td", "<th"))
