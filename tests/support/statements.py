"""Which statements a piece of work sends to a catalog's database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event


@contextmanager
def statements(catalog: Any) -> Iterator[list[str]]:
    """Collects the statements of a block."""
    seen: list[str] = []

    def note(_conn: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        seen.append(statement)

    event.listen(catalog.database.engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(catalog.database.engine, "before_cursor_execute", note)


def ours(seen: list[str]) -> list[str]:
    """Those on lakeops' tables: not what begins a transaction or asks for the time."""
    return [text for text in seen if "lakeops_" in text]
