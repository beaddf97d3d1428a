"""The plugin's pages: who may see them, what they show, and that nothing in them is anything but text."""

import html
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import pytest
from support import damage
from support.dags import known, known_file, states
from support.page_addresses import ADDRESSES

from lakeops import Lake
from lakeops.airflow.compat import KNOWN
from lakeops.web.page import HEADERS

EVIL = "<script>alert('x')</script>\u202e&\"x"


def user_named(name, role):
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    return SimpleAuthManagerUser(username=name, role=role)


@pytest.fixture
def page(web, home, monkeypatch):
    """Asks for a page below ``/lakeops/mine`` as a user of a role."""
    monkeypatch.setenv("AIRFLOW_CONN_MINE", json.dumps({"conn_type": "lakeops", "host": str(home)}))

    def ask(path, *, role="admin", connection="mine", cookie=False, method="GET"):
        headers = {}
        if role is not None:
            token = web.server.state.auth_manager.generate_jwt(user_named("ada", role))
            headers = {"Cookie": f"_token={token}"} if cookie else {"Authorization": f"Bearer {token}"}
        web.cookies.clear()
        address = path if path.startswith("/") else f"/lakeops/{connection}/{path}"
        return web.request(method, address, headers=headers, follow_redirects=False)

    return ask


def views():
    """The additions of the plugin to Airflow's own pages, as Airflow reads it."""
    from airflow import plugins_manager

    if KNOWN < (3, 2):
        plugins_manager.initialize_ui_plugins()
        found = plugins_manager.external_views
    else:
        found, _ = plugins_manager._get_ui_plugins()
    return [view for view in found if view["name"] == "Lakeops"]


@pytest.fixture(scope="module")
def forms(airflow_database):
    for name in ("admin", "gc", "fsck"):
        known_file(Path(__file__).resolve().parents[2] / "dags" / f"lakeops_{name}.py")


@pytest.fixture
def history(flights):
    main = flights.branch("main")
    main.put(f"raw/{EVIL}", b"1")
    main.commit(f"load {EVIL}\nsecond line", {"link": "https://airflow.example/x", "evil": "javascript:alert(1)"})
    dev = flights.create_branch("dev")
    dev.put("raw/b", b"22")
    dev.commit("on dev")
    dev.put("later", b"1")
    flights.create_tag("v1", "main")
    return flights


# --- who ---------------------------------------------------------------------------------------------------------
def test_a_browsers_session_is_enough(history, page):
    assert page("flights", cookie=True).status_code == 200


def test_every_route_is_closed_and_only_reads(history):
    from lakeops.airflow.pages import build, require_right
    from lakeops.web.pages import ROUTES

    routes = [route for route in build().routes if hasattr(route, "methods")]
    assert len(routes) == len(ROUTES) + 3
    for route in routes:
        assert route.methods == {"GET"}
        own = route.path in {"/", "/_run"}
        assert own or "connection_id" in route.param_convertors, "the first page and the tabs ask for each connection"
        assert any(d.call is require_right for d in route.dependant.dependencies)


@pytest.fixture
def tabled(home):
    """The repository that the table of addresses is about."""
    with Lake.open(home=home) as lake:
        yield damage.populate(lake)


