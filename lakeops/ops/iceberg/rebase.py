"""Tables that both sides of a merge changed: the source's change is made again on the destination's table.

It follows Iceberg's rules for writers of one table. An append follows any change. Files that a compaction replaces have
to be live still, with no new deletes. Any other change follows compactions of other files alone. The rest stays a
conflict.
"""

from __future__ import annotations

from dataclasses import replace
from os.path import commonprefix
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import ResolveError, ValidationException
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import update_table_metadata

from lakeops.model.arrow import RANGE_SCHEMA, STAGED_SCHEMA
from lakeops.model.errors import FileMissing, InvalidInput
from lakeops.model.records import Entry, Summary
from lakeops.ops.ancestor import Ancestor
from lakeops.ops.context import Context
from lakeops.ops.iceberg.diff import FileDelta
from lakeops.ops.iceberg.files import MOST_METADATA, TableFileIO
from lakeops.ops.iceberg.metadata import GC_ENABLED, POINTER, file_after, parsed, supported_version, table_change
from lakeops.ops.read import read_entry
from lakeops.ops.stage import tombstones
from lakeops.ops.tables import TableChange, TableFiles, rows_of
from lakeops.ranges.diff import diff_batches
from lakeops.ranges.merge import MergePlan
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.read import entries
from lakeops.store import layout

_STRUCTURE = (
    *("format_version", "schemas", "current_schema_id", "last_column_id", "partition_specs", "default_spec_id"),
    *("last_partition_id", "sort_orders", "default_sort_order_id"),
)
"""What describes the rows of a table. Only one side may have changed any of it."""


_Changed = dict[str, list[Entry | None]]


class NotRebased(Exception):
    """Iceberg's rules do not let a source's change follow that of the destination. The message says why."""


_NOT_REBASED = (NotRebased, InvalidInput, FileMissing, FileNotFoundError, ResolveError, ValidationException, ValueError)


def rebase(
    ctx: Context, base: Ancestor, source: Metarange, dest: Metarange, plan: MergePlan, *, publish: bool
) -> tuple[MergePlan, list[str]]:
    """Settle the conflicts of a merge that are tables, as far as their changes can follow one another.

    With ``publish`` the metadata that the plan refers to is written. Returns the plan with the conflicts that are left,
    and for each table among them why it is one.
    """
    tables: dict[str, list[Entry]] = {}
    for path in plan.conflicts:
        if path.rpartition("/")[2] == POINTER:
            sides = base.reader.stat(base.metarange, path), ctx.reader.stat(source, path), ctx.reader.stat(dest, path)
            if any(one and one.physical_address.startswith(layout.TABLES) for one in sides):
                tables[path.removesuffix(POINTER)] = [one for one in sides if one]
    # What the source changed below each folder, as it was and as it is, by path.
    changed: dict[str, _Changed] = {folder: {} for folder in tables}
    columns, prefix = (RANGE_SCHEMA.names, RANGE_SCHEMA.names), commonprefix([*tables])  # noqa: RUF071 - of texts
    batches = diff_batches(base.reader, base.metarange, source, columns=columns, prefix=prefix) if tables else ()
    for batch in batches:
        for side, rows in enumerate(batch.rows):
            for folder, inside in changed.items():
                for entry in entries(rows.filter(pc.starts_with(rows.column("path"), folder))):
                    inside.setdefault(entry.path, [None, None])[side] = entry
    reasons = []
    for folder, pointers in tables.items():
        try:
            if len(pointers) < 3:
                raise NotRebased("one side created, dropped or renamed it")
            table = _RebasedTable(ctx, folder, pointers)
            plan = _with_table(ctx, changed[folder], dest, plan, table, publish=publish)
        except _NOT_REBASED as error:
            reasons.append(f"table {folder[:-1]}: {error}")
    return plan, sorted(reasons)


