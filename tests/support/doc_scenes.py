"""The set-up before the blocks of a page are run, and the steps between them that readers need not see."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import takewhile
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pandas as pd
import psycopg
import pytest
from support.doc_pages import Session, blocks
from support.errors import raising

from lakeops import Lake, Repository
from lakeops.model.clock import SystemClock
from lakeops.store.base import StoreSettings
from lakeops.store.s3.client import client

END = "the end of the page"


@dataclass
class Scene:
    """Where a page is run.

    Attributes:
        place: a directory of its own. The working directory is in it.
        patch: for the environment.
        service: gives a fixture of pytest by its name.
        session: runs the blocks.
    """

    place: Path
    patch: pytest.MonkeyPatch
    service: Callable[[str], Any]
    session: Session = field(default_factory=Session)

    def run(self, page: str, between: Callable[[Scene], Iterator[str] | None], lane: str = "") -> None:
        """Run the blocks of a lane. ``between`` yields a text of the block before which it goes on, or ``END``."""
        steps = between(self) or iter(())
        mark = next(steps, None)
        for block in blocks(page, lane):
            while mark is not None and mark in block.text:
                mark = next(steps, None)
            self.session.run(block)
        if mark == END:
            mark = next(steps, None)
        assert mark is None, f"{page} shows no {mark!r} any more"

    def begin(self, until: str | None = None) -> None:
        """Run what a newcomer reads first: the quickstart, to its end or to the block that has a text."""
        for block in takewhile(lambda block: until is None or until not in block.text, blocks("quickstart.md", "")):
            self.session.run(block)

    def bucket(self, *names: str) -> None:
        """Buckets of this page's own for those that it shows, on a server that the settings name."""
        endpoint = self.service("moto_endpoint")
        for variable in ("LAKEOPS_S3_ENDPOINT_URL", "AWS_ENDPOINT_URL"):
            self.patch.setenv(variable, endpoint)
        for name in names:
            ours = f"{name}-{uuid.uuid4().hex[:8]}"
            client(StoreSettings(endpoint_url=endpoint)).create_bucket(Bucket=ours)
            self.session.replaced[f"s3://{name}"] = f"s3://{ours}"

    def url(self, text: str) -> str:
        """The value that stands for an address of the page."""
        return self.session.as_run(text)

    def later(self, days: int) -> None:
        """From here on it is so many days later."""
        now = SystemClock().now
        self.patch.setattr(SystemClock, "now", lambda _self: now() + timedelta(days=days))

    def home(self, name: str) -> None:
        """From here on another lake is used."""
        self.patch.setenv("LAKEOPS_HOME", str(self.place / name))


def nothing(at: Scene) -> None:
    """The page makes all that it needs."""


def shop(_at: Scene | None = None) -> Repository:
    """A repository with two tables, published by a merge and tagged."""
    lake = Lake.open()
    repo = lake.create_repository("shop")
    load = repo.create_branch("load-1")
    load.put("customers.csv", b"id,name\n1,Ada\n2,Grace\n")
    load.put("orders.csv", b"id,amount\n1,10\n2,20\n")
    load.commit("Load day 1")
    repo.merge("load-1", "main")
    repo.create_tag("v1", "main")
    return repo


def partitioned(at: Scene) -> None:
    """The tables, with one of two days in a folder each."""
    main = shop().branch("main")
    for day in (1, 2):
        with main.output(f"orders/day={day}/") as url:
            pd.DataFrame({"id": [day], "amount": [10 * day]}).to_parquet(url.file("part-0.parquet"))
    main.commit("Orders by day")


def flights(namespace: str | None = None, lake: Lake | None = None) -> Repository:
    """A repository with two commits, and a branch with one of its own."""
    repo = (lake or Lake.open()).create_repository("flights", storage_namespace=namespace)
    main = repo.branch("main")
    main.put("raw/a.csv", b"1,2\n")
    main.commit("day 1")
    main.put("raw/b.csv", b"3,4\n")
    main.commit("day 2")
    repo.create_branch("dev", source="main").put("raw/c.csv", b"5\n")
    repo.branch("dev").commit("day 3")
    return repo


def flights_made(at: Scene) -> None:
    flights()


def hooked(at: Scene) -> Iterator[str]:
    """After the quickstart, with the hook that the page shows installed. The block that can be repeated runs twice."""
    at.begin()
    shown = {block.language: block.text for block in blocks("publish.md") if "need_a_ticket" in block.text}
    site = at.place / "site"
    (site / "ourlake").mkdir(parents=True)
    (site / "ourlake" / "__init__.py").touch()
    (site / "ourlake" / "hooks.py").write_text(shown["python"])
    info = site / "ourlake-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ourlake\nVersion: 1.0\n")
    section = re.sub(r'\[project.entry-points."(.*)"\]', r"[\1]", shown["toml"])
    (info / "entry_points.txt").write_text(section.replace('"', ""))
    at.patch.syspath_prepend(str(site))
    yield "idempotency_key="
    at.session.run(next(block for block in blocks("publish.md") if "idempotency_key=" in block.text))


