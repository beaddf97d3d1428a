"""Garbage collection of a repository, as ``repository.gc``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lakeops.model.marks import Mark
from lakeops.ops.context import Context
from lakeops.ops.gc import rules as rule_verbs

if TYPE_CHECKING:
    from lakeops.ops.gc.idle import IdleRef
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

    def mark(self) -> Mark:
        """Find what no live commit, staged row or upload needs; deletes nothing. The mark's ``id`` is for ``sweep``.

        Raises:
            ReadOnlyRepository: the repository is a mirror.
            MarkRefused: the database's clock was set back, or the run took longer than the deadline.
        """
        from lakeops.ops.gc.mark import mark

        return mark(self._ctx)

    def sweep(self, mark_id: str, *, force: bool = False) -> Swept:
        """Delete exactly what a mark holds; goes on where an earlier sweep of it ended.

        Raises:
            MarkNotFound, MarkRefused, Corrupted, SweepIncomplete, ReadOnlyRepository.
        """
        from lakeops.ops.gc.sweep import sweep

        return sweep(self._ctx, mark_id, force=force)

    def report(self, mark_id: str) -> dict[str, Any]:
        """What a mark holds, what was kept and why, and what is not lakeops' own."""
        from lakeops.ops.gc.files import read_report

        return read_report(self._ctx, self._ctx.catalog.mark(self._ctx.repository_id, mark_id))

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
