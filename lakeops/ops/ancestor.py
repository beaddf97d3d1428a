"""Inputs and decision of a merge: the best common ancestor of two commits, or the merge of several that are as good.

Several come from criss-cross histories: two branches that took each other's changes at once. As git's recursive merge
does, they are merged into one, oldest first, over their own bases, and so on down. The outcome follows from the commits
alone. It is never published: its files are kept in memory.

Levels further down are looked at only where the outcome depends on them. One that retention took, or that lies deeper
than ``DEEPEST``, counts as unknown: a path on which the bases above it differ is then a conflict.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model import graph
from lakeops.model.errors import InvalidInput, MergeConflict, PreconditionFailed
from lakeops.model.records import Change, Commit, Strategy
from lakeops.model.sanitising import excerpt
from lakeops.ops.context import Context, history_of, watched
from lakeops.ops.history import NEAR, merge_bases
from lakeops.ranges.diff import diff, each_change
from lakeops.ranges.merge import MergePlan, bases_matter, merged_base, plan_merge, preview
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.range_merge import sides_behind
from lakeops.ranges.read import RangeReader
from lakeops.store import layout
from lakeops.store.disk_cache import with_scratch

DEEPEST = 50
"""Levels of bases of bases."""
_POINTER = r"(^|/)metadata\.json$"
"""The object that is an Iceberg table's current metadata file."""
_LOG = re.compile("(?s)(.*?/)?_delta_log/")
"""The folder of a Delta table's log."""


@dataclass(frozen=True)
class Ancestor:
    """The base of a merge, made of some commits. ``reader`` reads its metarange.

    The metarange is right at every path at which the sides differ.
    """

    metarange: Metarange
    reader: RangeReader
    commits: tuple[Commit, ...]


def _fold(ctx: Context, bases: Sequence[Commit], sides: tuple[Metarange, Metarange]) -> Ancestor:
    """The ancestor of two sides with these bases. Raises ``CommitExpired`` where retention took one of them."""
    # A cache of its own: the files are gone when this is.
    get, reader = history_of(ctx), RangeReader(with_scratch(ctx.readable))
    read: dict[str, Commit] = {}
    done: dict[tuple[int, tuple[str, ...]], Metarange] = {}

    def folded(bases: Sequence[Commit], sides: tuple[Metarange, Metarange], level: int) -> Metarange:
        """The merge of the bases, or a metarange that is the same at every path at which the sides differ."""
        # With three branches or more, several merges may need the same merged base.
        key = level, tuple(base.id for base in bases)
        if key in done:
            return done[key]
        trees = [ctx.metarange(base) for base in bases]
        read.update((base.id, base) for base in bases)
        if len(trees) == 1 or not bases_matter(reader, sides, trees):
            return trees[0]
        merged, tips = trees[0], [bases[0].id]
        for base, tree in zip(bases[1:], trees[1:], strict=True):
            older = graph.merge_bases(get, tips, [base.id])
            below: Metarange | None = None  # where nobody knows it
            if level < DEEPEST and not any(one.expired for one in older):
                below = folded(older, (tree, merged), level + 1) if older else Metarange.empty()
            tips.append(base.id)
            label = sha256("\n".join(sorted(tips)).encode()).hexdigest()
            split, attempt = ctx.repository.split, ctx.ids.new()
            merged = merged_base(reader, below, tree, merged, label=label, split=split, attempt=attempt)
        done[key] = merged
        return merged

    return Ancestor(folded(bases, sides, 0), reader, tuple(read.values()))


@dataclass(frozen=True)
class MergeInputs:
    """The commits of a merge.

    ``bases`` is one commit, or the best common ancestors of a criss-cross history, oldest first. ``get`` has the
    commits that were read to find them.
    """

    bases: tuple[Commit, ...]
    source: Commit
    destination: Commit
    get: graph.ReadAhead | None = field(default=None, compare=False)

    def is_base(self, side: Commit) -> bool:
        """Whether one of the two sides is itself the base: nothing to merge, or nothing to merge with."""
        return len(self.bases) == 1 and self.bases[0].id == side.id

    @property
    def commits(self) -> tuple[Commit, ...]:
        """The commits of both sides and the bases."""
        return (self.source, self.destination, *self.bases)


def check_strategy(strategy: str | Strategy | None) -> Strategy | None:
    """The strategy that a name stands for. Raises ``InvalidInput``."""
    try:
        return None if strategy is None else Strategy(strategy)
    except ValueError:
        known = ", ".join(member.value for member in Strategy)
        raise InvalidInput(f"unknown strategy {excerpt(strategy)}; choose one of {known}") from None


