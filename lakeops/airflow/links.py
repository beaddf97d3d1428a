"""Links from a task in Airflow's web view to the pages of what it did.

The pages are the plugin's. Where it is not installed there is nothing to link to, and the links stay empty.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from airflow.sdk import BaseOperatorLink, conf

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

PLUGIN = "lakeops.airflow.plugin"


def address(connection: str, repository: str, *parts: str, **query: str) -> str:
    """The path of a page on Airflow's web server; empty where the plugin is not loaded.

    Without a host, so that the browser stays with the one that it is logged in to.
    """
    if PLUGIN not in sys.modules:
        return ""
    base = urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")
    path = "/".join(quote(part, safe="") for part in (connection, repository, *parts))
    return f"{base}/lakeops/{path}" + (f"?{urlencode(query)}" if query else "")


class LakeopsCommitLink(BaseOperatorLink):
    """To the commit that a task has published."""

    name = "Commit"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:  # noqa: ANN401, ARG002 - Airflow's signature
        """The page's path, or nothing."""
        return _link(operator, "commit")


class LakeopsBranchLink(BaseOperatorLink):
    """To the branch that a task has worked on."""

    name = "Branch"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:  # noqa: ANN401, ARG002
        """The page's path, or nothing."""
        return _link(operator, "branch")


class LakeopsDiffLink(BaseOperatorLink):
    """To the difference that a task has looked at, or would have merged."""

    name = "Diff"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:  # noqa: ANN401, ARG002
        """The page's path, or nothing."""
        return _link(operator, "diff")


def _link(operator: BaseOperator, kind: str) -> str:
    links: dict[str, str] = getattr(operator, "links", {})
    return links.get(kind, "")
