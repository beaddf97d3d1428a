"""A login of each role against every verb, on a real PostgreSQL: what a role may not do, the database refuses."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from fnmatch import fnmatchcase
from typing import Any

import pytest
from services.postgres import fresh_database
from sqlalchemy import text
from support.catalogs import an_entry, table_of
from support.errors import raising

from lakeops import Lake, Repository
from lakeops.model.errors import InvalidInput, LakeopsError, NotFound
from lakeops.model.protection import Hook
from lakeops.model.records import Split
from lakeops.testing import ManualClock

SPLIT = Split(2, 4, 8)
READER, WRITER, MAINTAINER, MIRROR = ROLES = ("reader", "writer", "maintainer", "mirror")


@pytest.fixture(scope="module")
def team(postgres_socket, tmp_path_factory):
    """The owner's lake with a repository, and the same lake opened by a login of each role."""
    home = tmp_path_factory.mktemp("team")
    with ExitStack() as stack:
        url = stack.enter_context(fresh_database(postgres_socket))
        owner = stack.enter_context(Lake.open(home, database_url=url, clock=ManualClock()))
        prepare(owner)
        lakes = {"owner": owner}
        for role in ROLES:
            login = f"{role} {os.getpid()}"
            sql(owner, f'CREATE ROLE "{login}" LOGIN')
            owner.catalog.roles.grant_role(role, login)
            place = url.replace("postgres@", f"{login.replace(' ', '%20')}@")
            lakes[role] = stack.enter_context(Lake.open(home, database_url=place, clock=ManualClock()))
        yield lakes
        for role in ROLES:
            sql(owner, f'DROP ROLE "{role} {os.getpid()}"')


def prepare(lake):
    for name in ("theirs", "repo"):
        repo = lake.create_repository(name, split=SPLIT)
        repo.branch("main").put("a", b"1")
        repo.branch("main").commit("one")
    repo.create_tag("v1", "main")
    repo.protect("main")
    repo.protect_tags("v*")


def fresh(team, name, repository="repo"):
    """The refs that a verb works on, made by the owner: a branch with a commit and something staged, a tag, a check."""
    repo = team["owner"].repository(repository)
    if name in {branch.id for branch in repo.branches()}:
        return
    branch = repo.create_branch(name, "main")
    branch.put(f"{name}/x", name.encode())
    branch.commit(name)
    branch.put("staged", b"2")
    repo.create_tag(f"tag-{name}", "main")
    repo.ref(name).pass_check("lint")
    repo.protect(f"{name}-*")


