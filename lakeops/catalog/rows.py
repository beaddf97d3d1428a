"""Between rows and records: what a statement returned becomes a frozen record, and back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, fields
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any, TypeVar

from sqlalchemy import Row, Table, Text, cast

from lakeops.catalog.records import BranchState, Intent, Intents, KeyRecord, Staged
from lakeops.catalog.tables import BRANCH, COMMIT, MIRROR, MIRROR_NEED, MIRROR_REF, REFLOG, REPOSITORY, STAGED
from lakeops.model.errors import Corrupted, InvalidInput
from lakeops.model.mirrors import MirrorRecord, MirrorRef, RefKind, Registration, SourceReference, Wait
from lakeops.model.records import Commit, Entry, Hook, ReflogRecord, RepositoryRecord, Split, maker

AnyRow = Row[*tuple[Any, ...]]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICK = timedelta(microseconds=1)
_WRONG = (TypeError, ValueError, KeyError, AttributeError, OverflowError)
"""How a value that is not of its column's kind fails where a record is made of it."""

_commit, _entry = maker(Commit), maker(Entry)
R = TypeVar("R")

COMMIT_COLUMNS = [COMMIT.c[field.name] for field in fields(Commit)]
"""The commit table's columns in the order of the record's fields."""


def decoding(table: Table, *key: str | int) -> Callable[[Callable[[Any], R]], Callable[[Any], R]]:
    """Makes a function that decodes a row one that raises ``Corrupted``, naming table and key, where it cannot.

    Args:
        table: the table of the rows.
        key: the names or places of the values that say which row it is.
    """

    def wrap(make: Callable[[Any], R]) -> Callable[[Any], R]:
        @wraps(make)
        def decode(row: Any) -> R:  # noqa: ANN401 - a row
            try:
                return make(row)
            except _WRONG as error:
                which = " ".join(str(row[part] if isinstance(part, int) else getattr(row, part)) for part in key)
                raise undecodable(table, which, error) from None

        return decode

    return wrap


def undecodable(table: Table, which: str, error: Exception) -> Corrupted:
    """The error for a row that makes no record."""
    reason = " ".join(str(error).split()) or type(error).__name__
    return Corrupted(
        f"the catalog's row {which!r} of table {table.name} cannot be decoded: {reason}; "
        "run `lakeops fsck`, and restore the catalog from its backup"
    )


def text_list(value: object) -> tuple[str, ...]:
    """A list of texts out of a JSON column."""
    if type(value) is not list or not all(type(item) is str for item in value):
        raise TypeError(f"{value!r:.80} is no list of texts")
    return tuple(value)


PARENTS = cast(COMMIT.c.parents, Text)
"""The parents of a commit as text, for ``parents_of``."""
_ONE_OR_TWO = re.compile(r'\["([0-9a-f]{64})"(?:, ?"([0-9a-f]{64})")?\]')
_PARENTS = re.compile(r'\[(?:"[0-9a-f]{64}"(?:, ?"[0-9a-f]{64}")*)?\]')


def parents_of(written: object) -> tuple[str, ...] | None:
    """The ids in the text of ``PARENTS``, which takes a tenth of parsing it as JSON. None where it has no ids."""
    if type(written) is not str:
        return None
    usual = _ONE_OR_TWO.fullmatch(written)
    if usual is not None:
        one, other = usual.groups()
        return (one,) if other is None else (one, other)
    if not _PARENTS.fullmatch(written):
        return None
    return tuple(written.split('"')[1::2])


def text_map(value: object) -> dict[str, str]:
    """A map of texts out of a JSON column."""
    if type(value) is not dict or not all(type(item) is str for item in value.values()):
        raise TypeError(f"{value!r:.80} is no map of texts")
    return value


def number(value: object) -> int:
    """A whole number. SQLite keeps any value in any column."""
    if type(value) is not int:
        raise TypeError(f"{value!r:.80} is no whole number")
    return value


