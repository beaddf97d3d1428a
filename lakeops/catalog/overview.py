"""Looking over much at once, for people: all repositories of a page, and commits by what their messages say.

Both are a fixed number of statements, and read no more rows than they are told to. They change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, and_, func, or_, select, tuple_

from lakeops.catalog.guards import CatalogPart, find_repository
from lakeops.catalog.records import Found, Overview
from lakeops.catalog.rows import COMMIT_COLUMNS, commit_record
from lakeops.catalog.tables import BRANCH, COMMIT, REPORT, REPOSITORY
from lakeops.model.errors import Corrupted
from lakeops.model.findings import Report, ReportKind

Place = tuple[int, str]
"""A commit's place in a search: its generation and its id."""


class Overviews(CatalogPart):
    """What lists show of many things."""

    def overviews(self, repositories: Sequence[str], *, most_branches: int) -> dict[str, Overview]:
        """Of each repository its last commit, its branches and its last check, in two statements.

        Args:
            repositories: their names. Those that do not exist are left out.
            most_branches: how many branches of each are counted at most.
        """
        here = REPOSITORY.c.id.in_(repositories)
        default = and_(BRANCH.c.repository_id == REPOSITORY.c.id, BRANCH.c.name == REPOSITORY.c.default_branch)
        head = and_(COMMIT.c.repository_id == BRANCH.c.repository_id, COMMIT.c.id == BRANCH.c.commit_id)
        some = select(BRANCH.c.name).where(BRANCH.c.repository_id == REPOSITORY.c.id).correlate(REPOSITORY)
        count = select(func.count()).select_from(some.limit(most_branches).subquery()).scalar_subquery()
        heads = select(REPOSITORY.c.id.label("of"), count.label("branches"), *COMMIT_COLUMNS).where(here)
        heads = heads.select_from(REPOSITORY.outerjoin(BRANCH, default).outerjoin(COMMIT, head))
        checks = select(REPORT.c.repository_id, REPORT.c.at, REPORT.c.actor, REPORT.c.found)
        checks = checks.where(REPORT.c.repository_id.in_(repositories), REPORT.c.kind == ReportKind.CHECK.value)

        def work(conn: Connection) -> dict[str, Overview]:
            reports = conn.execute(checks.order_by(REPORT.c.at)).all()
            last = {row[0]: Report(*row[1:]) for row in reports if isinstance(row.found, dict)}
            found = {}
            for name, branches, *row in conn.execute(heads):
                try:
                    commit = commit_record(row) if row[0] is not None else None
                except Corrupted:
                    commit = None
                found[name] = Overview(commit, branches, last.get(name))
            return found

        return self.database.read(work) if repositories else {}

    def search_messages(
        self, repository_id: str, text: str, *, below: Place | None = None, looked_at: int, limit: int
    ) -> Found:
        """Commits whose message or committer has a text, of all branches and of none: the highest generation first.

        Whether the case of letters matters is as the database has it: that of ASCII letters never does.

        Args:
            repository_id: the repository.
            text: what they have.
            below: go on behind this place.
            looked_at: how many commits are looked at, whether they have it or not.
            limit: how many are given at most.

        Raises:
            RepositoryNotFound: there is no such repository.
        """
        place = tuple_(COMMIT.c.generation, COMMIT.c.id)
        window = select(*COMMIT_COLUMNS).where(COMMIT.c.repository_id == repository_id)
        if below is not None:
            window = window.where(place < tuple_(*below))
        order = COMMIT.c.generation.desc(), COMMIT.c.id.desc()
        some = window.order_by(*order).limit(looked_at).subquery()
        has = or_(*(some.c[name].icontains(text, autoescape=True) for name in ("message", "committer")))
        hits = select(some).where(has).order_by(some.c.generation.desc(), some.c.id.desc()).limit(limit + 1)
        end = window.with_only_columns(COMMIT.c.generation, COMMIT.c.id).order_by(*order).offset(looked_at - 1).limit(2)

        def work(conn: Connection) -> Found:
            find_repository(conn, repository_id)
            found = [commit_record(row) for row in conn.execute(hits)]
            if len(found) > limit:
                last = found[limit - 1]
                return Found(found[:limit], (last.generation, last.id))
            rest = [(generation, commit_id) for generation, commit_id in conn.execute(end)]
            return Found(found, rest[0] if len(rest) > 1 else None)

        return self.database.read(work)
