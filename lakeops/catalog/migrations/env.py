"""Alembic's environment: run by alembic itself, on the connection that ``run`` handed in."""

from __future__ import annotations

from alembic import context

from lakeops.catalog.database import VERSION_TABLE

connection = context.config.attributes["connection"]  # see ``run``
context.configure(connection=connection, version_table=VERSION_TABLE, transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
