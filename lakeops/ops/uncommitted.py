"""What a commit would change: staged rows that differ from the head, by what a user calls the same object."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from lakeops.model.names import check_prefix
from lakeops.model.records import Change, Commit
from lakeops.ops.context import Context
from lakeops.ops.resolve import check_name
from lakeops.ranges.diff import changes, staged_changes

if TYPE_CHECKING:
    import pyarrow as pa


def uncommitted(ctx: Context, branch: str, *, prefix: str = "") -> Iterator[Change]:
    """A branch's uncommitted changes by path, at one instant; read as they are asked for."""
    check_prefix(prefix)
    state, staged = ctx.catalog.staged_table(ctx.repository_id, check_name(branch), prefix=prefix)
    return chain.from_iterable(changes(batch) for batch in effective(ctx, ctx.head(state), staged))


def effective(ctx: Context, head: Commit, staged: pa.Table) -> Iterator[pa.Table]:
    """Those of the staged rows that change something over a commit, in the columns of ``ranges.diff``.

    The same contents put again, and deletions of what is not there, are no changes.
    """
    if not staged.num_rows:
        return iter(())
    return staged_changes(ctx.reader, ctx.metarange(head), staged)
