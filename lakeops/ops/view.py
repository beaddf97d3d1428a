"""Reading single objects of a ref: the staging area first where the ref is a branch, then the commit.

A branch's row and its staged rows are read at one instant, and committed data after that from the head of the same
instant: so a commit that is published meanwhile never hides an object.
"""

from __future__ import annotations

from typing import BinaryIO

from lakeops.model.errors import ObjectNotFound
from lakeops.model.paths import check_path
from lakeops.model.records import Commit, Entry
from lakeops.ops.context import Context
from lakeops.ops.resolve import at_ref
from lakeops.store import layout
from lakeops.store.base import ObjectStore


def public(ctx: Context, entry: Entry) -> Entry:
    """The entry as users see it: with its physical address as a full URL."""
    return Entry(  # spelled out: dataclasses.replace takes longer than the rest of a listing
        path=entry.path,
        physical_address=layout.absolute(ctx.repository.storage_namespace, entry.physical_address),
        checksum=entry.checksum,
        size_bytes=entry.size_bytes,
        mtime=entry.mtime,
        content_type=entry.content_type,
        metadata=entry.metadata,
    )


def committed(ctx: Context, commit: Commit, path: str) -> Entry | None:
    """The entry that a commit holds at a path."""
    return ctx.reader.stat(ctx.metarange(commit), path)


def stat(ctx: Context, ref: str, path: str) -> Entry | None:
    """What a ref shows at a path, or None. The physical address is a full URL."""
    check_path(path)

    def of_branch(name: str) -> Entry | None:
        head, staged = ctx.catalog.staged_one(ctx.repository_id, name, path)
        return committed(ctx, head, path) if staged is None else staged.entry

    entry = at_ref(ctx, ref, of_branch, lambda commit: committed(ctx, commit, path))
    return None if entry is None else public(ctx, entry)


def require(ctx: Context, ref: str, path: str) -> Entry:
    """What a ref shows at a path. Raises ``ObjectNotFound``."""
    entry = stat(ctx, ref, path)
    if entry is None:
        raise ObjectNotFound(f"no object {path!r} at {ref!r} of repository {ctx.repository_id!r}")
    return entry


def read(ctx: Context, ref: str, path: str) -> bytes:
    """The contents of an object, whole."""
    store, key = _locate(ctx, require(ctx, ref, path))
    return store.get(key)


def open_object(ctx: Context, ref: str, path: str) -> BinaryIO:
    """A seekable binary file over an object's contents."""
    return open_entry(ctx, require(ctx, ref, path))


def open_entry(ctx: Context, entry: Entry) -> BinaryIO:
    """A seekable binary file over the contents of an entry that was found before."""
    store, key = _locate(ctx, entry)
    return store.open(key)


def presign(ctx: Context, ref: str, path: str, expires: int) -> str:
    """A URL that reads an object for ``expires`` seconds. Raises ``Unsupported`` on local storage."""
    store, key = _locate(ctx, require(ctx, ref, path))
    return store.presign(key, expires)


def _locate(ctx: Context, entry: Entry) -> tuple[ObjectStore, str]:
    address = layout.relative(ctx.repository.storage_namespace, entry.physical_address)
    if not layout.is_absolute(address):
        return ctx.readable, address
    return ctx.stores.locate(ctx.repository.storage_namespace, address)
