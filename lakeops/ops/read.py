"""Reading single objects of a ref: the staging area first where the ref is a branch, then the commit.

A branch's row and its staged rows are read at one instant, and committed data after that from the head of the same
instant: so a commit that is published meanwhile never hides an object.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.catalog.records import Staged
from lakeops.model.arrow import ENTRY_SCHEMA, RANGE_SCHEMA, STAGED_SCHEMA, no_rows
from lakeops.model.errors import Corrupted, FileMissing, InvalidInput, ObjectNotFound
from lakeops.model.ids import algorithm_of, etags_are_md5
from lakeops.model.names import MAX_PATH_BYTES, as_folder, check_path, check_prefix, flaw
from lakeops.model.records import Commit, CommonPrefix, Entry
from lakeops.model.sanitising import excerpt
from lakeops.ops.context import Context, at_ref, public, watched
from lakeops.ranges.metarange import SortedPaths
from lakeops.ranges.read import PATH, EntryCursor
from lakeops.store import layout, recorded
from lakeops.store.base import ObjectStore
from lakeops.store.listing import present
from lakeops.store.open import AddressPolicy


def full(namespace: str, addresses: pa.ChunkedArray) -> pa.ChunkedArray:
    """Stored addresses as full URLs."""
    from lakeops.ranges.validation import ABSOLUTE, joined  # late: one object is found without

    if pc.all(pc.starts_with(addresses, layout.DATA)).as_py():
        return joined(namespace, addresses)
    return pc.if_else(pc.match_substring_regex(addresses, ABSOLUTE), addresses, joined(namespace, addresses))


def as_table(rows: Iterable[Staged]) -> pa.Table:
    """Staged rows as a table of ``STAGED_SCHEMA``, in their order."""
    given = list(rows)
    entries = [row.entry for row in given]
    columns = {name: [entry and getattr(entry, name) for entry in entries] for name in STAGED_SCHEMA.names[2:-1]}
    pairs = [entry and list(entry.metadata.items()) for entry in entries]
    paths, dead = [row.path for row in given], [entry is None for entry in entries]
    return pa.table({"path": paths, "tombstone": dead, **columns, "metadata": pairs}, schema=STAGED_SCHEMA)


def branch_tables(ctx: Context, branch: str, prefix: str) -> tuple[Commit, Iterator[pa.Table]]:
    """A branch's head, and the entries that the branch shows under a prefix, in path order. Never an empty table."""
    found = ctx.catalog.staging.staged_table(ctx.repository_id, branch, prefix=prefix)
    return found.head, with_staged(ctx.reader.scan(ctx.metarange(found.head), prefix), found.staged)


def _tables(ctx: Context, ref: str, prefix: str) -> tuple[Commit, Iterator[pa.Table]]:
    """The commit that a ref means, and the ref's entries under a prefix as tables, their addresses as stored."""

    def of_commit(commit: Commit) -> tuple[Commit, Iterator[pa.Table]]:
        return commit, watched(ctx, (commit,), ctx.reader.scan(ctx.metarange(commit), prefix))

    return at_ref(ctx, ref, lambda name: branch_tables(ctx, name, prefix), of_commit)


def with_staged(committed: Iterable[pa.Table], staged: pa.Table) -> Iterator[pa.Table]:
    """Entries (``ENTRY_SCHEMA``) of committed and staged rows, both in path order. Never an empty table."""
    rest = staged.combine_chunks()
    for batch in committed:
        behind = batch["path"][-1].as_py().encode() + b"\0"  # no path holds NUL
        end = SortedPaths(rest["path"]).first_at(behind)
        yield from _lay_staged_over(batch, rest.slice(0, end))
        rest = rest.slice(end)
    yield from _lay_staged_over(no_rows(RANGE_SCHEMA), rest)


def _lay_staged_over(rows: pa.Table, staged: pa.Table) -> Iterator[pa.Table]:
    from lakeops.ranges.rewrite import apply_changes  # late: one object is found without

    table = apply_changes(rows, staged).table if staged.num_rows else rows
    if table.num_rows:
        yield table.select(ENTRY_SCHEMA.names)


def find(ctx: Context, ref: str, path: str) -> Entry | None:
    """The entry at a path, or None. Its physical address is a full URL."""
    check_path(path)

    def of_branch(name: str) -> Entry | None:
        head, staged = ctx.catalog.staging.staged_one(ctx.repository_id, name, path)
        return of_commit(head) if staged is None else staged.entry

    def of_commit(commit: Commit) -> Entry | None:
        return ctx.reader.stat(ctx.metarange(commit), path)

    entry = at_ref(ctx, ref, of_branch, of_commit)
    return None if entry is None else public(ctx, entry)


