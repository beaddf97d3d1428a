"""Plain SQL by a login of each role: statements that must fail, and statements that must work, on each PostgreSQL.

A login that holds a role in one repository tries to get at another one by becoming its role. A writer tries to change
what a protected branch or a read-only repository shows.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from services.postgres import fresh_database
from sqlalchemy.exc import SQLAlchemyError
from support.errors import raising

from lakeops import Lake
from lakeops.model.errors import InvalidInput, LakeopsError
from lakeops.testing import ManualClock

OTHER = Path("/usr/lib/postgresql/15/bin")
READER, WRITER, MAINTAINER = "reader", "writer", "maintainer"
_numbers = count()


@contextmanager
def older_server():
    """The socket's directory of a server of Debian's PostgreSQL 15, run by an account that is not root."""
    if not (OTHER / "initdb").exists():
        pytest.skip("Debian's postgresql-15 is not installed")
    account = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    place = tempfile.mkdtemp(prefix="lakeops-pg15-", dir="/tmp")
    shutil.chown(place, account)

    def run(*words):
        ran = subprocess.run(words, user=account, cwd=place, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr

    try:
        run(str(OTHER / "initdb"), "--no-sync", "--auth=trust", "--username=postgres", f"--pgdata={place}/data")
        options = f"-k {place} -c listen_addresses='' -c fsync=off"
        run(str(OTHER / "pg_ctl"), "-D", f"{place}/data", "-l", f"{place}/log", "-o", options, "-w", "start")
        try:
            yield place
        finally:
            run(str(OTHER / "pg_ctl"), "-D", f"{place}/data", "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(place)


class Team:
    """A lake with the repositories ``mine``, ``theirs`` and ``closed``, and logins that its owner makes."""

    def __init__(self, home, url, stack):
        self.home, self.url, self.stack = home, url, stack
        self.owner = stack.enter_context(Lake.open(home, database_url=url, clock=ManualClock()))
        self.logins: dict[tuple[str, str], Lake] = {}
        for name in ("mine", "theirs", "closed"):
            repo = self.owner.create_repository(name)
            repo.branch("main").put("a", name.encode())
            repo.branch("main").commit("one")
            repo.create_tag("v1", "main")
            repo.create_branch("strict", "main")
            repo.create_branch("dev", "main").put("dev", b"staged")
            repo.protect("main")
            repo.require_check("strict", "quality")
            repo.protect("held-*")
        self.owner.repository("closed").set_read_only(True)

    def lake(self, role, repository="", options=""):
        """The lake as somebody opens it who has a role, in one repository or in all."""
        if (role, repository) not in self.logins:
            login = f"role_{os.getpid()}_{next(_numbers)}"
            self.sql(self.owner, f"CREATE ROLE {login} LOGIN")
            self.stack.callback(self.sql, self.owner, f"DROP OWNED BY {login}; DROP ROLE {login}")
            self.owner.catalog.roles.grant_role(role, login, (repository,) if repository else ())
            self.logins[role, repository] = self.open(login)
        if options:
            return self.open(self.login(role, repository), options)
        return self.logins[role, repository]

    def open(self, login, options=""):
        url = self.url.replace("postgres@", f"{login}@") + (f"&options={quote(options)}" if options else "")
        return self.stack.enter_context(Lake.open(self.home, database_url=url, clock=ManualClock()))

    def login(self, role, repository=""):
        lake = self.lake(role, repository)
        return str(lake.catalog.database.read(lambda conn: conn.exec_driver_sql("SELECT session_user").scalar_one()))

    def sql(self, lake, *statements):
        """Runs statements in one transaction. Returns how many rows the last one touched."""

        def work(conn):
            return [conn.exec_driver_sql(each).rowcount for each in statements][-1]

        return int(lake.catalog.database.write(work))

    def shown(self):
        tables = ("branch", "tag", "staged", "protection", "verdict", "repository")
        read = self.owner.catalog.database.read
        return [
            read(lambda conn, name=name: conn.exec_driver_sql(f"SELECT * FROM lakeops_{name} ORDER BY 1, 2").all())
            for name in tables
        ]


@pytest.fixture(scope="module", params=["the run's own", "15"])
def team(request, tmp_path_factory):
    with ExitStack() as stack:
        own = request.param != "15"
        socket = request.getfixturevalue("postgres_socket") if own else stack.enter_context(older_server())
        url = stack.enter_context(fresh_database(socket))
        yield Team(tmp_path_factory.mktemp("team"), url, stack)


BECOME = {
    "reader": "SET ROLE lakeops_reader",
    "role": "SET ROLE lakeops_{role}",
    "local": "SET LOCAL ROLE lakeops_{role}",
    "set_config": "SELECT set_config('role', 'lakeops_{role}', false)",
    "session": "SET SESSION AUTHORIZATION lakeops_{role}",
    "owner": "SET ROLE postgres",
    "maintainer": "SET ROLE lakeops_maintainer",
    "row security": "SET row_security = off",
    "function": "CREATE FUNCTION pg_temp.starts_with(name, text) RETURNS boolean LANGUAGE sql AS 'SELECT false'",
    "roles": "CREATE TEMP TABLE pg_roles (rolname name, oid oid)",
    "mine": "CREATE FUNCTION pg_temp.lakeops_mine() RETURNS text[] LANGUAGE sql AS 'SELECT NULL::text[]'",
    "protection": "CREATE TEMP TABLE lakeops_protection (repository_id text, kind text, pattern text, check_name text)",
    "path": "SET search_path = pg_temp, public, pg_catalog",
    "replica": "SET session_replication_role = replica",
}
THEIRS = {
    "read": "SELECT * FROM public.lakeops_branch WHERE repository_id = 'theirs'",
    "commits": "SELECT * FROM public.lakeops_commit WHERE repository_id = 'theirs'",
    "delete a branch": "DELETE FROM public.lakeops_branch WHERE repository_id = 'theirs'",
    "delete a tag": "DELETE FROM public.lakeops_tag WHERE repository_id = 'theirs'",
    "unprotect": "DELETE FROM public.lakeops_protection WHERE repository_id = 'theirs'",
    "stage": "UPDATE public.lakeops_staged SET size_bytes = 7 WHERE repository_id = 'theirs'",
    "move": "UPDATE public.lakeops_branch SET commit_id = 'x' WHERE repository_id = 'theirs'",
    "lock": "SELECT * FROM public.lakeops_branch WHERE repository_id = 'theirs' FOR UPDATE",
}


@pytest.mark.parametrize("role", [READER, WRITER, MAINTAINER])
@pytest.mark.parametrize("way", BECOME)
def test_no_way_leads_to_another_repository(team, role, way):
    lake, before = team.lake(role, "mine"), team.shown()
    reached = []
    for name, statement in THEIRS.items():
        try:
            if team.sql(lake, BECOME[way].format(role=role), statement):
                reached.append(name)
        except (LakeopsError, SQLAlchemyError) as error:
            assert "syntax" not in str(error)
    lake.catalog.database.engine.dispose()  # what was set, and temporary objects, end with the connection
    assert reached == []
    assert team.shown() == before


@pytest.mark.parametrize("role", [READER, MAINTAINER])
def test_a_role_in_the_url_does_not_either(team, role):
    try:
        lake = team.lake(role, "mine", options=f"-c role=lakeops_{role}")
        assert list(lake.repository("theirs").branches()) == []
    except LakeopsError as error:
        assert "permission denied" in str(error)  # PostgreSQL 16: nobody becomes the role


@pytest.mark.parametrize("way", ["SET ROLE lakeops_maintainer", "SELECT 1"])
def test_policies_ask_for_the_login_where_a_role_can_be_set(team, way):
    """An administrator may grant a role once more, by hand, in a way that lets the login become it."""
    lake = team.lake(MAINTAINER, "mine")
    team.sql(team.owner, f"GRANT lakeops_reader, lakeops_maintainer TO {team.login(MAINTAINER, 'mine')}")
    version = team.owner.catalog.database.engine.dialect.server_version_info[0]
    if version >= 16:
        team.sql(
            team.owner, f"GRANT lakeops_reader, lakeops_maintainer TO {team.login(MAINTAINER, 'mine')} WITH SET TRUE"
        )
    before = team.shown()
    assert [name for name, statement in THEIRS.items() if team.sql(lake, way, statement)] == []
    assert team.shown() == before
    assert team.sql(lake, way, "SELECT * FROM lakeops_branch WHERE repository_id = 'mine'") > 0
    lake.catalog.database.engine.dispose()


def test_a_function_of_a_maintainer_lends_a_writer_nothing(team):
    helper, writer = team.lake(MAINTAINER), team.lake(WRITER)
    schema = f"of_{next(_numbers)}"
    team.sql(team.owner, f"CREATE SCHEMA {schema}", f"GRANT ALL ON SCHEMA {schema} TO PUBLIC")
    body = "UPDATE public.lakeops_branch SET commit_id = commit_id || 'x' WHERE name = 'main'"
    team.sql(helper, f"CREATE FUNCTION {schema}.lent() RETURNS void LANGUAGE sql SECURITY DEFINER AS $$ {body} $$")
    for lake in (writer, team.lake(WRITER, "mine")):
        with raising("permission_denied", "protected by"):
            team.sql(lake, f"SELECT {schema}.lent()")
    team.sql(team.owner, f"DROP SCHEMA {schema} CASCADE")


ROW = "(repository_id, token, path, tombstone, changes) SELECT repository_id, {token}, 'a', true, 1"
MUST_FAIL = {
    "a tombstone on a protected branch": f"INSERT INTO lakeops_staged {ROW.format(token='staging_token')} "
    "FROM lakeops_branch WHERE repository_id = 'mine' AND name = 'main'",
    "a tombstone on a checked branch": f"INSERT INTO lakeops_staged {ROW.format(token='staging_token')} "
    "FROM lakeops_branch WHERE repository_id = 'mine' AND name = 'strict'",
    "a row moved to a protected branch": "UPDATE lakeops_staged SET token = (SELECT staging_token FROM lakeops_branch "
    "WHERE repository_id = 'mine' AND name = 'main') WHERE repository_id = 'mine'",
    "a tombstone in a read-only repository": f"INSERT INTO lakeops_staged {ROW.format(token='staging_token')} "
    "FROM lakeops_branch WHERE repository_id = 'closed' AND name = 'dev'",
    "a row under a token of nobody": f"INSERT INTO lakeops_staged {ROW.format(token=chr(39) + 'later' + chr(39))} "
    "FROM lakeops_branch WHERE repository_id = 'mine' AND name = 'main'",
    "a token of another branch": "UPDATE lakeops_branch AS b SET staging_token = o.staging_token FROM lakeops_branch "
    "AS o WHERE b.repository_id = 'mine' AND o.repository_id = 'mine' AND b.name = 'main' AND o.name = 'dev'",
    "a sealed token of another branch": "UPDATE lakeops_branch AS b SET sealed_tokens = json_build_array("
    "o.staging_token) FROM lakeops_branch AS o WHERE b.repository_id = 'mine' AND o.repository_id = 'mine' "
    "AND b.name = 'main' AND o.name = 'dev'",
    "a branch with rows under a protected name": "UPDATE lakeops_branch SET name = 'held-1' "
    "WHERE repository_id = 'mine' AND name = 'dev'",
    "a head in a read-only repository": "UPDATE lakeops_branch SET commit_id = 'x' "
    "WHERE repository_id = 'closed' AND name = 'dev'",
    "a branch in a read-only repository": "INSERT INTO lakeops_branch SELECT repository_id, 'new', commit_id, 'new', "
    "sealed_tokens, resets, sealed_resets, intents FROM lakeops_branch WHERE repository_id = 'closed' AND name = 'dev'",
    "a branch deleted in a read-only repository": "DELETE FROM lakeops_branch WHERE repository_id = 'closed'",
    "a tag in a read-only repository": "DELETE FROM lakeops_tag WHERE repository_id = 'closed'",
    "the clock": "UPDATE lakeops_clock SET seen = seen + 1",
    "a new time": "INSERT INTO lakeops_clock SELECT 'other', 1, 1",
    "an owner": "INSERT INTO lakeops_owner SELECT id, 'me', 'me' FROM lakeops_repository",
    "a hidden protection": "TRUNCATE public.lakeops_protection",
    "a trigger less": "ALTER TABLE lakeops_branch DISABLE TRIGGER ALL",
    "a function of the guard": "CREATE OR REPLACE FUNCTION public.lakeops_matches(name text, pattern text) "
    "RETURNS boolean LANGUAGE sql AS 'SELECT false'",
    "an operator beside the tables": "CREATE FUNCTION public.starts_with(name, text) RETURNS boolean "
    "LANGUAGE sql AS 'SELECT false'",
}
MUST_WORK = {
    "a row on a branch": f"INSERT INTO lakeops_staged {ROW.format(token='staging_token')} "
    "FROM lakeops_branch WHERE repository_id = 'mine' AND name = 'dev'",
    "a row changed on a branch": "UPDATE lakeops_staged SET size_bytes = 7 WHERE repository_id = 'mine' AND "
    "token = (SELECT staging_token FROM lakeops_branch WHERE repository_id = 'mine' AND name = 'dev')",
    "a fresh token on a protected branch": "UPDATE lakeops_branch SET staging_token = 'fresh', sealed_tokens = "
    "json_build_array(staging_token) WHERE repository_id = 'mine' AND name = 'main'",
    "a branch": "INSERT INTO lakeops_branch SELECT repository_id, 'new', commit_id, 'new', "
    "sealed_tokens, resets, sealed_resets, intents FROM lakeops_branch WHERE repository_id = 'mine' AND name = 'dev'",
    "a branch deleted": "DELETE FROM lakeops_branch WHERE repository_id = 'mine' AND name = 'dev'",
    "a lock": "SELECT * FROM lakeops_repository WHERE id = 'mine' FOR UPDATE",
}


@pytest.mark.parametrize("repository", ["", "mine"])
@pytest.mark.parametrize("role", [READER, WRITER])
@pytest.mark.parametrize("what", MUST_FAIL)
def test_a_statement_fails(team, role, repository, what):
    before, lake = team.shown(), team.lake(role, repository)
    try:
        touched = team.sql(lake, MUST_FAIL[what])
    except LakeopsError as error:
        assert error.kind == "permission_denied" or "must be owner" in str(error), error
    else:  # rows of other repositories are not there
        assert (touched, repository) == (0, "mine")
        assert "closed" in MUST_FAIL[what]
    assert team.shown() == before


class Undone(Exception):
    """Ends a transaction whose statements worked."""


@pytest.mark.parametrize("role", [WRITER, MAINTAINER])
@pytest.mark.parametrize("what", MUST_WORK)
def test_a_statement_works(team, role, what):
    def work(conn):
        assert conn.exec_driver_sql(MUST_WORK[what]).rowcount == 1
        raise Undone

    with pytest.raises(Undone):
        team.lake(role).catalog.database.write(work)


def test_what_was_staged_a_moment_ago_is_not_overlooked(team):
    """A snapshot from before another transaction staged would show no row under a token that has one."""
    early = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"
    take = "UPDATE lakeops_branch SET staging_token = 'a-new-one' WHERE repository_id = 'mine' AND name = 'main'"
    with raising("permission_denied", "protected by"):
        team.sql(team.lake(WRITER), early, take)


def publish_by_hand(team, source, metarange, *, squash=False):
    """A commit over the head of ``strict`` with a metarange of the caller's choice, and the branch moved to it."""
    repo, name = team.owner.repository("mine"), f"forged-{next(_numbers)}"
    head, ours = repo.ref("strict").commit, repo.ref(source).commit
    parents = f"'[\"{head.id}\"]'" if squash else f'\'["{head.id}", "{ours.id}"]\''
    said = f'\'{{"squash-origin": "{ours.id}"}}\'' if squash else "'{}'"
    columns = "committer, message, creation_date"
    made = (
        f"INSERT INTO lakeops_commit (repository_id, id, parents, first_parent, {columns}, metadata, meta_range_id, "
        f"generation, meta_range_file, meta_range_digest, expired) SELECT repository_id, '{name}', {parents}, "
        f"'{head.id}', {columns}, {said}, '{metarange}', generation + 1, meta_range_file, meta_range_digest, expired "
        f"FROM lakeops_commit WHERE repository_id = 'mine' AND id = '{ours.id}'"
    )
    moved = f"UPDATE lakeops_branch SET commit_id = '{name}' WHERE repository_id = 'mine' AND name = 'strict'"
    return lambda: team.sql(team.lake(WRITER), made, moved)


