"""Hooks: code of a team's own that runs before or after refs change, and what it is told.

Which hooks run is recorded per repository in the catalog. The code itself is an entry point in the group
``lakeops.hooks``, installed beside lakeops. See ``ops.hooks``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from lakeops.model.errors import InvalidInput
from lakeops.model.json_record import JsonRecord
from lakeops.model.requests import check_asked
from lakeops.model.text import excerpt

GROUP = "lakeops.hooks"
BEFORE, AFTER = "before", "after"
ACTIONS = (
    *("commit", "merge", "revert", "cherry-pick", "import"),
    *("create-branch", "move-branch", "delete-branch", "create-tag", "move-tag", "delete-tag"),
)
"""What hooks run beside, as the reflog calls it."""
SECONDS, MOST_SECONDS = 60, 3600
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_MAX_PATTERN_BYTES = 1024


@dataclass(frozen=True, slots=True, order=True)
class Hook(JsonRecord):
    """What runs beside changes of refs.

    Attributes:
        name: the entry point's name in the group ``lakeops.hooks``.
        when: ``before``: what it raises stops the change. ``after``: what it raises is logged.
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
        """Whether it runs beside this change."""
        return (not self.actions or action in self.actions) and fnmatchcase(ref, self.pattern)

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Hook:
        """What ``to_json`` wrote. Raises ``TypeError``, ``KeyError``, ``InvalidInput``."""
        hook = Hook(values["name"], values["when"], tuple(values["actions"]), values["pattern"], values["seconds"])
        return hook if hook == REFS_DUMP else check_hook(hook)


REFS_DUMP = Hook("refs-dump", AFTER)
"""The hook that lakeops brings itself: it adds each change to the dump in the storage namespace."""


@dataclass(frozen=True, slots=True)
class HookEvent:
    """A change of a ref, as a hook is told of it.

    Attributes:
        repository: the repository's name.
        action: one of ``ACTIONS``.
        ref: the branch or tag that changes.
        old: the commit that it points to before the change. None when there is no such ref yet.
        new: the commit that it points to afterwards. None when it is deleted. Before a commit or merge is published
            its final id is not known, so it is None as well.
        parents: the parents of the commit that is made: of a merge the destination, then the source.
        message: its message.
        metadata: its metadata.
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
    """The hook, when it makes sense. Raises ``InvalidInput``."""
    check_asked(hook.name, "a hook")
    check_asked(hook.pattern, "a pattern")
    if not _NAME.fullmatch(hook.name) or hook.name == REFS_DUMP.name:
        raise InvalidInput(f"{excerpt(hook.name)} cannot be a hook: give the name of an entry point in group {GROUP!r}")
    if hook.when not in (BEFORE, AFTER):
        raise InvalidInput(f"a hook runs before or after, not {excerpt(hook.when)}")
    unknown = next((action for action in hook.actions if action not in ACTIONS), None)
    if unknown is not None:
        raise InvalidInput(f"{excerpt(unknown)} is nothing that hooks run beside; there are {', '.join(ACTIONS)}")
    if not hook.pattern or len(hook.pattern) > _MAX_PATTERN_BYTES or any(char in hook.pattern for char in "/\0\n"):
        raise InvalidInput(f"{excerpt(hook.pattern)} matches no name; use a name or a glob such as 'release-*'")
    if type(hook.seconds) is not int or not 1 <= hook.seconds <= MOST_SECONDS:
        raise InvalidInput(f"a hook may take 1 to {MOST_SECONDS} seconds, not {hook.seconds!r:.80}")
    return hook