READS: dict[str, Callable[[Repository, str], Any]] = {
    "log": lambda repo, n: list(repo.log("main")),
    "read": lambda repo, n: repo.ref("main").read("a"),
    "list": lambda repo, n: list(repo.branch(n).list()),
    "diff": lambda repo, n: list(repo.compare("main", n)),
    "uncommitted": lambda repo, n: list(repo.branch(n).uncommitted()),
    "fsck": lambda repo, n: repo.fsck(),
    "audit": lambda repo, n: list(repo.audit(amount=5)),
    "checks": lambda repo, n: repo.ref(n).verdicts(),
    "rules": lambda repo, n: repo.gc.rules(),
    "reflog": lambda repo, n: repo.reflog(),
}
WRITES: dict[str, Callable[[Repository, str], Any]] = {
    "put": lambda repo, n: repo.branch(n).put("p", b"3"),
    "bulk": lambda repo, n: repo._ctx.catalog.staging.put_staged(
        "repo", n, table_of([an_entry("bulk")]), started=repo._ctx.catalog.now()
    ),
    "delete": lambda repo, n: repo.branch(n).delete("a"),
    "commit": lambda repo, n: repo.branch(n).commit("more"),
    "reset": lambda repo, n: repo.branch(n).reset(),
    "merge": lambda repo, n: (repo.branch(n).reset(), repo.merge(n, "main")),
    "revert": lambda repo, n: (repo.branch(n).reset(), repo.branch(n).revert(n)),
    "branch": lambda repo, n: repo.create_branch(f"{n}x", "main"),
    "move": lambda repo, n: (repo.branch(n).reset(), repo.branch(n).move("main", force=True)),
    "delete branch": lambda repo, n: repo.delete_branch(n),
    "tag": lambda repo, n: repo.create_tag(f"new-{n}", "main"),
    "delete tag": lambda repo, n: repo.delete_tag(f"tag-{n}"),
    "pass": lambda repo, n: repo.ref(n).pass_check("quality"),
}
MAINTAINS: dict[str, Callable[[Repository, str], Any]] = {
    "protect": lambda repo, n: repo.protect(f"{n}?"),
    "unprotect": lambda repo, n: repo.unprotect(f"{n}-*"),
    "require": lambda repo, n: repo.require_check(f"{n}z", "quality"),
    "rules": lambda repo, n: repo.gc.set_rules({"default_retention_days": 30 + len(n)}),
    "grace": lambda repo, n: repo.gc.set_grace(90_000),
    "withdraw": lambda repo, n: repo.ref(n).withdraw_check("lint"),
    "hook": lambda repo, n: (repo._ctx.catalog.refs.set_hook(repo.id, Hook(n, "after")), repo.remove_hook(n)),
    "mark": lambda repo, n: repo.gc.mark(),
    "sweep": lambda repo, n: repo.gc.sweep(repo.gc.mark().id),
    "prune": lambda repo, n: repo.gc.prune(),
    "read-only": lambda repo, n: (repo.set_read_only(True), repo.set_read_only(False)),
}
REPORTS: dict[str, Callable[[Repository, str], Any]] = {
    "report": lambda repo, n: repo._ctx.catalog.mirrors.report_mirror(
        "repo", n, frozenset([repo.ref("main").commit.id])
    ),
    "report again": lambda repo, n: [
        repo._ctx.catalog.mirrors.report_mirror("repo", f"far-{n}", frozenset(), sequence=number) for number in (7, 8)
    ],
}
DUMPS: dict[str, Callable[[Repository, str], Any]] = {"dump": lambda repo, n: repo.refs.dump()}
ALLOWED = {
    "dumps": (DUMPS, {WRITER, MAINTAINER, MIRROR}),  # the bucket's policy says who may write there
    "reads": (READS, {*ROLES}),
    "writes": (WRITES, {WRITER, MAINTAINER}),
    "maintains": (MAINTAINS, {MAINTAINER}),
    "reports": (REPORTS, {MIRROR, MAINTAINER}),
}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("group", ALLOWED)
def test_a_role_does_what_it_may_and_nothing_else(team, group, role):
    verbs, roles = ALLOWED[group]
    repo, owner = team[role].repository("repo"), team["owner"].catalog
    for number, (verb, do) in enumerate(verbs.items()):
        name = f"{role}-{group}-{number if role in roles and group != 'reads' else 0}"
        fresh(team, name)
        if role in roles:
            do(repo, name)
            continue
        before = owner.audit.page(limit=1)
        with raising("permission_denied", r"permission denied|row-level security|protected by"):
            do(repo, name)
        assert owner.audit.page(limit=1) == before, verb


