"""Finding the commit that made something wrong, in as few looks as a binary search takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lakeops.model import graph
from lakeops.model.bisection import Search, between
from lakeops.model.errors import InvalidInput, NotFound
from lakeops.model.records import Commit
from lakeops.ops.context import Context, require_live
from lakeops.ops.resolve import lookup, resolve_commit

MOST_SHOWN = 10


def nothing_told(ids: Sequence[str]) -> NotFound:
    """The error of a search that ends with several commits, of which one is the first bad one."""
    shown = ", ".join(one[:16] for one in ids[:MOST_SHOWN])
    more = f" and {len(ids) - MOST_SHOWN:,} more" if len(ids) > MOST_SHOWN else ""
    return NotFound(f"the first bad commit is one of these, and nothing can be told of them: {shown}{more}")


def bisect(
    ctx: Context,
    good: str,
    bad: str,
    is_good: Callable[[Commit], bool | None],
    *,
    first_parent: bool = False,
    on_left: Callable[[int], None] | None = None,
) -> Commit:
    """The first bad commit on the ways from a good one to a bad one, as ``git bisect`` finds it. Changes nothing.

    ``good`` and ``bad`` are taken to be so, and are not looked at.

    Args:
        good: any ref that ``bad`` descends from.
        bad: any ref.
        is_good: looks at a commit. None: nothing can be told of this one, and another one is asked.
        first_parent: look at the history of ``bad`` alone, and not at what was merged into it: a merge that brought
            the fault is the answer then.
        on_left: called before each look with how many commits may still be the first bad one.

    Raises:
        InvalidInput: the bad commit does not descend from the good one.
        NotFound: nothing could be told of the commits that are left.
        RefNotFound, CommitExpired: there is no such commit, or retention took one that had to be looked at.
    """
    get = lookup(ctx).get
    first, last = resolve_commit(ctx, good), resolve_commit(ctx, bad)
    if first.id == last.id or not graph.is_ancestor(get, first.id, last.id):
        raise InvalidInput(f"{bad!r} does not descend from {good!r}; give a good commit and a later, bad one")
    search = Search(between(get, first.id, last.id, first_parent=first_parent))
    while not search.is_done:
        commit = search.next()
        if commit is None:
            raise nothing_told([one.id for one in search.left])
        if on_left is not None:
            on_left(len(search.left))
        search.tell(commit, is_good(require_live(commit)))
    return search.left[0]
