"""Rights to single repositories: what each route answers, and how auth managers are asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lakeops import Lake, Repository

pytest.importorskip("airflow.sdk")

from support import damage
from support.page_addresses import ADDRESSES

pytestmark = pytest.mark.xdist_group("airflow")

LAKE, REPO, OTHER = "Lakeops:mine", "Lakeops:mine/repo", "Lakeops:mine/other"
OF_THE_LAKE = {"/", "/_audit"}


@pytest.fixture
def lake(home: Path) -> Iterator[Repository]:
    """A lake with two repositories."""
    with Lake.open(home=home) as opened:
        repo = damage.populate(opened)
        opened.create_repository("other")
        yield repo


@pytest.fixture
def granted(web: Any, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """What the user has been granted: names of connections and of custom views.

    Names of views are compared as a whole, as Airflow's FAB auth manager does it. The rest of the simple one stays.
    """
    found: set[str] = set()
    manager = type(web.server.state.auth_manager)
    connection = lambda _self, *, method, user, details=None: (  # noqa: E731
        method == "GET" and details is not None and details.conn_id in found
    )
    view = lambda _self, *, method, resource_name, user: method == "GET" and resource_name in found  # noqa: E731
    monkeypatch.setattr(manager, "is_authorized_connection", connection)
    monkeypatch.setattr(manager, "is_authorized_custom_view", view)
    return found


@pytest.fixture
def page(web: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Asks for a page below ``/lakeops`` as a viewer."""
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    for name in ("MINE", "YOURS"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps({"conn_type": "lakeops", "host": str(home)}))
    token = web.server.state.auth_manager.generate_jwt(SimpleAuthManagerUser(username="ada", role="viewer"))

    def ask(path: str) -> Any:
        return web.get(f"/lakeops{path}", headers={"Authorization": f"Bearer {token}"}, follow_redirects=False)

    return ask


WHOLE = {200, 303}
NO = {403}


@pytest.mark.parametrize(
    ("rights", "repo", "list_", "audit"),
    [
        ((), NO, NO, NO),
        (("mine",), WHOLE, WHOLE, WHOLE),
        (("yours",), NO, NO, NO),
        ((LAKE,), WHOLE, WHOLE, WHOLE),
        (("Lakeops:yours",), NO, NO, NO),
        ((REPO,), WHOLE, WHOLE, NO),
        ((OTHER,), NO, WHOLE, NO),
        (("Lakeops:yours/repo",), NO, NO, NO),
        (("Lakeops:mine/nosuch",), NO, NO, NO),
        (("Lakeops:mine/",), NO, NO, NO),
        (("Lakeops:/", LAKE, REPO), NO, NO, NO),
    ],
    ids=lambda one: " and ".join(one) or "nothing" if isinstance(one, tuple) else str(sorted(one)),
)
def test_every_route_asks_by_connection_and_repository(
    lake: Repository,
    page: Any,
    granted: set[str],
    rights: tuple[str, ...],
    repo: set[int],
    list_: set[int],
    audit: set[int],
) -> None:
    """A user who was granted this, at each route of the lake and of one repository."""
    granted.update(rights)
    for route, path in ADDRESSES.items():
        wanted = {"/": list_, "/_audit": audit}.get(route, repo)
        answer = page(f"/mine{path}".rstrip("/"))
        assert answer.status_code in wanted, (route, answer.status_code)
        if wanted is NO:
            assert "Ask an administrator" in answer.text, route
            assert "storage" not in answer.text, route
    act = page("/mine/repo/act/merge").status_code
    assert (act == 403) is (repo is NO), "404: there is no such DAG in this Airflow"


def test_the_list_shows_what_one_may_see(lake: Repository, page: Any, granted: set[str]) -> None:
    granted.add(OTHER)
    text = page("/mine").text
    assert 'href="/lakeops/mine/other"' in text
    assert "mine/repo" not in text
    assert "_audit" not in text
    granted.add(LAKE)
    assert 'href="/lakeops/mine/repo"' in page("/mine").text


def test_the_first_page_lists_lakes_that_one_may_see_as_a_whole(lake: Any, page: Any, granted: set[str]) -> None:
    granted.add(REPO)
    assert page("/").status_code == 403
    granted |= {"Lakeops:yours"}
    assert "/lakeops/yours" in page("/").text
    assert "/lakeops/mine" not in page("/").text


def test_whether_a_lake_is_there_is_for_those_who_may_see_it(
    lake: Repository, page: Any, granted: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    granted.add(OTHER)
    missing = {"conn_type": "lakeops", "host": str(tmp_path / "nothing")}
    monkeypatch.setenv("AIRFLOW_CONN_EMPTY", json.dumps(missing))
    assert {page(f"/{name}").status_code for name in ("empty", "nosuch", "yours")} == {403}
    granted.add("empty")
    assert page("/empty").status_code == 404


def test_a_manager_that_grants_every_view_is_not_believed(page: Any, lake: Repository) -> None:
    """Airflow's simple auth manager gives each viewer each custom view, whatever its name."""
    for path in ("/mine", "/mine/repo", "/mine/other/ref/main"):
        assert page(path).status_code == 403, path


def test_fab_grants_by_the_names_that_the_documentation_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real auth manager of the FAB provider, with a real user of its own."""
    manager = pytest.importorskip("airflow.providers.fab.auth_manager.fab_auth_manager")
    models = pytest.importorskip("airflow.providers.fab.auth_manager.models")
    from lakeops.airflow import rights

    monkeypatch.setattr(rights, "get_auth_manager", manager.FabAuthManager)

    def user(*names: str) -> Any:
        permissions = [
            models.Permission(action=models.Action(name="can_read"), resource=models.Resource(name=name))
            for name in names
        ]
        return rights.Rights(models.User(username="ada", roles=[models.Role(name="some", permissions=permissions)]))

    assert user("Connections").repository("mine", "repo"), "FAB knows no single connections"
    assert user("Connections").lake("yours")
    assert user(LAKE).lake("mine")
    assert not user(LAKE).lake("yours")
    one = user(REPO)
    assert one.some
    assert one.repository("mine", "repo")
    assert not one.repository("mine", "other")
    assert not one.lake("mine")
    assert not user().repository("mine", "repo")


@pytest.mark.needs_airflow("3.2")
def test_the_team_of_a_connection_is_told_where_there_are_teams(monkeypatch: pytest.MonkeyPatch) -> None:
    from lakeops.airflow import rights

    asked = []
    manager = SimpleNamespace(
        is_authorized_connection=lambda *, method, details, user: asked.append(details.team_name) or True
    )
    monkeypatch.setattr(rights, "get_auth_manager", lambda: manager)
    monkeypatch.setattr("airflow.models.Connection.get_team_name", lambda _name: "blue")
    for teams, team in (("False", None), ("True", "blue")):
        monkeypatch.setenv("AIRFLOW__CORE__MULTI_TEAM", teams)
        assert rights.Rights(None).lake("mine")
        assert asked.pop() == team
