"""What the catalog holds as it is, right or wrong: what ``fsck`` looks at. No transition works with these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from lakeops.catalog.base import BranchState
from lakeops.model.records import Commit, Ref, Repository


@dataclass(frozen=True, slots=True)
class StagedLine:
    """A staged row as the catalog keeps it, right or wrong: values are not checked, ``metadata`` is JSON text."""

    token: str
    path: str
    tombstone: bool
    physical_address: str | None
    checksum: str | None
    size_bytes: int | None
    mtime: int | None
    content_type: str | None
    metadata: str | None
    digest: int


@dataclass(frozen=True, slots=True)
class RowFlaw:
    """A row that is not what its digest covers; ``reason`` says why it makes no record at all, if it makes none."""

    table: str
    key: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Move:
    """A move of a ref: ``kind`` is ``branch`` or ``tag``."""

    kind: str
    ref: str
    old: str | None
    new: str | None


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload's record: what is written below ``address`` since ``started``, for a branch."""

    id: str
    branch: str
    address: str
    started: datetime


@dataclass(frozen=True, slots=True)
class Records:
    """What a catalog holds of a repository at one instant, right or wrong: what ``fsck`` looks at.

    Attributes:
        repository: the repository.
        branches: all branches with their tokens.
        tags: all tags.
        commits: ids to commits, expired ones included.
        first_parents: ids of commits to what the catalog walks logs by, where it is not the first of their parents.
        unreadable: ids of commits whose rows make no commit, and why.
        retired: tokens in use, or with rows, that are retired; to the commit that took them along, if one did.
        staged: tokens with rows, to how many.
        staged_wrong: tokens whose rows do not sum up to what was staged under them.
        uploads: all uploads on record, the overdue ones too.
        overdue: when an upload must have begun to be linked still.
        follows: whether it is a mirror that follows its source.
        dangling_keys: idempotency keys whose commit does not exist, to that commit's id; the first hundred.
        now: the database's time.
        flaws: rows of any table that are not what their digests cover, or make no record.
        wrong_tables: tables that have lost or gained rows.
        pruned: the highest generation of a commit that was pruned, if any was.
        moves: the reflog, ref by ref, oldest first.
    """

    repository: Repository
    branches: Sequence[BranchState]
    tags: Sequence[Ref]
    commits: Mapping[str, Commit]
    first_parents: Mapping[str, str | None]
    unreadable: Mapping[str, str]
    retired: Mapping[str, str | None]
    staged: Mapping[str, int]
    staged_wrong: Sequence[str]
    uploads: Sequence[Upload]
    overdue: datetime
    follows: bool
    dangling_keys: Mapping[str, str]
    now: datetime
    flaws: Sequence[RowFlaw]
    wrong_tables: Sequence[str]
    moves: Sequence[Move]
    pruned: int | None = None
