"""Reading history: logs and merge bases."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from lakeops.model import graph
from lakeops.model.errors import NoMergeBase
from lakeops.model.records import Commit
from lakeops.model.refs import resolve
from lakeops.ops.context import Context
from lakeops.ops.resolve import lookup, resolve_commit


def log(ctx: Context, ref: str, *, first_parent: bool = False, amount: int | None = None) -> Iterator[Commit]:
    """Commits reachable from ``ref``, newest first and children before parents; expired ones are shown too."""
    names = lookup(ctx, ahead=amount or 1)
    start = names.get(resolve(ref, names))
    return islice(graph.log(names.get, start.id, first_parent=first_parent), amount)


def merge_base(ctx: Context, left: str, right: str) -> Commit:
    """A best common ancestor of two refs. Raises ``NoMergeBase``."""
    get = lookup(ctx).get
    ids = (resolve_commit(ctx, left, live=False).id, resolve_commit(ctx, right, live=False).id)
    base = graph.merge_base(get, *ids)
    if base is None:
        raise NoMergeBase(f"{left!r} and {right!r} share no history")
    return get(base)
