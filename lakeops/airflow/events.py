"""Events of a branch's asset: the commit of each, and its changes since the head before.

Operators announce commits that they publish, watchers those that were made elsewhere. An event is delivered at least
once: a task that is killed between publishing and ending announces the commit again when it runs again. Consumers
therefore key their work on ``commit_id``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lakeops.model.errors import CommitExpired, FileMissing, RefNotFound

if TYPE_CHECKING:
    from lakeops.lake import Repository


def describe(
    repository: Repository,
    branch: str,
    commit: Mapping[str, Any],
    *,
    since: str | None = None,
    partition_by: str | None = None,
) -> dict[str, Any]:
    """Describe a move of a branch to ``commit``, a commit's record, as an event's extra: plain data.

    Its keys are ``repository``, ``branch``, ``commit_id``, ``parents``, ``message``, ``since`` (the head before; the
    first parent when left out), ``summary`` (``added``, ``removed``, ``changed``), ``prefixes`` (top-level folders and
    objects that changed, at most 100), ``more_prefixes``, and ``partitions``: the changed values of the ``name=value``
    folder level ``partition_by``. ``summary`` and ``prefixes`` are None when retention has expired a commit, when a
    mirror does not have the older one, or when a catalog that was restored from a backup does not know it.
    """
    before = since or next(iter(commit["parents"]), None)
    changed = None
    if before is not None:
        try:
            with suppress(CommitExpired, RefNotFound):
                changed = repository.changed(before, commit["id"], partition_by=partition_by)
        except FileMissing as error:
            if error.kind != "not_replicated":
                raise
    return {
        "repository": repository.id,
        "branch": branch,
        "commit_id": commit["id"],
        "parents": list(commit["parents"]),
        "message": commit["message"],
        "since": before,
        "summary": changed and changed.summary.to_json(),
        "prefixes": changed and list(changed.prefixes),
        "more_prefixes": changed is not None and changed.more_prefixes,
        **({"partitions": list(changed.partitions)} if changed and partition_by is not None else {}),
    }


def published(triggering: Mapping[Any, Iterable[Any]]) -> list[dict[str, Any]]:
    """The commits of a run's ``triggering_asset_events``, each once, oldest event first, as ``describe`` has them."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    events = [event for group in triggering.values() for event in group]
    for event in sorted(events, key=lambda event: event.timestamp):
        extra = event.extra or {}
        record = extra.get("payload") if extra.get("from_trigger") else extra
        if isinstance(record, Mapping) and "commit_id" in record:
            first = {key: value for key, value in record.items() if key != "others"}
            for one in (first, *record.get("others", ())):
                found.setdefault((one["repository"], one["branch"], one["commit_id"]), one)
    return list(found.values())
