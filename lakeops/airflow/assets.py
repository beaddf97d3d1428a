"""Branches as Airflow assets, ``lakefs://REPO/BRANCH``: to schedule DAGs by, to be told of, to watch."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Asset, AssetAlias, AssetWatcher

from lakeops.airflow.hook import DEFAULT_CONN_ID
from lakeops.model.errors import InvalidUri
from lakeops.model.refs import parse_ref
from lakeops.model.uris import LakeUri

COMMITS = AssetAlias("lakeops")
"""The outlet of operators that declare none: which branch they publish to is known only when they run."""


def branch_uri(repo: str, branch: str) -> str:
    """The URI that names a branch's asset; what Airflow would cut off is escaped. Raises ``InvalidUri``."""
    uri = LakeUri.parse(f"lakefs://{repo}/{branch}")
    if uri.ref is None or uri.path is not None or not parse_ref(uri.ref).is_name:
        raise InvalidUri(f"{branch!r} is not the name of a branch")
    return str(LakeUri(uri.repository, uri.ref)).replace("%", "%25").replace("#", "%23")


def branch_asset(repo: str, branch: str = "main", *, partition_by: str | None = None) -> Asset:
    """A branch as an asset, for ``schedule`` and for ``outlets``.

    Args:
        repo: the repository.
        branch: the branch.
        partition_by: the name of a ``name=value`` folder level. Events then carry the values below which a commit
            changed something as partition keys, for DAGs with a ``PartitionedAssetTimetable``. The operator that
            commits or merges needs this asset among its ``outlets``.
    """
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

    Args:
        repo: the repository.
        branch: the branch. One that does not exist yet is waited for.
        lakeops_conn_id: the connection that the triggerer uses.
        poll_interval: seconds between two looks.
        every: let the watcher tell of commits by Airflow's operators as well: for branches that another Airflow
            commits to. Operators of this Airflow tell of theirs already.
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


def is_branch(asset: Any, uri: str) -> bool:  # noqa: ANN401 - anything that may be among the outlets
    """Whether an outlet is the asset of a branch."""
    return isinstance(asset, Asset) and asset.uri.rstrip("/") == uri
