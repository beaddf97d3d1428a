"""Rights to single repositories: what each route answers, and how auth managers are asked."""

import json
import re
from collections import Counter
from threading import Event
from types import SimpleNamespace

import pytest
from support import damage
from support.page_addresses import ADDRESSES

from lakeops import Lake

LAKE, REPO, OTHER = "Lakeops:mine", "Lakeops:mine/repo", "Lakeops:mine/other"
OF_THE_LAKE = {"/", "/_audit"}


@pytest.fixture
def lake(home):
    with Lake.open(home=home) as opened:
        repo = damage.populate(opened)
        opened.create_repository("other")
        yield repo


@pytest.fixture
def granted(web, monkeypatch):
    """The rights of the user: names of connections and of custom views.

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
def page(web, home, monkeypatch):
    """Asks for a page below ``/lakeops`` as a viewer."""
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    for name in ("MINE", "YOURS"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps({"conn_type": "lakeops", "host": str(home)}))
    token = web.server.state.auth_manager.generate_jwt(SimpleAuthManagerUser(username="ada", role="viewer"))

    def ask(path):
        return web.get(f"/lakeops{path}", headers={"Authorization": f"Bearer {token}"}, follow_redirects=False)

    return ask


WHOLE = {200, 303}
NO = {403}


@pytest.mark.parametrize(
    ("rights", "repo", "list_", "audit", "lakes"),
    [
        ((), NO, NO, NO, ""),
        (("mine",), WHOLE, WHOLE, WHOLE, "mine"),
        (("yours",), NO, NO, NO, "yours"),
        ((LAKE,), WHOLE, WHOLE, WHOLE, "mine"),
        (("Lakeops:yours",), NO, NO, NO, "yours"),
        ((REPO,), WHOLE, WHOLE, NO, "mine"),
        ((OTHER,), NO, WHOLE, NO, "mine"),
        (("Lakeops:yours/repo",), NO, NO, NO, "yours"),
        (("Lakeops:mine/nosuch",), NO, NO, NO, ""),
        (("Lakeops:mine/",), NO, NO, NO, ""),
        (("Lakeops:/", LAKE, REPO), NO, NO, NO, ""),
    ],
    ids=lambda one: " and ".join(one) or "nothing" if isinstance(one, tuple) else str(sorted(one)),
)
def test_every_route_asks_by_connection_and_repository(lake, page, granted, rights, repo, list_, audit, lakes):
    """A user who was granted this, at the first page and at each route of the lake and of one repository."""
    granted.update(rights)
    for route, path in ADDRESSES.items():
        wanted = {"/": list_, "/_audit": audit}.get(route, repo)
        answer = page(f"/mine{path}".rstrip("/"))
        assert answer.status_code in wanted, (route, answer.status_code)
        if wanted is NO:
            assert "Ask an administrator" in answer.text, route
            assert "storage" not in answer.text, route
    first = page("/")
    assert shown_lakes(first.text) == lakes.split()
    assert first.status_code == (200 if lakes else 403)
    act = page("/mine/repo/act/merge").status_code
    assert (act == 403) is (repo is NO), "404: there is no such DAG in this Airflow"


def test_the_list_shows_what_one_may_see(lake, page, granted):
    granted.add(OTHER)
    text = page("/mine").text
    assert 'href="/lakeops/mine/other"' in text
    assert "mine/repo" not in text
    assert "_audit" not in text
    granted.add(LAKE)
    assert 'href="/lakeops/mine/repo"' in page("/mine").text


def shown_lakes(text):
    return re.findall(r'<td><a href="/lakeops/([^"/]*)">', text)


def test_the_first_page_says_which_lakes_are_seen_in_part(lake, page, granted):
    granted |= {REPO, "Lakeops:yours"}
    text = page("/").text
    assert shown_lakes(text) == ["mine", "yours"]
    assert text.count("the repositories that you may see") == 1
    assert text.count("a catalog in ") == 1, "the place of a lake is for those who may see all of it"


class Lakes:
    """The repositories that lakes name, and whether they name them now."""

    def __init__(self):
        self.names, self.failing = {"mine": ["repo"], "yours": ["repo"]}, set[str]()
        self.answers, self.asked = Event(), Counter[str]()
        self.answers.set()

    def read(self, connection):
        self.asked[connection] += 1
        if connection == "yours":
            self.answers.wait()
        if connection in self.failing:
            raise OSError("no answer")
        return self.names.get(connection, [])


@pytest.fixture
def told(monkeypatch):
    """Lakes of which one answers when it is let."""
    from lakeops.airflow import pages as lakes

    found = Lakes()
    monkeypatch.setattr(lakes, "_names", lakes.RepositoryNames(found.read))
    yield found
    found.answers.set()


def test_a_lake_that_does_not_answer_holds_up_no_other(told, page, granted, monkeypatch):
    granted |= {REPO, "Lakeops:yours/repo"}
    told.answers.clear()
    monkeypatch.setattr("lakeops.airflow.pages.WAIT_SECONDS", 0.5)
    for _ in range(3):
        text = page("/").text
        assert shown_lakes(text) == ["mine"]
        assert "Not every lake has answered" in text
    assert told.asked["yours"] == 1, "one thread waits for it, however often somebody looks"
    told.answers.set()
    monkeypatch.setattr("lakeops.airflow.pages.WAIT_SECONDS", 60.0)
    text = page("/").text
    assert shown_lakes(text) == ["mine", "yours"]
    assert told.asked["yours"] == 1, "the answer that came too late for one look is there for the next one"
    assert "Not every lake" not in text
    granted.remove("Lakeops:yours/repo")
    assert "yours" not in shown_lakes(page("/").text), "rights are asked anew"


def test_a_list_that_is_cut_says_so(lake, page, granted, monkeypatch):
    granted |= {LAKE, "Lakeops:yours"}
    text = page("/").text
    assert (shown_lakes(text), "There are over" in text) == (["mine", "yours"], False)
    from lakeops.airflow import pages as lakes

    monkeypatch.setattr(lakes, "LISTED", lakes.connections().index("yours"))
    text = page("/").text
    assert (shown_lakes(text), "There are over" in text) == (["mine"], True)


def test_a_lake_that_fails_is_told_to_nobody(told, page, granted, caplog):
    told.failing.add("yours")
    granted |= {"Lakeops:yours/repo"}
    answer = page("/")
    assert answer.status_code == 403
    assert "Not every lake has answered" in answer.text
    assert "yours" not in answer.text
    assert "'yours'" in caplog.text, "whoever looks after the server is told which"
    granted.add(REPO)
    assert shown_lakes(page("/").text) == ["mine"]


def test_a_lake_that_is_not_there_is_not_waited_for(lake, page, granted, monkeypatch, tmp_path):
    for name in ("EMPTY", "LAKEOPS_DEFAULT"):
        missing = {"conn_type": "lakeops", "host": str(tmp_path / "nothing")}
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(missing))
    granted.add(REPO)
    text = page("/").text
    assert shown_lakes(text) == ["mine"]
    assert "Not every lake" not in text


def test_an_auth_manager_that_is_slow_is_asked_for_so_long_only(told, page, granted, monkeypatch):
    told.names["mine"] = [f"r{number}" for number in range(500)]
    granted.add("Lakeops:mine/r499")
    assert shown_lakes(page("/").text) == ["mine"]
    monkeypatch.setattr("lakeops.airflow.pages.ASK_SECONDS", 0.0)
    answer = page("/")
    assert answer.status_code == 403
    assert "Not every lake has answered" in answer.text


def test_no_lake_is_asked_where_no_repository_can_be_granted(told, page):
    assert page("/").status_code == 403
    assert not told.asked


def test_whether_a_lake_is_there_is_for_those_who_may_see_it(lake, page, granted, monkeypatch, tmp_path):
    granted.add(OTHER)
    missing = {"conn_type": "lakeops", "host": str(tmp_path / "nothing")}
    monkeypatch.setenv("AIRFLOW_CONN_EMPTY", json.dumps(missing))
    assert {page(f"/{name}").status_code for name in ("empty", "nosuch", "yours")} == {403}
    granted.add("empty")
    assert page("/empty").status_code == 404


def test_a_manager_that_grants_every_view_is_not_believed(page, lake):
    """Airflow's simple auth manager gives each viewer each custom view, whatever its name."""
    for path in ("/mine", "/mine/repo", "/mine/other/ref/main"):
        assert page(path).status_code == 403, path


def test_fab_grants_by_the_names_that_the_documentation_gives(monkeypatch):
    """The real auth manager of the FAB provider, with a real user of its own."""
    manager = pytest.importorskip("airflow.providers.fab.auth_manager.fab_auth_manager")
    models = pytest.importorskip("airflow.providers.fab.auth_manager.models")
    from lakeops.airflow import pages as rights

    monkeypatch.setattr(rights, "get_auth_manager", manager.FabAuthManager)

    def user(*names):
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
def test_the_team_of_a_connection_is_told_where_there_are_teams(monkeypatch):
    from lakeops.airflow import pages as rights

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
