"""The Airflow plugin: the pages of ``lakeops.web`` in Airflow's web server.

Every Airflow process loads plugins, so this module imports no web framework. The web server builds the pages when the
first one is asked for. The package's entry point registers the plugin. The file in ``plugins/`` registers it only where
there is no entry point, because two registrations of one name make Airflow drop other plugins.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from functools import cache
from typing import Any

from airflow.listeners import hookimpl
from airflow.providers.common.compat.sdk import AirflowPlugin

from lakeops.airflow.compat import web_server

PREFIX = "/lakeops"
_HOME = f"{web_server().path}{PREFIX}/"
_RUN = f"{_HOME}_run?dag={{DAG_ID}}&run={{RUN_ID}}"

Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]


@cache
def _pages() -> App:
    from lakeops.airflow.pages import build

    return build()


async def pages(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """The pages as an ASGI application, built at the first request."""
    await _pages()(scope, receive, send)


class Preload:
    """A listener that imports lakeops in the scheduler, so that processes that it forks for tasks find it imported."""

    @hookimpl
    def on_starting(self, component: object) -> None:
        """Import the modules of the common operators, unless a task starts, which imports its own."""
        if type(component).__name__ != "TaskRunnerMarker":
            import lakeops.airflow.publish
            import lakeops.lake
            import lakeops.ops.commit
            import lakeops.ops.merge  # noqa: F401


class LakeopsPlugin(AirflowPlugin):
    """Pages at ``/lakeops``, the entry *Lakeops* in Airflow's navigation, and tabs on its pages of runs and tasks."""

    name = "lakeops"
    listeners: list[Any] = [Preload()]  # noqa: RUF012 - as Airflow declares it
    fastapi_apps: list[Any] = [{"app": pages, "url_prefix": PREFIX, "name": "lakeops"}]  # noqa: RUF012
    # With a route of its own, Airflow shows the pages inside its frame.
    external_views: list[Any] = [  # noqa: RUF012
        {"name": "Lakeops", "destination": place, "url_route": route, "href": page, **more}
        for place, route, page, more in (
            ("nav", "lakeops", _HOME, {"category": "browse"}),
            ("dag_run", "lakeops-run", _RUN, {}),
            ("task_instance", "lakeops-task", f"{_RUN}&task={{TASK_ID}}&index={{MAP_INDEX}}", {}),
        )
    ]
