"""What an object holds, as far as a page shows it: bounded bytes, read as text or as Parquet, and nothing is run."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from io import StringIO
from itertools import islice
from typing import IO

from lakeops.model.records import Entry
from lakeops.model.words import counted, human_size
from lakeops.store.foreign import MAGIC, PAGE_BYTES, PAGE_SECONDS, first_rows

MOST_BYTES = 64 * 1024
"""Bytes of a text that are read."""
MOST_ROWS, MOST_COLUMNS, MOST_CELL = 50, 40, 200

_BUDGET = f"would take more than {PAGE_BYTES >> 20} MiB of memory or {PAGE_SECONDS} seconds"


@dataclass(frozen=True)
class Preview:
    """What a page shows of an object's contents.

    Attributes:
        kind: what it was read as.
        text: lines, where it is text.
        header: names of columns, where it is a table.
        rows: the first rows, as text.
        facts: what is known beside it: numbers of rows and columns.
        note: what is left out, and why.
    """

    kind: str
    text: str | None = None
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    schema: tuple[tuple[str, str], ...] = ()
    facts: tuple[str, ...] = ()
    note: str = ""


def preview(file: IO[bytes], entry: Entry) -> Preview:
    """The preview of an object whose contents are ``file``. Contents that cannot be read are said to be so."""
    start = file.read(4)
    if start == MAGIC:
        return _parquet(file, entry)
    data = start + file.read(MOST_BYTES - len(start))
    cut = (
        "" if len(data) >= entry.size_bytes else f"The first {human_size(len(data))} of {human_size(entry.size_bytes)}."
    )
    if not data:
        return Preview("Empty", note="The object is empty.")
    text = _decoded(data)
    if text is None:
        return Preview("Binary", text=_hex(data[:512]), note="Not a text. Its first bytes, in hex.")
    name = entry.path.rpartition("/")[2].lower()
    if name.endswith((".csv", ".tsv")) or entry.content_type in {"text/csv", "text/tab-separated-values"}:
        return _table(text, "\t" if name.endswith(".tsv") else ",", cut)
    if not cut and (name.endswith(".json") or entry.content_type == "application/json"):
        try:
            return Preview("JSON", text=_indented(json.loads(text)))
        except (ValueError, RecursionError):
            return Preview("Text", text=text, note="Named like JSON, but it is not.")
    return Preview("Text", text=text, note=cut)


def _decoded(data: bytes) -> str | None:
    """The text, if it is one. A character that the limit cut in two is left out."""
    if b"\0" in data:
        return None
    for end in range(4):
        try:
            return data[: len(data) - end].decode()
        except UnicodeDecodeError:
            continue
    return None


def _indented(document: object) -> str:
    """JSON as people read it, made no further than it is shown: each level takes more than it had."""
    parts: list[str] = []
    room = MOST_BYTES
    for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(document):
        parts.append(part[:room])
        room -= len(part)
        if room <= 0:
            break
    return "".join(parts)


def _table(text: str, delimiter: str, cut: str) -> Preview:
    try:
        found = list(islice(csv.reader(StringIO(text), delimiter=delimiter), MOST_ROWS + 1))
    except csv.Error:
        return Preview("Text", text=text, note="Named like CSV, but it is not.")
    rows = [tuple(_cell(cell) for cell in row[:MOST_COLUMNS]) for row in found]
    shown = f"The first {len(rows) - 1} rows." if len(rows) > MOST_ROWS else ""
    return Preview(
        "CSV", header=rows[0] if rows else (), rows=tuple(rows[1:]), note=" ".join(filter(None, (shown, cut)))
    )


def _parquet(file: IO[bytes], entry: Entry) -> Preview:
    found = first_rows(file, entry.size_bytes, rows=MOST_ROWS, columns=MOST_COLUMNS, cell=MOST_CELL)
    if "flaw" in found or "schema" not in found:
        return Preview("Parquet", note=found.get("flaw", f"It is too large to show: its schema {_BUDGET}."))
    total = found["rows"]
    facts = counted(total, "row"), counted(found["columns"], "column"), counted(found["groups"], "row group")
    rows = tuple(tuple(map(_cell, row)) for row in found.get("cells", ()))
    if "cells" not in found:
        note = f"It is too large to show rows: the first {MOST_ROWS} {_BUDGET}."
    else:
        note = f"The first {len(rows)} rows." if total > len(rows) else "" if rows else "It has no rows."
    schema = tuple((name, kind) for name, kind in found["schema"])
    return Preview("Parquet", header=tuple(found["header"]), rows=rows, schema=schema, facts=facts, note=note)


def _cell(text: str) -> str:
    return text if len(text) <= MOST_CELL else f"{text[:MOST_CELL]}…"


def _hex(data: bytes) -> str:
    rows = (data[start : start + 16] for start in range(0, len(data), 16))
    return "\n".join(f"{number * 16:08x}  {row.hex(' ')}" for number, row in enumerate(rows))
