"""A mark's files: what the store holds, the list of what a sweep deletes, and the report for people.

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
from dataclasses import dataclass, field
from datetime import datetime, timedelta
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
from lakeops.ops.gc.unreferenced import LISTED_SCHEMA, managed, read_stream
from lakeops.store import layout
from lakeops.store.listing import gathered, present
from lakeops.store.reader import parse_json, read_small

SAMPLE = 20
"""How many names of a kind are shown."""

_TOGETHER = 50_000
"""Names that are looked at in one step."""

_TO_THE_SECOND = r"^data/\d{10}/\d{4}[0-9a-v]{20}(/|$)"
_ATTEMPT = r"-(?P<stamp>\d{14})[0-9a-v]{20,}\.parquet$"
_RUN = r"^_lakefs/retention/gc/(?P<stamp>\d{14})[0-9a-v]{20}/."
_STAMPS = {"range": _ATTEMPT, "metarange": _ATTEMPT, "mark": _RUN}
"""Where names say when what wrote a metadata file began."""

KINDS = {
    "range": r"^_lakefs/ranges/[0-9a-f]{64}-[^/]+\.parquet$",
    "metarange": r"^_lakefs/metaranges/[0-9a-f]{64}-[^/]+\.parquet$",
    "mark": _RUN,
    "task": r"^_lakefs/tasks/[^/]+/.",
    "probe": r"^_lakefs/probe/[0-9a-v]+",
}
"""Metadata files by what their keys look like. ``object`` is the kind of everything under ``layout.OBJECT_NAME``."""

VERSIONED = (
    "the bucket keeps versions: what a sweep deletes stays as noncurrent versions, and is paid for, until a lifecycle "
    "rule with NoncurrentVersionExpiration (and ExpiredObjectDeleteMarker) removes them"
)


@dataclass
class FileCount:
    """How many files, how many bytes, and the first few of their names."""

    count: int = 0
    size_bytes: int = 0
    sample: list[str] = field(default_factory=list)

    def add(self, table: pa.Table) -> None:
        """Count the files of a table of ``LISTED_SCHEMA``."""
        self.count += table.num_rows
        self.size_bytes += pc.sum(table["size_bytes"]).as_py() or 0
        if len(self.sample) < SAMPLE:
            self.sample += table["physical_address"].slice(0, SAMPLE - len(self.sample)).to_pylist()

    def to_json(self) -> dict[str, int]:
        """The count for programs."""
        return {"count": self.count, "bytes": self.size_bytes}


@dataclass
class StoreListing:
    """A store's files as they were listed, as tables of ``LISTED_SCHEMA``.

    Objects that were begun before the ``cutoff`` wait in a local Arrow stream, metadata files in ``files`` by kind.
    ``listed`` counts all objects of lakeops, ``young`` what is too young, ``strays`` what somebody else put there.
    """

    objects: Path
    cutoff: datetime
    files: dict[str, list[pa.Table]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    listed: FileCount = field(default_factory=FileCount)
    young: FileCount = field(default_factory=FileCount)
    strays: FileCount = field(default_factory=FileCount)

    def old(self, kind: str) -> pa.Table:
        """The metadata files of a kind that are old enough: ``LISTED_SCHEMA``."""
        return pa.concat_tables([LISTED_SCHEMA.empty_table(), *self.files[kind]])

    def batches(self) -> Iterator[pa.Table]:
        """The objects that are old enough: tables of ``LISTED_SCHEMA``."""
        return read_stream(self.objects)

    def sort(self, table: pa.Table, spool: pa.RecordBatchWriter) -> None:
        """Put each row of a table where it belongs. Objects that are old enough go to ``spool``."""
        address = table["physical_address"]
        ours = pc.match_substring_regex(address, layout.OBJECT_NAME)
        objects, rest = table.filter(ours), table.filter(pc.invert(ours))
        self.listed.add(objects)
        address = objects["physical_address"]
        to_the_second = pc.match_substring_regex(address, _TO_THE_SECOND)
        second = pc.if_else(to_the_second, pc.utf8_slice_codeunits(address, 16, 20), "5959")
        stamps = pc.binary_join_element_wise(pc.utf8_slice_codeunits(address, 5, 15), second, "")
        old = self._only_old(objects, pc.if_else(pc.starts_with(address, layout.TABLES), "", stamps))
        if old.num_rows:
            spool.write_table(old)
        for kind, pattern in KINDS.items():
            if not rest.num_rows:
                return
            of_kind = pc.match_substring_regex(rest["physical_address"], pattern)
            files, rest = rest.filter(of_kind), rest.filter(pc.invert(of_kind))
            if files.num_rows:
                stamps = pa.chunked_array([pa.repeat("", files.num_rows)])
                if kind in _STAMPS:
                    stamps = pc.struct_field(pc.extract_regex(files["physical_address"], _STAMPS[kind]), [0])
                self.files[kind].append(self._only_old(files, pc.fill_null(stamps, "")))
        names = rest["physical_address"]
        strange = pc.not_equal(names, layout.CLAIM)
        for folder in (layout.OWNER, layout.REFS):
            strange = pc.and_not(strange, pc.starts_with(names, folder))
        self.strays.add(rest.filter(strange))

    def _only_old(self, files: pa.Table, stamps: pa.ChunkedArray) -> pa.Table:
        """The files that were begun before the cutoff, by their stamps or the store's times. Others count as young."""
        # Stamps have whole seconds: one of the cutoff's second may stand for a later moment.
        last = f"{self.cutoff - timedelta(seconds=1):%Y%m%d%H%M%S}"
        by_store = pc.less_equal(files["mtime"], unix_seconds(self.cutoff))
        old = pc.if_else(pc.equal(stamps, ""), by_store, pc.less_equal(stamps, last))
        self.young.add(files.filter(pc.invert(old)))
        return files.filter(old)


