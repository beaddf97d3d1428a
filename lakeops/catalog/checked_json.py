"""JSON columns whose damage is told where it is, and not by the database driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import JSON, Dialect
from sqlalchemy.types import TypeDecorator


class Unreadable:
    """What a JSON column holds that is no JSON. It fits nothing, so whoever decodes the row stumbles over it."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __repr__(self) -> str:
        return f"text that is no JSON ({self.reason})"


class CheckedJson(TypeDecorator[Any]):
    """JSON; what cannot be parsed comes as ``Unreadable``, so that one damaged row stops no query."""

    impl = JSON
    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:
        """The dialect's own, which raises, with its errors caught."""
        parse = super().result_processor(dialect, coltype)
        if parse is None:
            return None

        def process(value: Any) -> Any:  # noqa: ANN401 - JSON is anything
            try:
                return parse(value)
            except (ValueError, TypeError) as error:
                return Unreadable(" ".join(str(error).split()))

        return process