def words(*values: object) -> None:
    """Check that values are texts."""
    for value in values:
        if type(value) is not str:
            raise TypeError(f"{value!r:.80} is no text")


def optional_number(value: object) -> int | None:
    """A whole number, or nothing."""
    return None if value is None else number(value)


@decoding(REPOSITORY, "id")
def repository_record(row: AnyRow) -> RepositoryRecord:
    """The repository of a row of its table."""
    split = Split.from_json(row.split)
    for value in astuple(split):
        number(value)
    words(row.id, row.storage_namespace, row.default_branch)
    if type(row.capabilities) is not dict:
        raise TypeError(f"{row.capabilities!r:.80} is no map")
    return RepositoryRecord(
        id=row.id,
        storage_namespace=row.storage_namespace,
        default_branch=row.default_branch,
        creation_date=number(row.creation_date),
        read_only=row.read_only,
        split=split,
        capabilities=row.capabilities,
        hooks=hooks_of(row),
        metadata=text_map(row.metadata),
    )


@decoding(REPOSITORY, "id")
def hooks_of(row: AnyRow) -> tuple[Hook, ...]:
    """The hooks of a repository's row. Raises ``Corrupted``."""
    if row.hooks == []:
        return ()
    if type(row.hooks) is not list:
        raise TypeError(f"{row.hooks!r:.80} is no list of hooks")
    return tuple(map(_hook, row.hooks))


def _hook(value: Any) -> Hook:  # noqa: ANN401 - whatever the column holds
    try:
        return Hook.from_json(value)
    except InvalidInput as error:
        raise ValueError(error.message) from None


def repository_values(repository: RepositoryRecord) -> dict[str, Any]:
    """A repository as column values."""
    return {
        **asdict(repository),
        "split": repository.split.to_json(),
        "hooks": [hook.to_json() for hook in repository.hooks],
    }


@decoding(COMMIT, 0)
def commit_record(row: Sequence[Any]) -> Commit:
    """The commit of a row of ``COMMIT_COLUMNS``; by position, because logs read thousands of them."""
    commit_id, parents, committer, message, date, metadata, meta_range_id, generation, file, digest, expired = row
    return _commit(
        commit_id, text_list(parents), committer, message, number(date), text_map(metadata), meta_range_id,
        number(generation), file, digest, expired,
    )  # fmt: skip


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


@decoding(BRANCH, 0, 1)
def branch_record(row: Sequence[Any]) -> BranchState:
    """The branch of a row of its table, by position."""
    repository_id, name, commit_id, staging_token, sealed_tokens, resets, sealed_resets, intents, *_ = row
    words(name, commit_id, staging_token)
    return BranchState(
        repository_id,
        name,
        commit_id,
        staging_token,
        text_list(sealed_tokens),
        number(resets),
        number(sealed_resets),
        _intents(intents) if intents != [] else (),
    )


def _intents(value: object) -> Intents:
    if type(value) is not list:
        raise TypeError(f"{value!r:.80} is no list of intents")
    found = []
    for item in value:
        token, committer, message, metadata, key, fingerprint = item
        words(token, committer, message, fingerprint)
        found.append((token, Intent(committer, message, tuple(text_map(metadata).items()), key, fingerprint)))
    return tuple(found)


def intent_values(intents: Intents) -> list[list[Any]]:
    """Intents as a column value."""
    return [[token, one.committer, one.message, dict(one.metadata), one.key, one.fingerprint] for token, one in intents]


def branch_values(state: BranchState) -> dict[str, Any]:
    """A branch as column values."""
    return {
        "repository_id": state.repository_id,
        "name": state.id,
        "commit_id": state.commit_id,
        "staging_token": state.staging_token,
        "sealed_tokens": list(state.sealed_tokens),
        "resets": state.resets,
        "sealed_resets": state.sealed_resets,
        "intents": intent_values(state.intents),
    }


def key_record(row: AnyRow) -> KeyRecord:
    """The idempotency key of a row of its table."""
    return KeyRecord(row.fingerprint, row.commit_id)


