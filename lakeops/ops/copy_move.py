"""Copying, moving and describing objects of a branch: metadata alone, without reading or copying their contents.

Two paths then share one physical object. Garbage collection keeps it as long as one of them needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.catalog.records import ExpectedState, Staged
from lakeops.model.errors import InvalidInput, ObjectNotFound
from lakeops.model.ids import check_content_type, check_metadata
from lakeops.model.names import as_folder, check_path
from lakeops.model.records import Entry
from lakeops.ops.context import Context, begin_staging, when_moved
from lakeops.ops.files import check_new_path, clone_state_among
from lakeops.ops.put import require_absent, require_seen
from lakeops.ops.read import as_table, entries, find, require_folder, stat
from lakeops.ops.stage import link_rows, normalised, tombstones
from lakeops.store import layout


def copy(
    ctx: Context,
    branch: str,
    source: str,
    destination: str,
    *,
    ref: str | None = None,
    recursive: bool = False,
    if_absent: bool = False,
) -> int:
    """Stage an object, or a folder of objects, under other paths too. Nothing is copied. Returns how many.

    Args:
        source: the object's path; with ``recursive`` a folder.
        destination: the path to stage it under; with ``recursive`` a folder. What is there is replaced.
        ref: where the source is: any ref of the repository. The branch itself when left out.
        recursive: copy every object in the folder.
        if_absent: replace nothing, as with ``put``. For one object alone.

    Raises:
        ObjectNotFound: there is nothing to copy.
        PathTaken: the branch shows an object at the path, and ``if_absent`` was asked for. Nothing was staged.
        InvalidPath, InvalidInput: a new path breaks the rules, or source and destination are the same.
        PreconditionFailed: ``protected_branch``, ``read_only_repository``: the branch takes no changes.
    """
    if if_absent and recursive:
        raise InvalidInput("if_absent is for one object; leave out recursive")
    ref = branch if ref is None else ref
    return _copy_or_move(ctx, branch, source, destination, ref, recursive=recursive, if_absent=if_absent)


def move(ctx: Context, branch: str, source: str, destination: str, *, recursive: bool = False) -> int:
    """Stage an object, or a folder of objects, under other paths, and its deletion at the old ones; all at once.

    Nothing is copied. Returns how many. Arguments and errors are those of ``copy``.
    """
    return _copy_or_move(ctx, branch, source, destination, branch, recursive=recursive, moves=True)


def _copy_or_move(
    ctx: Context,
    branch: str,
    source: str,
    destination: str,
    ref: str,
    *,
    recursive: bool,
    moves: bool = False,
    if_absent: bool = False,
) -> int:
    old = as_folder(source) if recursive else check_path(source)
    new = as_folder(destination) if recursive else check_new_path(destination)
    if old == new and ref == branch:
        raise InvalidInput(f"source and destination are both {old!r}")
    started = begin_staging(ctx, branch, flush=True)

    def attempt() -> int:
        pinned = None
        if moves or if_absent:  # before the looks: what changes later is noticed below
            place = old if moves else new
            pinned = ctx.catalog.staging.pin(ctx.repository_id, branch, place, below=recursive)
        if if_absent:
            require_absent(ctx, branch, new)
        found = entries(ctx, ref, old).read_all() if recursive else as_table([Staged(old, stat(ctx, ref, old))])
        if not found.num_rows:
            require_folder(ctx, ref, old)
            raise ObjectNotFound(f"there is nothing under {old!r} at {ref!r} of repository {ctx.repository_id!r}")
        ctx.progress("linking objects", 0, found.num_rows)
        paths = found.column("path")
        there = pc.binary_join_element_wise(new, pc.utf8_slice_codeunits(paths, len(old)), "")
        for path in clone_state_among(there):
            check_new_path(path)
        rows = normalised(ctx, found.set_column(found.schema.get_field_index("path"), "path", there))
        if moves:
            gone = paths.filter(pc.invert(pc.is_in(paths, value_set=there)))
            rows = pa.concat_tables([rows, tombstones(gone)]).sort_by("path")
        link_rows(ctx, branch, rows, started, pinned)
        return int(found.num_rows)

    return when_moved(ctx)(attempt)


def update_metadata(
    ctx: Context,
    branch: str,
    path: str,
    metadata: Mapping[str, str | None] | None = None,
    *,
    content_type: str | None = None,
) -> Entry:
    """Stage an object with other user metadata or another content type. Its contents stay as they are.

    Args:
        metadata: pairs to set. A pair whose value is None is removed. Other pairs stay.
        content_type: the new content type.

    Raises:
        ObjectNotFound: there is no such object.
        InvalidInput: the metadata breaks a rule, or nothing is asked for.
    """
    check_path(path)
    if not metadata and content_type is None:
        raise InvalidInput("say which metadata or content type to set")
    if content_type is not None:
        check_content_type(content_type)
    given = dict(metadata) if isinstance(metadata, Mapping) else check_metadata(metadata)
    started = begin_staging(ctx, branch, flush=True)

    def attempt() -> Entry:
        pinned = ctx.catalog.staging.pin(ctx.repository_id, branch, path, below=False)  # before the look
        entry = stat(ctx, branch, path)
        pairs = {**entry.metadata, **given}
        kept = check_metadata({key: text for key, text in pairs.items() if text is not None})
        changed = replace(entry, metadata=kept, content_type=content_type or entry.content_type)
        _link_entry(ctx, branch, changed, started, pinned)
        return changed

    return when_moved(ctx)(attempt)


def link(
    ctx: Context,
    branch: str,
    entry: Entry,
    path: str,
    *,
    metadata: Mapping[str, str] | None = None,
    content_type: str | None = None,
    if_absent: bool = False,
    in_place: bool = False,
) -> Entry:
    """Stage an object that a ref has shown under a path, as it was shown. Nothing is copied. Returns the new entry.

    Args:
        entry: the object, as ``stat`` and ``find`` give it.
        path: the path to stage it under.
        metadata: the user metadata that it gets in place of its own.
        content_type: the content type that it gets in place of its own.
        if_absent: replace nothing, as with ``put``.
        in_place: replace exactly this object, and no other one.

    Raises:
        NotAsSeen: the branch shows another object at the path, and ``in_place`` was asked for. Nothing was staged.
        PathTaken: the branch shows an object at the path, and ``if_absent`` was asked for. Nothing was staged.
        ObjectNotFound, PreconditionFailed: ``object_collected``: the object is gone, or is about to go.
        PreconditionFailed: ``protected_branch``, ``read_only_repository``: the branch takes no changes.
    """
    check_new_path(path)
    kept = check_metadata(entry.metadata if metadata is None else metadata)
    kind = entry.content_type if content_type is None else content_type
    check_content_type(kind)
    linked = replace(entry, path=path, metadata=kept, content_type=kind)
    started = begin_staging(ctx, branch, flush=True)

    def attempt() -> Entry:
        pinned = None
        if if_absent or in_place:
            pinned = ctx.catalog.staging.pin(ctx.repository_id, branch, path, below=False)  # before the look
            require_seen(find(ctx, branch, path), entry if in_place else None, branch, path)
        _link_entry(ctx, branch, linked, started, pinned)
        return linked

    return when_moved(ctx)(attempt)


def _link_entry(ctx: Context, branch: str, entry: Entry, started: datetime, expect: ExpectedState | None) -> None:
    address = layout.relative(ctx.repository.storage_namespace, entry.physical_address)
    row = Staged(entry.path, replace(entry, physical_address=address))
    link_rows(ctx, branch, [row], started, expect)