def sides_of_merge(ctx: Context, source: Commit, destination: Commit, names: tuple[str, str]) -> MergeInputs:
    """The commits of a merge. ``names`` are those of source and destination, for errors.

    Raises ``PreconditionFailed`` (``no_merge_base``); ``CommitExpired`` where the common ancestor was pruned.
    """
    near = history_of(ctx, most=NEAR)
    bases = merge_bases(ctx, destination.id, source.id, near)
    if not bases:
        raise PreconditionFailed(f"{names[0]!r} and {names[1]!r} share no history", kind="no_merge_base")
    return MergeInputs(tuple(bases), source, destination, near)


def read_sides(ctx: Context, sides: MergeInputs) -> tuple[Ancestor, Metarange, Metarange]:
    """The ancestor of a merge, and the metaranges of source and destination. Raises ``CommitExpired``."""
    new, here, *bases = ctx.metaranges(sides.source, sides.destination, *sides.bases)
    if len(bases) == 1:
        return Ancestor(bases[0], ctx.reader, sides.bases), new, here
    return _fold(ctx, sides.bases, (new, here)), new, here


Rebase = Callable[[Ancestor, Metarange, Metarange, MergePlan], tuple[MergePlan, list[str]]]
"""Settles conflicts of a plan from the ancestor, the source and the destination. Says why others are left."""


def decide(
    ctx: Context,
    sides: MergeInputs,
    strategy: Strategy | None,
    names: tuple[str, str],
    *,
    replayed: bool = False,
    rebase: Rebase | None = None,
) -> tuple[MergePlan, tuple[Commit, ...]]:
    """Plan a merge, path by path. Returns the plan, and the commits whose ranges it may reuse.

    Raises ``MergeConflict`` with all conflicting paths that ``rebase`` leaves, Iceberg tables that a strategy would
    tear apart, and logs of Delta tables that both sides changed.
    """
    base, new, here = read_sides(ctx, sides)
    engine = ctx.engine() if base.reader is ctx.reader else None  # a merged base lies where workers do not see it
    plan = plan_merge(base.reader, base.metarange, new, here, strategy, engine=engine)
    reasons: list[str] = []
    for path in plan.settled.filter(pc.match_substring_regex(plan.settled, _POINTER)).to_pylist():
        found = [one for one in (ctx.reader.stat(side, path) for side in (new, here)) if one]
        if any(one.physical_address.startswith(layout.TABLES) for one in found):
            plan.conflicts.append(path)
            reasons.append(f"table {path.rpartition('/')[0]}: a strategy would mix the files of two tables")
    if plan.conflicts and rebase is not None:
        plan, reasons = rebase(base, new, here, plan)
    reasons += _torn(base, new, here, plan, strategy)
    if plan.conflicts:
        raise MergeConflict(*names, plan.conflicts, replayed, reasons=reasons)
    return plan, (*base.commits, sides.source)


def _torn(base: Ancestor, new: Metarange, here: Metarange, plan: MergePlan, strategy: Strategy | None) -> list[str]:
    """Add to a plan's conflicts what the destination changed in a Delta table's log that the plan changes, too."""
    # In a range that is taken whole the destination has what the base has. So only folders that cross its ends matter.
    sides = [] if here.id == base.metarange.id else [(plan.onto, here), (here, plan.onto)]
    ends = [one.column(name, one.without(other)) for one, other in sides for name in ("first_path", "last_path")]
    paths = [plan.changes.column("path"), *ends]
    inside = [path for each in paths for path in each.filter(pc.match_substring(each, "_delta_log/")).to_pylist()]
    reasons = []
    for log in sorted({found[0] for found in map(_LOG.match, inside) if found}):
        ours, theirs, between = (
            {change.path for change in each_change(diff(base.reader, *two, prefix=log))}
            for two in ((base.metarange, here), (base.metarange, new), (new, here))
        )
        ours, theirs = ours & between, theirs & between
        (ours if strategy is Strategy.SOURCE_WINS else theirs).difference_update(plan.settled.to_pylist())
        if ours and theirs:
            plan.conflicts[:] = sorted({*plan.conflicts, *ours}, key=str.encode)
            reasons.append(f"table {log[:-12]}: both sides changed its Delta log")
    return reasons


def preview_changes(
    ctx: Context, sides: MergeInputs, strategy: Strategy | None = None, *, prefix: str = ""
) -> Iterator[Change]:
    """The changes that ``decide`` would make in the destination, by path, and its conflicts; read while you iterate."""
    return each_change(preview_tables(ctx, sides, strategy, prefix=prefix))


def preview_tables(
    ctx: Context, sides: MergeInputs, strategy: Strategy | None = None, *, prefix: str = "", after: str = ""
) -> Iterator[pa.Table]:
    """``preview_changes`` as tables of ``ranges.diff.DIFF_SCHEMA``. Ranges before ``after`` are left out, unread."""

    def found() -> Iterator[pa.Table]:
        base, new, here = read_sides(ctx, sides)
        before = base.metarange
        if after:
            (before, new), here = sides_behind(before, new, after), here.behind(after)
        yield from preview(base.reader, before, new, here, strategy, prefix=prefix)

    return watched(ctx, sides.commits, found())
