"""A repository's retention rules: their JSON form, its checks, and which entry is for a name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from lakeops.model.errors import (
    InvalidInput,
)
from lakeops.model.names import broken_rule

UNDO_DAYS = 7
"""For how many days everything that a ref showed stays after the ref moved or went. Rules may only lengthen it."""

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
    expire_after_days: Expiry | None = None

    @property
    def pattern(self) -> str:
        """The name or glob pattern that the entry is for."""
        raise NotImplementedError

    @property
    def is_exact(self) -> bool:
        """Whether it is for one name alone."""
        return _WILD.search(self.pattern) is None

    def covers(self, name: str) -> bool:
        """Whether it is for this name."""
        return self.pattern == name if self.is_exact else fnmatchcase(name, self.pattern)

    @property
    def specificity(self) -> tuple[bool, int]:
        """A name is more specific than a pattern. Of two patterns the one with more characters of a name is."""
        return self.is_exact, len(_WILD.sub("", self.pattern))


class BranchRule(_Entry):
    """What holds for the branches that a name or pattern covers.

    Attributes:
        branch_id: a name, or a glob pattern.
        retention_days: how long a commit lives after it stopped to be the branch's head.
        expire_after_days: how long a branch may lie idle before it is deleted.
    """

    branch_id: Pattern
    retention_days: Days | None = None

    @property
    def pattern(self) -> str:
        """``branch_id``."""
        return self.branch_id

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.retention_days is None and self.expire_after_days is None:
            raise ValueError("give retention_days or expire_after_days")
        return self


class TagRule(_Entry):
    """What holds for the tags that a name or pattern covers: for how many days one may exist."""

    tag_id: Pattern
    expire_after_days: Expiry

    @property
    def pattern(self) -> str:
        """``tag_id``."""
        return self.tag_id


class Rules(_ParsedRules):
    """A repository's retention rules.

    Attributes:
        default_retention_days: for how long commits live that no branch's entry is for.
        branches: entries for branches. The most specific one that has a number decides.
        tags: entries for tags.
        mirror_lag_days: what was a head within the last so many days is kept for mirrors that cannot report.
        undo_days: what a ref showed stays for so many days after the ref moved or went.
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
        for key, patterns in (("branch_id", self.branches), ("tag_id", self.tags)):
            seen: set[str] = set()
            for entry in patterns:
                if entry.pattern in seen:
                    raise ValueError(f"{key} {entry.pattern!r} comes twice; put its numbers in one entry")
                seen.add(entry.pattern)
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
        """The rules as they are set. What was left out stays out."""
        shown = self.model_dump(mode="json", exclude_defaults=True)
        if self.log_days == max(LOG_DAYS, self.undo_days):
            shown.pop("log_days", None)
        return {"default_retention_days": self.default_retention_days, "branches": [], **shown}

    def to_text(self) -> str:
        """The rules as JSON text, for keeping."""
        return json.dumps(self.to_json())


def read_rules(text: str) -> Rules:
    """The rules that a JSON text holds. Raises ``InvalidInput`` (``invalid_rules``)."""
    try:
        given = json.loads(text, object_pairs_hook=_no_repeats)
    except InvalidInput:  # a ValueError too
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidInput(
            f"retention rules are a JSON object, and this is not JSON: {error}", kind="invalid_rules"
        ) from None
    return parse_rules(given)


def parse_rules(given: object) -> Rules:
    """The rules that parsed JSON says.

    Raises:
        InvalidInput: ``invalid_rules``: a key is unknown, missing or comes twice, a number is not a whole one of days,
            the log is shorter
            than the undo window, a name cannot be one. The message says where.
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
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise InvalidInput(f"the rules have the key {key!r} twice in one object", kind="invalid_rules")
        found[key] = value
    return found


def _most_specific(entries: Iterable[_Entry], name: str, number: str) -> int | None:
    found = [
        (entry.specificity, days)
        for entry in entries
        if (days := getattr(entry, number, None)) is not None and entry.covers(name)
    ]
    return max(found)[1] if found else None


def _for_message(given: object) -> str:
    return f"{given!r:.60}"
