"""The catalog's tables as SQLModel classes: the one place that declares them.

SQLModel does not validate table rows. So these classes never leave this package: what goes in and comes out are the
frozen records of ``model.records`` and ``catalog.records``. Statements are built on the tables that the classes
describe (see ``tables``), and no row becomes an object of a class. Three rules hold for all of them:

* Every key begins with the repository, so no query reaches another repository's rows. Only the clock's row, and the
  catalog's own id, belong to no repository.
* Text is ordered by its bytes (``COLLATE "C"`` on PostgreSQL, ``BINARY`` on SQLite), like paths everywhere.
* Names begin with ``lakeops_``, so the catalog may share a PostgreSQL database with others, Airflow's included.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

from sqlalchemy import Column, Index, MetaData, UniqueConstraint
from sqlalchemy import text as sql
from sqlalchemy.orm import declared_attr
from sqlmodel import Field, SQLModel

from lakeops.catalog import database
from lakeops.catalog.database import PREFIX


def _field(column: Callable[..., Column[Any]]) -> Callable[..., Any]:
    """Make a function that makes SQLModel's fields, of one that makes columns."""
    return lambda *name, **options: Field(sa_column=column(*name, **options))


_text, _number = _field(database.text), _field(database.number)
_flag, _json = _field(database.flag), _field(database.json)


class _Row(SQLModel):
    """The root of the tables below: named after their classes, in metadata of their own."""

    metadata: ClassVar[MetaData] = MetaData()

    @declared_attr.directive
    def __tablename__(cls) -> str:  # noqa: N805 - SQLAlchemy's way to name tables
        return PREFIX + re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__.removesuffix("Row")).lower()


class _OfRepository(_Row):
    """A table whose key begins with the repository."""

    repository_id: str = Field(primary_key=True, sa_type=database.BYTEWISE)


class RepositoryRow(_Row, table=True):
    """A repository; its row is the lock that expiry takes exclusively and every transition shared.

    ``grace_before`` seconds count until ``grace_until`` where that is longer than ``grace_seconds``. ``fence`` is the
    latest cutoff of any mark ever begun. ``pruned`` is the highest generation of a commit that was pruned. ``hooks``
    are what runs beside changes of refs. ``restored`` is when the dump was made that it was restored from, until
    somebody accepts it. Times are in microseconds since the Unix epoch.
    """

    __table_args__: ClassVar[tuple[Any, ...]] = (
        UniqueConstraint("storage_namespace", name="lakeops_repository_namespace"),
    )
    id: str = _text(key=True)
    storage_namespace: str = _text()
    default_branch: str = _text()
    creation_date: int = _number()
    read_only: bool = _flag()
    split: dict[str, int] = _json()
    capabilities: dict[str, Any] = _json()
    user_metadata: dict[str, str] = _json("metadata")
    grace_seconds: int = _number()
    grace_before: int | None = _number(null=True)
    grace_until: int | None = _number(null=True)
    fence: int | None = _number(null=True)
    pruned: int | None = _number(null=True)
    hooks: list[dict[str, Any]] = _json()
    restored: int | None = _number(null=True)


class CatalogRow(_Row, table=True):
    """This catalog's own id, in the only row of the table; a copy of the database has it too."""

    only: int = _number(key=True)
    id: str = _text()


class OwnerRow(_OfRepository, table=True):
    """The owner record in a repository's namespace: as this catalog wrote it, and as it is going to.

    Both are the record's JSON text, byte for byte. See ``ops.owner``.
    """

    current_lease: str | None = _text(null=True)
    pending_lease: str | None = _text(null=True)


_WHERE_MARKED: dict[str, Any] = dict.fromkeys(("sqlite_where", "postgresql_where"), sql("expired_by IS NOT NULL"))


class CommitRow(_OfRepository, table=True):
    """A commit. ``first_parent`` repeats the first of ``parents`` for walks inside the database.

    ``expired_by`` is the mark that expired it, if one did; or says that it is unproved since a fail-over.
    """

    __table_args__: ClassVar[tuple[Any, ...]] = (
        Index("lakeops_commit_generation", "repository_id", "generation", "id"),
        Index("lakeops_commit_expired_by", "repository_id", "expired_by", **_WHERE_MARKED),
    )
    id: str = _text(key=True)
    parents: list[str] = _json()
    first_parent: str | None = _text(null=True)
    committer: str = _text()
    message: str = _text()
    creation_date: int = _number()
    user_metadata: dict[str, str] = _json("metadata")
    meta_range_id: str = _text()
    generation: int = _number()
    meta_range_file: str = _text()
    meta_range_digest: str = _text()
    expired: bool = _flag()
    expired_by: str | None = _text(null=True)


