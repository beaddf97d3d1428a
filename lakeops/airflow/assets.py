"""Branches as Airflow assets, ``lakefs://REPO/BRANCH``: DAGs are scheduled by them, tasks and watchers update them.

A URI of the scheme names a branch, or a folder or object on one: ``lakefs://REPO/BRANCH/PATH``. Each place has one
spelling. Airflow cuts a URI at ``#`` and ``?``, so these are escaped, and ``%`` with them. A URI that names no branch
is refused when the DAG is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import SplitResult, quote, unquote, urlsplit

from airflow.sdk import Asset, AssetAlias, AssetWatcher

from lakeops.airflow.compat import require
from lakeops.airflow.events import describe
from lakeops.airflow.hook import DEFAULT_CONN_ID
from lakeops.model.errors import InvalidInput
from lakeops.model.names import LakeUri, parse_ref

if TYPE_CHECKING:
    from airflow.sdk import Context

    from lakeops.lake import Repository

COMMITS = Asset("lakeops")
"""The outlet of operators without ``outlets``: all their commits, on any branch of any repository.

It is no alias: its events make Airflow insert the branch's asset while the task ends, and of two tasks that end
together the second to insert is marked failed although it has published. The branch's own asset is no outlet before the
task runs, because Airflow drops the watchers of an asset that another DAG names without them.
"""

MAX_PARTITIONS = 1000
"""An event about more partitions than this carries no partition keys: its consumers have to read everything."""
MAX_KEY = 250
"""Characters that a partition key may have in Airflow's database. One longer key counts as too many partitions."""
UNESCAPED = "/:@!$&'()*+,;=~"
"""Characters that a URI's path holds as they are, beside letters and digits."""


def branch_uri(repo: str, branch: str) -> str:
    """The URI of a branch's asset. Raises ``InvalidInput``."""
    uri = LakeUri.parse(f"lakefs://{repo}/{branch}")
    if uri.ref is None or uri.path is not None or not parse_ref(uri.ref).is_name:
        raise InvalidInput(f"{branch!r} is not the name of a branch", kind="invalid_uri")
    return str(LakeUri(uri.repository, uri.ref)).replace("%", "%25").replace("#", "%23")


def branch_asset(repo: str, branch: str = "main", *, partition_by: str | None = None) -> Asset:
    """A branch as an asset, for ``schedule`` and for ``outlets``.

    With ``partition_by``, the name of a ``name=value`` folder level, events carry the values of changed folders as
    partition keys, for DAGs with a ``PartitionedAssetTimetable``. The operator that commits or merges needs this asset
    among its ``outlets``.
    """
    if partition_by is not None:
        require((3, 3), "partition_by")
    uri = branch_uri(repo, branch)
    return Asset(name=uri, uri=uri, extra={} if partition_by is None else {"partition_by": partition_by})


def watched_branch(
    repo: str,
    branch: str = "main",
    *,
    lakeops_conn_id: str = DEFAULT_CONN_ID,
    poll_interval: float = 10,
    every: bool = False,
) -> Asset:
    """A branch as an asset with a watcher: DAGs scheduled by it run on commits made outside Airflow as well.

    The triggerer reads the branch's head every ``poll_interval`` seconds. A branch that does not exist yet is waited
    for. With ``every``, commits by Airflow's operators make events as well: for branches that another Airflow commits
    to. Operators of this Airflow announce their own.
    """
    from lakeops.airflow.triggers import LakeopsCommitTrigger

    asset = branch_asset(repo, branch)
    trigger = LakeopsCommitTrigger(
        repo=repo,
        branch=branch,
        asset=asset.name,
        every=every,
        lakeops_conn_id=lakeops_conn_id,
        poll_interval=poll_interval,
    )
    asset.watchers.append(AssetWatcher(name=f"{asset.name} head", trigger=trigger))
    return asset


