"""The staging area: rows under tokens, read through the active token, then the sealed ones (newest first).

Stagers hold the branch's row shared, so they run beside each other. Sealing, resetting and publishing hold it
exclusively, so no row arrives under a token after it was sealed. Every transition may be repeated. The next commit
covers sealed tokens, and any later ``purge_retired`` removes the rows of retired ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from itertools import chain, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    bindparam,
    delete,
    func,
    insert,
    literal,
    select,
    union_all,
    update,
)

from lakeops.catalog import guards, records
from lakeops.catalog.commits import earlier_commit, find_branch_and_head, require_commit, with_head
from lakeops.catalog.database import (
    AnyRow,
    Lookup,
    PageLookup,
    read_transaction,
    run_again,
    write_transaction,
    write_transaction_once,
)
from lakeops.catalog.guards import CatalogPart
from lakeops.catalog.marks import check_links
from lakeops.catalog.records import BranchSnapshot, BranchState, ChangeCounter, ExpectedState, Intent, Sealed, Staged
from lakeops.catalog.tables import BRANCH, PROTECTION, REPOSITORY, RETIRED, STAGED, UPLOAD
from lakeops.model.errors import AttemptExpired, BranchMoved, NotAsSeen
from lakeops.model.records import Commit

if TYPE_CHECKING:
    import pyarrow as pa

_AT_HEAD_AND_PATH = with_head(
    f"LEFT JOIN {STAGED.name} ON {STAGED.name}.repository_id = {BRANCH.name}.repository_id "
    f"AND {STAGED.name}.token = {BRANCH.name}.staging_token AND {STAGED.name}.path = :path",
    STAGED.c,
)
_SEALED = select(STAGED).where(
    STAGED.c.repository_id == bindparam("repository"),
    STAGED.c.token.in_(bindparam("tokens", expanding=True)),
    STAGED.c.path == bindparam("path"),
)
_PAGE = PageLookup(STAGED, "path", "repository_id = :repository AND token = :token")
_VALUES = [STAGED.c[name] for name in records.STAGED_VALUES]


class Staging(CatalogPart):
    """Uncommitted changes, and uploads in flight."""

    @read_transaction
    def staging_time(self, conn: Connection, repository_id: str, branch: str) -> datetime:
        """The database's time, when the branch may be staged to now.

        Raises ``RefNotFound``, ``PreconditionFailed`` (``protected_branch``, ``read_only_repository``).
        """
        _find_stageable(conn, _ALLOWED, repository_id, branch)
        return self.database.dialect.now(conn)

    def put_staged(
        self,
        repository_id: str,
        branch: str,
        rows: Sequence[Staged] | pa.Table,
        *,
        started: datetime,
        expect: ExpectedState | None = None,
        upload: str | None = None,
    ) -> BranchState:
        """Insert or replace staged rows under the branch's active token, and end an ``upload`` with them.

        ``rows`` are a short list, or for bulk an Arrow table of ``STAGED_SCHEMA``. Nothing is written unless the branch
        is as they ``expect`` it.

        Raises:
            PreconditionFailed: ``protected_branch``, ``read_only_repository``.
            AttemptExpired: it ``started`` too long ago, or its upload has ended.
            BranchMoved: it is not as it was expected, or there is a mark that was not looked into.
            Transient: ``collection_running``: a mark is being made, and the rows link old objects.
        """
        # A bulk load goes to the server before the branch is locked, so it keeps nobody waiting while it travels.
        dialect = self.database.dialect
        table = None if isinstance(rows, Sequence) else to_columns(rows)
        expect = expect or ExpectedState()
        ended = False  # whether an earlier run of this transaction has ended the upload

        def work(conn: Connection) -> BranchState:
            nonlocal ended
            if table is not None:
                dialect.copy_in(conn, table)
            repository, state = _lock_stageable(conn, repository_id, branch, exclusive=expect.counter is not None)
            if expect.state is not None and state != expect.state:
                raise BranchMoved(f"branch {branch!r} changed while the changes for it were being prepared; try again")
            if expect.counter is not None:
                _check_unchanged(conn, state, expect.counter, rows if table is None else table)
            now = dialect.now(conn)
            guards.check_started(repository, now, started)
            if expect.marks is not None:
                check_links(conn, repository_id, expect, now - guards.deadline_of(repository, now))
            if table is not None:
                dialect.load(conn, repository_id, state.staging_token, table)
            elif rows:
                in_order = sorted(rows, key=attrgetter("path"))  # so that stagers never wait in a circle
                values = [records.staged_values(repository_id, state.staging_token, row) for row in in_order]
                conn.exec_driver_sql(dialect.insert_staged, [tuple(value.values()) for value in values])
            if upload is not None:
                mine = delete(UPLOAD).where(UPLOAD.c.repository_id == repository_id, UPLOAD.c.id == upload)
                if not conn.execute(mine).rowcount and not ended:
                    raise AttemptExpired(
                        f"the output has ended, or branch {branch!r} was deleted since; start it again"
                    )
                ended = True
            return state

        return self.database.write(work, resolve=run_again)

    @read_transaction
    def pin(
        self, conn: Connection, repository_id: str, branch: str, place: str, *, below: bool, paths: Collection[str] = ()
    ) -> ExpectedState:
        """A branch and its change counter at a path, or ``below`` a prefix, for a transition after a look at them."""
        state = guards.find_branch(conn, repository_id, branch)
        return ExpectedState(state, _count_changes(conn, state, ChangeCounter(place, below, paths=frozenset(paths))))

    @write_transaction
    def seal(
        self,
        conn: Connection,
        repository_id: str,
        branch: str,
        *,
        token: str,
        key: str | None = None,
        fingerprint: str = "",
        intent: Intent | None = None,
    ) -> Sealed:
        """Seal the branch's active token, if it has rows, before a commit. ``token`` takes its place.

        Nothing is sealed when the idempotency key stands for a commit already (``KeyReused``: for another fingerprint),
        even if the branch takes no commits any more. ``intent`` is kept with the newest sealed token, in case somebody
        else commits it.
        """
        repository = guards.lock_repository(conn, repository_id)
        state = before = guards.lock_branch(conn, repository_id, branch, exclusive=True)
        now, head = self.database.dialect.now(conn), require_commit(conn, repository_id, state.commit_id)
        earlier = earlier_commit(conn, repository_id, key, fingerprint)
        if earlier is not None:
            return Sealed(state, head, now, earlier=earlier)
        guards.check_writable(conn, repository, action="seal", branch=branch)
        if state.staging_token != token and any_staged(conn, state, state.staging_token):
            state = replace(state, staging_token=token, sealed_tokens=state.tokens)
        if intent is not None and state.sealed_tokens:  # a call that is repeated has its intent there
            others = tuple(one for one in state.intents if not one[1].same_call(intent))
            kept = (at for at, one in state.intents if one.same_call(intent))
            state = replace(state, intents=(*others, (next(kept, state.sealed_tokens[0]), intent)))
        if state != before:
            conn.execute(branch_update(state).values(records.branch_values(state)))
        return Sealed(state, head, now)

    @write_transaction
    def withdraw(self, conn: Connection, repository_id: str, branch: str, intent: Intent) -> None:
        """Forget the intent of a call that ended with an error. Its rows stay sealed."""
        state = guards.lock_branch(conn, repository_id, branch, exclusive=True)
        left = tuple(one for one in state.intents if one[1] != intent)
        if left != state.intents:
            conn.execute(branch_update(state).values(intents=records.intent_values(left)))

    @write_transaction
    def discard(self, conn: Connection, state: BranchState, tokens: tuple[str, ...]) -> None:
        """Retire sealed tokens whose rows change nothing over ``state``'s head.

        Raises ``BranchMoved`` when head, tokens or resets are no longer ``state``'s: the rows may matter now.
        """
        guards.lock_writable(conn, state.repository_id, action="seal", branch=state.id)
        now = guards.lock_branch(conn, state.repository_id, state.id, exclusive=True)
        same = (now.commit_id, now.sealed_resets) == (state.commit_id, state.sealed_resets)
        after = now.without_sealed(tokens) if same else None
        if after is None:
            raise BranchMoved(f"branch {state.id!r} changed while its staged rows were being compared; try again")
        conn.execute(branch_update(now).values(records.branch_values(after)))
        self.retire(conn, state.repository_id, tokens)

    @write_transaction_once
    def reset(
        self,
        conn: Connection,
        repository_id: str,
        branch: str,
        *,
        prefix: str | None = None,
        path: str | None = None,
        actor: str,
        expect: ExpectedState | None = None,
    ) -> int:
        """Drop staged rows: all, those under a prefix, or one path's. Returns how many paths.

        A reset that drops a row counts itself, apart when one was sealed. Raises ``NotAsSeen``.
        """
        chosen = [STAGED.c.path == path] if path is not None else guards.under(STAGED.c.path, prefix or "")
        guards.lock_writable(conn, repository_id, action="reset", branch=branch)
        state = guards.lock_branch(conn, repository_id, branch, exclusive=True)
        check_expected(conn, state, expect)
        gone = delete(STAGED).where(*_of_tokens(state, state.tokens), *chosen)
        dropped = conn.execute(gone.returning(STAGED.c.token, STAGED.c.path)).all()
        if not dropped:
            return 0
        tokens = {row.token for row in dropped}
        sealed = not tokens.isdisjoint(state.sealed_tokens)
        counts: dict[str, Any] = {"resets": state.resets + 1, "sealed_resets": state.sealed_resets + sealed}
        if state.intents:  # those whose rows are all gone have nothing left to commit
            empty = [token for token in tokens if not any_staged(conn, state, token)]
            counts["intents"] = records.intent_values(tuple(one for one in state.intents if one[0] not in empty))
        conn.execute(branch_update(state).values(**counts))
        self.record_move(conn, repository_id, branch, state.commit_id, state.commit_id, "reset", actor)
        return len({row.path for row in dropped})

    def purge_retired(self, repository_id: str, *, waiting: bool = False) -> int:
        """Remove the rows of retired tokens. Returns how many. Called after publishing.

        With ``waiting`` the caller knows that there are such rows. Otherwise nothing is locked when there are none.
        """
        mine = RETIRED.c.repository_id == repository_id
        unpurged = select(RETIRED.c.token).where(mine, RETIRED.c.purged.is_(False))

        def work(conn: Connection) -> int:
            guards.lock_repository(conn, repository_id)
            removed = 0
            # Two purges at once share the tokens out between them.
            for token in conn.execute(unpurged.with_for_update(skip_locked=True)).scalars().all():
                rows = delete(STAGED).where(STAGED.c.repository_id == repository_id, STAGED.c.token == token)
                removed += conn.execute(rows).rowcount
                this = (mine, RETIRED.c.token == token)
                conn.execute(update(RETIRED).where(*this, RETIRED.c.commit_id.is_not(None)).values(purged=True))
                conn.execute(delete(RETIRED).where(*this, RETIRED.c.commit_id.is_(None)))
            return removed

        def nothing_to_do(conn: Connection) -> bool:
            guards.find_repository(conn, repository_id)
            return conn.execute(unpurged.limit(1)).first() is None

        if not waiting and self.database.read(nothing_to_do):
            return 0
        return self.database.write(work, resolve=run_again)

    @read_transaction
    def consumed_by(self, conn: Connection, repository_id: str, token: str) -> str | None:
        """The commit that consumed a sealed token, if one did (not: a reset)."""
        query = select(RETIRED.c.commit_id).where(RETIRED.c.repository_id == repository_id, RETIRED.c.token == token)
        return conn.execute(query).scalar()

    @read_transaction
    def staged_one(self, conn: Connection, repository_id: str, branch: str, path: str) -> tuple[Commit, Staged | None]:
        """The newest staged row of a path, and the commit that the branch points to at the same instant."""
        state, head, rest = find_branch_and_head(conn, repository_id, branch, _AT_HEAD_AND_PATH, path=path)
        if rest[0] is not None:
            return head, records.staged_record(rest)
        if not state.sealed_tokens:
            return head, None
        sealed = {"repository": repository_id, "path": path, "tokens": state.sealed_tokens}
        found = {row.token: row for row in conn.execute(_SEALED, sealed)}
        newest = next((found[token] for token in state.sealed_tokens if token in found), None)
        return head, None if newest is None else records.staged_record(newest)

    @read_transaction
    def staged_page(
        self, conn: Connection, repository_id: str, branch: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> tuple[Commit, list[Staged]]:
        """The branch's head, and up to ``limit`` staged rows under a prefix and after a path, at one instant.

        Rows come by path: of each path that of the newest token.
        """
        state, head, _ = find_branch_and_head(conn, repository_id, branch)
        newest: dict[str, AnyRow] = {}
        for token in reversed(state.tokens):
            # The first ``limit`` paths of all tokens are among the first ``limit`` of each.
            mine = {"repository": repository_id, "token": token}
            rows = _PAGE.page(conn, mine, prefix=prefix, after=after, limit=limit)
            newest.update((row.path, row) for row in rows)
        return head, [records.staged_record(newest[path]) for path in islice(sorted(newest), limit)]

    def staged_table(
        self, repository_id: str, branch: str, *, prefix: str = "", tokens: tuple[str, ...] | None = None
    ) -> BranchSnapshot:
        """The branch with all staged rows, by path: the newest token's row of each path.

        ``tokens`` (newest first) limits them to some of the branch's tokens, for a commit that reads sealed ones.
        """

        def work(conn: Connection) -> tuple[BranchSnapshot, list[pa.Table]]:
            now = self.database.dialect.now(conn)
            state, head, _ = find_branch_and_head(conn, repository_id, branch)
            chosen: Sequence[str] = state.tokens if tokens is None else [t for t in tokens if t in state.tokens]
            rows = [self.database.dialect.unload(conn, repository_id, token, prefix) for token in chosen]
            return BranchSnapshot(state, head, now), rows

        found, tables = self.database.read(work)
        return replace(found, staged=newest_rows(list(map(from_columns, tables))))

    @read_transaction
    def has_staged(self, conn: Connection, repository_id: str, branch: str) -> bool:
        """Whether any row is staged on the branch, effective or not."""
        return any_staged(conn, guards.find_branch(conn, repository_id, branch))

    @read_transaction
    def staged_counts(
        self, conn: Connection, repository_id: str, branches: Collection[str], *, most: int
    ) -> dict[str, int]:
        """How many paths are staged on each of the branches that have any, effective or not, counted to ``most``.

        One statement, and one more where a branch has sealed tokens.
        """
        mine = STAGED.c.repository_id == repository_id
        active = select(STAGED.c.path).where(mine, STAGED.c.token == BRANCH.c.staging_token).correlate(BRANCH)
        count = select(func.count()).select_from(active.limit(most).subquery()).scalar_subquery()
        here = select(BRANCH, count.label("staged")).where(
            BRANCH.c.repository_id == repository_id, BRANCH.c.name.in_(branches)
        )

        def of_all_tokens(branch: BranchState) -> Select[str, int]:
            paths = select(STAGED.c.path).where(mine, STAGED.c.token.in_(branch.tokens)).distinct().limit(most)
            return select(literal(branch.id), func.count()).select_from(paths.subquery())

        rows = conn.execute(here).all()
        found = {row.name: row.staged for row in rows}
        sealed = [branch for row in rows if (branch := records.branch_record(row)).sealed_tokens]
        if sealed:
            found |= {row[0]: row[1] for row in conn.execute(union_all(*map(of_all_tokens, sealed)))}
        return {name: staged for name, staged in found.items() if staged}

    @write_transaction
    def begin_upload(
        self,
        conn: Connection,
        repository_id: str,
        branch: str,
        address: str,
        *,
        upload: str,
        begun: datetime | None = None,
    ) -> datetime:
        """Record that objects are being written below ``address``. Returns when, for ``started``.

        ``begun`` is when the first of them was written, if that was earlier. Raises ``AttemptExpired`` when that time,
        or the clock, is behind the GC watermark: nothing that began then could be linked.
        """
        here = UPLOAD.c.repository_id == repository_id
        repository = guards.lock_writable(conn, repository_id, action="stage", branch=branch)
        guards.find_branch(conn, repository_id, branch)
        now = self.database.dialect.now(conn)
        started = begun or now
        guards.check_started(repository, now, started)  # here, and not only once everything is written
        conn.execute(delete(UPLOAD).where(here, UPLOAD.c.id == upload))  # of an earlier run whose answer was lost
        given_up = UPLOAD.c.started < records.epoch_micros(now - guards.grace_of(repository).at(now))
        conn.execute(delete(UPLOAD).where(here, given_up))
        values = {"id": upload, "branch": branch, "address": address, "started": records.epoch_micros(started)}
        conn.execute(insert(UPLOAD).values(repository_id=repository_id, **values))
        return started

    @read_transaction
    def find_upload(self, conn: Connection, repository_id: str, upload: str) -> tuple[str, datetime] | None:
        """The address of an upload, and when it began. None without one, and for one that cannot be linked any more."""
        repository, now = guards.find_repository(conn, repository_id), self.database.dialect.now(conn)
        found = uploads_in_flight(conn, repository, now).get(upload)
        with suppress(AttemptExpired):
            if found is not None:
                guards.check_started(repository, now, found[1])
                return found
        return None

    @write_transaction
    def end_upload(self, conn: Connection, repository_id: str, upload: str) -> None:
        """Forget an upload that will not be linked. What it wrote becomes garbage."""
        conn.execute(delete(UPLOAD).where(UPLOAD.c.repository_id == repository_id, UPLOAD.c.id == upload))


def uploads_in_flight(conn: Connection, repository: AnyRow, now: datetime) -> Mapping[str, tuple[str, datetime]]:
    """Uploads younger than the deadline: id to (address, started)."""
    since = records.epoch_micros(now - guards.deadline_of(repository, now))
    rows = conn.execute(select(UPLOAD).where(UPLOAD.c.repository_id == repository.id, UPLOAD.c.started >= since))
    return {row.id: (row.address, records.from_epoch_micros(row.started)) for row in rows}


# --- a branch that may be staged to ---
#
# One statement finds the branch with all that decides whether it may: each put asks before the upload, and in the
# transaction that links it. On PostgreSQL that one locks first, since nobody may rely on rules that can still change.

_NEEDED = ("id", "storage_namespace", "read_only", "grace_seconds", "grace_before", "grace_until", "fence", "pruned")
_OF_REPOSITORY = [REPOSITORY.c[name] for name in _NEEDED]
"""Columns that transitions compute with. The rest is JSON, which takes time to parse."""
_BRANCH = slice(1, 1 + len(BRANCH.c))

# A row for each pattern of protected branches, and one where there is none.
_FROM = (
    f"{REPOSITORY.name} "
    f"LEFT JOIN {PROTECTION.name} ON {PROTECTION.name}.repository_id = {REPOSITORY.name}.id "
    f"AND {PROTECTION.name}.kind IN ({', '.join(map(repr, guards.PROTECTING))}) "
    f"LEFT JOIN {BRANCH.name} ON {BRANCH.name}.repository_id = {REPOSITORY.name}.id AND {BRANCH.name}.name = :branch "
    f"WHERE {REPOSITORY.name}.id = :repository"
)
# The repository's columns come last: of two columns of one name, the last one is the row's attribute.
_ALLOWED = Lookup((PROTECTION.c.pattern, BRANCH.c.name, *_OF_REPOSITORY), _FROM)
_ALONE = Lookup((PROTECTION.c.pattern, *BRANCH.c, *_OF_REPOSITORY), _FROM)


def _lock_stageable(conn: Connection, repository_id: str, name: str, *, exclusive: bool) -> tuple[AnyRow, BranchState]:
    """A repository's row and a branch, both locked, when the branch may be staged to."""
    if conn.dialect.name == "sqlite":
        row = _find_stageable(conn, _ALONE, repository_id, name)
        return row, records.branch_record(row[_BRANCH])
    repository = guards.lock_repository(conn, repository_id)
    state = guards.lock_branch(conn, repository_id, name, exclusive=exclusive)
    guards.check_writable(conn, repository, action="stage", branch=name)
    return repository, state


