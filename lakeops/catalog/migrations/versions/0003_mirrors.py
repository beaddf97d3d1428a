"""Mirrors: configuration, followed refs, what has arrived; reports are numbered."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_BYTEWISE = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add three tables and a column."""
    op.add_column("lakeops_mirror_need", sa.Column("sequence", sa.BigInteger()))
    op.create_table(
        "lakeops_mirror",
        *_key(),
        sa.Column("source", sa.JSON(), nullable=False),
        _text("registration"),
        sa.Column("branches", sa.JSON(), nullable=False),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("reports", sa.Boolean(), nullable=False),
        sa.Column("check_imported", sa.Boolean(), nullable=False),
        _number("created"),
        _number("sequence"),
        _number("last_sync", nullable=True),
        _text("error", nullable=True),
        _number("promoted_writable", nullable=True),
    )
    op.create_table(
        "lakeops_mirror_ref",
        *_key("kind", "name"),
        _text("source_head"),
        _text("promoted", nullable=True),
        _text("candidate", nullable=True),
        _number("ticket"),
        _number("noticed", nullable=True),
        _number("missing_objects"),
        _number("missing_bytes"),
        _number("checked", nullable=True),
        _text("error", nullable=True),
    )
    op.create_table("lakeops_mirror_arrival", *_key("kind", "name", "file"), _text("pending", nullable=True))


def _key(*names: str) -> list[sa.Column[Any]]:
    return [_text(name, primary_key=True) for name in ("repository_id", *names)]


def _text(name: str, *, primary_key: bool = False, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, _BYTEWISE, primary_key=primary_key, nullable=nullable)


def _number(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger(), nullable=nullable)
