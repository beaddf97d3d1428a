"""A repository's handle: refs, history, diffs and merges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

from lakeops.lake.refs import Branch, Ref
from lakeops.model.errors import NotFound
from lakeops.model.marks import Mark
from lakeops.model.mirrors import Registration
from lakeops.model.records import Change, Commit, MergeResult, ReflogRecord, Strategy
from lakeops.model.records import Ref as RefRecord
from lakeops.model.records import Repository as RepositoryRecord
from lakeops.model.requests import check_amount, check_asked
from lakeops.ops import branch as branch_verbs
from lakeops.ops import resolve
from lakeops.ops.context import Context, pages
from lakeops.ops.gc import rules as rule_verbs
from lakeops.ops.resolve import require_branch

if TYPE_CHECKING:
    from lakeops.lake.mirror import Mirror
    from lakeops.model.owner import Owner
    from lakeops.ops.diff import Changed
    from lakeops.ops.fsck.check import Fsck
    from lakeops.ops.gc.mark import DryRun
    from lakeops.ops.gc.prune import Pruned
    from lakeops.ops.gc.rules import IdleRef
    from lakeops.ops.gc.sweep import Restored, Swept
    from lakeops.ops.owner import Adopted


class GarbageCollection:
    """Retention rules, marks and sweeps of one repository."""

    def __init__(self, context: Context) -> None:
        self._ctx = context

    def rules(self) -> dict[str, Any] | None:
        """The retention rules in lakeFS's JSON, or None: then every commit lives for ever."""
        rules = rule_verbs.get_rules(self._ctx)
        return None if rules is None else rules.to_json()

    def set_rules(self, rules: Mapping[str, Any] | str | None) -> dict[str, Any] | None:
        """Replace the retention rules: a mapping as JSON gives it, JSON text, or None for none; returns them.

        Raises:
            InvalidRules: they make no sense, or have an entry for one branch or tag that does not exist.
        """
        found = rule_verbs.set_rules(self._ctx, rules)
        return None if found is None else found.to_json()

    def grace(self) -> dict[str, Any]:
        """The grace period: ``grace_seconds`` counts now, ``pending_seconds`` from ``pending_from`` on, if set."""
        return rule_verbs.get_grace(self._ctx)

    def set_grace(self, grace: int | str | timedelta) -> dict[str, Any]:
        """Change the grace period, for every process; returns what ``grace`` does.

        A longer one counts at once. A shorter one counts once the old one has passed, so that an attempt that began
        under the old one keeps its time.

        Args:
            grace: seconds, a text such as ``24h`` or ``7d``, or a timedelta.

        Raises:
            InvalidInput: the grace period is none, or too long.
            ReadOnlyRepository: the repository is a mirror.
        """
        return rule_verbs.set_grace(self._ctx, grace)

    def confirm_clock(self) -> datetime:
        """Say that the catalog's clock is right, after ``ClockInDoubt``; returns the time that is believed now.

        It counts for all repositories of the catalog. Look at the clock first: if it is ahead, everything looks old.
        Nobody should be writing who began while the clock was wrong.
        """
        return self._ctx.catalog.confirm_clock()

    @overload
    def mark(self, *, dry_run: Literal[False] = False) -> Mark: ...

    @overload
    def mark(self, *, dry_run: Literal[True]) -> DryRun: ...

    def mark(self, *, dry_run: bool = False) -> Mark | DryRun:
        """Expire commits and find what no live one, staged row or upload needs. The mark's ``id`` is for ``sweep``.

        Nothing is deleted, and until the sweep begins ``restore`` takes the mark back.

        Args:
            dry_run: change nothing at all; returns what a mark would do now, with its ``report``.

        Raises:
            ReadOnlyRepository: the repository is a mirror.
            ClockInDoubt: the clock was set back or may have jumped ahead; see ``confirm_clock``.
            MarkRefused: the run took longer than the deadline.
        """
        from lakeops.ops.gc.mark import dry_run as foretell
        from lakeops.ops.gc.mark import mark

        return foretell(self._ctx) if dry_run else mark(self._ctx)

    def restore(self, mark_id: str) -> Restored:
        """Take back a mark before its sweep begins: its commits live again, and it can never be swept.

        Raises:
            MarkNotFound: there is no such mark.
            MarkRefused: its sweep has begun.
            ReadOnlyRepository: the repository is a mirror.
        """
        from lakeops.ops.gc.sweep import restore

        return restore(self._ctx, mark_id)

    def sweep(self, mark_id: str, *, force: bool = False) -> Swept:
        """Delete exactly what a mark holds; goes on where an earlier sweep of it ended.

        What the store refuses to delete is named in ``mark.failures`` of the result, and is on the next mark's list.

        Raises:
            MarkNotFound: there is no such mark.
            MarkRefused: it must not be swept; the message says why.
            ClockInDoubt: the clock was set back or may have jumped ahead; see ``confirm_clock``.
            Corrupted: the mark's list is not what the mark wrote.
            SweepIncomplete: the store refused everything that was left to delete.
            ReadOnlyRepository: the repository is a mirror.
        """
        from lakeops.ops.gc.sweep import sweep

        return sweep(self._ctx, check_asked(mark_id, "a mark"), force=force)

    def prune(self, *, dry_run: bool = False) -> Pruned:
        """Remove the catalog's rows that are past their time, or count them; every sweep does so at its end.

        These are expired commits and moves of refs older than ``log_days``, idempotency keys older than ``key_days``,
        and retired staging tokens. Logs then end where history was pruned.

        Raises:
            ReadOnlyRepository: the repository is a mirror.
        """
        from lakeops.ops.gc.prune import prune

        return prune(self._ctx, dry_run=dry_run)

    def report(self, mark_id: str) -> dict[str, Any]:
        """What a mark holds, what was kept and why, and what is not lakeops' own."""
        from lakeops.ops.gc.files import read_report

        return read_report(self._ctx, self._ctx.catalog.mark(self._ctx.repository_id, check_asked(mark_id, "a mark")))

    def marks(self) -> list[Mark]:
        """Marks on record, newest first."""
        return self._ctx.catalog.marks(self._ctx.repository_id)

    def live_commits(self) -> set[str]:
        """The ids of the commits that the rules keep now. Others are refused from the next mark on."""
        return rule_verbs.live_commits(self._ctx)

    def idle_refs(self) -> list[IdleRef]:
        """Branches and tags that have been idle for as long as the rules allow; ``kept`` says why one stays."""
        from lakeops.ops.gc.rules import idle_refs

        return list(idle_refs(self._ctx))

    def expire_refs(self) -> list[IdleRef]:
        """Delete the branches and tags that the rules let go; returns them, and those that stay with the reason."""
        from lakeops.ops.gc.rules import expire_refs

        return expire_refs(self._ctx)


