"""``lakeops ui``: the pages of one lake on this machine alone.

Nobody logs in, so it listens on loopback, and answers only requests that name a loopback host: another site in the
same browser cannot read the pages by giving this address a name of its own.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lakeops.model.errors import PreconditionFailed
from lakeops.web.app import answer, guarded, refused
from lakeops.web.page import Redirect, Site
from lakeops.web.pages import ROUTES, Pages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakeops.lake import Lake

HOSTS = ["127.0.0.1", "localhost", "::1", "[::1]"]


def application(lake: Lake) -> Starlette:
    """The pages of an open lake as an ASGI application for loopback."""
    site = Site("", str(lake.catalog.database.shown))

    @contextmanager
    def opened() -> Iterator[Lake]:
        yield lake

    routes = [Route(path, _endpoint(site, view, opened), methods=["GET"]) for path, view in ROUTES]
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(BaseHTTPMiddleware, dispatch=guarded),
            Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS, www_redirect=False),
        ],
        exception_handlers={HTTPException: refused},
    )


def _endpoint(
    site: Site, view: Callable[[Pages], str | Redirect], opened: Callable[[], AbstractContextManager[Lake]]
) -> Callable[[Request], Response]:
    def endpoint(request: Request) -> Response:
        return answer(request, site, view, opened)

    return endpoint


def listening(port: int) -> tuple[socket.socket, str]:
    """A socket on 127.0.0.1, and its address for a browser. Raises ``PreconditionFailed`` when the port is taken."""
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind(("127.0.0.1", port))
        found.listen()  # so whoever reads the address can ask at once
    except OSError as error:
        found.close()
        raise PreconditionFailed(
            f"port {port} of 127.0.0.1 cannot be taken ({error.strerror}); name another one with --port"
        ) from None
    return found, f"http://127.0.0.1:{found.getsockname()[1]}/"