def trying_collection(at: Scene) -> Iterator[str]:
    """Time passes where the page waits."""
    at.patch.setenv("LAKEOPS_GRACE_HOURS", "24")  # the page sets it, and it goes with the test
    yield "gc mark lakefs://trial --dry-run"
    at.later(1)
    yield "gc confirm-clock"
    at.later(8)


def moved_from_lakefs(at: Scene) -> Iterator[str]:
    """A server that lists objects as lakeFS's API does, two pages of them, and the bucket in which they lie."""
    at.bucket("lake", "lakefs")
    bucket = at.url("s3://lakefs").removeprefix("s3://")
    s3 = client(StoreSettings(endpoint_url=at.service("moto_endpoint")))
    rows = []
    for number in range(3):
        etag = s3.put_object(Bucket=bucket, Key=f"data/g{number}", Body=f"{number}\n".encode())["ETag"].strip('"')
        address = f"s3://{bucket}/data/g{number}"
        rows.append({"path": f"raw/{number}.csv", "path_type": "object", "physical_address": address, "checksum": etag})
        rows[-1] |= {"size_bytes": 2, "mtime": 1_760_000_000, "content_type": "text/csv"}
        rows[-1] |= {"metadata": {"number": f"{number}", "source": "web"}} if number else {}

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            assert url.path == "/api/v1/repositories/shop/refs/main/objects/ls"
            assert self.headers["Authorization"] == "Basic a2V5OnNlY3JldA=="
            start = parse_qs(url.query).get("after", ["raw/"])[0]
            page = [row for row in rows if row["path"] > start][:2]
            last = page[-1]["path"]
            more = {
                "has_more": last != rows[-1]["path"],
                "next_offset": last,
                "results": len(page),
                "max_per_page": 1000,
            }
            body = json.dumps({"pagination": more, "results": page}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    Thread(target=server.serve_forever, daemon=True).start()
    for ending in (server.server_close, server.shutdown):
        at.service("request").addfinalizer(ending)
    at.session.names |= {"SERVER": f"http://127.0.0.1:{server.server_port}", "KEY": "key", "SECRET": "secret"}
    yield END
    moved = {entry.path: entry.metadata for entry in at.session.names["branch"].list()}
    assert moved == {row["path"]: row.get("metadata", {}) for row in rows}


def written(at: Scene) -> None:
    """A repository in a bucket."""
    at.bucket("bucket")
    Lake.open().create_repository("shop", storage_namespace=at.url("s3://bucket/shop"))


def backup(at: Scene) -> Iterator[str]:
    """A repository in a bucket, whose catalog is lost before the page restores it."""
    at.bucket("bucket")
    at.patch.setenv("HOME", str(at.place))
    at.home(".lakeops")
    (at.place / "backup").mkdir()
    (at.place / "new").mkdir()
    at.session.replaced |= {f"/{name}/": f"{at.place}/{name}/" for name in ("backup", "new")}
    flights(at.url("s3://bucket/flights"))
    yield "repo adopt"
    with Lake.open() as restored, raising("not_the_owner"):
        restored.repository("flights").gc.mark()
    yield "refs restore"
    at.home(".lakeops")
    shutil.rmtree(at.place / ".lakeops")


def failed_over(at: Scene) -> None:
    """A mirror that lags behind a source which cannot be reached."""
    mirrored(at)
    with Lake.open(home=at.place / "source") as source:
        main = source.repository("flights").branch("main")
        for number in range(3):
            main.put("more", str(number).encode())
            main.commit(f"more {number}")
    with Lake.open() as lake:
        lake.mirror("flights").sync()
    shutil.rmtree(at.place / "source")


def mirrored(at: Scene) -> None:
    """A mirror that has caught up, of a repository in another lake."""
    with Lake.open(home=at.place / "source") as source:
        flights(lake=source)
    shutil.copytree(at.place / "source" / "storage" / "flights", at.place / "replica")
    namespace, followed = (at.place / "replica").as_uri(), f"{at.place}/source#flights"
    with Lake.open() as lake:
        lake.create_mirror("flights", storage_namespace=namespace, source=followed).sync()


def mirroring(at: Scene) -> Iterator[str]:
    """A source in one bucket, and another bucket."""
    at.bucket("flights-eu", "source")
    at.session.replaced["postgresql+psycopg://mirror@db.us/lakeops"] = str(at.place / "source")
    with Lake.open(home=at.place / "source") as source:
        flights(at.url("s3://source/flights"), source)
    yield "mirror registrations"
    at.home("source")
    with Lake.open() as source:
        at.session.replaced["NAME"] = source.repository("flights").registrations()[0].id


def replication(at: Scene) -> Iterator[str]:
    """A repository in a bucket, then one on a disk."""
    at.bucket("flights", "flights-eu")
    flights(at.url("s3://flights/flights"))
    yield "mirror replicate"
    at.home("local")
    at.session.replaced["/mnt/backup"] = f"{at.place}/mnt"
    repo = flights()
    repo.branch("main").put("more", b"x")


def checked(at: Scene) -> None:
    """A repository of which an object is gone."""
    at.session.names["repo"] = repo = flights()
    Path(urlsplit(repo.ref("main").stat("raw/a.csv").physical_address).path).unlink()


def collected(at: Scene) -> Iterator[str]:
    """An object that nothing refers to, and the rules that the page shows. A bucket takes the rule for it."""
    rules, lifecycle = (block.text for block in blocks("gc.md") if block.language == "json")
    (at.place / "work" / "rules.json").write_text(rules)
    repo = flights()
    repo.branch("dev").put("a", b"12")
    repo.branch("dev").put("a", b"3")
    at.later(60)
    repo.gc.confirm_clock()
    yield "gc grace"
    at.bucket("flights")
    client(StoreSettings(endpoint_url=at.service("moto_endpoint"))).put_bucket_lifecycle_configuration(
        Bucket=at.url("s3://flights").removeprefix("s3://"), LifecycleConfiguration=json.loads(lifecycle)
    )


def operated(at: Scene) -> Iterator[str]:
    """A PostgreSQL server on which the page makes a role and a database, of names of the test's own."""
    socket = at.service("postgres_socket")
    name = f"page_{uuid.uuid4().hex[:8]}"
    at.session.replaced |= {
        "CREATE ROLE lakeops": f"CREATE ROLE {name}",
        "DATABASE lakeops OWNER lakeops": f"DATABASE {name} OWNER {name}",
        "postgresql+psycopg://lakeops@db.internal/lakeops": f"postgresql+psycopg://{name}@/{name}?host={quote(socket)}",
    }
    at.patch.setenv("LAKEOPS_DATABASE_URL", "none")  # the page sets it, and it goes with the test
    with psycopg.connect(f"host={socket} user=postgres dbname=postgres", autocommit=True) as admin:
        at.session.sql = admin.execute
        yield "default_retention_days"


def teamed(at: Scene) -> None:
    """A catalog of a team, with a login that a commit names."""
    login = f"page_{uuid.uuid4().hex[:8]}"
    at.patch.setenv("LAKEOPS_DATABASE_URL", at.service("empty_postgres_url"))
    at.session.replaced["airflow"] = login
    socket = at.service("postgres_socket")
    with psycopg.connect(f"host={socket} user=postgres dbname=postgres", autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {login} LOGIN")
    flights()


def imported(at: Scene) -> Iterator[str]:
    """A bucket that gets more objects."""
    at.bucket("raw")
    bucket = at.url("s3://raw").removeprefix("s3://")
    s3 = client(StoreSettings(endpoint_url=at.service("moto_endpoint")))
    at.session.names["repo"] = repo = flights()
    repo.create_branch("take-over", source="main")
    s3.put_object(Bucket=bucket, Key="events/day=1", Body=b"1")
    yield "import_objects"
    s3.put_object(Bucket=bucket, Key="events/day=2", Body=b"2")


PAGES: dict[str, Callable[[Scene], Iterator[str] | None]] = {
    "README.md": nothing,
    "backup.md": backup,
    "failover.md": failed_over,
    "fsck.md": checked,
    "gc.md": collected,
    "import.md": imported,
    "lakefs.md": moved_from_lakefs,
    "local.md": Scene.begin,
    "mirroring.md": mirroring,
    "operating.md": operated,
    "publish.md": hooked,
    "python.md": flights_made,
    "quickstart.md": nothing,
    "read.md": partitioned,
    "releases.md": nothing,
    "replication.md": replication,
    "roll-back.md": lambda at: at.begin(until="branch revert"),
    "settings.md": nothing,
    "team.md": teamed,
    "try-gc.md": trying_collection,
    "who-broke-it.md": lambda at: at.patch.setenv(
        "PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ),
    "write.md": written,
}
"""Pages whose blocks need no service, and what is done before and between them."""