class Repository:
    """One repository of a lake."""

    def __init__(self, context: Context) -> None:
        self._ctx = context

    def __repr__(self) -> str:
        return f"<Repository lakefs://{self.id}>"

    @property
    def id(self) -> str:
        """The repository's name."""
        return self._ctx.repository_id

    @property
    def record(self) -> RepositoryRecord:
        """The repository's record, as it was when this handle was made."""
        return self._ctx.repository

    @property
    def storage_namespace(self) -> str:
        """Where the objects lie."""
        return self.record.storage_namespace

    @property
    def default_branch(self) -> str:
        """The branch that cannot be deleted."""
        return self.record.default_branch

    def as_mirror(self) -> Mirror:
        """The same repository as a mirror. Raises ``NotAMirror``."""
        from lakeops.lake.mirror import Mirror
        from lakeops.model.clock import SystemClock

        self._ctx.catalog.mirror(self.id)
        return Mirror(self._ctx, SystemClock())

    def registrations(self) -> list[Registration]:
        """The mirrors of this repository that reported to it, and the commits that are kept for them."""
        return self._ctx.catalog.registrations(self.id)

    def drop_registration(self, name: str) -> None:
        """Keep nothing for a mirror any more: one that is gone. Raises ``NotFound``."""
        if name not in {one.id for one in self.registrations()}:
            raise NotFound(f"no mirror {name!r} has reported to repository {self.id!r}")
        self._ctx.catalog.drop_mirror(self.id, name)

    # --- refs ---

    def ref(self, expression: str) -> Ref:
        """A handle for reading at any ref expression; it is resolved when it is used."""
        return Ref(self._ctx, expression)

    def branch(self, name: str) -> Branch:
        """A branch that exists. Raises ``RefNotFound``."""
        return Branch(self._ctx, require_branch(self._ctx, name))

    def create_branch(self, name: str, source: str | None = None) -> Branch:
        """A new branch at ``source`` (the default branch when left out). Copies nothing."""
        branch_verbs.create_branch(self._ctx, name, source or self.default_branch)
        return Branch(self._ctx, name)

    def delete_branch(self, name: str) -> RefRecord:
        """Delete a branch with its uncommitted changes; returns where it was."""
        return branch_verbs.delete_branch(self._ctx, name)

    def branches(self, *, prefix: str = "", after: str = "") -> Iterator[RefRecord]:
        """Branches by name in byte order."""
        return pages(partial(self._ctx.catalog.branches, self.id), prefix=prefix, after=after)

    def create_tag(self, name: str, ref: str, *, idempotency_key: str | None = None) -> RefRecord:
        """A new tag at ``ref``."""
        return branch_verbs.create_tag(self._ctx, name, ref, key=idempotency_key)

    def tag(self, name: str) -> RefRecord:
        """A tag. Raises ``RefNotFound``."""
        return self._ctx.catalog.tag(self.id, check_asked(name, "a tag"))

    def delete_tag(self, name: str) -> RefRecord:
        """Delete a tag; returns where it was."""
        return branch_verbs.delete_tag(self._ctx, name)

    def tags(self, *, prefix: str = "", after: str = "") -> Iterator[RefRecord]:
        """Tags by name in byte order."""
        return pages(partial(self._ctx.catalog.tags, self.id), prefix=prefix, after=after)

    # --- protection ---

    def protections(self) -> list[str]:
        """Glob patterns of branches that change through merges only."""
        return self._ctx.catalog.protections(self.id)

    def protect(self, pattern: str) -> None:
        """Protect branches that match a glob pattern."""
        branch_verbs.protect(self._ctx, pattern)

    def unprotect(self, pattern: str) -> None:
        """Drop a protection pattern. Raises ``NotFound``."""
        self._ctx.catalog.unprotect(self.id, check_asked(pattern, "a pattern"))

    def set_read_only(self, read_only: bool = True) -> None:
        """Refuse every change to this repository, or allow changes again."""
        self._ctx.catalog.set_read_only(self.id, read_only)

    def adopt(self) -> Adopted:
        """Let this catalog delete in the storage namespace, in place of the one that may now: for a restore.

        The other catalog stops at its next mark or sweep. ``before`` of the result is what was taken over.

        Raises:
            NamespaceTaken: the namespace is another repository's.
            PreconditionFailed: the repository is a mirror; ``promote_writable`` opens it for writing.
        """
        from lakeops.ops.owner import adopt

        return adopt(self._ctx)

    def owner(self) -> tuple[Owner | None, bool]:
        """Which catalog may delete in the storage namespace (None: none), and whether it is this one."""
        from lakeops.ops.owner import look

        return look(self._ctx)

    @property
    def gc(self) -> GarbageCollection:
        """Retention rules and garbage collection."""
        return GarbageCollection(self._ctx)

    # --- history ---

    def log(self, ref: str, *, first_parent: bool = False, amount: int | None = None) -> Iterator[Commit]:
        """Commits reachable from ``ref``: newest first, children before parents."""
        return resolve.log(self._ctx, ref, first_parent=first_parent, amount=amount)

    def merge_base(self, left: str, right: str) -> Commit:
        """A best common ancestor. Raises ``NoMergeBase``."""
        return resolve.merge_base(self._ctx, left, right)

    def reflog(self, ref: str | None = None, *, limit: int = 1000) -> list[ReflogRecord]:
        """Moves of a branch or tag, or of all, newest first."""
        name = None if ref is None else check_asked(ref, "a branch or tag")
        return self._ctx.catalog.reflog(self.id, name, limit=check_amount(limit, "the limit"))

    # --- checking ---

    def fsck(self, *, data: bool = False) -> Fsck:
        """Check everything from the refs down to the ranges, and with ``data`` the objects; changes nothing.

        Returns an iterator of findings (``kind``, ``severity``, ``where``, ``message``, ``advice``), as they are made.
        A repository is sound when none has the severity ``error``.
        """
        from lakeops.ops.fsck.check import Fsck

        return Fsck(self._ctx, data=data)

    # --- diff and merge ---

    def diff(self, left: str, right: str, *, prefix: str = "") -> Iterator[Change]:
        """What differs between two refs' commits, from left to right (two-way)."""
        from lakeops.ops.diff import two_way

        return two_way(self._ctx, left, right, prefix=prefix)

    def changed(self, left: str, right: str, *, partition_by: str | None = None) -> Changed:
        """What differs between two refs' commits, in short: counts, top-level prefixes, partition values."""
        from lakeops.ops.diff import changed

        return changed(self._ctx, left, right, partition_by=partition_by)

    def compare(
        self, left: str, right: str, *, prefix: str = "", strategy: str | Strategy | None = None
    ) -> Iterator[Change]:
        """What merging ``right`` into ``left`` would change there, by path; changed on both sides: a conflict.

        With a strategy that settles conflicts there are none: what is listed is what that merge would do.
        """
        from lakeops.ops.diff import since_merge_base

        return since_merge_base(self._ctx, left, right, prefix=prefix, strategy=strategy)

    def merge(
        self,
        source: str,
        destination: str,
        *,
        strategy: str | Strategy | None = None,
        message: str | None = None,
        metadata: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> MergeResult:
        """Merge what ``source`` (any ref) changed into the branch ``destination``, as one commit.

        Raises:
            MergeConflict: both sides changed the same paths and no ``strategy`` (``source-wins``, ``dest-wins``)
                settles it; ``conflicts`` lists all of them and nothing is published.
            DirtyBranch: the destination has uncommitted changes.
        """
        from lakeops.ops.merge import merge

        return merge(
            self._ctx,
            source,
            destination,
            strategy=strategy,
            message=message,
            metadata=metadata,
            key=idempotency_key,
        )

    def cherry_pick_changes(self, ref: str, destination: str, parent_number: int | None = None) -> Iterator[Change]:
        """What ``cherry_pick`` would change now, by path, and its conflicts; publishes nothing."""
        from lakeops.ops.merge import of_cherry_pick

        return of_cherry_pick(self._ctx, ref, destination, parent_number=parent_number)

    def cherry_pick(
        self,
        ref: str,
        destination: str,
        parent_number: int | None = None,
        *,
        message: str | None = None,
        metadata: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> Commit:
        """Apply what the commit ``ref`` did onto a branch, as one commit."""
        from lakeops.ops.merge import cherry_pick

        return cherry_pick(
            self._ctx,
            ref,
            destination,
            parent_number=parent_number,
            message=message,
            metadata=metadata,
            key=idempotency_key,
        )