def _find_stageable(conn: Connection, query: Lookup, repository_id: str, name: str) -> AnyRow:
    """The repository's row, with everything else before it, when the branch may be staged to.

    Raises ``RepositoryNotFound``, ``RefNotFound``, ``PreconditionFailed``.
    """
    rows = query.all(conn, {"repository": repository_id, "branch": name})
    row = guards.repository_found(conn, rows[0] if rows else None, repository_id)
    if row[_BRANCH.start] is None:
        raise guards.no_branch(repository_id, name)
    guards.check_writable(conn, row, action="stage")
    guards.check_protection(name, [pattern for pattern, *_ in rows if pattern is not None])
    return row


# --- what a transition expects ---


def any_staged(conn: Connection, state: BranchState, *tokens: str) -> bool:
    """Whether a branch has any staged row under these tokens, or any of its own when none are given."""
    query = select(STAGED.c.token).where(*_of_tokens(state, tokens or state.tokens))
    return conn.execute(query.limit(1)).first() is not None


def branch_update(state: BranchState) -> Any:  # noqa: ANN401 - SQLAlchemy's Update, before values()
    """A statement that changes a branch's row."""
    return update(BRANCH).where(BRANCH.c.repository_id == state.repository_id, BRANCH.c.name == state.id)


def check_expected(conn: Connection, state: BranchState, expect: ExpectedState | None) -> None:
    """Raise ``NotAsSeen`` when a branch, which is locked, is not as it was when somebody looked at it."""
    counter = None if expect is None else expect.counter
    if (expect is not None and expect.state not in (None, state)) or (
        counter is not None and _count_changes(conn, state, counter) != counter
    ):
        raise not_as_seen(state.id)


