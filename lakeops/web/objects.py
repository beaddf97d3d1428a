"""The pages about objects: listings of a ref, previews, blame, versions, and one object before and after a change.

A preview reads a bounded number of bytes, as text or as Parquet, and runs nothing.
"""

from __future__ import annotations

import csv
import json
import re
from codecs import getincrementaldecoder
from contextlib import suppress
from dataclasses import dataclass
from io import StringIO
from itertools import islice
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from lakeops.model.errors import LakeopsError, ObjectNotFound
from lakeops.model.formatting import counted, human_size
from lakeops.model.records import CommonPrefix, Entry, Version
from lakeops.model.sanitising import excerpt
from lakeops.store.foreign import MAGIC, PAGE_BYTES, PAGE_SECONDS, first_rows
from lakeops.web.page import Page

if TYPE_CHECKING:
    from lakeops.lake.repository import Readable

MOST_BYTES = 64 * 1024
"""Bytes of a text that a preview reads."""
MOST_ROWS, MOST_COLUMNS, MOST_CELL = 50, 40, 200

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\[\s*\]|\{\s*\}|[\[\]{},:]|[^\s\[\]{},:"]+')
"""A text, an empty list or object, a sign, or any other value of JSON."""
_WIDE = f"The first {MOST_COLUMNS} columns."
_BUDGET = f"would take more than {PAGE_BYTES >> 20} MiB of memory or {PAGE_SECONDS} seconds"


@dataclass(frozen=True)
class ObjectPreview:
    """The beginning of an object's contents: the lines of a text, or the header and first rows of a table.

    ``schema`` has the names and types of the columns of a file that declares them, ``facts`` their numbers. ``note``
    says what is left out, and why.
    """

    kind: str
    text: str | None = None
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    schema: tuple[tuple[str, str], ...] = ()
    facts: tuple[str, ...] = ()
    note: str = ""


def preview(file: IO[bytes], entry: Entry) -> ObjectPreview:
    """Preview the contents of an object. The note of the preview names contents that cannot be read."""
    start = file.read(4)
    if start == MAGIC:
        return _parquet(file, entry)
    data = start + file.read(MOST_BYTES - len(start))
    size = entry.size_bytes
    cut = f"The first {human_size(len(data))} of {human_size(size)}." if len(data) < size else ""
    if not data:
        return ObjectPreview("Empty", note="The object is empty.")
    text = None
    with suppress(UnicodeDecodeError):  # a last character that the limit cut in two is left out
        text = None if b"\0" in data else getincrementaldecoder("utf-8")().decode(data)
    if text is None:
        rows = "\n".join(f"{at:08x}  {data[at : at + 16].hex(' ')}" for at in range(0, min(len(data), 512), 16))
        return ObjectPreview("Binary", text=rows, note="Not a text. Its first bytes, in hex.")
    name = entry.path.rpartition("/")[2].lower()
    tabs = name.endswith(".tsv") or entry.content_type == "text/tab-separated-values"
    if tabs or name.endswith(".csv") or entry.content_type == "text/csv":
        return _table(text, "\t" if tabs else ",", cut)
    if not cut and (name.endswith(".json") or entry.content_type == "application/json"):
        try:
            json.loads(text)
            return ObjectPreview("JSON", text=_indented(text))
        except (ValueError, RecursionError):
            return ObjectPreview("Text", text=text, note="Named like JSON, but it is not.")
    return ObjectPreview("Text", text=text, note=cut)


def _indented(text: str) -> str:
    """Indent JSON whose names and values stay as they are written, up to the size that is shown."""
    shown, depth = "", 0
    for part in _TOKEN.findall(text):
        depth += (part in "[{") - (part in "]}")
        line = "\n" + "  " * depth
        shown += line + part if part in "]}" else part + line if part in "[{," else ": " if part == ":" else part
        if len(shown) >= MOST_BYTES:
            return shown[: MOST_BYTES - 1] + "…"
    return shown


def _table(text: str, delimiter: str, cut: str) -> ObjectPreview:
    try:
        found = list(islice(csv.reader(StringIO(text), delimiter=delimiter), MOST_ROWS + 1))
    except csv.Error:
        return ObjectPreview("Text", text=text, note="Named like CSV, but it is not.")
    rows = [tuple(_cell(cell) for cell in row[:MOST_COLUMNS]) for row in found]
    shown = f"The first {len(rows) - 1} rows." if len(rows) > MOST_ROWS else ""
    wide = _WIDE if any(len(row) > MOST_COLUMNS for row in found) else ""
    note = " ".join(filter(None, (shown, wide, cut)))
    return ObjectPreview("CSV", header=rows[0] if rows else (), rows=tuple(rows[1:]), note=note)


def _parquet(file: IO[bytes], entry: Entry) -> ObjectPreview:
    found = first_rows(file, entry.size_bytes, rows=MOST_ROWS, columns=MOST_COLUMNS, cell=MOST_CELL)
    if "schema" not in found:
        return ObjectPreview("Parquet", note=found.get("flaw", f"It is too large to show: its schema {_BUDGET}."))
    total = found["rows"]
    facts = counted(total, "row"), counted(found["columns"], "column"), counted(found["groups"], "row group")
    rows = tuple(tuple(map(_cell, row)) for row in found.get("cells", ()))
    if "cells" not in found:
        note = found.get("flaw", f"It is too large to show rows: the first {MOST_ROWS} {_BUDGET}.")
    else:
        note = f"The first {len(rows)} rows." if total > len(rows) else "" if rows else "It has no rows."
        note += f" {_WIDE}" if rows and found["columns"] > MOST_COLUMNS else ""
    schema = tuple((name, kind) for name, kind in found["schema"])
    return ObjectPreview("Parquet", header=tuple(found["header"]), rows=rows, schema=schema, facts=facts, note=note)


def _cell(text: str) -> str:
    return text if len(text) <= MOST_CELL else f"{text[:MOST_CELL]}…"


OBJECTS = 50
"""Folders and objects of a page. Each folder costs a lookup among staged and among committed entries."""
STAGED = 100
TRACED = 50
"""Objects of a page of blame, or versions of an object."""
DEPTH = 100
"""Commits that blame and versions look back."""


class Side(NamedTuple):
    """An object on one side of a change, with its preview or its problem. Before the first commit the ref is empty."""

    ref: str
    entry: Entry | None
    shown: ObjectPreview | None = None
    problem: str | None = None


class ObjectPages(Page):
    """The pages about objects."""

    def uncommitted(self) -> str:
        """List the uncommitted changes of a branch."""
        repository, ref = self._repository, self._path["ref"]
        prefix, after = self._query_value("prefix"), self._query_value("after")
        found, more = repository.branch(ref).uncommitted_page(prefix, after=after, amount=STAGED)

        def changed(path: str) -> str:
            return self._address("change", before=f"{ref}@", after=ref, path=path)

        return self._of_ref("uncommitted.html", "uncommitted", changes=found, next_after=more, changed=changed)

    def tree(self) -> str:
        """List the folders and objects of a ref under a prefix."""
        repository, ref = self._repository, self._path["ref"]
        prefix, after = self._query_value("prefix"), self._query_value("after")
        found = list(islice(repository.ref(ref).list(prefix, after=after, delimiter="/"), OBJECTS + 1))
        shown: list[Entry | CommonPrefix] = found[:OBJECTS]
        more = shown[-1].path if len(found) > OBJECTS else None
        return self._of_ref("tree.html", "objects", items=shown, next_after=more)

    def contents(self) -> str:
        """Show the attributes of an object and its preview."""
        repository, ref = self._repository, self._path["ref"]
        path = self._query_value("path")
        at = repository.ref(ref)
        entry = at.stat(path)
        shown, problem = _previewed(at, entry)
        given = {"entry": entry, "shown": shown, "problem": problem, "uri": f"lakefs://{repository.id}/{ref}/{path}"}
        return self._of_ref("object.html", "objects", item=_name(path), **given)

    def blame(self) -> str:
        """List the objects under a prefix with the commit that wrote each."""
        repository, ref = self._repository, self._path["ref"]
        prefix, after = self._query_value("prefix"), self._query_value("after")
        found = list(repository.ref(ref).blame(prefix, after=after, amount=TRACED + 1, depth=DEPTH))
        more = found[TRACED - 1].path if len(found) > TRACED else None
        return self._of_ref("blame.html", "blame", rows=found[:TRACED], depth=DEPTH, next_after=more)

    def versions(self) -> str:
        """List the commits that wrote an object or removed it."""
        repository, ref = self._repository, self._path["ref"]
        path = self._query_value("path")
        try:
            found = list(repository.ref(ref).history(path, amount=TRACED, depth=DEPTH))
        except ObjectNotFound:
            found = []  # not committed yet

        def changed(one: Version) -> str:
            before = next(iter(one.commit.parents), "")
            return self._address("change", before=before, after=one.commit.id, path=path)

        given = {"rows": found, "most": TRACED, "depth": DEPTH, "changed": changed}
        return self._of_ref("versions.html", "blame", item=_name(path), **given)

    def change(self) -> str:
        """Show the attributes and the preview of an object before and after a change."""
        repository = self._repository
        path = self._query_value("path")
        sides = []
        for ref in map(self._query_value, ("before", "after")):
            at = repository.ref(ref) if ref else None
            entry = at.find(path) if at else None
            sides.append(Side(ref, entry, *(_previewed(at, entry) if at and entry else ())))
        if all(side.entry is None for side in sides):
            raise ObjectNotFound(f"there is no object at {excerpt(path)}, neither before nor after")
        known = all(side.shown is not None and side.shown.schema for side in sides if side.entry)
        kinds = [dict(side.shown.schema) if known and side.shown else {} for side in sides]
        refs = {side: one.ref for side, one in zip(("left", "right"), sides, strict=True)}
        compared = self._address("diff", **refs, two_way="true") if all(refs.values()) else self._address("diff")
        columns = [(name, *(kind.get(name) for kind in kinds)) for name in {**kinds[0], **kinds[1]}]
        altered = [column for column in columns if column[1] != column[2]]
        given: dict[str, Any] = {"crumbs": [("Compare", compared), (_name(path), None)], "sides": sides}
        given |= {"columns": columns, "altered": altered}
        return self._of_repository("change.html", _name(path), tab="compare", **given)


def _previewed(at: Readable, entry: Entry) -> tuple[ObjectPreview | None, str | None]:
    try:
        with at.open_entry(entry, verify=False) as file:
            return preview(file, entry), None
    except LakeopsError as error:
        return None, error.message


def _name(path: str) -> str:
    return path.rpartition("/")[2] or path
