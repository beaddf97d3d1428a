"""Listing a ref: page by page for people, as Arrow for engines; staged rows over committed ones.

A window of the listing (the paths that one page of staged rows covers) is consistent: it shows the branch at one
instant, even when commits are published meanwhile.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from lakeops.catalog.base import Staged
from lakeops.model.errors import InvalidInput
from lakeops.model.paths import MAX_PATH_BYTES, check_prefix
from lakeops.model.records import Commit, CommonPrefix, Entry
from lakeops.ops.context import Context
from lakeops.ops.resolve import at_ref
from lakeops.ops.view import public

if TYPE_CHECKING:
    import pyarrow as pa

PAGE = 1000
"""Staged rows a window holds."""

LAST = "\U0010ffff" * (MAX_PATH_BYTES // 4)
"""Appended to a prefix, this is at or after every path under it."""


class Cursor(Protocol):
    """A place in a sorted listing; ``path`` is None at its end."""

    path: str | None

    def entry(self) -> Entry:
        """The entry here."""
        ...

    def advance(self) -> None:
        """Go to the next one."""
        ...

    def skip(self, prefix: str) -> None:
        """Go to the first one that is not under a prefix."""
        ...


def list_objects(
    ctx: Context, ref: str, *, prefix: str = "", after: str = "", delimiter: str = ""
) -> Iterator[Entry | CommonPrefix]:
    """Objects and common prefixes of a ref, in byte order; see ``Readable.list``."""
    check_prefix(prefix)
    if delimiter and len(delimiter) > 16:
        raise InvalidInput(f"delimiter {delimiter!r} is too long")
    if after and delimiter and after.startswith(prefix) and after.endswith(delimiter):
        after += LAST  # a common prefix was the last one shown: go on behind everything under it
    return _grouped(ctx, _cursor(ctx, ref, prefix, after), prefix, delimiter)


def entries(ctx: Context, ref: str, *, prefix: str = "") -> pa.RecordBatchReader:
    """Entries of a ref as Arrow, their physical addresses as full URLs; read as they are asked for."""
    import pyarrow as pa

    from lakeops.model.schema import ENTRY_SCHEMA
    from lakeops.ops.shown import shown

    check_prefix(prefix)

    def of_branch(name: str) -> Iterator[pa.Table]:
        state, staged = ctx.catalog.staged_table(ctx.repository_id, name, prefix=prefix)
        return shown(ctx.reader.scan(ctx.metarange(ctx.head(state)), prefix), staged)

    def of_commit(commit: Commit) -> Iterator[pa.Table]:
        return (batch.select(ENTRY_SCHEMA.names) for batch in ctx.reader.scan(ctx.metarange(commit), prefix))

    tables = at_ref(ctx, ref, of_branch, of_commit)
    batches = (batch for table in tables for batch in _absolute(ctx, table).to_batches())
    return pa.RecordBatchReader.from_batches(ENTRY_SCHEMA, batches)


def _absolute(ctx: Context, table: pa.Table) -> pa.Table:
    from lakeops.ops.addresses import full

    index = table.schema.get_field_index("physical_address")
    column = full(ctx.repository.storage_namespace, table.column(index))
    return table.set_column(index, table.schema.field(index), column)


def _grouped(ctx: Context, cursor: Cursor, prefix: str, delimiter: str) -> Iterator[Entry | CommonPrefix]:
    while cursor.path is not None:
        end = cursor.path.find(delimiter, len(prefix)) if delimiter else -1
        if end < 0:
            yield public(ctx, cursor.entry())
            cursor.advance()
        else:
            common = cursor.path[: end + len(delimiter)]
            yield CommonPrefix(common)
            cursor.skip(common)


def _cursor(ctx: Context, ref: str, prefix: str, after: str) -> Cursor:
    def of_commit(commit: Commit) -> Cursor:
        cursor = CommitCursor(ctx, commit, prefix)
        cursor.seek(after)
        return cursor

    return at_ref(ctx, ref, lambda name: BranchCursor(ctx, name, prefix, after), of_commit)


class CommitCursor:
    """A place in a commit's entries under a prefix."""

    def __init__(self, ctx: Context, commit: Commit, prefix: str) -> None:
        self.commit_id = commit.id
        self._prefix = prefix
        self._inner = ctx.reader.cursor(ctx.metarange(commit))
        self.path: str | None = None

    def seek(self, after: str) -> None:
        """Go to the first path behind ``after``."""
        # No path holds NUL, so this is the smallest key behind it.
        self._inner.seek(max(self._prefix, after + "\0") if after else self._prefix)
        self._settle()

    def entry(self) -> Entry:
        """The entry here."""
        return self._inner.entry()

    def advance(self) -> None:
        """Go to the next one."""
        self._inner.advance()
        self._settle()

    def skip(self, prefix: str) -> None:
        """Go to the first one that is not under a prefix."""
        self.seek(prefix + LAST)

    def _settle(self) -> None:
        path = self._inner.path
        self.path = path if path is not None and path.startswith(self._prefix) else None


class BranchCursor:
    """A place in what a branch shows under a prefix."""

    def __init__(self, ctx: Context, branch: str, prefix: str, after: str) -> None:
        self._ctx = ctx
        self._branch = branch
        self._prefix = prefix
        self._committed: CommitCursor | None = None
        self._rows: Sequence[Staged] = ()
        self._next = 0
        self._bound: str | None = None
        self._staged: Entry | None = None
        self.path: str | None = None
        self._load(after)

    def entry(self) -> Entry:
        """The entry here."""
        return self._staged or self._at_head().entry()

    def advance(self) -> None:
        """Go to the next one."""
        if self._staged is None:
            self._at_head().advance()
        self._settle()

    def skip(self, prefix: str) -> None:
        """Go to the first one that is not under a prefix; the catalog is asked only where the window ends before it."""
        last = prefix + LAST
        if self._bound is not None and self._bound <= last:
            self._load(last)
            return
        self._next = bisect_right(self._rows, last, lo=self._next, key=attrgetter("path"))
        self._at_head().skip(prefix)
        self._settle()

    def _at_head(self) -> CommitCursor:
        if self._committed is None:  # _load sets it before anything else is asked
            raise AssertionError
        return self._committed

    def _load(self, after: str) -> None:
        """Take the window that begins behind ``after``: a page of staged rows, and the head of the same instant."""
        page = self._ctx.catalog.staged_page(
            self._ctx.repository_id, self._branch, prefix=self._prefix, after=after, limit=PAGE
        )
        if self._committed is None or self._committed.commit_id != page.state.commit_id:
            self._committed = CommitCursor(self._ctx, page.head, self._prefix)
        self._committed.seek(after)
        self._rows, self._next = page.rows, 0
        self._bound = page.rows[-1].path if len(page.rows) == PAGE else None
        self._settle()

    def _settle(self) -> None:
        """Go to the next entry that is there: staged before committed, tombstones hiding both."""
        committed = self._at_head()
        while True:
            row = self._rows[self._next] if self._next < len(self._rows) else None
            base = committed.path
            if base is not None and self._bound is not None and base > self._bound:
                base = None
            if row is None and base is None:
                if self._bound is None:
                    self.path, self._staged = None, None
                    return
                self._load(self._bound)
                return
            if row is None or (base is not None and base < row.path):
                self.path, self._staged = base, None
                return
            self._next += 1
            if base == row.path:
                committed.advance()
            if row.entry is not None:
                self.path, self._staged = row.path, row.entry
                return
