"""Retention rules, and the commits that live by them: a function of rules, refs, commits and the time.

A commit lives while it is a branch's head, or was one within the branch's window. It stopped to be the head when its
successor was made, so the first parent of every commit younger than the window was a head within it. The answer follows
from this definition alone, whatever order refs and commits come in. An age exactly equal to a window is past it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from lakeops.model.errors import InvalidInput
from lakeops.model.graph import Lineage, shared
from lakeops.model.names import broken_rule

UNDO_DAYS = 7
"""For how many days the commit that a ref showed stays after the ref moved or went. Rules may only lengthen it."""

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


def _check_pattern(pattern: str) -> str:
    broken = broken_rule(_WILD.sub("x", pattern))
    if broken is not None:
        raise ValueError(f"this matches no name, because it {broken}")
    return pattern


Pattern = Annotated[str, Field(min_length=1), AfterValidator(_check_pattern)]
Days = Annotated[int, Field(ge=0, le=MOST_DAYS)]
Expiry = Annotated[int, Field(ge=1, le=MOST_DAYS)]


class _ParsedRules(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Entry(_ParsedRules):
    pattern: Pattern
    expire_after_days: Expiry | None = None

    @property
    def is_exact(self) -> bool:
        """Whether the rule is for one name alone."""
        return _WILD.search(self.pattern) is None

    def covers(self, name: str) -> bool:
        """Whether it is for this name."""
        return self.pattern == name if self.is_exact else fnmatchcase(name, self.pattern)

    @property
    def specificity(self) -> tuple[bool, int]:
        """A name is more specific than a pattern. Of two patterns the one with more characters of a name is."""
        return self.is_exact, len(_WILD.sub("", self.pattern))


class BranchRule(_Entry):
    """A rule for branches: how long commits stay after they were the head, how long a branch may lie idle."""

    pattern: Pattern = Field(alias="branch_id")
    retention_days: Days | None = None

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if self.retention_days is None and self.expire_after_days is None:
            raise ValueError("give retention_days or expire_after_days")
        return self


class TagRule(_Entry):
    """A rule for the tags that a name or pattern covers: for how many days one may exist."""

    pattern: Pattern = Field(alias="tag_id")
    expire_after_days: Expiry


class Rules(_ParsedRules):
    """A repository's retention rules.

    Attributes:
        default_retention_days: for how long commits live that no branch's rule covers.
        branches: entries for branches, ``tags`` for tags. The most specific one that has a number decides.
        mirror_lag_days: for how long former heads are kept for mirrors that cannot report.
        undo_days: for how long the commit that a ref showed stays after the ref moved or went.
        log_days: for how long moves of refs and expired commits stay on record. Never shorter than ``undo_days``.
        key_days: for how long idempotency keys stay.
    """

    default_retention_days: Days
    branches: tuple[BranchRule, ...] = Field(default=(), strict=False)
    tags: tuple[TagRule, ...] = Field(default=(), strict=False)
    mirror_lag_days: Days = 0
    undo_days: int = Field(default=UNDO_DAYS, ge=UNDO_DAYS, le=MOST_DAYS)
    log_days: int = Field(
        default_factory=lambda given: max(LOG_DAYS, given["undo_days"]), ge=LEAST_LOG_DAYS, le=MOST_DAYS
    )
    key_days: int = Field(default=KEY_DAYS, ge=1, le=MOST_DAYS)

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.log_days < self.undo_days:
            raise ValueError(
                f"log_days is at least undo_days, {self.undo_days}, not {self.log_days}, because a move is taken back "
                "by the log that it is on"
            )
        for key, entries in (("branch_id", self.branches), ("tag_id", self.tags)):
            for pattern, times in Counter(entry.pattern for entry in entries).items():
                if times > 1:
                    raise ValueError(f"{key} {pattern!r} comes twice; put its numbers in one entry")
        return self

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
        """The rules as they are set, without defaults."""
        shown = self.model_dump(mode="json", exclude_defaults=True, by_alias=True)
        if self.log_days == max(LOG_DAYS, self.undo_days):
            shown.pop("log_days", None)
        return {"default_retention_days": self.default_retention_days, "branches": [], **shown}


def read_rules(text: str) -> Rules:
    """Read rules from a JSON text. Raises ``InvalidInput`` (``invalid_rules``)."""
    try:
        given = json.loads(text, object_pairs_hook=_no_repeats)
    except InvalidInput:  # a ValueError too
        raise
    except (ValueError, RecursionError) as error:
        words = f"retention rules are a JSON object, and this is not JSON: {error}"
        raise InvalidInput(words, kind="invalid_rules") from None
    return parse_rules(given)


def parse_rules(given: object) -> Rules:
    """Read rules from parsed JSON.

    Raises ``InvalidInput`` (``invalid_rules``), which says where: a key is unknown, missing or comes twice, a number is
    not a whole one of days, the log is shorter than the undo window, a name cannot be one.
    """
    if not isinstance(given, Mapping):
        raise InvalidInput(f"the rules must be a JSON object, not {_for_message(given)}", kind="invalid_rules")
    try:
        return Rules.model_validate(dict(given))
    except ValidationError as error:
        raise InvalidInput(_sentence(error), kind="invalid_rules") from None
    except RecursionError:
        raise InvalidInput("the rules are nested too deeply", kind="invalid_rules") from None


def _sentence(error: ValidationError) -> str:
    """The first flaw that pydantic found, with its place."""
    flaw = error.errors(include_url=False)[0]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in flaw["loc"]).lstrip(".")
    match flaw["type"]:
        case "extra_forbidden":
            return f"the rules have the unknown key {_for_message(place)}; docs/gc.md has the known ones"
        case "missing":
            return f"the rules lack {place}"
        case "value_error":
            return f"{place or 'the rules'}: {flaw['ctx']['error']}"
    words = flaw["msg"].replace("Input should be", "this should be")
    return f"{place} is {_for_message(flaw['input'])}: {words}"


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for key, times in Counter(key for key, _ in pairs).items():
        if times > 1:
            raise InvalidInput(f"the rules have the key {key!r} twice in one object", kind="invalid_rules")
    return dict(pairs)


def _most_specific(entries: Iterable[_Entry], name: str, number: str) -> int | None:
    given = [one for one in entries if getattr(one, number, None) is not None and one.covers(name)]
    return max(((one.specificity, getattr(one, number)) for one in given), default=(None, None))[1]


def _for_message(given: object) -> str:
    return f"{given!r:.60}"


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
        # Merge bases of any two branches that are there or can be brought back.
        back = {commit_id for commit_id in refs.deleted if now - refs.left.get(commit_id, 0) < rules.undo_days * DAY}
        bases = shared(refs.commits, back.union(refs.branches.values()))
        # The last one to name a commit is the reason that is given.
        kept = {
            **_within_undo(refs, rules, now),
            **dict.fromkeys(bases, RetentionReason.BASE),
            **_within_window(refs, rules, now),
            **_pointed_to(refs),
        }
    return {one: why for one, why in kept.items() if one in commits and not commits[one].expired}


def only_for_mirrors(refs: Lineage, rules: Rules | None, now: int) -> dict[str, frozenset[str]]:
    """The commits that live only because of one registered mirror, by the mirror's name."""
    if not refs.mirrors:
        return {}
    others = live(replace(refs, mirrors={}), rules, now).keys()
    asked = Counter(commit_id for needed in refs.mirrors.values() for commit_id in needed)
    return {
        name: frozenset(one for one in needed if one not in others and asked[one] == 1)
        for name, needed in refs.mirrors.items()
    }


