"""The pages in Airflow's web server: who may see what, the lakes of connections, what a run did.

Every route is a GET, writes nothing and makes no catalog. The pages are those of ``lakeops.web``. Airflow's web server
imports this module when the first page is asked for.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from threading import BoundedSemaphore, Lock, Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import ConnectionDetails, DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models import Connection
from airflow.models.dag import DagModel
from airflow.models.xcom import XComModel
from airflow.providers.common.compat.sdk import AirflowNotFoundException, conf
from airflow.utils.session import create_session
from fastapi import Depends, FastAPI, Request, Response
from sqlalchemy import select
from starlette.exceptions import HTTPException

from lakeops.airflow.compat import web_server
from lakeops.airflow.hook import DEFAULT_CONN_ID, LakeopsHook
from lakeops.airflow.previews import form
from lakeops.airflow.task import LakeopsBranchLink, LakeopsCommitLink, LakeopsDiffLink, LakeopsPageLink
from lakeops.lake import Lake
from lakeops.model.clock import stopwatch
from lakeops.model.errors import LakeopsError, NotFound, Transient
from lakeops.settings import CATALOG_FILE, catalog_in
from lakeops.web.app import IMPATIENT, answer, failure, first_page, guarded, page, refused
from lakeops.web.page import Site, address, render
from lakeops.web.pages import LOOKED_AT, ROUTES, Pages, diff_stat

if TYPE_CHECKING:
    from lakeops.model.protection import Verdict
    from lakeops.model.records import Commit
    from lakeops.ops.diff import DiffStat
    from lakeops.settings import Settings


# --- who may see what ---

VIEW = "Lakeops:"
"""The beginning of the names of custom views."""
NOBODYS = f"{VIEW}/"
"""The view of no connection and no repository: nobody can have granted it."""


class Rights:
    """The lakes and repositories that one user may see: questions to Airflow's auth manager.

    A page does with a connection what the connection's reader could do. So whoever may read (``GET``) a connection may
    see all pages of its lake. Less can be granted too, as the right to read a custom view: ``Lakeops:CONNECTION`` for
    the pages of that connection's lake, ``Lakeops:CONNECTION/REPOSITORY`` for the pages of that repository.

    Not every auth manager looks at the name of a custom view. Airflow's simple one lets each viewer see all of them. So
    a yes counts only from a manager that says no to a name that nobody can have granted.
    """

    def __init__(self, user: Any) -> None:
        self._user = user
        self._manager = get_auth_manager()

    def lake(self, connection: str) -> bool:
        # Airflow 3.1 has no teams.
        teams = conf.getboolean("core", "multi_team", fallback=False)
        team = {"team_name": Connection.get_team_name(connection)} if teams else {}
        details = ConnectionDetails(conn_id=connection, **team)
        if self._manager.is_authorized_connection(method="GET", details=details, user=self._user):
            return True
        return self.some and self._view(f"{VIEW}{connection}")

    def repository(self, connection: str, repository: str) -> bool:
        return self.lake(connection) or self.repository_alone(connection, repository)

    def repository_alone(self, connection: str, repository: str) -> bool:
        """Tell whether the right to one repository was granted by its own name."""
        return self.some and self._view(f"{VIEW}{connection}/{repository}")

    @cached_property
    def some(self) -> bool:
        """Tell whether the auth manager tells custom views apart, so that less than a connection can be granted."""
        return not self._view(NOBODYS)

    def _view(self, name: str) -> bool:
        return bool(self._manager.is_authorized_custom_view(method="GET", resource_name=name, user=self._user))


# --- the lakes of connections ---

LISTED = 100
"""Connections that the first page lists."""
AT_ONCE = 8
"""Lakes that are asked for the names of their repositories at once."""
WAIT_SECONDS, ASK_SECONDS = 2.0, 4.0
"""For how long the first page waits for such names, and until when it asks the auth manager about them."""
NOT_ALL = "Not every lake has answered, so there may be more. Look again in a while."
TOO_MANY = f"There are over {LISTED} connections. Open any other one by its name."
IN_PART = "the repositories that you may see"
_ENVIRONMENT = "AIRFLOW_CONN_"
_log = logging.getLogger(__name__)


def open_lake(connection: str) -> Lake:
    """A connection's lake, which exists, for a person who waits. Raises ``NotFound`` where there is none."""
    lake = Lake.open(settings=_settings(connection), must_exist=True)
    lake.store_settings = replace(lake.store_settings, **IMPATIENT)
    return lake


