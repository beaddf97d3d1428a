"""Which statements a piece of work sends to a catalog's database."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
    """Statements on lakeops' tables, without those that begin a transaction or ask for the time."""
    return [text for text in seen if "lakeops_" in text]


@contextmanager
def transactions(*catalogs: Any) -> Iterator[list[str]]:
    """Collects the transactions of a block: ``read`` or ``write``."""
    seen: list[str] = []
    with ExitStack() as stack:
        for catalog in catalogs:
            stack.enter_context(_noting(catalog.database.dialect, seen))
        yield seen


@contextmanager
def _noting(dialect: Any, seen: list[str]) -> Iterator[None]:
    def begin(conn: Any, *, write: bool) -> None:
        seen.append("write" if write else "read")
        type(dialect).begin(dialect, conn, write=write)

    dialect.begin = begin  # in front of the class's own
    try:
        yield
    finally:
        del dialect.begin