class BranchRow(_OfRepository, table=True):
    """A branch: head, active staging token, sealed tokens (newest first) and how often staged rows were dropped.

    ``sealed_resets`` counts those drops that took rows of sealed tokens away. ``intents`` is what those asked for who
    are about to commit sealed rows: token, committer, message, metadata, key and fingerprint of each.
    """

    __table_args__: ClassVar[tuple[Any, ...]] = (Index("lakeops_branch_token", "repository_id", "staging_token"),)
    name: str = _text(key=True)
    commit_id: str = _text()
    staging_token: str = _text()
    sealed_tokens: list[str] = _json()
    resets: int = _number()
    sealed_resets: int = _number()
    intents: list[list[Any]] = _json()


class TagRow(_OfRepository, table=True):
    """A tag."""

    name: str = _text(key=True)
    commit_id: str = _text()


class ProtectionRow(_OfRepository, table=True):
    """A protection of the refs that match a glob pattern; see ``model.protection.Protection``."""

    kind: str = _text(key=True)
    pattern: str = _text(key=True)
    check_name: str = _text(key=True)
    prefix: str = _text(key=True)


class VerdictRow(_OfRepository, table=True):
    """A verdict on a commit; see ``model.protection.Verdict``."""

    commit_id: str = _text(key=True)
    name: str = _text(key=True)
    state: str = _text()
    said_by: str = _text()
    at: int = _number()
    findings: str = _text()
    run: str = _text()


class StagedRow(_OfRepository, table=True):
    """One staged path of one token: an entry, or a tombstone whose other columns are null.

    ``metadata`` is JSON text, null when empty, so that bulk reads parse only what is there. ``changes`` is how
    often something was staged at this path under this token.
    """

    __table_args__: ClassVar[tuple[Any, ...]] = ({"sqlite_with_rowid": False},)
    token: str = _text(key=True)
    path: str = _text(key=True)
    tombstone: bool = _flag()
    physical_address: str | None = _text(null=True)
    checksum: str | None = _text(null=True)
    size_bytes: int | None = _number(null=True)
    mtime: int | None = _number(null=True)
    content_type: str | None = _text(null=True)
    user_metadata: str | None = _text("metadata", null=True)
    changes: int = _number()


class RetiredTokenRow(_OfRepository, table=True):
    """A token that no branch reads any more. ``commit_id`` is the commit that covers its rows, if one does.

    ``purged`` once its rows are gone; what a commit consumed stays on record for good.
    """

    __table_args__: ClassVar[tuple[Any, ...]] = (Index("lakeops_retired_token_purged", "repository_id", "purged"),)
    token: str = _text(key=True)
    commit_id: str | None = _text(null=True)
    purged: bool = _flag()


class ReflogRow(_Row, table=True):
    """One move of a branch or tag."""

    __table_args__: ClassVar[tuple[Any, ...]] = (
        Index("lakeops_reflog_all", "repository_id", "sequence"),
        Index("lakeops_reflog_ref", "repository_id", "ref", "sequence"),
        {"sqlite_autoincrement": True},
    )
    sequence: int = Field(sa_column=database.counter())
    repository_id: str = _text()
    kind: str = _text()
    ref: str = _text()
    old: str | None = _text(null=True)
    new: str | None = _text(null=True)
    action: str = _text()
    actor: str = _text()
    at: int = _number()


class AuditRow(_Row, table=True):
    """One transition and who did it: never changed, never deleted, not even with its repository.

    ``login`` and ``recorded`` (Unix seconds) are what a server fills in: see the migrations. ``person`` is the user of
    a program that works for others, such as Airflow. ``claimed`` is the committer's name that the caller gave.
    """

    __table_args__: ClassVar[tuple[Any, ...]] = (
        Index("lakeops_audit_at", "recorded", "sequence"),
        Index("lakeops_audit_repository", "repository_id", "recorded", "sequence"),
        {"sqlite_autoincrement": True},
    )
    sequence: int = Field(sa_column=database.counter())
    repository_id: str = _text()
    action: str = _text()
    kind: str = _text()
    ref: str = _text()
    before: str | None = _text(null=True)
    after: str | None = _text(null=True)
    person: str | None = _text(null=True)
    claimed: str = _text()
    login: str = _text()
    recorded: int = _number()


