"""A catalog whose transitions fail, or end the process, at a chosen moment."""

from collections.abc import Callable
from typing import Any

from lakeops.catalog.guards import CatalogPart
from lakeops.catalog.open import Catalog
from lakeops.testing import EFFECTS, Faults

TRANSITIONS = (
    "create_repository", "delete_repository", "create_branch", "delete_branch", "create_tag", "delete_tag",
    "move_branch", "move_tag", "protect", "unprotect", "put_staged", "seal", "reset", "discard", "publish", "enqueue",
    "dequeue", "purge_retired", "remember_key", "begin_upload", "end_upload", "set_rules", "set_grace",
    "report_mirror", "drop_mirror", "begin_mark", "finish_mark", "begin_sweep", "advance_sweep", "begin_lease",
    "confirm_lease", "prune", "end_sweep", "expire_by_mark", "revive_commits", "restore_mark", "restore_commits",
    "create_mirror", "copy_commits", "observe_source", "give_up_candidate", "record_arrivals", "promote", "note",
    "promote_writable", "revive_proved",
)  # fmt: skip
"""The transactions that change something."""

LOOKS = ("on_record",)
"""Reads that something may happen around; they are no effects."""

ALL_EFFECTS = (*EFFECTS, *TRANSITIONS)


class FaultyCatalog:
    """Any catalog, with a script of faults around its transitions."""

    def __init__(self, inner: Catalog, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return vars(self).setdefault(name, FaultyPart(found, self._faults)) if isinstance(found, CatalogPart) else found


class FaultyPart:
    """A part of a catalog, with a script of faults around its transitions."""

    def __init__(self, inner: Any, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._around(name, found) if name in TRANSITIONS or name in LOOKS else found

    def _around(self, name: str, transition: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._faults.during(name, "", "catalog"):
                return transition(*args, **kwargs)

        return call


def count_effects(faults: Faults) -> int:
    """How many effects there were on stores and catalog."""
    return sum(faults.counts[name] for name in ALL_EFFECTS)
