"""When a deletion is too large to be meant: the fuse of every verb that deletes by a comparison."""

SHARE = 0.3
"""The share of all objects that may go without being told to."""

FLOOR = 100
"""So many objects may always go: where there are few, a share says little."""


def is_blown(doomed: int, total: int) -> bool:
    """Whether deleting so many of all objects needs somebody to say that it is meant."""
    return doomed > max(FLOOR, SHARE * total)