def require_folder(ctx: Context, ref: str, prefix: str) -> None:
    """Raise ``InvalidInput`` when a prefix is that of no object, and an object has its path."""
    folder = as_folder(prefix)
    path = folder.removesuffix("/")
    if path and next(iter(list_objects(ctx, ref, folder)), None) is None and find(ctx, ref, path) is not None:
        raise InvalidInput(
            f"{excerpt(path)} is an object at {excerpt(ref)} and no folder; name the folder that it lies in"
        )


def stat(ctx: Context, ref: str, path: str) -> Entry:
    """The entry at a path. Its physical address is a full URL. Raises ``ObjectNotFound``."""
    entry = find(ctx, ref, path)
    if entry is None:
        raise ObjectNotFound(f"no object {path!r} at {ref!r} of repository {ctx.repository_id!r}")
    return entry


def read(ctx: Context, ref: str, path: str, *, verify: bool | None = None) -> bytes:
    """The contents of an object.

    The size is always compared with the recorded size.

    Args:
        verify: also compare the contents with the checksum, where the checksum is a digest of the contents. When None,
            the setting ``verify_checksums`` decides.

    Raises:
        ObjectNotFound, FileMissing: there is no object at the path, or it is missing from the store.
        CommitExpired: retention rules no longer keep the commit.
        Corrupted: size or contents differ from what was recorded.
    """
    return read_entry(ctx, stat(ctx, ref, path), verify=verify)


def read_entry(ctx: Context, entry: Entry, *, verify: bool | None = None) -> bytes:
    """The contents of an entry from an earlier ``stat`` or ``list``, checked like those of ``read``."""
    with _naming(ctx, entry):
        return recorded.read(*_recorded(ctx, entry, verify))


def open_object(ctx: Context, ref: str, path: str, *, verify: bool | None = None) -> recorded.ObjectFile:
    """A seekable binary file with the contents of an object.

    Opening it compares the object's size with the recorded size. With ``verify`` as in ``read``, contents that were
    read from start to end are compared with the checksum by the last read.

    Raises:
        ObjectNotFound, FileMissing: there is no object at the path, or it is missing from the store.
        CommitExpired: retention rules no longer keep the commit.
        Corrupted: the size differs from what was recorded. The last read raises it when the contents differ.
    """
    return open_entry(ctx, stat(ctx, ref, path), verify=verify)


def open_entry(ctx: Context, entry: Entry, *, verify: bool | None = None) -> recorded.ObjectFile:
    """A seekable binary file with the contents of an entry from an earlier ``stat`` or ``list``.

    The ref may mean another commit by now. The file is checked like that of ``open``.
    """
    with _naming(ctx, entry):
        return recorded.open_object(*_recorded(ctx, entry, verify))


@contextmanager
def _naming(ctx: Context, entry: Entry) -> Iterator[None]:
    """Inside the block, the error for a missing file names the object that the file holds."""
    try:
        with ctx.explaining_missing():
            yield
    except ObjectNotFound as error:
        raise FileMissing(
            f"the contents of object {excerpt(entry.path)} are missing: {error.message}; "
            "`lakeops fsck --data` finds all such objects"
        ) from None


def presign(ctx: Context, ref: str, path: str, expires: int = 900) -> str:
    """A URL that reads an object for ``expires`` seconds. Raises ``unsupported`` on local storage."""
    store, key = _locate(ctx, stat(ctx, ref, path))
    return store.presign(key, expires)


def _locate(ctx: Context, entry: Entry) -> tuple[ObjectStore, str]:
    address = layout.relative(ctx.repository.storage_namespace, entry.physical_address)
    if layout.is_absolute(address):
        return ctx.stores().locate(ctx.policy, address)
    return ctx.readable, AddressPolicy(ctx.repository.storage_namespace).check(address)


def _recorded(ctx: Context, entry: Entry, verify: bool | None) -> tuple[ObjectStore, str, recorded.Recorded]:
    store, key = _locate(ctx, entry)
    wanted = ctx.settings.verify_checksums if verify is None else verify
    what = recorded.Recorded(
        path=entry.path,
        address=entry.physical_address,
        size_bytes=entry.size_bytes,
        checksum=entry.checksum,
        algorithm=algorithm(ctx, entry.physical_address, entry.checksum) if wanted else None,
    )
    return store, key, what


