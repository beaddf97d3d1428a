"""PostgreSQL's plans of the statements that a lake sends, taken in the transaction that sends them; and full tables."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from sqlalchemy import event

from lakeops import Lake


@dataclass(frozen=True)
class Plan:
    """How a statement ran.

    Attributes:
        scanned: tables that were read from end to end.
        pages: pages of tables and indexes that it looked at.
    """

    statement: str
    scanned: frozenset[str]
    pages: int


@contextmanager
def plans(lake: Lake) -> Iterator[list[Plan]]:
    """Collects the plan of each statement of a block on tables of lakeops, with its own parameters.

    Each runs twice: first under ``EXPLAIN ANALYZE``, which is rolled back.
    """
    seen: list[Plan] = []

    class Explaining(psycopg.Cursor[Any]):
        def execute(self, query: Any, params: Any = None, **given: Any) -> Any:
            note(self.connection, query, params)
            return super().execute(query, params, **given)

        def executemany(self, query: Any, params_seq: Any, **given: Any) -> None:
            rows = list(params_seq)
            note(self.connection, query, rows[0])
            super().executemany(query, rows, **given)

        def copy(self, statement: Any, params: Any = None, **given: Any) -> Any:
            if "TO STDOUT" in statement:
                note(self.connection, statement.partition("COPY (")[2].rpartition(") TO STDOUT")[0], params)
            return super().copy(statement, params, **given)

    def note(connection: Any, query: Any, params: Any) -> None:
        text = str(query)
        if "lakeops_" not in text or text.lstrip().startswith(("SET", "CREATE", "LOCK")):
            return
        with psycopg.Cursor(connection) as cursor:
            cursor.execute("SAVEPOINT before_the_plan")
            cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {text}", params)
            (found,) = cursor.fetchone() or ()
            cursor.execute("ROLLBACK TO SAVEPOINT before_the_plan")
        scans = [node for node in _nodes(found[0]["Plan"]) if "Scan" in node["Node Type"] and "Relation Name" in node]
        scanned = frozenset(node["Relation Name"] for node in scans if "Seq Scan" in node["Node Type"])
        pages = sum(node["Shared Hit Blocks"] + node["Shared Read Blocks"] for node in scans)
        seen.append(Plan(" ".join(text.split()), scanned, pages))

    def explain(connection: Any, _record: Any) -> None:
        connection.cursor_factory = Explaining

    engine = lake.catalog.database.engine  # type: ignore[attr-defined]
    engine.dispose()
    event.listen(engine, "connect", explain)
    try:
        yield seen
    finally:
        event.remove(engine, "connect", explain)
        engine.dispose()


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for inner in node.get("Plans", ()):
        yield from _nodes(inner)


_ID = "md5(n::text) || md5((-n)::text)"
_HOURS_AGO = "extract(epoch FROM now())::bigint - n"
_ROWS = {
    # A line of commits that expired long ago. So no verb reads what they are made of.
    "commit": f"""{_ID}, '[]', md5((n - 1)::text) || md5((1 - n)::text), 'ada', 'run ' || n, {_HOURS_AGO}, '{{}}',
        repeat('a', 64), n + 1, 'f', repeat('b', 64), true, NULL""",
    "branch": "'b' || n, $head, 'token-' || n, '[]', 0, 0, '[]'",
    "tag": "'t' || n, $head",
    "staged": """CASE n % 2 WHEN 0 THEN $token ELSE 'token-' || n END, 'staged/' || lpad(n::text, 8, '0'), false,
        'data/2026010100/' || n, md5(n::text), 1, 1700000000, 'text/plain', NULL, 1""",
    "retired_token": f"'retired-' || n, {_ID}, true",
    "idempotency_key": f"'key-' || n, md5(n::text), {_ID}, {_HOURS_AGO}",
    "verdict": f"{_ID}, 'quality', 'passed', 'ada', {_HOURS_AGO}, '', ''",
    "upload": "'upload-' || n, 'b' || n, 'data/2026010100/u' || n, 1000000 * extract(epoch FROM now())::bigint",
    "report": f"'gc', {_HOURS_AGO}, 'ada', '{{}}'",
    "mark": "'mark-' || n, 'swept', '', n, n, 1, 1, 1, 1, 1, 0, '[]'",
    "queue": "'b' || n, 1, 'gone', 0, 0",
    "mirror_need": "'mirror-' || n, '[]', 0, n",
}
_COUNTED = {
    "reflog": f"""(repository_id, kind, ref, old, new, action, actor, at)
        SELECT $repository, 'branch', 'b' || n, $head, {_ID}, 'commit', 'ada', {_HOURS_AGO}""",
    "audit": f"""(repository_id, action, kind, ref, before, after, claimed, recorded)
        SELECT $repository, 'commit', 'branch', 'b' || n, $head, {_ID}, 'ada', {_HOURS_AGO}""",
}
_OF_REPOSITORIES = {
    # One row a repository, or a few.
    "repository": """'full-' || n, 'file:///full-' || n, 'main', 0, false, '{}', '{}', '{}', 3600, NULL, NULL, NULL,
        NULL, '[]', NULL""",
    "owner": "'full-' || n, '{}', NULL",
    "retention": "'full-' || n, '{}'",
    "protection": "'full-' || n, 'branch', 'main', '', ''",
    "mirror": """'full-' || n, '{}', 'r', '[]', '[]', true, false, 0, 1, NULL, NULL, NULL, 60, '[]', NULL, '[]',
        0, '[]'""",
    "mirror_ref": "'full-' || n, 'branch', 'main', $head, $head, NULL, 1, NULL, 0, 0, NULL, NULL, 'null'",
    "mirror_arrival": "'full-' || n, 'branch', 'main', 'range-' || n, NULL",
}


_CHURN = (
    "DELETE FROM lakeops_branch WHERE name LIKE 'b%7'",
    "DELETE FROM lakeops_tag WHERE name LIKE 't%7'",
    "DELETE FROM lakeops_staged WHERE path LIKE 'staged/%7'",
    # At most 10,000: each purge scans for the next one, and what a scan finds dead, the index hides from the next scan.
    "UPDATE lakeops_retired_token SET purged = false WHERE token LIKE 'retired-%7' AND length(token) < 14",
    "UPDATE lakeops_retired_token SET purged = true WHERE token LIKE 'retired-%7' AND length(token) < 14",
    """DO $do$ BEGIN FOR n IN 1..2000 LOOP
        UPDATE lakeops_branch SET intents = '[]' WHERE repository_id = $repository AND name = 'main'; COMMIT;
    END LOOP; END $do$""",
)
"""What branches that came and went, commits and purges leave until the next vacuum: dead rows in tables and indexes."""
MOST = 100_000
"""Branches, tags, repositories and others, of which there are fewer than commits and staged rows."""
_MANY = {"commit", "staged", "retired_token", "idempotency_key", *_COUNTED}


def fill(url: str, repository: str, head: str, token: str, rows: int) -> None:
    """Put that many rows of a repository into each table, and as many repositories beside it, but ``MOST`` of these.

    Half of the staged rows are under ``token``. All branches and tags are at ``head``. Then a tenth of the rows goes,
    and nothing is vacuumed.
    """
    words = {"$head": f"'{head}'", "$token": f"'{token}'", "$repository": f"'{repository}'"}
    statements = {name: f"SELECT $repository, {row}" for name, row in _ROWS.items()} | _COUNTED
    statements |= {name: f"SELECT {row}" for name, row in _OF_REPOSITORIES.items()}
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as conn:
        for name, statement in statements.items():
            for word, value in words.items():
                statement = statement.replace(word, value)  # noqa: PLW2901
            numbers = f"generate_series(1, {rows if name in _MANY else min(rows, MOST)}) AS n"
            conn.execute(f"INSERT INTO lakeops_{name} {statement} FROM {numbers} ON CONFLICT DO NOTHING")  # type: ignore[call-overload]
        conn.execute("VACUUM ANALYZE")
        for statement in _CHURN:
            conn.execute(statement.replace("$repository", words["$repository"]))  # type: ignore[call-overload]


def full_tables(url: str, least: int) -> set[str]:
    """The tables of lakeops that have so many rows at least, as the planner believes."""
    with psycopg.connect(url.replace("+psycopg", "")) as conn:
        query = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'lakeops_%%' AND reltuples >= %s"
        return {str(name) for (name,) in conn.execute(query, (least,))}
