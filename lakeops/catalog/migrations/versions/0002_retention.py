"""Retention rules, and what registered mirrors need of their source."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_BYTEWISE = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add two tables."""
    op.create_table(
        "lakeops_retention",
        sa.Column("repository_id", _BYTEWISE, primary_key=True, nullable=False),
        sa.Column("rules", _BYTEWISE, nullable=False),
    )
    op.create_table(
        "lakeops_mirror_need",
        sa.Column("repository_id", _BYTEWISE, primary_key=True, nullable=False),
        sa.Column("mirror", _BYTEWISE, primary_key=True, nullable=False),
        sa.Column("commits", sa.JSON(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
    )
