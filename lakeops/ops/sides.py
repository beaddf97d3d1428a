"""The three sides of a merge, a revert or a cherry-pick, and the one answer what it does to the destination.

Whoever does it (``ops.merge``, ``ops.pick``) and whoever foretells it (``ops.diff``) asks here, with the same sides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from lakeops.engine.local import LocalEngine
from lakeops.engine.merging import plan_merge
from lakeops.model import graph
from lakeops.model.errors import InvalidInput, MergeConflict, NoMergeBase
from lakeops.model.records import Change, Commit, Strategy
from lakeops.model.text import excerpt
from lakeops.ops.ancestor import ancestor
from lakeops.ops.context import Context, require_live
from lakeops.ops.resolve import lookup, watched
from lakeops.ranges.diff import changes
from lakeops.ranges.foretell import foretold
from lakeops.ranges.merge import MergePlan


@dataclass(frozen=True)
class Sides:
    """What is merged into what, over what.

    ``bases`` is one commit, or the best common ancestors of a criss-cross history, oldest first.
    """

    bases: tuple[Commit, ...]
    source: Commit
    destination: Commit

    @property
    def up_to_date(self) -> bool:
        """Whether the source brings no commit that the destination does not have."""
        return [base.id for base in self.bases] == [self.source.id]

    @property
    def commits(self) -> tuple[Commit, ...]:
        """All of them."""
        return (self.source, self.destination, *self.bases)


@dataclass(frozen=True)
class Decision:
    """What to do to the destination, and the commits that this rests on."""

    plan: MergePlan
    rests_on: tuple[Commit, ...]


def check_strategy(strategy: str | Strategy | None) -> Strategy | None:
    """The strategy that a name stands for. Raises ``InvalidInput``."""
    if strategy is None:
        return None
    try:
        return Strategy(strategy)
    except ValueError:
        known = ", ".join(member.value for member in Strategy)
        raise InvalidInput(f"unknown strategy {excerpt(strategy)}; choose one of {known}") from None


def sides_of_merge(ctx: Context, source: Commit, destination: Commit, names: tuple[str, str]) -> Sides:
    """The sides of a merge. ``names`` are what source and destination are called.

    Raises:
        NoMergeBase: they share no history.
        CommitExpired: what they share was pruned.
    """
    bases = graph.merge_bases(lookup(ctx).get, [destination.id], [source.id])
    if not bases:
        raise NoMergeBase(f"{names[0]!r} and {names[1]!r} share no history")
    for base in bases:
        if base.is_gone:
            require_live(base)
    return Sides(tuple(bases), source, destination)


def decide(ctx: Context, sides: Sides, strategy: Strategy | None, names: tuple[str, str]) -> Decision:
    """What to change in the destination, path by path. Raises ``MergeConflict`` with all conflicting paths."""
    base = ancestor(ctx, sides.bases, sides.source, sides.destination)
    # Workers cannot read what lies in a directory of this machine.
    engine = ctx.engine if base.is_commit else LocalEngine()
    new, here = ctx.metarange(sides.source), ctx.metarange(sides.destination)
    plan = plan_merge(base.reader, base.metarange, new, here, strategy, engine=engine)
    if plan.conflicts:
        raise MergeConflict(*names, plan.conflicts)
    return Decision(plan, (*base.commits, sides.source))


def foretell(ctx: Context, sides: Sides, strategy: Strategy | None = None, *, prefix: str = "") -> Iterator[Change]:
    """What ``decide`` would change in the destination, by path, and its conflicts; read as it is asked for."""

    def found() -> Iterator[Change]:
        base = ancestor(ctx, sides.bases, sides.source, sides.destination)
        new, here = ctx.metarange(sides.source), ctx.metarange(sides.destination)
        batches = foretold(base.reader, base.metarange, new, here, strategy, prefix=prefix)
        yield from chain.from_iterable(changes(batch) for batch in batches)

    return watched(ctx, sides.commits, found())
