"""Which commits a mark expires, and which refs the retention rules let go.

A plan is made of what the catalog held at one instant, read without a lock. It is carried out a few hundred commits at
a time, each step in a transaction that takes in which refs moved meanwhile. What a ref came to show since then lives,
with everything that it descends from, until the next mark. A dry run makes the same plan and stops there.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from lakeops.catalog.records import ChangeCounter, ExpectedState
from lakeops.catalog.retention import ExpiryStep
from lakeops.model.clock import parse_grace, retry
from lakeops.model.encoding import JsonRecord
from lakeops.model.errors import InvalidInput, MarkRefused, NotAsSeen, RefNotFound
from lakeops.model.graph import Lineage, RefMove
from lakeops.model.marks import Mark
from lakeops.model.protection import TAG_PROTECTION, Protection
from lakeops.model.records import RefRecord
from lakeops.model.retention import DAY, RetentionReason, Rules, live, only_for_mirrors, parse_rules, read_rules
from lakeops.ops.branch import delete_branch, delete_tag
from lakeops.ops.context import Context, pages
from lakeops.ops.diff import uncommitted

STEP = 500
"""Commits of one transaction."""

_TRIES = 4
"""How often rules may change under a plan."""


@dataclass(frozen=True, slots=True)
class MarkDecision:
    """The decision of a mark about commits: which live and why, and which do not.

    ``carried`` were expired by an earlier mark that was not swept, and stay expired. ``revived`` of them live again.
    ``only_for_mirrors`` has, by mirror, the commits that would not live but for it.
    """

    kept: dict[str, RetentionReason]
    expired: frozenset[str]
    carried: frozenset[str]
    revived: frozenset[str]
    only_for_mirrors: dict[str, frozenset[str]]


@dataclass
class GcPlan:
    """A plan. ``to_expire`` are the expired and carried commits of what was ``decided``, by generation."""

    lineage: Lineage
    decided: MarkDecision
    to_expire: list[str]
    _spared: set[str] = field(default_factory=set)

    def choose(self, moves: Iterable[RefMove]) -> list[str]:
        """The next commits to expire, the last of ``to_expire``, once refs have made these moves.

        What refs came to show since the plan was made lives, and all that it descends from. What a new commit is on top
        of was a head then or since, or an old commit was merged, and counts as shown.
        """
        commits, shown, heads = self.lineage.commits, list[str | None](), {*self.lineage.branches.values()}
        for move in moves:
            shown += [move.old, move.new, *(() if move.new in commits else move.parents)]
        waiting = [commit_id for commit_id in shown if commit_id is not None and commit_id not in heads]
        while waiting:
            commit_id = waiting.pop()
            if commit_id in commits and commit_id not in self._spared:
                self._spared.add(commit_id)
                waiting += commits[commit_id].parents
        some = self.to_expire[-STEP:]
        return [commit_id for commit_id in some if commit_id not in self._spared or commits[commit_id].pending]


def make_plan(ctx: Context, now: int, proved: Collection[str] = ()) -> GcPlan:
    """Plan by the rules now, as if ``proved`` commits lived. Raises ``MarkRefused`` when rules keep changing."""

    def attempt() -> GcPlan | None:
        text = ctx.catalog.retention.get_rules(ctx.repository_id)
        rules = None if text is None else read_rules(text)
        window = 0 if rules is None else max(rules.undo_days, rules.mirror_lag_days) * DAY
        lineage = ctx.catalog.retention.lineage(ctx.repository_id, left_since=now - window)
        if lineage.rules != text:
            return None
        if proved:
            whole = {one: lineage.commits[one]._replace(expired=False) for one in proved if one in lineage.commits}
            lineage = replace(lineage, commits={**lineage.commits, **whole})
        kept, commits = live(lineage, rules, now), lineage.commits.values()
        gone = [node for node in commits if not node.expired and node.id not in kept]
        to_expire = [node.id for node in sorted(gone, key=lambda node: (node.generation, node.id))]
        pending = {node.id for node in commits if node.pending}
        sides = ({*to_expire} - pending, pending.intersection(to_expire), pending & kept.keys())
        expired, carried, revived = map(frozenset, sides)
        decided = MarkDecision(kept, expired, carried, revived, only_for_mirrors(lineage, rules, now))
        return GcPlan(lineage, decided, to_expire)

    return retry(attempt, _TRIES, lambda: _rules_keep_changing(ctx))


def expire_commits(ctx: Context, mark: Mark, since: int, now: int) -> MarkDecision:
    """Expire what the rules do not keep, and let live again what an earlier mark expired and they keep.

    ``since`` is the newest move of a ref when the mark began, ``now`` the time to decide by, in Unix seconds.
    """
    expired: set[str] = set()

    def attempt() -> MarkDecision | None:
        plan, carried = make_plan(ctx, now), set[str]()
        decided, total = plan.decided, len(plan.to_expire)
        for step in steps(ctx, mark, since, plan):
            if step.rules_changed:
                return None
            expired.update(step.expired)
            carried |= step.carried
            ctx.progress("expiring", total - len(plan.to_expire), total)
        ctx.catalog.retention.revive_commits(ctx.repository_id, mark.id, decided.revived)
        ours = frozenset(expired - decided.revived)
        return replace(decided, expired=ours, carried=frozenset(carried - ours))

    return retry(attempt, _TRIES, lambda: _rules_keep_changing(ctx))


def steps(ctx: Context, mark: Mark, since: int, plan: GcPlan) -> Iterator[ExpiryStep]:
    """Carry out a plan, transaction by transaction. The last step says when the rules are others now."""
    while plan.to_expire:
        step = ctx.catalog.retention.expire_by_mark(
            ctx.repository_id, mark.id, since=since, rules=plan.lineage.rules, choose=plan.choose
        )
        since = step.sequence
        if step.complete:
            del plan.to_expire[-STEP:]
        yield step
        if step.rules_changed:
            return


def _rules_keep_changing(ctx: Context) -> MarkRefused:
    return MarkRefused(f"the retention rules of {ctx.repository_id!r} changed {_TRIES} times meanwhile; mark again")


def get_rules(ctx: Context) -> Rules | None:
    """The repository's rules, if it has any."""
    text = ctx.catalog.retention.get_rules(ctx.repository_id)
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
        ctx.catalog.retention.set_rules(ctx.repository_id, None)
        return None
    checked = read_rules(rules) if isinstance(rules, str) else parse_rules(rules)
    _check_names(ctx, checked)
    ctx.catalog.retention.set_rules(ctx.repository_id, json.dumps(checked.to_json()))
    return checked.to_json()


