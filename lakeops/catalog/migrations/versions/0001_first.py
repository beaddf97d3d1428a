"""The first schema."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from lakeops.catalog.database import login, seconds

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_BYTEWISE = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_COUNTER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

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


def upgrade() -> None:
    """Make all tables, and with PostgreSQL the function that takes a fair lock."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(_FAIR_LOCK)
    op.create_table(
        "lakeops_repository",
        _text("id", primary_key=True),
        _text("storage_namespace"),
        _text("default_branch"),
        _number("creation_date"),
        _flag("read_only"),
        _json("split"),
        _json("capabilities"),
        _json("metadata"),
        _number("grace_seconds"),
        _number("grace_before", nullable=True),
        _number("grace_until", nullable=True),
        _number("fence", nullable=True),
        _number("pruned", nullable=True),
        _json("hooks"),
        _number("restored", nullable=True),
        sa.UniqueConstraint("storage_namespace", name="lakeops_repository_namespace"),
    )
    op.create_table(
        "lakeops_catalog", sa.Column("only", sa.BigInteger(), primary_key=True, autoincrement=False), _text("id")
    )
    op.create_table(
        "lakeops_owner", *_key(), _text("current_lease", nullable=True), _text("pending_lease", nullable=True)
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
        _text("expired_by", nullable=True),
    )
    op.create_index(
        "lakeops_commit_expired_by",
        "lakeops_commit",
        ["repository_id", "expired_by"],
        sqlite_where=sa.text("expired_by IS NOT NULL"),
        postgresql_where=sa.text("expired_by IS NOT NULL"),
    )
    op.create_table(
        "lakeops_branch",
        *_key("name"),
        _text("commit_id"),
        _text("staging_token"),
        _json("sealed_tokens"),
        _number("resets"),
        _number("sealed_resets"),
        _json("intents"),
    )
    op.create_index("lakeops_branch_token", "lakeops_branch", ["repository_id", "staging_token"])
    op.create_table("lakeops_tag", *_key("name"), _text("commit_id"))
    op.create_table("lakeops_protection", *_key("kind", "pattern", "check_name", "prefix"))
    op.create_table(
        "lakeops_verdict",
        *_key("commit_id", "name"),
        _text("state"),
        _text("said_by"),
        _number("at"),
        _text("findings"),
        _text("run"),
    )
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
        _number("changes"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "lakeops_retired_token",
        *_key("token"),
        _text("commit_id", nullable=True),
        _flag("purged"),
    )
    op.create_index("lakeops_retired_token_purged", "lakeops_retired_token", ["repository_id", "purged"])
    op.create_table(
        "lakeops_reflog",
        sa.Column("sequence", _COUNTER, primary_key=True, autoincrement=True),
        _text("repository_id"),
        _text("kind"),
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
    op.create_table(
        "lakeops_audit",
        sa.Column("sequence", _COUNTER, primary_key=True, autoincrement=True),
        _text("repository_id"),
        _text("action"),
        _text("kind"),
        _text("ref"),
        _text("before", nullable=True),
        _text("after", nullable=True),
        _text("person", nullable=True),
        _text("claimed"),
        login("login"),
        seconds("recorded"),
        sqlite_autoincrement=True,
    )
    op.create_index("lakeops_audit_at", "lakeops_audit", ["recorded", "sequence"])
    op.create_index("lakeops_audit_repository", "lakeops_audit", ["repository_id", "recorded", "sequence"])
    op.create_table(
        "lakeops_queue",
        *_key("branch"),
        sa.Column("number", sa.BigInteger(), primary_key=True, autoincrement=False),
        _text("publisher"),
        _number("renewed"),
        _number("lasts"),
    )
    op.create_table(
        "lakeops_idempotency_key",
        *_key("key"),
        _text("fingerprint"),
        _text("commit_id"),
        _number("at"),
    )
    op.create_table(
        "lakeops_upload",
        *_key("id"),
        _text("branch"),
        _text("address"),
        _number("started"),
    )
    op.create_index("lakeops_upload_started", "lakeops_upload", ["repository_id", "started"])
    op.create_table("lakeops_retention", *_key(), _text("rules"))
    op.create_table(
        "lakeops_mirror_need",
        *_key("mirror"),
        _json("commits"),
        _number("at"),
        _number("sequence", nullable=True),
    )
    op.create_table(
        "lakeops_mirror",
        *_key(),
        _json("source"),
        _text("registration"),
        _json("branches"),
        _json("tags"),
        _flag("reports"),
        _flag("check_imported"),
        _number("created"),
        _number("sequence"),
        _number("last_sync", nullable=True),
        _text("error", nullable=True),
        _number("promoted_writable", nullable=True),
        _number("stall_timeout"),
        _json("kept"),
        _text("rules", nullable=True),
        _json("protections"),
        _number("refusals"),
        _json("refused"),
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
        _json("wait"),
    )
    op.create_table(
        "lakeops_mirror_arrival",
        *_key("kind", "name", "file"),
        _text("pending", nullable=True),
    )
    op.create_table(
        "lakeops_mark",
        *_key("id"),
        _text("state"),
        _text("digest"),
        *(_number(name) for name in ("created", "cutoff", "rows", "objects", "bytes", "listed", "swept", "refused")),
        _json("failures"),
    )
    op.create_table(
        "lakeops_report",
        *_key("kind"),
        sa.Column("at", sa.BigInteger(), primary_key=True, autoincrement=False),
        _text("actor"),
        _json("found"),
    )
    op.create_table(
        "lakeops_clock",
        _text("id", primary_key=True),
        _number("seen"),
        _number("sequence"),
        _text("boot", nullable=True),
        _number("uptime", nullable=True),
    )
    op.create_index("lakeops_commit_generation", "lakeops_commit", ["repository_id", "generation", "id"])


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
