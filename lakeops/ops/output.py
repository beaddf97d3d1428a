"""Managed output: a fresh directory that any engine writes to, whose files become objects in one step.

An output is opened, its files are linked under a prefix, or it is abandoned. It is plain data in between, so a driver
may open it in one process and link it in another.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.catalog.records import ExpectedState, Staged
from lakeops.model.arrow import STAGED_SCHEMA
from lakeops.model.errors import InvalidInput, LakeopsError, ObjectNotFound, PathTaken
from lakeops.model.names import as_folder, check_path
from lakeops.model.records import DEFAULT_CONTENT_TYPE, Entry, check_key
from lakeops.model.sanitising import excerpt
from lakeops.ops.context import Context, begin_staging
from lakeops.ops.files import check_new_path
from lakeops.ops.read import as_table, branch_tables
from lakeops.ops.stage import branch_paths, put_consistently, tombstones
from lakeops.ranges.validation import check_entries
from lakeops.store import layout
from lakeops.store.base import ObjectStore, StoredObject

OutputMode = Literal["replace", "append"]
OnCollision = Literal["refuse", "rename", "overwrite"]

SHOWN_PATHS = 3
"""Colliding paths that a message names."""


class OutputUrl(str):
    """The directory's URL, a plain string. ``file`` gives the URL of one file in it, ready to be written."""

    __slots__ = ("_prepare",)
    _prepare: Callable[[str], None]

    @classmethod
    def of(cls, url: str, prepare: Callable[[str], None]) -> OutputUrl:
        """The URL of a directory. ``prepare`` makes it and a folder in it, where they are not there yet."""
        made = cls(url)
        made._prepare = prepare
        return made

    def file(self, name: str) -> str:
        """The URL of a file in the directory. The folder that the file goes to exists from then on."""
        self._prepare(name.rpartition("/")[0])
        return f"{self}/{name}"


@dataclass(frozen=True, slots=True)
class Output:
    """A directory that is open for writing, as plain data.

    Its files will be staged on ``branch`` below ``folder``. ``address`` is where it lies in the namespace, with a slash
    at its end, and ``url`` the same as a full URL without one. It has been open since ``started``, by the catalog's
    clock. ``upload`` is the id that keeps garbage collection away. The addresses of all outputs under one idempotency
    key end in ``mark``.
    """

    branch: str
    folder: str
    address: str
    url: str
    started: datetime
    upload: str
    store: ObjectStore
    mark: str = ""


@contextmanager
def output(
    ctx: Context,
    branch: str,
    prefix: str,
    mode: OutputMode = "replace",
    on_collision: OnCollision = "refuse",
    *,
    idempotency_key: str | None = None,
    allow_empty: bool = False,
) -> Iterator[OutputUrl]:
    """A fresh directory for any engine to write to. At the end its files are staged under ``prefix``, all at once.

    After an exception nothing is staged.

    Args:
        prefix: the folder that the files become objects of.
        mode: ``replace`` removes the objects under the prefix, ``append`` adds to them.
        on_collision: how ``append`` treats a file whose path is an object already, with other contents. ``refuse``
            raises ``PathTaken`` and stages nothing, ``rename`` gives the file a name of its own, ``overwrite`` replaces
            the object.
        idempotency_key: files that ``append`` adds under a key take the place of those that an earlier call under the
            key has added, whatever their names. So a task that runs again adds its rows once.
        allow_empty: let ``replace`` empty the prefix when no file was written. Without it, that is an error.

    Raises:
        ObjectNotFound: no file was written, and ``allow_empty`` is not set.

    Yields:
        The directory's URL, without a trailing slash. It exists, except where a Spark session is active: Spark makes
        its own directories and refuses to write to one that is there.
    """
    opened = open_output(ctx, branch, prefix, mode, on_collision, idempotency_key=idempotency_key)
    try:
        if not _spark_is_active():
            ctx.store.make_directory(opened.address)
        yield OutputUrl.of(opened.url, lambda folder: ctx.store.make_directory(opened.address + folder))
        link_output(ctx, opened, mode, on_collision, allow_empty=allow_empty)
    except BaseException:
        abandon_output(ctx, opened)
        raise


