"""The pages in a real browser and Airflow's own web server: as three people, light and dark, wide and narrow.

``LAKEOPS_SCREENSHOTS=DIR`` keeps a picture of each page.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from services.spark import until
from support.catalogs import expire_commits

from lakeops import Lake
from lakeops.model.errors import LakeopsError
from lakeops.testing import ManualClock

pytest.importorskip("playwright")

from support.dags import known, known_file, states

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("default")]

EVIL = "<script>alert('x')</script>\u202e&\"x"
SIZES = {"wide": (1440, 900), "narrow": (390, 844)}
NOWHERE = "postgresql+psycopg://nobody@127.0.0.1:1/nothing"
"""A database that does not answer."""
PATIENCE = 60_000
"""Milliseconds; the first page of Airflow's own interface is large."""


@pytest.fixture(scope="module")
def lake_home(tmp_path_factory):
    return tmp_path_factory.mktemp("browser") / "lake"


@pytest.fixture(scope="module")
def flights(lake_home):
    """A history that has something for every page."""
    clock = ManualClock(datetime.now(UTC) - timedelta(days=4))
    with Lake.open(home=lake_home, clock=clock) as lake:
        repo = lake.create_repository("flights")
        main = repo.branch("main")
        for contents in (b"overwritten before it was committed" * 9, b"README"):
            main.put("scratch.txt", contents)
        main.put("delays.parquet", table({"origin": ["EWR", "JFK"], "delay": [5, -2]}))
        main.commit("load delays")
        clock.advance(days=3)
        repo.gc.set_rules({"default_retention_days": 30, "branches": [{"branch_id": "main", "retention_days": 90}]})
        repo.gc.mark()
        for day in range(1, 4):
            load = repo.create_branch(f"load-{day}")
            for part in range(3):
                load.put(
                    f"flights/day={day}/part-{part}.csv", b"origin,delay\nEWR,5\nJFK,-2\n", content_type="text/csv"
                )
            load.commit(f"load day {day}")
            repo.merge(load.id, "main", message=f"publish day {day}")
        dev = repo.create_branch("dev")
        main.put("README.md", b"main")
        main.commit("main's words")
        dev.put("README.md", b"dev")
        dev.put("delays.parquet", table({"origin": ["EWR", "JFK"], "delay": [5.5, -2.0], "gate": ["A1", "B2"]}))
        dev.put(f"raw/{EVIL}", EVIL.encode())
        dev.put("a/very/long/path/" + "with-many-parts/" * 12 + "object.json", b'{"a": 1}')
        dev.commit(f"load {EVIL}\nsecond line", {"link": "https://airflow.example/x", "evil": "javascript:alert(1)"})
        dev.put("later/a", b"1")
        repo.create_tag("v1", "main~1")
        for name in ("gone", "lost"):
            repo.create_branch(name).put(name, b"1")
            repo.branch(name).commit(f"on {name}")
            repo.delete_branch(name)
        expire_commits(lake.catalog, "flights", [last_of(repo, "lost")])
        repo.gc.mark()
        check = repo.fsck()
        list(check)
        check.note()
        damaged = lake.create_repository("damaged")
        damaged.branch("main").put("lost.csv", b"1")
        damaged.branch("main").commit("what will be lost")
        Path(damaged.ref("main").stat("lost.csv").physical_address.removeprefix("file://")).unlink()
        check = damaged.fsck(data=True)
        list(check)
        check.note()
        for file in (lake_home / "storage" / "damaged" / "_lakefs" / "ranges").iterdir():
            file.unlink()
        _mirror(lake, lake_home.with_name("source"))
        yield repo


def last_of(repo, branch):
    found = repo.reflog(branch)[0].old
    assert found is not None
    return found


def table(columns):
    file = BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def _mirror(lake, home):
    """A mirror whose source is gone."""
    with Lake.open(home=home) as source:
        source.create_repository("origin").branch("main").put("a", b"1")
    mirror = lake.create_mirror("copy", source=f"{home}#origin")
    shutil.rmtree(home)
    with pytest.raises(LakeopsError):
        mirror.sync()


@pytest.fixture(scope="module")
def loaded(airflow_database, site):
    """The address of what a run did, one that has published a commit. The forms are known to Airflow, too."""
    for name in ("admin", "gc", "fsck"):
        known_file(Path(__file__).resolve().parents[2] / "dags" / f"lakeops_{name}.py")
    from airflow import sdk

    from lakeops.airflow import operators

    with sdk.DAG("load", schedule=None) as dag:
        operators.LakeopsUploadOperator(
            task_id="upload", branch="load-1", path="loaded", data="1", repo="flights", lakeops_conn_id="mine"
        ) >> operators.LakeopsCommitOperator(
            task_id="commit", branch="load-1", message="load", repo="flights", lakeops_conn_id="mine"
        )
    run = known(dag).test()
    assert set(states(run).values()) == {"success"}
    return f"load/runs/{quote(run.run_id, safe='')}"


