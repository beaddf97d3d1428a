"""Changes and conflicts in bounded form: what fits into a log, an XCom, a form or a page."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from lakeops.airflow import idempotent
from lakeops.model.changes import Change, ChangeType, Strategy, StrategyName
from lakeops.model.errors import LakeopsError, MergeConflict, PreconditionFailed
from lakeops.model.text import safe

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lakeops.lake import Branch, Lake, Repository

SIGNS = {ChangeType.ADDED: "+", ChangeType.REMOVED: "-", ChangeType.CHANGED: "~", ChangeType.CONFLICT: "!"}

LISTED = 100
"""How many changes a form or a log lists. It counts all of them."""

FOLDERS = 20
"""How many folders are summed up, each on its own."""

OTHERS = "others"
"""What the sum of all other folders is called. It ends with no slash, so it is no folder's name."""

CONFLICTS_KEY = "conflicts"
"""The XCom that describes a merge conflict. A failed task has no result, so the XCom has a key of its own."""

CONFLICTS_LISTED = 1000
"""How many paths that XCom has. The log and the error have all of them."""

CONFLICTS_COMPARED = 50
"""How many paths are shown with their sizes on both sides."""

Row = dict[str, Any]


class Sum(NamedTuple):
    """How many changes, and the bytes of the objects that are there now, or were removed."""

    number: int
    size: int


@dataclass(frozen=True)
class DiffSummary:
    """How many changes of each kind there are, and the first ones in path order. As text: a line each.

    ``exact`` is False when there were more changes than were to be counted. ``digest`` is another one when any of the
    changes is another one. ``folders`` has how many changes there are, and of how many bytes, in each of the first
    top-level folders; objects outside of folders are under the empty name, and what more folders hold under ``OTHERS``.
    """

    counts: dict[str, int]
    first: list[Change]
    exact: bool = True
    digest: str = ""
    folders: dict[str, Sum] = field(default_factory=dict)

    @classmethod
    def of(cls, changes: Iterable[Change], listed: int = LISTED, *, counted: int | None = None) -> DiffSummary:
        """The tally of a diff, which is read to its end, or as far as ``counted`` changes."""
        counts: Counter[str] = Counter()
        first: list[Change] = []
        folders: dict[str, Sum] = {}
        digest = hashlib.sha256()
        for change in islice(changes, counted):
            counts[change.type.value] += 1
            digest.update(f"{change.type.value} {change.size_bytes} {change.path}\0".encode())
            if len(first) < listed:
                first.append(change)
            name = change.path[: change.path.find("/") + 1]
            name = name if name in folders or len(folders) < FOLDERS else OTHERS
            number, size = folders.get(name, Sum(0, 0))
            folders[name] = Sum(number + 1, size + change.size_bytes)
        every = {kind.value: counts[kind.value] for kind in ChangeType}
        return cls(every, first, counts.total() != counted, digest.hexdigest(), folders)

    @property
    def total(self) -> int:
        """How many changes were counted."""
        return sum(self.counts.values())

    @property
    def unlisted(self) -> int:
        """How many of them are not among the first."""
        return self.total - len(self.first)

    @property
    def size(self) -> int:
        """Bytes of the objects that are there now, or were removed."""
        return sum(found.size for found in self.folders.values())

    @property
    def summary(self) -> str:
        """The counts in words: ``3 added, 1 removed``; empty when nothing changed."""
        return ", ".join(f"{count:,} {kind}" for kind, count in self.counts.items() if count)

    def to_json(self) -> dict[str, Any]:
        """Counts, and the first changes as the public contract's records."""
        return {
            "total": self.total,
            **self.counts,
            "changes": [change.to_json() for change in self.first],
            "truncated": self.unlisted > 0,
        }

    def __str__(self) -> str:
        lines = [f"{self.total:,} changes: {self.summary}" if self.total else "No changes"]
        lines += [f"{SIGNS[change.type]} {safe(change.path)} ({change.size_bytes:,} B)" for change in self.first]
        if self.unlisted:
            lines.append(f"... and {self.unlisted:,} more")
        return "\n".join(lines)


def conflicting(changes: Iterable[Change]) -> list[str]:
    """The paths that conflict."""
    return [change.path for change in changes if change.type is ChangeType.CONFLICT]


NOTHING = "nothing"
"""What a merge is known by that merges nothing: the destination has the commit."""