def _settings(connection: str) -> Settings:
    try:
        settings = LakeopsHook(connection).settings().model_copy(update={"outage_minutes": None})
    except AirflowNotFoundException as error:
        raise NotFound(str(error)) from None
    if settings.catalog_url == catalog_in(settings.home) and not (settings.home / CATALOG_FILE).exists():
        raise NotFound(f"connection {connection!r}: there is no lake in {settings.home}")
    return settings


class RepositoryNames:
    """Asks lakes for the names of their repositories by ``read``: rights are asked by name.

    A lake may be slow or down, so each is asked in a thread, whoever looks. An answer that comes too late for one look
    is there for the next one.
    """

    def __init__(self, read: Callable[[str], Sequence[str]]) -> None:
        self._read = read
        self._places = BoundedSemaphore(AT_ONCE)
        self._lock = Lock()
        self._asked: dict[str, Future[Sequence[str] | None]] = {}

    def within(self, seconds: float, connections: Iterable[str]) -> dict[str, Sequence[str] | None]:
        """The names by connection, after so many seconds at most. None for a lake that gave none."""
        with self._lock:
            asked = {connection: self._asked.get(connection) or self._ask(connection) for connection in connections}
        wait(asked.values(), seconds)
        found = {connection: answer.result() if answer.done() else None for connection, answer in asked.items()}
        with self._lock:
            for connection, answer in asked.items():
                if answer.done() and self._asked.get(connection) is answer:
                    del self._asked[connection]
        return found

    def _ask(self, connection: str) -> Future[Sequence[str] | None]:
        answer = self._asked[connection] = Future()
        # A thread that hangs must not keep the web server from ending.
        Thread(target=self._listen, args=(connection, answer), name=f"lake {connection}", daemon=True).start()
        return answer

    def _listen(self, connection: str, answer: Future[Sequence[str] | None]) -> None:
        found: Sequence[str] | None = None
        try:
            with self._places:
                found = self._read(connection)
        except NotFound:
            found = ()
        except Exception as error:  # noqa: BLE001 - one lake, or one secrets backend, must not break the page
            _log.warning("The lake of connection %r did not name its repositories: %s", connection, error)
        finally:
            answer.set_result(found)


def _first_names(connection: str) -> list[str]:
    with open_lake(connection) as lake:
        return [repository.id for repository in islice(lake.repositories(), LOOKED_AT)]


_names = RepositoryNames(_first_names)


def seen_by(rights: Rights) -> tuple[list[tuple[str, str]], str]:
    """The lakes that somebody may see, and a note when not every lake was looked at.

    A lake is its connection, and its place or that it is seen in part.
    """
    found = connections()
    listed, note = found[:LISTED], TOO_MANY if len(found) > LISTED else ""
    whole = {connection for connection in listed if rights.lake(connection)}
    passed = stopwatch()
    others = [connection for connection in listed if connection not in whole] if rights.some else []
    names_by_lake = _names.within(WAIT_SECONDS, others)
    rows = []
    for connection in listed:
        if connection in whole:
            rows.append((connection, _described(connection)))
            continue
        names = names_by_lake.get(connection, ())
        if names is None:
            note = NOT_ALL
        for name in names or ():
            if passed() > ASK_SECONDS:
                note = NOT_ALL
                break
            if rights.repository_alone(connection, name):
                rows.append((connection, IN_PART))
                break
    return rows, note


def connections() -> list[str]:
    """Names of the first connections of type lakeops, and one more. Those of a secrets backend cannot be listed."""
    with create_session() as session:
        query = select(Connection.conn_id).where(Connection.conn_type == LakeopsHook.conn_type)
        query = query.order_by(Connection.conn_id).limit(LISTED + 1)
        found = {str(name) for name in session.scalars(query)}
    for name in {name.removeprefix(_ENVIRONMENT).lower() for name in os.environ if name.startswith(_ENVIRONMENT)}:
        with suppress(Exception):  # whatever is wrong with somebody else's variable
            if LakeopsHook.get_connection(name).conn_type == LakeopsHook.conn_type:
                found.add(name)
    return sorted({*found, DEFAULT_CONN_ID})


def _described(name: str) -> str:
    """The place of a connection's catalog in words, or what is wrong with the connection. No lake is opened."""
    try:
        settings = _settings(name)
    except LakeopsError as error:
        return error.message.removeprefix(f"connection {name!r}: ")
    return "a catalog in a database" if settings.database_url is not None else f"a catalog in {settings.home}"


