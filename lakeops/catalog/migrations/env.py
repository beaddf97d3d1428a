"""Alembic's environment: run by alembic itself, on the connection that ``run`` handed in."""

from __future__ import annotations

from alembic import context

from lakeops.catalog.columns import VERSION_TABLE
from lakeops.catalog.migrations.run import CONNECTION
from lakeops.catalog.tables import METADATA

context.configure(
    connection=context.config.attributes[CONNECTION],
    target_metadata=METADATA,
    version_table=VERSION_TABLE,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
