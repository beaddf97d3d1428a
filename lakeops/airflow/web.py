"""The routes to the pages in Airflow's web server, closed to everybody who may not read the connection.

A page does with a connection what the connection's reader could do, so every route asks for the right to read that
connection. Every route is a GET and writes nothing. The headers of an answer forbid the browser to run anything.

Airflow's web server imports this module when the first page is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from airflow.api_fastapi.core_api.security import requires_access_connection
from airflow.sdk.exceptions import AirflowNotFoundException
from fastapi import Depends, FastAPI, Query, Request
from fastapi.responses import HTMLResponse

from lakeops.airflow.hook import LakeopsHook
from lakeops.airflow.pages import Pages, render
from lakeops.model.errors import CommitExpired, InvalidInput, InvalidSettings, LakeopsError, NotFound, Transient
from lakeops.settings import CATALOG_FILE

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
STATUS: tuple[tuple[type[LakeopsError], int], ...] = (
    (NotFound, 404),
    (CommitExpired, 410),
    (InvalidSettings, 500),
    (InvalidInput, 400),
    (Transient, 503),
)

Text = Annotated[str, Query(max_length=2048)]


def build() -> FastAPI:
    """The application."""
    # A plugin's routes are open to everybody unless they close themselves. The check belongs to the application, so
    # that no route can be added without it.
    app = FastAPI(
        title="lakeops",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(requires_access_connection("GET"))],
    )

    @app.get("/{connection_id}/{repository}", response_class=HTMLResponse)
    def overview(request: Request, connection_id: str, repository: str) -> HTMLResponse:
        return _answer(request, connection_id, repository, Pages.overview)

    @app.get("/{connection_id}/{repository}/ref/{ref:path}", response_class=HTMLResponse)
    def ref_page(request: Request, connection_id: str, repository: str, ref: str) -> HTMLResponse:
        return _answer(request, connection_id, repository, lambda pages: pages.ref(ref))

    @app.get("/{connection_id}/{repository}/commit/{commit_id}", response_class=HTMLResponse)
    def commit_page(request: Request, connection_id: str, repository: str, commit_id: str) -> HTMLResponse:
        return _answer(request, connection_id, repository, lambda pages: pages.commit(commit_id))

    @app.get("/{connection_id}/{repository}/diff", response_class=HTMLResponse)
    def diff_page(
        request: Request, connection_id: str, repository: str, left: Text, right: Text, two_way: bool = False
    ) -> HTMLResponse:
        return _answer(request, connection_id, repository, lambda pages: pages.diff(left, right, two_way=two_way))

    return app


def _answer(request: Request, connection_id: str, repository: str, show: Callable[[Pages], str]) -> HTMLResponse:
    hook = LakeopsHook(connection_id)
    try:
        _require_catalog(hook)
        with hook.get_conn() as lake:
            root = f"{request.scope.get('root_path', '')}/{connection_id}"
            return HTMLResponse(show(Pages(root, lake.repository(repository))), headers=HEADERS)
    except LakeopsError as error:
        status = next((status for kind, status in STATUS if isinstance(error, kind)), 500)
        return _failure(status, error.kind, error.message)
    except AirflowNotFoundException as error:
        return _failure(404, "not_found", str(error))


def _failure(status: int, kind: str, message: str) -> HTMLResponse:
    return HTMLResponse(render("failure.html", kind=kind, message=message), status, headers=HEADERS)


def _require_catalog(hook: LakeopsHook) -> None:
    """Refuse a home directory without a catalog: opening the lake would make one."""
    settings = hook.settings()
    if settings.database_url is None and not (settings.home / CATALOG_FILE).exists():
        raise NotFound(f"connection {hook.lakeops_conn_id!r}: there is no lake in {settings.home}")