class _RebasedTable:
    """A table as three commits have it, with what the source changed made again on the destination's.

    ``pointers`` are the table's current metadata files at the merge base, the source and the destination.
    """

    def __init__(self, ctx: Context, folder: str, pointers: list[Entry]) -> None:
        self.folder = folder
        self.files = _Draft(ctx)
        self._io = TableFileIO(self.files)
        for entry in pointers:
            if not entry.physical_address:  # the merge of several bases left it open
                raise NotRebased("both sides merged it across each other")
            if entry.size_bytes > MOST_METADATA:
                raise NotRebased(f"its metadata has {entry.size_bytes:,} bytes")
        self._base, self._source, self._dest = (parsed(read_entry(ctx, one), one.path) for one in pointers)
        self._at = layout.absolute(ctx.repository.storage_namespace, pointers[2].physical_address)
        self._theirs, self._ours = FileDelta.of(self._io, self._base, self._source, self._dest)
        base, source, dest = (
            {entry.physical_address, *(self.files.key(one.metadata_file) for one in told.metadata_log)}
            | {str(one.snapshot_id) for one in told.snapshots}
            for entry, told in zip(pointers, (self._base, self._source, self._dest), strict=True)
        )
        self._took_the_same = bool(source & dest - base)  # a rebased merge makes a metadata file and a snapshot anew
        # Both sides have what an earlier merge brought.
        self._added = {path: file for path, file in self._theirs.added.items() if path not in self._ours.added}
        self.added = set(map(self.files.key, self._added))  # their keys
        self.root = f"{self.files.key(self._dest.location)}/"
        self._check()

    def _check(self) -> None:
        """Raise ``NotRebased`` where the source's change cannot follow the destination's."""
        theirs, ours = self._theirs, self._ours
        supported_version(max(one.format_version for one in (self._base, self._source, self._dest)))
        if len({(one.table_uuid, one.location) for one in (self._base, self._source, self._dest)}) > 1:
            raise NotRebased("one side dropped it and created it again")
        if theirs.deletes:
            raise NotRebased("the source changed files that delete rows of others")
        if theirs.removed.keys() & ours.removed.keys():
            raise NotRebased("both sides replaced or deleted the same files")
        if theirs.removed and ours.deletes:
            raise NotRebased("the destination deleted rows that may lie in files which the source replaced or deleted")
        if self._took_the_same and not theirs.operations | ours.operations <= {Operation.APPEND}:
            raise NotRebased("both sides took the same commits, by a squashed merge or a cherry-pick, and changed more")
        changed = bool(ours.added or ours.removed) and not ours.operations <= {Operation.REPLACE}
        if not theirs.keeps_rows and changed:
            did = "expired snapshots that changed" if None in theirs.operations else "deleted, changed or merged"
            raise NotRebased(f"the source {did} rows, and the destination added or changed some")

    def change(self) -> TableChange:
        """The commit of the destination's table that does what the source did. Its manifests are drafts."""
        merged = self._metadata()
        if any(file.spec_id != merged.default_spec_id for file in self._added.values()):
            raise NotRebased("the source added files under another partitioning")
        transaction = _Uncommitted(Table((self.folder,), merged, self._at, self._io, NoopCatalog("merge")))
        if self._added or self._theirs.removed:
            update = transaction.update_snapshot({"source-snapshot-id": str(self._source.current_snapshot_id)})
            producer: Any = update.overwrite() if self._theirs.removed else update.fast_append()
            for file in self._added.values():
                producer.append_data_file(file)
            for file in self._theirs.removed.values():
                producer.delete_data_file(file)
            producer.commit()
        else:
            transaction.set_properties({GC_ENABLED: "false", **merged.properties})  # none would be no commit
        after = transaction.after(self._at)
        made = after.current_snapshot()
        if self._theirs.removed and self._theirs.keeps_rows and made is not None and made.summary is not None:
            # pyiceberg has no writer of this operation.
            summary = made.summary.model_copy(update={"operation": Operation.REPLACE})
            made = made.model_copy(update={"summary": summary})
            after = after.model_copy(update={"snapshots": [*after.snapshots[:-1], made]})
        return table_change(self._io, self.folder, self._dest, after, file_after(self._at), self._at)

    def _metadata(self) -> TableMetadata:
        """The destination's metadata with the source's changes of schema, partitioning, order and properties."""
        sides = (self._base, self._source, self._dest)
        base, source, dest = ({name: getattr(one, name) for name in _STRUCTURE} for one in sides)
        if base not in (source, dest) and source != dest:
            raise NotRebased("both sides changed its schema, partitioning or order")
        if self._base.format_version != self._source.format_version:
            raise NotRebased("the source changed its format version")
        pairs = [one.properties for one in sides]
        refs = [{name: ref for name, ref in one.refs.items() if name != "main"} for one in sides[:2]]
        if refs[0] != refs[1]:
            raise NotRebased("the source changed branches or tags within the table")
        properties = dict(pairs[2])
        for name in pairs[0].keys() | pairs[1].keys():
            old, new, own = (each.get(name) for each in pairs)
            if old not in (new, own) and new != own:
                raise NotRebased(f"both sides changed its property {name}")
            if new != old and new is None:
                properties.pop(name, None)
            elif new != old:
                properties[name] = new
        structure = dest if source == base else source
        return self._dest.model_copy(update={**structure, "properties": properties})


