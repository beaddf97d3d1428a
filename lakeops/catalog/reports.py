"""Reports: what runs found, for people to look at.

* ``add_report`` leaves one more report, and of each kind only the newest. It needs no lock: nothing rests on a report.
  Recovery: none is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from lakeops.catalog.database import run_again
from lakeops.catalog.guards import CatalogPart, find_repository
from lakeops.catalog.tables import REPORT
from lakeops.model.clock import unix_seconds
from lakeops.model.findings import KEPT, Report, ReportKind


class Reports(CatalogPart):
    """The newest reports of each repository."""

    def add_report(
        self, repository_id: str, kind: ReportKind, found: Mapping[str, Any], *, actor: str, every: int = 1
    ) -> None:
        """Leave a report, in place of those that became too many.

        Args:
            repository_id: the repository.
            kind: what it is about.
            found: what was found.
            actor: who ran it.
            every: seconds of which one report is kept: the one with the highest ``seconds``, or the latest.
        """

        def work(conn: Connection) -> None:
            find_repository(conn, repository_id)
            at = unix_seconds(self.database.dialect.now(conn))
            mine = (REPORT.c.repository_id == repository_id, REPORT.c.kind == kind.value)
            times = list(conn.execute(select(REPORT.c.at).where(*mine).order_by(REPORT.c.at.desc())).scalars())
            values = {"actor": actor, "found": dict(found)}
            if times and times[0] >= at - at % every:
                here = (*mine, REPORT.c.at == times[0])
                last = conn.execute(select(REPORT.c.found).where(*here)).scalar_one()
                if not isinstance(last, dict) or last.get("seconds", 0) <= found.get("seconds", 0):
                    conn.execute(update(REPORT).where(*here).values(values))
                return
            conn.execute(insert(REPORT).values(repository_id=repository_id, kind=kind.value, at=at, **values))
            if len(times) >= KEPT[kind]:
                conn.execute(delete(REPORT).where(*mine, REPORT.c.at <= times[KEPT[kind] - 1]))

        self.database.write(work, settle=run_again)

    def reports(self, repository_id: str, kind: ReportKind) -> list[Report]:
        """The reports of a kind, oldest first. One that cannot be read is left out."""
        query = select(REPORT.c.at, REPORT.c.actor, REPORT.c.found).where(
            REPORT.c.repository_id == repository_id, REPORT.c.kind == kind.value
        )

        def work(conn: Connection) -> list[Report]:
            rows = conn.execute(query.order_by(REPORT.c.at))
            return [Report(*row) for row in rows if isinstance(row.found, dict)]

        return self.database.read(work)
