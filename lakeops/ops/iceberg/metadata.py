"""Reads the metadata of an Iceberg table: its files, and those that a commit of the table adds and removes.

A table at a ref is a folder. Its object ``metadata.json`` is the current metadata file. The files lie at a location of
the storage namespace that names no ref, so any engine follows the metadata.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from pydantic import ValidationError
from pyiceberg import exceptions
from pyiceberg.manifest import ManifestEntryStatus, ManifestFile, read_manifest_list
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil

from lakeops.model.errors import InvalidInput
from lakeops.model.sanitising import excerpt, one_line
from lakeops.ops.iceberg.files import MOST_METADATA, TableFileIO
from lakeops.ops.tables import TableChange

POINTER = "metadata.json"
"""The object of a table's folder that is its current metadata file."""
GC_ENABLED = "gc.enabled"
_VERSION = re.compile(r"(?:.*/)?([0-9]{1,9})-[^/]*\.metadata\.json")
_PLACES = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")
"""Properties of a table that move its files elsewhere."""


@dataclass(frozen=True)
class LoadedTable:
    """A table as it is at a ref: where its metadata file lies, and what that says."""

    location: str
    metadata: TableMetadata


def table_change(
    io: TableFileIO,
    folder: str,
    before: TableMetadata | None,
    after: TableMetadata,
    name: str,
    last: str = "",
    *,
    every: bool = False,
) -> TableChange:
    """The objects that a table's new metadata adds to its folder, and those that it removes.

    The new metadata file gets a ``name`` below the table's location, and follows the one at the address ``last``. With
    ``every`` the files that are live are added, too, and not those alone that new snapshots add.

    Raises:
        InvalidInput: the metadata names files elsewhere, or is too large.
    """
    check_metadata(io, before, after)
    old = {} if before is None else {one.snapshot_id: one for one in before.snapshots}
    now = {one.snapshot_id: one for one in after.snapshots}
    had, has = (_statistics(each) for each in (before, after))
    files: dict[str, int | None] = {path: size for path, size in has.items() if path not in had}
    known: set[str] = set()
    for snapshot in now.values():
        if snapshot.snapshot_id in old:
            continue
        if snapshot.parent_snapshot_id in old:
            known |= {one.manifest_path for one in manifests_of(io, old[snapshot.parent_snapshot_id])}
        files[snapshot.manifest_list] = None
        for manifest in manifests_of(io, snapshot):
            if manifest.manifest_path not in known:
                known.add(manifest.manifest_path)
                files[manifest.manifest_path] = manifest.manifest_length
                for entry in manifest.fetch_manifest_entry(io):
                    if every or entry.status == ManifestEntryStatus.ADDED:
                        path, size = entry.data_file.file_path, entry.data_file.file_size_in_bytes
                        # A deletion vector is told by its own size, and not that of the Puffin file around it.
                        files[path] = None if path.endswith(".puffin") else size
    gone = {one.metadata_file for one in (before.metadata_log if before else ())}
    gone -= {one.metadata_file for one in after.metadata_log} | {last}
    gone |= _unreachable(io, [one for one in old.values() if one.snapshot_id not in now], now.values())
    gone |= had.keys() - has.keys()
    root = after.location
    text = after.model_dump_json().encode()
    if len(text) > MOST_METADATA:
        raise InvalidInput(f"table {excerpt(folder[:-1])} has {len(text):,} bytes of metadata: expire snapshots")
    named = {_inside(io, url, root): size for url, size in files.items()}
    return TableChange(
        location=root,
        metadata=(name, text),
        pointer=f"{folder}{POINTER}",
        files={f"{folder}{inside}": (inside, size) for inside, size in named.items()},
        gone=[f"{folder}{io.files.key(url).removeprefix(f'{io.files.key(root)}/')}" for url in gone],
    )