def test_every_route_asks_who_looks_and_is_answered_safely(tabled, forms, page, web, monkeypatch):
    """Each route of the application, as each person, with each method: a new route has to join."""
    from lakeops.airflow.pages import build

    own = {"/": "/lakeops/", "/_run": "/lakeops/_run?dag=nosuch&run=r"}
    act = {"/{connection_id}/{repository}/act/{kind}": "/lakeops/mine/repo/act/merge"}
    pages = {f"/{{connection_id}}{route.rstrip('/')}": f"/lakeops/mine{path}" for route, path in ADDRESSES.items()}
    addresses = {**own, **act, **pages}
    assert {route.path for route in build().routes} == set(addresses)

    asked: list[tuple[str, str | None]] = []
    manager = type(web.server.state.auth_manager)
    allowed = manager.is_authorized_connection

    def noting(self, *, method, user, details=None):
        asked.append((method, None if details is None else details.conn_id))
        return bool(allowed(self, method=method, user=user, details=details))

    monkeypatch.setattr(manager, "is_authorized_connection", noting)
    before = tabled.reflog(), list(tabled.branch("main").uncommitted()), tabled.gc.marks()
    for route, path in addresses.items():
        where = path if route == "/" else path.rstrip("/")
        refused, shown = {200} if route == "/_run" else {403}, {200, 303}
        for role, statuses in {None: {401}, "viewer": refused, "user": refused, "op": shown, "admin": shown}.items():
            asked.clear()
            answer = page(where, role=role)
            assert answer.status_code in statuses, (route, role, answer.text[-600:])
            assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS, (route, role)
            assert "</html>" in answer.text or answer.status_code == 303
            if role is not None and route not in own:
                assert asked[0] == ("GET", "mine"), route
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            answer = page(where, role="admin", method=method)
            assert answer.status_code == 405, (route, method)
            assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS, (route, method)
    after = tabled.reflog(), list(tabled.branch("main").uncommitted()), tabled.gc.marks()
    assert after == before


def test_looking_for_a_lake_makes_none(home, page):
    answer = page("flights")
    assert answer.status_code == 404
    assert "there is no lake in" in answer.text
    assert not home.exists()


# --- what --------------------------------------------------------------------------------------------------------
def test_the_pages_of_a_connection_are_those_of_its_lake(history, page):
    head = history.ref("main").commit_id
    overview = page("flights").text
    assert all(f"<strong>{name}</strong>" in overview for name in ("main", "dev"))
    assert "on dev" in page("flights/ref/dev").text
    assert ">later<" in page("flights/uncommitted/dev").text
    commit = page(f"flights/commit/{head}").text
    assert head in commit
    assert "second line" in commit
    assert "1 added" in commit
    assert "1 removed" in page("flights/diff?left=dev&right=main&two_way=true").text


def test_the_first_page_lists_the_connections_that_one_may_read(history, page, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps({"conn_type": "postgres"}))
    monkeypatch.setenv("AIRFLOW_CONN_BROKEN", "{")
    text = page("/lakeops/").text
    assert 'href="/lakeops/mine"' in text
    assert 'href="/lakeops/lakeops_default"' in text
    assert "other" not in text.partition("<tbody>")[2]


def test_a_commit_leads_to_the_task_that_made_it(history, page):
    from lakeops.model.ids import Origin

    names = {"airflow_dag_id": "load", "airflow_run_id": "manual__1", "airflow_task_id": "publish.commit"}
    made = history.branch("dev").commit("load", Origin({**names, "airflow_map_index": "2"}))
    address = "/dags/load/runs/manual__1/tasks/publish.commit/mapped/2"
    assert f'data-airflow href="{address}"' in page(f"flights/commit/{made.id}").text
    history.create_tag("v2", made.id)
    for path in ("flights", "flights/ref/dev", "flights/tags", "flights/search?q=load", "flights/blame/v2"):
        text = page(path).text
        assert f'<a data-airflow href="{address}">load</a>' in text, path
        assert "Task publish.commit of run manual__1. Committer: ada" in text


def test_a_refusal_is_a_page_with_a_way_in(history, page):
    text = page("flights", role=None).text
    assert "/auth/login?next=" in text
    looked = page("flights/diff?left=main&right=dev", role=None).text
    assert "next=%2Flakeops%2Fmine%2Fflights%2Fdiff%3Fleft%3Dmain%26right%3Ddev" in looked
    assert "</html>" in text
    refused = page("flights", role="viewer").text
    assert "Ask an administrator" in refused
    assert '<a class="button" href="/lakeops/">' in refused
    assert "Ask an administrator" in page("/lakeops/", role="viewer").text


def test_the_pages_have_an_entry_in_the_navigation(web):
    mine, *tabs = views()
    assert (mine["destination"], mine["href"], mine["url_route"]) == ("nav", "/lakeops/", "lakeops")
    assert [tab["destination"] for tab in tabs] == ["dag_run", "task_instance"]


