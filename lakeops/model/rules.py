"""Retention rules: lakeFS's JSON, and a little more, checked as it comes in.

::

    {
      "default_retention_days": 21,
      "branches": [
        {"branch_id": "main", "retention_days": 28},
        {"branch_id": "release-*", "retention_days": 90},
        {"branch_id": "dev-*", "expire_after_days": 30}
      ],
      "tags": [{"tag_id": "nightly-*", "expire_after_days": 60}],
      "mirror_lag_days": 3,
      "undo_days": 14,
      "log_days": 365,
      "key_days": 90
    }

Only ``default_retention_days`` must be there. An entry is for one name or, with ``*``, ``?`` or ``[``, for all names
that match the pattern. For each of an entry's two numbers the most specific entry that has it decides: the exact name
first, then the pattern with the most literal characters; of equally specific ones, the one that keeps longer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from lakeops.model.errors import InvalidRules
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