@pytest.mark.parametrize("squash", [False, True])
def test_a_checked_branch_takes_what_was_checked(team, squash):
    repo = team.owner.repository("mine")
    name = f"work-{next(_numbers)}"
    branch = repo.create_branch(name, "strict")
    branch.put(name, b"1")
    checked = branch.commit("work")
    with raising("permission_denied", "protected by"):
        publish_by_hand(team, name, checked.meta_range_id, squash=squash)()
    repo.ref(name).pass_check("quality")
    with raising("permission_denied", "protected by"):
        publish_by_hand(team, name, repo.ref("strict").commit.meta_range_id, squash=squash)()
    made = team.lake(WRITER).repository("mine").merge(name, "strict", squash=squash).reference
    repo.ref(made).pass_check("quality")
    assert team.lake(WRITER).repository("mine").merge(made, "strict", allow_empty=True).reference


@pytest.mark.parametrize("squash", [False, True])
def test_an_object_written_again_is_merged_as_it_was_checked(team, squash):
    """A merge that leaves nothing of the destination shows the source's metarange, also where contents are equal."""
    repo, name = team.owner.repository("mine"), f"again-{next(_numbers)}"
    branch = repo.create_branch(name, "strict")
    for contents in (b"other", b"mine"):
        branch.put("a", contents)
        branch.put(name, contents)
        branch.commit("work")
    repo.ref(name).pass_check("quality")
    assert team.lake(WRITER).repository("mine").merge(name, "strict", squash=squash).reference
    assert repo.ref("strict").commit.meta_range_id == repo.ref(name).commit.meta_range_id


