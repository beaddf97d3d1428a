"""lakeops: Git for an object store, without a server.

    from lakeops import Lake

    lake = Lake.open()
    repo = lake.create_repository("flights")
    dev = repo.create_branch("dev", source="main")
    dev.put("raw/a.csv", b"1,2,3")
    dev.commit("load day 1")
    repo.merge("dev", "main")

Importing this package is cheap: what it offers is loaded when it is first used, and Airflow, PySpark and boto3 only
by those parts that need them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from lakeops.machine import choose_pool
from lakeops.model import errors as _errors
from lakeops.model.errors import *  # noqa: F403 - the whole tree, which names itself
from lakeops.model.protection import Hook, HookEvent
from lakeops.model.records import (
    Change,
    ChangeType,
    Commit,
    CommonPrefix,
    Entry,
    MergeResult,
    Split,
    Strategy,
    Summary,
    Version,
    Written,
)
from lakeops.version import __version__

choose_pool()

if TYPE_CHECKING:
    from lakeops.lake import Branch, Lake, Ref, Repository
    from lakeops.lake.mirror import Mirror
    from lakeops.settings import Settings

__all__ = ["Branch", "Change", "ChangeType", "Commit", "CommonPrefix", "Entry", "Hook", "HookEvent", "Lake"]
__all__ += ["MergeResult", "Mirror", "Ref", "Repository", "Settings", "Split", "Strategy", "Summary", "Version"]
__all__ += ["Written", "__version__"]
__all__ += _errors.__all__

_LATE = dict.fromkeys(("Branch", "Lake", "Ref", "Repository"), "lakeops.lake")
_LATE["Mirror"] = "lakeops.lake.mirror"
_LATE["Settings"] = "lakeops.settings"


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_LATE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
