"""The first schema."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_BYTEWISE = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_COUNTER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make all tables."""
    op.create_table(
        "lakeops_repository",
        _text("id", primary_key=True),
        _text("storage_namespace"),
        _text("default_branch"),
        _number("creation_date"),
        _flag("read_only"),
        _json("split"),
        _json("capabilities"),
        sa.UniqueConstraint("storage_namespace", name="lakeops_repository_namespace"),
    )
    op.create_table(
        "lakeops_commit",
        *_key("id"),
        _json("parents"),
        _text("first_parent", nullable=True),
        _text("committer"),
        _text("message"),
        _number("creation_date"),
        _json("metadata"),
        _text("meta_range_id"),
        _number("generation"),
        _text("meta_range_file"),
        _text("meta_range_digest"),
        _flag("expired"),
    )
    op.create_table(
        "lakeops_branch",
        *_key("name"),
        _text("commit_id"),
        _text("staging_token"),
        _json("sealed_tokens"),
        _number("resets"),
    )
    op.create_table("lakeops_tag", *_key("name"), _text("commit_id"))
    op.create_table("lakeops_branch_protection", *_key("pattern"))
    op.create_table(
        "lakeops_staged",
        *_key("token", "path"),
        _flag("tombstone"),
        _text("physical_address", nullable=True),
        _text("checksum", nullable=True),
        _number("size_bytes", nullable=True),
        _number("mtime", nullable=True),
        _text("content_type", nullable=True),
        _text("metadata", nullable=True),
        sqlite_with_rowid=False,
    )
    op.create_table("lakeops_retired_token", *_key("token"), _text("commit_id", nullable=True), _flag("purged"))
    op.create_index("lakeops_retired_token_purged", "lakeops_retired_token", ["repository_id", "purged"])
    op.create_table(
        "lakeops_reflog",
        sa.Column("sequence", _COUNTER, primary_key=True, autoincrement=True),
        _text("repository_id"),
        _text("ref"),
        _text("old", nullable=True),
        _text("new", nullable=True),
        _text("action"),
        _text("actor"),
        _number("at"),
        sqlite_autoincrement=True,
    )
    op.create_index("lakeops_reflog_all", "lakeops_reflog", ["repository_id", "sequence"])
    op.create_index("lakeops_reflog_ref", "lakeops_reflog", ["repository_id", "ref", "sequence"])
    op.create_table("lakeops_idempotency_key", *_key("key"), _text("fingerprint"), _text("commit_id"), _number("at"))
    op.create_table("lakeops_upload", *_key("id"), _text("branch"), _text("address"), _number("started"))


def _key(*names: str) -> list[sa.Column[Any]]:
    return [_text(name, primary_key=True) for name in ("repository_id", *names)]


def _text(name: str, *, primary_key: bool = False, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, _BYTEWISE, primary_key=primary_key, nullable=nullable)


def _number(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger(), nullable=nullable)


def _flag(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Boolean(), nullable=False)


def _json(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.JSON(), nullable=False)