class _Uncommitted(Transaction):  # type: ignore[misc] # pyiceberg's classes are not typed here
    """A transaction of one change, which no catalog gets."""

    @property
    def table_metadata(self) -> TableMetadata:
        return self._table.metadata  # pyiceberg copies it each time, for the changes before this one

    def after(self, location: str) -> TableMetadata:
        """The metadata that follows the one at a location."""
        return update_table_metadata(self._table.metadata, self._updates, metadata_location=location)


class _Draft(TableFiles):
    """The files of tables, with those that were written now in memory."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        self._drafts: dict[str, bytes] = {}

    def read(self, url: str, at_most: int) -> bytes:
        return self._drafts[url] if url in self._drafts else super().read(url, at_most)

    def size(self, url: str) -> int:
        return len(self._drafts[url]) if url in self._drafts else super().size(url)

    def write(self, url: str, data: bytes | BinaryIO) -> None:
        self._drafts[url] = data if isinstance(data, bytes) else data.read()

    def publish(self) -> None:
        """Write them to the store."""
        for url, data in self._drafts.items():
            super().write(url, data)


def _with_table(
    ctx: Context, touched: _Changed, dest: Metarange, plan: MergePlan, table: _RebasedTable, *, publish: bool
) -> MergePlan:
    """The plan with one table as ``table`` makes it: the destination's files, what its change adds, and no others."""
    change = table.change()
    # Other objects in the folder are none of the table's.
    touched = {
        path: pair
        for path, pair in touched.items()
        if any(one and one.physical_address.startswith(table.root) for one in pair)
    }
    named = {*change.files, change.pointer, f"{table.folder}{change.metadata[0]}"}
    before = {path: ctx.reader.stat(dest, path) for path in {*touched, *change.gone, *named}}
    known = {path: new for path, (_, new) in touched.items() if path in change.files}
    if any(before[path] for path, new in known.items() if new and new.physical_address in table.added):
        raise NotRebased("the destination removed files that the source's change would bring back")
    after = {path: None if path in change.gone else entry for path, entry in before.items()}
    after |= {path: before[path] or _NEW for path in named} | known | {change.pointer: _NEW}
    counts = [plan.summary.added, plan.summary.removed, plan.summary.changed]
    for path, (old, new) in touched.items():
        if path not in plan.conflicts and _same(before[path], old):
            counts[_kind(old, new)] -= 1
    for path, entry in before.items():
        if not _same(entry, after[path]):
            counts[_kind(entry, after[path])] += 1
    kept = [
        {**entry.to_json(), "tombstone": False, "metadata": [*entry.metadata.items()]}
        for entry in after.values()
        if entry and entry is not _NEW
    ]
    gone = pa.chunked_array([[path for path in after if not after[path]]], pa.string())
    rows = [pa.Table.from_pylist(kept, STAGED_SCHEMA), tombstones(gone)]
    if publish:
        table.files.publish()
        made = {path: file for path, file in change.files.items() if after[path] is _NEW}
        rows.append(rows_of(ctx, replace(change, files=made, gone=()))[0])
    rest = plan.changes.filter(pc.invert(pc.is_in(plan.changes.column("path"), pa.array(before, pa.string()))))
    return replace(
        plan,
        changes=pa.concat_tables([rest, *rows]).sort_by("path"),
        conflicts=[path for path in plan.conflicts if path not in before],
        # The changes put back what whole ranges of the source brought, so a list of both would not be the difference.
        exchanged=plan.exchanged if plan.onto.id == dest.id else None,
        summary=Summary(*counts),
    )


_NEW = Entry("", "", "", -1, 0)
"""Stands for a file whose checksum is not known yet."""


def _kind(old: Entry | None, new: Entry | None) -> int:
    """The position of a change's kind in a summary."""
    return 0 if old is None else 1 if new is None else 2


def _same(one: Entry | None, other: Entry | None) -> bool:
    return (one and one.identity) == (other and other.identity)
