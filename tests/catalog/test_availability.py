import os
import re
import socket
import sqlite3
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import psycopg
import pyarrow as pa
import pytest
from pydantic import SecretStr
from services.postgres import fresh_database, postgres_server
from sqlalchemy import event
from support.catalogs import REPO, an_entry, create, everything, paths, put, seal
from support.errors import raising
from support.forked import run_forked
from support.quick_catalogs import no_waits_for_the_disk

from lakeops import Lake, Settings
from lakeops.catalog import postgres
from lakeops.catalog.guards import lock_branch, lock_repository
from lakeops.catalog.records import Staged
from lakeops.model.clock import SystemClock
from lakeops.model.errors import CatalogError, LakeopsError

SECRET = "hush%40-very:secret"
PLAIN = "hush@-very:secret"


def no_secret(error):
    """Nothing that a traceback would print of an error tells the password."""
    shown = "".join(traceback.format_exception(error))
    messages = "\n".join(line for line in shown.splitlines() if not line.startswith("  "))
    assert "hush" not in messages
    assert "secret" not in messages


def test_a_locked_sqlite_catalog_is_a_transient_error(sqlite_url, opened, tmp_path, caplog):
    catalog = opened(f"{sqlite_url}?timeout=0.05")
    create(catalog)
    holder = sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    said = r"not available.*catalog\.db.*database is locked; waited \d+\.\d s in 5 tries$"
    with raising("catalog_unavailable", said):
        put(catalog, an_entry("a"))
    assert [record.levelname for record in caplog.records if record.name == "lakeops.catalog"] == ["WARNING"] * 5
    assert not catalog.staging.has_staged(REPO, "main")  # readers go on
    holder.execute("ROLLBACK")
    holder.close()
    put(catalog, an_entry("a"))


@pytest.mark.parametrize("options", ["timeout=abc", "timeout=nan", "timeout=1&timeout=2", "timeout=-1", "foo=1"])
def test_an_option_that_sqlite_does_not_take_is_refused(sqlite_url, opened, options):
    with raising("invalid_settings", r"no option but \?timeout=SECONDS"):
        opened(f"{sqlite_url}?{options}")


def test_a_sqlite_writer_waits_its_turn(sqlite_url, opened, tmp_path):
    catalog = opened(sqlite_url)
    create(catalog)
    holder = sqlite3.connect(tmp_path / "catalog.db", isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.3, lambda: holder.execute("ROLLBACK"))
    release.start()
    put(catalog, an_entry("a"))
    release.join()
    holder.close()


def test_sqlite_is_durable_and_logs_ahead(sqlite_url, opened):
    with no_waits_for_the_disk(wanted=False):
        facts = opened(sqlite_url).describe()
    assert (facts["journal_mode"], facts["synchronous"]) == ("wal", "2")
    assert facts["dialect"] == "sqlite"


def test_a_sqlite_file_that_may_not_be_written_is_said(sqlite_url, opened):
    catalog = opened(sqlite_url)
    create(catalog)
    engine = catalog.database.engine
    event.listen(engine, "checkout", lambda connection, *_: connection.execute("PRAGMA query_only = ON"))
    with raising("catalog_error", r"readonly database.*write the file, its folder, and the files -wal and -shm"):
        put(catalog, an_entry("a"))


def test_a_directory_that_cannot_be_made_is_said(tmp_path, opened):
    (tmp_path / "file").write_text("")
    with pytest.raises(CatalogError, match="cannot make the catalog's directory"):
        opened(f"sqlite:///{tmp_path}/file/catalog.db")
    opened(f"sqlite:///{tmp_path}/made/for/it/catalog.db")


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        (f"postgresql+psycopg://ada:{SECRET}@127.0.0.1:1/lake", "catalog_unavailable"),
        (f"postgresql://ada@127.0.0.1:1/lake?password={SECRET}", "catalog_unavailable"),
        (f"postgresql+psycopg://ada:{SECRET}@/lake?host=/nowhere&connect_timeout=1", "catalog_unavailable"),
        ("postgresql+psycopg://ada:12/hush@127.0.0.1:1/lake", "catalog_unavailable"),
        ("postgresql+psycopg://ada:12?hush@127.0.0.1:1/lake", "catalog_unavailable"),
        (f"postgresql+psycopg://ada:{PLAIN}@127.0.0.1:1/lake", "invalid_settings"),
        (f"postgresql+psycopg://ada:{SECRET}@127.0.0.1:port/lake", "invalid_settings"),
        (f"postgresql+psycopg://ada:{SECRET}@127.0.0.1:1/la@ke", "invalid_settings"),
        ("postgresql+psycopg://ada:#hush@127.0.0.1:1/lake?application_name=secret@x", "invalid_settings"),
        (f"postgresql+psycopg://ada:{SECRET}@127.0.0.1:1/lake?sslpassword={SECRET}&nonsense=1", "catalog_error"),
    ],
)
def test_a_server_that_is_not_there_is_named_without_its_password(opened, url, kind, monkeypatch):
    monkeypatch.setattr("lakeops.catalog.database.TRIES", 2)
    with pytest.raises(LakeopsError) as caught:
        opened(url)
    no_secret(caught.value)
    assert "\n" not in caught.value.message
    assert caught.value.kind == kind


