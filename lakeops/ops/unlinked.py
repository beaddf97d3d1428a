"""What batches of this process hold back: objects that were put, and that no branch shows yet.

Links of a branch follow the order of the calls in a process. So every other verb that stages to the branch links
first what a batch holds back of the same paths.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Protocol

from lakeops.ops.context import Context


class Holder(Protocol):
    """Something that holds objects back."""

    def holds(self, path: str | None) -> bool:
        """Whether it holds back an object of this path, or any object when there is no path."""
        ...

    def link(self) -> None:
        """Stage what it holds back."""
        ...


_lock = Lock()
_holders: dict[tuple[int, str, str], list[Holder]] = {}


@contextmanager
def holding_back(ctx: Context, branch: str, holder: Holder) -> Iterator[None]:
    """Let ``link_held_back`` know of a holder for as long as the block runs."""
    place = _place(ctx, branch)
    with _lock:
        _holders.setdefault(place, []).append(holder)
    try:
        yield
    finally:
        with _lock:
            _holders[place].remove(holder)
            if not _holders[place]:
                del _holders[place]


def link_held_back(ctx: Context, branch: str, path: str | None = None, *, besides: Holder | None = None) -> None:
    """Link what others of this process hold back of a path of a branch, or of the whole branch.

    Raises what linking raises: the caller's own change would be covered by the older object later.
    """
    with _lock:
        others = [holder for holder in _holders.get(_place(ctx, branch), ()) if holder is not besides]
    for holder in others:
        if holder.holds(path):
            holder.link()


def _place(ctx: Context, branch: str) -> tuple[int, str, str]:
    return id(ctx.catalog), ctx.repository_id, branch  # a holder keeps its catalog alive, so the number is its own
