"""Retention: which commits garbage collection keeps, as a function of rules, refs, commits and the time.

A commit lives while it is, or was within its branch's window, a branch's head. Nobody records for how long a commit
was the head; but it stopped to be when its successor was made, so the first parent of every commit younger than the
window was a head within it. What this room keeps true: the answer follows from the definition alone, whatever order
refs and commits come in, and age exactly equal to a window is past it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from lakeops.model.errors import InvalidRules
from lakeops.model.graph import shared
from lakeops.model.lineage import Lineage
from lakeops.model.names import broken_rule

DAY = 24 * 3600
UNDO_DAYS = 7
"""For how many days everything that a ref showed stays after the ref moved or went; rules may only lengthen it."""

LOG_DAYS = 365
"""For how long moves of refs and expired commits stay on record, unless the rules say otherwise.

A longer undo window makes it longer, because what can be taken back is found by the moves on record.
"""

KEY_DAYS = 90
"""For how long an idempotency key stands for its commit, unless the rules say otherwise."""

LEAST_LOG_DAYS = 30
MOST_DAYS = 36_500
"""A hundred years: more is a slip of the keyboard, and dates would overflow."""

_WILD = re.compile(r"\[[^]]*\]|[*?\[]")
_KEYS = ("default_retention_days", "branches", "tags", "mirror_lag_days", "undo_days", "log_days", "key_days")
_NUMBERS = ("retention_days", "expire_after_days")


@dataclass(frozen=True, slots=True)
class RefRule:
    """What holds for the branches or tags that a name or pattern covers.

    Attributes:
        pattern: a name, or a glob pattern.
        retention_days: how long a branch's commits live after they stopped to be its head.
        expire_after_days: how long a branch may lie idle, or a tag exist, before it is deleted.
    """

    pattern: str
    retention_days: int | None = None
    expire_after_days: int | None = None

    @property
    def is_exact(self) -> bool:
        """Whether it is for one name alone."""
        return _WILD.search(self.pattern) is None

    @property
    def literal(self) -> int:
        """How many characters of the pattern stand for themselves."""
        return len(_WILD.sub("", self.pattern))

    def covers(self, name: str) -> bool:
        """Whether it is for this name."""
        return self.pattern == name if self.is_exact else fnmatchcase(name, self.pattern)


@dataclass(frozen=True, slots=True)
class Rules:
    """A repository's retention rules.

    ``mirror_lag_days``: what was a head within the last so many days is kept for mirrors that cannot report.
    ``undo_days``: what a ref showed stays for so many days after the ref moved or went.
    ``log_days``: for how long moves of refs and expired commits stay on record; never shorter than ``undo_days``.
    ``key_days``: the same of idempotency keys.
    """

    default_retention_days: int
    branches: tuple[RefRule, ...] = field(default=())
    tags: tuple[RefRule, ...] = field(default=())
    mirror_lag_days: int = 0
    undo_days: int = UNDO_DAYS
    log_days: int = LOG_DAYS
    key_days: int = KEY_DAYS

    def retention_days(self, branch: str) -> int:
        """How many days the commits of a branch live after they stopped to be its head."""
        found = _most_specific(self.branches, branch, "retention_days")
        return self.default_retention_days if found is None else found

    def branch_expiry_days(self, branch: str) -> int | None:
        """After how many idle days a branch is deleted, if ever."""
        return _most_specific(self.branches, branch, "expire_after_days")

    def tag_expiry_days(self, tag: str) -> int | None:
        """After how many days a tag is deleted, if ever."""
        return _most_specific(self.tags, tag, "expire_after_days")

    def to_json(self) -> dict[str, Any]:
        """The rules as they are set; what was left out stays out."""
        branches = [_entry(rule, "branch_id") for rule in self.branches]
        tags = [_entry(rule, "tag_id") for rule in self.tags]
        return {
            "default_retention_days": self.default_retention_days,
            "branches": branches,
            **({"tags": tags} if tags else {}),
            **({"mirror_lag_days": self.mirror_lag_days} if self.mirror_lag_days else {}),
            **({"undo_days": self.undo_days} if self.undo_days != UNDO_DAYS else {}),
            **({"log_days": self.log_days} if self.log_days != max(LOG_DAYS, self.undo_days) else {}),
            **({"key_days": self.key_days} if self.key_days != KEY_DAYS else {}),
        }

    def to_text(self) -> str:
        """The rules as JSON text, for keeping."""
        return json.dumps(self.to_json())


def read_rules(text: str) -> Rules:
    """The rules that a JSON text holds. Raises ``InvalidRules``."""
    try:
        return parse_rules(json.loads(text, object_pairs_hook=_no_repeats))
    except (ValueError, RecursionError) as error:
        raise InvalidRules(f"retention rules are a JSON object, and this is not JSON: {error}") from None


def parse_rules(given: object) -> Rules:
    """The rules that parsed JSON says.

    Raises:
        InvalidRules: a key is unknown, missing or comes twice, a number is not a whole one of days, the log is shorter
            than the undo window, a name cannot be one. The message says where.
    """
    top = _object(given, "the rules", _KEYS)
    if "default_retention_days" not in top:
        raise InvalidRules("the rules lack default_retention_days: how many days to keep what no branch entry is for")
    undo = _days(top.get("undo_days", UNDO_DAYS), "undo_days")
    if undo < UNDO_DAYS:
        raise InvalidRules(
            f"undo_days is {UNDO_DAYS} or more, not {undo}: for that long a slip of the hand can be taken back"
        )
    log = _days(top.get("log_days", max(LOG_DAYS, undo)), "log_days", at_least=LEAST_LOG_DAYS)
    if log < undo:
        raise InvalidRules(
            f"log_days is at least undo_days, {undo}, not {log}: a move is taken back by the log that it is on"
        )
    return Rules(
        default_retention_days=_days(top["default_retention_days"], "default_retention_days"),
        branches=tuple(_rules(top.get("branches", []), "branches", "branch_id", _NUMBERS)),
        tags=tuple(_rules(top.get("tags", []), "tags", "tag_id", _NUMBERS[1:])),
        mirror_lag_days=_days(top.get("mirror_lag_days", 0), "mirror_lag_days"),
        undo_days=undo,
        log_days=log,
        key_days=_days(top.get("key_days", KEY_DAYS), "key_days", at_least=1),
    )


def _rules(given: object, where: str, name_key: str, numbers: tuple[str, ...]) -> Iterable[RefRule]:
    if not isinstance(given, list | tuple):
        raise InvalidRules(f"{where} is a list of entries, not {_shown(given)}")
    seen: set[str] = set()
    for index, item in enumerate(given):
        place = f"{where}[{index}]"
        entry = _object(item, place, (name_key, *numbers))
        name = _name(entry.get(name_key), f"{place}.{name_key}")
        if name in seen:
            raise InvalidRules(f"{place}: {name_key} {name!r} comes twice; put its numbers in one entry")
        seen.add(name)
        found = {key: _days(entry[key], f"{place}.{key}") for key in numbers if key in entry}
        if not found:
            raise InvalidRules(f"{place} says nothing about {name!r}: give {' or '.join(numbers)}")
        if found.get("expire_after_days") == 0:
            raise InvalidRules(f"{place}.expire_after_days is 0, which would delete {name!r} at once: give 1 or more")
        yield RefRule(name, **found)


def _object(given: object, place: str, keys: tuple[str, ...]) -> Mapping[str, object]:
    if not isinstance(given, Mapping):
        raise InvalidRules(f"{place} must be a JSON object, not {_shown(given)}")
    for key in given:
        if key not in keys:
            raise InvalidRules(f"{place} has the unknown key {key!r}; known are {', '.join(keys)}")
    return given


def _days(given: object, place: str, *, at_least: int = 0) -> int:
    if isinstance(given, bool) or not isinstance(given, int):
        raise InvalidRules(f"{place} is a whole number of days, not {_shown(given)}")
    if not at_least <= given <= MOST_DAYS:
        raise InvalidRules(f"{place} is between {at_least} and {MOST_DAYS} days, not {_shown(given)}")
    return given


def _name(given: object, place: str) -> str:
    if not isinstance(given, str) or not given:
        raise InvalidRules(f"{place} is a name or a pattern such as 'release-*', not {_shown(given)}")
    broken = broken_rule(_WILD.sub("x", given))
    if broken is not None:
        raise InvalidRules(f"{place} {_shown(given)} matches no name: it {broken}")
    return given


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise InvalidRules(f"the rules have the key {key!r} twice in one object")
        found[key] = value
    return found


def _most_specific(rules: Iterable[RefRule], name: str, number: str) -> int | None:
    found = [
        (rule.is_exact, rule.literal, days)
        for rule in rules
        if (days := getattr(rule, number)) is not None and rule.covers(name)
    ]
    return max(found)[2] if found else None


def _entry(rule: RefRule, name_key: str) -> dict[str, Any]:
    numbers = {key: getattr(rule, key) for key in _NUMBERS}
    return {name_key: rule.pattern, **{key: days for key, days in numbers.items() if days is not None}}


def _shown(given: object) -> str:
    return f"{given!r:.60}"


class Kept(StrEnum):
    """Why a commit lives: the first of these that holds."""

    HEAD = "heads"
    TAG = "tags"
    MIRROR = "mirrors"
    RETENTION = "retention"
    BASE = "merge_bases"
    UNDO = "undo"
    NO_RULES = "no_rules"


def live(refs: Lineage, rules: Rules | None, now: int) -> dict[str, Kept]:
    """The commits that the rules keep at a time (Unix seconds), each with the reason; without rules, all of them.

    * Every branch's head, every tag's commit and what a mirror needs live.
    * From a head along first parents, the parent of every commit younger than the branch's window lives.
    * A commit that is nobody's first parent and no head (a deleted branch's last one, one that a reset left behind)
      lives while younger than the default window, and is walked from with that.
    * What a merge of two branches rests on lives; a deleted branch counts until its undo window is over.
    * What a ref pointed to before it moved or went lives for the undo window.
    * For mirrors that cannot report, what was a head within the last ``mirror_lag_days`` lives as well.

    A commit that is gone stays so, whatever the rules say now. A pending one lives again when they keep it.
    """
    commits = refs.commits
    if rules is None:
        kept = dict.fromkeys(commits, Kept.NO_RULES) | _named(refs)
    else:
        # The last one to name a commit is the reason that is given.
        kept = {**_undone(refs, rules, now), **_bases(refs, rules, now), **_recent(refs, rules, now), **_named(refs)}
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


def _named(refs: Lineage) -> dict[str, Kept]:
    """What something points to, by the first reason that holds."""
    kept = {commit_id: Kept.MIRROR for needed in refs.mirrors.values() for commit_id in needed}
    kept.update(dict.fromkeys(refs.tags.values(), Kept.TAG))
    kept.update(dict.fromkeys(refs.branches.values(), Kept.HEAD))
    return kept


def _undone(refs: Lineage, rules: Rules, now: int) -> dict[str, Kept]:
    """What a ref showed until less than the undo window ago, or until a mirror that lags might still show it."""
    undo, lag = rules.undo_days * DAY, rules.mirror_lag_days * DAY
    return {
        commit_id: Kept.UNDO if now - at < undo else Kept.MIRROR
        for commit_id, at in refs.left.items()
        if now - at < max(undo, lag)
    }


def _bases(refs: Lineage, rules: Rules, now: int) -> dict[str, Kept]:
    """What merges rest on, of any two branches that are there or can be brought back."""
    back = {commit_id for commit_id in refs.deleted if now - refs.left.get(commit_id, 0) < rules.undo_days * DAY}
    return dict.fromkeys(shared(refs.commits, back.union(refs.branches.values())), Kept.BASE)


def _recent(refs: Lineage, rules: Rules, now: int) -> dict[str, Kept]:
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


def _head_windows(refs: Lineage, rules: Rules) -> dict[str, int]:
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
