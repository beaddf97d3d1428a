"""The records that go into the catalog's transitions and come out of them.

The last part is what the catalog holds as it is, right or wrong: only ``fsck`` looks at it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lakeops.model.errors import KeyReused
from lakeops.model.findings import Report
from lakeops.model.marks import Identity
from lakeops.model.mirrors import Remaining
from lakeops.model.records import Along, Commit, Entry, Hook, RefRecord, RepositoryRecord, difference

if TYPE_CHECKING:
    import pyarrow as pa

Pending = Mapping[str, str | None]
"""Range files that have arrived at a mirror, by name: JSON text that says which of their objects have not, or None."""

NOTHING = Remaining()


@dataclass(frozen=True, slots=True)
class Caller:
    """Who works with a catalog.

    Attributes:
        claimed: the committer's name that was set. Nobody checks it.
        person: the user whom a program such as Airflow works for, if it knows one.
    """

    claimed: str = ""
    person: str | None = None


@dataclass(frozen=True, slots=True)
class Intent:
    """What somebody who is about to commit sealed rows asked for: what their commit says, and under which key."""

    committer: str
    message: str
    metadata: tuple[tuple[str, str], ...] = ()
    key: str | None = None
    fingerprint: str = ""

    def same_call(self, other: Intent | None) -> bool:
        """Whether both are of one call, or of one that was repeated."""
        return self == other or (other is not None and self.key is not None and self.key == other.key)

    @property
    def along(self) -> Along:
        """What a commit of somebody else keeps of it."""
        return Along(self.committer, self.message, dict(self.metadata))


Intents = tuple[tuple[str, Intent], ...]
"""Sealed tokens, each with what somebody asked for whose rows are under it. A token may come several times."""


@dataclass(frozen=True, slots=True)
class BranchState:
    """A branch's row: its head and the tokens of its staging area.

    Reads go through ``staging_token``, then ``sealed_tokens`` (newest first), then the head. ``resets`` counts the
    times that staged rows were taken away, so that a call that worked with them notices.
    ``sealed_resets`` counts those that took rows of sealed tokens away: a commit in flight reads no other rows.
    ``intents`` are of those who are about to commit sealed rows, in the order in which they began.
    """

    repository_id: str
    id: str
    commit_id: str
    staging_token: str
    sealed_tokens: tuple[str, ...] = ()
    resets: int = 0
    sealed_resets: int = 0
    intents: Intents = ()

    @property
    def tokens(self) -> tuple[str, ...]:
        """All tokens, newest first."""
        return (self.staging_token, *self.sealed_tokens)


@dataclass(frozen=True, slots=True)
class BranchAt:
    """A branch at one instant: its row, the commit that it points to, and the database's time."""

    state: BranchState
    head: Commit
    now: datetime


@dataclass(frozen=True, slots=True)
class Sealed(BranchAt):
    """A branch with its staged rows sealed, or ``earlier``: the commit under the call's key. Nothing is sealed then."""

    earlier: Commit | None = None


@dataclass(frozen=True, slots=True)
class Staged:
    """One staged row: an entry, or a tombstone when ``entry`` is None."""

    path: str
    entry: Entry | None


@dataclass(frozen=True, slots=True)
class ChangeCounter:
    """How often something was staged at a path, or below a prefix, up to one instant.

    Attributes:
        place: the path, or the prefix.
        below: whether it is a prefix.
        total: the count. Whatever is staged there later makes it another one.
    """

    place: str
    below: bool
    total: int


@dataclass(frozen=True, slots=True)
class Pinned:
    """A branch as somebody is about to look at it: its row, and how often something was staged where they look."""

    state: BranchState
    counter: ChangeCounter


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """What an idempotency key stands for: the call's fingerprint and the commit that it published."""

    fingerprint: str
    commit_id: str

    def check(self, key: str, fingerprint: str) -> None:
        """Raises ``KeyReused``, naming what differs, unless a call under the key asks for the same."""
        differs = difference(self.fingerprint, fingerprint)
        if differs:
            raise KeyReused(key, self.commit_id, differs)


