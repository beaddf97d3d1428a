"""Records of what changes: the paths of a diff, who wrote them, what a merge did. As plain as ``records``."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Literal

from lakeops.model.json_record import JsonRecord
from lakeops.model.records import Commit


class ChangeType(StrEnum):
    """What happened to a path."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True)
class Change(JsonRecord):
    """One path of a diff. ``size_bytes`` is the new object's, or the removed one's."""

    type: ChangeType
    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Summary(JsonRecord):
    """How many paths a commit or merge added, removed and changed."""

    added: int = 0
    removed: int = 0
    changed: int = 0

    @property
    def total(self) -> int:
        """All changed paths."""
        return self.added + self.removed + self.changed


@dataclass(frozen=True, slots=True)
class Written:
    """An object and the commit that wrote it.

    ``boundary`` says that what was before the commit was not looked at, so that an earlier one may have written it:
    retention took it, or it lies deeper than the call was to look.
    """

    path: str
    size_bytes: int
    commit: Commit
    boundary: bool

    @property
    def dag_run(self) -> dict[str, str | None] | None:
        """The run of an Airflow DAG that made the commit: ``dag_id``, ``run_id``, ``task_id`` and ``link``.

        The link leads to the task's log. It is None where Airflow did not know its own address.
        """
        made = self.commit.metadata
        if "airflow_dag_id" not in made:
            return None
        return {name: made.get(f"airflow_{name}") for name in ("dag_id", "run_id", "task_id", "link")}

    def to_json(self) -> dict[str, Any]:
        """The object, and who wrote it."""
        return {
            "path": self.path,
            "size_bytes": self.size_bytes,
            "commit_id": self.commit.id,
            "committer": self.commit.committer,
            "creation_date": self.commit.creation_date,
            "message": self.commit.message,
            "dag_run": self.dag_run,
            "boundary": self.boundary,
        }


@dataclass(frozen=True, slots=True)
class Version(Written):
    """An object as one commit wrote it, or the one that it removed.

    With ``boundary`` the type is ``added`` where no parent could be read.
    """

    type: ChangeType
    checksum: str

    def to_json(self) -> dict[str, Any]:
        """The ``written`` record, with the change that the commit made and the checksum."""
        return {"type": self.type.value, "checksum": self.checksum, **Written.to_json(self)}


class Strategy(StrEnum):
    """Which side settles every conflict of a merge. A deletion counts as a side's state."""

    SOURCE_WINS = "source-wins"
    DEST_WINS = "dest-wins"


StrategyName = Literal["source-wins", "dest-wins"]
"""A strategy as people write it."""


@dataclass(frozen=True, slots=True)
class MergeResult(JsonRecord):
    """What a merge did: ``reference`` is the new commit's id, or None when there was nothing to merge.

    ``source_uncommitted``: the source is a branch with uncommitted changes, which the merge left out.
    ``repeated``: an earlier call under the same idempotency key made the commit, and this one changed nothing.
    """

    json_keys: ClassVar[tuple[str, ...]] = (
        "reference",
        "up_to_date",
        "summary",
        "source_uncommitted",
    )

    reference: str | None
    up_to_date: bool
    summary: Summary
    source_uncommitted: bool = False
    repeated: bool = field(default=False, compare=False)
