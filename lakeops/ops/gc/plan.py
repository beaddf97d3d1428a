"""Which commits a mark expires: planned beside writers, carried out in small steps.

A plan is made of what the catalog held at one instant, read without a lock. It is carried out a few hundred commits at
a time, each step in a transaction of its own that takes in which refs moved meanwhile. What a ref came to show since
then lives, with everything that it descends from, until the next mark: so a plan is never made again because others go
on working. A dry run makes the same plan and stops there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from lakeops.catalog.base import Step
from lakeops.model.errors import MarkRefused
from lakeops.model.lineage import Lineage, Move
from lakeops.model.marks import Mark
from lakeops.model.retention import DAY, Kept, Rules, live, only_for_mirrors, read_rules
from lakeops.ops.context import Context

STEP = 500
"""Commits of one transaction."""

_TRIES = 4
"""How often rules may change under a plan."""


@dataclass
class Plan:
    """Which commits live and which do not.

    Attributes:
        lineage: what that was decided on.
        kept: the commits that live, and why.
        only_for_mirrors: mirrors by name, to the commits that would not live but for this one.
        doomed: those that do not: live ones that expire, and pending ones that stay expired.
    """

    lineage: Lineage
    kept: dict[str, Kept]
    only_for_mirrors: dict[str, frozenset[str]] = field(default_factory=dict)
    doomed: list[str] = field(init=False)
    _spared: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        commits = self.lineage.commits.values()
        gone = [node for node in commits if not node.expired and node.id not in self.kept]
        self.doomed = [node.id for node in sorted(gone, key=lambda node: (node.generation, node.id))]
        self._heads = {*self.lineage.branches.values()}

    def foretold(self) -> Decided:
        """What becomes of the commits when nothing moves meanwhile."""
        commits = self.lineage.commits
        carried = {commit_id for commit_id in self.doomed if commits[commit_id].pending}
        revived = {commit_id for commit_id in self.kept if commits[commit_id].pending}
        gone = frozenset({*self.doomed} - carried)
        return Decided(self.kept, gone, frozenset(carried), frozenset(revived), self.only_for_mirrors)

    def spare(self, moves: Iterable[Move]) -> None:
        """Let live what refs came to show since the plan was made, and all that it descends from.

        What a new commit is on top of was a head when the plan was made, or was made since: it lives anyway. If not,
        an old commit was merged, and counts as shown.
        """
        waiting = [commit_id for move in moves for commit_id in self._shown(move) if commit_id not in self._heads]
        commits = self.lineage.commits
        while waiting:
            commit_id = waiting.pop()
            if commit_id in commits and commit_id not in self._spared:
                self._spared.add(commit_id)
                waiting += commits[commit_id].parents

    def chosen(self, most: int) -> list[str]:
        """The next commits to decide about, those that were spared left out; the last ``most`` of ``doomed``."""
        some = self.doomed[-most:]
        pending = self.lineage.commits
        return [commit_id for commit_id in some if commit_id not in self._spared or pending[commit_id].pending]

    def _shown(self, move: Move) -> Iterable[str]:
        """What the plan knows of a move. A commit that it does not know is a new one, on top of its parents."""
        known = self.lineage.commits
        below = () if move.new in known else move.parents
        return (commit_id for commit_id in (move.old, move.new, *below) if commit_id is not None)


@dataclass(frozen=True, slots=True)
class Decided:
    """What a mark does to commits.

    Attributes:
        kept: the commits that the rules keep, and why.
        expired: those that were live and are expired.
        carried: those that an earlier mark had expired, was not swept for, and that stay expired.
        revived: those of them that live again.
        only_for_mirrors: mirrors by name, to the commits that would not live but for this one.
    """

    kept: dict[str, Kept]
    expired: frozenset[str]
    carried: frozenset[str]
    revived: frozenset[str]
    only_for_mirrors: dict[str, frozenset[str]] = field(default_factory=dict)


def make_plan(ctx: Context, now: int) -> Plan:
    """What the rules say now. Raises ``MarkRefused`` when they change all the time."""
    for _ in range(_TRIES):
        text = ctx.catalog.get_rules(ctx.repository_id)
        rules = None if text is None else read_rules(text)
        lineage = ctx.catalog.lineage(ctx.repository_id, left_since=now - _window(rules))
        if lineage.rules == text:
            return Plan(lineage, live(lineage, rules, now), only_for_mirrors(lineage, rules, now))
    raise _restless(ctx)


def carry_out(ctx: Context, mark: Mark, since: int, now: int) -> Decided:
    """Expire what the rules do not keep, and let live again what an earlier mark expired and they keep.

    Args:
        ctx: the repository.
        mark: the mark, which has begun.
        since: the newest move of a ref when it began.
        now: the time to decide by, in Unix seconds.
    """
    expired: set[str] = set()
    for _ in range(_TRIES):
        plan = make_plan(ctx, now)
        carried: set[str] = set()
        total, changed = len(plan.doomed), False
        foretold = plan.foretold()
        for step in steps(ctx, mark, since, plan):
            expired |= step.expired
            carried |= step.carried
            changed = step.rules_changed
            ctx.progress("expiring", total - len(plan.doomed), total)
        if not changed:
            ctx.catalog.revive_commits(ctx.repository_id, mark.id, foretold.revived)
            ours = frozenset(expired - foretold.revived)
            return replace(foretold, expired=ours, carried=frozenset(carried - ours))
    raise _restless(ctx)


def steps(ctx: Context, mark: Mark, since: int, plan: Plan) -> Iterator[Step]:
    """Carry out a plan, transaction by transaction; the last step says when the rules are others now."""

    def choose(moves: Sequence[Move]) -> Sequence[str]:
        plan.spare(moves)
        return plan.chosen(STEP)

    while plan.doomed:
        step = ctx.catalog.expire_by_mark(
            ctx.repository_id, mark.id, since=since, rules=plan.lineage.rules, choose=choose
        )
        since = step.sequence
        if step.complete:
            del plan.doomed[-STEP:]
        yield step
        if step.rules_changed:
            return


def _window(rules: Rules | None) -> int:
    """For how long what a ref showed may matter, in seconds."""
    return 0 if rules is None else max(rules.undo_days, rules.mirror_lag_days) * DAY


def _restless(ctx: Context) -> MarkRefused:
    return MarkRefused(f"the retention rules of {ctx.repository_id!r} changed {_TRIES} times meanwhile; mark again")