def list_store(ctx: Context, cutoff: datetime, folder: Path) -> StoreListing:
    """List the whole namespace, and sort it out. ``folder`` takes about 60 bytes for each object."""
    found = StoreListing(folder / "objects.arrow", cutoff)
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(found.objects, LISTED_SCHEMA, options=options) as spool:
        for listing in gathered(ctx.store.scan(skip_special=True, moving=True), _TOGETHER):
            found.sort(pa.table([listing.keys, listing.sizes, listing.mtimes], schema=LISTED_SCHEMA), spool)
            ctx.progress("listing", found.listed.count, 0)
    return found


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


def check_ours(ctx: Context, mark: Mark, addresses: pa.Array | pa.ChunkedArray) -> None:
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
    except ValueError:
        raise Corrupted(f"{ctx.store.url}/{mark_key(mark.id, REPORT)} is no report: it is not JSON") from None
    return {**found, "mark": mark.to_json()}


def own_objects(ctx: Context, addresses: pa.ChunkedArray) -> pa.Array:
    """The addresses that are names of lakeops in the namespace, in any spelling, relative to it.

    What somebody else put below ``data/`` is never collected, and is the caller's word, as imported objects are.
    Raises ``InvalidInput`` for lakeops' own metadata, and for other places in the namespace.
    """
    inside = managed(ctx.repository.storage_namespace, addresses)
    strange = inside.filter(pc.invert(pc.starts_with(inside, layout.DATA)))
    if len(strange):
        raise InvalidInput(f"{strange[0].as_py()!r} of {ctx.store.url} is not an object: objects lie below data/")
    return inside.filter(pc.match_substring_regex(inside, layout.OBJECT_NAME))


def cleared(
    ctx: Context, objects: pa.Array, written: Mapping[str, int] | None = None
) -> tuple[frozenset[str], frozenset[str]]:
    """The marks that hold none of these objects and never will, or are swept; and those that are not known to.

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
    """Look that every object is in the store. Asked of the store, after ``cleared``. Raises ``ObjectNotFound``."""
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