def _pointed_to(refs: Lineage) -> dict[str, RetentionReason]:
    """Commits that a ref or a mirror points to, by the first reason that holds."""
    kept = {commit_id: RetentionReason.MIRROR for needed in refs.mirrors.values() for commit_id in needed}
    kept.update(dict.fromkeys(refs.tags.values(), RetentionReason.TAG))
    kept.update(dict.fromkeys(refs.branches.values(), RetentionReason.HEAD))
    return kept


def _within_undo(refs: Lineage, rules: Rules, now: int) -> dict[str, RetentionReason]:
    """Commits that a ref showed within the undo window, or that a mirror that lags might still show."""
    undo, lag = rules.undo_days * DAY, rules.mirror_lag_days * DAY
    return {
        commit_id: RetentionReason.UNDO if now - at < undo else RetentionReason.MIRROR
        for commit_id, at in refs.left.items()
        if now - at < max(undo, lag)
    }


def _within_window(refs: Lineage, rules: Rules, now: int) -> dict[str, RetentionReason]:
    """Commits that were a head, or the end of a line, within a window."""
    kept: dict[str, RetentionReason] = {}
    ends = refs.commits.keys() - {commit.parents[0] for commit in refs.commits.values() if commit.parents}
    ends -= set(refs.branches.values())
    lag = rules.mirror_lag_days * DAY
    windows = dict.fromkeys(ends, rules.default_retention_days * DAY)  # seconds
    for name, commit_id in refs.branches.items():
        windows[commit_id] = max(windows.get(commit_id, 0), rules.retention_days(name) * DAY)
    # Walks that meet go on as one, with the longest of their windows: what any of them keeps, that one keeps.
    for commit in sorted(refs.commits.values(), key=lambda commit: -commit.generation):
        window = windows[commit.id]
        age = now - commit.creation_date
        if age < max(window, lag):
            why = RetentionReason.RETENTION if age < window else RetentionReason.MIRROR
            for one in (*commit.parents[:1], *([commit.id] if commit.id in ends else ())):
                if kept.get(one) is not RetentionReason.RETENTION:
                    kept[one] = why
        for parent in commit.parents[:1]:
            windows[parent] = max(windows.get(parent, 0), window)
    return kept


def counted(kept: Iterable[RetentionReason]) -> dict[str, int]:
    """How many commits live for each reason. Every reason is there."""
    counts = Counter(kept)
    return {why.value: counts[why] for why in RetentionReason}
