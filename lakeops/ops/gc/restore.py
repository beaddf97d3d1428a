"""Restore: take back what a mark did to commits, as long as nothing of it is swept.

The mark ends first, in a transaction that a sweep's beginning waits for: one of the two wins. Then its commits are
live again, some at a time. A restore that was killed is repeated; the next mark decides about what is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lakeops.model.marks import Mark, MarkState
from lakeops.ops.context import Context

_OPEN = (MarkState.MARKING, MarkState.MARKED)
"""The newest mark, when it may still be swept: it has decided about the commits of those before it."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did: the mark as it is now, and how many commits are live again.

    ``newer`` is the mark that took over this one's commits, when another one began since: that is the one to restore.
    """

    mark: Mark
    commits: int
    newer: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The result for programs."""
        return {"mark": self.mark.to_json(), "commits": self.commits, "newer": self.newer}


def restore(ctx: Context, mark_id: str) -> Restored:
    """Let the commits live again that a mark expired; the mark can never be swept.

    Raises:
        MarkNotFound: this repository has no such mark.
        MarkRefused: its sweep has begun.
        ReadOnlyRepository: the repository is a mirror.
    """
    mark = ctx.catalog.restore_mark(ctx.repository_id, mark_id)
    if mark.state in (MarkState.STALE, MarkState.FAILED):
        marks = ctx.catalog.marks(ctx.repository_id)
        return Restored(mark, 0, next((found.id for found in marks if found.state in _OPEN), None))
    commits = 0
    while mark.state is MarkState.RESTORING:
        mark, some = ctx.catalog.restore_commits(ctx.repository_id, mark_id)
        commits += some
        ctx.progress("restoring", commits, 0)
    return Restored(mark, commits)
