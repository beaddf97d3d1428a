"""Between rows and records: what a statement returned becomes a frozen record, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Row

from lakeops.catalog.base import BranchState, Staged
from lakeops.catalog.tables import COMMIT
from lakeops.model.frozen import maker
from lakeops.model.mirrors import Mirror, MirrorRef, RefKind
from lakeops.model.records import Commit, Entry, ReflogRecord, Repository, Split
from lakeops.model.sources import SourceReference

AnyRow = Row[*tuple[Any, ...]]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICK = timedelta(microseconds=1)

_commit, _entry = maker(Commit), maker(Entry)

COMMIT_COLUMNS = [COMMIT.c[field.name] for field in fields(Commit)]
"""The commit table's columns in the order of the record's fields."""


def repository_record(row: AnyRow) -> Repository:
    """The repository of a row of its table."""
    return Repository(
        id=row.id,
        storage_namespace=row.storage_namespace,
        default_branch=row.default_branch,
        creation_date=row.creation_date,
        read_only=row.read_only,
        split=Split(**row.split),
        capabilities=row.capabilities,
    )


def repository_values(repository: Repository) -> dict[str, Any]:
    """A repository as column values."""
    return asdict(repository)


def commit_record(row: Sequence[Any]) -> Commit:
    """The commit of a row of ``COMMIT_COLUMNS``; by position, because logs read thousands of them."""
    commit_id, parents, committer, message, date, metadata, meta_range_id, generation, file, digest, expired = row
    return _commit(
        commit_id, tuple(parents), committer, message, date, metadata, meta_range_id, generation, file, digest, expired
    )


def commit_values(repository_id: str, commit: Commit) -> dict[str, Any]:
    """A commit as column values."""
    return {
        "repository_id": repository_id,
        "id": commit.id,
        "parents": list(commit.parents),
        "first_parent": commit.parents[0] if commit.parents else None,
        "committer": commit.committer,
        "message": commit.message,
        "creation_date": commit.creation_date,
        "metadata": dict(commit.metadata),
        "meta_range_id": commit.meta_range_id,
        "generation": commit.generation,
        "meta_range_file": commit.meta_range_file,
        "meta_range_digest": commit.meta_range_digest,
        "expired": commit.expired,
    }


def branch_record(row: Sequence[Any]) -> BranchState:
    """The branch of a row of its table, by position."""
    repository_id, name, commit_id, staging_token, sealed_tokens, resets = row
    return BranchState(repository_id, name, commit_id, staging_token, tuple(sealed_tokens), resets)


def staged_record(row: Sequence[Any]) -> Staged:
    """The staged row of a row of its table, by position."""
    _, _, path, tombstone, address, checksum, size_bytes, mtime, content_type, metadata = row
    if tombstone:
        return Staged(path, None)
    return Staged(path, _entry(path, address, checksum, size_bytes, mtime, content_type, metadata_map(metadata)))


def staged_values(repository_id: str, token: str, staged: Staged) -> dict[str, Any]:
    """A staged row as column values."""
    entry = staged.entry
    return {
        "repository_id": repository_id,
        "token": token,
        "path": staged.path,
        "tombstone": entry is None,
        "physical_address": entry and entry.physical_address,
        "checksum": entry and entry.checksum,
        "size_bytes": entry and entry.size_bytes,
        "mtime": entry and entry.mtime,
        "content_type": entry and entry.content_type,
        "metadata": entry and metadata_text(entry.metadata),
    }


def metadata_text(metadata: Mapping[str, str]) -> str | None:
    """User metadata as the staging table keeps it: JSON, or null when there is none."""
    return json.dumps(dict(metadata), ensure_ascii=False) if metadata else None


def metadata_map(text: str | None) -> dict[str, str]:
    """User metadata from what the staging table keeps."""
    if text is None:
        return {}
    parsed: dict[str, str] = json.loads(text)
    return parsed


def ticks(moment: datetime) -> int:
    """A moment as microseconds since the Unix epoch, for times whose order matters."""
    return (moment - _EPOCH) // _TICK


def from_ticks(count: int) -> datetime:
    """The moment that ``ticks`` wrote down."""
    return _EPOCH + count * _TICK


def reflog_record(row: AnyRow) -> ReflogRecord:
    """The reflog record of a row of its table."""
    return ReflogRecord(
        sequence=row.sequence,
        ref=row.ref,
        old=row.old,
        new=row.new,
        action=row.action,
        actor=row.actor,
        at=row.at,
    )


def mirror_record(row: AnyRow) -> Mirror:
    """The mirror of a row of its table."""
    return Mirror(
        repository_id=row.repository_id,
        source=SourceReference.from_json(row.source),
        registration=row.registration,
        branches=tuple(row.branches),
        tags=tuple(row.tags),
        reports=row.reports,
        check_imported=row.check_imported,
        created=row.created,
        sequence=row.sequence,
        last_sync=row.last_sync,
        error=row.error,
        promoted_writable=row.promoted_writable,
    )


def mirror_values(mirror: Mirror) -> dict[str, Any]:
    """A mirror as column values."""
    return {
        **{field.name: getattr(mirror, field.name) for field in fields(Mirror)},
        "source": mirror.source.to_json(),
        "branches": list(mirror.branches),
        "tags": list(mirror.tags),
    }


def mirror_ref_record(row: AnyRow) -> MirrorRef:
    """The ref of a mirror of a row of its table."""
    values = {field.name: getattr(row, field.name) for field in fields(MirrorRef)}
    return MirrorRef(**{**values, "kind": RefKind(row.kind)})