def live_commits(ctx: Context) -> set[str]:
    """The ids of the commits that the retention rules keep now. Without rules, all commits that were not pruned.

    The next mark lets the other commits expire.
    """
    return set(make_plan(ctx, ctx.seconds()).decided.kept)


def get_grace(ctx: Context) -> dict[str, Any]:
    """The grace period: ``grace_seconds`` now, and ``pending_seconds`` from the time ``pending_from`` on, if set."""
    return ctx.catalog.retention.grace(ctx.repository_id).to_json(ctx.catalog.now())


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
    return ctx.catalog.retention.set_grace(ctx.repository_id, seconds).to_json(ctx.catalog.now())


def _check_names(ctx: Context, rules: Rules) -> None:
    """Refuse a name that nothing has: a rule that was misspelt would keep nothing, and nobody would notice."""
    looks = (("branch", rules.branches, ctx.catalog.refs.branch), ("tag", rules.tags, ctx.catalog.refs.tag))
    for what, entries, look in looks:
        for entry in entries:
            try:
                if entry.is_exact:
                    look(ctx.repository_id, entry.pattern)
            except RefNotFound:
                raise InvalidInput(
                    f"the rules name the {what} {entry.pattern!r}, which repository {ctx.repository_id!r} does not "
                    "have; correct it, or use a pattern for names to come",
                    kind="invalid_rules",
                ) from None


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
    rules = get_rules(ctx)
    if rules is None:
        return []
    now = ctx.seconds()
    protections = ctx.catalog.refs.all_protections(ctx.repository_id)
    kinds = (
        ("branch", ctx.catalog.refs.branches, rules.branch_expiry_days),
        ("tag", ctx.catalog.refs.tags, rules.tag_expiry_days),
    )
    found = []
    for kind, listing, limit_of in kinds:
        for ref in pages(partial(listing, ctx.repository_id)):
            days = _idle_days(ctx, ref, now, limit_of(ref.id))
            if days is not None:
                kept = _kept(ctx, ref.id, protections, is_tag=kind == "tag")
                found.append(IdleRef(kind, ref.id, ref.commit_id, days, kept))
    return found


def expire_refs(ctx: Context, only: Sequence[IdleRef] | None = None) -> list[IdleRef]:
    """Delete the branches and tags that the rules let go. Returns them, and those that stay with the reason.

    Each one is looked at again right before it is deleted. One that moved meanwhile stays. Raises ``MarkRefused``
    (``clock_in_doubt``).

    Args:
        only: those that somebody was shown. Others, and those that are at another commit by now, are left alone.
    """
    ctx.catalog.marks.check_clock()
    shown = None if only is None else {(ref.type, ref.id, ref.commit_id) for ref in only}
    found = [ref for ref in idle_refs(ctx) if shown is None or ref.kept or (ref.type, ref.id, ref.commit_id) in shown]
    return [ref for ref in found if ref.kept is not None or _delete_if_unmoved(ctx, ref)]


def _delete_if_unmoved(ctx: Context, found: IdleRef) -> bool:
    """Delete a ref unless it has moved or is dirty. Returns whether it did. The catalog checks again."""
    try:
        if found.type == "tag":
            delete_tag(ctx, found.id, old=found.commit_id)
            return True
        state = ctx.catalog.refs.branch(ctx.repository_id, found.id)
        if state.commit_id != found.commit_id:
            return False
        unused = ExpectedState(state, ChangeCounter("", below=True, total=0))
        delete_branch(ctx, found.id, pinned=unused)
    except (NotAsSeen, RefNotFound):
        return False
    return True


def _idle_days(ctx: Context, ref: RefRecord, now: int, limit: int | None) -> int | None:
    """For how many whole days a ref has not moved, if that is long enough for a rule."""
    if limit is None:
        return None
    moves = ctx.catalog.refs.reflog(ctx.repository_id, ref.id, limit=_MOVES)
    at = next((move.at for move in moves if move.new == ref.commit_id), None)
    since = ctx.catalog.commits.get(ctx.repository_id, ref.commit_id).creation_date if at is None else at
    days = (now - since) // DAY
    return days if days >= limit else None


def _kept(ctx: Context, name: str, protections: list[Protection], *, is_tag: bool) -> str | None:
    """The reason to keep an idle ref. None when it may be deleted."""
    if not is_tag and name == ctx.repository.default_branch:
        return "it is the default branch"
    patterns = (one.pattern for one in protections if (one.kind == TAG_PROTECTION) == is_tag)
    pattern = next((pattern for pattern in patterns if fnmatchcase(name, pattern)), None)
    if pattern is not None:
        return f"it is protected by {pattern!r}"
    change = None if is_tag else next(uncommitted(ctx, name), None)
    return None if change is None else f"it has uncommitted changes, such as {change.path!r}"
