"""What an object holds, as far as a page shows it: bounded bytes, read as text or as Parquet, and nothing is run."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from io import StringIO
from itertools import islice
from typing import IO

from lakeops.model.errors import LakeopsError
from lakeops.model.records import Entry
from lakeops.model.words import counted, human_size

MOST_BYTES = 64 * 1024
"""Bytes of a text that are read."""
MOST_ROWS, MOST_COLUMNS, MOST_CELL = 50, 40, 200
MOST_FOOTER = 8 << 20
MOST_GROUP = 64 << 20
"""Bytes of the first row group of a Parquet file, beyond which only its schema is shown."""

_MAGIC = b"PAR1"


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
    if start == _MAGIC:
        try:
            return _parquet(file, entry)
        except LakeopsError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever Arrow says of a file that is damaged or hostile
            return Preview("Parquet", note=f"This is no Parquet file that can be read ({type(error).__name__}).")
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
            return Preview("JSON", text=json.dumps(json.loads(text), indent=2, ensure_ascii=False)[:MOST_BYTES])
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
    import pyarrow.parquet as pq

    file.seek(max(0, entry.size_bytes - 8))
    tail = file.read(8)
    if tail[4:] != _MAGIC or int.from_bytes(tail[:4], "little") > MOST_FOOTER:
        return Preview("Parquet", note="Its footer is missing, or too large to show.")
    file.seek(0)
    parquet = pq.ParquetFile(file)
    about, schema = parquet.metadata, parquet.schema_arrow
    facts = (
        counted(about.num_rows, "row"),
        counted(len(schema), "column"),
        counted(about.num_row_groups, "row group"),
    )
    columns = tuple((one.name, str(one.type)[:MOST_CELL]) for one in islice(schema, 500))
    names = [one.name for one in islice(schema, MOST_COLUMNS)]
    if not about.num_row_groups or about.row_group(0).total_byte_size > MOST_GROUP:
        note = "It has no rows." if not about.num_rows else "Its row groups are too large to show rows."
        return Preview("Parquet", schema=columns, facts=facts, note=note)
    batches = parquet.iter_batches(MOST_ROWS, row_groups=[0], columns=names, use_threads=False)
    first = next(iter(batches), None)
    values = [] if first is None else [column.to_pylist() for column in first.columns]
    rows = tuple(
        tuple(_cell("" if value is None else str(value)) for value in row) for row in zip(*values, strict=True)
    )
    header = tuple(names) if first is None else tuple(first.schema.names)
    note = f"The first {len(rows)} rows." if about.num_rows > len(rows) else "" if rows else "It has no rows."
    return Preview("Parquet", header=header, rows=rows, schema=columns, facts=facts, note=note)


def _cell(text: str) -> str:
    return text if len(text) <= MOST_CELL else f"{text[:MOST_CELL]}…"


def _hex(data: bytes) -> str:
    rows = (data[start : start + 16] for start in range(0, len(data), 16))
    return "\n".join(f"{number * 16:08x}  {row.hex(' ')}" for number, row in enumerate(rows))