def not_as_seen(branch: str) -> NotAsSeen:
    """The error for a branch that is not as it was when somebody looked at it."""
    return NotAsSeen(
        f"branch {branch!r}, or what is uncommitted on it, changed since it was looked at; nothing was done"
    )


def _of_tokens(state: BranchState, tokens: Sequence[str]) -> tuple[ColumnElement[bool], ...]:
    return (STAGED.c.repository_id == state.repository_id, STAGED.c.token.in_(tokens))


def _check_unchanged(
    conn: Connection, state: BranchState, counter: ChangeCounter, rows: Sequence[Staged] | pa.Table
) -> None:
    """Raise ``BranchMoved`` when something else than these rows was staged at a place since its changes were counted.

    The rows themselves are there when the answer to an earlier run was lost.
    """
    total = _count_changes(conn, state, counter).total
    if total != counter.total and (
        total != counter.total + len(mine := _rows_at(counter, rows)) or not _are_staged(conn, state, mine)
    ):
        raise BranchMoved(f"{counter.place!r} of branch {state.id!r} was staged to meanwhile; try again")


def _count_changes(conn: Connection, state: BranchState, counter: ChangeCounter) -> ChangeCounter:
    whole = guards.under(STAGED.c.path, counter.place) if counter.below else [STAGED.c.path == counter.place]
    parts: list[Any] = [[STAGED.c.path.in_(some)] for some in guards.chunks(counter.paths)] or [whole]
    query = select(func.sum(STAGED.c.changes)).where(*_of_tokens(state, state.tokens))
    return replace(counter, total=sum(int(conn.execute(query.where(*part)).scalar() or 0) for part in parts))