def sql(lake, statement):
    return lake.catalog.database.write(lambda conn: conn.exec_driver_sql(statement).rowcount)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM lakeops_audit",
        "UPDATE lakeops_audit SET claimed = 'me'",
        "TRUNCATE lakeops_audit",
        "INSERT INTO lakeops_audit (repository_id, action, kind, ref, claimed, login) SELECT '', '', '', '', '', 'x'",
        "INSERT INTO lakeops_audit (repository_id, action, kind, ref, claimed, recorded) SELECT '', '', '', '', '', 1",
        "DROP TABLE lakeops_audit",
        "UPDATE lakeops_version SET version_num = 'x'",
        "UPDATE lakeops_reflog SET actor = 'x'",
        "CREATE TABLE lakeops_more (a int)",
    ],
)
def test_no_role_touches_what_happened(team, role, statement):
    with pytest.raises(LakeopsError, match=r"permission denied|must be owner"):
        sql(team[role], statement)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE lakeops_branch SET commit_id = 'x' WHERE name = 'main'",
        "UPDATE lakeops_branch SET name = 'other' WHERE name = 'main'",
        "DELETE FROM lakeops_branch WHERE name = 'main'",
        "DELETE FROM lakeops_tag WHERE name = 'v1'",
        "UPDATE lakeops_tag SET commit_id = 'x' WHERE name = 'v1'",
        "UPDATE lakeops_repository SET read_only = true",
        "UPDATE lakeops_repository SET default_branch = 'x'",
        "UPDATE lakeops_commit SET expired = true",
        "DELETE FROM lakeops_protection",
        "DELETE FROM lakeops_verdict",
        "DELETE FROM lakeops_commit",
    ],
)
def test_a_writer_with_plain_sql_gets_no_further(team, statement):
    with raising("permission_denied"):
        sql(team[WRITER], statement)


def test_the_server_asks_for_checks_too(team):
    owner, writer = (team[name].repository("repo") for name in ("owner", WRITER))
    owner.create_branch("strict", "main")
    owner.require_check("strict", "quality")
    writer.create_branch("work", "main").put("w", b"1")
    commit = writer.branch("work").commit("work")
    with raising("missing_check"):
        writer.merge("work", "strict")
    with raising("protected_branch"):
        writer.branch("strict").put("w", b"1")
    writer.ref(commit.id).pass_check("quality")
    assert writer.merge("work", "strict").reference
    writer.branch("work").put("v", b"1")
    writer.branch("work").commit("more")
    with raising("missing_check"):
        writer.merge("work", "strict", squash=True)
    writer.ref("work").pass_check("quality")
    assert writer.merge("work", "strict", squash=True).reference
    assert owner.ref(commit.id).verdicts()[0].said_by == f"{WRITER} {os.getpid()}"


def test_the_audit_has_the_login_that_the_server_checked(team):
    team[WRITER].repository("repo").create_branch("mine", "main")
    record = next(team["owner"].audit("repo", amount=1))
    assert (record.action, record.login, record.actor) == ("create-branch", *(f"{WRITER} {os.getpid()}",) * 2)


PATTERNS = [
    "main", "rel*", "r?l", "[a-c]x", "[!a]x", "a.c", "[", "x[", "[]a]x", "v+(1)", "a\\b", "*", "", "[^a]x", "é*",
]  # fmt: skip
NAMES = ["main", "rel", "release-1", "ax", "dx", "]x", "abc", "a.c", "[", "x[", "v+(1)", "a\\b", "^x", "x", "été", "é"]


def test_patterns_match_as_they_do_in_python(team):
    def work(conn):
        ask = text("SELECT lakeops_matches(:name, :pattern)")
        return [(n, p, conn.execute(ask, {"name": n, "pattern": p}).scalar()) for n in NAMES for p in PATTERNS]

    found = team["owner"].catalog.database.read(work)
    assert [(n, p) for n, p, matches in found if matches != fnmatchcase(n, p)] == []


@pytest.fixture
def guest(team, postgres_socket):
    """Opens the lake as somebody who has a role in the repository ``theirs`` alone."""
    owner, login = team["owner"], f"guest {os.getpid()}"
    sql(owner, f'CREATE ROLE "{login}" LOGIN')
    with ExitStack() as stack:

        def opened(role, repositories=("theirs",)):
            owner.catalog.roles.grant_role(role, login, repositories)
            url = owner.settings.database_url
            assert url is not None
            place = url.get_secret_value().replace("postgres@", f"{login.replace(' ', '%20')}@")
            return stack.enter_context(Lake.open(owner.settings.home, database_url=place, clock=ManualClock()))

        yield opened
    sql(owner, f'DROP ROLE "{login}"')


