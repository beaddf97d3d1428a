"""Staging in bulk: many objects that exist already, whole prefixes deleted, and changes dropped again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.catalog.records import ExpectedState, Staged
from lakeops.catalog.staging import not_as_seen
from lakeops.model.arrow import METADATA_TYPE, STAGED_SCHEMA, in_one, scalar
from lakeops.model.errors import BranchMoved, InvalidInput, InvalidPath
from lakeops.model.names import check_path, check_prefix
from lakeops.model.records import DEFAULT_CONTENT_TYPE
from lakeops.model.sanitising import excerpt, one_line
from lakeops.ops.context import Context, begin_staging, check_name, when_moved
from lakeops.ops.gc.files import check_present, own_objects, safe_from_marks
from lakeops.ops.overlap import check_not_managed
from lakeops.ops.read import branch_tables
from lakeops.ranges.validation import ABSOLUTE, check_entries, relative


def stage(ctx: Context, branch: str, table: pa.Table) -> int:
    """Stage objects that exist already, without reading or copying them. Returns how many.

    Args:
        table: the columns path, physical_address (relative to the storage namespace, or a full URL), checksum,
            size_bytes and mtime (Unix seconds or a timestamp); optionally metadata (a map of strings) and content_type.

    Raises:
        InvalidInput: a column is missing, has another type, or holds values that no object has.
        InvalidPath: a path breaks the rules, or comes twice.
        ObjectNotFound: one of the objects is not in the namespace.
        PreconditionFailed: ``object_collected``: garbage collection is about to delete one of the objects.
        Transient: ``collection_running``: garbage collection is deciding about objects that are old. Try again.
    """
    started = begin_staging(ctx, branch, flush=True)
    rows = normalised(ctx, table)
    if rows.num_rows:
        when_moved(ctx)(link_rows, ctx, branch, rows, started)
    return int(rows.num_rows)


def link_rows(
    ctx: Context,
    branch: str,
    rows: pa.Table | list[Staged],
    started: datetime,
    expect: ExpectedState | None = None,
    written: Mapping[str, int] | None = None,
) -> None:
    """Stage rows of objects that exist, unless one that the namespace manages is gone or may go.

    ``written`` is when files of tables were written, by the store's clock. Raises as ``Branch.stage`` and
    ``put_staged``.
    """
    if isinstance(rows, pa.Table):
        addresses = rows["physical_address"].drop_null()
    else:
        addresses = pa.chunked_array([[row.entry.physical_address for row in rows if row.entry]], pa.string())
    objects = own_objects(ctx, addresses)
    expect = expect or ExpectedState()
    if len(objects):
        clear, unclear = safe_from_marks(ctx, objects, written)
        expect = replace(expect, marks=clear, unclear=unclear)
        check_present(ctx, objects)  # after the look into the marks
    ctx.catalog.staging.put_staged(ctx.repository_id, branch, rows, started=started, expect=expect)


def delete_prefix(ctx: Context, branch: str, prefix: str, *, pinned: ExpectedState | None = None) -> int:
    """Stage the deletion of every object under a prefix. Returns how many there were.

    Args:
        prefix: only paths that begin with it.
        pinned: the state that ``pin`` gave for the prefix. Nothing is staged when the branch shows something else now.

    Raises:
        NotAsSeen: the branch, or the changes under the prefix, are not as they were pinned.
        PreconditionFailed: ``protected_branch``, ``read_only_repository``: the branch takes no changes.
    """
    check_prefix(prefix)
    started = begin_staging(ctx, branch, flush=True)
    count = 0

    def rows() -> tuple[ExpectedState, pa.Table]:
        nonlocal count
        now, gone = branch_paths(ctx, branch, prefix)
        count = len(gone)
        ctx.progress("removing objects", 0, count)
        return now, tombstones(gone)

    if pinned is None:
        put_consistently(ctx, branch, rows, started=started)
        return count
    _, table = rows()
    try:
        ctx.catalog.staging.put_staged(ctx.repository_id, branch, table, started=started, expect=pinned)
    except BranchMoved:
        raise not_as_seen(branch) from None
    return count


def reset(
    ctx: Context,
    branch: str,
    prefix: str | None = None,
    path: str | None = None,
    *,
    pinned: ExpectedState | None = None,
) -> int:
    """Drop uncommitted changes: all, those under a prefix, or that of one path. Returns how many staged paths went.

    Args:
        prefix: only changes under this prefix.
        path: only the change of this path.
        pinned: the state that ``pin`` gave before somebody looked at the changes.

    Raises:
        NotAsSeen: the changes are not as they were pinned. Nothing was dropped.
    """
    name = _check_place(branch, prefix, path)
    ctx.stage_queue(name).flush_pending()
    count = ctx.catalog.staging.reset(ctx.repository_id, name, prefix=prefix, path=path, actor=ctx.actor, expect=pinned)
    ctx.tidy()
    return count


def pin(ctx: Context, branch: str, prefix: str | None = None, path: str | None = None) -> ExpectedState:
    """Pin the state of a branch now, so that a later call does exactly what a person was shown, or nothing.

    Args:
        prefix: only changes under it matter.
        path: only the change at it matters.
    """
    name = _check_place(branch, prefix, path)
    place = (prefix or "") if path is None else path
    return ctx.catalog.staging.pin(ctx.repository_id, name, place, below=path is None)


def _check_place(branch: str, prefix: str | None, path: str | None) -> str:
    if prefix is not None and path is not None:
        raise InvalidInput("reset takes a prefix or a path, not both")
    if path is not None:
        check_path(path)
    if prefix is not None:
        check_prefix(prefix)
    return check_name(branch)


def put_consistently(
    ctx: Context,
    branch: str,
    rows: Callable[[], tuple[ExpectedState | None, pa.Table]],
    *,
    started: datetime,
    upload: str | None = None,
) -> None:
    """Stage rows that follow from the state of the branch, and compute them again when that changes meanwhile.

    ``rows`` gives the state before the look, or None where it does not matter, and the rows.
    """

    def attempt() -> None:
        seen, table = rows()
        ctx.catalog.staging.put_staged(ctx.repository_id, branch, table, started=started, expect=seen, upload=upload)

    when_moved(ctx)(attempt)


def branch_paths(ctx: Context, branch: str, prefix: str) -> tuple[ExpectedState, pa.ChunkedArray]:
    """The branch now, and the paths that it shows under a prefix, in order."""
    # Pin before the paths are read, so that no later change is missed.
    pinned = ctx.catalog.staging.pin(ctx.repository_id, branch, prefix, below=True)
    _, tables = branch_tables(ctx, branch, prefix)
    chunks = (chunk for table in tables for chunk in table.column("path").chunks)
    return pinned, pa.chunked_array(chunks, pa.string())


def tombstones(paths: pa.ChunkedArray) -> pa.Table:
    """Staged deletions of these paths."""
    nulls = {name: pa.nulls(len(paths), STAGED_SCHEMA.field(name).type) for name in STAGED_SCHEMA.names[2:]}
    dead = pa.repeat(scalar(True, pa.bool_()), len(paths))
    return pa.table({"path": paths, "tombstone": dead, **nulls}, schema=STAGED_SCHEMA)


def normalised(ctx: Context, table: pa.Table) -> pa.Table:
    """Check a table's values and turn it into staged rows, sorted by path, without a loop over rows."""
    if not isinstance(table, pa.Table):
        raise InvalidInput(f"give a pyarrow.Table of objects, not {excerpt(table)}")
    rows = len(table)
    address = _column(table, "physical_address", pa.string())
    columns = {
        "path": _column(table, "path", pa.string()),
        "tombstone": pa.chunked_array([pa.repeat(pa.scalar(False), rows)]),
        "physical_address": address,
        "checksum": _column(table, "checksum", pa.string()),
        "size_bytes": _column(table, "size_bytes", pa.int64()),
        "mtime": _column(table, "mtime", pa.int64()),
        "content_type": _column(table, "content_type", pa.string(), pa.scalar(DEFAULT_CONTENT_TYPE)),
        "metadata": _column(table, "metadata", METADATA_TYPE, pa.scalar([], METADATA_TYPE)),
    }
    staged = pa.table(columns, schema=STAGED_SCHEMA)
    try:
        staged.validate(full=True)
    except pa.ArrowInvalid as error:
        raise InvalidInput(f"the table is damaged: {one_line(error)}") from None
    place = staged.schema.get_field_index("physical_address")
    keys = relative(ctx.repository.storage_namespace, address)
    staged = staged.set_column(place, STAGED_SCHEMA.field(place), keys)
    check_entries(staged)
    outside = keys.filter(pc.match_substring_regex(keys, ABSOLUTE))
    folders = pc.unique(pc.replace_substring_regex(outside, r"/[^/]*$", "")).to_pylist()
    if folders:
        check_not_managed(ctx.catalog, ctx.stores(), folders, ctx.repository)
        ctx.find_policy().check_folders(folders)
    ordered = staged.sort_by("path").combine_chunks()
    paths = in_one(ordered["path"])
    if rows > 1:
        again = pc.index(pc.equal(paths[1:], paths[:-1]), value=True).as_py()
        if again >= 0:
            raise InvalidPath(f"{excerpt(paths[again].as_py())} comes twice")
    return ordered


def _column(table: pa.Table, name: str, kind: pa.DataType, default: pa.Scalar | None = None) -> pa.ChunkedArray:
    """A column, cast. ``default`` stands for nulls and for all of a column that is left out, which are errors else."""
    count = table.column_names.count(name)
    if count > 1:
        raise InvalidInput(f"the table has the column {name!r} more than once")
    if not count and default is None:
        raise InvalidInput(f"the table has no column {name!r}; it needs path, physical_address, checksum, ...")
    if not count:
        return pa.chunked_array([pa.repeat(default, len(table))])
    column = table[name]
    if column.null_count and default is None:
        raise InvalidInput(f"column {name!r} holds nulls")
    if name == "mtime" and pa.types.is_timestamp(column.type):
        column = pc.floor_temporal(column, unit="second").cast(pa.timestamp("s", "UTC"))
    try:
        column = column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInput(f"column {name!r} is {column.type}, not {kind}: {error}") from None
    if not column.null_count:
        return column
    filled = pc.if_else(pc.is_valid(column), column, pa.repeat(default, len(table)))
    return filled if isinstance(filled, pa.ChunkedArray) else pa.chunked_array([filled])
