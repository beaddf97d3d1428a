"""Retention rules of a repository, and the commits that they keep now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakeops.model.clock import unix_seconds
from lakeops.model.errors import InvalidRules
from lakeops.model.retention import live
from lakeops.model.rules import Rules, parse_rules, read_rules
from lakeops.ops.context import Context


def get_rules(ctx: Context) -> Rules | None:
    """The repository's rules, if it has any."""
    text = ctx.catalog.get_rules(ctx.repository_id)
    return None if text is None else read_rules(text)


def set_rules(ctx: Context, given: Mapping[str, Any] | str | None) -> Rules | None:
    """Replace the rules: parsed JSON, JSON text, or None for no rules at all.

    Raises:
        InvalidRules: they make no sense, or have an entry for one branch or tag that does not exist.
        ReadOnlyRepository: the repository is a mirror; rules belong to its source.
    """
    if given is None:
        ctx.catalog.set_rules(ctx.repository_id, None)
        return None
    rules = read_rules(given) if isinstance(given, str) else parse_rules(given)
    _check_names(ctx, rules)
    ctx.catalog.set_rules(ctx.repository_id, rules.to_text())
    return rules


def live_commits(ctx: Context) -> set[str]:
    """The ids of the commits that the rules keep now; all that are not expired where there are no rules."""
    history = ctx.catalog.history(ctx.repository_id)
    return set(live(history, get_rules(ctx), unix_seconds(ctx.catalog.now())))


def _check_names(ctx: Context, rules: Rules) -> None:
    """Refuse a name that nothing has: a rule that was misspelt would keep nothing, and nobody would notice."""
    history = ctx.catalog.history(ctx.repository_id)
    for what, entries, names in (("branch", rules.branches, history.branches), ("tag", rules.tags, history.tags)):
        for entry in entries:
            if entry.is_exact and entry.pattern not in names:
                raise InvalidRules(
                    f"the rules name the {what} {entry.pattern!r}, which repository {ctx.repository_id!r} does not "
                    "have; correct it, or use a pattern for names to come"
                )
