"""Reading the audit: every transition that changed what a lake shows, keeps or allows, and who did it.

``guards.CatalogPart`` writes the records, each in the transaction of its change. Nothing changes or deletes one, and
they stay when their repository is deleted. Staging and what only prepares a change leave no record.
"""

from __future__ import annotations

from sqlalchemy import func, select, tuple_

from lakeops.catalog.guards import CatalogPart
from lakeops.catalog.tables import AUDIT
from lakeops.model.records import AuditRecord

_ACTOR = func.coalesce(AUDIT.c.person, AUDIT.c.login)
_RECORDS = select(
    AUDIT.c.sequence,
    AUDIT.c.repository_id,
    AUDIT.c.action,
    AUDIT.c.kind,
    AUDIT.c.ref,
    AUDIT.c.before,
    AUDIT.c.after,
    _ACTOR,
    AUDIT.c.login,
    AUDIT.c.claimed,
    AUDIT.c.recorded,
)


class Audit(CatalogPart):
    """What happened, by whom."""

    def page(
        self,
        repository_id: str | None = None,
        *,
        since: int | None = None,
        until: int | None = None,
        actor: str | None = None,
        below: tuple[int, int] | None = None,
        limit: int = 1000,
    ) -> list[AuditRecord]:
        """Records, newest first, keyset-paged.

        Args:
            repository_id: only those of a repository, which may be gone.
            since: not those before this moment, in Unix seconds.
            until: not those at this moment or later.
            actor: only those of this user or login.
            below: time and sequence of the last record of the page before.
            limit: at most so many.
        """
        place = (AUDIT.c.recorded, AUDIT.c.sequence)
        query = _RECORDS.order_by(*(column.desc() for column in place)).limit(limit)
        if repository_id is not None:
            query = query.where(AUDIT.c.repository_id == repository_id)
        if since is not None:
            query = query.where(AUDIT.c.recorded >= since)
        if until is not None:
            query = query.where(AUDIT.c.recorded < until)
        if actor is not None:
            query = query.where(_ACTOR.in_([actor]))
        if below is not None:
            query = query.where(tuple_(*place) < below)
        return self.database.read(lambda conn: [AuditRecord(*row) for row in conn.execute(query)])
