"""The limit of deletions that a comparison of listings computes. Above it, the caller must confirm them.

A sweep and a replication with deletion compare two listings. A listing that is wrong by much would delete by much.
"""

SHARE = 0.3
"""The share of all objects that may be deleted without confirmation."""

FLOOR = 100
"""How many objects may always be deleted: where there are few, a share says little."""


def exceeded(deleted: int, total: int) -> bool:
    """Whether deleting so many of all objects needs somebody's consent."""
    return deleted > max(FLOOR, SHARE * total)
