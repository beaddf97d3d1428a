"""A mark's files: the list of what a sweep deletes, and the report for people.

The list is Parquet, so that anything can look into it. Its digest is kept in the catalog, out of reach of whoever may
write to the bucket, and it is read only after the whole file was found to have it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeops.model.errors import Corrupted, ObjectNotFound
from lakeops.model.marks import Mark
from lakeops.ops.context import Context
from lakeops.store import layout

MARK_SCHEMA = pa.schema(
    [
        pa.field("physical_address", pa.string(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
    ]
)
"""One file a row, relative to the namespace: ``object``, ``range``, ``metarange``, ``mark``, ``task`` or ``probe``."""

OURS = layout.OBJECT_NAME + r"|^_lakefs/(ranges|metaranges|retention/gc|tasks|probe)/."
"""What a mark may hold: everything else was not made by lakeops."""

_CLIMBS = r"(^|/)\.\.?(/|$)|\x00"


class MarkWriter:
    """Writes a mark's list to a local file, row by row; used as a context manager."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.rows = 0
        self._writer = pq.ParquetWriter(file, MARK_SCHEMA, compression="zstd", use_dictionary=["kind"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def add(self, kind: str, table: pa.Table) -> None:
        """Add files: a table with ``physical_address`` and ``size_bytes``."""
        if table.num_rows:
            kinds = pa.repeat(kind, table.num_rows)
            columns = [table["physical_address"], table["size_bytes"], kinds]
            self._writer.write_table(pa.table(columns, schema=MARK_SCHEMA))
            self.rows += table.num_rows

    def digest(self) -> str:
        """The SHA-256 of the file, once it is closed."""
        with self.file.open("rb") as data:
            return hashlib.file_digest(data, "sha256").hexdigest()


def begun_key(mark_id: str) -> str:
    """Where a run writes first, to see the store's time."""
    return f"{layout.GC}{mark_id}/begun"


def mark_key(mark_id: str) -> str:
    """Where a mark's list lies."""
    return f"{layout.GC}{mark_id}/mark.parquet"


def report_key(mark_id: str) -> str:
    """Where a mark's report lies."""
    return f"{layout.GC}{mark_id}/report.json"


MARK_FILES = (begun_key, mark_key, report_key)
"""What a mark on record may have in the store."""


@contextmanager
def opened(ctx: Context, mark: Mark) -> Iterator[pq.ParquetFile]:
    """A mark's list, verified, to be read inside the block. Raises ``Corrupted``."""
    key = mark_key(mark.id)
    with tempfile.TemporaryDirectory(prefix="lakeops-") as name:
        copy = Path(name) / "mark.parquet"
        try:
            with ctx.store.open(key) as source, copy.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
        except ObjectNotFound:
            raise Corrupted(
                f"{ctx.store.url}/{key} is gone, so nothing of mark {mark.id} can be deleted; make a new mark"
            ) from None
        with copy.open("rb") as data:
            found = hashlib.file_digest(data, "sha256").hexdigest()
        if found != mark.digest:
            raise Corrupted(
                f"{ctx.store.url}/{key} is not what the mark wrote: its digest is {found[:16]}, not "
                f"{mark.digest[:16]}; nothing was deleted; make a new mark"
            )
        with pq.ParquetFile(copy) as file:
            yield file


def check_ours(ctx: Context, mark: Mark, addresses: pa.Array | pa.ChunkedArray) -> None:
    """Refuse a list that names what lakeops did not make: the last line of defence. Raises ``Corrupted``."""
    fine = pc.and_not(pc.match_substring_regex(addresses, OURS), pc.match_substring_regex(addresses, _CLIMBS))
    if not pc.all(fine).as_py():
        name = pc.filter(addresses, pc.invert(fine))[0].as_py()
        raise Corrupted(f"mark {mark.id} of {ctx.store.url} names {name!r}, which is not lakeops' own; it is not swept")


def write_report(ctx: Context, mark_id: str, report: dict[str, Any]) -> None:
    """Keep a mark's report beside its list."""
    text = json.dumps(report, indent=2, ensure_ascii=False)
    ctx.store.put(report_key(mark_id), text.encode(), content_type="application/json")


def read_report(ctx: Context, mark: Mark) -> dict[str, Any]:
    """A mark's report, as it was written, with the state that the mark is in now. Raises ``ObjectNotFound``."""
    try:
        found = json.loads(ctx.store.get(report_key(mark.id)))
    except ObjectNotFound:
        raise ObjectNotFound(
            f"mark {mark.id} is {mark.state.value} and has no report: its run was killed, or the file was deleted"
        ) from None
    except ValueError:
        raise Corrupted(f"{ctx.store.url}/{report_key(mark.id)} is no report: it is not JSON") from None
    return {**found, "mark": mark.to_json()}
