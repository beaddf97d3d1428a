"""What a ref showed at one instant, for engines that open the objects themselves.

Physical objects never change, so a list of them is a pinned state: whatever is published or staged later, an engine
that was given the list reads the same rows. Before it is handed out, the size of each object is compared with what was
recorded, because lakeops is not there when the engine reads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.errors import Corrupted, ObjectNotFound
from lakeops.model.names import as_folder
from lakeops.model.records import Commit
from lakeops.ops.context import Context
from lakeops.ops.resolve import at_ref
from lakeops.ops.view import algorithm, as_entries, with_staged
from lakeops.store import layout
from lakeops.store.base import ObjectStore
from lakeops.store.listing import present


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Objects of a ref.

    Attributes:
        commit_id: the commit that the ref meant.
        folder: what was asked for: a prefix with a slash at its end, or the path of one object.
        entries: the objects (``ENTRY_SCHEMA``) by path, their addresses as full URLs.
        sources: for each entry the store that it lies in, and its key there.
        algorithms: for each entry how its checksum is computed from the contents. None where it cannot be.
    """

    commit_id: str
    folder: str
    entries: pa.Table
    sources: tuple[tuple[ObjectStore, str], ...]
    algorithms: tuple[str | None, ...]


def snapshot(ctx: Context, ref: str, prefix: str = "", *, check: bool = True) -> Snapshot:
    """The objects under a prefix, or the one object at a path, as they are now.

    A branch shows its uncommitted changes, as everywhere.

    Args:
        prefix: a folder, with or without a slash at its end, or a path.
        check: compare the size of every object with what was recorded.

    Raises:
        ObjectNotFound: there is nothing, or one of the objects is missing from the store.
        Corrupted: an object has another size than was recorded.
        RefNotFound, CommitExpired, InvalidInput: ``ambiguous_ref``, ``invalid_ref``: there is no such ref to read.
    """
    wanted = as_folder(prefix)

    def of_branch(name: str) -> tuple[Commit, pa.Table]:
        found, staged = ctx.catalog.staging.staged_table(ctx.repository_id, name, prefix=prefix)
        return found.head, as_entries(ctx, with_staged(ctx.reader.scan(ctx.metarange(found.head), prefix), staged))

    def of_commit(commit: Commit) -> tuple[Commit, pa.Table]:
        return commit, as_entries(ctx, ctx.reader.scan(ctx.metarange(commit), prefix))

    commit, entries = at_ref(ctx, ref, of_branch, of_commit)
    exact = entries.filter(pc.equal(entries["path"], prefix))
    if exact.num_rows:
        wanted, entries = prefix, exact
    else:
        entries = entries.filter(pc.starts_with(entries["path"], wanted))
    if not entries.num_rows:
        raise ObjectNotFound(f"there is no object under {wanted!r} at {ref!r} of repository {ctx.repository_id!r}")
    sources = tuple(_located(ctx, entries))
    if check:
        _check_sizes(entries, sources)
    marks = zip(entries["physical_address"].to_pylist(), entries["checksum"].to_pylist(), strict=True)
    verify = ctx.settings.verify_checksums
    algorithms = tuple(algorithm(ctx, *one) if verify else None for one in marks)
    return Snapshot(commit.id, wanted, entries, sources, algorithms)


def _located(ctx: Context, entries: pa.Table) -> Iterator[tuple[ObjectStore, str]]:
    for address in entries["physical_address"].to_pylist():
        yield ctx.stores.locate(ctx.policy, layout.relative(ctx.repository.storage_namespace, address))


def _check_sizes(entries: pa.Table, sources: tuple[tuple[ObjectStore, str], ...]) -> None:
    """Raise for the first object that is missing, or has another size than was recorded."""
    keys: defaultdict[str, set[str]] = defaultdict(set)
    stores = {store.url: store for store, _ in sources}
    for store, key in sources:
        keys[store.url].add(key)
    held = {url: present(stores[url], wanted) for url, wanted in keys.items()}
    rows = zip(entries["path"].to_pylist(), entries["size_bytes"].to_pylist(), sources, strict=True)
    for path, size, (store, key) in rows:
        item = held[store.url].get(key)
        if item is None:
            raise ObjectNotFound(f"{path!r}: its object {store.url}/{key} is missing from the store")
        if item.size_bytes != size:
            raise Corrupted(
                f"{path!r}: its object {store.url}/{key} has {item.size_bytes:,} bytes, and {size:,} were recorded; "
                "nothing was read (lakeops fsck --data names all such objects)"
            )