# --- what a run did ---

ROWS = 200
"""Tasks that are listed."""
COMMITS = 10
"""Commits whose changes are summed up."""
LINKS = {
    link().xcom_key: link.name for link in (LakeopsCommitLink, LakeopsBranchLink, LakeopsDiffLink, LakeopsPageLink)
}


@dataclass(frozen=True)
class TaskReport:
    """A task's pages by the name of the link, and the commit that it published with the sums of its changes."""

    task: str  # with its index, where it is mapped
    pages: dict[str, str]
    commit: Commit | None = None
    sums: DiffStat | None = None
    problem: str | None = None  # why the commit cannot be shown
    verdicts: Sequence[Verdict] = ()


def report_run(
    dag_id: str, run_id: str, task_id: str, index: int | None, *, prefix: str, may_read: Callable[[str, str], bool]
) -> list[TaskReport]:
    """Report the pages and commits of a run's tasks, or of one ``task_id``, in the order in which they were made.

    ``prefix`` begins the addresses of lakeops' pages. Pages of repositories that the user may not read are left out.
    """
    tasks: dict[str, dict[str, str]] = {}
    for name, key, link in _links(dag_id, run_id, task_id, index):
        parts = _parts(link, prefix)
        if len(parts) > 1 and may_read(*parts[:2]):
            tasks.setdefault(name, {})[LINKS[key]] = link
    lakes: dict[str, Lake] = {}
    down: dict[str, Transient] = {}  # none of these is asked again
    rows: list[TaskReport] = []
    with ExitStack() as stack:
        left = COMMITS
        for name, pages in tasks.items():
            published = _parts(pages.get(LakeopsCommitLink.name, ""), prefix)
            if len(published) < 4 or not left:
                rows.append(TaskReport(name, pages))
                continue
            left -= 1
            connection, repository, _, commit_id = published[:4]
            try:
                if connection in down:
                    raise down[connection]
                if connection not in lakes:
                    lakes[connection] = stack.enter_context(open_lake(connection))
                found = lakes[connection].repository(repository)
                commit = found.ref(commit_id).commit
                sums = diff_stat(found, commit.parents[0], commit.id, two_way=True) if commit.parents else None
                rows.append(TaskReport(name, pages, commit, sums, verdicts=found.verdicts_of([commit])[commit.id]))
            except LakeopsError as error:
                if isinstance(error, Transient):
                    down[connection] = error
                rows.append(TaskReport(name, pages, problem=error.message))
    return rows


def _links(dag_id: str, run_id: str, task_id: str, index: int | None) -> Iterable[tuple[str, str, str]]:
    """The task, the key and the address of each link that is not empty."""
    query = select(XComModel.task_id, XComModel.map_index, XComModel.key, XComModel.value).where(
        XComModel.dag_id == dag_id, XComModel.run_id == run_id, XComModel.key.in_(LINKS)
    )
    if task_id:
        query = query.where(XComModel.task_id == task_id)
    if index is not None:
        query = query.where(XComModel.map_index == index)
    query = query.order_by(XComModel.timestamp, XComModel.task_id, XComModel.map_index).limit(ROWS * len(LINKS))
    with create_session() as session:
        found = list(session.execute(query))
    for task, mapped, key, value in found:
        # An XCom holds its text as JSON, or as JSON in a text.
        link = value.strip('"') if isinstance(value, str) else ""
        if link and link.isprintable():
            yield task if mapped < 0 else f"{task} [{mapped}]", key, link


def _parts(link: str, prefix: str) -> list[str]:
    """The parts of a page's path: connection, repository, kind of page and more. None of another address."""
    path = link.removeprefix(prefix).partition("?")[0]
    return [unquote(part) for part in path.split("/")] if link.startswith(prefix) else []


# --- routes ---

LIST = "/{connection_id}"
RUN = "/_run"
"""The tab of a run. No connection's name begins with an underscore in practice, so it hides none."""
NO_LAKE = "There is no lake that you may see."
ASK = "Ask an administrator for the right to read this connection, or the view Lakeops:CONNECTION/REPOSITORY."


