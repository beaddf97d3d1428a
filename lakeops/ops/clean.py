"""What a branch needs to be merged into: no uncommitted changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakeops.model.errors import DirtyBranch
from lakeops.model.records import Commit
from lakeops.ops.context import Context
from lakeops.ops.uncommitted import effective

if TYPE_CHECKING:
    import pyarrow as pa


def require_clean(ctx: Context, branch: str, head: Commit, staged: pa.Table) -> None:
    """Refuse a branch with uncommitted changes.

    Staged rows that change nothing over the head are no changes; the publish transaction takes them off the branch,
    so that they cannot come to matter over the new head. Raises ``DirtyBranch``.
    """
    for batch in effective(ctx, head, staged):
        raise dirty(branch, batch.column("path")[0].as_py())


def dirty(branch: str, path: str) -> DirtyBranch:
    """The error for a branch with uncommitted changes, of which ``path`` is one."""
    return DirtyBranch(f"branch {branch!r} has uncommitted changes, {path!r} for one; commit or reset them first")