@pytest.mark.parametrize("role", [WRITER, MAINTAINER])
def test_a_role_in_one_repository_is_none_in_others(team, guest, role):
    lake = guest(role)
    theirs = lake.repository("theirs")
    for group in ("reads", "writes", *(["maintains"] if role == MAINTAINER else [])):
        for number, (verb, do) in enumerate(ALLOWED[group][0].items()):
            if verb != "bulk":  # it names the other repository
                fresh(team, f"{role}-{group}-{number}", "theirs")
                do(theirs, f"{role}-{group}-{number}")
    name = f"{role}-guest"
    hidden, owner = lake.repository("repo"), team["owner"]
    fresh(team, name)
    before = owner.catalog.audit.page(limit=1), list(owner.repository("repo").branch(name).uncommitted())
    assert list(hidden.branches()) == list(hidden.tags()) == list(hidden.audit(amount=5)) == []
    for verbs, _ in ALLOWED.values():
        for verb, do in verbs.items():
            if verb not in {"audit", "rules", "reflog", "protect", "fsck"}:
                with pytest.raises(LakeopsError):
                    do(hidden, name)
    for table in ("branch", "tag", "commit", "staged", "reflog", "protection", "retention", "mirror_need"):
        seen = lake.catalog.database.read(
            lambda conn, table=table: conn.exec_driver_sql(f"SELECT DISTINCT repository_id FROM lakeops_{table}").all()
        )
        assert {row[0] for row in seen} <= {"theirs"}, table
    with pytest.raises(LakeopsError):
        sql(lake, "INSERT INTO lakeops_tag (repository_id, name, commit_id) VALUES ('repo', 'x', 'y')")
    assert sql(lake, "DELETE FROM lakeops_branch WHERE repository_id = 'repo'") == 0
    assert sql(lake, "UPDATE lakeops_branch SET commit_id = 'x' WHERE repository_id = 'repo'") == 0
    assert (owner.catalog.audit.page(limit=1), list(owner.repository("repo").branch(name).uncommitted())) == before
    with pytest.raises(LakeopsError):
        lake.create_repository("another")
    assert [one for one in owner.repository("repo").fsck() if one.severity.value != "info"] == []


def test_a_role_may_be_widened_again(team, guest):
    assert list(guest(READER).repository("repo").branches()) == []
    assert list(guest(READER, ("repo", "theirs")).repository("repo").branches()) != []
    assert list(guest(READER, ()).repository("repo").branches()) != []
    assert list(team[READER].repository("repo").branches()) != []
    with pytest.raises(InvalidInput, match="name the login"):
        team["owner"].catalog.roles.grant_role(READER, None, ("repo",))
    with pytest.raises(NotFound):
        team["owner"].catalog.roles.grant_role(READER, "somebody", ("nosuch",))


def test_statements_are_printed_and_may_run_again(team):
    catalog = team["owner"].catalog
    printed = catalog.roles.role_statements(WRITER, 'odd"name')
    assert printed[-1] == 'GRANT lakeops_writer TO "odd""name" WITH INHERIT TRUE, SET FALSE'
    assert any("ENABLE ROW LEVEL SECURITY" in statement for statement in printed)
    assert catalog.roles.grant_role(READER) == catalog.roles.role_statements(READER)
    assert catalog.audit.page(limit=1)[0].action == "grant"
    with pytest.raises(InvalidInput, match="no role"):
        catalog.roles.role_statements("boss")
    with raising("permission_denied"):
        team[MAINTAINER].catalog.roles.grant_role(MAINTAINER)


def test_sqlite_has_no_logins(lake):
    with raising("unsupported", "SQLite has no logins"):
        lake.catalog.roles.role_statements(READER)