def _rows_at(counter: ChangeCounter, rows: Sequence[Staged] | pa.Table) -> dict[str, tuple[Any, ...]]:
    """The rows of ``put_staged`` at a place, by path: the values of the columns behind the path."""
    if isinstance(rows, Sequence):
        columns = [[records.staged_values("", "", row)[column.name] for row in rows] for column in _VALUES]
    else:
        columns = [rows[column.name].to_pylist() for column in _VALUES]
    return {
        path: tuple(values)
        for path, *values in zip(*columns, strict=True)
        if (path.startswith(counter.place) if counter.below else path == counter.place)
        and (not counter.paths or path in counter.paths)
    }


def _are_staged(conn: Connection, state: BranchState, wanted: Mapping[str, tuple[Any, ...]]) -> bool:
    """Whether the active token has just these rows at their paths."""
    found: dict[str, tuple[Any, ...]] = {}
    for some in guards.chunks(wanted):
        query = select(*_VALUES).where(*_of_tokens(state, (state.staging_token,)), STAGED.c.path.in_(some))
        found |= {path: tuple(values) for path, *values in conn.execute(query)}
    return found == wanted


# --- staged rows as Arrow ---
#
# The table keeps user metadata as JSON text (null when empty). In Arrow it is a map. Most rows have none, so only those
# that do are touched one by one. pyarrow is imported by what needs it, since most commands do not.