def test_a_wrong_password_is_not_repeated_back(postgres_socket, opened, monkeypatch, shared_postgres_url):
    monkeypatch.setattr("lakeops.catalog.database.TRIES", 2)
    with pytest.raises(LakeopsError) as caught:
        opened(f"postgresql+psycopg://nobody:{SECRET}@/nothing?host={postgres_socket}")
    no_secret(caught.value)


def test_descriptions_hold_no_secret(postgres_url, opened):
    catalog = opened(postgres_url.replace("postgres@", f"postgres:{SECRET}@"))
    facts = catalog.describe()
    assert facts["dialect"] == "postgresql"
    assert facts["server_encoding"] == "UTF8"
    assert "hush" not in str(facts) + repr(catalog) + repr(catalog.database.engine)


def test_errors_hold_no_parameters(postgres_url, opened):
    catalog = opened(postgres_url)
    create(catalog)
    with pytest.raises(LakeopsError) as caught:
        put(catalog, an_entry("secret\0path"))
    assert "hush" not in str(caught.value)
    assert "INSERT" not in str(caught.value)


def test_a_lock_held_too_long_is_a_transient_error(postgres_url, opened, monkeypatch):
    monkeypatch.setattr(postgres, "LOCK_SECONDS", 0.05)
    catalog = opened(postgres_url)
    create(catalog)
    held, done = threading.Event(), threading.Event()

    def hold(conn):
        lock_repository(conn, REPO, exclusive=True)
        held.set()
        assert done.wait(60)

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(catalog.database.write, hold)
        assert held.wait(30)
        with raising("catalog_unavailable", "lock timeout"):
            put(catalog, an_entry("a"))
        done.set()
        holding.result()
    put(catalog, an_entry("a"))


def test_who_holds_a_row_is_told_while_others_wait_and_in_the_end(postgres_url, opened, monkeypatch, caplog):
    monkeypatch.setattr(postgres, "LOCK_SECONDS", 0.05)
    monkeypatch.setattr("lakeops.catalog.database.TRIES", 3)
    catalog = opened(postgres_url)
    create(catalog)
    straight = postgres_url.replace("+psycopg", "")
    with psycopg.connect(straight, application_name="report.py") as holder, psycopg.connect(straight) as bystander:
        pid = holder.info.backend_pid
        bystander.execute("SELECT * FROM lakeops_repository FOR SHARE")
        holder.execute("SELECT * FROM lakeops_branch WHERE name = 'main' FOR UPDATE")
        with raising("catalog_unavailable") as caught:
            seal(catalog)
    said = (
        rf"lock timeout; process {pid} of the database \(report.py, login postgres\) holds the lock"
        r", whose transaction has been open for \d+:\d\d:\d\d; waited \d+\.\d s in 3 tries$"
    )
    assert re.search(said, caught.value.message)
    lines = [record.getMessage() for record in caplog.records if record.name == "lakeops.catalog"]
    assert len(lines) == 3
    for number, line in enumerate(lines, 1):
        assert f"process {pid}" in line
        assert f"try {number} of 3 lost after" in line
    seal(catalog)


def test_deadlocks_are_tried_again(postgres_url, opened):
    """Two transactions that lock two branches in opposite orders: one is rolled back and then goes through."""
    catalog = opened(postgres_url)
    create(catalog)
    head = catalog.refs.branch(REPO, "main").commit_id
    catalog.refs.create_branch(REPO, "dev", head, token="t", actor="ada")
    both, runs = threading.Barrier(2), []

    def lock(first, second):
        def work(conn):
            runs.append(first)
            lock_branch(conn, REPO, first, exclusive=True)
            if len(runs) <= 2:
                both.wait(30)
            lock_branch(conn, REPO, second, exclusive=True)
            return True

        return catalog.database.write(work)

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(lock, ["main", "dev"], ["dev", "main"]))
    assert len(runs) == 3


