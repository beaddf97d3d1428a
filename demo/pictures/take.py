"""The pictures of the documentation, taken in Chromium of a real Airflow and a lake that was made for them.

    make pictures LAKE=/srv/lake

The pictures show where the lake is. Each is taken 1440 and 390 pixels wide. Those that the documentation shows are
written to ``docs/``, the other narrow ones to ``build/pictures/``. Look at every one of them before you commit.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "demo" / "airflow"))

from lake import DAYS, TRIED, fill  # noqa: E402 - beside this file
from playwright.sync_api import sync_playwright  # noqa: E402
from rest import Rest  # noqa: E402 - in the folder above
from serve import Server  # noqa: E402

from lakeops import Lake, Settings  # noqa: E402
from lakeops.testing import ManualClock  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import FrameLocator, Page

DOCS, OTHERS = ROOT / "docs", ROOT / "build" / "pictures"
CONNECTION, REPOSITORY = "production", "flights"
WIDTH, HEIGHT = 1440, 900
NARROW_WIDTH, NARROW_HEIGHT = 390, 844
SHOWN_NARROW = {"pages-compare", "pages-repositories"}
LOWER = {"pages-repositories": 420, "airflow-pages": 620, "airflow-approval": 860}
"""Heights of pictures with little on them."""
DAG, RUN = "publish_day", "day-15"
RUN_SECONDS = 240
PAGES = {
    "pages-repositories": "",
    "pages-history": f"/{REPOSITORY}/ref/main",
    "pages-compare": f"/{REPOSITORY}/diff?left=main&right=dev",
    "pages-change": f"/{REPOSITORY}/change?before=main&after=dev&path={TRIED}",
    "pages-gc": f"/{REPOSITORY}/gc",
}
"""Pictures of the pages alone."""


def main() -> None:
    """Make the lake, start Airflow, take the pictures, and stop it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lake", type=Path, required=True, help="where the lake is made; what is there goes")
    parser.add_argument("--only", default="", help="pictures whose names have this")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # what was started ends with it
    home = given.lake.resolve()
    OTHERS.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(home, ignore_errors=True)
    clock = ManualClock(datetime.now(UTC) - timedelta(days=DAYS + 1))
    with Lake.open(settings=Settings.load(home=home, committer="ada"), clock=clock) as lake:
        fill(lake, clock)
    with airflow(home) as server, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        rest = Rest(server.url, server.password)
        context = chromium.new_context(
            viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light", base_url=server.url
        )
        context.add_cookies([{"name": "_token", "value": rest.token, "url": server.url}])
        context.set_default_timeout(60_000)
        tab = context.new_page()
        for name, path in PAGES.items():
            if given.only in name:
                tab.goto(f"/lakeops/{CONNECTION}{path}")
                shoot(tab, name)
        for name, show in {"airflow-pages": branches, "airflow-form": form, "airflow-approval": approval}.items():
            if given.only in name:
                show(tab, rest)
                shoot(tab, name)
        chromium.close()


@contextmanager
def airflow(lake: Path) -> Iterator[Server]:
    """Airflow with a connection to the lake, in a directory that goes with it."""
    connection = json.dumps({"conn_type": "lakeops", "host": str(lake)})
    with tempfile.TemporaryDirectory(prefix="lakeops-pictures-") as place:
        settings = {f"AIRFLOW_CONN_{CONNECTION.upper()}": connection}
        server = Server(Path(place), dags=Path(__file__).with_name("dags"), settings=settings)
        server.start(patience=lambda what: print(f"Starting Airflow: {what} ...", flush=True))
        try:
            yield server
        finally:
            server.stop()


def approval(tab: Page, rest: Rest) -> None:
    """The question that a run asks before it publishes."""
    rest.wait_for_dag(DAG, RUN_SECONDS)
    rest.unpause(DAG)
    rest.trigger(DAG, RUN, None, {})
    begun = time.monotonic()
    task = "publish.approve"
    while rest.task_states(DAG, RUN).get(task) not in {"deferred", "awaiting_input"}:
        if time.monotonic() - begun > RUN_SECONDS:
            raise SystemExit(f"{task} did not ask within {RUN_SECONDS} s: {rest.task_states(DAG, RUN)}")
        time.sleep(1)
    tab.goto(f"/dags/{DAG}/runs/{RUN}/tasks/{task}/required_actions")
    tab.get_by_role("button", name="Approve").wait_for()


def form(tab: Page, rest: Rest) -> None:
    """A form, filled in by the page that led to it."""
    rest.wait_for_dag("lakeops_merge", RUN_SECONDS)
    rest.unpause("lakeops_merge")
    frame = branches(tab, rest)
    frame.get_by_role("link", name="Merge", exact=True).first.click()
    frame.get_by_role("button", name="Trigger").wait_for()


def branches(tab: Page, _rest: Rest) -> FrameLocator:
    """The branches of a repository, inside Airflow's frame."""
    tab.goto("/plugin/lakeops")
    frame = tab.frame_locator("iframe")
    for link in (CONNECTION, REPOSITORY):
        frame.get_by_role("link", name=link, exact=True).click()
    frame.get_by_role("heading", name=REPOSITORY).wait_for()
    return frame


def shoot(tab: Page, name: str) -> None:
    """Write a wide and a narrow picture."""
    narrow = f"{name}-narrow"
    for width, height, file in (
        (NARROW_WIDTH, NARROW_HEIGHT, (DOCS if name in SHOWN_NARROW else OTHERS) / f"{narrow}.png"),
        (WIDTH, LOWER.get(name, HEIGHT), DOCS / f"{name}.png"),
    ):
        tab.set_viewport_size({"width": width, "height": height})
        tab.wait_for_load_state("networkidle")
        tab.screenshot(path=file)
        print(file.relative_to(ROOT), flush=True)


if __name__ == "__main__":
    main()
