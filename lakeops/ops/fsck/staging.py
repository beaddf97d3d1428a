"""The staging area: tokens belong to one branch each, and every row under them could be committed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa

from lakeops.catalog.records import CatalogSnapshot, RefUpdate, StagedLine
from lakeops.model.errors import InvalidPath
from lakeops.model.findings import Finding, found
from lakeops.model.names import check_path
from lakeops.model.text import excerpt
from lakeops.ops.addresses import relative
from lakeops.ranges.entry_validation import proper

ReadPage = Callable[[tuple[str, str]], list[StagedLine]]
"""The next staged rows after a (token, path). None when there are no more."""


@dataclass(frozen=True, slots=True)
class StagedObjects:
    """The objects of some staged rows: ``path``, ``physical_address`` (as stored), ``checksum``, ``size_bytes``."""

    where: str
    table: pa.Table


def check_tokens(records: CatalogSnapshot) -> Iterator[Finding]:
    """What is wrong with the branches' tokens, and rows that no branch reads."""
    owners: dict[str, str] = {}
    for branch in records.branches:
        for token in branch.tokens:
            if token in owners:
                other = owners[token]
                message = f"it shares the staging token {token} with {'itself' if other == branch.id else other}"
                yield found("staging_token_shared", f"branch {branch.id}", message)
            owners[token] = branch.id
            if token in records.retired:
                message = f"its staging token {token} is retired already"
                yield found("staging_token_retired", f"branch {branch.id}", message)
    for token, rows in records.staged.items():
        if token not in owners:
            kind = "staged_rows_retired" if token in records.retired else "staged_rows_orphaned"
            message = f"{rows:,} staged rows of a token that no branch reads"
            yield found(kind, f"staging token {token}", message, count=rows)


def check_uploads(records: CatalogSnapshot) -> Iterator[Finding]:
    """Uploads that were given up."""
    for upload in records.uploads:
        if upload.started < records.overdue:
            message = f"begun on branch {upload.branch} at {upload.started:%Y-%m-%d %H:%M} UTC and never linked"
            yield found("upload_overdue", f"upload {upload.address}", message)


def check_rows(records: CatalogSnapshot, read: ReadPage) -> Iterator[Finding | StagedObjects]:
    """What is wrong with staged rows, and the objects of the others, a page at a time."""
    owners = {token: branch.id for branch in records.branches for token in branch.tokens}
    namespace = records.repository.storage_namespace
    after = ("", "")
    while page := read(after):
        after = (page[-1].token, page[-1].path)
        entries: dict[str, list[StagedLine]] = {}
        for line in page:
            if line.token in owners:
                where = f"branch {owners[line.token]}, path {line.path}"
                reason = _flaw(line)
                if reason is not None:
                    yield found("staged_row_invalid", where, f"the staged row {reason}")
                    continue
                if not line.tombstone:
                    entries.setdefault(owners[line.token], []).append(line)
        for branch, lines in entries.items():
            table = _table(lines)
            sound = proper(relative(namespace, table["physical_address"]))
            for number in [number for number, good in enumerate(sound.to_pylist()) if not good]:
                line = lines[number]
                message = f"the staged row has the address {excerpt(line.physical_address)}, which no object can have"
                yield found("staged_row_invalid", f"branch {branch}, path {line.path}", message)
            yield StagedObjects(f"branch {branch}", table.filter(sound))


def _flaw(line: StagedLine) -> str | None:
    """Why a row cannot be committed, in words that follow "the staged row". None when it can."""
    try:
        check_path(line.path)
    except InvalidPath as error:
        return f"has an impossible path: {error.message}"
    if line.tombstone:
        return None
    for name in ("physical_address", "checksum", "content_type"):
        value = getattr(line, name)
        if not isinstance(value, str) or (not value and name != "content_type"):
            return f"has no {name}"
    for name in ("size_bytes", "mtime"):
        if not isinstance(getattr(line, name), int):
            return f"has no {name}"
    if line.size_bytes is not None and line.size_bytes < 0:
        return "has a negative size"
    try:
        metadata = {} if line.metadata is None else json.loads(line.metadata)
    except (ValueError, TypeError):
        return "has metadata that cannot be read"
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        return "has metadata that is no map of texts"
    return None


def _table(lines: list[StagedLine]) -> pa.Table:
    names = (("path", pa.string()), ("physical_address", pa.string()), ("checksum", pa.string()))
    columns = {name: pa.array([getattr(line, name) for line in lines], kind) for name, kind in names}
    return pa.table({**columns, "size_bytes": pa.array([line.size_bytes for line in lines], pa.int64())})


def check_rows_of_tables(records: CatalogSnapshot) -> Iterator[Finding]:
    """Rows of the catalog that cannot be decoded."""
    for flaw in records.flaws:
        yield found("row_unreadable", f"table {flaw.table}, row {excerpt(flaw.key)}", flaw.reason)


def check_reflog(records: CatalogSnapshot) -> Iterator[Finding]:
    """Whether the moves of each ref follow one another and lead to where it points. Deleted refs are absent."""
    points = {("branch", branch.id): branch.commit_id for branch in records.branches}
    points |= {("tag", tag.id): tag.commit_id for tag in records.tags}
    unreadable = {("branch", flaw.key) for flaw in records.flaws if flaw.table == "lakeops_branch" and flaw.reason}
    for ref, moves in groupby(records.moves, key=lambda move: (move.kind, move.ref)):
        last: RefUpdate | None = None
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
