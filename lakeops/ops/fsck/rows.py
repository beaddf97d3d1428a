"""The catalog's rows: each is what its digest covers, none is missing, and refs are where the reflog leads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from lakeops.catalog.records import Move, Records
from lakeops.model.findings import Finding, found
from lakeops.model.text import excerpt


def check_rows_of_tables(records: Records) -> Iterator[Finding]:
    """Rows that were changed, removed or added past the transitions."""
    for flaw in records.flaws:
        where = f"table {flaw.table}, row {excerpt(flaw.key)}"
        if flaw.reason:
            yield found("row_unreadable", where, flaw.reason)
        else:
            yield found("row_altered", where, "the row is not what its digest covers")
    for table in records.wrong_tables:
        yield found("rows_missing", f"table {table}", "rows of the repository were removed or added by hand")


def check_reflog(records: Records) -> Iterator[Finding]:
    """Whether the moves of each ref follow one another and lead to where it points; deleted refs are absent."""
    points = {("branch", branch.id): branch.commit_id for branch in records.branches}
    points |= {("tag", tag.id): tag.commit_id for tag in records.tags}
    unreadable = {("branch", flaw.key) for flaw in records.flaws if flaw.table == "lakeops_branch" and flaw.reason}
    for ref, moves in groupby(records.moves, key=lambda move: (move.kind, move.ref)):
        last: Move | None = None
        where = " ".join(map(str, ref))
        for move in moves:
            if last is not None and move.old != last.new:
                message = (
                    f"one move ends at {last.new or 'nothing'}, and the next one begins at {move.old or 'nothing'}"
                )
                yield found("reflog_broken", where, message)
            last = move
        points_to = points.pop(ref, None)
        if last is not None and points_to != last.new and ref not in unreadable:
            message = (
                f"it is at {points_to or 'nothing'}, and its last move in the reflog led to {last.new or 'nothing'}"
            )
            yield found("reflog_mismatch", where, message)
    for (kind, name), commit_id in points.items():
        yield found("reflog_mismatch", f"{kind} {name}", f"it is at {commit_id}, and no move in the reflog led there")


def _shown(commit_id: str | None) -> str:
    return "no commit" if commit_id is None else f"commit {commit_id}"
