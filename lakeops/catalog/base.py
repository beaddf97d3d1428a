"""The catalog's named transitions: what they need, what they leave behind, and how to recover from half of them.

Every method is one transaction. Each transition locks the repository's row shared first (so that expiry, which locks
it exclusively, sees all or nothing of it), then the branch's row. Two rules hold for all of them:

* a repository that is read-only refuses everything but mirror transitions; a protected branch refuses staging,
  commits, reverts and cherry-picks, and takes merges;
* a transition that rests on a commit refuses one that is expired, and publishing and linking refuse an attempt that
  began at or before the cutoff of any mark of the repository (the *fence*), or longer ago than the deadline: half of
  the repository's grace period.

Time is the database's: ``now()`` gives it, ``started`` parameters are values it gave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from lakeops.catalog.mirroring import MirrorTransitions
from lakeops.catalog.owning import OwnerTransitions
from lakeops.model.errors import KeyReused
from lakeops.model.lineage import Lineage, Move
from lakeops.model.marks import Grace, Mark
from lakeops.model.mirrors import Registration
from lakeops.model.records import Commit, Entry, Ref, ReflogRecord, Repository
from lakeops.model.requests import difference

if TYPE_CHECKING:
    import pyarrow as pa

    from lakeops.catalog.records import Records, StagedLine

DEFAULT_GRACE_SECONDS = 24 * 3600
"""The grace period of new repositories, where nothing else is set."""


@dataclass(frozen=True, slots=True)
class BranchState:
    """A branch's row: its head and the tokens of its staging area.

    Reads go through ``staging_token``, then ``sealed_tokens`` (newest first), then the head. ``resets`` counts the
    times that staged rows were taken away, so that whoever worked with what the branch showed notices.
    ``sealed_resets`` counts those that took rows of sealed tokens away: a commit in flight reads no other rows.
    """

    repository_id: str
    id: str
    commit_id: str
    staging_token: str
    sealed_tokens: tuple[str, ...] = ()
    resets: int = 0
    sealed_resets: int = 0

    @property
    def tokens(self) -> tuple[str, ...]:
        """All tokens, newest first."""
        return (self.staging_token, *self.sealed_tokens)


@dataclass(frozen=True, slots=True)
class Staged:
    """One staged row: an entry, or a tombstone when ``entry`` is None."""

    path: str
    entry: Entry | None


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
        consumed: the sealed tokens whose rows are in the commit; they leave the branch.
        live: commits that must be live when this is published: parents, and every commit whose ranges are reused.
        started: when the attempt began, by the database's clock.
        action: ``commit``, ``merge``, ``revert``, ``cherry-pick`` or ``import``, for the reflog and for protection.
        actor: who did it.
        key: an idempotency key, and ``fingerprint`` what the call asked for.
        publisher: whose place in the branch's queue this is published at, if anybody's.
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
    maps each registered mirror to the commits that it needs; ``rules`` are the retention rules as they were set.
    """

    branches: Mapping[str, str]
    tags: Mapping[str, str]
    commits: Mapping[str, Commit]
    mirrors: Mapping[str, frozenset[str]] = field(default_factory=dict)
    rules: str | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """What one step of expiry did.

    Attributes:
        sequence: the newest move of a ref that it took in.
        complete: whether it did what it was asked; else there are moves left to take in first.
        expired: those that were live and are expired now.
        carried: those that an earlier mark had expired and this one has now.
        rules_changed: whether the rules are others than those that were decided by; nothing happened then.
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


class Catalog(MirrorTransitions, OwnerTransitions, Protocol):
    """One catalog: a database of repositories."""

    # --- the database itself ---

    def now(self) -> datetime:
        """The database's time, aware, in UTC (with SQLite: the clock that the catalog was opened with)."""
        ...

    def upgrade(self) -> None:
        """Bring the schema to this code's version; safe to call at any time from many processes."""
        ...

    def describe(self) -> dict[str, str]:
        """What ``doctor`` shows: dialect, server version, schema revision, journal mode. No secrets."""
        ...

    def close(self) -> None:
        """Give back all connections."""
        ...

    # --- repositories ---

    def create_repository(
        self, repository: Repository, first: Commit, *, token: str, actor: str, owner: str | None = None
    ) -> None:
        """Insert the repository, its initial commit and its default branch (with staging token ``token``).

        ``owner`` is the owner record that lies in the namespace already.
        Raises ``AlreadyExists`` for the name and ``NamespaceTaken`` for the storage namespace.
        """
        ...

    def repository(self, repository_id: str) -> Repository:
        """The repository. Raises ``RepositoryNotFound``."""
        ...

    def repositories(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[Repository]:
        """Repositories by id, keyset-paged."""
        ...

    def delete_repository(self, repository_id: str) -> None:
        """Forget a repository and everything recorded of it; the storage namespace is not touched."""
        ...

    def set_read_only(self, repository_id: str, read_only: bool) -> None:
        """Close a repository to every writing transition, or open it again."""
        ...

    # --- branches and tags ---

    def branch(self, repository_id: str, name: str) -> BranchState:
        """The branch's row. Raises ``RefNotFound``."""
        ...

    def branches(self, repository_id: str, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[Ref]:
        """Branches by name in byte order, keyset-paged."""
        ...

    def create_branch(self, repository_id: str, name: str, commit_id: str, *, token: str, actor: str) -> BranchState:
        """A new branch at a live commit. Raises ``AlreadyExists``, ``CommitExpired``."""
        ...

    def delete_branch(self, repository_id: str, name: str, *, actor: str, expected: BranchState | None = None) -> str:
        """Delete a branch and its staging; returns the old head. Raises ``DefaultBranch``, ``ProtectedBranch``.

        With ``expected`` only a branch that is still in that state, and has nothing staged; else ``BranchMoved``.
        """
        ...

    def tag(self, repository_id: str, name: str) -> Ref:
        """The tag. Raises ``RefNotFound``."""
        ...

    def tags(self, repository_id: str, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[Ref]:
        """Tags by name in byte order, keyset-paged."""
        ...

    def create_tag(self, repository_id: str, name: str, commit_id: str, *, actor: str) -> Ref:
        """A new tag at a live commit. Raises ``AlreadyExists``, ``CommitExpired``."""
        ...

    def delete_tag(self, repository_id: str, name: str, *, actor: str) -> str:
        """Delete a tag; returns the commit that it pointed to."""
        ...

    def protections(self, repository_id: str) -> list[str]:
        """The glob patterns of protected branches."""
        ...

    def protect(self, repository_id: str, pattern: str) -> None:
        """Protect branches that match a glob pattern; repeating it changes nothing."""
        ...

    def unprotect(self, repository_id: str, pattern: str) -> None:
        """Drop a pattern. Raises ``NotFound``."""
        ...

    def reflog(self, repository_id: str, ref: str | None = None, *, limit: int = 1000) -> list[ReflogRecord]:
        """Moves of one ref or of all, newest first."""
        ...

    # --- commits ---

    def commit(self, repository_id: str, commit_id: str) -> Commit:
        """The commit, expired or not. Raises ``RefNotFound``."""
        ...

    def commits(self, repository_id: str, ids: Iterable[str]) -> dict[str, Commit]:
        """The commits that exist among these ids."""
        ...

    def commits_with_prefix(self, repository_id: str, prefix: str, *, limit: int = 8) -> list[str]:
        """Ids that start with a hex prefix, in order, at most ``limit``."""
        ...

    def first_parents(self, repository_id: str, commit_id: str, *, limit: int) -> list[Commit]:
        """The commit and its first parents, newest first, at most ``limit``: one statement, however many."""
        ...

    def history(self, repository_id: str) -> History:
        """Every ref and every commit of a repository at one instant."""
        ...

    def expire_commits(self, repository_id: str, ids: Iterable[str] | Callable[[History], Iterable[str]]) -> list[str]:
        """Mark commits expired, with the repository's row locked against every other transition.

        ``ids`` may be a function: it is called with the history as it is under that lock, so no ref moves between the
        decision and the mark. Commits that a branch or tag points to, or that a mirror needs, are left alone
        whatever it says. Returns the ids that this call marked.
        """
        ...

    def roots(self, repository_id: str) -> Roots:
        """Live commits, staged addresses and uploads in flight, at one instant (after ``expire_commits``)."""
        ...

    # --- retention ---

    def get_rules(self, repository_id: str) -> str | None:
        """The repository's retention rules as they were set, if there are any."""
        ...

    def set_rules(self, repository_id: str, rules: str | None) -> None:
        """Replace the repository's retention rules (JSON text that the caller validated), or remove them."""
        ...

    def report_mirror(self, repository_id: str, mirror: str, commits: frozenset[str], *, sequence: int = 0) -> None:
        """Replace what a mirror of this repository needs: the commits that it shows and those that it waits for.

        Until the next report none of them expires. Raises ``CommitExpired`` for one that did already, ``RefNotFound``,
        and ``MirrorOvertaken`` after a report with a higher ``sequence``: a pass that was held up must not take back
        what a later one relies on.
        """
        ...

    def registrations(self, repository_id: str) -> list[Registration]:
        """The mirrors that have reported to this repository, by name. Raises ``RepositoryNotFound``."""
        ...

    def unkept(self, repository_id: str, commits: Iterable[str]) -> frozenset[str]:
        """Those of the commits that mirrors cannot rely on: at a mirror, what its own source has not agreed to keep.

        None at a repository that follows no source, or whose mirror may only read its source.
        """
        ...

    def drop_mirror(self, repository_id: str, mirror: str) -> None:
        """Forget a mirror; nothing is kept for it any more. One that is not known is forgotten already."""
        ...

    # --- garbage collection ---

    def grace(self, repository_id: str) -> Grace:
        """The repository's grace period: the age below which garbage collection touches nothing."""
        ...

    def set_grace(self, repository_id: str, seconds: int) -> Grace:
        """Change the grace period. A longer one counts at once, a shorter one once the old one has passed."""
        ...

    @property
    def has_own_clock(self) -> bool:
        """Whether ``now`` is a server's time, and not what the catalog was opened with."""
        ...

    @property
    def has_real_clock(self) -> bool:
        """Whether ``now`` is what a server or this machine says, and not a clock that somebody holds."""
        ...

    def check_clock(self) -> datetime:
        """The time, for what expires or deletes by age; see ``catalog.clock``. Raises ``ClockInDoubt``."""
        ...

    def confirm_clock(self) -> datetime:
        """Let the time be believed whatever was seen before; returns it. Somebody has looked at the clock."""
        ...

    def begin_mark(self, repository_id: str, mark_id: str, *, cutoff: datetime) -> tuple[Mark, int]:
        """Open a mark; returns it and the sequence of the newest move of a ref, for ``expire_by_mark``.

        Earlier marks that nobody began to sweep are over from then on: failed or stale. No attempt that began at or
        before ``cutoff`` links or publishes any more.
        Raises ``ClockInDoubt``, and ``MarkRefused`` when ``cutoff`` is within the grace period.
        """
        ...

    def lineage(self, repository_id: str, *, left_since: int) -> Lineage:
        """What decides which commits live, at one instant and without a lock.

        Args:
            repository_id: the repository.
            left_since: moves of refs after this (Unix seconds) are looked at.
        """
        ...

    def expire_by_mark(
        self,
        repository_id: str,
        mark_id: str,
        *,
        since: int,
        rules: str | None,
        choose: Callable[[Sequence[Move]], Sequence[str]],
    ) -> Step:
        """Expire some of the commits that a mark does not keep, with the repository's row locked for that alone.

        Args:
            repository_id: the repository.
            mark_id: the mark, which must be under way.
            since: moves of refs up to this sequence are known.
            rules: the rules that were decided by; when they are others now, nothing expires.
            choose: gets the moves since then, and says which commits to expire, a few hundred at most. Called inside
                the transaction, and again when that is repeated. Its answer counts only when there are no more moves.

        Commits that a ref shows or a mirror needs are left alone whatever it says. Pending commits of earlier marks
        become this one's. Raises ``MarkRefused`` when the mark is not under way any more.
        """
        ...

    def revive_commits(self, repository_id: str, mark_id: str, ids: Iterable[str]) -> None:
        """Let commits live again that earlier marks expired and were not swept; those that were are left alone.

        Raises ``MarkRefused`` when the mark is not under way any more.
        """
        ...

    def finish_mark(
        self, repository_id: str, mark_id: str, *, digest: str, rows: int, objects: int, size_bytes: int, listed: int
    ) -> Mark:
        """Record the mark file; from then on the mark may be swept. Raises ``MarkRefused``, ``MarkNotFound``."""
        ...

    def restore_mark(self, repository_id: str, mark_id: str) -> Mark:
        """End a mark for good before it is swept: it is being restored then. One that is over is left as it is.

        Raises ``MarkRefused`` once its sweep has begun, ``MarkNotFound``.
        """
        ...

    def restore_commits(self, repository_id: str, mark_id: str) -> tuple[Mark, int]:
        """Let some commits live again that the mark being restored has expired; how many, and the mark.

        To be called until none is left; the mark is restored then. Raises ``MarkRefused``.
        """
        ...

    def begin_sweep(self, repository_id: str, mark_id: str) -> Mark:
        """Let a sweep of this mark begin or go on. Raises ``MarkNotFound``, ``MarkRefused``.

        Earlier marks whose sweep did not end are carried from then on: this one's list holds what they left.
        """
        ...

    def advance_sweep(self, repository_id: str, mark_id: str, swept: int) -> Mark:
        """Record that the mark's first ``swept`` rows are deleted."""
        ...

    def end_sweep(
        self, repository_id: str, mark_id: str, *, refused: int = 0, failures: Sequence[tuple[str, str]] = ()
    ) -> Mark:
        """Record that every row was deleted, but for ``refused`` ones; ``failures`` are some of these, with reasons."""
        ...

    def mark(self, repository_id: str, mark_id: str) -> Mark:
        """The mark. Raises ``MarkNotFound``."""
        ...

    def marks(self, repository_id: str, *, lasting: bool = False) -> list[Mark]:
        """Marks on record, newest first; with ``lasting`` without those that a mark made now would forget."""
        ...

    # --- what is past its time ---

    def pruned(self, repository_id: str) -> bool:
        """Whether history was ever pruned: then a commit that a known one descends from may be gone."""
        ...

    def prune(self, repository_id: str, plan: PrunePlan, *, limit: int, dry_run: bool = False) -> PruneStep:
        """Remove at most ``limit`` rows that are past their time, or find out which these would be; see ``pruning``."""
        ...

    # --- staging ---

    def stageable(self, repository_id: str, branch: str) -> BranchState:
        """The branch's row, when it may be staged to now. Raises ``ProtectedBranch``, ``ReadOnlyRepository``."""
        ...

    def put_staged(
        self,
        repository_id: str,
        branch: str,
        rows: Sequence[Staged] | pa.Table,
        *,
        started: datetime,
        expected: BranchState | None = None,
        upload: str | None = None,
        cleared: frozenset[str] | None = None,
    ) -> BranchState:
        """Insert or replace staged rows under the branch's active token.

        ``rows`` is a short list, or an Arrow table with the columns of ``model.schema.STAGED_SCHEMA`` (path,
        tombstone, then the entry's columns) for bulk. With ``expected`` nothing is written, and ``BranchMoved`` raised,
        unless the branch's head, tokens and resets are still those. ``upload`` ends that upload in the same
        transaction. ``cleared`` is for rows that link objects which were there before the attempt began: the marks
        that hold none of them and never will. It is found out before the objects are seen to be there.
        Raises ``ProtectedBranch``, ``ReadOnlyRepository``, ``AttemptExpired``; with ``cleared`` also
        ``CollectionRunning`` while a mark is being made, and ``BranchMoved`` when there is a mark beside those.
        """
        ...

    def staged_one(self, repository_id: str, branch: str, path: str) -> tuple[Commit, Staged | None]:
        """The newest staged row of a path, and the commit that the branch points to at the same instant."""
        ...

    def staged_page(
        self, repository_id: str, branch: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> StagedPage:
        """Up to ``limit`` staged paths under a prefix and after a path, newest token first, at one instant."""
        ...

    def staged_table(
        self, repository_id: str, branch: str, *, prefix: str = "", tokens: tuple[str, ...] | None = None
    ) -> tuple[BranchState, pa.Table]:
        """All staged rows as Arrow (``STAGED_SCHEMA``), sorted by path, the newest token's row of each path.

        ``tokens`` (newest first) limits them to some of the branch's tokens, for a commit that reads sealed ones.
        """
        ...

    def seal(self, repository_id: str, branch: str, *, token: str) -> BranchState:
        """Before a commit: the active token joins the sealed ones and ``token`` takes its place; writers go on.

        An active token without rows stays where it is. Recovery: sealed tokens are read by everyone and taken along
        by the next commit.
        """
        ...

    def reset(
        self, repository_id: str, branch: str, *, prefix: str | None = None, path: str | None = None, actor: str
    ) -> int:
        """Drop staged rows: all, those under a prefix, or one path's. Returns how many paths.

        A reset that drops a row counts itself; one that drops nothing leaves everything as it is.
        """
        ...

    def discard(self, state: BranchState, tokens: tuple[str, ...]) -> None:
        """Retire sealed tokens whose rows change nothing over ``state``'s head.

        Raises ``BranchMoved`` when head, tokens or resets are no longer ``state``'s: the rows may matter now.
        """
        ...

    def has_staged(self, repository_id: str, branch: str) -> bool:
        """Whether any row is staged on the branch, effective or not."""
        ...

    # --- publishing ---

    def publish(self, publish: Publish) -> Commit:
        """The transaction that makes a commit visible: all of it or nothing.

        Locks the branch, checks head, resets, tokens, live commits, deadline, protection; inserts the commit, the
        reflog row and the key; moves the head; retires the consumed tokens. A known key with the same fingerprint
        returns that commit and changes nothing (``KeyReused`` with another fingerprint). A head, token list or reset
        count that is not as expected raises ``BranchMoved``, and so does a queue in which somebody else is first.
        Recovery: none needed; staged rows of retired tokens are removed by ``purge_retired``.
        """
        ...

    def enqueue(self, repository_id: str, branch: str, publisher: str, *, lasts: timedelta) -> int:
        """Take the last place in a branch's queue, or renew the place that the publisher has; how many are ahead.

        The place counts for ``lasts`` by the database's clock. While somebody is first, nobody else publishes.
        """
        ...

    def ahead(self, repository_id: str, branch: str, publisher: str) -> int | None:
        """How many in a branch's queue are ahead of a publisher; None when it has no place."""
        ...

    def dequeue(self, repository_id: str, branch: str, publisher: str) -> None:
        """Give a place up. ``publish`` does so by itself."""
        ...

    def purge_retired(self, repository_id: str) -> int:
        """Remove the rows of retired tokens; returns how many. Called after publishing; any later call catches up."""
        ...

    def key(self, repository_id: str, key: str) -> KeyRecord | None:
        """What an idempotency key stands for, if it was used."""
        ...

    def remember_key(self, repository_id: str, key: str, fingerprint: str, commit_id: str) -> None:
        """Let a key stand for a commit that exists already. An existing key stays as it is."""
        ...

    def taken_by(self, repository_id: str, token: str) -> str | None:
        """The commit that consumed a sealed token, if one did (not: a reset)."""
        ...

    # --- uploads in flight ---

    def begin_upload(self, repository_id: str, branch: str, address: str, *, upload: str) -> datetime:
        """Record that objects are being written below ``address``; returns when, for ``started``.

        Raises ``AttemptExpired`` when the clock is behind the fence: nothing that begins now could be linked.
        """
        ...

    def end_upload(self, repository_id: str, upload: str) -> None:
        """Forget an upload that will not be linked; what it wrote becomes garbage."""
        ...

    def uploads(self, repository_id: str) -> Mapping[str, tuple[str, datetime]]:
        """Uploads in flight, none older than the deadline: id to (address, started)."""
        ...

    # --- looking at everything ---

    def records(self, repository_id: str) -> Records:
        """Everything of a repository but its staged rows, at one instant; rows that make no sense are told, not raised.

        Raises ``RepositoryNotFound``.
        """
        ...

    def staged_rows(self, repository_id: str, *, after: tuple[str, str] = ("", ""), limit: int) -> list[StagedLine]:
        """Staged rows of all tokens, orphaned ones too, as they are, by token and path; keyset-paged."""
        ...