def to_columns(staged: pa.Table) -> pa.Table:
    """A table of ``STAGED_SCHEMA`` as the staging table keeps it: of a repeated path the last row.

    It is sorted by path, so that stagers never wait for each other in a circle.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from lakeops.model.arrow import METADATA_TYPE, STAGED_SCHEMA, array, from_numpy, scalar

    def texts(maps: pa.MapArray) -> pa.Array:
        sizes = pc.list_value_length(maps.cast(pa.list_(METADATA_TYPE.field(0).type)))
        filled = pc.greater(pc.fill_null(sizes, scalar(0, sizes.type)), scalar(0, sizes.type))
        nothing = pa.nulls(len(maps), pa.string())
        if not pc.any(filled).as_py():
            return nothing
        written = [records.metadata_text(dict(pairs)) for pairs in maps.filter(filled).to_pylist()]
        return pc.replace_with_mask(nothing, filled, array(written, pa.string()))

    table = staged.select(STAGED_SCHEMA.names).cast(STAGED_SCHEMA)
    paths = table["path"]
    if len(paths) > 1 and not pc.all(pc.less(paths.slice(0, len(paths) - 1), paths.slice(1))).as_py():
        table = _one_a_path(table, from_numpy(np.arange(table.num_rows, 0, -1)))
    written = pa.chunked_array(map(texts, table["metadata"].chunks), pa.string())
    return table.set_column(table.schema.get_field_index("metadata"), pa.field("metadata", pa.string()), written)


def from_columns(columns: pa.Table) -> pa.Table:
    """A table of ``STAGING_COLUMNS`` as one of ``STAGED_SCHEMA``: the inverse of ``to_columns``."""
    import numpy as np
    import pyarrow as pa

    from lakeops.model.arrow import STAGED_SCHEMA, array, from_numpy, to_numpy

    def maps(texts: pa.Array, absent: pa.Array) -> pa.MapArray:
        parsed = list(map(_parsed, texts.drop_null().to_pylist()))
        sizes = np.zeros(len(texts) + 1, np.int32)
        sizes[1:][to_numpy(texts.is_valid())] = list(map(len, parsed))
        return pa.MapArray.from_arrays(
            from_numpy(np.cumsum(sizes, dtype=np.int32)),
            array(list(chain.from_iterable(parsed)), pa.string()),
            array(list(chain.from_iterable(map(dict.values, parsed))), pa.string()),
            mask=absent,
        )

    batches = [
        pa.record_batch([*batch.columns[:-1], maps(batch["metadata"], batch["tombstone"])], schema=STAGED_SCHEMA)
        for batch in columns.to_batches()
    ]
    return pa.Table.from_batches(batches, STAGED_SCHEMA)


def newest_rows(tables: Sequence[pa.Table]) -> pa.Table:
    """One row a path, sorted by path, out of the tokens' tables (newest first, each sorted by path)."""
    import numpy as np
    import pyarrow as pa

    from lakeops.model.arrow import STAGED_SCHEMA, from_numpy

    filled = list(filter(len, tables))
    if len(filled) < 2:
        return filled[0] if filled else pa.Table.from_batches([], STAGED_SCHEMA)
    ranks = np.repeat(np.arange(len(filled)), [table.num_rows for table in filled])
    return _one_a_path(pa.concat_tables(filled), from_numpy(ranks))


