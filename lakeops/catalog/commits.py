"""Reading commits, and the transition that expires them.

``expire_commits`` marks commits that no branch, no tag and no mirror needs. Every transition refuses them from then on.
Recovery: repeat it. It holds the repository's row exclusively. So a transition either finished before, and its
commits and refs were seen, or begins afterwards, and finds them expired: garbage collection can trust the set that is
left live.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Select,
    Table,
    bindparam,
    insert,
    literal,
    select,
    tuple_,
    update,
)

from lakeops.catalog.database import run_again
from lakeops.catalog.guards import (
    IN_CHUNK,
    CatalogPart,
    check_live,
    check_writable,
    delete_rows,
    find_repository,
    grace_of,
    lock_repository,
    no_branch,
    no_commit,
    under,
)
from lakeops.catalog.lookups import Lookup
from lakeops.catalog.records import BranchState, History
from lakeops.catalog.rows import (
    COMMIT_COLUMNS,
    PARENTS,
    branch_record,
    commit_record,
    parents_of,
    registration_record,
    ticks,
    undecodable,
)
from lakeops.catalog.tables import BRANCH, COMMIT, MIRROR, MIRROR_NEED, REPOSITORY, RETENTION, TAG
from lakeops.model.clock import unix_seconds
from lakeops.model.errors import CommitExpired, MirrorOvertaken, RefNotFound
from lakeops.model.graph import Node
from lakeops.model.marks import Grace
from lakeops.model.mirrors import Registration
from lakeops.model.records import Commit

FEW, AT_ONCE = 500, 16_000
"""Commits that a walk far down reads at a time: at first, and at most."""
ROWS = 200
"""Rows of such a reading that live at once."""


class Retention(CatalogPart):
    """Retention rules, and mirrors as their source knows them."""

    def get_rules(self, repository_id: str) -> str | None:
        """The repository's retention rules as they were set, if there are any."""

        def work(conn: Connection) -> str | None:
            find_repository(conn, repository_id)
            return find_rules(conn, repository_id)

        return self.database.read(work)

    def set_rules(self, repository_id: str, rules: str | None) -> None:
        """Replace the repository's retention rules (JSON text that the caller validated), or remove them."""

        def work(conn: Connection) -> None:
            check_writable(conn, lock_repository(conn, repository_id, exclusive=True), action="set-rules")
            before = find_rules(conn, repository_id)
            if before == rules:
                return
            delete_rows(conn, RETENTION, RETENTION.c.repository_id == repository_id)
            if rules is not None:
                conn.execute(insert(RETENTION).values(repository_id=repository_id, rules=rules))
            self._record(conn, repository_id, "set-rules", "rules", "retention", before, rules)

        self.database.write(work, settle=run_again)

    def grace(self, repository_id: str) -> Grace:
        """The repository's grace period: the age below which garbage collection touches nothing."""
        return self.database.read(lambda conn: grace_of(find_repository(conn, repository_id)))

    def set_grace(self, repository_id: str, seconds: int) -> Grace:
        """Change the grace period. A longer one counts at once, a shorter one once the old one has passed."""

        def work(conn: Connection) -> Grace:
            repository = lock_repository(conn, repository_id, exclusive=True)
            check_writable(conn, repository, action="set-grace")
            before = grace_of(repository)
            grace = before.changed(seconds, self.database.dialect.now(conn))
            values = {
                "grace_seconds": grace.seconds,
                "grace_before": grace.before,
                "grace_until": None if grace.until is None else ticks(grace.until),
            }
            conn.execute(update(REPOSITORY).where(REPOSITORY.c.id == repository_id).values(values))
            if grace != before:
                self._record(conn, repository_id, "set-grace", "rules", "grace", before.seconds, grace.seconds)
            return grace

        return self.database.write(work, settle=run_again)


