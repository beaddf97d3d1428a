"""What callers ask by: names to look up, beginnings of names, amounts.

A name that breaks the naming rules is simply not there. But a database cannot even be asked for what is no text, and
a message must not grow with it.
"""

from __future__ import annotations

from lakeops.model.errors import InvalidInput, InvalidName
from lakeops.model.text import excerpt, flaw

MAX_ASKED_BYTES = 1024
MAX_AMOUNT = (1 << 63) - 1
"""What a database can count to."""


def check_asked(text: str, what: str) -> str:
    """A name or a part of one that the catalog can be asked for; it may be empty. Raises ``InvalidName``."""
    reason = flaw(text, at_most=MAX_ASKED_BYTES)
    if reason is not None:
        raise InvalidName(f"{excerpt(text)} cannot be {what}: it {reason}")
    return text


def check_amount(amount: int, what: str) -> int:
    """How many of something a caller wants: 0 or more. Raises ``InvalidInput``."""
    if isinstance(amount, bool) or not isinstance(amount, int):
        raise InvalidInput(f"{what} is {excerpt(amount)}; give a whole number")
    if not 0 <= amount <= MAX_AMOUNT:
        raise InvalidInput(f"{what} is {'below 0' if amount < 0 else 'too large'}; give 0 or more")
    return amount