@dataclass(frozen=True, slots=True)
class Publish:
    """Everything that the publish transaction checks and writes.

    Attributes:
        repository_id: the repository.
        branch: the branch to move.
        expected_head: the head that the work was planned on.
        sealed_resets: the branch's ``sealed_resets`` when its sealed tokens were read.
        commit: the commit to insert (kept as it is when its id exists already) and to move the head to.
        consumed: the sealed tokens whose rows are in the commit. They leave the branch.
        live: commits that must be live when this is published: parents, and every commit whose ranges are reused.
        started: when the attempt began, by the database's clock.
        action: ``commit``, ``merge``, ``revert``, ``cherry-pick`` or ``import``, for the reflog and for protection.
        actor: who did it.
        key: an idempotency key, and ``fingerprint`` what the call asked for.
        publisher: whose place in the branch's queue this is published at, if anybody's.
        intent: what the caller asked for, as it is kept with sealed tokens. Intents of the same call are left out
            of what other callers asked for.
        hooks: the hooks that the caller runs beside it.
        merged: of a merge, the id of the commit that is merged. A squash has it not among its parents.
    """

    repository_id: str
    branch: str
    expected_head: str
    sealed_resets: int
    commit: Commit
    consumed: tuple[str, ...]
    live: frozenset[str]
    started: datetime
    action: str
    actor: str
    key: str | None = None
    fingerprint: str = ""
    publisher: str | None = None
    intent: Intent | None = None
    hooks: frozenset[Hook] = frozenset()
    merged: str | None = None


@dataclass(frozen=True, slots=True)
class StagedPage:
    """Staged rows of a branch, the branch's state and the commit that it points to, at the same instant.

    ``rows`` are sorted by path, one a path (the newest token's).
    """

    state: BranchState
    head: Commit
    rows: Sequence[Staged] = field(default=())


@dataclass(frozen=True, slots=True)
class History:
    """Every ref and every commit of a repository at one instant: what retention decides on.

    ``branches`` and ``tags`` map names to commit ids, ``commits`` ids to commits, expired ones included. ``mirrors``
    maps each registered mirror to the commits that it needs. ``rules`` are the retention rules as they were set.
    """

    branches: Mapping[str, str]
    tags: Mapping[str, str]
    commits: Mapping[str, Commit]
    mirrors: Mapping[str, frozenset[str]] = field(default_factory=dict)
    rules: str | None = None


@dataclass(frozen=True, slots=True)
class ExpiryStep:
    """What one step of expiry did.

    Attributes:
        sequence: the newest move of a ref that it took in.
        complete: whether it did what it was asked; else there are moves left to take in first.
        expired: those that were live and are expired now.
        carried: those that an earlier mark had expired and this one has now.
        rules_changed: whether the rules are others than those that were decided by. Nothing happened then.
    """

    sequence: int
    complete: bool = False
    expired: frozenset[str] = frozenset()
    carried: frozenset[str] = frozenset()
    rules_changed: bool = False


@dataclass(frozen=True, slots=True)
class Roots:
    """What garbage collection must keep, at one instant.

    Attributes:
        commits: every commit that is not expired.
        staged: physical addresses (as stored) of all staged entries of all branches, shadowed ones included: one
            string column ``physical_address``, in any order, with repetitions.
        uploads: uploads in flight, id to (address, started).
    """

    commits: Sequence[Commit]
    staged: pa.Table
    uploads: Mapping[str, tuple[str, datetime]]


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """What a step of pruning removes.

    Attributes:
        kind: ``commits``, ``moves``, ``keys`` or ``tokens``.
        before: what is older than this goes (Unix seconds).
        after: where the step begins: what an earlier one gave back.
        gone: commits that earlier steps removed, or would have.
    """

    kind: str
    before: int
    after: tuple[Any, ...] | None = None
    gone: frozenset[str] = field(default=frozenset())


@dataclass(frozen=True, slots=True)
class PruneStep:
    """What a step removed: how many rows, which commits among them, and where the next one begins (None: nowhere)."""

    count: int
    gone: frozenset[str]
    after: tuple[Any, ...] | None


