"""The application that answers requests with pages. An error is a page too, and says what to do."""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from lakeops.model import errors
from lakeops.web.page import HEADERS, Problem, Site, address, render
from lakeops.web.pages import ROUTES, Pages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakeops.lake import Lake

_log = logging.getLogger(__name__)

AT_ONCE = 4
"""Pages that are made at once, which bounds their memory."""

IMPATIENT: dict[str, Any] = {"max_attempts": 2, "connect_timeout": 3, "read_timeout": 8}
"""Attempts and seconds of requests to stores while a person waits."""

WAIT_SECONDS = 10.0
_places = BoundedSemaphore(AT_ONCE)


def answer(
    request: Request,
    site: Site,
    view: Callable[[Pages], str | Response],
    open_lake: Callable[[], AbstractContextManager[Lake]],
) -> Response:
    """Answer a request with its page, or with a page about the error."""
    if not _places.acquire(timeout=WAIT_SECONDS):
        return failure(site, 503, f"{AT_ONCE} pages are being made already", "Try again in a while.")
    opened = False
    try:
        with open_lake() as lake:
            opened = True
            lake.store_settings = replace(lake.store_settings, **IMPATIENT)
            path = {name: str(value) for name, value in request.path_params.items()}
            pages = Pages(site, lake, path, request.query_params)
            try:
                made = view(pages)
            except (errors.RefNotFound, errors.InvalidInput):
                deleted = pages.deleted()
                if deleted is None:
                    raise
                made = deleted
    except Exception as fault:
        error = errors.out_of_resources(fault) or fault
        if not isinstance(error, errors.LakeopsError):
            raise
        problem, link = Problem.of(error), _way_back(request, site, error, opened=opened)
        return failure(site, problem.status, error.message, problem.advice, link)
    finally:
        _places.release()
    return made if isinstance(made, Response) else page(made)


def _way_back(request: Request, site: Site, error: errors.LakeopsError, *, opened: bool) -> tuple[str, str] | None:
    if not opened or isinstance(error, errors.CatalogError):
        return None if site.home is None else ("To all lakes", site.home)
    name = str(request.path_params.get("repository", ""))
    if not name or isinstance(error, errors.RepositoryNotFound) or request.scope["path"].endswith(f"/{name}"):
        return None
    return f"To the branches of {name}", address(site.root, name)


def page(text: str, status: int = 200) -> HTMLResponse:
    """A document with the headers of every response."""
    return HTMLResponse(text, status, headers=HEADERS)


def failure(
    site: Site | None, status: int, message: str, advice: str = "", link: tuple[str, str] | None = None
) -> Response:
    """A page that says what is wrong and what to do. ``link`` is a text and an address."""
    titles = {401: "Log in first", 403: "Not allowed", 404: "Not found", 410: "Expired", 400: "That makes no sense"}
    title = titles.get(status, "This page cannot be shown")
    shown = {"title": title, "crumbs": [(title, None)], "message": message, "advice": advice, "link": link}
    return page(render("failure.html", site=site, **shown), status)


async def guarded(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
    """Middleware that adds the headers, and answers unexpected errors with a page."""
    try:
        found = await go_on(request)
    except Exception as error:  # noqa: BLE001 - the log has the details, the browser must not
        _log.exception("A page failed")
        what = f"unexpected {type(error).__name__}"
        found = failure(None, 500, what, "The server's log says more.", first_page(request))
    found.headers.update(HEADERS)
    return found


def refused(request: Request, error: Exception) -> Response:
    """A page for errors of the web framework: an unknown address, another method than GET."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    advice = {404: "There is no page at this address.", 405: "Pages are only read."}
    detail: Any = getattr(error, "detail", "")
    return failure(None, status, str(detail) or "refused", advice.get(status, ""), first_page(request))


def first_page(request: Request) -> tuple[str, str] | None:
    """The text and address of the first page; None on the first page itself."""
    home = f"{request.scope.get('root_path', '')}/"
    return None if request.url.path in {home, home[:-1]} else ("To the first page", home)


HOSTS = ["127.0.0.1", "localhost", "::1", "[::1]"]


def application(lake: Lake) -> Starlette:
    """The pages of an open lake as an ASGI application for loopback."""
    site = Site("", str(lake.catalog.database.shown))

    @contextmanager
    def opened() -> Iterator[Lake]:
        yield lake

    given: dict[str, Any] = {"site": site, "open_lake": opened}
    return Starlette(
        routes=[Route(path, partial(answer, view=view, **given), methods=["GET"]) for path, view in ROUTES],
        middleware=[
            Middleware(BaseHTTPMiddleware, dispatch=guarded),
            Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS, www_redirect=False),
        ],
        exception_handlers={HTTPException: refused},
    )


def listening(port: int) -> tuple[socket.socket, str]:
    """A socket on 127.0.0.1, and its address for a browser. Raises ``PreconditionFailed`` when the port is taken."""
    try:
        found = socket.create_server(("127.0.0.1", port))  # it listens, so whoever reads the address can ask at once
    except OSError as error:
        raise errors.PreconditionFailed(
            f"port {port} of 127.0.0.1 cannot be taken ({error.strerror}); name another one with --port"
        ) from None
    return found, f"http://127.0.0.1:{found.getsockname()[1]}/"
