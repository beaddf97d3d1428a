"""The shape of a repository's history, for walks that may go far down: whole stretches of it are read at once.

A walk that goes on from child to parent asks for one line of history after another, and each merge begins a new one.
That is quick near the heads, and ten thousand statements far down. So after some of those, all commits of the next
generations are read in one statement, with nothing but what a walk needs. Some of them may be of other branches.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from lakeops.model import graph
from lakeops.model.errors import (
    PreconditionFailed,
)
from lakeops.model.lineage import Node
from lakeops.model.records import Commit
from lakeops.ops.context import Context, require_live
from lakeops.ops.resolve import history_of, lookup, resolve_commit

NEAR = 12
"""Statements for single lines of history, before the merge base of commits far apart is looked for another way."""
LINES = 2
"""Statements for single lines of history, before stretches are read."""
WALKED = 4_000
"""Generations between two commits. With more of them the statements for single lines would not suffice."""
FIRST, LONGEST = 250, 16_000
"""Generations of the first stretch, and of the longest."""
MOST = 100_000
"""Nodes that are kept at a time; past that, those of the stretches before are dropped."""
MOST_FAR = 1_000
# A commit's id is a digest of its whole history, so the answer is the same in every catalog, and for ever.
_far: dict[tuple[str, str], set[str]] = {}


class Shape:
    """Commits by id, as a ``CommitSource``: commits, or nodes, which have all that walks ask of a commit.

    Use one for one call, so that it never grows stale.

    Args:
        ctx: the repository.
        ahead: how many commits the first miss loads.
        known: ids of commits that the walk begins with, read in one statement.
    """

    def __init__(self, ctx: Context, ahead: int = 1, known: Collection[str] = ()) -> None:
        self._ctx = ctx
        self._near = lookup(ctx, ahead).get
        self._heads = ctx.catalog.commits(ctx.repository_id, known) if known else {}
        self._nodes: dict[str, Node] = {}
        self._length = FIRST

    def __call__(self, commit_id: str) -> Any:  # noqa: ANN401 - a Commit or a Node
        """The commit, or its node. Raises ``RefNotFound``."""
        node = self._nodes.get(commit_id) or self._heads.get(commit_id)
        if node is not None:
            return node
        if self._near.loads < LINES or commit_id in self._near:
            return self._near(commit_id)
        if len(self._nodes) > MOST:
            self._nodes.clear()
        found = self._ctx.catalog.stretch(self._ctx.repository_id, commit_id, self._length)
        self._length = min(4 * self._length, LONGEST)
        self._nodes.update((one.id, one) for one in found)
        if commit_id not in self._nodes:  # it was pruned, or is not there at all
            return self._near(commit_id)
        return self._nodes[commit_id]


def merge_bases(ctx: Context, left: str, right: str) -> list[Commit]:
    """All best common ancestors of two commits, oldest first. See ``graph.merge_bases``.

    Args:
        ctx: the repository.
        left: a commit's id.
        right: another one's.
    """

    def found() -> list[Commit]:
        near = history_of(ctx.catalog, ctx.repository_id, most=NEAR)
        if (left, right) not in _far and abs(near(left).generation - near(right).generation) <= WALKED:
            try:
                return graph.merge_bases(near, [left], [right])
            except graph.FarApart:
                pass
        get = lookup(ctx).get
        bases = _far.get((left, right))
        if bases is None:
            low, top = sorted((get(left).generation, get(right).generation))
            bases = graph.merge_bases_of(ctx.catalog.descending(ctx.repository_id, top, low), left, right)
            if len(_far) >= MOST_FAR:
                _far.clear()
            _far[left, right] = bases
        return sorted(map(get, bases), key=lambda base: (base.creation_date, base.generation, base.id))

    return ctx.catalog.in_snapshot(found)


def merge_base(ctx: Context, left: str, right: str) -> Commit:
    """A best common ancestor of two refs. Raises ``PreconditionFailed`` (``no_merge_base``)."""

    def found() -> list[Commit]:
        one, other = (resolve_commit(ctx, ref, live=False).id for ref in (left, right))
        return merge_bases(ctx, one, other)

    bases = ctx.catalog.in_snapshot(found)
    if not bases:
        raise PreconditionFailed(f"{left!r} and {right!r} share no history", kind="no_merge_base")
    base = min(bases, key=lambda one: (-one.generation, -one.creation_date, one.id))
    return require_live(base) if base.is_gone else base