class Expiring(CatalogPart):
    """Expiring commits by the rules."""

    def expire_commits(self, repository_id: str, ids: Iterable[str] | Callable[[History], Iterable[str]]) -> list[str]:
        """Mark commits expired, with the repository's row locked against every other transition.

        ``ids`` may be a function: it is called with the history as it is under that lock, so no ref moves between the
        decision and the mark. Commits that a branch or tag points to, or that a mirror needs, are left alone
        whatever it says. Returns the ids that this call marked.
        """
        chosen = ids if callable(ids) else frozenset(ids)

        def work(conn: Connection) -> list[str]:
            check_writable(conn, lock_repository(conn, repository_id, exclusive=True), action="expire")
            asked = chosen(find_history(conn, repository_id)) if callable(chosen) else chosen
            done = expire(conn, repository_id, asked)
            if done:
                self._record(conn, repository_id, "expire", "commits", "", None, f"{len(done)} expired")
            return done

        return self.database.write(work, settle=run_again)


class MirrorReports(CatalogPart):
    """What mirrors of a repository need of it."""

    def report_mirror(self, repository_id: str, mirror: str, commits: frozenset[str], *, sequence: int = 0) -> None:
        """Replace what a mirror of this repository needs: the commits that it shows and those that it waits for.

        Until the next report none of them expires. Raises ``CommitExpired`` for one that did already, ``RefNotFound``,
        and ``MirrorOvertaken`` after a report with a higher ``sequence``: a pass that was held up must not take back
        what a later one relies on.
        """
        mine = (MIRROR_NEED.c.repository_id == repository_id, MIRROR_NEED.c.mirror == mirror)

        def work(conn: Connection) -> None:
            lock_repository(conn, repository_id)
            newest = conn.execute(select(MIRROR_NEED.c.sequence).where(*mine).with_for_update()).scalar()
            if newest is not None and newest > sequence:
                raise MirrorOvertaken(f"a later pass of mirror {mirror!r} has reported to {repository_id!r} already")
            check_live(conn, repository_id, commits)
            for commit_id in sorted(find_unkept(conn, repository_id, commits, lock=True)):
                raise CommitExpired(
                    f"commit {commit_id} is not kept for repository {repository_id!r} by the source that it mirrors "
                    "itself; try again after its next pass"
                )
            if not delete_rows(conn, MIRROR_NEED, *mine):
                self._record(conn, repository_id, "register-mirror", "mirror", mirror)
            conn.execute(
                insert(MIRROR_NEED).values(
                    repository_id=repository_id,
                    mirror=mirror,
                    commits=sorted(commits),
                    at=unix_seconds(self.database.dialect.now(conn)),
                    sequence=sequence,
                )
            )

        self.database.write(work, settle=run_again)

    def registrations(self, repository_id: str) -> list[Registration]:
        """The mirrors that have reported to this repository, by name. Raises ``RepositoryNotFound``."""

        def work(conn: Connection) -> list[Registration]:
            find_repository(conn, repository_id)
            return find_registrations(conn, repository_id)

        return self.database.read(work)

    def unkept(self, repository_id: str, commits: Iterable[str]) -> frozenset[str]:
        """The commits that mirrors cannot rely on: at a mirror, those that its own source has not agreed to keep.

        None at a repository that follows no source, or whose mirror may only read its source.
        """
        return self.database.read(lambda conn: find_unkept(conn, repository_id, commits))

    def drop_mirror(self, repository_id: str, mirror: str) -> None:
        """Forget a mirror. Nothing is kept for it any more. One that is not known is forgotten already."""

        def work(conn: Connection) -> None:
            lock_repository(conn, repository_id)
            here = MIRROR_NEED.c.repository_id == repository_id
            if delete_rows(conn, MIRROR_NEED, here, MIRROR_NEED.c.mirror == mirror):
                self._record(conn, repository_id, "drop-mirror", "mirror", mirror)

        self.database.write(work, settle=run_again)


def find_rules(conn: Connection, repository_id: str) -> str | None:
    """The retention rules, as a transaction sees them."""
    found: str | None = conn.execute(
        select(RETENTION.c.rules).where(RETENTION.c.repository_id == repository_id)
    ).scalar()
    return found


def mirror_needs(conn: Connection, repository_id: str) -> Mapping[str, frozenset[str]]:
    """What each registered mirror needs, as a transaction sees it."""
    query = select(MIRROR_NEED).where(MIRROR_NEED.c.repository_id == repository_id)
    return {row.mirror: registration_record(row).commits for row in conn.execute(query)}