def test_connections_that_the_server_closed_are_replaced(postgres_url, opened):
    catalog = opened(postgres_url)
    create(catalog)
    with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as admin:
        for _ in range(3):
            admin.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE application_name = 'lakeops' AND datname = current_database()"
            )
            put(catalog, an_entry("a"))


def test_a_connection_lost_between_two_statements_is_tried_again(postgres_url, opened):
    from sqlalchemy import event

    catalog = opened(postgres_url)
    create(catalog)
    put(catalog, an_entry("a"))
    cut = []

    def hang_up(conn, _cursor, statement, *_rest):
        if statement.startswith("UPDATE lakeops_branch") and not cut:
            cut.append(statement)
            with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as admin:
                pid = conn.connection.driver_connection.info.backend_pid
                admin.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])

    event.listen(catalog.database.engine, "before_cursor_execute", hang_up)
    assert len(seal(catalog).sealed_tokens) == 1
    assert cut


def test_nothing_stays_on_a_connection(postgres_url, opened):
    """A setting of a transaction ends with it, so a pool that hands connections out by transaction will do."""
    import pyarrow as pa

    from lakeops.model.arrow import STAGED_SCHEMA

    catalog = opened(postgres_url)
    create(catalog)
    table = pa.Table.from_pylist([{"path": "a", "tombstone": True}], STAGED_SCHEMA)
    for _ in range(8):
        catalog.staging.put_staged(REPO, "main", table, started=catalog.now())
        catalog.staging.staged_table(REPO, "main")
        seal(catalog)
    driver = catalog.database.engine.raw_connection()
    try:
        cursor = driver.cursor()
        for query, nothing in (
            ("SELECT count(*) FROM pg_prepared_statements", 0),
            ("SELECT count(*) FROM pg_class WHERE relpersistence = 't'", 0),
            ("SHOW lock_timeout", "0"),
            ("SHOW statement_timeout", "0"),
            ("SHOW default_transaction_isolation", "read committed"),
            ("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()", 0),
        ):
            assert cursor.execute(query).fetchone()[0] == nothing
    finally:
        driver.close()


def test_readers_see_one_instant(catalog, opened, database_url):
    """Between two statements of a reader, another process stages and seals; the reader does not notice."""
    from lakeops.catalog.guards import find_branch
    from lakeops.catalog.tables import STAGED

    other = opened(database_url)
    put(catalog, an_entry("a"))

    def work(conn):
        before = find_branch(conn, REPO, "main")
        put(other, an_entry("b"))
        seal(other)
        return before == find_branch(conn, REPO, "main"), len(conn.execute(STAGED.select()).all())

    assert catalog.database.read(work) == (True, 1)
    assert paths(catalog.staging.staged_page(REPO, "main")[1]) == ["a", "b"]


def test_a_fork_does_not_share_connections(catalog):
    put(catalog, an_entry("parent"))
    before = everything(catalog)

    def child(number):
        put(catalog, an_entry(f"child {number}"))
        return os.getpid()

    assert os.getpid() not in run_forked(child, range(3))
    assert everything(catalog) != before
    put(catalog, an_entry("parent again"))
    assert len(catalog.staging.staged_page(REPO, "main")[1]) == 5


@pytest.fixture(scope="module")
def strict():
    """The socket of a server with logins and a database that not everybody may use, and what sets its rule for them."""
    with (
        postgres_server() as socket,
        psycopg.connect(f"host={socket} user=postgres dbname=postgres", autocommit=True) as admin,
    ):
        admin.execute("CREATE ROLE ada LOGIN PASSWORD 'right'")
        admin.execute("CREATE ROLE idle NOLOGIN")
        admin.execute("CREATE DATABASE closed")
        admin.execute("REVOKE CONNECT ON DATABASE closed FROM PUBLIC")
        rules = Path(admin.execute("SHOW hba_file").fetchone()[0])

        def set_rule(rule):
            rules.write_text("local all postgres trust\n" + (f"local all all {rule}\n" if rule else ""))
            admin.execute("SELECT pg_reload_conf()")
            return socket

        yield set_rule


