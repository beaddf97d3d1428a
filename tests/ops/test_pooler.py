"""A catalog behind PgBouncer, which hands connections out by transaction, while connections break on either side."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import psycopg
import pytest
from services.pgbouncer import pgbouncer
from sqlalchemy import event
from support.errors import raising

from lakeops import Lake, Settings
from lakeops.model.errors import LakeopsError, Transient

ROUNDS = 6
pytestmark = pytest.mark.slow


@pytest.fixture
def pooler(postgres_socket):
    with pgbouncer(postgres_socket, default_pool_size=8, server_login_retry=1) as pooler:
        yield pooler


class Breaker:
    """Breaks all connections of a database after a number of statements, and one more each time.

    By turns the server's side breaks and the pooler's.
    """

    def __init__(self, lake, straight, pooler, often):
        self._straight, self._pooler, self._often = straight.replace("+psycopg", ""), pooler, often
        self._database = urlsplit(straight).path.strip("/")
        self._statements = self.breaks = 0
        self._lock = threading.Lock()
        event.listen(lake.catalog.database.engine, "before_cursor_execute", self._count)

    def _count(self, *_):
        with self._lock:
            self._statements += 1
            if self._statements < self._often:
                return
            self._statements, self._often = 0, self._often + 1
            self.breaks += 1
            if self.breaks % 2:
                with psycopg.connect(self._straight, autocommit=True) as admin:
                    admin.execute(
                        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                    )
            else:
                self._pooler.drop_connections(self._database)


@pytest.mark.parametrize(("often", "tries"), [(5, 2), (20, 5)])
def test_broken_connections_lose_nothing_and_do_nothing_twice(
    tmp_path, empty_postgres_url, pooler, monkeypatch, often, tries
):
    monkeypatch.setattr("lakeops.catalog.database.TRIES", tries)
    url = pooler.url(urlsplit(empty_postgres_url).path.strip("/"))
    settings = Settings.load(home=tmp_path, database_url=url, fsync=False, committer="ada")
    with Lake.open(settings=settings) as lake:
        repo = lake.create_repository("shop")
        for name in ("one", "two"):
            repo.create_branch(name, "main")
        breaker = Breaker(lake, empty_postgres_url, pooler, often)
        refusals: Counter[str] = Counter()

        def until_done(call):
            for _ in range(100):
                try:
                    call()
                except Transient as error:
                    refusals[error.message] += 1
                    assert "\n" not in error.message
                else:
                    return
            pytest.fail(f"never done: {refusals}")

        def work(name):
            branch = repo.branch(name)
            for number in range(ROUNDS):
                path, key = f"{name}/{number}", f"{name}-{number}"
                until_done(lambda path=path: branch.put(path, path.encode()))
                until_done(lambda path=path, key=key: branch.commit(f"put {path}", idempotency_key=key))
                until_done(
                    lambda path=path, key=key: repo.merge(
                        name, "main", message=f"merge {path}", idempotency_key=f"merge-{key}"
                    )
                )

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(work, ["one", "two"]))
    assert breaker.breaks > 3
    with Lake.open(settings=settings) as lake:
        repo = lake.repository("shop")
        paths = {f"{name}/{number}" for name in ("one", "two") for number in range(ROUNDS)}
        assert {item.path: repo.ref("main").read(item.path).decode() for item in repo.ref("main").list()} == {
            path: path for path in paths
        }
        said = Counter(commit.message for commit in repo.log("main"))
        assert {message: said[message] for message in said if message.startswith(("put", "merge"))} == {
            f"{what} {path}": 1 for what in ("put", "merge") for path in paths
        }
        assert not list(repo.branch("one").uncommitted())
        assert [finding for finding in repo.fsck() if finding.severity.value != "info"] == []


def test_a_pooler_that_gives_no_connection_is_an_unavailable_catalog(
    tmp_path, empty_postgres_url, postgres_socket, monkeypatch
):
    monkeypatch.setattr("lakeops.catalog.database.TRIES", 2)
    database = urlsplit(empty_postgres_url).path.strip("/")
    with pgbouncer(postgres_socket, default_pool_size=1, query_wait_timeout=1) as pooler:
        settings = Settings.load(home=tmp_path, database_url=pooler.url(database), fsync=False)
        straight = pooler.url(database).replace("+psycopg", "")
        with Lake.open(settings=settings) as lake:
            repo = lake.create_repository("shop")
            with psycopg.connect(straight) as holder:
                holder.execute("SELECT 1")  # the transaction keeps the only connection
                with raising("catalog_unavailable", "query_wait_timeout"):
                    repo.branch("main").put("a", b"1")
            repo.branch("main").put("a", b"1")


def test_a_pooler_without_a_server_is_an_unavailable_catalog(tmp_path, monkeypatch):
    monkeypatch.setattr("lakeops.catalog.database.TRIES", 2)
    with pgbouncer("/nowhere", server_login_retry=1, query_wait_timeout=2) as pooler:
        settings = Settings.load(home=tmp_path, database_url=pooler.url("lake"), fsync=False)
        with pytest.raises(LakeopsError) as caught:
            Lake.open(settings=settings)
    assert caught.value.kind == "catalog_unavailable"
