"""What a task tells of a merge conflict: a table in its log, and an XCom that later tasks can read.

A failed task has no result, so the XCom has a key of its own, ``conflicts``. It is bounded: the log and the error have
every path.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from lakeops.model.errors import LakeopsError, MergeConflict

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lakeops.lake import Repository

XCOM_KEY = "conflicts"
XCOM_PATHS = 1000
TABLE_ROWS = 50

Row = dict[str, Any]


class Log(Protocol):
    """Something that takes errors."""

    def error(self, event: Any, *args: Any) -> Any:  # noqa: ANN401 - as structlog has it
        """Note an error."""
        ...


def report(
    conflict: MergeConflict, repository: Repository, sides: tuple[str, str] | None, context: Context, log: Log
) -> None:
    """Write the table to the task's log and push the XCom. What cannot be looked up is left out of the table."""
    rows = table(conflict, repository, sides)
    log.error("%s", shown(rows, conflict.conflict_count))
    context["ti"].xcom_push(
        key=XCOM_KEY,
        value={
            "source": conflict.source,
            "destination": conflict.destination,
            "conflict_count": conflict.conflict_count,
            "conflicts": conflict.conflicts[:XCOM_PATHS],
            "table": rows,
        },
    )


def table(conflict: MergeConflict, repository: Repository, sides: tuple[str, str] | None) -> list[Row]:
    """The first conflicting paths, each with what is there on either side: a size in bytes, or None when deleted."""
    rows: list[Row] = [{"path": path} for path in islice(conflict.conflicts, TABLE_ROWS)]
    if sides is None:
        return rows
    for row in rows:
        for name, ref in zip(("source", "destination"), sides, strict=True):
            try:
                handle = repository.ref(ref)
                row[name] = handle.stat(row["path"]).size_bytes if handle.exists(row["path"]) else None
            except LakeopsError:  # the ref is gone, or expired, since
                return [{"path": path["path"]} for path in rows]
    return rows


def shown(rows: list[Row], count: int) -> str:
    """The table as text."""
    cells = [("path", "source", "destination")] if any("source" in row for row in rows) else [("path",)]
    cells += [(row["path"], *(_size(row[name]) for name in ("source", "destination") if name in row)) for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    if count > len(rows):
        lines.append(f"... and {count - len(rows):,} more, all listed below")
    return "\n".join([f"Conflicts: {count:,}", *lines])


def _size(size: int | None) -> str:
    return "deleted" if size is None else f"{size:,} B"
