"""Reading the staging area: one path, a page of paths, or everything as Arrow, each at one instant.

A branch's tokens are few (the active one and what commits in flight or crashed ones sealed), so each is read in the
order of its index and the newest row of a path wins.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Select, bindparam, func, literal, select, union_all

from lakeops.catalog.commits import find_branch_and_head, look_at_branch, with_head
from lakeops.catalog.guards import CatalogPart, find_branch, find_repository
from lakeops.catalog.lookups import PageLookup
from lakeops.catalog.records import BranchAt, BranchState, Roots, Staged, StagedPage
from lakeops.catalog.rows import COMMIT_COLUMNS, AnyRow, branch_record, commit_record, staged_record
from lakeops.catalog.staging import uploads_in_flight
from lakeops.catalog.tables import BRANCH, COMMIT, STAGED
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


class StagedRows(CatalogPart):
    """Uncommitted changes, to be read."""

    def staged_one(self, repository_id: str, branch: str, path: str) -> tuple[Commit, Staged | None]:
        """The newest staged row of a path, and the commit that the branch points to at the same instant."""
        values = {"repository": repository_id, "branch": branch, "path": path}

        def work(conn: Connection) -> tuple[Commit, Staged | None]:
            state, head, rest = look_at_branch(conn, _AT_HEAD_AND_PATH, values)
            if rest[0] is not None:
                return head, staged_record(rest)
            if not state.sealed_tokens:
                return head, None
            found = {row.token: row for row in conn.execute(_SEALED, values | {"tokens": state.sealed_tokens})}
            newest = next((found[token] for token in state.sealed_tokens if token in found), None)
            return head, None if newest is None else staged_record(newest)

        return self.database.read(work)

    def staged_page(
        self, repository_id: str, branch: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> StagedPage:
        """Up to ``limit`` staged paths under a prefix and after a path, newest token first, at one instant."""

        def work(conn: Connection) -> StagedPage:
            state, head = find_branch_and_head(conn, repository_id, branch)
            newest: dict[str, AnyRow] = {}
            for token in reversed(state.tokens):
                # The first ``limit`` paths of all tokens are among the first ``limit`` of each.
                mine = {"repository": repository_id, "token": token}
                rows = _PAGE.page(conn, mine, prefix=prefix, after=after, limit=limit)
                newest.update((row.path, row) for row in rows)
            return StagedPage(state, head, [staged_record(newest[path]) for path in islice(sorted(newest), limit)])

        return self.database.read(work)

    def staged_table(
        self, repository_id: str, branch: str, *, prefix: str = "", tokens: tuple[str, ...] | None = None
    ) -> tuple[BranchAt, pa.Table]:
        """The branch, and all staged rows as Arrow (``STAGED_SCHEMA``), by path: the newest token's row of each path.

        ``tokens`` (newest first) limits them to some of the branch's tokens, for a commit that reads sealed ones.
        """
        from lakeops.catalog.arrow import from_columns, newest_rows

        def work(conn: Connection) -> tuple[BranchAt, list[pa.Table]]:
            now = self.database.dialect.now(conn)
            state, head = find_branch_and_head(conn, repository_id, branch)
            chosen: Sequence[str] = state.tokens if tokens is None else [t for t in tokens if t in state.tokens]
            rows = [self.database.dialect.unload(conn, repository_id, token, prefix) for token in chosen]
            return BranchAt(state, head, now), rows

        found, tables = self.database.read(work)
        return found, newest_rows([from_columns(table) for table in tables])

    def has_staged(self, repository_id: str, branch: str) -> bool:
        """Whether any row is staged on the branch, effective or not."""

        def work(conn: Connection) -> bool:
            state = find_branch(conn, repository_id, branch)
            query = select(STAGED.c.token).where(
                STAGED.c.repository_id == repository_id, STAGED.c.token.in_(state.tokens)
            )
            return conn.execute(query.limit(1)).first() is not None

        return self.database.read(work)

    def staged_counts(self, repository_id: str, branches: Collection[str], *, most: int) -> dict[str, int]:
        """How many paths are staged on each of the branches, whether or not a commit would change anything for them.

        Each branch's paths are counted to ``most``. Branches without any are left out. One statement, and one more
        where a commit that is under way, or broke off, has sealed what was staged before it.
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

        def work(conn: Connection) -> dict[str, int]:
            rows = conn.execute(here).all()
            found = {row.name: row.staged for row in rows}
            sealed = [branch for row in rows if (branch := branch_record(row)).sealed_tokens]
            if sealed:
                found |= {row[0]: row[1] for row in conn.execute(union_all(*map(of_all_tokens, sealed)))}
            return {name: staged for name, staged in found.items() if staged}

        return self.database.read(work)


class RootRows(CatalogPart):
    """What garbage collection keeps."""

    def roots(self, repository_id: str) -> Roots:
        """Live commits, staged addresses and uploads in flight, at one instant (after ``expire_commits``)."""
        from lakeops.catalog.arrow import addresses

        unload = self.database.dialect.unload

        def work(conn: Connection) -> Roots:
            repository = find_repository(conn, repository_id)
            live = select(*COMMIT_COLUMNS).where(COMMIT.c.repository_id == repository_id, COMMIT.c.expired.is_(False))
            branches = conn.execute(select(BRANCH).where(BRANCH.c.repository_id == repository_id))
            tokens = [token for row in branches for token in branch_record(row).tokens]
            return Roots(
                commits=[commit_record(row) for row in conn.execute(live)],
                staged=addresses(unload(conn, repository_id, token, "") for token in tokens),
                uploads=uploads_in_flight(conn, repository, self.database.dialect.now(conn)),
            )

        return self.database.read(work)
