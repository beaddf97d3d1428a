"""The pages in Airflow's web server. Every route asks the auth manager (``rights``) by connection and repository.

Every route is a GET, writes nothing and makes no catalog. The pages are those of ``lakeops.web``.

Airflow's web server imports this module when the first page is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.dag import DagModel
from fastapi import Depends, FastAPI, Request, Response
from starlette.exceptions import HTTPException

from lakeops.airflow.actions import form
from lakeops.airflow.compat import conf
from lakeops.airflow.lakes import open_lake, seen_by
from lakeops.airflow.rights import Rights
from lakeops.airflow.run_page import ROWS, did
from lakeops.model.errors import LakeopsError, NotFound
from lakeops.web.app import answer, failure, first_page, guarded, page, refused
from lakeops.web.finding import LOOKED_AT
from lakeops.web.page import Moved, Site
from lakeops.web.pages import ROUTES, Pages
from lakeops.web.render import address, render

LIST = "/{connection_id}"
RUN = "/_run"
"""What a run did. No connection's name begins with an underscore in practice, so it hides none."""
NO_LAKE = "There is no lake in which you may see anything."
ASK = "Ask an administrator for the right to read this connection, or the view Lakeops:CONNECTION/REPOSITORY."


def build() -> FastAPI:
    """The application."""
    # A plugin's routes are open to everybody unless they close themselves. The check belongs to the application, so
    # that no route can be added without it.
    app = FastAPI(
        title="lakeops",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(require_right)],
    )
    app.middleware("http")(guarded)
    app.add_exception_handler(HTTPException, _refused_page)
    app.add_api_route("/", _lakes, methods=["GET"])
    app.add_api_route(RUN, _run, methods=["GET"])
    app.add_api_route("/{connection_id}/{repository}/act/{kind}", _open_form, methods=["GET"])
    for path, view in ROUTES:
        app.add_api_route(f"/{{connection_id}}{path.rstrip('/')}", _endpoint(view), methods=["GET"])
    return app


def require_right(request: Request, user: GetUserDep) -> None:
    """Refuse whoever may see neither the lake nor the repository that an address names.

    The list of a lake's repositories is for whoever may see one of them, and shows only those. Addresses without a
    connection are for whoever is logged in. Their pages ask for each thing that they show.

    Raises:
        HTTPException: 401 (by Airflow) for nobody, 403 for a user without the right.
    """
    path = {name: str(value) for name, value in request.path_params.items()}
    connection, repository = path.get("connection_id"), path.get("repository")
    if not (connection or "").isprintable():
        raise HTTPException(404, "There is no such connection")  # Airflow's database may refuse to look for it
    rights = Rights(user)
    if connection is None or rights.lake(connection):
        return
    sees = partial(rights.repository_alone, connection)
    request.state.sees = sees
    if repository is not None:
        allowed = sees(repository)
    else:
        allowed = request.scope["route"].path == LIST and rights.some and _sees_any(connection, sees)
    if not allowed:
        raise HTTPException(403, "Forbidden")


def _sees_any(connection: str, sees: Callable[[str], bool]) -> bool:
    """Whether there is a lake, with a repository that somebody may see. A lake that fails is none."""
    try:
        with open_lake(connection) as lake:
            return any(sees(repository.id) for repository in islice(lake.repositories(), LOOKED_AT))
    except LakeopsError:
        return False


def _endpoint(view: Callable[[Pages], str | Moved]) -> Callable[[Request], Response]:
    def endpoint(request: Request) -> Response:
        site = _site(request)
        return answer(request, site, view, lambda: open_lake(site.lake_name))

    return endpoint


def _site(request: Request) -> Site:
    connection = str(request.path_params["connection_id"])
    home = str(request.scope.get("root_path", ""))
    sees = getattr(request.state, "sees", None)
    return Site(address(home, connection), connection, f"{home}/", airflow_root(), acts=True, sees=sees)


def airflow_root() -> str:
    """What the addresses of Airflow's own pages begin with."""
    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")


# --- the first page ---


def _lakes(request: Request, user: GetUserDep) -> Response:
    """The connections of type lakeops whose lake the user may see, or a repository of it."""
    home = str(request.scope.get("root_path", ""))
    rows, note = seen_by(Rights(user))
    if not rows:
        advice = f"{ASK} Pages of a single repository are at {home}/CONNECTION/REPOSITORY."
        return failure(None, 403, NO_LAKE, f"{note} {advice}".lstrip())
    lakes = [(row.connection, address(home, row.connection), row.text) for row in rows]
    site = Site(f"{home}/", "Lakes")
    return page(render("lakes.html", site=site, title="Lakes", lakes=lakes, note=note))


# --- what a run did, and what can be done ---


def _run(request: Request, user: GetUserDep) -> Response:
    """What a DAG run, or one task of it, did."""
    home = str(request.scope.get("root_path", ""))
    site = Site(f"{home}/", "Lakes", airflow=airflow_root())
    dag_id, run_id, task_id, index = (request.query_params.get(name, "") for name in ("dag", "run", "task", "index"))
    if not (dag_id + run_id + task_id).isprintable():
        return failure(
            site, 400, "This is no name of a DAG, a run or a task.", "Open the tab on Airflow's page of a run."
        )
    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    if not get_auth_manager().is_authorized_dag(
        method="GET", access_entity=DagAccessEntity.XCOM, details=details, user=user
    ):
        return failure(site, 403, f"You may not see what runs of {dag_id!r} did.")
    rows = did(
        dag_id,
        run_id,
        task_id,
        int(index) if index.isdecimal() and len(index) < 10 else None,
        prefix=f"{home}/",
        opened=open_lake,
        may_read=Rights(user).repository,
    )
    return page(
        render(
            "run.html",
            site=site,
            title="What was done",
            crumbs=[("What was done", None)],
            rows=rows[:ROWS],
            task=task_id,
        )
    )


def _open_form(request: Request, user: GetUserDep) -> Response:
    """A form, filled in with what the page that led here is about."""
    path = request.path_params
    connection, repository, kind = (str(path[name]) for name in ("connection_id", "repository", "kind"))
    site = _site(request)
    try:
        found = form(kind, connection, {"repository": repository, **request.query_params}, user)
    except NotFound as error:
        advice = "Ask whoever looks after Airflow, or use the command line: every form has a command."
        return failure(site, 404, error.message, advice)
    crumbs = [(repository, address(site.root, repository)), (found.text, None)]
    merged = {"left": request.query_params.get("destination"), "right": request.query_params.get("source")}
    compare = address(site.root, repository, "diff", **merged) if kind == "merge" and merged["right"] else None
    values = {"crumbs": crumbs, "form": found, "airflow": site.airflow, "compare": compare}
    return page(render("act.html", site=site, title=found.text, **values))


def _refused_page(request: Request, error: Exception) -> Response:
    """What Airflow's auth manager refuses, as a page with the way in."""
    status: Any = getattr(error, "status_code", 500)
    if status == 403:
        return failure(None, 403, "Your account may not see this.", ASK, first_page(request))
    if status != 401:
        return refused(request, error)
    login = ("Log in", address(airflow_root(), "auth", "login", next=str(request.url.path)))
    return failure(None, 401, "You are not logged in, or no longer.", "Log in to Airflow, and come back.", login)