def open_output(
    ctx: Context,
    branch: str,
    prefix: str,
    mode: OutputMode = "replace",
    on_collision: OnCollision = "refuse",
    *,
    idempotency_key: str | None = None,
) -> Output:
    """A fresh directory, to be linked or abandoned later. Raises as staging does, before anything is written."""
    if mode not in ("replace", "append"):
        raise InvalidInput(f"mode {excerpt(mode)} is not one of 'replace' and 'append'")
    if on_collision not in ("refuse", "rename", "overwrite"):
        raise InvalidInput(f"on_collision {excerpt(on_collision)} is not one of 'refuse', 'rename' and 'overwrite'")
    folder = as_folder(prefix)
    named = begin_staging(ctx, branch)
    ctx.store.make_directory(layout.DATA)  # before an engine makes directories where a disk is not mounted
    upload = ctx.ids.new()
    mark = ""  # the last folder of the address, the same for all outputs under a key
    if idempotency_key is not None:
        mark = f"key-{sha256(check_key(idempotency_key).encode()).hexdigest()[:32]}/"
    address = f"{layout.object_key(named, ctx.ids)}/{mark}"
    started = min(named, ctx.catalog.staging.begin_upload(ctx.repository_id, branch, address, upload=upload))
    url = layout.absolute(ctx.repository.storage_namespace, address.rstrip("/"))
    return Output(branch, folder, address, url, started, upload, ctx.store, mark)


def abandon_output(ctx: Context, opened: Output) -> None:
    """Let garbage collection have the directory, which waits longer where the catalog does not answer now."""
    with suppress(LakeopsError):
        ctx.catalog.staging.end_upload(ctx.repository_id, opened.upload)


def link_output(
    ctx: Context,
    opened: Output,
    mode: OutputMode = "replace",
    on_collision: OnCollision = "refuse",
    *,
    names: Collection[str] | None = None,
    empty: bool = False,
    allow_empty: bool = False,
) -> int:
    """Stage the files of a directory under its prefix. Returns how many.

    Args:
        mode: as for ``output``.
        on_collision: as for ``output``.
        names: the files that count, relative to the directory; all when None. Others are not staged.
        empty: refuse when there are objects under the prefix by now.
        allow_empty: as for ``output``. An empty ``names`` says so as well.

    Raises:
        InvalidInput: a file was written beside the directory.
        PathTaken: ``append`` met an object of the same path and was not told what to do, or ``empty`` met any.
        ObjectNotFound: one of ``names`` is not there, or ``replace`` found no file.
    """
    files = _files(ctx, opened, names)
    # An engine that wrote nothing, or somewhere else, is far more often a mistake than a table without rows.
    if mode == "replace" and not files.num_rows and names is None and not allow_empty:
        raise ObjectNotFound(
            f"there is no file below {opened.url}, so replacing {excerpt(opened.folder)} would remove all "
            "objects in it; nothing was staged. Write the files below the URL, or say allow_empty=True if that is meant"
        )
    ctx.stage_queue(opened.branch).flush_pending()

    def rows() -> tuple[ExpectedState | None, pa.Table]:
        if mode == "append" and on_collision == "overwrite" and not opened.mark:
            return None, files
        if mode == "append":
            paths = () if opened.mark else files["path"].to_pylist()  # others may append beside them
            pinned = ctx.catalog.staging.pin(ctx.repository_id, opened.branch, opened.folder, below=True, paths=paths)
            there = _objects_beside(ctx, opened, files)  # after that
            earlier = _under_key(opened, there)
            others = there.filter(pc.invert(earlier))
            named = files if on_collision == "overwrite" else _settle_collisions(opened, files, others, on_collision)
            return pinned, _in_place_of(there.filter(earlier)["path"], named)
        pinned, before = branch_paths(ctx, opened.branch, opened.folder)
        if empty and len(before):
            where = f"lakefs://{ctx.repository_id}/{opened.branch}/{opened.folder}"
            raise PathTaken(f"another writer put objects under {where!r} meanwhile; nothing was staged")
        return pinned, _in_place_of(before, files)

    put_consistently(ctx, opened.branch, rows, started=opened.started, upload=opened.upload)
    return int(files.num_rows)


_SAME = ["path", "checksum", "size_bytes"]


def _under_key(opened: Output, objects: pa.Table) -> pa.ChunkedArray:
    """For each object whether another output under the key of this one has added it."""
    if not opened.mark:
        return pa.chunked_array([pa.repeat(pa.scalar(False), len(objects))])
    address, place = objects["physical_address"], f"{layout.OBJECT_NAME.removesuffix('(/|$)')}/{opened.mark}"
    return pc.and_not(pc.match_substring_regex(address, place), pc.starts_with(address, opened.address))


def _objects_beside(ctx: Context, opened: Output, files: pa.Table) -> pa.Table:
    """The objects of the folder that have the path of a new file, or were added under its key. Stored addresses."""
    _, shown = branch_tables(ctx, opened.branch, opened.folder)
    wanted = [*_SAME, "physical_address"]
    schema = pa.schema([STAGED_SCHEMA.field(name).with_nullable(True) for name in wanted])
    tables = (table.select(wanted).cast(schema) for table in shown)
    kept = (
        table.filter(pc.or_(pc.is_in(table["path"], value_set=files["path"]), _under_key(opened, table)))
        for table in tables
    )
    return pa.concat_tables([schema.empty_table(), *kept])


