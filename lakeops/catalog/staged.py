"""Reading the staging area: one path, a page of paths, or everything as Arrow, each at one instant.

A branch's tokens are few (the active one and what commits in flight or crashed ones sealed), so each is read in the
order of its index and the newest row of a path wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from sqlalchemy import Connection, select

from lakeops.catalog.base import BranchState, Roots, Staged, StagedPage
from lakeops.catalog.guards import find_branch, find_repository, under
from lakeops.catalog.part import Part
from lakeops.catalog.rows import COMMIT_COLUMNS, AnyRow, branch_record, commit_record, staged_record
from lakeops.catalog.tables import BRANCH, COMMIT, STAGED
from lakeops.catalog.uploads import uploads_in_flight

if TYPE_CHECKING:
    import pyarrow as pa


class StagedRows(Part):
    """Uncommitted changes, to be read."""

    def staged_one(self, repository_id: str, branch: str, path: str) -> tuple[BranchState, Staged | None]:
        """The newest staged row of a path, and the branch's state at the same instant."""

        def work(conn: Connection) -> tuple[BranchState, Staged | None]:
            state = find_branch(conn, repository_id, branch)
            query = select(STAGED).where(
                STAGED.c.repository_id == repository_id, STAGED.c.token.in_(state.tokens), STAGED.c.path == path
            )
            found = {row.token: row for row in conn.execute(query)}
            newest = next((found[token] for token in state.tokens if token in found), None)
            return state, None if newest is None else staged_record(newest)

        return self.database.read(work)

    def staged_page(
        self, repository_id: str, branch: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> StagedPage:
        """Up to ``limit`` staged paths under a prefix and after a path, newest token first, at one instant."""

        def work(conn: Connection) -> StagedPage:
            state = find_branch(conn, repository_id, branch)
            newest: dict[str, AnyRow] = {}
            for token in reversed(state.tokens):
                # The first ``limit`` paths of all tokens are among the first ``limit`` of each.
                query = select(STAGED).where(
                    STAGED.c.repository_id == repository_id,
                    STAGED.c.token == token,
                    STAGED.c.path > after,
                    *under(STAGED.c.path, prefix),
                )
                rows = conn.execute(query.order_by(STAGED.c.path).limit(limit))
                newest.update((row.path, row) for row in rows)
            return StagedPage(state, [staged_record(newest[path]) for path in islice(sorted(newest), limit)])

        return self.database.read(work)

    def staged_table(
        self, repository_id: str, branch: str, *, prefix: str = "", tokens: tuple[str, ...] | None = None
    ) -> tuple[BranchState, pa.Table]:
        """All staged rows as Arrow (``STAGED_SCHEMA``), sorted by path, the newest token's row of each path."""
        from lakeops.catalog.arrow import newest_rows

        bulk = self.database.dialect.bulk()

        def work(conn: Connection) -> tuple[BranchState, list[pa.Table]]:
            state = find_branch(conn, repository_id, branch)
            chosen: Sequence[str] = state.tokens if tokens is None else [t for t in tokens if t in state.tokens]
            return state, [bulk.read(conn, repository_id, token, prefix) for token in chosen]

        state, tables = self.database.read(work)
        return state, newest_rows(tables)

    def has_staged(self, repository_id: str, branch: str) -> bool:
        """Whether any row is staged on the branch, effective or not."""

        def work(conn: Connection) -> bool:
            state = find_branch(conn, repository_id, branch)
            query = select(STAGED.c.token).where(
                STAGED.c.repository_id == repository_id, STAGED.c.token.in_(state.tokens)
            )
            return conn.execute(query.limit(1)).first() is not None

        return self.database.read(work)

    def roots(self, repository_id: str) -> Roots:
        """Live commits, staged addresses and uploads in flight, at one instant."""
        from lakeops.catalog.arrow import addresses

        bulk = self.database.dialect.bulk()

        def work(conn: Connection) -> Roots:
            find_repository(conn, repository_id)
            live = select(*COMMIT_COLUMNS).where(COMMIT.c.repository_id == repository_id, COMMIT.c.expired.is_(False))
            branches = conn.execute(select(BRANCH).where(BRANCH.c.repository_id == repository_id))
            tokens = [token for row in branches for token in branch_record(row).tokens]
            return Roots(
                commits=[commit_record(row) for row in conn.execute(live)],
                staged=addresses(bulk.read(conn, repository_id, token, "") for token in tokens),
                uploads=uploads_in_flight(conn, repository_id, self.database.dialect.now(conn) - self.deadline),
            )

        return self.database.read(work)