def algorithm(ctx: Context, address: str, checksum: str) -> str | None:
    """How the checksum of the object at an address is computed from the contents. None where it cannot be.

    An ETag is an MD5 only where this store, and the source of a mirror, were seen to make such ones.
    """
    found = algorithm_of(checksum)
    if found != "md5":
        return found
    managed = not layout.is_absolute(layout.relative(ctx.repository.storage_namespace, address))
    return found if managed and etags_are_md5(ctx.repository.capabilities) else None


PAGE = 1000
"""Staged rows a window holds."""
FEW = 8
"""Staged rows of a window where folders are passed over: whatever it holds of the next folder is passed over too."""

LAST = "\U0010ffff" * (MAX_PATH_BYTES // 4)
"""Appended to a prefix, this is at or after every path under it."""


def list_objects(
    ctx: Context, ref: str, prefix: str = "", after: str = "", delimiter: str = ""
) -> Iterator[Entry | CommonPrefix]:
    """Objects under a prefix in byte order.

    Args:
        prefix: only paths that begin with it.
        after: the last path or common prefix of an earlier listing. Only later paths, in byte order, are listed.
        delimiter: a text such as ``/``. Paths that have it behind the prefix are listed once, as common prefixes.
    """
    check_prefix(prefix)
    check_prefix(after)
    reason = flaw(delimiter, at_most=16)
    if reason is not None:
        raise InvalidInput(f"{excerpt(delimiter)} is not a delimiter: it {reason}")
    folder = _folder(after, prefix, delimiter) if after.startswith(prefix) else None
    if folder is not None:
        after = folder + LAST  # this common prefix is not behind ``after``, so nothing under it is shown
    read: list[Commit] = []

    def of_branch(name: str) -> ListingCursor:
        def window(after: str, limit: int) -> tuple[Commit, Sequence[Staged]]:
            return ctx.catalog.staging.staged_page(ctx.repository_id, name, prefix=prefix, after=after, limit=limit)

        return ListingCursor(ctx, prefix, after, window, FEW if delimiter else PAGE)

    def of_commit(commit: Commit) -> ListingCursor:
        read.append(commit)
        return ListingCursor(ctx, prefix, after, lambda _after, _limit: (commit, ()), PAGE)

    cursor = at_ref(ctx, ref, of_branch, of_commit)
    return watched(ctx, read, _grouped(cursor, prefix, delimiter))


def entries(ctx: Context, ref: str, prefix: str = "") -> pa.RecordBatchReader:
    """Entries under a prefix as Arrow (``model.arrow.ENTRY_SCHEMA``), by path. They are read while you iterate.

    Physical addresses are full URLs.
    """
    check_prefix(prefix)
    _, tables = _tables(ctx, ref, prefix)
    return pa.RecordBatchReader.from_batches(ENTRY_SCHEMA, _batches(ctx, tables))


def _batches(ctx: Context, tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    for table in tables:
        yield from _absolute(ctx, table.select(ENTRY_SCHEMA.names)).to_batches()


def _absolute(ctx: Context, table: pa.Table) -> pa.Table:
    index = table.schema.get_field_index("physical_address")
    column = full(ctx.repository.storage_namespace, table.column(index))
    return table.set_column(index, table.schema.field(index), column)


def _grouped(cursor: ListingCursor, prefix: str, delimiter: str) -> Iterator[Entry | CommonPrefix]:
    while cursor.path is not None:
        if not delimiter:
            yield from cursor.take()
            continue
        common = _folder(cursor.path, prefix, delimiter)
        if common is None:
            for entry in cursor.take():
                common = _folder(entry.path, prefix, delimiter)
                if common is not None:
                    break
                yield entry
        if common is not None:
            yield CommonPrefix(common)
            cursor.skip(common)


def _folder(path: str, prefix: str, delimiter: str) -> str | None:
    """The common prefix that sums this path up, if one does."""
    end = path.find(delimiter, len(prefix)) if delimiter else -1
    return path[: end + len(delimiter)] if end >= 0 else None


class ListingCursor:
    """A place in the listing of a ref under a prefix: staged rows over a commit's entries, a window of rows at a time.

    ``window`` gives the commit, and at most so many staged rows behind a path, both as they were at one instant. The
    first window holds ``size`` rows.
    """

    _committed: EntryCursor

    def __init__(
        self,
        ctx: Context,
        prefix: str,
        after: str,
        window: Callable[[str, int], tuple[Commit, Sequence[Staged]]],
        size: int,
    ) -> None:
        self._ctx = ctx
        self._prefix = prefix
        self._window = window
        self._size = size
        self._commit_id = ""
        self._load(after)

    def _load(self, after: str) -> None:
        """Take the window that begins behind ``after``."""
        commit, self._rows = self._window(after, self._size)
        if self._commit_id != commit.id:
            shown = partial(_absolute, self._ctx)
            self._committed = EntryCursor(self._ctx.reader, self._ctx.metarange(commit), self._prefix, shown)
            self._commit_id = commit.id
        self._committed.seek(after)
        self._next = 0
        self._bound = self._rows[-1].path if len(self._rows) == self._size else None

    @property
    def path(self) -> str | None:
        """The path here. None at the end."""
        while True:
            row, base = self._here()
            if row is None or (base is not None and base < row.path):
                if base is not None or self._bound is None:
                    return base
                self._size = min(4 * self._size, PAGE)
                self._load(self._bound)
            elif row.entry is not None:
                return row.path
            else:  # a tombstone: it hides what is committed, and is nothing itself
                self._pass(base)

    def take(self) -> list[Entry]:
        """Entries from here on: the staged one that is here, or the committed ones before the next staged one."""
        row, base = self._here()
        if row is not None and row.entry is not None and (base is None or base >= row.path):
            self._pass(base)
            return [public(self._ctx, row.entry)]
        if row is not None:
            return self._committed.take(row.path)
        return self._committed.take(None if self._bound is None else self._bound + "\0")

    def skip(self, prefix: str) -> None:
        """Go to the first path that is not under a prefix. The catalog is asked only where the window ends before."""
        last = prefix + LAST
        if self._bound is not None and self._bound <= last:
            # A window that had rows of several folders was worth its statements. One within a folder was not.
            several = self._next > 0 and not self._rows[0].path.startswith(prefix)
            self._size = min(4 * self._size, PAGE) if several else FEW
            self._load(last)
            return
        self._next = bisect_right(self._rows, last, key=PATH)
        self._committed.skip(last)

    def _here(self) -> tuple[Staged | None, str | None]:
        """The next staged row of the window, and its next committed path."""
        row, base = self._rows[self._next] if self._next < len(self._rows) else None, self._committed.path
        return row, None if base is not None and self._bound is not None and base > self._bound else base

    def _pass(self, base: str | None) -> None:
        """Move both cursors behind the next staged row and what it hides."""
        if base == self._rows[self._next].path:
            self._committed.advance()
        self._next += 1


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Objects of a ref.

    ``commit_id`` is what the ref meant, ``folder`` the prefix with a slash at its end, or the path of one object. Of
    each of the ``entries`` (``ENTRY_SCHEMA``, by path, addresses as full URLs) ``sources`` has the store that it lies
    in and its key there, ``algorithms`` how its checksum is computed from the contents (None where it cannot be).
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
        check: compare the size of every object with the recorded size.

    Raises:
        ObjectNotFound, FileMissing: there is nothing, or one of the objects is missing from the store.
        Corrupted: an object has another size than was recorded.
        RefNotFound, CommitExpired, InvalidInput: ``ambiguous_ref``, ``invalid_ref``: there is no such ref to read.
    """
    wanted = as_folder(prefix)
    commit, tables = _tables(ctx, ref, prefix)
    entries = pa.Table.from_batches(_batches(ctx, tables), ENTRY_SCHEMA)
    exact = entries.filter(pc.equal(entries["path"], prefix))
    if exact.num_rows and prefix != wanted:  # a key that ends in a slash marks the folder
        wanted, entries = prefix, exact
    else:
        entries = entries.filter(pc.starts_with(entries["path"], wanted))
    if not entries.num_rows:
        raise ObjectNotFound(f"there is no object under {wanted!r} at {ref!r} of repository {ctx.repository_id!r}")
    addresses = entries["physical_address"].to_pylist()
    namespace = ctx.repository.storage_namespace
    sources = tuple(ctx.stores().locate(ctx.policy, layout.relative(namespace, one)) for one in addresses)
    if check:
        _check_sizes(entries, sources)
    marks = zip(addresses, entries["checksum"].to_pylist(), strict=True)
    verify = ctx.settings.verify_checksums
    algorithms = tuple(algorithm(ctx, *one) if verify else None for one in marks)
    return Snapshot(commit.id, wanted, entries, sources, algorithms)


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
            raise FileMissing(f"{path!r}: its object {store.url}/{key} is missing from the store")
        if item.size_bytes != size:
            raise Corrupted(
                f"{path!r}: its object {store.url}/{key} has {item.size_bytes:,} bytes, and {size:,} were recorded; "
                "nothing was read (lakeops fsck --data names all such objects)"
            )