def build() -> FastAPI:
    """Build the application of all pages."""
    # A plugin's routes are open to everybody unless they close themselves. The check belongs to the application, so
    # that no route can be added without it.
    check = [Depends(require_right)]
    app = FastAPI(title="lakeops", docs_url=None, redoc_url=None, openapi_url=None, dependencies=check)
    app.middleware("http")(guarded)
    app.add_exception_handler(HTTPException, _refused_page)
    app.add_api_route("/", _lakes, methods=["GET"])
    app.add_api_route(RUN, _run, methods=["GET"])
    app.add_api_route("/{connection_id}/{repository}/act/{kind}", _open_form, methods=["GET"])
    for path, view in ROUTES:
        app.add_api_route(f"/{{connection_id}}{path.rstrip('/')}", _endpoint(view), methods=["GET"])
    return app


def require_right(request: Request, user: GetUserDep) -> None:
    """Refuse whoever may see neither the lake nor the repository that an address names, with 401 or 403.

    The list of a lake's repositories is for whoever may see one of them, and shows only those. Addresses without a
    connection are for whoever is logged in. Their pages ask for each thing that they show.
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
    try:
        return any(map(sees, _first_names(connection)))
    except LakeopsError:  # a lake that fails shows nothing
        return False


def _endpoint(view: Callable[[Pages], str | Response]) -> Callable[[Request], Response]:
    def endpoint(request: Request) -> Response:
        site = _site(request)
        return answer(request, site, view, lambda: open_lake(site.lake_name))

    return endpoint


def _site(request: Request) -> Site:
    connection = str(request.path_params["connection_id"])
    home = str(request.scope.get("root_path", ""))
    sees = getattr(request.state, "sees", None)
    return Site(address(home, connection), connection, f"{home}/", web_server().path, acts=True, sees=sees)


def _lakes(request: Request, user: GetUserDep) -> Response:
    home = str(request.scope.get("root_path", ""))
    rows, note = seen_by(Rights(user))
    if not rows:
        advice = f"{ASK} Pages of a single repository are at {home}/CONNECTION/REPOSITORY."
        return failure(None, 403, NO_LAKE, f"{note} {advice}".lstrip())
    lakes = [(connection, address(home, connection), text) for connection, text in rows]
    site = Site(f"{home}/", "Lakes")
    return page(render("lakes.html", site=site, title="Lakes", lakes=lakes, note=note))


def _run(request: Request, user: GetUserDep) -> Response:
    """The tab *Lakeops* of a DAG run, or of one task of it: pages, and commits with what each changed."""
    home = str(request.scope.get("root_path", ""))
    site = Site(f"{home}/", "Lakes", airflow=web_server().path)
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
    mapped = int(index) if index.isdecimal() and len(index) < 10 else None
    rows = report_run(dag_id, run_id, task_id, mapped, prefix=f"{home}/", may_read=Rights(user).repository)
    shown = {"title": "What was done", "crumbs": [("What was done", None)], "rows": rows[:ROWS], "task": task_id}
    return page(render("run.html", site=site, **shown))


def _open_form(request: Request, user: GetUserDep) -> Response:
    path = request.path_params
    connection, repository, kind = (str(path[name]) for name in ("connection_id", "repository", "kind"))
    site = _site(request)
    try:
        found = form(kind, connection, {**request.query_params, "repository": repository}, user)
    except NotFound as error:
        advice = "Ask whoever looks after Airflow, or use the command line: every form has a command."
        return failure(site, 404, error.message, advice)
    crumbs = [(repository, address(site.root, repository)), (found["text"], None)]
    merged = {"left": request.query_params.get("destination"), "right": request.query_params.get("source")}
    compare = address(site.root, repository, "diff", **merged) if kind == "merge" and merged["right"] else None
    verdicts: Sequence[Verdict] = ()
    if compare:
        with suppress(LakeopsError), open_lake(connection) as lake:  # the form's own preview says what fails
            verdicts = lake.repository(repository).ref(str(merged["right"])).verdicts()
    shown = {"crumbs": crumbs, "form": found, "airflow": site.airflow, "compare": compare, "verdicts": verdicts}
    return page(render("act.html", site=site, title=found["text"], **shown))


def _refused_page(request: Request, error: Exception) -> Response:
    """Answer a refusal of Airflow's auth manager with a page that shows the way in."""
    status: Any = getattr(error, "status_code", 500)
    if status == 403:
        return failure(None, 403, "Your account may not see this.", ASK, first_page(request))
    if status != 401:
        return refused(request, error)
    back = str(request.url.path) + (f"?{request.url.query}" if request.url.query else "")
    login = ("Log in", address(web_server().path, "auth", "login", next=back))
    return failure(None, 401, "You are not logged in, or no longer.", "Log in to Airflow, and come back.", login)