def test_links_between_pages_lead_to_pages(history, forms, page):
    seen: set[str] = set()
    waiting = ["/lakeops/mine/flights"]
    while waiting:
        address = waiting.pop()
        seen.add(address)
        answer = page(html.unescape(address))
        assert answer.status_code == 200, address
        for bad in ("<script>alert", "\u202e", 'href="javascript'):
            assert bad not in answer.text, address
        found = set(re.findall(r'href="(/lakeops/mine[^"]*|/lakeops/)"', answer.text))
        waiting += found - seen - set(waiting)
    assert len(seen) > 20
    assert {"/lakeops/", "/lakeops/mine"} <= seen


@pytest.mark.parametrize(
    ("path", "connection", "status", "message"),
    [
        ("nosuch", "mine", 404, "no repository &#39;nosuch&#39;"),
        ("flights/ref/nosuch", "mine", 404, "nosuch"),
        ("flights/ref/ma..in", "mine", 400, "ma..in"),
        ("flights/commit/feed", "mine", 404, "feed"),
        ("flights/diff?left=main&right=nosuch", "mine", 404, "nosuch"),
        ("flights", "nosuch", 404, "there is no connection &#39;nosuch&#39;"),
        ("flights", "other", 500, "of type &#39;postgres&#39;"),
    ],
)
def test_what_cannot_be_shown_is_said(history, page, monkeypatch, path, connection, status, message):
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps({"conn_type": "postgres", "password": "s3cret"}))
    answer = page(path, connection=connection)
    assert answer.status_code == status
    assert message in answer.text
    if connection != "mine":
        assert '<a class="button" href="/lakeops/">' in answer.text, "there is no lake to go back to"
    assert "s3cret" not in answer.text


@pytest.mark.parametrize("role", ["admin", "viewer", None])
@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/_run",
        "/_run?dag=%00&run=%FF&task=%00&index=x",
        "/_run?dag=load&run=r&index=99999999999999999999999",
        "/%00",
        "/mine/%00/ref/main",
        "/mine/flights/ref/%FF%00",
        "/mine/flights/act/%00",
        f"/{'x' * 4000}/{'y' * 4000}",
        "/mine/flights/diff?left=main",
        "/mine/flights/diff?left=main&left=dev&right=dev&two_way=%00",
        "/mine/flights/ref/ma..in",
        "/mine/nosuch",
        "/mine/a/b/c/d",
        "/mine/flights/gc?mark=%00&mark[]=1",
    ],
)
def test_odd_addresses_are_answered_by_pages(history, forms, page, path, role):
    answer = page(f"/lakeops{path}", role=role)
    if answer.status_code in {303, 307}:
        assert answer.headers["location"].endswith("/lakeops/")
        return
    if path:  # without its slash it is a page of Airflow's
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
    assert answer.status_code in {200, 400, 401, 403, 404}, answer.text[-500:]
    assert answer.headers["content-type"].startswith("text/html")
    assert "</html>" in answer.text


@pytest.mark.parametrize(
    ("path", "status"), [("/%00", 404), ("/_run?dag=%00", 400), ("/mine/flights/act/%00", 404), ("/_run?index=²", 200)]
)
def test_what_no_database_can_look_for_is_not_asked(history, page, path, status):
    answer = page(f"/lakeops{path}")
    assert answer.status_code == status
    assert "</html>" in answer.text


def test_a_page_makes_no_catalog(page, tmp_path, monkeypatch):
    file = tmp_path / "none.db"
    extra = {"database_url": f"sqlite:///{file}"}
    monkeypatch.setenv("AIRFLOW_CONN_NONE", json.dumps({"conn_type": "lakeops", "extra": extra}))
    assert page("flights", connection="none").status_code == 503
    assert not file.exists()


def test_pages_are_made_a_few_at_a_time(history, page, monkeypatch):
    from threading import BoundedSemaphore

    from lakeops.web import app as routes

    monkeypatch.setattr(routes, "WAIT_SECONDS", 0.0)
    full = BoundedSemaphore(1)
    monkeypatch.setattr(routes, "_places", full)
    with full:
        assert page("flights").status_code == 503
    assert page("flights").status_code == 200


