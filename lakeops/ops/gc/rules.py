"""Retention rules and grace period of a repository, and the commits that the rules keep now."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from lakeops.model.changes import Change
from lakeops.model.clock import unix_seconds
from lakeops.model.errors import (
    BranchMoved,
    InvalidInput,
    NotAsSeen,
    RefNotFound,
)
from lakeops.model.json_record import JsonRecord
from lakeops.model.marks import parse_grace
from lakeops.model.records import TAG_PROTECTION, Protection, RefRecord
from lakeops.model.rules import Rules, parse_rules, read_rules
from lakeops.ops.branch import delete_tag, drop_branch
from lakeops.ops.context import Context, pages
from lakeops.ops.diff import uncommitted_page
from lakeops.ops.gc.plan import make_plan


def get_rules(ctx: Context) -> Rules | None:
    """The repository's rules, if it has any."""
    text = ctx.catalog.get_rules(ctx.repository_id)
    return None if text is None else read_rules(text)


def set_rules(ctx: Context, rules: Mapping[str, Any] | str | None) -> dict[str, Any] | None:
    """Replace the retention rules. Returns them as they are kept.

    Args:
        rules: a mapping as JSON gives it, or JSON text. None removes the rules: then no commit expires.

    Raises:
        InvalidInput: ``invalid_rules``: they make no sense, or have an entry for one branch or tag that does not exist.
        PreconditionFailed: ``read_only_repository``: the repository is a mirror. Rules belong to its source.
    """
    if rules is None:
        ctx.catalog.set_rules(ctx.repository_id, None)
        return None
    checked = read_rules(rules) if isinstance(rules, str) else parse_rules(rules)
    _check_names(ctx, checked)
    ctx.catalog.set_rules(ctx.repository_id, checked.to_text())
    return checked.to_json()


def live_commits(ctx: Context) -> set[str]:
    """The ids of the commits that the retention rules keep now. Without rules, all commits that were not pruned.

    The next mark lets the other commits expire.
    """
    return set(make_plan(ctx, unix_seconds(ctx.catalog.now())).kept)


def get_grace(ctx: Context) -> dict[str, Any]:
    """The grace period: ``grace_seconds`` now, and ``pending_seconds`` from the time ``pending_from`` on, if set."""
    return ctx.catalog.grace(ctx.repository_id).to_json(ctx.catalog.now())


def set_grace(ctx: Context, grace: float | str | timedelta) -> dict[str, Any]:
    """Change the grace period for every process. Returns what ``grace`` returns.

    A longer grace period counts at once. A shorter one counts once the old one has passed, so that an attempt that
    began under the old one keeps its time.

    Args:
        grace: seconds, a text such as ``24h`` or ``7d``, or a timedelta.

    Raises:
        InvalidInput: the grace period is none, or too long.
        PreconditionFailed: ``read_only_repository``: the repository is a mirror.
    """
    seconds = parse_grace(int(grace.total_seconds()) if isinstance(grace, timedelta) else grace)
    return ctx.catalog.set_grace(ctx.repository_id, seconds).to_json(ctx.catalog.now())


