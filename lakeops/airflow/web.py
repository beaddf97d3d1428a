"""The routes to the pages in Airflow's web server, closed to everybody who may not read the connection.

A page does with a connection what the connection's reader could do, so every route asks for the right to read that
connection. Every route is a GET, writes nothing and makes no catalog. The headers of every answer, errors included,
forbid the browser to run anything.

Airflow's web server imports this module when the first page is asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from threading import BoundedSemaphore
from typing import Annotated

from airflow.api_fastapi.core_api.security import requires_access_connection
from airflow.sdk.exceptions import AirflowNotFoundException
from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.responses import HTMLResponse

from lakeops.airflow.hook import LakeopsHook
from lakeops.airflow.pages import Pages, render
from lakeops.lake import Lake
from lakeops.model.errors import CommitExpired, InvalidInput, InvalidSettings, LakeopsError, NotFound, Transient
from lakeops.settings import CATALOG_FILE

_log = logging.getLogger(__name__)

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

AT_ONCE = 4
"""Pages that are made at once; each may hold a branch's uncommitted changes in memory."""

WAIT_SECONDS = 10.0
_places = BoundedSemaphore(AT_ONCE)

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

    @app.middleware("http")
    async def guard(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        """Every answer has the headers, also a refusal and an error that nobody expected."""
        try:
            answer = await go_on(request)
        except Exception as error:  # noqa: BLE001 - what went wrong inside is no business of the browser's
            _log.exception("A page failed")
            answer = _failure(500, "internal", f"unexpected {type(error).__name__}; Airflow's log says more")
        answer.headers.update(HEADERS)
        return answer

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
    if not _places.acquire(timeout=WAIT_SECONDS):
        return _failure(503, "transient", f"{AT_ONCE} pages are being made already; try again")
    try:
        _require_catalog(hook)
        with Lake.open(settings=hook.settings(), must_exist=True) as lake:
            root = f"{request.scope.get('root_path', '')}/{connection_id}"
            return HTMLResponse(show(Pages(root, lake.repository(repository))), headers=HEADERS)
    except LakeopsError as error:
        status = next((status for kind, status in STATUS if isinstance(error, kind)), 500)
        return _failure(status, error.kind, error.message)
    except AirflowNotFoundException as error:
        return _failure(404, "not_found", str(error))
    finally:
        _places.release()


def _failure(status: int, kind: str, message: str) -> HTMLResponse:
    return HTMLResponse(render("failure.html", kind=kind, message=message), status, headers=HEADERS)


def _require_catalog(hook: LakeopsHook) -> None:
    """Refuse a home directory without a catalog: opening the lake would make one."""
    settings = hook.settings()
    if settings.database_url is None and not (settings.home / CATALOG_FILE).exists():
        raise NotFound(f"connection {hook.lakeops_conn_id!r}: there is no lake in {settings.home}")
