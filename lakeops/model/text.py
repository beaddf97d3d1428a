"""Text from outside: what any store and database can keep, and how it is shown in a message.

Names, paths, expressions and metadata come from users, files and other systems. PostgreSQL cannot keep NUL and UTF-8
has no lone surrogates, so both are refused wherever text comes in, and its size is bounded. A message that repeats
such a text must not be broken by a line end, redraw a terminal, or grow with its input.
"""

from __future__ import annotations

_SHOWN = 80


def excerpt(text: object) -> str:
    """The text in quotes on one line: unprintable characters escaped, only the beginning of a long one."""
    if not isinstance(text, str):
        return f"a value of type {type(text).__name__}"
    shown = text[:_SHOWN]
    while len(repr(shown)) > _SHOWN + 20:  # an escaped character takes up to ten
        shown = shown[: len(shown) * 3 // 4]
    return repr(text) if shown == text else f"{shown!r}... ({len(text)} characters)"


def flaw(text: object, *, at_most: int, at_least: int = 0) -> str | None:
    """Why a text cannot be kept, in words that follow "it"; None when it can.

    ``at_least`` and ``at_most`` bound its size in UTF-8 bytes.
    """
    if not isinstance(text, str):
        return "is not text"
    nul = text.find("\0")
    if nul >= 0:
        return f"has NUL at character {nul + 1}"
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        return f"has half of a character at character {error.start + 1}"
    if size < at_least:
        return "is empty" if size == 0 else f"takes {size} bytes in UTF-8, and needs {at_least}"
    return f"takes {size} bytes in UTF-8, and {at_most} is the limit" if size > at_most else None
