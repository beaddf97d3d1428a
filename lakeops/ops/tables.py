"""Tables that engines write: a directory of the namespace for each, and the commits that make its files objects.

An engine writes data and metadata below the table's location with rights of its own. A commit of the table stages the
files that it added as objects of the table's folder, with its current metadata file as ``metadata.json``. Two commits
that follow the same metadata file cannot both succeed. A file that no commit staged is garbage as any other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

import pyarrow as pa

from lakeops.catalog.records import Staged
from lakeops.model.errors import Corrupted, InvalidInput
from lakeops.model.ids import SOURCE_ETAG
from lakeops.model.records import DEFAULT_CONTENT_TYPE, Entry
from lakeops.model.sanitising import excerpt
from lakeops.ops.context import Context, begin_staging, when_moved
from lakeops.ops.read import as_table
from lakeops.ops.stage import link_rows, normalised, tombstones
from lakeops.store import layout
from lakeops.store.in_flight import in_flight
from lakeops.store.reader import read_small

_LOCATION = re.compile(layout.TABLES + r"[0-9a-v]{20}")
_ANYWHERE = re.compile(f"([a-z0-9]+://.+)/{_LOCATION.pattern}(/.+)?")
_TOGETHER = 50


@dataclass(frozen=True)
class TableChange:
    """The effect of a table's commit on its folder, or with ``moved`` and ``gone`` alone of another change.

    ``location`` is the table's, a URL. ``metadata`` is the name below it and the contents of the metadata file that
    becomes the current one, and ``pointer`` the path of the object that is the current one. ``files`` are paths of
    objects to add, each with the file's name below the location and the size that the table tells, or None. ``gone``
    are paths to remove. ``moved`` are objects that the branch shows, each with its new path.
    """

    location: str = ""
    metadata: tuple[str, bytes] = ("", b"")
    pointer: str = ""
    files: Mapping[str, tuple[str, int | None]] = field(default_factory=dict)
    gone: Sequence[str] = ()
    moved: Sequence[Entry] = ()


class TableFiles:
    """Files of the tables that engines write to one repository, by their URLs.

    A file that is asked for elsewhere than below a table's location is refused with ``InvalidInput``. Metadata in a
    replica names the source's addresses, also once it is written to. The files have the same keys here.
    """

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    def new_location(self) -> str:
        """A location that no table has."""
        return layout.absolute(self._ctx.repository.storage_namespace, f"{layout.TABLES}{self._ctx.ids.new()}")

    def key(self, url: str) -> str:
        """The key of a table's location, or of a file below one. Raises ``InvalidInput`` for any other place."""
        plain = f"file://{url[len('file:') :]}" if url.startswith("file:/") and not url.startswith("file://") else url
        key = layout.relative(self.source_of(url) or self._ctx.repository.storage_namespace, plain)
        parts = key.split("/")
        if not _LOCATION.fullmatch("/".join(parts[:3])) or not {"", ".", ".."}.isdisjoint(parts):
            raise InvalidInput(
                f"{excerpt(url)} is not where tables of repository {self._ctx.repository_id!r} lie: create the table "
                "without a location, and write its files below the one that it gets"
            )
        return key

    def source_of(self, url: str) -> str | None:
        """The storage namespace that an address in a replica names in place of the replica's own, if it does."""
        own = url.startswith(f"{self._ctx.repository.storage_namespace}/")
        # The capability is in dumps too, so a restore knows a replica. The mirror's record is in none.
        is_replica = SOURCE_ETAG in self._ctx.repository.capabilities
        found = None if own or not is_replica else _ANYWHERE.fullmatch(url)
        return found and found[1]

    def address(self, url: str) -> str:
        """The physical address of a file here. Raises ``InvalidInput`` for another place."""
        return layout.absolute(self._ctx.repository.storage_namespace, self.key(url))

    def read(self, url: str, at_most: int) -> bytes:
        """The contents of a metadata file. Raises ``InvalidInput``, ``ObjectNotFound``."""
        try:
            return read_small(self._ctx.readable, self.key(url), at_most)
        except Corrupted:
            raise InvalidInput(f"{excerpt(url)} has more than {at_most:,} bytes; expire snapshots") from None

    def open(self, url: str) -> BinaryIO:
        """A file, open for reading. Raises ``ObjectNotFound``."""
        return self._ctx.readable.open(self.key(url))

    def write(self, url: str, data: bytes | BinaryIO) -> None:
        """Write a file."""
        self._ctx.store.put(self.key(url), data)

    def size(self, url: str) -> int:
        """The size of a file in bytes. Raises ``ObjectNotFound``."""
        return self._ctx.readable.head(self.key(url)).size_bytes


def update_tables(ctx: Context, branch: str, place: str, compute: Callable[[], Iterable[TableChange]]) -> None:
    """Stage the commits of tables, all or none. They are computed again when something was staged at their place.

    Args:
        place: a path, or a folder that ends in a slash, that holds all that ``compute`` looks at and changes.
        compute: reads the tables at the branch and gives their changes. What it raises ends the call.

    Raises:
        InvalidInput: a file is elsewhere, or has another size than the table says.
        ObjectNotFound: a file is not there.
        PreconditionFailed: ``object_collected``; ``protected_branch``, ``read_only_repository``.
        Transient: ``collection_running``.
    """
    started = begin_staging(ctx, branch, flush=True)

    def attempt() -> None:
        below = place.endswith("/") or not place
        pinned = ctx.catalog.staging.pin(ctx.repository_id, branch, place, below=below)  # before the looks
        found = [rows_of(ctx, change) for change in compute()]
        if not found:
            return
        written = {key: moment for _, moments in found for key, moment in moments.items()}
        rows = pa.concat_tables(table for table, _ in found).sort_by("path")
        link_rows(ctx, branch, rows, started, pinned, written)

    when_moved(ctx)(attempt)


def rows_of(ctx: Context, change: TableChange) -> tuple[pa.Table, dict[str, int]]:
    """The staged rows of a change, and when the store says that their files were written."""
    root, files = "", {**change.files}
    if change.location:
        root, (name, contents) = TableFiles(ctx).key(change.location), change.metadata
        ctx.store.put(f"{root}/{name}", contents, if_absent=True, content_type="application/json")
        files |= dict.fromkeys((change.pointer, f"{change.pointer.rpartition('/')[0]}/{name}"), (name, len(contents)))
    keys = sorted({f"{root}/{name}" for name, _ in files.values()})
    heads = dict(zip(keys, in_flight(ctx.store.head, keys, _TOGETHER), strict=True))
    marks = {key: ctx.store.checksum(head) for key, head in heads.items()}
    found = [Staged(entry.path, entry) for entry in change.moved]
    for path, (name, told) in files.items():
        head = heads[f"{root}/{name}"]
        if told is not None and told != head.size_bytes:
            raise InvalidInput(f"{excerpt(path)} has {head.size_bytes:,} bytes, and the table says {told:,}")
        kind = "application/json" if path.endswith(".json") else DEFAULT_CONTENT_TYPE
        found.append(Staged(path, Entry(path, head.key, marks[head.key], head.size_bytes, head.mtime, kind, {})))
    rows = normalised(ctx, as_table(found))
    gone = pa.chunked_array([sorted({*change.gone} - {row.path for row in found})], pa.string())
    return pa.concat_tables([rows, tombstones(gone)]), {key: head.mtime for key, head in heads.items()}
