"""Cutting the rest of a sorted listing into stretches that hold about a page each, by what a page of it looks like.

Names are taken for numbers. The digits of a place are the characters that the page shows there, or all of their kind.
As far as the page's last name is from its first one, so far the next pages are supposed to reach. A wrong guess costs
requests and nothing else: whatever the ends are, the stretches between them hold everything once.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters, ascii_lowercase, ascii_uppercase, digits

_KINDS = tuple(
    frozenset(kind)
    for kind in (
        digits,
        digits + "abcdef",
        digits + "ABCDEF",
        digits + ascii_lowercase,
        digits + ascii_uppercase,
        digits + ascii_letters,
    )
)
_PLACES = 8
"""Characters behind the first one that differs that are looked at."""

_FULL = (9, 10)
"""What share of a page a stretch is meant to hold, so that it is rarely a page and a bit."""


def ends(names: Sequence[str], until: str | None, *, start: int, count: int) -> list[str]:
    """Up to ``count`` ascending names behind the last one and before ``until`` at which to cut what comes there.

    Args:
        names: a page, in order.
        until: the last name that may come. None for all.
        start: how many characters at the beginning of all names are no part of the numbers.
        count: how many ends at most.
    """
    if len(names) < 2 or names[0] == names[-1]:
        return []
    first, last = names[0], names[-1]
    shared = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    places = [_digits({name[at] for name in names if at < len(name)}) for at in range(shared, shared + _PLACES)]
    places = places[: places.index("")] if "" in places else places
    # The next pages may need a carry into what all names of this one share.
    while shared > start and first[shared - 1] in places[0]:
        shared -= 1
        places.insert(0, places[0])

    def value(name: str) -> int:
        number = 0
        for at, kind in enumerate(places, shared):
            number = number * len(kind) + (kind.index(name[at]) if at < len(name) else 0)
        return number

    total = 1
    for kind in places:
        total *= len(kind)
    here = value(last)
    step = max(1, (here - value(first)) * _FULL[0] // _FULL[1])
    numbers = range(here + step, min(total, here + step * count + 1), step)
    guessed = [last[:shared] + _name(number, places) for number in numbers]
    return [end for end in guessed if end > last and (until is None or end < until)]


def _digits(seen: set[str]) -> str:
    """The characters of a place, in order."""
    kind = next((kind for kind in _KINDS if seen <= kind), seen)
    return "".join(sorted(kind if seen else ()))


def _name(number: int, places: Sequence[str]) -> str:
    characters = []
    for kind in reversed(places):
        number, digit = divmod(number, len(kind))
        characters.append(kind[digit])
    return "".join(reversed(characters))
