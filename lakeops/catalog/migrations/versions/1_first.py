"""The first schema: all tables that the models declare.

Nothing was released yet, so this revision follows the models, and has another name when they change. The second one
writes down first what this one makes.
"""

from __future__ import annotations

from alembic import op

from lakeops.catalog.models import METADATA

revision = "1"
down_revision = None
branch_labels = None
depends_on = None

# Everybody may take an advisory lock. So one of a login that may not lock the row itself is not waited for.
_FAIR_LOCK = """CREATE OR REPLACE FUNCTION lakeops_fair_lock(key bigint, exclusive boolean) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
  IF (CASE WHEN exclusive THEN pg_try_advisory_xact_lock(key) ELSE pg_try_advisory_xact_lock_shared(key) END)
      OR EXISTS (SELECT 1 FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
        WHERE l.locktype = 'advisory' AND l.database = a.datid AND l.objsubid = 1
          AND (CAST(l.classid AS bigint) << 32) | CAST(l.objid AS bigint) = key
          AND NOT has_any_column_privilege(a.usesysid, 'lakeops_repository', 'UPDATE')) THEN
    RETURN true;
  END IF;
  IF exclusive THEN PERFORM pg_advisory_xact_lock(key); ELSE PERFORM pg_advisory_xact_lock_shared(key); END IF;
  RETURN true;
END $$"""

# A server says itself who inserts a record and when. Who may not name these columns cannot claim anything else.
_SAID_BY_SERVER = """ALTER TABLE lakeops_audit ALTER login SET DEFAULT SESSION_USER,
ALTER recorded SET DEFAULT floor(EXTRACT(epoch FROM clock_timestamp()))::bigint"""


def upgrade() -> None:
    """Make all tables, and with PostgreSQL the function that takes a fair lock and the defaults of the audit."""
    METADATA.create_all(op.get_bind(), checkfirst=False)
    if op.get_bind().dialect.name == "postgresql":
        op.execute(_FAIR_LOCK)
        op.execute(_SAID_BY_SERVER)