def _check_names(ctx: Context, rules: Rules) -> None:
    """Refuse a name that nothing has: a rule that was misspelt would keep nothing, and nobody would notice."""
    looks = (("branch", rules.branches, ctx.catalog.branch), ("tag", rules.tags, ctx.catalog.tag))
    for what, entries, look in looks:
        for entry in entries:
            if entry.is_exact and not _is_there(partial(look, ctx.repository_id, entry.pattern)):
                raise InvalidInput(
                    f"the rules name the {what} {entry.pattern!r}, which repository {ctx.repository_id!r} does not "
                    "have; correct it, or use a pattern for names to come",
                    kind="invalid_rules",
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
class IdleRef(JsonRecord):
    """A branch or tag that a rule lets go.

    ``idle_days`` are whole days since it last moved, ``kept`` says why it stays all the same. None: it goes.
    """

    type: str
    id: str
    commit_id: str
    idle_days: int
    kept: str | None = None


def idle_refs(ctx: Context) -> list[IdleRef]:
    """Branches, then tags, that have been idle for longer than the rules allow. ``kept`` says why a ref stays."""
    return list(_idle_refs(ctx))


def _idle_refs(ctx: Context) -> Iterator[IdleRef]:
    rules = get_rules(ctx)
    if rules is None:
        return
    now = unix_seconds(ctx.catalog.now())
    protections = ctx.catalog.all_protections(ctx.repository_id)
    for ref in pages(partial(ctx.catalog.branches, ctx.repository_id)):
        days = _idle_days(ctx, ref, now, rules.branch_expiry_days(ref.id))
        if days is not None:
            yield IdleRef("branch", ref.id, ref.commit_id, days, _kept(ctx, ref.id, protections))
    for ref in pages(partial(ctx.catalog.tags, ctx.repository_id)):
        days = _idle_days(ctx, ref, now, rules.tag_expiry_days(ref.id))
        if days is not None:
            yield IdleRef("tag", ref.id, ref.commit_id, days, _protected(ref.id, protections, tag=True))


def expire_refs(ctx: Context, only: Sequence[IdleRef] | None = None) -> list[IdleRef]:
    """Delete the branches and tags that the rules let go. Returns them, and those that stay with the reason.

    Each one is looked at again right before it is deleted. One that moved meanwhile stays. Raises ``MarkRefused``
    (``clock_in_doubt``).

    Args:
        only: those that somebody was shown. Others, and those that are at another commit by now, are left alone.
    """
    ctx.catalog.check_clock()
    shown = None if only is None else {(ref.type, ref.id, ref.commit_id) for ref in only}
    found = [ref for ref in idle_refs(ctx) if shown is None or ref.kept or (ref.type, ref.id, ref.commit_id) in shown]
    return [ref for ref in found if ref.kept is not None or _delete_if_unmoved(ctx, ref)]


def _delete_if_unmoved(ctx: Context, found: IdleRef) -> bool:
    """Delete a ref that is where it was and still clean; whether it was. The catalog looks again as it deletes."""
    try:
        if found.type == "tag":
            delete_tag(ctx, found.id, old=found.commit_id)
            return True
        state = ctx.catalog.branch(ctx.repository_id, found.id)
        if state.commit_id != found.commit_id:
            return False
        drop_branch(ctx, found.id, state)
    except (BranchMoved, NotAsSeen, RefNotFound):
        return False
    return True


def _idle_days(ctx: Context, ref: RefRecord, now: int, limit: int | None) -> int | None:
    """For how many whole days a ref has not moved, if that is long enough for a rule."""
    if limit is None:
        return None
    moves = ctx.catalog.reflog(ctx.repository_id, ref.id, limit=_MOVES)
    at = next((move.at for move in moves if move.new == ref.commit_id), None)
    since = ctx.catalog.commit(ctx.repository_id, ref.commit_id).creation_date if at is None else at
    days = (now - since) // DAY
    return days if days >= limit else None


def _protected(name: str, protections: list[Protection], *, tag: bool) -> str | None:
    patterns = (one.pattern for one in protections if (one.kind == TAG_PROTECTION) == tag)
    pattern = next((pattern for pattern in patterns if fnmatchcase(name, pattern)), None)
    return None if pattern is None else f"it is protected by {pattern!r}"


def _kept(ctx: Context, branch: str, protections: list[Protection]) -> str | None:
    if branch == ctx.repository.default_branch:
        return "it is the default branch"
    protected = _protected(branch, protections, tag=False)
    if protected is not None:
        return protected
    change = _first_change(ctx, branch)
    return None if change is None else f"it has uncommitted changes, {change.path!r} for one"


def _first_change(ctx: Context, branch: str) -> Change | None:
    """An uncommitted change of a branch, found page by page, however much is staged."""
    found, after = uncommitted_page(ctx, branch)
    while not found and after is not None:
        found, after = uncommitted_page(ctx, branch, after=after)
    return found[0] if found else None