@dataclass(frozen=True, slots=True)
class Ownership:
    """What a catalog knows of a namespace's owner record at one instant, and which catalog it is."""

    identity: Identity
    current_lease: str | None = None
    pending_lease: str | None = None


@dataclass(frozen=True, slots=True)
class Since:
    """Numbers of the newest move and of the newest record of the audit, and the digest of that move's row."""

    moves: int
    records: int
    digest: int


@dataclass(frozen=True, slots=True)
class Cut:
    """A moment, in microseconds since the Unix epoch, by which everything up to these numbers is visible."""

    at: int
    since: Since


@dataclass(frozen=True, slots=True)
class DumpedRepository:
    """A repository as a dump has it, checked. Rows are column values without the repository's name.

    Attributes:
        repository: the repository, in the namespace that the dump was found in.
        at: when the dump was made, in microseconds since the Unix epoch.
        grace_seconds: its grace period.
        pruned: the highest generation of a commit that was pruned, if any was.
        commits: its commits, parents first.
        branches: names to commits.
        tags: names to commits.
        protections: rows of what protects refs.
        checks: rows of passed checks.
        rules: the row of the retention rules, if there are any.
        mirrors: rows of what mirrors need.
        moves: rows of the reflog, oldest first.
        records: rows of the audit, oldest first.
    """

    repository: RepositoryRecord
    at: int
    grace_seconds: int
    pruned: int | None
    commits: Sequence[Commit]
    branches: Mapping[str, str]
    tags: Mapping[str, str]
    protections: Sequence[Mapping[str, Any]]
    checks: Sequence[Mapping[str, Any]]
    rules: Sequence[Mapping[str, Any]]
    mirrors: Sequence[Mapping[str, Any]]
    moves: Sequence[Mapping[str, Any]]
    records: Sequence[Mapping[str, Any]]


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


@dataclass(frozen=True, slots=True)
class RowFlaw:
    """A row that makes no record, and why."""

    table: str
    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class RefUpdate:
    """A move of a ref: ``kind`` is ``branch`` or ``tag``."""

    kind: str
    ref: str
    old: str | None
    new: str | None


@dataclass(frozen=True, slots=True)
class Overview:
    """What a list shows of a repository.

    Attributes:
        head: the last commit of its default branch; None where that cannot be read.
        branches: how many branches it has, or as many as were to be counted.
        last_check: what its last check found, if there was one.
    """

    head: Commit | None
    branches: int
    last_check: Report | None


@dataclass(frozen=True, slots=True)
class Found:
    """Some commits that a search found.

    Attributes:
        commits: they, the highest generation first.
        next_below: generation and id of the last commit that was looked at; None where that was the last one.
    """

    commits: Sequence[Commit]
    next_below: tuple[int, str] | None


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload's record: what is written below ``address`` since ``started``, for a branch."""

    id: str
    branch: str
    address: str
    started: datetime


@dataclass(frozen=True, slots=True)
class CatalogSnapshot:
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
        uploads: all uploads on record, the overdue ones too.
        overdue: when an upload must have begun to be linked still.
        follows: whether it is a mirror that follows its source.
        dangling_keys: idempotency keys whose commit does not exist, to that commit's id. The first hundred.
        now: the database's time.
        flaws: rows of any table that make no record.
        pruned: the highest generation of a commit that was pruned, if any was.
        moves: the reflog, ref by ref, oldest first.
    """

    repository: RepositoryRecord
    branches: Sequence[BranchState]
    tags: Sequence[RefRecord]
    commits: Mapping[str, Commit]
    first_parents: Mapping[str, str | None]
    unreadable: Mapping[str, str]
    retired: Mapping[str, str | None]
    staged: Mapping[str, int]
    uploads: Sequence[Upload]
    overdue: datetime
    follows: bool
    dangling_keys: Mapping[str, str]
    now: datetime
    flaws: Sequence[RowFlaw]
    moves: Sequence[RefUpdate]
    pruned: int | None = None