def addresses(tables: Iterable[pa.Table]) -> pa.Table:
    """The physical addresses of entries among staged rows, as one column."""
    import pyarrow as pa
    import pyarrow.compute as pc

    schema = pa.schema([pa.field("physical_address", pa.string(), nullable=False)])
    columns = [table.filter(pc.invert(table["tombstone"])).select(schema.names).cast(schema) for table in tables]
    return pa.concat_tables(columns or [pa.Table.from_batches([], schema)])


def _one_a_path(table: pa.Table, rank: pa.Array) -> pa.Table:
    """The table sorted by path, with the row of the lowest rank of each path."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from lakeops.model.arrow import array, in_one

    ranked = table.append_column("_rank", rank)
    order = pc.sort_indices(ranked, sort_keys=[("path", "ascending"), ("_rank", "ascending")])
    paths = table["path"].take(order)
    differs = pc.not_equal(paths.slice(1), paths.slice(0, len(paths) - 1))
    first = pa.chunked_array([array([True], pa.bool_()), *differs.chunks])
    return table.take(order.filter(in_one(first)))


def _parsed(text: str) -> dict[str, str]:
    try:
        return records.metadata_map(text)
    except (ValueError, TypeError) as error:
        raise records.undecodable(STAGED, f"with the metadata {text:.80}", error) from None
