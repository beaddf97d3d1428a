"""Telling Airflow what was published: asset events that say which commit, since when, and what changed.

An operator that has published calls ``announce``; a watcher makes the same record of commits that were made elsewhere.
Delivery is at least once: a task that is killed between publishing and ending tells again when it runs again. So a
consumer keys its work on ``commit_id``; ``published`` gives it each commit once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from lakeops.model.errors import CommitExpired, NotReplicated

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lakeops.lake import Repository

MAX_PARTITIONS = 1000
"""A commit that touches more partitions than this tells of none: its consumers have to look at all."""

MAX_KEY = 250
"""Characters of a partition key in Airflow's database. A longer one counts as too many."""


def describe(
    repository: Repository, branch: str, commit_id: str, *, since: str | None = None, partition_by: str | None = None
) -> dict[str, Any]:
    """What happened to a branch, as an event's extra: plain data.

    Keys: ``repository``, ``branch``, ``commit_id``, ``parents``, ``message``, ``since`` (the head before; the commit's
    first parent when nobody says), ``summary`` (``added``, ``removed``, ``changed``), ``prefixes`` (top-level folders
    and objects that changed, at most 100), ``more_prefixes``, and ``partitions`` when asked for. What changed is null
    when retention took the commits meanwhile, or a mirror does not have the older one.
    """
    commit = repository.ref(commit_id).commit
    before = since or (commit.parents[0] if commit.parents else None)
    event: dict[str, Any] = {
        "repository": repository.id,
        "branch": branch,
        "commit_id": commit.id,
        "parents": list(commit.parents),
        "message": commit.message,
        "since": before,
        "summary": None,
        "prefixes": None,
        "more_prefixes": False,
    }
    try:
        changed = None if before is None else repository.changed(before, commit.id, partition_by=partition_by)
    except (CommitExpired, NotReplicated):
        changed = None
    if changed is not None:
        event |= {
            "summary": changed.summary.to_json(),
            "prefixes": list(changed.prefixes),
            "more_prefixes": changed.more_prefixes,
        }
        if partition_by is not None:
            event["partitions"] = list(changed.partitions)
    return event


def announce(
    context: Context,
    repository: Repository,
    branch: str,
    commit_id: str,
    *,
    since: str | None = None,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Tell Airflow that a task has published a commit on a branch.

    The event goes to every outlet of the task that is the branch's asset, with partition keys where the asset has
    ``partition_by``; and to the branch's asset through every alias among the outlets. Nothing is sent before the task
    has succeeded, and nothing at all when it has no such outlet. ``since`` is the head before, ``more`` what the event
    says beside ``describe``.
    """
    from airflow.sdk import AssetAlias

    from lakeops.airflow.assets import branch_asset, is_branch

    asset = branch_asset(repository.id, branch)
    plain: dict[str, Any] | None = None
    for outlet in context["task"].outlets:
        if isinstance(outlet, AssetAlias):
            plain = plain or {**describe(repository, branch, commit_id, since=since), **(more or {})}
            context["outlet_events"][outlet].add(asset, extra=plain)
        elif is_branch(outlet, asset.uri):
            by = outlet.extra.get("partition_by")
            event = {**describe(repository, branch, commit_id, since=since, partition_by=by), **(more or {})}
            partitions = event.pop("partitions", [])
            context["outlet_events"][outlet].extra = event
            if 0 < len(partitions) <= MAX_PARTITIONS and all(key.strip() and len(key) <= MAX_KEY for key in partitions):
                context["outlet_events"][outlet].add_partitions(partitions)


def published(triggering: Mapping[Any, Iterable[Any]]) -> list[dict[str, Any]]:
    """Each commit that started a DAG run once, oldest event first: what ``describe`` said of it.

    Args:
        triggering: the run's ``triggering_asset_events``. Events that are not of branches are left out.
    """
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    events = [event for group in triggering.values() for event in group]
    for event in sorted(events, key=lambda event: event.timestamp):
        extra = event.extra or {}
        record = extra.get("payload") if extra.get("from_trigger") else extra
        if isinstance(record, Mapping) and "commit_id" in record:
            found.setdefault((record["repository"], record["branch"], record["commit_id"]), dict(record))
    return list(found.values())