@dataclass(frozen=True)
class MergeOutcome:
    """What a merge of one commit does to one head.

    Attributes:
        tally: what it changes; with conflicts that nothing settles among it.
        settled: how many conflicts the strategy settles.
        conflicts: the paths of conflicts that nothing settles.
        shown: another text when any of this is different. ``NOTHING`` where the head has the commit.
    """

    tally: DiffSummary
    settled: int
    conflicts: list[str]
    shown: str

    @classmethod
    def of(
        cls,
        repository: Repository,
        head: str,
        source: str,
        strategy: StrategyName | Strategy | None = None,
        *,
        listed: int = LISTED,
    ) -> MergeOutcome:
        """What merging ``source`` does to ``head``. Publishes nothing."""
        if idempotent.contains(repository, head, source):
            return cls(DiffSummary.of(()), 0, [], NOTHING)
        tally = DiffSummary.of(repository.compare(head, source), listed)
        conflicts = tally.counts[ChangeType.CONFLICT]
        if not conflicts:
            return cls(tally, 0, [], tally.digest)
        if not strategy:
            return cls(tally, 0, conflicting(repository.compare(head, source)), tally.digest)
        settled = DiffSummary.of(repository.compare(head, source, strategy=strategy), listed)
        return cls(settled, conflicts, [], f"{tally.digest}-{settled.digest}")


def state_of(branch: Branch) -> str:
    """Another text when the branch's head or its uncommitted changes are others."""
    return f"{branch.commit_id}-{staged_state(branch)}"


def staged_state(branch: Branch, prefix: str = "") -> str | None:
    """Another text when other changes are uncommitted under a prefix, also of the same sizes. None without any."""
    trail = branch.pin(prefix).trail  # before the look
    tally = DiffSummary.of(branch.uncommitted(prefix))
    return f"{tally.digest}-{trail.total}" if tally.total else None


class Lying(NamedTuple):
    """How much there is to import."""

    objects: int
    size: int


def lying_at(lake: Lake, source: str) -> Lying:
    """How much there is at ``s3://bucket/prefix`` or in ``file:///directory``."""
    objects = size = 0
    for listing in lake.stores().at(source).scan(skip_special=True):
        objects += len(listing.keys)
        size += sum(listing.sizes)
    return Lying(objects, size)


def objects_under(repository: Repository, commit_id: str, folder: str) -> int:
    """How many objects of a commit are in a folder."""
    return sum(batch.num_rows for batch in repository.ref(commit_id).entries(folder))


def importing(lying: Lying, before: int) -> str:
    """Another text when an import brings another number of objects or bytes, or takes another number's place."""
    return f"{lying.objects} objects, {lying.size} B, in place of {before}"


def require_shown(now: str, shown: str | None, what: str) -> None:
    """Refuse to do something else than somebody was shown, if anybody was. Raises ``PreconditionFailed``."""
    if shown and now != shown:
        raise PreconditionFailed(f"{what} is no longer what was shown, so nothing was done; look at it again")


class Log(Protocol):
    """A logger, as far as it is needed here."""

    def error(self, event: Any, *args: Any) -> Any:  # noqa: ANN401 - as structlog has it
        """Log an error."""
        ...


def report_conflict(
    conflict: MergeConflict, repository: Repository, sides: tuple[str, str] | None, context: Context, log: Log
) -> None:
    """Write a table of a merge conflict to a task's log, and an XCom that later tasks can read.

    Args:
        conflict: the error.
        repository: the repository.
        sides: the source and the destination, when their objects can be compared.
        context: the task's.
        log: the task's.
    """
    rows = _compared(conflict, repository, sides)
    log.error("%s", _table(rows, conflict.conflict_count))
    context["ti"].xcom_push(
        key=CONFLICTS_KEY,
        value={
            "source": conflict.source,
            "destination": conflict.destination,
            "conflict_count": conflict.conflict_count,
            "conflicts": conflict.conflicts[:CONFLICTS_LISTED],
            "table": rows,
        },
    )


def _compared(conflict: MergeConflict, repository: Repository, sides: tuple[str, str] | None) -> list[Row]:
    """The first conflicting paths, with the object's size on either side: in bytes, or None where it is deleted."""
    rows: list[Row] = [{"path": path} for path in conflict.conflicts[:CONFLICTS_COMPARED]]
    if sides is None:
        return rows
    for row in rows:
        for name, ref in zip(("source", "destination"), sides, strict=True):
            try:
                handle = repository.ref(ref)
                row[name] = handle.stat(row["path"]).size_bytes if handle.exists(row["path"]) else None
            except LakeopsError:  # the ref was deleted, or its commit has expired, since the merge failed
                return [{"path": path["path"]} for path in rows]
    return rows


def _table(rows: list[Row], count: int) -> str:
    names = [name for name in ("source", "destination") if rows and name in rows[0]]
    cells = [("path", *names), *((safe(row["path"]), *(_size(row[name]) for name in names)) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    if count > len(rows):
        lines.append(f"... and {count - len(rows):,} more, all listed below")
    return "\n".join([f"Conflicts: {count:,}", *lines])


def _size(size: int | None) -> str:
    return "deleted" if size is None else f"{size:,} B"
