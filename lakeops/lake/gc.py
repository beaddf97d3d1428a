"""Garbage collection of a repository, as ``repository.gc``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakeops.ops.context import Context
from lakeops.ops.gc import rules as rule_verbs


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

    def live_commits(self) -> set[str]:
        """The ids of the commits that the rules keep now. Others are refused from the next mark on."""
        return rule_verbs.live_commits(self._ctx)
