"""A mark's files: the list of what a sweep deletes, and the report for people.

The list is Parquet, so that any tool can read it. Its digest is kept in the catalog, where those who may only write to
the bucket cannot change it. The list is read only after the whole file was found to have this digest.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeops.model.clock import unix_seconds
from lakeops.model.errors import Corrupted, InvalidInput, MarkRefused, ObjectNotFound, PreconditionFailed
from lakeops.model.marks import SWEEPABLE, Mark, MarkState
from lakeops.model.names import check_asked
from lakeops.ops.context import Context
from lakeops.ops.gc.unreferenced import KINDS, FileCount, managed
from lakeops.store import layout
from lakeops.store.listing import present
from lakeops.store.reader import parse_json, read_small

VERSIONED = (
    "the bucket keeps versions: what a sweep deletes stays as noncurrent versions, and is paid for, until a lifecycle "
    "rule with NoncurrentVersionExpiration (and ExpiredObjectDeleteMarker) removes them"
)


MARK_SCHEMA = pa.schema(
    [
        pa.field("physical_address", pa.string(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
    ]
)
"""One file a row, relative to the namespace: ``object``, ``range``, ``metarange``, ``mark``, ``task`` or ``probe``."""

_MAX_REPORT = 64 << 20
"""A report has a line for each mirror and each prefix that it shows: megabytes at most."""

_PARTS = {"by_age": list, "notes": list} | dict.fromkeys(
    ("listed", "metadata", "sample", "commits", "kept", "strays"), dict
)
"""Parts of a report by type."""

OURS = layout.OBJECT_NAME + r"|^_lakefs/(ranges|metaranges|retention/gc|tasks|probe)/."
"""What a mark may hold: everything else was not made by lakeops."""

_CLIMBS = r"(^|/)\.\.?(/|$)|\x00"


class MarkWriter:
    """Writes a mark's list to a local file. Counts files by kind, and objects by the hour that they began in."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.rows: int = 0
        self.kinds: dict[str, FileCount] = {kind: FileCount() for kind in ("object", *KINDS)}
        self.hours: dict[str, list[int]] = {}
        self._writer = pq.ParquetWriter(file, MARK_SCHEMA, compression="zstd", use_dictionary=["kind"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def add(self, kind: str, files: pa.Table) -> None:
        """Add files: a table with ``physical_address`` and ``size_bytes``."""
        if not files.num_rows:
            return
        columns = [files["physical_address"], files["size_bytes"], pa.repeat(kind, files.num_rows)]
        self._writer.write_table(pa.table(columns, schema=MARK_SCHEMA))
        self.rows += files.num_rows
        self.kinds[kind].add(files)
        if kind == "object":
            address = files["physical_address"]
            hour = pc.if_else(pc.starts_with(address, layout.TABLES), "tables", pc.utf8_slice_codeunits(address, 5, 15))
            sums = pa.table({"hour": hour, "size": files["size_bytes"]}).group_by("hour")
            for row in sums.aggregate([("size", "count"), ("size", "sum")]).to_pylist():
                count, size = self.hours.get(row["hour"], (0, 0))
                self.hours[row["hour"]] = [count + row["size_count"], size + row["size_sum"]]


def digest(path: Path) -> str:
    """The SHA-256 of a file in hex."""
    with path.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


MARK_FILES = BEGUN, LIST, REPORT = "begun", "mark.parquet", "report.json"
"""What a mark may have in the store. A run writes the first one to see the store's time."""


def mark_key(mark_id: str, name: str = LIST) -> str:
    """Where a file of a mark lies."""
    return f"{layout.GC}{mark_id}/{name}"


@contextmanager
def opened(ctx: Context, mark: Mark) -> Iterator[pq.ParquetFile]:
    """A mark's list, verified, to be read inside the block. Raises ``Corrupted``, ``MarkRefused``."""
    key = mark_key(mark.id)
    with tempfile.TemporaryDirectory(prefix="lakeops-") as name:
        copy = Path(name) / "mark.parquet"
        try:
            with ctx.store.open(key) as source, copy.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
        except ObjectNotFound:
            now = ctx.catalog.marks.get(ctx.repository_id, mark.id).state
            if now not in SWEEPABLE:  # a later collection may have taken the list, too
                raise MarkRefused(f"mark {mark.id} became {now} meanwhile; make a new mark") from None
            raise Corrupted(
                f"{ctx.store.url}/{key} is gone, so nothing of mark {mark.id} can be deleted; make a new mark"
            ) from None
        found = digest(copy)
        if found != mark.digest:
            raise Corrupted(
                f"{ctx.store.url}/{key} is not what the mark wrote: its digest is {found[:16]}, not "
                f"{mark.digest[:16]}; nothing was deleted; make a new mark"
            )
        with pq.ParquetFile(copy) as file:
            yield file


def check_managed(ctx: Context, mark: Mark, addresses: pa.Array | pa.ChunkedArray) -> None:
    """Refuse a list that names what lakeops did not make: the last line of defence. Raises ``Corrupted``."""
    fine = pc.and_not(pc.match_substring_regex(addresses, OURS), pc.match_substring_regex(addresses, _CLIMBS))
    if not pc.all(fine).as_py():
        name = pc.filter(addresses, pc.invert(fine))[0].as_py()
        raise Corrupted(f"mark {mark.id} of {ctx.store.url} names {name!r}, which is not lakeops' own; it is not swept")


def write_report(ctx: Context, mark_id: str, report: dict[str, Any]) -> None:
    """Keep a mark's report beside its list."""
    text = json.dumps(report, indent=2, ensure_ascii=False)
    ctx.store.put(mark_key(mark_id, REPORT), text.encode(), content_type="application/json")


def report(ctx: Context, mark_id: str) -> dict[str, Any]:
    """Read the report of a mark: its files, what was kept and why, and what is not lakeops' own.

    The report was written by the mark's run. Its ``mark`` has the state of now.

    Raises:
        NotFound: ``mark_not_found``: this repository has no such mark.
        ObjectNotFound: the mark has no report, because its run was killed.
    """
    mark = ctx.catalog.marks.get(ctx.repository_id, check_asked(mark_id, "a mark"))
    try:
        text = read_small(ctx.store, mark_key(mark.id, REPORT), _MAX_REPORT)
    except ObjectNotFound:
        raise ObjectNotFound(
            f"mark {mark.id} is {mark.state.value} and has no report: its run was killed, or the file was deleted"
        ) from None
    try:
        found = parse_json(text)
        if any(type(found[name]) is not kind for name, kind in _PARTS.items()):
            raise TypeError
    except (ValueError, TypeError, LookupError):
        raise Corrupted(f"{ctx.store.url}/{mark_key(mark.id, REPORT)} is no report; make a new mark") from None
    return {**found, "mark": mark.to_json()}


def own_objects(ctx: Context, addresses: pa.ChunkedArray) -> pa.Array:
    """The addresses of objects in the namespace that lakeops named, in any spelling, relative to it.

    What somebody else put below ``data/`` is never collected, and is the caller's word, as imported objects are.
    Raises ``InvalidInput`` for lakeops' own metadata, and for other places in the namespace.
    """
    inside = managed(ctx.repository.storage_namespace, addresses)
    strange = inside.filter(pc.invert(pc.starts_with(inside, layout.DATA)))
    if len(strange):
        raise InvalidInput(f"{strange[0].as_py()!r} of {ctx.store.url} is not an object: objects lie below data/")
    return inside.filter(pc.match_substring_regex(inside, layout.OBJECT_NAME))


def safe_from_marks(
    ctx: Context, objects: pa.Array, written: Mapping[str, int] | None = None
) -> tuple[frozenset[str], frozenset[str]]:
    """The marks that cannot delete any of these objects any more, and the marks for which that is not known yet.

    ``objects`` are as ``own_objects`` gives them. ``written`` is when the store says that files of tables were written,
    in Unix seconds; others count as old. Raises ``PreconditionFailed`` (``object_collected``) where a mark holds one.
    """
    found, unclear = set(), set()
    for mark in ctx.catalog.marks.on_record(ctx.repository_id):
        within = _begun_by(objects, written or {}, mark.cutoff)
        if mark.state is MarkState.MARKING and len(within):
            unclear.add(mark.id)
            continue
        found.add(mark.id)
        if mark.state not in SWEEPABLE or not len(within):
            continue
        with opened(ctx, mark) as file:
            for batch in file.iter_batches(columns=["physical_address"]):
                doomed = pc.is_in(batch.column(0), value_set=within)
                if pc.any(doomed).as_py():
                    name = batch.column(0).filter(doomed)[0].as_py()
                    raise PreconditionFailed(
                        f"nothing refers to {name!r} any more, and mark {mark.id} is going to delete it: "
                        "upload the contents again",
                        kind="object_collected",
                    )
    return frozenset(found), frozenset(unclear)


def check_present(ctx: Context, objects: pa.Array) -> None:
    """Check that every object is in the store. Call it after ``safe_from_marks``. Raises ``ObjectNotFound``."""
    names = objects.unique().to_pylist()
    found = present(ctx.store, names)
    missing = next((name for name in names if name not in found), None)
    if missing is not None:
        raise ObjectNotFound(
            f"there is no object {missing!r} in {ctx.store.url} ({len(names) - len(found):,} of {len(names):,} are "
            "missing): garbage collection took it, or it was never written; upload the contents again"
        )


def _begun_by(objects: pa.Array, written: Mapping[str, int], cutoff: datetime) -> pa.Array:
    """The names that a mark of this cutoff may hold: those of no later hour, and files of tables no newer than it."""
    old = pc.less_equal(pc.utf8_slice_codeunits(objects, 5, 15), f"{cutoff:%Y%m%d%H}")
    tables = pc.starts_with(objects, layout.TABLES)
    if pc.any(tables, min_count=0).as_py():
        newer = [name for name, moment in written.items() if moment > unix_seconds(cutoff)]
        old = pc.if_else(tables, pc.invert(pc.is_in(objects, pa.array(newer, pa.string()))), old)
    return objects.filter(old)
