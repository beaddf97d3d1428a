"""Retention: which commits garbage collection keeps, as a function of rules, refs, commits and the time.

A commit lives while it is, or was within its branch's window, a branch's head. Nobody records for how long a commit
was the head; but it stopped to be when its successor was made, so the first parent of every commit younger than the
window was a head within it. What this room keeps true: the answer follows from the definition alone, whatever order
refs and commits come in, and age exactly equal to a window is past it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING

from lakeops.model.graph import shared
from lakeops.model.lineage import Lineage

if TYPE_CHECKING:
    from lakeops.model.rules import Rules

DAY = 24 * 3600


class RetentionReason(StrEnum):
    """Why a commit lives: the first of these that holds."""

    HEAD = "heads"
    TAG = "tags"
    MIRROR = "mirrors"
    RETENTION = "retention"
    BASE = "merge_bases"
    UNDO = "undo"
    NO_RULES = "no_rules"


def live(refs: Lineage, rules: Rules | None, now: int) -> dict[str, RetentionReason]:
    """The commits that the rules keep at a time (Unix seconds), each with the reason. Without rules, all of them.

    * Every branch's head, every tag's commit and what a mirror needs live.
    * From a head along first parents, the parent of every commit younger than the branch's window lives.
    * A commit that is nobody's first parent and no head (a deleted branch's last one, one that a reset left behind)
      lives while younger than the default window, and is walked from with that.
    * What a merge of two branches rests on lives. A deleted branch counts until its undo window is over.
    * What a ref pointed to before it moved or went lives for the undo window.
    * For mirrors that cannot report, what was a head within the last ``mirror_lag_days`` lives as well.

    A commit that is gone stays so, whatever the rules say now. A pending one lives again when they keep it.
    """
    commits = refs.commits
    if rules is None:
        kept = dict.fromkeys(commits, RetentionReason.NO_RULES) | _pointed_to(refs)
    else:
        # The last one to name a commit is the reason that is given.
        kept = {
            **_within_undo(refs, rules, now),
            **_bases(refs, rules, now),
            **_within_window(refs, rules, now),
            **_pointed_to(refs),
        }
    return {
        commit_id: why for commit_id, why in kept.items() if commit_id in commits and not commits[commit_id].expired
    }


def only_for_mirrors(refs: Lineage, rules: Rules | None, now: int) -> dict[str, frozenset[str]]:
    """Registered mirrors by name, to the commits that would not live but for this one."""
    if not refs.mirrors:
        return {}
    others = live(replace(refs, mirrors={}), rules, now).keys()
    asked = Counter(commit_id for needed in refs.mirrors.values() for commit_id in needed)
    return {
        name: frozenset(one for one in needed if one not in others and asked[one] == 1)
        for name, needed in refs.mirrors.items()
    }


def _pointed_to(refs: Lineage) -> dict[str, RetentionReason]:
    """What something points to, by the first reason that holds."""
    kept = {commit_id: RetentionReason.MIRROR for needed in refs.mirrors.values() for commit_id in needed}
    kept.update(dict.fromkeys(refs.tags.values(), RetentionReason.TAG))
    kept.update(dict.fromkeys(refs.branches.values(), RetentionReason.HEAD))
    return kept


def _within_undo(refs: Lineage, rules: Rules, now: int) -> dict[str, RetentionReason]:
    """What a ref showed until less than the undo window ago, or until a mirror that lags might still show it."""
    undo, lag = rules.undo_days * DAY, rules.mirror_lag_days * DAY
    return {
        commit_id: RetentionReason.UNDO if now - at < undo else RetentionReason.MIRROR
        for commit_id, at in refs.left.items()
        if now - at < max(undo, lag)
    }


def _bases(refs: Lineage, rules: Rules, now: int) -> dict[str, RetentionReason]:
    """What merges rest on, of any two branches that are there or can be brought back."""
    back = {commit_id for commit_id in refs.deleted if now - refs.left.get(commit_id, 0) < rules.undo_days * DAY}
    return dict.fromkeys(shared(refs.commits, back.union(refs.branches.values())), RetentionReason.BASE)


def _within_window(refs: Lineage, rules: Rules, now: int) -> dict[str, RetentionReason]:
    """What was a head, or the end of a line, within a window."""
    kept: dict[str, RetentionReason] = {}
    ends = refs.commits.keys() - {commit.parents[0] for commit in refs.commits.values() if commit.parents}
    lag = rules.mirror_lag_days * DAY
    windows = dict.fromkeys(ends, rules.default_retention_days * DAY) | _head_windows(refs, rules)
    ends -= set(refs.branches.values())
    # Walks that meet go on as one, with the longest of their windows: what any of them keeps, that one keeps.
    for commit in sorted(refs.commits.values(), key=lambda commit: -commit.generation):
        window = windows[commit.id]
        age = now - commit.creation_date
        if age < max(window, lag):
            why = RetentionReason.RETENTION if age < window else RetentionReason.MIRROR
            if commit.id in ends:
                _keep(kept, commit.id, why)
            for parent in commit.parents[:1]:
                _keep(kept, parent, why)
        for parent in commit.parents[:1]:
            windows[parent] = max(windows.get(parent, 0), window)
    return kept


def _head_windows(refs: Lineage, rules: Rules) -> dict[str, int]:
    """The window, in seconds, that the walk from each head begins with."""
    windows: dict[str, int] = {}
    for name, commit_id in refs.branches.items():
        windows[commit_id] = max(windows.get(commit_id, 0), rules.retention_days(name) * DAY)
    return windows


def _keep(kept: dict[str, RetentionReason], commit_id: str, why: RetentionReason) -> None:
    if kept.get(commit_id) is not RetentionReason.RETENTION:
        kept[commit_id] = why


def counted(kept: Iterable[RetentionReason]) -> dict[str, int]:
    """How many commits live for each reason. Every reason is there."""
    counts = dict.fromkeys((why.value for why in RetentionReason), 0)
    for why in kept:
        counts[why.value] += 1
    return counts
