"""Values that may have come out of a template, which gives text whatever it was made of."""

from __future__ import annotations

from lakeops.model.errors import InvalidInput

_TRUE = {"true", "yes", "1", "on"}
_FALSE = {"false", "no", "0", "off", "none", ""}


def number(value: int | str | None) -> int | None:
    """A whole number; empty text means none. Raises ``InvalidInput``."""
    if value is None or value in {"", "None"}:
        return None
    try:
        return int(value)
    except ValueError:
        raise InvalidInput(f"{value!r} is not a number") from None


def truth(value: bool | str | None) -> bool:
    """Yes or no. Raises ``InvalidInput`` for anything that is neither: a guess could delete something."""
    word = str(value).strip().lower()
    if word not in _TRUE | _FALSE:
        raise InvalidInput(f"{value!r} is neither true nor false")
    return word in _TRUE
