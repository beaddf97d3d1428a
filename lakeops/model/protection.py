"""Protection of refs: patterns, verdicts of checks, and the hooks that run beside changes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from lakeops.model.encoding import JsonRecord
from lakeops.model.errors import InvalidInput
from lakeops.model.names import check_asked, check_glob
from lakeops.model.sanitising import excerpt

GROUP = "lakeops.hooks"

BEFORE, AFTER = "before", "after"

ACTIONS = (
    *("commit", "merge", "revert", "cherry-pick", "import"),
    *("create-branch", "move-branch", "delete-branch", "create-tag", "move-tag", "delete-tag"),
)
"""Changes that hooks run beside, as the reflog calls them."""

SECONDS, MOST_SECONDS = 60, 3600

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True, order=True)
class Hook(JsonRecord):
    """A hook: code that runs beside changes of refs.

    Attributes:
        name: the entry point's name in the group ``lakeops.hooks``.
        when: ``before``: its errors stop the change. ``after``: its errors are logged.
        actions: beside which of ``ACTIONS`` it runs. Empty: all of them.
        pattern: a glob pattern of the branches and tags.
        seconds: how long it may take.
    """

    name: str
    when: str = BEFORE
    actions: tuple[str, ...] = ()
    pattern: str = "*"
    seconds: int = SECONDS

    def concerns(self, action: str, ref: str) -> bool:
        """Whether the hook runs beside this change."""
        return (not self.actions or action in self.actions) and fnmatchcase(ref, self.pattern)

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Hook:
        """Read a hook that ``to_json`` wrote. Raises ``TypeError``, ``KeyError``, ``InvalidInput``."""
        hook = Hook(values["name"], values["when"], tuple(values["actions"]), values["pattern"], values["seconds"])
        return hook if hook == REFS_DUMP else check_hook(hook)


REFS_DUMP = Hook("refs-dump", AFTER)
"""The hook that lakeops brings itself: it adds each change to the dump in the storage namespace."""


@dataclass(frozen=True, slots=True)
class HookEvent:
    """A change of a branch or tag, as a hook is told of it.

    Attributes:
        action: one of ``ACTIONS``.
        ref: the branch or tag.
        old: the commit that it points to before. None when there is no such ref yet.
        new: the commit that it points to afterwards. None when it is deleted, and before a commit or merge is
            published, whose final id is not known yet.
        parents: the parents of the commit that is made, ``message`` and ``metadata`` what it says. A merge has the
            destination first, then the source.
    """

    repository: str
    action: str
    ref: str
    old: str | None = None
    new: str | None = None
    parents: tuple[str, ...] = ()
    message: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


def check_hook(hook: Hook) -> Hook:
    """Return a hook whose values make sense. Raises ``InvalidInput`` for another one."""
    check_asked(hook.name, "a hook")
    if not _NAME.fullmatch(hook.name) or hook.name == REFS_DUMP.name:
        raise InvalidInput(f"{excerpt(hook.name)} cannot be a hook: give the name of an entry point in group {GROUP!r}")
    if hook.when not in (BEFORE, AFTER):
        raise InvalidInput(f"a hook runs before or after, not {excerpt(hook.when)}")
    unknown = next((action for action in hook.actions if action not in ACTIONS), None)
    if unknown is not None:
        raise InvalidInput(f"{excerpt(unknown)} is nothing that hooks run beside; there are {', '.join(ACTIONS)}")
    check_glob(hook.pattern, "a pattern", "name")
    if type(hook.seconds) is not int or not 1 <= hook.seconds <= MOST_SECONDS:
        raise InvalidInput(f"a hook may take 1 to {MOST_SECONDS} seconds, not {hook.seconds!r:.80}")
    return hook


BRANCH_PROTECTION, TAG_PROTECTION, CHECK_PROTECTION = "branch", "tag", "check"


@dataclass(frozen=True, slots=True, order=True)
class Protection:
    """A rule that protects refs that match a glob pattern.

    Attributes:
        kind: ``branch``: they change through merges only. ``tag``: they are neither moved nor deleted. ``check``:
            branches change through merges only, and only of commits that have passed ``check``.
        pattern: a name or a glob.
        check: the name of the check.
        prefix: what paths begin with of which a merge has to change one, or else the check is not asked for.
    """

    kind: str
    pattern: str
    check: str = ""
    prefix: str = ""

    @property
    def text(self) -> str:
        """The rule as one text. No pattern has a slash."""
        if self.kind == BRANCH_PROTECTION:
            return self.pattern
        below = f"\n{self.prefix}" if self.prefix else ""  # no check's name has a line end
        return f"{self.kind}/{self.pattern}/{self.check}{below}"

    @staticmethod
    def parse(text: str) -> Protection:
        """Read a rule that ``text`` wrote."""
        kind, *rest = text.split("/", 2)
        if kind in {TAG_PROTECTION, CHECK_PROTECTION} and len(rest) > 1:
            return Protection(kind, rest[0], *rest[1].split("\n", 1))
        return Protection(BRANCH_PROTECTION, text)


PASSED, FAILED, WAITING = "passed", "failed", "waiting"

MAX_FINDINGS = 4000

APPROVAL = "approval"
"""The check that a person answers."""


@dataclass(frozen=True, slots=True)
class Verdict(JsonRecord):
    """The finding of a check on one commit.

    Attributes:
        state: ``passed``, ``failed``, or ``waiting``: the commit declares the check, and nobody has recorded a verdict.
        said_by: who recorded it, and ``at`` when, in Unix seconds. Empty and 0 while it waits.
        findings: what was wrong.
        run: the run of a program that found it.
    """

    commit_id: str
    name: str
    state: str
    said_by: str = ""
    at: int = 0
    findings: str = ""
    run: str = ""

    @property
    def word(self) -> str:
        """The state in a word for people: an approval that failed was rejected."""
        return "rejected" if self.name == APPROVAL and self.state == FAILED else self.state

    def __str__(self) -> str:
        who = f" by {self.said_by}" if self.said_by else ""
        return f"{self.name!r} {self.word}{who}" + (f" ({self.findings})" if self.findings else "")


def worst(found: Iterable[Verdict]) -> Verdict | None:
    """The verdict that says most of a commit: one that failed, or else one that waits, or else one that passed."""
    return min(found, key=lambda one: (FAILED, WAITING, PASSED).index(one.state), default=None)