@pytest.mark.parametrize(
    ("login", "database", "rule", "said"),
    [
        ("ada:wrong", "postgres", "scram-sha-256", "password authentication failed"),
        ("ada", "postgres", "scram-sha-256", "no password supplied"),
        ("ada", "postgres", "peer", "authentication failed"),
        ("ada", "postgres", "reject", "pg_hba.conf rejects"),
        ("ada", "postgres", "", "no pg_hba.conf entry"),
        ("ada", "closed", "trust", "permission denied for database"),
        ("nobody", "postgres", "trust", "does not exist"),
        ("idle", "postgres", "trust", "not permitted to log in"),
        ("postgres", "nosuch", "trust", "does not exist"),
    ],
)
def test_a_login_that_the_server_refuses_is_an_error_at_once(strict, monkeypatch, login, database, rule, said):
    monkeypatch.setattr("lakeops.catalog.database.pause", lambda _: pytest.fail("it was tried again"))
    place = f"@/{database}?host={strict(rule)}"
    with raising("catalog_error", f"the catalog refused .*{said}") as error:
        Lake.open(database_url=f"postgresql+psycopg://{login}{place}")
    assert "wrong" not in str(error.value)


@pytest.fixture
def outage(postgres_socket, monkeypatch):
    """A server that is away for a number of pauses, which take no time, and the address that it is at."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    listener.close()
    passed, away, relays = [0.0], [0], []

    def pause(seconds):
        passed[0] += 2.0
        away[0] -= 1
        if away[0] == 0:
            relays.append(relay(port, f"{postgres_socket}/.s.PGSQL.5432"))

    monkeypatch.setattr("lakeops.model.clock.pause", pause)
    monkeypatch.setattr("lakeops.catalog.database.pause", pause)
    monkeypatch.setattr("lakeops.catalog.database.stopwatch", lambda: lambda begun=passed[0]: passed[0] - begun)
    yield away, passed, port
    for one in relays:
        one.close()


def relay(port, path):
    """Forward connections of a port to a server's socket, in threads. Returns the listener."""
    listener = socket.create_server(("127.0.0.1", port))

    def pump(source, sink):
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def serve():
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(path)
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=pump, args=ends, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    return listener


def test_an_outage_is_waited_out_for_the_minutes_of_the_setting(outage, postgres_url, caplog):
    away, passed, port = outage
    url = postgres_url.replace("@/", f"@127.0.0.1:{port}/").partition("?")[0]
    away[0] = 60
    with Lake.open(settings=Settings.load(database_url=url, outage_minutes=5)) as lake:
        assert list(lake.repositories()) == []
    lines = [line for line in caplog.messages if "is not available" in line]
    assert len(lines) == 60, "one line a try"
    assert all(len(line.splitlines()) == 1 for line in lines)


@pytest.mark.parametrize(("minutes", "least", "most"), [(None, 0, 60), (0, 0, 60), (5, 300, 310), (1, 60, 70)])
def test_the_wait_is_bounded(outage, minutes, least, most):
    away, passed, port = outage
    url = f"postgresql+psycopg://postgres@127.0.0.1:{port}/nosuch"
    with raising("catalog_unavailable"):
        Lake.open(settings=Settings.load(database_url=url, outage_minutes=minutes))
    assert least <= passed[0] <= most