def mirrors_due(lakeops_conn_id: str = DEFAULT_CONN_ID) -> Asset:
    """An asset with a watcher: DAGs scheduled by it run when a mirror of the connection's lake has something to do."""
    from lakeops.airflow.triggers import LakeopsMirrorTrigger

    trigger = LakeopsMirrorTrigger(lakeops_conn_id=lakeops_conn_id)
    name = f"mirrors of {lakeops_conn_id}"
    return Asset(name=name, watchers=[AssetWatcher(name=name, trigger=trigger)])


# --- events ---


def announce(
    context: Context,
    repository: Repository,
    branch: str,
    commit: Mapping[str, Any],
    *,
    since: str | None = None,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Add an event about a commit that a task has published to the task's outlets.

    An outlet that is the branch's asset gets the event, with partition keys if it has ``partition_by``. Every alias
    among the outlets gets it for the branch's asset, and so does ``COMMITS``. Airflow sends the events once the task
    has succeeded. ``commit`` and ``since`` are those of ``describe``, and ``more`` is added to its event.
    """
    asset = branch_asset(repository.id, branch)
    known: dict[str | None, dict[str, Any]] = {}

    def event_by(level: str | None = None) -> dict[str, Any]:
        """The event, by the folder level that gives it partitions. Each is described once."""
        if level not in known:
            found = describe(repository, branch, commit, since=since, partition_by=level)
            known[level] = {**found, **(more or {})}
        return dict(known[level])

    told = context["outlet_events"]
    for outlet in context["task"].outlets:
        if isinstance(outlet, AssetAlias):
            told[outlet].add(asset, extra=event_by())
        elif outlet == COMMITS:
            event = cast("dict[str, Any]", told[outlet].extra)
            # An asset has one event a task. A task that publishes on several branches tells of all in it.
            told[outlet].extra = {**event, "others": [*event.get("others", []), event_by()]} if event else event_by()
        elif isinstance(outlet, Asset) and outlet.uri.rstrip("/") == asset.uri:
            by = outlet.extra.get("partition_by")
            extra = event_by(None if by is None else str(by))
            partitions = extra.pop("partitions", [])
            told[outlet].extra = extra
            if 0 < len(partitions) <= MAX_PARTITIONS and all(key.strip() and len(key) <= MAX_KEY for key in partitions):
                told[outlet].add_partitions(partitions)


# --- functions that Airflow calls for the scheme, as the provider's description names them ---


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """The URI in its one spelling. Raises ``ValueError`` when it names neither a branch nor a path on one."""
    if uri.query:
        raise ValueError(f"asset URI of lakefs://{uri.netloc}: write '?' as %3F")
    try:
        place = LakeUri.parse(f"lakefs://{uri.netloc}{unquote(uri.path).rstrip('/')}")
    except InvalidInput as error:
        raise ValueError(error.message) from None
    if place.ref is None or not parse_ref(place.ref).is_name:
        raise ValueError(f"asset URI {place}: name a branch, lakefs://REPO/BRANCH")
    path = "/".join(part for part in (place.ref, place.path) if part is not None)
    return uri._replace(path="/" + quote(path, safe=UNESCAPED))


def create_asset(*, repo: str, branch: str = "main", path: str = "", extra: dict[str, Any] | None = None) -> Asset:
    """An asset of the scheme, for Airflow's hook lineage."""
    where = quote("/".join(part for part in (branch, path) if part), safe=UNESCAPED)
    return Asset(uri=f"lakefs://{repo}/{where}", extra=extra or {})


def to_openlineage(asset: Asset, lineage_context: object) -> Any:  # noqa: ARG001 - OpenLineage may be missing
    """The asset as OpenLineage's data set. None without OpenLineage's provider."""
    from airflow.providers.common.compat.openlineage.facet import Dataset

    uri = urlsplit(asset.uri)
    return Dataset(namespace=f"lakefs://{uri.netloc}", name=unquote(uri.path).strip("/"))
