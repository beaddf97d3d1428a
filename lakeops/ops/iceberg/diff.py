"""Differences of an Iceberg table between two refs: files, rows, columns and snapshots."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyiceberg.exceptions import ResolveError
from pyiceberg.manifest import DataFile, DataFileContent, ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from lakeops.model.errors import LakeopsError
from lakeops.model.formatting import counted
from lakeops.model.sanitising import safe
from lakeops.ops.context import Context
from lakeops.ops.iceberg.files import MOST_METADATA, TableFileIO
from lakeops.ops.iceberg.metadata import POINTER, manifests_of, parsed
from lakeops.ops.read import find, read_entry
from lakeops.ops.tables import TableFiles

Files = dict[str, DataFile]


@dataclass(frozen=True)
class FileDelta:
    """The files that a table has more, and those that it has no longer, by their addresses."""

    added: Files
    removed: Files
    operations: frozenset[Operation | None]
    """What the side's snapshots did; None among them where that is not known."""

    @classmethod
    def of(cls, io: TableFileIO, base: TableMetadata | None, *sides: TableMetadata | None) -> list[FileDelta]:
        """Compare the manifests of a current snapshot with those of others. What both have is not read."""
        first, found = base and base.current_snapshot(), []
        old = _manifests(io, first)
        for side in sides:
            last = side and side.current_snapshot()
            new = _manifests(io, last)
            had, has = (
                {
                    entry.data_file.file_path: entry
                    for path, manifest in mine.items()
                    if path not in other
                    for entry in manifest.fetch_manifest_entry(io)
                }
                for mine, other in ((old, new), (new, old))
            )
            added = {path: entry.data_file for path, entry in has.items() if path not in had}
            removed = {path: entry.data_file for path, entry in had.items() if path not in has}
            at, until, operations = last and last.snapshot_id, first and first.snapshot_id, set[Operation | None]()
            known, number = {one.snapshot_id: one for one in side.snapshots} if side else {}, 0
            while at != until and at in known:
                one = known.pop(at)  # metadata may make a snapshot its own ancestor
                operations.add(one.summary.operation if one.summary else None)
                at, number = one.parent_snapshot_id, one.sequence_number or 0
            if side and (at != until or (until is None and number > 1)):  # some expired; a file names what added it
                adding = [side.snapshot_by_id(has[path].snapshot_id) for path in added]
                only_appended = all(one and one.summary and one.summary.operation == Operation.APPEND for one in adding)
                operations |= set() if only_appended and not removed else {None}
            found.append(cls(added, removed, frozenset(operations)))
        return found

    @property
    def keeps_rows(self) -> bool:
        """Whether no row was deleted or changed, or added by a writer that looked for it."""
        return self.operations <= {Operation.APPEND, Operation.REPLACE}

    @property
    def deletes(self) -> bool:
        """Whether files that delete rows of others came or went."""
        files = (*self.added.values(), *self.removed.values())
        return any(file.content != DataFileContent.DATA for file in files)


def _manifests(io: TableFileIO, snapshot: Snapshot | None) -> dict[str, ManifestFile]:
    return {one.manifest_path: one for one in manifests_of(io, snapshot)} if snapshot else {}


@dataclass(frozen=True)
class TableDiff:
    """The differences of a table. ``rows`` are those of files that came and went: a rewritten row is in both numbers.

    ``columns`` are the schemas before and after: names with types. ``snapshots`` counts the new ones.
    """

    table: str
    rows: tuple[int, int]
    deletes: bool
    snapshots: int
    columns: tuple[dict[str, str], dict[str, str]]

    def __str__(self) -> str:
        old, new = self.columns
        added, removed = (f"{number:,} {name}" for number, name in zip(self.rows, ("added", "deleted"), strict=True))
        parts = [f"rows: {added}, {removed}" + (", more by delete files" if self.deletes else "")]
        parts += [f"column {name} {kind} added" for name, kind in new.items() if name not in old]
        parts += [f"column {name} {kind} removed" for name, kind in old.items() if name not in new]
        changed = [name for name in old if new.get(name, old[name]) != old[name]]
        parts += [f"column {name} was {old[name]}, is {new[name]}" for name in changed]
        return safe(f"table {self.table}: {'; '.join([*parts, counted(self.snapshots, 'new snapshot')])}")


def table_diffs(ctx: Context, left: str, right: str, paths: Iterable[str]) -> list[TableDiff]:
    """The changes of the tables whose current metadata files are among some paths that differ between two refs.

    A path that is no table's is left out, and so is a table that cannot be read.
    """
    found, io = [], TableFileIO(TableFiles(ctx))
    for path in paths:
        try:
            old, new = (
                None if entry is None or entry.size_bytes > MOST_METADATA else parsed(read_entry(ctx, entry), path)
                for entry in (find(ctx, ref, path) for ref in (left, right))
            )
            if old is None and new is None:
                continue
            (delta,) = FileDelta.of(io, old, new)
        except (LakeopsError, FileNotFoundError, ResolveError):
            continue
        sides = (delta.added, delta.removed)
        added, removed = (sum(one.record_count for one in side.values() if not one.content) for side in sides)
        known = {one.snapshot_id for one in old.snapshots} if old else set()
        fresh = sum(one.snapshot_id not in known for one in new.snapshots) if new else 0
        before, after = (
            {one.name: str(one.field_type) for one in each.schema().fields} if each else {} for each in (old, new)
        )
        table = path.removesuffix(f"/{POINTER}")
        found.append(TableDiff(table, (added, removed), delta.deletes, fresh, (before, after)))
    return found
