"""Links from a task in Airflow's web view to the pages of what it did.

The plugin serves the pages. Where it is not installed, the links stay empty.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from airflow.sdk import BaseOperatorLink, get_current_context

from lakeops.airflow.compat import conf

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

PLUGIN = "lakeops.airflow.plugin"

log: logging.Logger = logging.getLogger(__name__)


def address(connection: str, repository: str, *parts: str, **query: str) -> str:
    """The path of a page on Airflow's web server; empty where the plugin is not loaded.

    The path has no host, so the browser stays with the one that it is logged in to.
    """
    if PLUGIN not in sys.modules:
        return ""
    base = urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")
    path = "/".join(quote(part, safe="") for part in (connection, repository, *parts))
    return f"{base}/lakeops/{path}" + (f"?{urlencode(query)}" if query else "")


def host() -> str:
    """What stands before a page's path in a log, where no browser adds it; empty where Airflow does not know."""
    base = urlsplit(conf.get("api", "base_url", fallback="") or "")
    return f"{base.scheme}://{base.netloc}" if base.netloc else ""


def point_to(kind: str, page: str) -> None:
    """Write a page's address to the running task's log, and make it the task's link of that kind (``branch``, say)."""
    if not page:
        return
    log.info("See the %s: %s%s", kind, host(), page)
    with suppress(RuntimeError):  # no task is running
        operator: Any = get_current_context()["task"]
        operator.links = {**getattr(operator, "links", {}), kind: page}


def running_links() -> str:
    """Where to look at what the running task is about: a sentence for the end of a message, or nothing."""
    try:
        links: dict[str, str] = getattr(get_current_context()["task"], "links", {})
    except RuntimeError:  # no task is running
        return ""
    pages = [f"the {kind}: {host()}{page}" for kind, page in links.items() if page]
    return f". See {' and '.join(pages)}" if pages else ""


def linked(decorated: Any, *links: BaseOperatorLink) -> Any:  # noqa: ANN401 - what a TaskFlow decorator gives
    """The same TaskFlow task with links. They belong to a class of its own, where Airflow looks for a mapped task's."""
    base = decorated.operator_class
    members = {"operator_extra_links": links, "__module__": base.__module__, "__doc__": base.__doc__}
    decorated.operator_class = type(base.__name__, (base,), members)
    return decorated


class _PageLink(BaseOperatorLink):
    """A link to the page that the operator has noted under the link's name, or no link."""

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:  # noqa: ANN401, ARG002 - Airflow's signature
        """The page's path, or nothing."""
        links: dict[str, str] = getattr(operator, "links", {})
        return links.get(self.name.lower(), "")


class LakeopsCommitLink(_PageLink):
    """A link to the commit that a task has published."""

    name = "Commit"


class LakeopsBranchLink(_PageLink):
    """A link to the branch that a task has worked on."""

    name = "Branch"


class LakeopsDiffLink(_PageLink):
    """A link to the difference that a task has listed, or would have merged."""

    name = "Diff"


class LakeopsPageLink(_PageLink):
    """A link to the page that shows best what a task was about."""

    name = "Page"
