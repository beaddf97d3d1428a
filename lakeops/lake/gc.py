"""Garbage collection of a repository, as ``repository.gc``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, overload

from lakeops.model.marks import Mark
from lakeops.model.requests import check_asked
from lakeops.ops.context import Context
from lakeops.ops.gc import rules as rule_verbs

if TYPE_CHECKING:
    from lakeops.ops.gc.idle import IdleRef
    from lakeops.ops.gc.mark import DryRun
    from lakeops.ops.gc.prune import Pruned
    from lakeops.ops.gc.restore import Restored
    from lakeops.ops.gc.sweep import Swept


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
            InvalidInput, ReadOnlyRepository.
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
        from lakeops.ops.gc.restore import restore

        return restore(self._ctx, mark_id)

    def sweep(self, mark_id: str, *, force: bool = False) -> Swept:
        """Delete exactly what a mark holds; goes on where an earlier sweep of it ended.

        What the store refuses to delete is named in ``mark.failures`` of the result, and is on the next mark's list.

        Raises:
            MarkNotFound, MarkRefused, ClockInDoubt, Corrupted, SweepIncomplete, ReadOnlyRepository.
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
        from lakeops.ops.gc.idle import idle_refs

        return list(idle_refs(self._ctx))

    def expire_refs(self) -> list[IdleRef]:
        """Delete the branches and tags that the rules let go; returns them, and those that stay with the reason."""
        from lakeops.ops.gc.idle import expire_refs

        return expire_refs(self._ctx)
