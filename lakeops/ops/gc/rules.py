"""Retention rules and grace period of a repository, and the commits that the rules keep now."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from lakeops.model.clock import unix_seconds
from lakeops.model.errors import BranchMoved, InvalidRules, RefNotFound
from lakeops.model.marks import parse_grace
from lakeops.model.records import Ref
from lakeops.model.retention import Rules, parse_rules, read_rules
from lakeops.ops.branch import delete_tag
from lakeops.ops.context import Context, pages
from lakeops.ops.diff import uncommitted
from lakeops.ops.gc.plan import make_plan


def get_rules(ctx: Context) -> Rules | None:
    """The repository's rules, if it has any."""
    text = ctx.catalog.get_rules(ctx.repository_id)
    return None if text is None else read_rules(text)


def set_rules(ctx: Context, given: Mapping[str, Any] | str | None) -> Rules | None:
    """Replace the rules: parsed JSON, JSON text, or None for no rules at all.

    Raises:
        InvalidRules: they make no sense, or have an entry for one branch or tag that does not exist.
        ReadOnlyRepository: the repository is a mirror; rules belong to its source.
    """
    if given is None:
        ctx.catalog.set_rules(ctx.repository_id, None)
        return None
    rules = read_rules(given) if isinstance(given, str) else parse_rules(given)
    _check_names(ctx, rules)
    ctx.catalog.set_rules(ctx.repository_id, rules.to_text())
    return rules


def live_commits(ctx: Context) -> set[str]:
    """The ids of the commits that the rules keep now; all that are not gone for good where there are no rules."""
    return set(make_plan(ctx, unix_seconds(ctx.catalog.now())).kept)


def get_grace(ctx: Context) -> dict[str, Any]:
    """The grace period now, and a shorter one that is waiting."""
    return ctx.catalog.grace(ctx.repository_id).to_json(ctx.catalog.now())


def set_grace(ctx: Context, given: float | str | timedelta) -> dict[str, Any]:
    """Change the grace period; returns what ``get_grace`` does. Raises ``InvalidInput``."""
    seconds = parse_grace(int(given.total_seconds()) if isinstance(given, timedelta) else given)
    return ctx.catalog.set_grace(ctx.repository_id, seconds).to_json(ctx.catalog.now())


def _check_names(ctx: Context, rules: Rules) -> None:
    """Refuse a name that nothing has: a rule that was misspelt would keep nothing, and nobody would notice."""
    looks = (("branch", rules.branches, ctx.catalog.branch), ("tag", rules.tags, ctx.catalog.tag))
    for what, entries, look in looks:
        for entry in entries:
            if entry.is_exact and not _is_there(partial(look, ctx.repository_id, entry.pattern)):
                raise InvalidRules(
                    f"the rules name the {what} {entry.pattern!r}, which repository {ctx.repository_id!r} does not "
                    "have; correct it, or use a pattern for names to come"
                )


def _is_there(look: Callable[[], object]) -> bool:
    try:
        look()
    except RefNotFound:
        return False
    return True


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
