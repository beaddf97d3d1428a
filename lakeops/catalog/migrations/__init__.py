"""The schema's history, as alembic revisions. Imported only to create a catalog or to bring one up to date."""
