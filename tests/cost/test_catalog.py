"""Statements that transitions and looks send to the catalog's database, on both kinds of it."""

from datetime import timedelta

import pytest
from support.catalogs import FIRST, REPO, an_entry, commit_all, create, expire_commits, new_token, put, seal
from support.statements import ours, statements


def sealed(catalog):
    put(catalog, an_entry("a"), an_entry("b"))
    seal(catalog)
    put(catalog, an_entry("b"), an_entry("c"))


def a_chain(catalog, count=30):
    return [FIRST.id, *(commit_all(catalog, f"c{number}").id for number in range(count))]


def make_branch(catalog, _):
    catalog.refs.create_branch(REPO, "dev", FIRST.id, token=new_token(), actor="ada")


def two_more(catalog):
    for name in ("one", "two"):
        create(catalog, name)


COSTS = {
    # name: (what comes before, what is counted, statements on PostgreSQL, statements on SQLite)
    "a staged path": (
        lambda c: put(c, an_entry("a")), lambda c, _: c.staging.staged_one(REPO, "main", "a"), 1, 1,
    ),
    "a path of the active token": (sealed, lambda c, _: c.staging.staged_one(REPO, "main", "b"), 1, 1),
    "a path of a sealed token": (sealed, lambda c, _: c.staging.staged_one(REPO, "main", "a"), 2, 2),
    "staged paths of branches": (a_chain, lambda c, _: c.staging.staged_counts(REPO, ["main"], most=9), 1, 1),
    "staged paths with sealed ones": (sealed, lambda c, _: c.staging.staged_counts(REPO, ["main"], most=9), 2, 2),
    # The repository, the ref at a live commit, the reflog with the audit. On SQLite a statement is no round trip.
    "a new branch": (a_chain, make_branch, 3, 4),
    "a new tag": (a_chain, lambda c, _: c.refs.create_tag(REPO, "v1", FIRST.id, actor="ada"), 3, 4),
    "first parents": (a_chain, lambda c, ids: c.commits.first_parents(REPO, ids[-1], limit=100), 1, 1),
    "an overview": (two_more, lambda c, _: c.audit.overviews([REPO, "one", "two", "no"], most_branches=3), 2, 2),
    "an overview of nothing": (a_chain, lambda c, _: c.audit.overviews([], most_branches=3), 0, 0),
    "a search": (a_chain, lambda c, _: c.audit.search_messages(REPO, "c1", looked_at=4, limit=100), 3, 3),
    "a search that is full": (a_chain, lambda c, _: c.audit.search_messages(REPO, "c1", looked_at=99, limit=2), 2, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", COSTS)
def test_statements(catalog, name):
    prepare, act, server, file = COSTS[name]
    found = prepare(catalog)
    with statements(catalog) as seen:
        act(catalog, found)
    assert len(ours(seen)) == (server if catalog.database.dialect.name == "postgresql" else file), ours(seen)


def test_what_is_locked_for_does_not_grow_with_history(catalog):
    def cost(count):
        old = a_chain(catalog, count)[:10]
        expire_commits(catalog, REPO, [])
        with statements(catalog) as seen:
            cutoff = catalog.now() - timedelta(hours=24)
            since = catalog.marks.begin_mark(REPO, f"m-{count}", cutoff=cutoff)[1]
        begun = len(ours(seen))
        with statements(catalog) as seen:
            catalog.retention.expire_by_mark(REPO, f"m-{count}", since=since, rules=None, choose=lambda _moves: old)
        return begun, len(ours(seen))

    assert cost(20) == cost(60)