class IdempotencyKeyRow(_OfRepository, table=True):
    """An idempotency key and the commit that it stands for."""

    key: str = _text(key=True)
    fingerprint: str = _text()
    commit_id: str = _text()
    at: int = _number()


class QueueRow(_OfRepository, table=True):
    """A publisher's place in the queue of a branch; ``renewed`` and ``lasts`` in microseconds."""

    branch: str = _text(key=True)
    number: int = _number(key=True)
    publisher: str = _text()
    renewed: int = _number()
    lasts: int = _number()


class UploadRow(_OfRepository, table=True):
    """Objects being written below ``address``; ``started`` in microseconds since the Unix epoch."""

    __table_args__: ClassVar[tuple[Any, ...]] = (
        Index("lakeops_upload_started", "repository_id", "started"),
        Index("lakeops_upload_branch", "repository_id", "branch"),
    )
    id: str = _text(key=True)
    branch: str = _text()
    address: str = _text()
    started: int = _number()


class RetentionRow(_OfRepository, table=True):
    """A repository's retention rules, as JSON text that was validated when it was set."""

    rules: str = _text()


class MirrorNeedRow(_OfRepository, table=True):
    """The needs of one mirror of this repository: commits that it shows or waits for, as it last reported them."""

    mirror: str = _text(key=True)
    commits: list[str] = _json()
    at: int = _number()
    sequence: int | None = _number(null=True)


class MirrorRow(_OfRepository, table=True):
    """How a repository mirrors another one; ``source`` holds no secret. See ``model.mirrors.Mirror``."""

    source: dict[str, Any] = _json()
    registration: str = _text()
    branches: list[str] = _json()
    tags: list[str] = _json()
    reports: bool = _flag()
    check_imported: bool = _flag()
    created: int = _number()
    sequence: int = _number()
    last_sync: int | None = _number(null=True)
    error: str | None = _text(null=True)
    promoted_writable: int | None = _number(null=True)
    stall_timeout: int = _number()
    kept: list[str] = _json()
    rules: str | None = _text(null=True)
    protections: list[str] = _json()
    refusals: int = _number()
    refused: list[str] = _json()


class MirrorRefRow(_OfRepository, table=True):
    """One ref that a mirror follows: what is shown, what is waited for. See ``model.mirrors.MirrorRef``."""

    kind: str = _text(key=True)
    name: str = _text(key=True)
    source_head: str = _text()
    promoted: str | None = _text(null=True)
    candidate: str | None = _text(null=True)
    ticket: int = _number()
    noticed: int | None = _number(null=True)
    missing_objects: int = _number()
    missing_bytes: int = _number()
    checked: int | None = _number(null=True)
    error: str | None = _text(null=True)
    wait: dict[str, Any] | None = _json()


class MirrorArrivalRow(_OfRepository, table=True):
    """A range file that a ref waits for and that has arrived; ``pending`` is what it still lacks, as JSON text."""

    kind: str = _text(key=True)
    name: str = _text(key=True)
    file: str = _text(key=True)
    pending: str | None = _text(null=True)


class ClockRow(_Row, table=True):
    """The latest time that the catalog trusts: one row for all repositories. See ``catalog.marks``.

    ``seen`` and ``uptime`` are in microseconds, ``sequence`` is the newest reflog row of then.
    """

    id: str = _text(key=True)
    seen: int = _number()
    sequence: int = _number()
    boot: str | None = _text(null=True)
    uptime: int | None = _number(null=True)


class MarkRow(_OfRepository, table=True):
    """A mark of garbage collection; times in microseconds since the Unix epoch."""

    id: str = _text(key=True)
    state: str = _text()
    digest: str = _text()
    created: int = _number()
    cutoff: int = _number()
    rows: int = _number()
    objects: int = _number()
    bytes: int = _number()
    listed: int = _number()
    swept: int = _number()
    refused: int = _number()
    failures: list[list[str]] = _json()


class ReportRow(_OfRepository, table=True):
    """A report of a run, for people to look at: nothing rests on it. See ``model.records.Report``."""

    kind: str = _text(key=True)
    at: int = _number(key=True)
    actor: str = _text()
    found: dict[str, Any] = _json()


METADATA: MetaData = _Row.metadata