def check_metadata(io: TableFileIO, before: TableMetadata | None, after: TableMetadata) -> None:
    """Refuse metadata whose files would not lie below the table's own location."""
    key = io.files.key
    supported_version(after.format_version)
    if before is not None and after.location != before.location:
        raise InvalidInput("the location of a table cannot change; create another table and insert the rows")
    if key(after.location).count("/") != 2 or (before is None and io.files.source_of(after.location)):
        raise InvalidInput(f"{excerpt(after.location)} is no location of a table; leave the location out")
    for name in _PLACES:
        if name in after.properties:
            _inside(io, f"{after.properties[name].rstrip('/')}/x", after.location)
    for name in (GC_ENABLED, "write.metadata.delete-after-commit.enabled"):
        if after.properties.get(name, "false").lower() != "false":
            raise InvalidInput(
                f"{name} must stay false: engines would delete files that other refs need; lakeops gc deletes them"
            )


def supported_version(version: object) -> int:
    """The number of a format version. Raises ``InvalidInput`` for one that pyiceberg does not write."""
    if str(version) not in {"1", "2"}:
        raise InvalidInput(
            f"format-version is 1 or 2 here, and not {excerpt(str(version))}: pyiceberg writes no other one"
        )
    return int(str(version))


def _inside(io: TableFileIO, url: str, location: str) -> str:
    """The name of a file below a table's location. Raises ``InvalidInput`` for one elsewhere."""
    key, root = io.files.key(url), io.files.key(location)
    inside = key[len(root) + 1 :]
    elsewhere = io.files.source_of(url) != io.files.source_of(location)
    if elsewhere or not key.startswith(f"{root}/") or inside in {"", POINTER}:
        raise InvalidInput(f"{excerpt(url)} does not lie below the table's location {excerpt(location)}")
    return inside


def manifests_of(io: TableFileIO, snapshot: Any) -> list[ManifestFile]:
    """The manifests of a snapshot. Raises ``InvalidInput`` where it has no list, or a file is not Avro's."""
    if not snapshot.manifest_list:
        raise InvalidInput(f"snapshot {snapshot.snapshot_id} has no manifest list: write the table in version 2")
    found: list[ManifestFile] = []
    if snapshot.manifest_list.endswith(".avro"):  # only those are checked before they are decoded
        found = list(read_manifest_list(io.new_input(snapshot.manifest_list)))
    for path in (snapshot.manifest_list, *(one.manifest_path for one in found)):
        if io.files.key(path) and not path.endswith(".avro"):
            raise InvalidInput(f"snapshot {snapshot.snapshot_id} names {excerpt(path)}, which is no .avro file")
    return found


def _unreachable(io: TableFileIO, removed: Sequence[Any], kept: Iterable[Any]) -> set[str]:
    """The files that removed snapshots name and no other one needs."""
    if not removed:
        return set()
    kept = list(kept)
    needed = {one.manifest_path: one for snapshot in kept for one in manifests_of(io, snapshot)}
    dropped = {one.manifest_path: one for snapshot in removed for one in manifests_of(io, snapshot)}
    dropped = {path: one for path, one in dropped.items() if path not in needed}
    gone = {one.manifest_list for one in removed} - {one.manifest_list for one in kept} | dropped.keys()
    files = _data_files(io, dropped.values(), live=False)
    return gone | (files - _data_files(io, needed.values(), live=True) if files else files)


def _data_files(io: TableFileIO, manifests: Iterable[ManifestFile], *, live: bool) -> set[str]:
    entries = (one for each in manifests for one in each.fetch_manifest_entry(io, discard_deleted=live))
    return {one.data_file.file_path for one in entries}


def _statistics(metadata: TableMetadata | None) -> dict[str, int]:
    found = [*metadata.statistics, *metadata.partition_statistics] if metadata else []
    return {one.statistics_path: one.file_size_in_bytes for one in found}


def file_after(last: str) -> str:
    """The name of the metadata file that follows another one, below the table's location."""
    found = _VERSION.fullmatch(last)
    return f"metadata/{int(found[1]) + 1 if found else 0:05d}-{uuid4()}.metadata.json"


def parsed(text: bytes, path: str) -> TableMetadata:
    """Parse a metadata file. Raises ``InvalidInput`` with the path."""
    try:
        return TableMetadataUtil.parse_raw(text.decode())
    except (ValidationError, ValueError, exceptions.ValidationError) as error:
        raise InvalidInput(f"{excerpt(path)} is no metadata of an Iceberg table: {one_line(error, 300)}") from None
