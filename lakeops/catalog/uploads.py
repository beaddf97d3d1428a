"""Uploads in flight: addresses that are being written and that no staged row names yet.

* ``begin_upload`` needs a branch that may be staged to; leaves a row that garbage collection honours. Recovery: it
  ends by linking (``put_staged``), by ``end_upload``, or by the deadline: after it nothing can link the upload.
* ``end_upload`` leaves no row. Recovery: repeat it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import Connection, delete, insert, select

from lakeops.catalog.database import run_again
from lakeops.catalog.guards import (
    check_started,
    check_writable,
    deadline_of,
    find_branch,
    find_repository,
    grace_of,
    lock_repository,
)
from lakeops.catalog.part import Part
from lakeops.catalog.rows import AnyRow, from_ticks, ticks
from lakeops.catalog.tables import UPLOAD


class Uploads(Part):
    """Uploads in flight."""

    def begin_upload(self, repository_id: str, branch: str, address: str, *, upload: str) -> datetime:
        """Record that objects are being written below ``address``; returns when, for ``started``."""
        mine = (UPLOAD.c.repository_id == repository_id, UPLOAD.c.id == upload)

        def work(conn: Connection) -> datetime:
            repository = lock_repository(conn, repository_id)
            check_writable(conn, repository, action="stage", branch=branch)
            find_branch(conn, repository_id, branch)
            started = self.database.dialect.now(conn)
            check_started(repository, started, started)  # here, and not only once everything is written
            conn.execute(delete(UPLOAD).where(*mine))  # of an earlier run whose answer was lost
            given_up = UPLOAD.c.started < ticks(started - grace_of(repository).at(started))
            conn.execute(delete(UPLOAD).where(UPLOAD.c.repository_id == repository_id, given_up))
            conn.execute(
                insert(UPLOAD).values(
                    repository_id=repository_id,
                    id=upload,
                    branch=branch,
                    address=address,
                    started=ticks(started),
                )
            )
            return started

        return self.database.write(work, settle=run_again)

    def end_upload(self, repository_id: str, upload: str) -> None:
        """Forget an upload that will not be linked; what it wrote becomes garbage."""

        def work(conn: Connection) -> None:
            conn.execute(delete(UPLOAD).where(UPLOAD.c.repository_id == repository_id, UPLOAD.c.id == upload))

        self.database.write(work, settle=run_again)

    def uploads(self, repository_id: str) -> Mapping[str, tuple[str, datetime]]:
        """Uploads in flight: id to (address, started)."""

        def work(conn: Connection) -> Mapping[str, tuple[str, datetime]]:
            repository = find_repository(conn, repository_id)
            return uploads_in_flight(conn, repository, self.database.dialect.now(conn))

        return self.database.read(work)


def uploads_in_flight(conn: Connection, repository: AnyRow, now: datetime) -> Mapping[str, tuple[str, datetime]]:
    """Uploads younger than the deadline, as a transaction sees them: id to (address, started)."""
    since = ticks(now - deadline_of(repository, now))
    rows = conn.execute(select(UPLOAD).where(UPLOAD.c.repository_id == repository.id, UPLOAD.c.started >= since))
    return {row.id: (row.address, from_ticks(row.started)) for row in rows}
