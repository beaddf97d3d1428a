"""Marks of garbage collection."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_BYTEWISE = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add a table."""
    numbers = ("created", "cutoff", "rows", "objects", "bytes", "listed", "swept")
    op.create_table(
        "lakeops_mark",
        sa.Column("repository_id", _BYTEWISE, primary_key=True, nullable=False),
        sa.Column("id", _BYTEWISE, primary_key=True, nullable=False),
        sa.Column("state", _BYTEWISE, nullable=False),
        sa.Column("digest", _BYTEWISE, nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in numbers),
    )