def find_registrations(conn: Connection, repository_id: str) -> list[Registration]:
    """The mirrors of a repository as a transaction sees them, by name."""
    query = select(MIRROR_NEED).where(MIRROR_NEED.c.repository_id == repository_id).order_by(MIRROR_NEED.c.mirror)
    return [registration_record(row) for row in conn.execute(query)]


def find_unkept(conn: Connection, repository_id: str, commits: Iterable[str], *, lock: bool = False) -> frozenset[str]:
    """At a mirror that reports, the commits that its source has not agreed to keep.

    What a commit without objects needs is always there. With ``lock`` no pass over the mirror changes the answer before
    the transaction ends.
    """
    query = select(MIRROR.c.kept).where(
        MIRROR.c.repository_id == repository_id, MIRROR.c.reports, MIRROR.c.promoted_writable.is_(None)
    )
    kept = conn.execute(query.with_for_update() if lock else query).scalar_one_or_none()
    if kept is None:
        return frozenset()
    asked = sorted(frozenset(commits).difference(kept))
    found: set[str] = set()
    for start in range(0, len(asked), IN_CHUNK):
        some = COMMIT.c.id.in_(asked[start : start + IN_CHUNK])
        full = select(COMMIT.c.id).where(COMMIT.c.repository_id == repository_id, some, COMMIT.c.meta_range_file != "")
        found.update(conn.execute(full).scalars())
    return frozenset(found)


def _first_parents() -> Select[Any]:
    here = COMMIT.c.repository_id == bindparam("repository")
    columns = (*COMMIT_COLUMNS, COMMIT.c.first_parent)
    start = select(*columns, literal(1).label("depth")).where(here, COMMIT.c.id == bindparam("commit"))
    walk = start.cte("walk", recursive=True)
    parents = select(*columns, walk.c.depth + 1).where(here, COMMIT.c.id == walk.c.first_parent)
    walk = walk.union_all(parents.where(walk.c.depth < bindparam("limit")))
    return select(*(walk.c[column.name] for column in COMMIT_COLUMNS)).order_by(walk.c.depth)


# Built once, as they are asked for on every look at a ref.
_WALK = _first_parents()
_SOME = select(*COMMIT_COLUMNS).where(
    COMMIT.c.repository_id == bindparam("repository"), COMMIT.c.id.in_(bindparam("some", expanding=True))
)
_ONE = Lookup(COMMIT_COLUMNS, f"{COMMIT.name} WHERE repository_id = :repository AND id = :commit")


def find_commit(conn: Connection, repository_id: str, commit_id: str) -> Commit | None:
    """The commit as a transaction sees it, if it exists."""
    row = _ONE.one(conn, {"repository": repository_id, "commit": commit_id})
    return None if row is None else commit_record(row)


def with_head(join: str = "", columns: Iterable[Column[Any]] = ()) -> Lookup:
    """A branch (``:repository``, ``:branch``), the commit that it points to, and columns of one more outer join."""
    return Lookup(
        (*BRANCH.c, *COMMIT_COLUMNS, *columns),
        f"{BRANCH.name} LEFT JOIN {COMMIT.name} ON {COMMIT.name}.repository_id = {BRANCH.name}.repository_id "
        f"AND {COMMIT.name}.id = {BRANCH.name}.commit_id {join} "
        f"WHERE {BRANCH.name}.repository_id = :repository AND {BRANCH.name}.name = :branch",
    )


_HEAD = with_head()
_BRANCH_WIDTH, _COMMIT_WIDTH = len(BRANCH.c), len(COMMIT_COLUMNS)


def look_at_branch(
    conn: Connection, query: Lookup, values: dict[str, Any]
) -> tuple[BranchState, Commit, Sequence[Any]]:
    """A branch, the commit that it points to, and what else a query of ``with_head`` asks for.

    Raises ``RepositoryNotFound``, ``RefNotFound``.
    """
    row = query.one(conn, values)
    if row is None:
        find_repository(conn, values["repository"])
        raise no_branch(values["repository"], values["branch"])
    state, rest = branch_record(row[:_BRANCH_WIDTH]), row[_BRANCH_WIDTH:]
    if rest[0] is None:
        raise no_commit(state.repository_id, state.commit_id)
    return state, commit_record(rest[:_COMMIT_WIDTH]), rest[_COMMIT_WIDTH:]


