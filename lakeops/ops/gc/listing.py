"""What the store holds, sorted out: what is old enough to be garbage, what is too young, and what is not ours.

The age of a file is in its name, by the catalog's clock; only what workers park and probes leave behind has no time
in its name and is aged by the store. What lakeops did not name is somebody else's: it is counted, shown, and left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.engine.listed import LISTED_SCHEMA
from lakeops.model.clock import unix_seconds
from lakeops.ops.context import Context
from lakeops.store import layout
from lakeops.store.base import Listing, ObjectStore

SAMPLE = 20
"""How many names of a kind are shown."""

_TOGETHER = 50_000
"""Names that are looked at in one step."""

_TO_THE_SECOND = r"^data/\d{10}/\d{4}[0-9a-v]{20}(/|$)"
_ATTEMPT = r"-(?P<stamp>\d{14})[0-9a-v]{20,}\.parquet$"
_RUN = r"^_lakefs/retention/gc/(?P<stamp>\d{14})[0-9a-v]{20}/."

KINDS = {
    "range": r"^_lakefs/ranges/[0-9a-f]{64}-[^/]+\.parquet$",
    "metarange": r"^_lakefs/metaranges/[0-9a-f]{64}-[^/]+\.parquet$",
    "mark": _RUN,
    "task": r"^_lakefs/tasks/[^/]+/.",
    "probe": r"^_lakefs/probe/[0-9a-v]+",
}
"""Metadata files by what their keys look like. ``object`` is the kind of everything under ``layout.OBJECT_NAME``."""


@dataclass
class Tally:
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


@dataclass
class Held:
    """What a store held when it was listed.

    Attributes:
        objects: where the objects that are old enough wait, as an Arrow stream of ``LISTED_SCHEMA``.
        files: metadata files that are old enough, by kind.
        listed: all objects that lakeops named.
        young: what is too young to be looked at, of every kind.
        strays: what somebody else put into the namespace.
    """

    objects: Path
    files: dict[str, list[pa.Table]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    listed: Tally = field(default_factory=Tally)
    young: Tally = field(default_factory=Tally)
    strays: Tally = field(default_factory=Tally)

    def old(self, kind: str) -> pa.Table:
        """The metadata files of a kind that are old enough: ``LISTED_SCHEMA``."""
        return pa.concat_tables([LISTED_SCHEMA.empty_table(), *self.files[kind]])

    def batches(self) -> Iterator[pa.Table]:
        """The objects that are old enough: tables of ``LISTED_SCHEMA``."""
        with pa.memory_map(str(self.objects)) as source, pa.ipc.open_stream(source) as stream:
            for batch in stream:
                yield pa.Table.from_batches([batch])


def list_store(ctx: Context, store: ObjectStore, cutoff: datetime, folder: Path) -> Held:
    """Everything that a store holds now, sorted out; ``folder`` takes about 60 bytes for each object."""
    held = Held(folder / "objects.arrow")
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    sorting = _Sorting(held, cutoff)
    with pa.ipc.new_stream(held.objects, LISTED_SCHEMA, options=options) as spool:
        for table in _together(store.scan(skip_special=True, moving=True)):
            sorting.sort(table, spool)
            ctx.progress("listing", held.listed.count, 0)
    return held


@dataclass
class _Sorting:
    held: Held
    cutoff: datetime

    def sort(self, table: pa.Table, spool: pa.RecordBatchWriter) -> None:
        """Put each row of a table where it belongs."""
        rest = self._objects(table, spool)
        for kind, pattern in KINDS.items():
            if not rest.num_rows:
                return
            of_kind = pc.match_substring_regex(rest["physical_address"], pattern)
            files, rest = rest.filter(of_kind), rest.filter(pc.invert(of_kind))
            if files.num_rows:
                self.held.files[kind].append(self._old(files, self._file_stamps(files, kind)))
        names = rest["physical_address"]
        ours = pc.or_(pc.equal(names, layout.CLAIM), pc.starts_with(names, layout.OWNER))
        self.held.strays.add(rest.filter(pc.invert(ours)))

    def _objects(self, table: pa.Table, spool: pa.RecordBatchWriter) -> pa.Table:
        address = table["physical_address"]
        ours = pc.match_substring_regex(address, layout.OBJECT_NAME)
        objects = table.filter(ours)
        self.held.listed.add(objects)
        address = objects["physical_address"]
        second = pc.if_else(
            pc.match_substring_regex(address, _TO_THE_SECOND), pc.utf8_slice_codeunits(address, 16, 20), "5959"
        )
        stamps = pc.binary_join_element_wise(pc.utf8_slice_codeunits(address, 5, 15), second, "")
        old = self._old(objects, stamps)
        if old.num_rows:
            spool.write_table(old)
        return table.filter(pc.invert(ours))

    def _old(self, files: pa.Table, stamps: pa.ChunkedArray) -> pa.Table:
        """The files that were begun before the cutoff; the others are counted as young."""
        # A stamp of this second may stand for any moment in it.
        last = f"{self.cutoff - timedelta(seconds=1):%Y%m%d%H%M%S}"
        by_store = pc.less_equal(files["mtime"], unix_seconds(self.cutoff))
        old = pc.if_else(pc.equal(stamps, ""), by_store, pc.less_equal(stamps, last))
        self.held.young.add(files.filter(pc.invert(old)))
        return files.filter(old)

    def _file_stamps(self, files: pa.Table, kind: str) -> pa.ChunkedArray:
        """When what wrote each metadata file began, as far as its name says; else empty."""
        pattern = {"range": _ATTEMPT, "metarange": _ATTEMPT, "mark": _RUN}.get(kind)
        if pattern is None:
            return pa.chunked_array([pa.repeat("", files.num_rows)])
        found = pc.extract_regex(files["physical_address"], pattern)
        return pc.fill_null(pc.struct_field(found, [0]), "")


def _together(listings: Iterable[Listing]) -> Iterator[pa.Table]:
    """Listings as tables of ``LISTED_SCHEMA``, small ones joined: a store may give one for each directory."""
    waiting: list[Listing] = []
    count = 0
    for listing in listings:
        waiting.append(listing)
        count += len(listing.keys)
        if count >= _TOGETHER:
            yield _table(waiting)
            waiting, count = [], 0
    if waiting:
        yield _table(waiting)


def _table(listings: list[Listing]) -> pa.Table:
    columns = [
        pa.chunked_array([pa.array(getattr(listing, name), field.type) for listing in listings], field.type)
        for name, field in zip(("keys", "sizes", "mtimes"), LISTED_SCHEMA, strict=True)
    ]
    return pa.table(columns, schema=LISTED_SCHEMA).combine_chunks()
