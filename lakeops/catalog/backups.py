"""Dumping a repository's records, and making a repository of a dump. ``ops.refs`` writes and reads the files.

A dump is whole, or holds what came after an earlier cut. Whatever a list of moves cannot say makes it whole: when
commits expired, came back or were pruned, a sweep began, or the earlier cut is not of this catalog's history.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Select, Table, case, func, insert, select, update

from lakeops.catalog.database import read_transaction, write_transaction
from lakeops.catalog.guards import CatalogPart, chunks, find_repository, lock_repository
from lakeops.catalog.marks import check_clock_skew
from lakeops.catalog.records import COMMIT_COLUMNS, commit_values, epoch_micros, from_epoch_micros, repository_values
from lakeops.catalog.repositories import check_free
from lakeops.catalog.retention import PENDING
from lakeops.catalog.tables import (
    AUDIT,
    BRANCH,
    CLOCK,
    COMMIT,
    MIRROR_NEED,
    OWNER,
    PROTECTION,
    REFLOG,
    REPOSITORY,
    RETENTION,
    TAG,
    VERDICT,
)
from lakeops.model.errors import MarkRefused, PreconditionFailed
from lakeops.model.marks import UNPROVED
from lakeops.model.records import Commit, RepositoryRecord

Write = Callable[[str, Mapping[str, Any]], None]
"""Takes the kind of a record, and its values."""
_Rows = list[Mapping[str, Any]]

_DUMPABLE = frozenset(
    [
        *("commit", "merge", "revert", "cherry-pick", "import", "reset"),
        *("create-branch", "move-branch", "delete-branch", "create-tag", "move-tag", "delete-tag"),
        *("protect", "unprotect", "pass-check", "fail-check", "withdraw-check", "despite-check"),
        *("set-rules", "set-grace", "set-read-only", "add-hook", "remove-hook", "register-mirror", "drop-mirror"),
        *("take-owner", "accept-restored", "begin-mark", "finish-mark", "end-sweep"),
    ]
)
"""Transitions that moves of refs, and the records that each dump has in full, tell all of. After others it is whole."""

_FETCH = 5_000
_ID_CHARACTERS = 64
IN_FULL = (("protection", PROTECTION), ("rules", RETENTION), ("mirror", MIRROR_NEED))
"""Tables that each dump has in full: they are small, and moves of refs do not tell of them."""


@dataclass(frozen=True, slots=True)
class Since:
    """Sequence numbers of the newest ref move and the newest audit record, and the digest of the two rows."""

    moves: int
    records: int
    digest: int


@dataclass(frozen=True, slots=True)
class Cut:
    """A time (microseconds since the Unix epoch) at which all rows up to these sequence numbers are visible."""

    at: int
    since: Since


@dataclass(frozen=True, slots=True)
class DumpedRepository:
    """A repository as a dump has it, checked. Rows are column values without the repository's name.

    ``repository`` is in the namespace where the dump was found, made ``at`` a time in microseconds since the Unix
    epoch. ``pruned`` is as in its row. Commits come parents first, moves and records oldest first.
    """

    repository: RepositoryRecord
    at: int
    grace_seconds: int
    pruned: int | None
    commits: Sequence[Commit]
    branches: Mapping[str, str]
    tags: Mapping[str, str]
    protections: Sequence[Mapping[str, Any]]
    checks: Sequence[Mapping[str, Any]]
    rules: Sequence[Mapping[str, Any]]
    mirrors: Sequence[Mapping[str, Any]]
    moves: Sequence[Mapping[str, Any]]
    records: Sequence[Mapping[str, Any]]
    unproved: Collection[str] = ()


class Backups(CatalogPart):
    """Dumps, and repositories made of them."""

    @write_transaction
    def cut(self, conn: Connection, repository_id: str) -> Cut:
        """The numbers up to which every move and every record of the audit is visible, and the database's time.

        Waits until every transition under way has ended: the next dump need look at later numbers alone.
        """
        lock_repository(conn, repository_id, exclusive=True)
        moves = conn.execute(select(func.max(REFLOG.c.sequence)).filter_by(repository_id=repository_id)).scalar() or 0
        records = conn.execute(select(func.max(AUDIT.c.sequence))).scalar() or 0
        now = epoch_micros(self.database.dialect.now(conn))
        return Cut(now, Since(moves, records, _digest(conn, repository_id, moves, records)))

    @read_transaction
    def dump(
        self, conn: Connection, repository_id: str, since: Since | None, begin: Callable[[], Write]
    ) -> bool | None:
        """Write the rows after an earlier cut, or all rows, from one snapshot. Returns whether it wrote all rows.

        ``begin`` returns what takes the records. It is called before the first one, and again when the snapshot is
        taken anew. None: nothing came after the cut, and nothing was handed over.
        """
        row = find_repository(conn, repository_id)
        news = None if since is None else _find_news(conn, repository_id, since)
        if news == ([], []):
            return None
        write = begin()
        columns = dict(row._mapping)  # noqa: SLF001
        del columns["storage_namespace"]
        write("repository", columns)
        for kind, table in IN_FULL:
            _copy(write, kind, conn, _rows_of(table, repository_id))
        if news is None or since is None:
            _copy(write, "commit", conn, _commits(repository_id).order_by(COMMIT.c.generation, COMMIT.c.id))
            for kind, table in (("branch", BRANCH), ("tag", TAG)):
                query = select(table.c.name, table.c.commit_id).where(table.c.repository_id == repository_id)
                _copy(write, kind, conn, query.order_by(table.c.name))
            _copy(write, "check", conn, _rows_of(VERDICT, repository_id))
            for kind, table in (("move", REFLOG), ("record", AUDIT)):
                _copy(write, kind, conn, _rows_of(table, repository_id).order_by(table.c.sequence))
            return True
        _write_news(write, conn, repository_id, *news)
        return False

    def restore_repository(self, restored: DumpedRepository, tokens: Callable[[], str], owner: str | None) -> None:
        """Insert a repository as a dump has it, without staged rows. It collects nothing until it is accepted.

        What began before is refused. ``tokens`` gives fresh staging tokens. ``owner`` is the owner record that lies in
        the namespace already, if it is this catalog's. Raises ``AlreadyExists``, ``NamespaceTaken``.
        """
        repository, name = restored.repository, restored.repository.id

        def work(conn: Connection) -> bool:
            check_free(conn, repository)
            now = self.database.dialect.now(conn)
            with suppress(MarkRefused):  # a clock in doubt stays so
                check_clock_skew(conn, now, self.clock)
            fence = epoch_micros(now) - 1  # what began before rests on the lost catalog
            more = {"grace_seconds": restored.grace_seconds, "pruned": restored.pruned, "fence": fence}
            conn.execute(insert(REPOSITORY).values(**repository_values(repository), **more, restored=restored.at))
            by = {one.id: UNPROVED for one in restored.commits if one.expired and one.id in restored.unproved}
            commits = ({**commit_values(name, one), "expired_by": by.get(one.id)} for one in restored.commits)
            _insert(conn, COMMIT, commits, name)
            _insert(conn, OWNER, [] if owner is None else [{"current_lease": owner}], name)
            for branch, commit_id in restored.branches.items():
                self.insert_branch(conn, name, branch, commit_id, tokens())
            _insert(conn, TAG, ({"name": tag, "commit_id": at} for tag, at in restored.tags.items()), name)
            kept = {PROTECTION: restored.protections, VERDICT: restored.checks, RETENTION: restored.rules}
            for table, rows in {**kept, MIRROR_NEED: restored.mirrors, REFLOG: restored.moves}.items():
                _insert(conn, table, rows, name)
            # Moves of an earlier time say nothing about the clock. They count as seen where it was in no doubt.
            last = select(func.coalesce(func.max(REFLOG.c.sequence), 0)).scalar_subquery()
            conn.execute(update(CLOCK).where(CLOCK.c.seen == epoch_micros(now)).values(sequence=last))
            if conn.execute(select(AUDIT.c.sequence).where(AUDIT.c.repository_id == name).limit(1)).first() is None:
                _insert(conn, AUDIT, restored.records, name)
            told = f"{repository.storage_namespace}, dump of {from_epoch_micros(restored.at):%Y-%m-%d %H:%M:%S} UTC"
            self.record(conn, name, "restore-repository", "repository", name, None, told)
            return True

        def resolve(conn: Connection) -> bool | None:
            mine = select(REPOSITORY.c.id).where(REPOSITORY.c.id == name, REPOSITORY.c.restored == restored.at)
            return True if conn.execute(mine).first() else None

        self.database.write(work, resolve=resolve)

    @write_transaction
    def accept_restored(self, conn: Connection, repository_id: str) -> None:
        """Allow garbage collection of a restored repository. Does nothing for any other repository.

        Raises ``PreconditionFailed`` for a mirror that has not reported since the dump: it may need newer commits.
        """
        row = lock_repository(conn, repository_id, exclusive=True)
        if row.restored is not None:
            silent = MIRROR_NEED.c.at <= row.restored // 1_000_000
            query = select(MIRROR_NEED.c.mirror).where(MIRROR_NEED.c.repository_id == repository_id, silent)
            if (mirror := conn.execute(query.limit(1)).scalar()) is not None:
                raise PreconditionFailed(
                    f"mirror {mirror} has not said since the dump which commits it needs: sync it, or, if it is gone, "
                    f"`lakeops mirror drop lakefs://{repository_id} {mirror}`"
                )
            conn.execute(update(REPOSITORY).where(REPOSITORY.c.id == repository_id).values(restored=None))
            at = f"{from_epoch_micros(row.restored):%Y-%m-%d %H:%M:%S}"
            self.record(conn, repository_id, "accept-restored", "repository", repository_id, at, "accepted")

    @read_transaction
    def restored_at(self, conn: Connection, repository_id: str) -> int | None:
        """The time of the dump that the repository was restored from (Unix seconds). None once it was accepted."""
        found = find_repository(conn, repository_id).restored
        return None if found is None else int(found) // 1_000_000


def _rows_of(table: Table, repository_id: str) -> Select[Any]:
    columns = [column for column in table.columns if column.name != "repository_id"]
    return select(*columns).where(table.c.repository_id == repository_id)


def _commits(repository_id: str) -> Select[Any]:
    """Commits, and which are unproved. What a mark expired is live until its sweep begins: it can be taken back."""
    columns = [column for column in COMMIT_COLUMNS if column is not COMMIT.c.expired]
    expired = case((PENDING, False), else_=COMMIT.c.expired).label("expired")
    unproved = (func.coalesce(COMMIT.c.expired_by, "") == UNPROVED).label("unproved")
    here = COMMIT.c.repository_id == repository_id
    return select(*columns, expired, unproved).where(here).params(repository=repository_id)


def _copy(write: Write, kind: str, conn: Connection, query: Select[Any]) -> None:
    for row in conn.execute(query.execution_options(yield_per=_FETCH)).mappings():
        write(kind, dict(row))


def _find_news(conn: Connection, repository_id: str, since: Since) -> tuple[_Rows, _Rows] | None:
    """Moves and records after a cut. None when they do not tell everything that has changed."""
    if since.digest == 0 or since.digest != _digest(conn, repository_id, since.moves, since.records):
        return None  # pruned, or the cut is of another history
    after = _rows_of(AUDIT, repository_id).where(AUDIT.c.sequence > since.records).order_by(AUDIT.c.sequence)
    records = list(conn.execute(after).mappings())
    if any(record["action"] not in _DUMPABLE for record in records):
        return None
    query = _rows_of(REFLOG, repository_id).where(REFLOG.c.sequence > since.moves).order_by(REFLOG.c.sequence)
    return [*map(dict, conn.execute(query).mappings())], [*map(dict, records)]


def _digest(conn: Connection, repository_id: str, moves: int, records: int) -> int:
    """The digest of a move of a ref and an audit record, which tells two histories apart. 0 when either is not there.

    The record may be another repository's. A catalog that was restored may have the moves of the lost one under the
    same numbers, while its records have others.
    """
    move = _rows_of(REFLOG, repository_id).where(REFLOG.c.sequence == moves)
    rows = [conn.execute(query).one_or_none() for query in (move, select(AUDIT).where(AUDIT.c.sequence == records))]
    text = json.dumps([row and [*row] for row in rows], default=str)
    return 0 if None in rows else int.from_bytes(blake2b(text.encode(), digest_size=7).digest(), "big")


def _write_news(write: Write, conn: Connection, repository_id: str, moves: _Rows, records: _Rows) -> None:
    made = {move["new"] for move in moves} - {None}
    for some in chunks(made):
        _copy(write, "commit", conn, _commits(repository_id).where(COMMIT.c.id.in_(some)).order_by(COMMIT.c.generation))
    checked = {
        (record["after"] or record["before"] or "")[:_ID_CHARACTERS]
        for record in records
        if record["action"] in {"pass-check", "fail-check", "withdraw-check"}
    }
    for commit_id in sorted(checked):
        write("no-checks", {"commit_id": commit_id})  # those that it had are replaced
    for some in chunks(checked):
        _copy(write, "check", conn, _rows_of(VERDICT, repository_id).where(VERDICT.c.commit_id.in_(some)))
    for kind, rows in (("move", moves), ("record", records)):
        for row in rows:
            write(kind, row)


def _insert(conn: Connection, table: Table, rows: Iterable[Mapping[str, Any]], repository_id: str) -> None:
    left = iter(rows)
    while batch := [{**row, "repository_id": repository_id} for row in islice(left, _FETCH)]:
        conn.execute(insert(table), batch)