def _in_place_of(paths: pa.ChunkedArray, files: pa.Table) -> pa.Table:
    """Rows that stage files, and the deletion of the objects at those of the paths that no file has."""
    gone = paths.filter(pc.invert(pc.is_in(paths, value_set=files.column("path"))))
    return pa.concat_tables([files, tombstones(gone)]).sort_by("path")


def _settle_collisions(opened: Output, files: pa.Table, there: pa.Table, on_collision: OnCollision) -> pa.Table:
    """The files, under names of their own where the path shows an object with other contents. Raises ``PathTaken``."""
    ours = {row["path"]: row for row in files.select(_SAME).to_pylist()}
    taken = [row["path"] for row in there.select(_SAME).to_pylist() if ours[row["path"]] != row]
    if taken and on_collision != "rename":
        names = ", ".join(map(excerpt, taken[:SHOWN_PATHS])) + (", ..." if len(taken) > SHOWN_PATHS else "")
        raise PathTaken(
            f"{len(taken)} of {files.num_rows} new files have the path of an object of branch {opened.branch!r}: "
            f"{names}; nothing was staged. Write other names, or say on_collision='rename' or 'overwrite'",
            taken,
        )
    return _renamed(files, set(taken), opened.upload)


def _renamed(files: pa.Table, taken: set[str], mark: str) -> pa.Table:
    """The files, those whose path is taken under a name of their own: ``part-0-<mark>.parquet``."""

    def fresh(path: str) -> str:
        folder, slash, name = path.rpartition("/")
        stem, dot, rest = name.partition(".")
        return check_path(f"{folder}{slash}{stem}-{mark}{dot}{rest}")

    paths = [fresh(path) if path in taken else path for path in files["path"].to_pylist()]
    place = files.schema.get_field_index("path")
    return files.set_column(place, files.schema.field(place), pa.array(paths, pa.string())).sort_by("path")


def _spark_is_active() -> bool:
    """Tell whether this process has a Spark session, classic or Connect. Imports nothing to find out.

    The Spark engine's own session does not count: it writes no tables, and PySpark does not show it.
    """
    modules = (sys.modules.get(name) for name in ("pyspark.sql.session", "pyspark.sql.connect.session"))
    return any(module is not None and module.SparkSession.getActiveSession() is not None for module in modules)


def _files(ctx: Context, opened: Output, names: Collection[str] | None) -> pa.Table:
    folder, address = opened.folder, opened.address
    found = list(ctx.store.list(address.rstrip("/")))
    _check_inside(opened, (item.key for item in found))
    if names is None and not ctx.store.remote:  # on a disk a listing leaves out what cannot be an object
        scan = ctx.store.scan(under=address, moving=True)
        found = [item for one in scan for item in map(StoredObject, one.keys, one.sizes, one.mtimes)]
    items = [item for item in found if item.key.startswith(address) and not _scratch(item, address)]
    if names is not None:
        items = [item for item in items if item.key[len(address) :] in names]
        missing = {*names} - {item.key[len(address) :] for item in items}
        if missing:
            raise ObjectNotFound(f"{opened.url} lacks {excerpt(min(missing))}, which a task said that it wrote")
    ctx.store.sync(item.key for item in items)
    rows = []
    for item in items:
        path = check_new_path(folder + item.key[len(address) :])  # Arrow cannot hold half of a character
        kind = item.content_type or DEFAULT_CONTENT_TYPE
        entry = Entry(path, item.key, ctx.store.checksum(item), item.size_bytes, item.mtime, kind, {})
        rows.append(Staged(path, entry))
    table = as_table(rows)
    check_entries(table)
    return table


def _check_inside(opened: Output, keys: Iterable[str]) -> None:
    """Refuse files beside the directory: somebody left out the slash, and would lose them. Raises ``InvalidInput``."""
    for key in keys:
        # Some connectors of Hadoop mark a directory by an object beside it.
        if not key.startswith(opened.address) and not key.endswith("_$folder$"):
            name = key[len(opened.address) - 1 :]
            raise InvalidInput(
                f"{excerpt(name)} was written beside the directory of the output and not into it: write to "
                "url.file(NAME), or put a slash between the URL and the name; nothing was staged"
            )


def _scratch(item: StoredObject, address: str) -> bool:
    """Tell whether a file is an engine's own bookkeeping: unfinished output, a local checksum, a mark of a folder."""
    *folders, name = item.key.removeprefix(address).split("/")
    marker = not item.size_bytes and (not name or name.endswith("_$folder$"))
    return marker or "_temporary" in folders or (name.startswith(".") and name.endswith(".crc"))