def find_branch_and_head(conn: Connection, repository_id: str, name: str) -> tuple[BranchState, Commit]:
    """A branch and the commit that it points to. Raises ``RepositoryNotFound``, ``RefNotFound``."""
    state, head, _ = look_at_branch(conn, _HEAD, {"repository": repository_id, "branch": name})
    return state, head


def find_head(conn: Connection, state: BranchState) -> Commit:
    """The commit that a branch points to. Raises ``RefNotFound``."""
    head = find_commit(conn, state.repository_id, state.commit_id)
    if head is None:
        raise no_commit(state.repository_id, state.commit_id)
    return head


class Commits(CatalogPart):
    """Commits: immutable, but for the mark that retention expired them."""

    def get(self, repository_id: str, commit_id: str) -> Commit:
        """The commit, expired or not. Raises ``RefNotFound``."""

        def work(conn: Connection) -> Commit:
            found = find_commit(conn, repository_id, commit_id)
            if found is None:
                find_repository(conn, repository_id)
                raise no_commit(repository_id, commit_id)
            return found

        return self.database.read(work)

    def initial_commit(self, repository_id: str) -> Commit:
        """The commit that everything in the repository descends from. Raises ``RepositoryNotFound``."""
        query = select(*COMMIT_COLUMNS).where(
            COMMIT.c.repository_id == repository_id, COMMIT.c.first_parent.is_(None), COMMIT.c.generation == 1
        )

        def work(conn: Connection) -> Commit:
            found = conn.execute(query.order_by(COMMIT.c.creation_date, COMMIT.c.id).limit(1)).one_or_none()
            if found is None:
                find_repository(conn, repository_id)
                raise RefNotFound(f"repository {repository_id!r} has no initial commit")
            return commit_record(found)

        return self.database.read(work)

    def get_many(self, repository_id: str, ids: Iterable[str]) -> dict[str, Commit]:
        """The commits that exist among these ids."""
        wanted = sorted(set(ids))

        def work(conn: Connection) -> dict[str, Commit]:
            found: dict[str, Commit] = {}
            for start in range(0, len(wanted), IN_CHUNK):
                some = {"repository": repository_id, "some": wanted[start : start + IN_CHUNK]}
                for row in conn.execute(_SOME, some):
                    found[row[0]] = commit_record(row)
            return found

        return self.database.read(work)

    def commits_with_prefix(self, repository_id: str, prefix: str, *, limit: int = 8) -> list[str]:
        """Ids that start with a hex prefix, in order, at most ``limit``."""
        name: ColumnElement[str] = COMMIT.c.id
        query = select(name).where(COMMIT.c.repository_id == repository_id, *under(name, prefix))
        query = query.order_by(name).limit(limit)
        return self.database.read(lambda conn: list(conn.execute(query).scalars()))

    def first_parents(self, repository_id: str, commit_id: str, *, limit: int) -> list[Commit]:
        """The commit and its first parents, newest first, at most ``limit``: one statement, however many."""

        def work(conn: Connection) -> list[Commit]:
            values = {"repository": repository_id, "commit": commit_id, "limit": limit}
            rows = _ONE.all(conn, values) if limit == 1 else conn.execute(_WALK, values).all()
            found = [commit_record(row) for row in rows]
            if not found:
                find_repository(conn, repository_id)
                raise no_commit(repository_id, commit_id)
            return found[:limit]

        return self.database.read(work)

    def stretch(self, repository_id: str, commit_id: str, generations: int) -> list[Node]:
        """The nodes of all commits of so many generations, from that of a commit down; none where it is not there."""
        here = COMMIT.c.repository_id == repository_id
        top = select(COMMIT.c.generation).where(here, COMMIT.c.id == commit_id).scalar_subquery()
        columns = (COMMIT.c.id, PARENTS, COMMIT.c.creation_date, COMMIT.c.generation, COMMIT.c.expired)
        query = select(*columns).where(here, COMMIT.c.generation <= top, COMMIT.c.generation > top - generations)

        def work(conn: Connection) -> list[Node]:
            rows = conn.execute(query)
            return [Node(one, known, *rest) for one, ids, *rest in rows if (known := parents_of(ids)) is not None]

        return self.database.read(work)

    def descending(self, repository_id: str, top: int, low: int) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Ids and parents of all commits of a generation and below, by generation, the highest first.

        They are read thousands at a time, while you iterate.

        Args:
            repository_id: the repository.
            top: the generation to begin with.
            low: the generation down to which all of them will be needed. Below it they are read a few at first.
        """
        place = tuple_(COMMIT.c.generation, COMMIT.c.id)
        query = select(COMMIT.c.id, PARENTS, COMMIT.c.generation).where(
            COMMIT.c.repository_id == repository_id,
            place < tuple_(bindparam("generation"), bindparam("commit")),
            COMMIT.c.generation >= bindparam("floor"),
        )
        query = query.order_by(COMMIT.c.generation.desc(), COMMIT.c.id.desc()).limit(bindparam("amount"))
        values: dict[str, int | str] = {"generation": top + 1, "commit": ""}
        for floor, first in ((low, AT_ONCE), (0, FEW)):
            amount = first
            while True:
                values |= {"floor": floor, "amount": amount}
                ids, texts, last = self.database.read(partial(_ids_and_parents, query, values))
                for commit_id, written in zip(ids, texts, strict=True):
                    parents = parents_of(written)
                    if parents is None:
                        raise undecodable(COMMIT, commit_id, ValueError("its parents are no list of ids"))
                    yield commit_id, parents
                if len(ids) < amount:
                    break
                values = {"generation": last, "commit": ids[-1]}
                amount = min(2 * amount, AT_ONCE)
            values = {"generation": floor, "commit": ""}

    def history(self, repository_id: str) -> History:
        """Every ref and every commit of a repository at one instant."""

        def work(conn: Connection) -> History:
            find_repository(conn, repository_id)
            return find_history(conn, repository_id)

        return self.database.read(work)


def _ids_and_parents(
    query: Select[Any], values: Mapping[str, Any], conn: Connection
) -> tuple[list[str], list[object], int]:
    """Ids, the texts of their parents, and the generation of the last one.

    Rows are the driver's own tuples, as making SQLAlchemy's takes twice as long as reading. They are dropped a few at a
    time: ten thousand that live at once make Python's garbage collector look at all that the process has.
    """
    ids: list[str] = []
    texts: list[object] = []
    last = 0
    with closing(conn.execute(query, values)) as found:
        while rows := found.cursor.fetchmany(ROWS):
            for commit_id, written, last in rows:  # noqa: B007 - the last one's generation counts
                ids.append(commit_id)
                texts.append(written)
    return ids, texts, last


def expire(conn: Connection, repository_id: str, ids: Iterable[str]) -> list[str]:
    """Mark commits expired, inside a transition that holds the repository's row exclusively. Returns those it marked.

    What a ref points to or a mirror needs is left alone.
    """
    asked = set(ids)
    for refs in (BRANCH, TAG):
        pointed = select(refs.c.commit_id).where(refs.c.repository_id == repository_id)
        asked.difference_update(conn.execute(pointed).scalars())
    asked.difference_update(*mirror_needs(conn, repository_id).values())
    doomed = sorted(asked)
    marked: list[str] = []
    for start in range(0, len(doomed), IN_CHUNK):
        some = COMMIT.c.id.in_(doomed[start : start + IN_CHUNK])
        change = update(COMMIT).where(COMMIT.c.repository_id == repository_id, some, COMMIT.c.expired.is_(False))
        marked.extend(conn.execute(change.values(expired=True).returning(COMMIT.c.id)).scalars())
    return sorted(marked)


def find_history(conn: Connection, repository_id: str) -> History:
    """Every ref, every commit, the rules and what mirrors need, as a transaction sees them."""

    def refs(table: Table) -> dict[str, str]:
        query = select(table.c.name, table.c.commit_id).where(table.c.repository_id == repository_id)
        return {row.name: row.commit_id for row in conn.execute(query)}

    rows = conn.execute(select(*COMMIT_COLUMNS).where(COMMIT.c.repository_id == repository_id))
    return History(
        branches=refs(BRANCH),
        tags=refs(TAG),
        commits={row[0]: commit_record(row) for row in rows},
        mirrors=mirror_needs(conn, repository_id),
        rules=find_rules(conn, repository_id),
    )