@pytest.fixture(scope="module")
def site(airflow_database, lake_home, flights):
    """Airflow's web server on a port of loopback: the address that it begins with."""
    import uvicorn
    from airflow.api_fastapi.app import create_app, purge_cached_app

    listening = socket.create_server(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    settings = {
        "AIRFLOW__API__BASE_URL": address,
        "AIRFLOW_CONN_MINE": json.dumps({"conn_type": "lakeops", "host": str(lake_home)}),
        "AIRFLOW_CONN_DOWN": json.dumps({"conn_type": "lakeops", "extra": {"database_url": NOWHERE}}),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        purge_cached_app()
        app = create_app(apps="core")
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        until(lambda: server.started, "the web server", within=60)
        yield address
        server.should_exit = True
        thread.join(30)
        purge_cached_app()


@pytest.fixture(scope="module")
def browser():
    """Debian's Chromium. Root may start it only without its sandbox; it sees nothing but these pages."""
    from playwright.sync_api import sync_playwright

    where = shutil.which("chromium")
    assert where is not None, "make test-web installs it"
    switches = [
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-quic",
        "--disable-background-networking",
        "--disable-component-update",
    ]
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=where, args=[*switches, "--disable-sync"])
        yield opened
        opened.close()


@pytest.fixture
def visit(browser, site):
    """Opens a tab as a person of a role; whatever the browser complains of fails the test at its end."""

    @contextmanager
    def opened(role, size="wide", scheme="light", *, calm=True):
        width, height = SIZES[size]
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
        context.set_default_timeout(PATIENCE)
        if role is not None:
            context.add_cookies([{"name": "_token", "value": _token(role), "url": site}])
        tab = context.new_page()
        complaints: list[str] = []
        tab.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        try:
            yield tab
        finally:
            context.close()
        assert not calm or not complaints

    return opened


def _token(role):
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    found: str = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username="ada", role=role))
    return found


STATUSES = {"missing": 404, "senseless": 400, "expired": 410, "broken": 500, "down": 503}
"""Of pages that cannot be shown."""


def pages(repo):
    root = "/lakeops/mine"
    head = repo.ref("dev").commit_id
    return {
        "lakes": "/lakeops/",
        "repositories": f"{root}",
        "audit-of-all": f"{root}/_audit",
        "branches": f"{root}/flights",
        "tags": f"{root}/flights/tags",
        "history": f"{root}/flights/ref/main",
        "commit": f"{root}/flights/commit/{head}",
        "objects": f"{root}/flights/tree/dev?prefix=flights/day=1/",
        "object": f"{root}/flights/object/dev?path=flights/day=1/part-0.csv",
        "uncommitted": f"{root}/flights/uncommitted/dev",
        "blame": f"{root}/flights/blame/dev",
        "versions": f"{root}/flights/versions/dev?path=README.md",
        "change": f"{root}/flights/change?before=main&after=dev&path=README.md",
        "compare": f"{root}/flights/diff?left=main&right=dev",
        "collection": f"{root}/flights/gc",
        "mirror": f"{root}/flights/mirror",
        "checks": f"{root}/flights/integrity",
        "moves": f"{root}/flights/moves",
        "audit": f"{root}/flights/audit",
        "search": f"{root}/flights/search?q=day",
        "schema": f"{root}/flights/change?before=main&after=dev&path=delays.parquet",
        "deleted": f"{root}/flights/ref/gone",
        "damaged": f"{root}/damaged/integrity",
        "mirrored": f"{root}/copy/mirror",
        "form": f"{root}/flights/act/merge?source=dev&destination=main",
        "missing": f"{root}/flights/ref/nosuch",
        "senseless": f"{root}/flights/ref/ma..in",
        "expired": f"{root}/flights/tree/{last_of(repo, 'lost')}",
        "broken": f"{root}/damaged/tree/main",
        "down": "/lakeops/down",
    }