# --- what a run did ----------------------------------------------------------------------------------------------
def test_a_run_and_a_task_have_a_tab_with_what_they_did(history, page, monkeypatch):
    from airflow import sdk

    from lakeops.airflow import operators

    with sdk.DAG("did", schedule=None) as dag:
        where = {"repo": "flights", "lakeops_conn_id": "mine"}
        load = operators.LakeopsCommitOperator(task_id="load", branch="dev", message=f"load {EVIL}", **where)
        load >> operators.LakeopsDiffOperator(task_id="look", right="dev", left="main", **where)
        sdk.task(lambda: None, task_id="else")()
    run = known(dag).test()
    assert set(states(run).values()) == {"success"}
    _, *tabs = views()
    values = {"DAG_ID": dag.dag_id, "RUN_ID": run.run_id, "MAP_INDEX": "-1"}

    def tab(number, task="", **who):
        names = {**values, "TASK_ID": task}
        return page(re.sub(r"{(\w+)}", lambda found: quote(names[found[1]], safe=""), tabs[number]["href"]), **who)

    text, head = tab(0).text, history.branch("dev").commit_id
    assert f'href="/lakeops/mine/flights/commit/{head}"' in text
    assert "1 added" in text
    assert "<strong>load</strong>" in text
    assert "<strong>look</strong>" in text
    assert "<script>alert" not in text
    assert head not in tab(1, "look").text
    assert head in tab(1, "load").text
    assert "Nothing yet" in tab(1, "else").text
    assert "Nothing yet" in tab(0, role="viewer").text, "who may see the run, and nothing of the lake"
    monkeypatch.setattr(
        "airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager.is_authorized_connection",
        lambda _self, *, method, user, details=None: details is None or details.conn_id != "mine",
    )
    assert "Nothing yet" in tab(0).text, "what lies in a lake is for those who may read its connection"
    monkeypatch.setattr(
        "airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager.is_authorized_dag",
        lambda _self, *, details=None, **_: details is None or details.id != dag.dag_id,
    )
    assert tab(0).status_code == 403


def test_pages_do_not_wait_as_long_as_tasks(history, page, monkeypatch):
    from airflow import sdk

    from lakeops.airflow import operators, pages
    from lakeops.model.errors import StoreUnavailable
    from lakeops.web.app import IMPATIENT

    monkeypatch.setenv("LAKEOPS_OUTAGE_MINUTES", "9")
    with pages.open_lake("mine") as opened:
        assert opened.settings.outage_minutes is None
        assert {name: getattr(opened.store_settings, name) for name in IMPATIENT} == IMPATIENT
    with sdk.DAG("twice", schedule=None) as dag:
        for branch in ("dev", "main"):
            where = {"repo": "flights", "lakeops_conn_id": "mine", "on_empty": "commit"}
            operators.LakeopsCommitOperator(task_id=branch, branch=branch, message="load", **where)
    run, asked = known(dag).test(), []

    def silent(connection):
        asked.append(connection)
        raise StoreUnavailable("s3://bucket does not answer")

    monkeypatch.setattr(pages, "open_lake", silent)
    text = page(f"/lakeops/_run?dag=twice&run={quote(run.run_id)}").text
    assert (text.count("s3://bucket does not answer"), asked) == (2, ["mine"])


# --- what can be done --------------------------------------------------------------------------------------------
class FormReader(HTMLParser):
    """The request that the page's script would send."""

    def __init__(self, text):
        super().__init__()
        self.to, self.conf = "", {}
        self._choice = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        name, kind = given.get("name"), given.get("data-kind")
        if tag == "form":
            self.to = given.get("data-trigger") or self.to
        elif kind == "checkbox":
            self.conf[name] = "checked" in given
        elif kind and tag == "input":
            value = given["value"] or None
            self.conf[name] = int(value) if kind == "number" and value else value
        elif tag == "select" and kind:
            self._choice = str(name)
        elif tag == "option" and "selected" in given:
            self.conf[self._choice] = given["value"]