@pytest.mark.parametrize(("minutes", "attempts"), [(None, 5), (0, 5), (1, 11), (5, 35)])
def test_requests_of_stores_are_made_for_as_long(tmp_path, minutes, attempts):
    with Lake.open(settings=Settings.load(home=tmp_path, outage_minutes=minutes)) as lake:
        assert lake.stores().settings.max_attempts == attempts


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("datestyle", "'SQL, DMY'"),
        ("datestyle", "'German'"),
        ("datestyle", "'Postgres, MDY'"),
        ("intervalstyle", "'sql_standard'"),
        ("timezone", "'Asia/Kathmandu'"),
        ("standard_conforming_strings", "off"),
        ("transform_null_equals", "on"),
        ("client_encoding", "'LATIN1'"),
        ("search_path", "public, evil, pg_catalog"),
        ("default_transaction_isolation", "'serializable'"),
        ("extra_float_digits", "-5"),
        ("transaction_timeout", "'100ms'"),
        ("statement_timeout", "'100ms'"),
        ("default_transaction_read_only", "on"),
        ("lc_messages", "'C'"),
        ("escape_string_warning", "off"),
        ("quote_all_identifiers", "on"),
    ],
)
def test_defaults_of_a_database_change_nothing(postgres_socket, tmp_path, setting, value):
    """They are of whoever made the database, for other programs."""
    with fresh_database(postgres_socket) as url:
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as admin:
            admin.execute(f"ALTER DATABASE {admin.info.dbname} SET {setting} = {value}")
            admin.execute("CREATE SCHEMA evil")
            body = "RETURNS timestamptz LANGUAGE sql AS $$SELECT '1999-01-01'::timestamptz$$"
            admin.execute(f"CREATE FUNCTION evil.clock_timestamp() {body}")
        clock = SystemClock()
        settings = Settings.model_construct(home=tmp_path, database_url=SecretStr(url), fsync=False)
        with Lake.open(settings=settings) as lake:
            main = lake.create_repository("shop").branch("main")
            main.put("ünï/漢\\字'.csv", b"1", metadata={"k": "\\n'x'"})
            commit = main.commit("Grüße \\ 'x'")
            row = {"physical_address": (tmp_path / "x").as_uri(), "checksum": "a" * 32, "size_bytes": 1, "mtime": 1}
            main.stage(pa.Table.from_pylist([{"path": f"b/{n}", **row} for n in range(3)]))
            assert [one.path for one in main.list()] == ["b/0", "b/1", "b/2", "ünï/漢\\字'.csv"]
            assert main.stat("ünï/漢\\字'.csv").metadata == {"k": "\\n'x'"}
            assert next(iter(lake.repository("shop").log("main"))).message == "Grüße \\ 'x'"
            assert abs(commit.creation_date - clock.now().timestamp()) < 60
            assert abs(lake.repository("shop").reflog("main")[0].at - clock.now().timestamp()) < 60


@pytest.mark.parametrize("path", ['"$user", public', "team, public", "nosuch, team, public, pg_catalog"])
def test_a_schema_that_comes_before_the_lake_s_hides_nothing(postgres_socket, tmp_path, path):
    """Many servers get a schema for each login at some time. A new lake in it would answer, and be empty."""
    with fresh_database(postgres_socket) as url:
        settings = Settings.model_construct(home=tmp_path, database_url=SecretStr(url), fsync=False)
        with Lake.open(settings=settings) as lake:
            lake.create_repository("shop")
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as admin:
            admin.execute("CREATE SCHEMA team; CREATE TABLE team.lakeops_repositories (id text)")
            admin.execute(f'CREATE SCHEMA "{admin.info.user}"')
            admin.execute(f"ALTER DATABASE {admin.info.dbname} SET search_path = {path}")
        with Lake.open(settings=settings) as lake:
            assert [one.id for one in lake.repositories()] == ["shop"]
            lake.repository("shop").branch("main").put("a", b"1")
            lake.repository("shop").branch("main").commit("a")


@pytest.mark.parametrize("path", ["teamb", '"$user"', "teamb, pg_temp", "pg_catalog", ""])
@pytest.mark.parametrize("tables", [0, 1])
def test_a_search_path_without_a_schema_opens_no_other_lake(postgres_socket, opened, path, tables):
    """A typing error, or a schema that was renamed. The lake in ``public`` may be another team's."""
    with fresh_database(postgres_socket) as url:
        if tables:
            create(opened(url))
        with raising("invalid_settings", "no schema of .* search_path exists"):
            opened(f"{url}&options={quote(f'-csearch_path={path}'.replace(' ', chr(92) + ' '))}").repositories.page()
        with psycopg.connect(url.replace("+psycopg", "")) as admin:
            there = "SELECT count(*) FROM pg_tables WHERE tablename = 'lakeops_version'"
            assert admin.execute(there).fetchone() == (tables,)


@pytest.mark.parametrize(
    ("encoding", "refused"), [("LATIN1", True), ("SQL_ASCII", True), ("EUC_JP", True), ("UTF8", False)]
)
def test_a_database_that_cannot_hold_every_path_is_refused(postgres_socket, opened, encoding, refused):
    options = f"ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
    with fresh_database(postgres_socket, options) as url:
        if refused:
            with raising("invalid_settings", f"{encoding}.*ENCODING 'UTF8'"):
                opened(url)
        else:
            create(opened(url))


@pytest.mark.parametrize("encoding", ["latin1", "sql_ascii"])
def test_an_encoding_in_the_address_changes_nothing(postgres_url, opened, encoding):
    catalog = opened(f"{postgres_url}&client_encoding={encoding}")
    create(catalog)
    row = [Staged("漢字", None)]
    catalog.staging.put_staged(REPO, "main", row, started=catalog.now())
    assert catalog.staging.staged_table(REPO, "main").staged["path"].to_pylist() == ["漢字"]
