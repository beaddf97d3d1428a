"""Errors of PostgreSQL, one of each class of SQLSTATE, at the statements of a put, a commit and a merge."""

import json
from collections.abc import Callable

import psycopg.errors
import pytest
from sqlalchemy import event

from lakeops import Lake, Settings
from lakeops.cli.app import app
from lakeops.model.errors import LakeopsError

KINDS = {
    "08006": "catalog_unavailable",
    "08P01": "catalog_unavailable",
    "22003": "catalog_error",
    "23505": "catalog_unavailable",
    "25006": "catalog_error",
    "25P03": "catalog_unavailable",
    "40001": "catalog_unavailable",
    "42501": "permission_denied",
    "42P01": "catalog_error",
    "53100": "catalog_unavailable",
    "55P03": "catalog_unavailable",
    "55000": "catalog_error",
    "57014": "catalog_unavailable",
    "57P01": "catalog_unavailable",
    "58030": "catalog_error",
    "XX000": "catalog_error",
}
VERBS: dict[str, Callable[[Lake], object]] = {
    "put": lambda lake: lake.repository("shop").branch("main").put("c", b"2"),
    "commit": lambda lake: lake.repository("shop").branch("main").commit("More"),
    "merge": lambda lake: lake.repository("shop").merge("dev", "target"),
}


class Fault:
    """An error of the driver at one statement and at all after it, until it is lifted."""

    def __init__(self):
        self.state: str | None = None
        self.at = self.seen = 0

    def __call__(self, *_):
        self.seen += 1
        if self.state is not None and self.seen >= self.at:
            raise psycopg.errors.lookup(self.state)("the database says no\nDETAIL: secret")

    def set(self, state, at=0):
        self.state, self.at, self.seen = state, at, 0


@pytest.fixture
def settings(tmp_path, empty_postgres_url):
    return Settings.load(home=tmp_path, database_url=empty_postgres_url, fsync=False)


@pytest.fixture
def lake(settings, monkeypatch):
    monkeypatch.setattr("lakeops.catalog.database.TRIES", 2)
    monkeypatch.setattr("lakeops.catalog.database.pause", lambda _seconds: None)
    with Lake.open(settings=settings) as lake:
        repo = lake.create_repository("shop")
        for name in ("dev", "target"):
            branch = repo.create_branch(name, "main")
            branch.put(name, b"1")
            branch.commit(f"Load {name}")
        repo.branch("main").put("a", b"1")
        yield lake


@pytest.mark.parametrize("verb", VERBS)
def test_each_state_at_the_statements_of_a_verb_is_an_error_of_lakeops(lake, verb):
    fault = Fault()
    event.listen(lake.catalog.database.engine, "do_execute", fault)
    met = set()
    for number, (state, kind) in enumerate(KINDS.items()):
        for at in (1, 2 + number % 5):
            fault.set(state, at)
            try:
                VERBS[verb](lake)
            except LakeopsError as error:
                assert error.kind == kind, (state, at, error)
                assert "secret" not in error.message
                met.add(state)
            finally:
                fault.set(None)
    assert met == set(KINDS)
    if verb == "put":
        assert lake.repository("shop").branch("main").put("c", b"2")
    else:
        VERBS[verb](lake)


@pytest.mark.parametrize(("state", "code"), [("42501", 5), ("57P01", 1), ("XX000", 1)])
def test_the_command_line_says_it_in_one_line(lake, settings, state, code, monkeypatch, capsys):
    fault = Fault()
    event.listen(lake.catalog.database.engine, "do_execute", fault)
    fault.set(state)
    monkeypatch.setattr(Lake, "open", lambda *_args, **_options: lake)
    with pytest.raises(SystemExit) as ended:
        app(["--json", "commit", "lakefs://shop/main", "-m", "More"])
    assert ended.value.code == code
    said = capsys.readouterr()
    assert json.loads(said.out)["error"]["kind"] == KINDS[state]
    assert "Traceback" not in said.err