def test_pages_lead_to_forms_that_are_filled_in(history, forms, page, web):
    head, dev = history.ref("main").commit_id, history.ref("dev").commit_id
    history.create_branch("gone")
    history.delete_branch("gone")
    history.create_tag("was", "main")
    history.delete_tag("was")
    mark = history.gc.mark()
    wanted = {
        f"flights/commit/{head}": {"revert": {"ref": head, "branch": "main"}, "tag": {"ref": head, "action": "create"}},
        "flights/ref/dev": {"branch": {"branch": "dev", "action": "delete"}},
        "flights/ref/gone": {"branch": {"branch": "gone", "source": head, "action": "create"}},
        "flights/uncommitted/dev": {"reset": {"branch": "dev", "prefix": None}},
        "flights/diff?left=main&right=dev": {"merge": {"source": dev, "destination": "main", "message": "Merge dev"}},
        "flights/ref/was": {"tag": {"tag": "was", "ref": head, "action": "create"}},
        "flights": {"merge": {"source": "dev", "destination": "main"}},
        "flights/tags": {"tag": {"tag": "v1", "action": "delete"}},
        "flights/moves?of=main": {"branch": {"branch": "main", "action": "move"}},
        "flights/integrity": {"fsck": {"data": False}},
        f"flights/gc?mark={mark.id}": {"sweep": {"mark": mark.id, "force": False}},
        "flights/gc": {"gc": {"force": False, "ask_above_gib": None}},
    }
    for path, kinds in wanted.items():
        links = re.findall(r'href="(/lakeops/mine/flights/act/[^"]*)"', page(path).text)
        for kind, values in kinds.items():
            address = html.unescape([link for link in links if f"/act/{kind}" in link][-1])
            found = FormReader(page(address).text)
            assert found.to == f"/api/v2/dags/lakeops_{kind}/dagRuns"
            given = {"repository": "flights", "connection": "mine", **values}
            if kind != "fsck":  # it only reads
                given["dry_run"] = True
            assert {name: found.conf[name] for name in given} == given, path
            if kind == "tag":
                found.conf["tag"] = "v9"  # the one field that the user must fill in
            token = web.server.state.auth_manager.generate_jwt(user_named("ada", "admin"))
            answer = web.post(
                found.to, json={"logical_date": None, "conf": found.conf}, headers={"Cookie": f"_token={token}"}
            )
            assert answer.status_code == 200, answer.text
            assert answer.json()["triggering_user_name"] == "ada"


def test_no_link_decides_that_something_is_done(history, forms, page):
    answer = page("flights/act/merge?source=dev&destination=main&dry_run=false&connection=other&repository=other")
    assert 'href="/lakeops/mine/flights/diff?left=main&amp;right=dev"' in answer.text, "what it would change"
    form = FormReader(answer.text)
    assert [form.conf[name] for name in ("dry_run", "connection", "repository")] == [True, "mine", "flights"]


def test_a_merge_is_offered_with_the_state_of_its_checks(history, forms, page):
    head = history.branch("dev").commit("declares", checks=["amount"], allow_empty=True).id
    assert "amount: waiting" in page("flights/act/merge?source=dev&destination=main").text
    history.ref(head).fail_check("amount", "it is -1")
    for path in ("flights", "flights/ref/dev", "flights/diff?left=main&right=dev"):
        shown = page(path).text
        place = shown.index("/act/merge")
        assert "amount: failed" in shown[:place], "the state stands before the button"
    answer = page("flights/act/merge?source=dev&destination=main&despite_checks=amount").text
    assert "it is -1" in answer
    assert FormReader(answer).conf["despite_checks"] == "amount"


def test_sync_opens_a_form_that_syncs_whatever_it_is_named(history, forms, page):
    from lakeops.airflow.dags import create_mirror_dag, mirror_dag

    known(create_mirror_dag(connection="mine"))
    known(mirror_dag("my_mirror", connection="mine"))
    assert FormReader(page("flights/act/mirror?mirror=flights").text).to == "/api/v2/dags/my_mirror/dagRuns"


