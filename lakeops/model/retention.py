"""Retention: which commits garbage collection keeps, as a function of rules, refs, commits and the time.

A commit lives while it is, or was within its branch's window, a branch's head. Nobody records for how long a commit
was the head; but it stopped to be when its successor was made, so the first parent of every commit younger than the
window was a head within it. What this room keeps true: the answer follows from the definition alone, whatever order
refs and commits come in, and age exactly equal to a window is past it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Protocol

from lakeops.model.records import Commit
from lakeops.model.rules import DAY, Rules


class Kept(StrEnum):
    """Why a commit lives: the first of these that holds."""

    HEAD = "heads"
    TAG = "tags"
    MIRROR = "mirrors"
    RETENTION = "retention"
    NO_RULES = "no_rules"


class Refs(Protocol):
    """What retention decides on (``catalog.base.History`` is one)."""

    @property
    def branches(self) -> Mapping[str, str]:
        """Branch names and the commits that they point to."""
        ...

    @property
    def tags(self) -> Mapping[str, str]:
        """Tag names and the commits that they point to."""
        ...

    @property
    def commits(self) -> Mapping[str, Commit]:
        """Every commit by its id, expired ones included."""
        ...

    @property
    def mirrors(self) -> Mapping[str, frozenset[str]]:
        """Registered mirrors and the commits that they need."""
        ...


def live(refs: Refs, rules: Rules | None, now: int) -> dict[str, Kept]:
    """The commits that the rules keep at a time (Unix seconds), each with the reason; without rules, all of them.

    * Every branch's head, every tag's commit and what a mirror needs live.
    * From a head along first parents, the parent of every commit younger than the branch's window lives.
    * A commit that is nobody's first parent and no head (a deleted branch's last one, one that a reset left behind)
      lives while younger than the default window, and is walked from with that.
    * For mirrors that cannot report, what was a head within the last ``mirror_lag_days`` lives as well.

    A commit that expired once stays expired, whatever the rules say now.
    """
    commits = refs.commits
    named = _named(refs)
    if rules is None:
        kept = {commit_id: named.get(commit_id, Kept.NO_RULES) for commit_id in commits}
    else:
        kept = {**_recent(refs, rules, now), **named}
    return {
        commit_id: why for commit_id, why in kept.items() if commit_id in commits and not commits[commit_id].expired
    }


def _named(refs: Refs) -> dict[str, Kept]:
    """What something points to, by the first reason that holds."""
    kept = {commit_id: Kept.MIRROR for needed in refs.mirrors.values() for commit_id in needed}
    kept.update(dict.fromkeys(refs.tags.values(), Kept.TAG))
    kept.update(dict.fromkeys(refs.branches.values(), Kept.HEAD))
    return kept


def _recent(refs: Refs, rules: Rules, now: int) -> dict[str, Kept]:
    """What was a head, or the end of a line, within a window."""
    kept: dict[str, Kept] = {}
    ends = refs.commits.keys() - {commit.parents[0] for commit in refs.commits.values() if commit.parents}
    lag = rules.mirror_lag_days * DAY
    windows = dict.fromkeys(ends, rules.default_retention_days * DAY) | _head_windows(refs, rules)
    ends -= set(refs.branches.values())
    # Walks that meet go on as one, with the longest of their windows: what any of them keeps, that one keeps.
    for commit in sorted(refs.commits.values(), key=lambda commit: -commit.generation):
        window = windows[commit.id]
        age = now - commit.creation_date
        if age < max(window, lag):
            why = Kept.RETENTION if age < window else Kept.MIRROR
            if commit.id in ends:
                _keep(kept, commit.id, why)
            for parent in commit.parents[:1]:
                _keep(kept, parent, why)
        for parent in commit.parents[:1]:
            windows[parent] = max(windows.get(parent, 0), window)
    return kept


def _head_windows(refs: Refs, rules: Rules) -> dict[str, int]:
    """The window, in seconds, that the walk from each head begins with."""
    windows: dict[str, int] = {}
    for name, commit_id in refs.branches.items():
        windows[commit_id] = max(windows.get(commit_id, 0), rules.retention_days(name) * DAY)
    return windows


def _keep(kept: dict[str, Kept], commit_id: str, why: Kept) -> None:
    if kept.get(commit_id) is not Kept.RETENTION:
        kept[commit_id] = why


def counted(kept: Iterable[Kept]) -> dict[str, int]:
    """How many commits live for each reason; every reason is there."""
    counts = dict.fromkeys((why.value for why in Kept), 0)
    for why in kept:
        counts[why.value] += 1
    return counts
