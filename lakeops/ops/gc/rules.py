"""Retention rules and grace period of a repository, and the commits that the rules keep now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from lakeops.model.clock import unix_seconds
from lakeops.model.errors import InvalidRules, RefNotFound
from lakeops.model.marks import parse_grace
from lakeops.model.retention import Rules, parse_rules, read_rules
from lakeops.ops.context import Context
from lakeops.ops.gc.plan import make_plan


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
    """The ids of the commits that the rules keep now; all that are not gone for good where there are no rules."""
    return set(make_plan(ctx, unix_seconds(ctx.catalog.now())).kept)


def get_grace(ctx: Context) -> dict[str, Any]:
    """The grace period now, and a shorter one that is waiting."""
    return ctx.catalog.grace(ctx.repository_id).to_json(ctx.catalog.now())


def set_grace(ctx: Context, given: float | str | timedelta) -> dict[str, Any]:
    """Change the grace period; returns what ``get_grace`` does. Raises ``InvalidInput``."""
    seconds = parse_grace(int(given.total_seconds()) if isinstance(given, timedelta) else given)
    return ctx.catalog.set_grace(ctx.repository_id, seconds).to_json(ctx.catalog.now())


def _check_names(ctx: Context, rules: Rules) -> None:
    """Refuse a name that nothing has: a rule that was misspelt would keep nothing, and nobody would notice."""
    looks = (("branch", rules.branches, ctx.catalog.branch), ("tag", rules.tags, ctx.catalog.tag))
    for what, entries, look in looks:
        for entry in entries:
            if entry.is_exact and not _is_there(partial(look, ctx.repository_id, entry.pattern)):
                raise InvalidRules(
                    f"the rules name the {what} {entry.pattern!r}, which repository {ctx.repository_id!r} does not "
                    "have; correct it, or use a pattern for names to come"
                )


def _is_there(look: Callable[[], object]) -> bool:
    try:
        look()
    except RefNotFound:
        return False
    return True