def test_a_revert_goes_to_the_default_branch(lake, page):
    trunk = lake.create_repository("other", default_branch="trunk").branch("trunk")
    trunk.put("a", b"1")
    assert "/act/revert?branch=trunk&amp;ref=" in page(f"other/commit/{trunk.commit('load').id}").text


@pytest.mark.parametrize(("kind", "has_one"), [("merge", True), ("fsck", False)])
def test_only_a_form_with_a_dry_run_speaks_of_it(history, forms, page, kind, has_one):
    assert ("Dry run" in page(f"flights/act/{kind}").text) is has_one


def test_a_form_that_is_not_there_is_said(history, forms, page, monkeypatch):
    assert page("flights/act/nosuch").status_code == 404
    assert page("flights/act/merge", role="viewer").status_code == 403
    monkeypatch.setattr(
        "airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager.is_authorized_dag",
        lambda _self, **_: False,
    )
    assert "you may not trigger the DAG lakeops_merge" in page("flights/act/merge").text


# --- the plugin --------------------------------------------------------------------------------------------------
def test_the_plugin_is_registered_once_and_without_errors(web):
    from airflow import plugins_manager

    if KNOWN < (3, 2):
        plugins_manager.ensure_plugins_loaded()
        plugins, errors = plugins_manager.plugins, plugins_manager.import_errors
    else:
        plugins, errors = plugins_manager._get_plugins()
    assert [plugin.name for plugin in plugins].count("lakeops") == 1
    assert errors == {}


def test_loading_the_plugin_loads_no_web_framework_and_no_lake():
    script = (
        "import sys; from airflow.sdk import DAG; from airflow.providers.common.compat.sdk import AirflowPlugin\n"
        "before = set(sys.modules)\n"
        "from lakeops.airflow.plugin import LakeopsPlugin\n"
        "print(*(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "lakeops.airflow.plugin" in loaded
    assert not {name.partition(".")[0] for name in loaded} & {"fastapi", "starlette", "pyarrow", "boto3"}
    assert "lakeops.catalog.tables" not in loaded


# --- links -------------------------------------------------------------------------------------------------------
def test_a_tasks_links_lead_to_pages(history, page, run, monkeypatch):
    from airflow.providers.common.compat.sdk import AirflowFailException

    from lakeops.airflow import operators

    def links(name, *, fails=False, **arguments):
        task = getattr(operators, f"Lakeops{name}Operator")(
            task_id="t", repo="flights", lakeops_conn_id="mine", **arguments
        )
        if fails:
            with pytest.raises(AirflowFailException):
                run(task)
        else:
            run(task)
        found = {link.name: link.get_link(task, ti_key=None) for link in task.operator_extra_links}
        for address in filter(None, found.values()):
            answer = page(address.removeprefix("/lakeops/mine/"))
            assert answer.status_code == 200, address
        return found

    head = history.branch("dev").commit_id
    history.branch("dev").put("raw/c", b"1")
    found = links("Commit", branch="dev", message="more")
    assert found["Commit"] == f"/lakeops/mine/flights/commit/{history.branch('dev').commit_id}"
    assert found["Branch"] == "/lakeops/mine/flights/ref/dev"
    assert links("Diff", right="dev", left="main~1", two_way=True)["Diff"].endswith(
        "left=main~1&right=dev&two_way=true"
    )
    assert links("Upload", branch="dev", path="x#y", data="1")["Branch"]
    history.branch("dev").commit("more")
    found = links("Merge", source="dev")
    assert all(found.values())
    assert ">raw/c<" in page(found["Diff"].removeprefix("/lakeops/mine/")).text, "what the merge changed, also later"
    assert links("Merge", source="dev")["Diff"] == found["Diff"]
    for branch in ("dev", "main"):
        history.branch(branch).put("raw/c", branch.encode())
        history.branch(branch).commit("conflict")
    found = links("Merge", source="dev", fails=True)
    assert found["Commit"] == ""
    assert "conflict" in page(found["Diff"].removeprefix("/lakeops/mine/")).text
    monkeypatch.delitem(sys.modules, "lakeops.airflow.plugin")
    assert set(links("Revert", ref=head, branch="dev").values()) == {""}, "no plugin, nothing to link to"
