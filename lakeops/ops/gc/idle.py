"""Branches and tags that the rules let go: idle for too long, or too old.

A branch is idle since its last move: its creation, or what moved it last. What a rule covers goes once that is as long
ago as the rule says; three things stay whatever their age, and say why: the default branch, protected branches, and
branches with uncommitted changes, which nobody could bring back. Commits are not touched here. Those that were on a
deleted branch alone are garbage collection's, after the default retention.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from lakeops.model.clock import unix_seconds
from lakeops.model.errors import BranchMoved, RefNotFound
from lakeops.model.records import Ref
from lakeops.ops.branch import delete_tag
from lakeops.ops.context import Context
from lakeops.ops.gc.rules import get_rules
from lakeops.ops.paging import pages
from lakeops.ops.uncommitted import uncommitted

DAY = 86_400
_MOVES = 50
"""Moves of a name that are looked at: a branch and a tag may share one."""


@dataclass(frozen=True, slots=True)
class IdleRef:
    """A branch or tag that a rule lets go.

    ``idle_days`` are whole days since it last moved, ``kept`` says why it stays all the same; None: it goes.
    """

    type: str
    id: str
    commit_id: str
    idle_days: int
    kept: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The record for programs."""
        return {
            "type": self.type,
            "id": self.id,
            "commit_id": self.commit_id,
            "idle_days": self.idle_days,
            "kept": self.kept,
        }


def idle_refs(ctx: Context) -> Iterator[IdleRef]:
    """Branches, then tags, that have been idle for as long as the rules allow, by name. Changes nothing."""
    rules = get_rules(ctx)
    if rules is None:
        return
    now = unix_seconds(ctx.catalog.now())
    protections = ctx.catalog.protections(ctx.repository_id)
    for ref in pages(partial(ctx.catalog.branches, ctx.repository_id)):
        days = _idle_days(ctx, ref, now, rules.branch_expiry_days(ref.id))
        if days is not None:
            yield IdleRef("branch", ref.id, ref.commit_id, days, _kept(ctx, ref.id, protections))
    for ref in pages(partial(ctx.catalog.tags, ctx.repository_id)):
        days = _idle_days(ctx, ref, now, rules.tag_expiry_days(ref.id))
        if days is not None:
            yield IdleRef("tag", ref.id, ref.commit_id, days)


def expire_refs(ctx: Context) -> list[IdleRef]:
    """Delete what ``idle_refs`` lets go; returns that, and what stays with its reason.

    Each is looked at again right before it is deleted; one that moved meanwhile stays. Raises ``ClockInDoubt``.
    """
    ctx.catalog.check_clock()
    return [found for found in list(idle_refs(ctx)) if found.kept is not None or _gone(ctx, found)]


def _gone(ctx: Context, found: IdleRef) -> bool:
    """Delete a ref that is where it was and still clean; whether it was. The catalog looks again as it deletes."""
    try:
        if found.type == "tag":
            if ctx.catalog.tag(ctx.repository_id, found.id).commit_id != found.commit_id:
                return False
            delete_tag(ctx, found.id)
            return True
        state = ctx.catalog.branch(ctx.repository_id, found.id)
        if state.commit_id != found.commit_id:
            return False
        ctx.catalog.delete_branch(ctx.repository_id, found.id, actor=ctx.actor, expected=state)
    except (BranchMoved, RefNotFound):
        return False
    return True


def _idle_days(ctx: Context, ref: Ref, now: int, limit: int | None) -> int | None:
    """For how many whole days a ref has not moved, if that is long enough for a rule."""
    if limit is None:
        return None
    moves = ctx.catalog.reflog(ctx.repository_id, ref.id, limit=_MOVES)
    at = next((move.at for move in moves if move.new == ref.commit_id), None)
    since = ctx.catalog.commit(ctx.repository_id, ref.commit_id).creation_date if at is None else at
    days = (now - since) // DAY
    return days if days >= limit else None


def _kept(ctx: Context, branch: str, protections: list[str]) -> str | None:
    if branch == ctx.repository.default_branch:
        return "it is the default branch"
    pattern = next((pattern for pattern in protections if fnmatchcase(branch, pattern)), None)
    if pattern is not None:
        return f"it is protected by {pattern!r}"
    change = next(iter(uncommitted(ctx, branch)), None)
    return None if change is None else f"it has uncommitted changes, {change.path!r} for one"
