"""Roles of a team on PostgreSQL: what each login may do is decided by the database, whatever program it runs.

``role_statements`` gives the statements for four group roles, and for one login's membership. They may be run again at
any time. ``grant_role`` runs them.

* ``reader`` reads everything, secrets excepted, because there are none.
* ``writer`` also stages, commits, merges, moves refs and records checks. Triggers keep protected branches to merges,
  of commits that have passed the required checks, protected tags where they are, and staged rows off protected
  branches and read-only repositories.
* ``maintainer`` also sets protection and rules, collects garbage, creates and deletes repositories, and runs mirrors.
* ``mirror`` also reports what a mirror elsewhere needs, and nothing else.

A login that has its role in some repositories alone is a member of one more group role for each. Policies keep it from
the rows of the others but their records, whose namespaces all have to know. Policies and triggers ask for the login of
the session, which ``SET ROLE`` does not change, and their functions name every schema (ADR 0079). Locking a row takes
the right to change one of its columns, so those who only lock get that right, and a policy that lets no change pass.
All but readers insert records of the audit, without login and time, which the database fills in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import md5

from sqlalchemy import Connection, Table

from lakeops.catalog.database import PREFIX, VERSION_TABLE, read_transaction, write_transaction_once
from lakeops.catalog.guards import CatalogPart, find_repository
from lakeops.catalog.tables import (
    AUDIT,
    BRANCH,
    CATALOG,
    COMMIT,
    KEY,
    MARK,
    METADATA,
    MIRROR,
    MIRROR_NEED,
    QUEUE,
    REFLOG,
    REPORT,
    REPOSITORY,
    RETIRED,
    STAGED,
    TAG,
    UPLOAD,
    VERDICT,
)
from lakeops.model.errors import InvalidInput, unsupported
from lakeops.model.names import flaw
from lakeops.model.sanitising import excerpt

READER, WRITER, MAINTAINER, MIRRORING = "reader", "writer", "maintainer", "mirror"
ROLES = (READER, WRITER, MAINTAINER, MIRRORING)
_MAX_LOGIN = 63
_TOLD = "repository_id, action, kind, ref, before, after, person, claimed"
_ALL = "INSERT, UPDATE, DELETE"

_WRITES: Sequence[tuple[str, Table]] = (
    *((_ALL, table) for table in (BRANCH, TAG, STAGED, RETIRED, QUEUE, UPLOAD)),
    (_ALL, REPORT),  # what a check found
    *(("INSERT", table) for table in (COMMIT, REFLOG, KEY)),
    ("INSERT, UPDATE", VERDICT),
    ("UPDATE (default_branch)", REPOSITORY),  # to lock it: no policy lets the change pass
    ("UPDATE (state)", MARK),  # to fail one that takes too long
)
_REPORTS: Sequence[tuple[str, Table]] = (
    (_ALL, MIRROR_NEED),
    ("UPDATE (default_branch)", REPOSITORY),
    ("UPDATE (created)", MIRROR),
)
_FEW = {READER: (), WRITER: _WRITES, MIRRORING: _REPORTS}

_POLICIES: Sequence[tuple[Table, str, str, str]] = (
    *((table, READER, "SELECT", "USING (true)") for table in (REPOSITORY, MARK, MIRROR)),
    *((table, MAINTAINER, "ALL", "USING (true) WITH CHECK (true)") for table in (REPOSITORY, MARK, MIRROR)),
    *((REPOSITORY, role, "UPDATE", "USING (true) WITH CHECK (false)") for role in (WRITER, MIRRORING)),
    (MIRROR, MIRRORING, "UPDATE", "USING (true) WITH CHECK (false)"),
    (MARK, WRITER, "UPDATE", "USING (state = 'marking' OR state = 'failed') WITH CHECK (state = 'failed')"),
)

_MATCHES = r"""CREATE OR REPLACE FUNCTION {schema}.lakeops_matches(name text, pattern text) RETURNS boolean
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT name ~ ('^' || coalesce(string_agg(CASE
    WHEN part[1] = '*' THEN '.*'
    WHEN part[1] = '?' THEN '.'
    WHEN length(part[1]) = 1 THEN regexp_replace(part[1], '([^[:alnum:]])', '\\\1')
    ELSE '[' || regexp_replace(regexp_replace(
      replace(substr(part[1], 2, length(part[1]) - 2), '\', '\\'), '^\^', '\\^'), '^!', '^') || ']'
  END, '' ORDER BY place), '') || '$')
FROM regexp_matches(pattern, '\[(?:!.|[^!])[^]]*\]|.', 'g') WITH ORDINALITY AS parts (part, place)
$$"""
"""Whether a name matches a glob, as Python's ``fnmatchcase`` says: each part of the pattern becomes one of a regex."""

_TRUSTED = """CREATE OR REPLACE FUNCTION {schema}.lakeops_trusted() RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  owner oid := (SELECT c.relowner FROM pg_class AS c WHERE c.oid = '{schema}.lakeops_branch'::regclass);
BEGIN
  RETURN (pg_has_role(session_user, 'lakeops_maintainer', 'MEMBER') OR pg_has_role(session_user, owner, 'MEMBER'))
    AND (pg_has_role(current_user, 'lakeops_maintainer', 'MEMBER') OR pg_has_role(current_user, owner, 'MEMBER'));
END $$"""
"""Whether guards let a login pass: maintainers and the owner of the tables. ``SET ROLE`` does not change the session's
login, and a function of somebody else does not either. Both that login and the role that is set have to be trusted."""

_GUARD = """CREATE OR REPLACE FUNCTION {schema}.lakeops_guard_ref() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  rule record;
  merged text;
  checked text;
  published text;
  parents json;
  added text[];
BEGIN
  IF {schema}.lakeops_trusted() THEN
    RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
  END IF;
  IF EXISTS (SELECT 1 FROM {schema}.lakeops_repository AS r WHERE r.read_only
      AND (TG_OP <> 'INSERT' AND r.id = OLD.repository_id OR TG_OP <> 'DELETE' AND r.id = NEW.repository_id)) THEN
    RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege', MESSAGE = 'the repository is read-only';
  END IF;
  IF TG_OP <> 'DELETE' AND TG_TABLE_NAME = 'lakeops_branch' THEN
    added := ARRAY(SELECT json_array_elements_text(NEW.sealed_tokens)) || NEW.staging_token;
    IF TG_OP = 'UPDATE' AND NEW.repository_id = OLD.repository_id AND NEW.name = OLD.name THEN
      added := ARRAY(SELECT t FROM unnest(added) AS t WHERE t <> OLD.staging_token
        AND t NOT IN (SELECT json_array_elements_text(OLD.sealed_tokens)));
    END IF;
    -- In another isolation level this does not see what was staged a moment ago.
    IF added <> '{{}}' AND EXISTS (SELECT 1 FROM {schema}.lakeops_protection AS p WHERE p.kind <> 'tag'
          AND p.repository_id = NEW.repository_id AND {schema}.lakeops_matches(NEW.name, p.pattern))
        AND (current_setting('transaction_isolation') <> 'read committed'
          OR EXISTS (SELECT 1 FROM {schema}.lakeops_staged AS s
            WHERE s.repository_id = NEW.repository_id AND s.token = ANY (added))
          OR EXISTS (SELECT 1 FROM {schema}.lakeops_branch AS b WHERE b.repository_id = NEW.repository_id
            AND b.name <> NEW.name AND b.staging_token = ANY (added))) THEN
      RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege',
        MESSAGE = NEW.name || ' is protected by a pattern: a staging token that is in use cannot become its own';
    END IF;
  END IF;
  IF TG_OP = 'INSERT' THEN
    RETURN NEW;
  END IF;
  IF TG_OP = 'UPDATE' AND NEW.repository_id = OLD.repository_id AND NEW.name = OLD.name
      AND NEW.commit_id = OLD.commit_id THEN
    RETURN NEW;
  END IF;
  FOR rule IN SELECT * FROM {schema}.lakeops_protection AS p WHERE p.repository_id = OLD.repository_id
      AND (p.kind = 'tag') = (TG_TABLE_NAME = 'lakeops_tag') AND {schema}.lakeops_matches(OLD.name, p.pattern) LOOP
    IF rule.kind <> 'tag' AND TG_OP = 'UPDATE' THEN
      SELECT c.parents, c.meta_range_id, CASE json_array_length(c.parents) WHEN 1 THEN c.metadata ->> 'squash-origin'
          ELSE c.parents ->> 1 END INTO parents, published, merged FROM {schema}.lakeops_commit AS c
        WHERE c.repository_id = OLD.repository_id AND c.id = NEW.commit_id;
      SELECT c.meta_range_id INTO checked FROM {schema}.lakeops_commit AS c
        WHERE c.repository_id = OLD.repository_id AND c.id = merged;
      IF NEW.repository_id = OLD.repository_id AND NEW.name = OLD.name AND parents ->> 0 = OLD.commit_id
          AND checked IS NOT NULL
          AND (rule.kind = 'branch' OR rule.prefix <> '' OR EXISTS (SELECT 1 FROM {schema}.lakeops_verdict AS d
            WHERE d.repository_id = OLD.repository_id AND d.commit_id = merged AND d.name = rule.check_name
              AND d.state = 'passed')
          AND (published = checked OR NOT {schema}.lakeops_descends(OLD.repository_id, merged, OLD.commit_id)))
      THEN
        CONTINUE;
      END IF;
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege', MESSAGE = OLD.name || ' is protected by '
      || rule.pattern || CASE rule.check_name WHEN '' THEN '' ELSE ', which needs check ' || rule.check_name END;
  END LOOP;
  RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END $$"""

_DESCENDS = """CREATE OR REPLACE FUNCTION {schema}.lakeops_descends(repository text, younger text, older text)
RETURNS boolean LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
WITH RECURSIVE walk (id) AS (
  SELECT younger
  UNION
  SELECT p.value FROM walk AS w JOIN {schema}.lakeops_commit AS c ON c.repository_id = repository AND c.id = w.id
      AND c.generation > (SELECT o.generation FROM {schema}.lakeops_commit AS o
        WHERE o.repository_id = repository AND o.id = older)
    CROSS JOIN LATERAL json_array_elements_text(c.parents) AS p (value)
) SELECT EXISTS (SELECT 1 FROM walk AS w WHERE w.id = older)
$$"""
"""Whether one commit is another's ancestor. A merge over an ancestor of its source shows the source's contents."""

_GUARD_STAGED = """CREATE OR REPLACE FUNCTION {schema}.lakeops_guard_staged() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  place record;
  branch text;
BEGIN
  FOR place IN SELECT DISTINCT n.repository_id, n.token FROM arrived AS n LOOP
    -- Until this transaction ends nobody gives the token to another branch.
    SELECT b.name INTO branch FROM {schema}.lakeops_branch AS b
      WHERE b.repository_id = place.repository_id AND b.staging_token = place.token FOR SHARE;
    IF branch IS NULL
        OR EXISTS (SELECT 1 FROM {schema}.lakeops_repository AS r WHERE r.id = place.repository_id AND r.read_only)
        OR EXISTS (SELECT 1 FROM {schema}.lakeops_protection AS p WHERE p.repository_id = place.repository_id
          AND p.kind <> 'tag' AND {schema}.lakeops_matches(branch, p.pattern)) THEN
      RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege', MESSAGE = 'nothing may be staged there: '
        || coalesce(branch || ' is protected by a pattern or read-only', 'no branch has this token');
    END IF;
  END LOOP;
  RETURN NULL;
END $$"""

_PLACE = f"{PREFIX}at_"
"""The prefix of groups that stand for one repository. A digest follows, since a name has 63 bytes."""

_MINE = """CREATE OR REPLACE FUNCTION {schema}.lakeops_mine() RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
WITH held AS (SELECT u.name, g.rolname FROM (VALUES (session_user), (current_user)) AS u (name)
  JOIN pg_roles AS g ON starts_with(g.rolname::text, 'lakeops_at_') AND pg_has_role(u.name, g.oid, 'MEMBER'))
SELECT CASE WHEN EXISTS (SELECT 1 FROM held) THEN ARRAY(SELECT r.id FROM {schema}.lakeops_repository AS r
  WHERE NOT EXISTS (SELECT 1 FROM held AS h GROUP BY h.name
    HAVING NOT bool_or(h.rolname::text = 'lakeops_at_' || md5(r.id)))) END
$$"""
"""The repositories of a login. Null for one that has its role in all of them. ``SET ROLE`` takes away and adds none."""

_NOWHERE = """DO $$ DECLARE held record; BEGIN
  FOR held IN SELECT g.rolname FROM pg_auth_members AS m JOIN pg_roles AS g ON g.oid = m.roleid
      JOIN pg_roles AS l ON l.oid = m.member WHERE l.rolname = {login} AND starts_with(g.rolname, 'lakeops_at_') LOOP
    EXECUTE 'REVOKE ' || quote_ident(held.rolname) || ' FROM ' || quote_ident({login});
  END LOOP;
END $$"""


class Roles(CatalogPart):
    """Roles of logins of the database."""

    @read_transaction
    def role_statements(
        self, conn: Connection, role: str, login: str | None = None, repositories: Sequence[str] = ()
    ) -> list[str]:
        """The statements that make the four roles, and let a login have one of them and no other.

        With ``repositories`` the login has it in these alone, and in all of them otherwise. Raises ``LakeopsError``
        (``unsupported``) for SQLite, which has no logins, ``InvalidInput`` and ``NotFound``.
        """
        self._check(role, login, repositories)
        return list(_statements(conn, role, login, repositories))

    @write_transaction_once
    def grant_role(
        self, conn: Connection, role: str, login: str | None = None, repositories: Sequence[str] = ()
    ) -> list[str]:
        """Run these statements in one transaction, as the owner of the tables. Returns them. Raises as they do."""
        self._check(role, login, repositories)
        self.database.dialect.lock_schema(conn)
        statements = list(_statements(conn, role, login, repositories))
        for statement in statements:
            conn.exec_driver_sql(statement)
        for repository_id in repositories or ("",):
            self.record(conn, repository_id, "grant", "role", role, None, login)
        return statements

    def _check(self, role: str, login: str | None, repositories: Sequence[str]) -> None:
        if self.database.dialect.name != "postgresql":
            raise unsupported("SQLite has no logins: whoever may write the catalog's file may do everything")
        if role not in ROLES:
            raise InvalidInput(f"{excerpt(role)} is no role; there are {', '.join(ROLES)}")
        if login is not None and flaw(login, at_least=1, at_most=_MAX_LOGIN):
            raise InvalidInput(f"{excerpt(login)} cannot be a login")
        if repositories and login is None:
            raise InvalidInput("name the login that has the role in these repositories alone")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _group(role: str) -> str:
    return f"{PREFIX}{role}"


def _statements(conn: Connection, role: str, login: str | None, repositories: Sequence[str]) -> Iterator[str]:
    schema = _quoted(str(conn.exec_driver_sql("SELECT current_schema()").scalar_one()))
    # Where the server knows it, a member has the rights of a role and cannot become the role.
    held = " WITH INHERIT TRUE, SET FALSE" if (conn.dialect.server_version_info or (0,)) >= (16,) else ""
    yield from _groups(schema, held)
    if login is not None:
        others = ", ".join(_group(one) for one in ROLES if one != role)
        yield f"REVOKE {others} FROM {_quoted(login)}"
        escaped = login.replace("'", "''")
        yield _NOWHERE.format(login=f"'{escaped}'")
    if repositories:
        yield from _places(schema)
    for repository_id in repositories:
        find_repository(conn, repository_id)
        place = _PLACE + md5(repository_id.encode(), usedforsecurity=False).hexdigest()
        yield _create_group_sql(place)
        yield f"GRANT {place} TO {_quoted(str(login))}{held}"
    if login is not None:
        yield f"GRANT {_group(role)} TO {_quoted(login)}{held}"


def _create_group_sql(group: str) -> str:
    return (
        f"DO $$ BEGIN IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = '{group}') "  # noqa: S608
        f"THEN CREATE ROLE {group} NOLOGIN; END IF; END $$"
    )


def _places(schema: str) -> Iterator[str]:
    """Policies that keep logins with repositories of their own from the rows of others."""
    yield _MINE.format(schema=schema)
    mine = f"(SELECT {schema}.lakeops_mine())"
    for table in METADATA.sorted_tables:
        column = "id" if table is REPOSITORY else "repository_id"
        if column not in table.c or table is CATALOG:
            continue
        name, reader = f"{schema}.{table.name}", _group(READER)
        yield f"ALTER TABLE {name} ENABLE ROW LEVEL SECURITY"
        if table not in {policy[0] for policy in _POLICIES}:
            yield f"DROP POLICY IF EXISTS {table.name}_all ON {name}"
            yield f"CREATE POLICY {table.name}_all ON {name} FOR ALL TO {reader} USING (true) WITH CHECK (true)"
        rule = f"{mine} IS NULL OR {column} = ANY ({mine}::text[])"
        verbs = ("INSERT", "UPDATE", "DELETE") if table is REPOSITORY else ("ALL",)
        for verb in verbs:
            policy = f"{table.name}_mine_{verb.lower()}"
            clauses = {"INSERT": f"WITH CHECK ({rule})", "DELETE": f"USING ({rule})"}
            clause = clauses.get(verb, f"USING ({rule}) WITH CHECK ({rule})")
            yield f"DROP POLICY IF EXISTS {policy} ON {name}"
            yield f"CREATE POLICY {policy} ON {name} AS RESTRICTIVE FOR {verb} TO {reader} {clause}"


def _groups(schema: str, held: str) -> Iterator[str]:
    """The four roles, with their rights."""
    for one in ROLES:
        yield _create_group_sql(_group(one))
    for other in (WRITER, MAINTAINER, MIRRORING):
        yield f"GRANT {_group(READER)} TO {_group(other)}{held}"
    everybody = ", ".join(map(_group, ROLES))
    names = [table.name for table in METADATA.sorted_tables]
    every = ", ".join(f"{schema}.{name}" for name in (*names, VERSION_TABLE))
    yield f"REVOKE ALL ON {every} FROM {everybody}"
    yield f"REVOKE CREATE ON SCHEMA {schema} FROM PUBLIC"  # it was everybody's until PostgreSQL 15
    yield f"GRANT USAGE ON SCHEMA {schema} TO {_group(READER)}"
    yield f"GRANT SELECT ON {every} TO {_group(READER)}"
    most = ", ".join(f"{schema}.{name}" for name in names if name not in {AUDIT.name, REFLOG.name, CATALOG.name})
    yield f"GRANT {_ALL} ON {most} TO {_group(MAINTAINER)}"
    yield f"GRANT INSERT, DELETE ON {schema}.{REFLOG.name} TO {_group(MAINTAINER)}"
    yield f"GRANT INSERT ON {schema}.{CATALOG.name} TO {_group(MAINTAINER)}"
    for one, rights in _FEW.items():
        for right, table in rights:
            yield f"GRANT {right} ON {schema}.{table.name} TO {_group(one)}"
    writing = ", ".join(map(_group, (WRITER, MAINTAINER, MIRRORING)))
    yield f"GRANT INSERT ({_TOLD}) ON {schema}.{AUDIT.name} TO {writing}"
    for table in (AUDIT, REFLOG):
        yield f"GRANT USAGE ON SEQUENCE {schema}.{table.name}_sequence_seq TO {writing}"
    for table in dict.fromkeys(policy[0] for policy in _POLICIES):
        yield f"ALTER TABLE {schema}.{table.name} ENABLE ROW LEVEL SECURITY"
    for table, one, verb, rule in _POLICIES:
        name = f"{table.name}_{one}"
        yield f"DROP POLICY IF EXISTS {name} ON {schema}.{table.name}"
        yield f"CREATE POLICY {name} ON {schema}.{table.name} FOR {verb} TO {_group(one)} {rule}"
    for function in (_MATCHES, _TRUSTED, _DESCENDS, _GUARD, _GUARD_STAGED):
        yield function.format(schema=schema)
    for table in (BRANCH, TAG):
        yield (
            f"CREATE OR REPLACE TRIGGER {table.name}_guard BEFORE INSERT OR UPDATE OR DELETE ON {schema}.{table.name} "
            f"FOR EACH ROW EXECUTE FUNCTION {schema}.lakeops_guard_ref()"
        )
    for verb in ("INSERT", "UPDATE"):
        yield (
            f"CREATE OR REPLACE TRIGGER {STAGED.name}_guard_{verb.lower()} AFTER {verb} ON {schema}.{STAGED.name} "
            f"REFERENCING NEW TABLE AS arrived FOR EACH STATEMENT WHEN (NOT {schema}.lakeops_trusted()) "
            f"EXECUTE FUNCTION {schema}.lakeops_guard_staged()"
        )
