"""Writing single objects to a branch's staging area.

The contents go to a fresh address first, then one transaction links them. An upload that breaks off, or whose link
is refused, leaves a file that nothing points to, which garbage collection takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import BinaryIO

from lakeops.catalog.base import Staged
from lakeops.model.errors import ObjectNotFound
from lakeops.model.ids import check_content_type, check_metadata
from lakeops.model.names import check_path
from lakeops.model.records import DEFAULT_CONTENT_TYPE, Entry
from lakeops.ops.context import Context
from lakeops.ops.resolve import require_stageable
from lakeops.ops.unlinked import link_held_back
from lakeops.ops.view import public, stat
from lakeops.store import layout


def put(
    ctx: Context,
    branch: str,
    path: str,
    data: bytes | BinaryIO,
    *,
    metadata: Mapping[str, str] | None = None,
    content_type: str = DEFAULT_CONTENT_TYPE,
) -> Entry:
    """Write an object of any size to a path of a branch; returns the staged entry.

    Args:
        ctx: the repository.
        branch: the branch's name.
        path: 1 to 1,024 UTF-8 bytes.
        data: the contents, or a binary file that they are streamed from.
        metadata: user metadata.
        content_type: what a reader is told that the contents are.
    """
    check_path(path)
    require_stageable(ctx, branch)
    link_held_back(ctx, branch, path)
    started, entry = write(ctx, path, data, metadata=metadata, content_type=content_type)
    ctx.catalog.put_staged(ctx.repository_id, branch, [Staged(path, entry)], started=started)
    return public(ctx, entry)


def write(
    ctx: Context, path: str, data: bytes | BinaryIO, *, metadata: Mapping[str, str] | None, content_type: str
) -> tuple[datetime, Entry]:
    """Upload an object that is not linked yet; returns since when it has been there, and its entry as stored."""
    check_path(path)
    check_content_type(content_type)
    user_metadata = check_metadata(metadata)
    started = ctx.catalog.now()
    key = layout.object_key(started, ctx.ids)
    written = ctx.store.put(key, data)
    entry = Entry(
        path=path,
        physical_address=key,
        checksum=written.checksum,
        size_bytes=written.size_bytes,
        mtime=ctx.seconds(started),
        content_type=content_type,
        metadata=user_metadata,
    )
    return started, entry


def delete(ctx: Context, branch: str, path: str) -> None:
    """Stage the deletion of a path. Raises ``ObjectNotFound`` when the branch shows no such object."""
    check_path(path)
    require_stageable(ctx, branch)
    link_held_back(ctx, branch, path)
    started = ctx.catalog.now()
    if stat(ctx, branch, path) is None:
        raise ObjectNotFound(f"no object {path!r} on branch {branch!r}")
    ctx.catalog.put_staged(ctx.repository_id, branch, [Staged(path, None)], started=started)
