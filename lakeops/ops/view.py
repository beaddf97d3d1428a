"""Reading single objects of a ref: the staging area first where the ref is a branch, then the commit.

A branch's row and its staged rows are read at one instant, and committed data after that from the head of the same
instant: so a commit that is published meanwhile never hides an object.
"""

from __future__ import annotations

from functools import partial

from lakeops.model.errors import ObjectNotFound
from lakeops.model.ids import algorithm_of, etags_are_md5
from lakeops.model.names import check_path
from lakeops.model.records import Commit, Entry
from lakeops.ops.context import Context
from lakeops.ops.resolve import at_ref
from lakeops.store import layout, recorded
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


def read(ctx: Context, ref: str, path: str, *, verify: bool | None = None) -> bytes:
    """The contents of an object, whole. Raises ``Corrupted``; see ``open_entry``."""
    return recorded.read(*_recorded(ctx, require(ctx, ref, path), verify))


def open_object(ctx: Context, ref: str, path: str, *, verify: bool | None = None) -> recorded.ObjectFile:
    """A seekable binary file over an object's contents; see ``open_entry``."""
    return open_entry(ctx, require(ctx, ref, path), verify=verify)


def open_entry(ctx: Context, entry: Entry, *, verify: bool | None = None) -> recorded.ObjectFile:
    """A seekable binary file over the contents of an entry that was found before.

    Raises ``Corrupted``, also at its reads, when the object is not as large as it was recorded, and when it was read
    whole and holds other contents.

    Args:
        ctx: the repository.
        entry: what was recorded.
        verify: whether contents are compared with the checksum; as the settings say when None.
    """
    return recorded.open_object(*_recorded(ctx, entry, verify))


def presign(ctx: Context, ref: str, path: str, expires: int) -> str:
    """A URL that reads an object for ``expires`` seconds. Raises ``Unsupported`` on local storage."""
    store, key = _locate(ctx, require(ctx, ref, path))
    return store.presign(key, expires)


def _locate(ctx: Context, entry: Entry) -> tuple[ObjectStore, str]:
    address = layout.relative(ctx.repository.storage_namespace, entry.physical_address)
    if not layout.is_absolute(address):
        return ctx.readable, address
    return ctx.stores.locate(ctx.repository.storage_namespace, address)


def _recorded(ctx: Context, entry: Entry, verify: bool | None) -> tuple[ObjectStore, str, recorded.Recorded]:
    store, key = _locate(ctx, entry)
    wanted = ctx.settings.verify_checksums if verify is None else verify
    what = recorded.Recorded(
        path=entry.path,
        address=entry.physical_address,
        size_bytes=entry.size_bytes,
        checksum=entry.checksum,
        algorithm=_algorithm(ctx, entry) if wanted else None,
        is_vouched_for=partial(_is_vouched_for, store, key, entry.checksum),
    )
    return store, key, what


def _algorithm(ctx: Context, entry: Entry) -> str | None:
    """How an entry's checksum is computed from the contents.

    An ETag is taken for an MD5 only where this store, and the source of a mirror, were seen to make such ones.
    """
    algorithm = algorithm_of(entry.checksum)
    if algorithm != "md5":
        return algorithm
    managed = not layout.is_absolute(layout.relative(ctx.repository.storage_namespace, entry.physical_address))
    return algorithm if managed and etags_are_md5(ctx.repository.capabilities) else None


def _is_vouched_for(store: ObjectStore, key: str, checksum: str) -> bool:
    return store.head(key).etag == checksum