@decoding(STAGED, 1, 2)
def staged_record(row: Sequence[Any]) -> Staged:
    """The staged row of a row of its table, by position."""
    _, _, path, tombstone, address, checksum, size_bytes, mtime, content_type, metadata, *_ = row
    if tombstone:
        return Staged(path, None)
    words(address, checksum, content_type)
    return Staged(
        path,
        _entry(path, address, checksum, number(size_bytes), number(mtime), content_type, metadata_map(metadata)),
    )


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
        "changes": 1,
    }


def metadata_text(metadata: Mapping[str, str]) -> str | None:
    """User metadata as the staging table keeps it: JSON, or null when there is none."""
    return json.dumps(dict(metadata), ensure_ascii=False) if metadata else None


def metadata_map(text: str | None) -> dict[str, str]:
    """User metadata from what the staging table keeps."""
    if text is None:
        return {}
    return text_map(json.loads(text))


def ticks(moment: datetime) -> int:
    """A moment as microseconds since the Unix epoch, for times whose order matters."""
    return (moment - _EPOCH) // _TICK


def from_ticks(count: int) -> datetime:
    """The moment that ``ticks`` wrote down."""
    return _EPOCH + count * _TICK


@decoding(REFLOG, "sequence")
def reflog_record(row: AnyRow) -> ReflogRecord:
    """The reflog record of a row of its table."""
    return ReflogRecord(
        sequence=row.sequence,
        ref=row.ref,
        old=row.old,
        new=row.new,
        action=row.action,
        actor=row.actor,
        at=number(row.at),
    )


@decoding(MIRROR, "repository_id")
def mirror_record(row: AnyRow) -> MirrorRecord:
    """The mirror of a row of its table."""
    return MirrorRecord(
        repository_id=row.repository_id,
        source=SourceReference.from_json(row.source),
        registration=row.registration,
        branches=text_list(row.branches),
        tags=text_list(row.tags),
        reports=row.reports,
        check_imported=row.check_imported,
        created=number(row.created),
        sequence=number(row.sequence),
        last_sync=optional_number(row.last_sync),
        error=row.error,
        promoted_writable=optional_number(row.promoted_writable),
        stall_timeout=number(row.stall_timeout),
        kept=text_list(row.kept),
        rules=row.rules,
        protections=text_list(row.protections),
        refusals=number(row.refusals),
        refused=text_list(row.refused),
    )


def mirror_values(mirror: MirrorRecord) -> dict[str, Any]:
    """A mirror as column values."""
    return {
        **{field.name: getattr(mirror, field.name) for field in fields(MirrorRecord)},
        "source": mirror.source.to_json(),
        "branches": list(mirror.branches),
        "tags": list(mirror.tags),
        "kept": list(mirror.kept),
        "protections": list(mirror.protections),
        "refused": list(mirror.refused),
    }


@decoding(MIRROR_REF, "repository_id", "kind", "name")
def mirror_ref_record(row: AnyRow) -> MirrorRef:
    """The ref of a mirror of a row of its table."""
    values = {field.name: getattr(row, field.name) for field in fields(MirrorRef)}
    wait = None if row.wait is None else Wait.from_json(row.wait)
    return MirrorRef(**{**values, "kind": RefKind(row.kind), "wait": wait})


@decoding(MIRROR_NEED, "repository_id", "mirror")
def registration_record(row: AnyRow) -> Registration:
    """What a mirror has reported, of a row of its table."""
    sequence = 0 if row.sequence is None else number(row.sequence)
    return Registration(row.mirror, frozenset(text_list(row.commits)), number(row.at), sequence)


def mirror_ref_values(ref: MirrorRef) -> dict[str, Any]:
    """A ref of a mirror as column values."""
    values = {field.name: getattr(ref, field.name) for field in fields(MirrorRef)}
    return {**values, "kind": str(ref.kind), "wait": wait_value(ref.wait)}


def wait_value(wait: Wait | None) -> dict[str, Any] | None:
    """A wait as its column holds it."""
    return None if wait is None else wait.to_json()