@pytest.mark.parametrize("key", ["squash-origin", "revert-origin", "cherry-pick-origin", "lakeops.along.1"])
def test_nobody_says_where_a_commit_comes_from(team, key):
    repo = team.lake(WRITER).repository("mine")
    repo.branch("dev").put(key, b"1")
    given = {key: repo.ref("main").commit.id}
    for verb in (
        lambda: repo.branch("dev").commit("x", metadata=given),
        lambda: repo.merge("main", "dev", metadata=given),
        lambda: repo.branch("dev").revert("main", metadata=given),
        lambda: repo.cherry_pick("main", "dev", metadata=given),
    ):
        with pytest.raises(InvalidInput, match=f"'{key}' is reserved"):
            verb()


def test_a_picked_commit_does_not_pass_for_a_squashed_merge(team):
    repo = team.owner.repository("mine")
    repo.create_branch("feature", "main").put("feature", b"1")
    repo.branch("feature").commit("feature")
    repo.create_branch("squashed", "main")
    repo.merge("feature", "squashed", squash=True)
    repo.create_branch("picked", "main")
    assert "squash-origin" in repo.ref("squashed").commit.metadata
    assert "squash-origin" not in repo.cherry_pick("squashed", "picked").metadata


@pytest.mark.parametrize("shared", ["", "_shared"])
def test_a_reader_stops_nobody_by_an_advisory_lock(team, shared):
    """The fair lock of a row counts when its holder may lock the row."""
    from lakeops.catalog.guards import fair_lock_key

    reader, name = team.login(READER), f"free-{next(_numbers)}"
    repo = team.lake(WRITER).repository("mine")
    url = team.url.replace("+psycopg", "").replace("postgres@", f"{reader}@")
    with psycopg.connect(url, autocommit=True) as conn:
        for turn in (fair_lock_key("mine"), fair_lock_key("mine", name), fair_lock_key("mine", "main")):
            conn.execute(f"SELECT pg_advisory_lock{shared}({turn})")
        branch = repo.create_branch(name, "main")
        branch.put(name, b"1")
        branch.commit("more")
        repo.merge(name, "main")
        team.owner.repository("mine").set_read_only(False)  # takes the repository's row alone
        assert conn.execute(
            "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database "
            "WHERE locktype = 'advisory' AND datname = current_database()"
        ).fetchone() == (3,)
