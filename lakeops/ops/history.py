"""Reading history: logs and merge bases."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice

from lakeops.model import graph
from lakeops.model.errors import NoMergeBase
from lakeops.model.records import Commit
from lakeops.model.refs import resolve
from lakeops.model.requests import check_amount
from lakeops.ops.context import Context, require_live
from lakeops.ops.resolve import lookup, resolve_commit


def log(ctx: Context, ref: str, *, first_parent: bool = False, amount: int | None = None) -> Iterator[Commit]:
    """Commits reachable from ``ref``, newest first and children before parents; expired ones are shown too.

    It ends where history was pruned: the last commits then have parents that are not shown.
    """
    if amount is not None:
        amount = min(check_amount(amount, "the amount of commits"), sys.maxsize)
    names = lookup(ctx, ahead=amount or 1)
    start = names.get(resolve(ref, names))
    walk = graph.log(names.get, start.id, first_parent=first_parent)
    return islice((commit for commit in walk if not commit.is_gone), amount)


def merge_base(ctx: Context, left: str, right: str) -> Commit:
    """A best common ancestor of two refs. Raises ``NoMergeBase``."""
    get = lookup(ctx).get
    ids = (resolve_commit(ctx, left, live=False).id, resolve_commit(ctx, right, live=False).id)
    base = graph.merge_base(get, *ids)
    if base is None:
        raise NoMergeBase(f"{left!r} and {right!r} share no history")
    return require_live(get(base)) if get(base).is_gone else get(base)