def _keep(tab, name):
    if folder := os.environ.get("LAKEOPS_SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        tab.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_every_page_can_be_read_by_everybody(flights, loaded, site, visit, size, scheme):
    from axe_playwright_python.sync_playwright import Axe

    axe = Axe()
    found: dict[str, list[str]] = {}
    with visit("admin", size, scheme, calm=False) as tab:
        for name, path in pages(flights).items():
            answer = tab.goto(site + path)
            assert answer is not None
            assert answer.status == STATUSES.get(name, 200), path
            _keep(tab, f"{name}-{size}-{scheme}")
            sideways = tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            if sideways > 0:
                found[name] = [f"wider than the window by {sideways} pixels"]
            broken = [one for one in axe.run(tab).response["violations"] if one["impact"] in {"serious", "critical"}]
            if broken:
                found.setdefault(name, []).extend(f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in broken)
    assert not found


def test_nothing_that_a_repository_holds_is_run(flights, site, visit):
    with visit("admin", calm=False) as tab:
        asked: list[str] = []
        tab.on("dialog", lambda dialog: asked.append(dialog.message))
        for name, path in pages(flights).items():
            tab.goto(site + path)
            policy = "document.querySelectorAll('script:not(:first-of-type), [onclick], [onerror], iframe').length"
            assert tab.evaluate(policy) == 0, name
        assert not asked


def test_the_browser_has_nothing_to_complain_of(flights, loaded, site, visit):
    with visit("admin") as tab:
        for name, path in pages(flights).items():
            if name not in STATUSES:  # a browser reports every 404 as an error
                tab.goto(site + path)


@pytest.mark.parametrize(("role", "status", "told"), [("viewer", 403, "Not allowed"), (None, 401, "Log in")])
def test_who_may_not_read_the_connection_is_told_so(flights, site, visit, role, status, told):
    with visit(role, calm=False) as tab:
        for name, path in pages(flights).items():
            if name == "lakes":
                continue
            answer = tab.goto(site + path)
            assert answer is not None
            assert answer.status == status, name
            assert told in tab.inner_text("main")
            assert "EWR" not in tab.content()
            assert "part-0" not in tab.inner_text("body")  # the address of the link to log in has what was asked for
        _keep(tab, f"refused-{status}")


def test_one_can_click_from_the_lakes_to_an_object(site, visit):
    with visit("admin") as tab:
        tab.goto(f"{site}/lakeops/")
        for link in ("mine", "flights", "dev", "Objects", "flights/", "day=1/", "part-0.csv"):
            tab.get_by_role("link", name=link, exact=True).first.click()
        assert tab.get_by_role("heading", name="part-0.csv").is_visible()
        assert "EWR" in tab.inner_text("main")
        tab.get_by_role("link", name="blame and versions").click()
        tab.get_by_role("link", name="added").click()
        assert "There was no object" in tab.inner_text("main")


def test_airflows_navigation_leads_to_them(flights, site, visit):
    with visit("admin", calm=False) as tab:
        tab.goto(f"{site}/")
        tab.get_by_role("button", name="Browse").click()
        _keep(tab, "frame-menu")
        tab.get_by_role("menuitem", name="Lakeops").click()
        tab.frame_locator("iframe").get_by_role("heading", name="Lakes").wait_for()


def test_the_keyboard_is_enough(site, visit):
    with visit("admin") as tab:
        tab.goto(f"{site}/lakeops/mine/flights")
        tab.keyboard.press("Tab")
        assert tab.evaluate("document.activeElement.className") == "skip"
        tab.keyboard.press("/")
        assert tab.evaluate("document.activeElement.id") == "q"
        tab.keyboard.type("dev")
        tab.keyboard.press("Enter")
        tab.wait_for_url("**q=dev")
        assert "load-1" not in tab.inner_text("main")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_airflow_shows_them_in_its_frame_and_its_colours(site, visit, theme):
    other = {"light": "dark", "dark": "light"}[theme]
    with visit("admin", scheme=other, calm=False) as tab:
        tab.add_init_script(f"localStorage.setItem('theme', '{theme}')")
        tab.goto(f"{site}/plugin/lakeops")
        frame = tab.frame_locator("iframe")
        frame.get_by_role("link", name="mine", exact=True).click()
        frame.get_by_role("link", name="flights", exact=True).click()
        frame.get_by_role("link", name="load-1", exact=True).wait_for()
        _keep(tab, f"frame-{theme}")
        dark = "getComputedStyle(document.body).backgroundColor"
        shown = frame.locator("body").evaluate(dark)
        assert (sum(map(int, shown.removeprefix("rgb(").removesuffix(")").split(","))) < 384) == (theme == "dark")


def test_a_form_triggers_its_dag_and_leads_to_the_run(flights, loaded, site, visit):
    with visit("admin", calm=False) as tab:
        tab.goto(f"{site}/plugin/lakeops")
        frame = tab.frame_locator("iframe")
        for link in ("mine", "flights", "dev", "Merge"):
            frame.get_by_role("link", name=link, exact=True).first.click()
        assert frame.get_by_label("Source").input_value() == "dev"
        assert frame.get_by_label("Dry run").is_checked()
        _keep(tab, "frame-form")
        frame.get_by_role("button", name="Trigger").click()
        tab.wait_for_url("**/dags/lakeops_merge/runs/**")


def test_airflows_page_of_a_run_shows_what_it_did(flights, loaded, site, visit):
    with visit("admin", calm=False) as tab:
        tab.goto(f"{site}/dags/{loaded}")
        tab.get_by_role("link", name="Lakeops").last.click()
        frame = tab.frame_locator("iframe")
        frame.get_by_text("What this run did in lakes").wait_for()
        assert "1 added" in frame.locator("main").inner_text()
        _keep(tab, "frame-run")
        frame.get_by_role("link", name="commit", exact=True).first.click()
        frame.get_by_role("link", name="task commit of load").wait_for()
        _keep(tab, "frame-commit")
        frame.get_by_role("link", name="task commit of load").click()
        tab.wait_for_url(f"**/dags/{loaded}/tasks/commit**")
