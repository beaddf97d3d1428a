from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import event
from support.catalogs import FIRST, REPO, a_commit, an_entry, commit_all, draft, everything, new_token, paths, put, seal

from lakeops.catalog.records import KeyRecord
from lakeops.model.errors import AttemptExpired, BranchMoved, CatalogUnavailable, KeyReused, RefNotFound


def ready(catalog, message="one", **given):
    """A draft over one sealed row, with another row staged after it."""
    put(catalog, an_entry("a"))
    state = seal(catalog)
    put(catalog, an_entry("b"))
    return draft(catalog, state, a_commit(message, catalog.commits.get(REPO, state.commit_id)), **given)


def test_publishing_does_everything_at_once(catalog):
    publish = ready(catalog, key="k", fingerprint="f", actor="bob", action="import")
    before = catalog.refs.branch(REPO, "main")
    assert catalog.commits.publish(publish) == publish.commit
    after = catalog.refs.branch(REPO, "main")
    assert after == replace(before, commit_id=publish.commit.id, sealed_tokens=())
    assert catalog.commits.get(REPO, publish.commit.id) == publish.commit
    assert paths(catalog.staging.staged_page(REPO, "main").rows) == ["b"]
    assert catalog.commits.key(REPO, "k") == KeyRecord("f", publish.commit.id)
    move = catalog.refs.reflog(REPO, "main")[0]
    assert (move.old, move.new, move.action, move.actor) == (FIRST.id, publish.commit.id, "import", "bob")
    assert catalog.staging.purge_retired(REPO) == 1
    assert paths(catalog.staging.staged_page(REPO, "main").rows) == ["b"]


REFUSED = {
    "another head": (BranchMoved, lambda c, p: replace(p, expected_head="f" * 64)),
    "another reset": (BranchMoved, lambda c, p: replace(p, sealed_resets=p.sealed_resets + 1)),
    "an unknown token": (BranchMoved, lambda c, p: replace(p, consumed=("nope",))),
    "the active token": (BranchMoved, lambda c, p: replace(p, consumed=(c.refs.branch(REPO, "main").staging_token,))),
    "too many tokens": (BranchMoved, lambda c, p: replace(p, consumed=(*p.consumed, "nope"))),
    "an unknown parent": (RefNotFound, lambda c, p: replace(p, commit=a_commit("x", a_commit("never")))),
    "an unknown commit to rest on": (RefNotFound, lambda c, p: replace(p, live=frozenset({"f" * 64}))),
    "an old attempt": (AttemptExpired, lambda c, p: replace(p, started=p.started - timedelta(hours=12, minutes=1))),
    "no such branch": (RefNotFound, lambda c, p: replace(p, branch="nope")),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_refused_publish_changes_nothing(catalog, reason):
    error, change = REFUSED[reason]
    publish = ready(catalog, key="k")
    before = everything(catalog)
    with pytest.raises(error):
        catalog.commits.publish(change(catalog, publish))
    assert everything(catalog) == before
    catalog.commits.publish(publish)


def test_the_newer_of_two_sealed_tokens_does_not_leave_alone(catalog):
    put(catalog, an_entry("a"))
    older = seal(catalog)
    put(catalog, an_entry("a", "2"))
    both = seal(catalog)
    commit = a_commit("one", FIRST)
    with pytest.raises(BranchMoved):
        catalog.commits.publish(draft(catalog, both, commit, consumed=both.sealed_tokens[:1]))
    catalog.commits.publish(draft(catalog, older, commit))
    assert catalog.refs.branch(REPO, "main").sealed_tokens == both.sealed_tokens[:1]


def test_a_reset_while_a_commit_is_in_flight_is_noticed(catalog):
    publish = ready(catalog)
    catalog.staging.reset(REPO, "main", path="a", actor="bob")
    with pytest.raises(BranchMoved, match="staged rows"):
        catalog.commits.publish(publish)


def test_of_two_commits_on_one_head_one_is_published(catalog):
    one = ready(catalog, "one")
    two = replace(one, commit=a_commit("two", FIRST))
    catalog.commits.publish(one)
    with pytest.raises(BranchMoved, match=f"moved to {one.commit.id}"):
        catalog.commits.publish(two)


def test_a_known_key_gives_the_earlier_commit_whatever_happened_since(catalog):
    publish = ready(catalog, key="k", fingerprint="f")
    catalog.commits.publish(publish)
    commit_all(catalog, "later")
    catalog.retention.expire_commits(REPO, [FIRST.id])
    catalog.refs.protect(REPO, "*")
    catalog.repositories.set_read_only(REPO, True)
    before = everything(catalog)
    late = replace(publish, commit=a_commit("again", FIRST), started=publish.started - timedelta(days=9), branch="gone")
    assert catalog.commits.publish(late) == publish.commit
    with pytest.raises(KeyReused, match="'k'"):
        catalog.commits.publish(replace(late, fingerprint="g"))
    assert everything(catalog) == before


def test_a_key_can_stand_for_a_commit_that_exists(catalog):
    assert catalog.commits.key(REPO, "k") is None
    catalog.commits.remember_key(REPO, "k", "f", FIRST.id)
    catalog.commits.remember_key(REPO, "k", "g", "f" * 64)
    assert catalog.commits.key(REPO, "k") == KeyRecord("f", FIRST.id)
    assert catalog.commits.publish(ready(catalog, key="k", fingerprint="f")) == FIRST
    assert catalog.refs.branch(REPO, "main").commit_id == FIRST.id


def test_a_commit_that_exists_is_kept_with_its_own_file(catalog):
    publish = ready(catalog)
    catalog.commits.publish(publish)
    catalog.refs.create_branch(REPO, "dev", FIRST.id, token=new_token(), actor="ada")
    same = replace(publish.commit, meta_range_file="another.parquet")
    assert catalog.commits.publish(draft(catalog, catalog.refs.branch(REPO, "dev"), same)) == publish.commit
    assert catalog.refs.branch(REPO, "dev").commit_id == publish.commit.id


class FailureError(Exception):
    """Raised in place of a statement."""


def test_a_fault_at_any_statement_leaves_nothing_behind(catalog):
    publish = ready(catalog, key="k")
    before = everything(catalog)
    statements = 0

    def fail(_conn, _cursor, statement, *_rest):
        nonlocal left
        left -= 1
        if left == 0:
            raise FailureError(statement)

    while True:
        statements += 1
        left = statements
        event.listen(catalog.database.engine, "before_cursor_execute", fail)
        try:
            catalog.commits.publish(publish)
            break
        except FailureError:
            event.remove(catalog.database.engine, "before_cursor_execute", fail)
            assert everything(catalog) == before
    event.remove(catalog.database.engine, "before_cursor_execute", fail)
    assert statements > 10
    assert catalog.refs.branch(REPO, "main").commit_id == publish.commit.id


@pytest.fixture
def lose_answer(opened, postgres_url):
    """A catalog on PostgreSQL whose server hangs up at one COMMIT, after it was done or before."""
    import psycopg
    from support.catalogs import create

    catalog = opened(postgres_url)
    create(catalog)

    armed: list[bool] = []

    def hang_up(conn):
        if not armed:
            return
        driver = conn.connection.driver_connection
        if armed.pop():
            driver.commit()
            driver.execute("SELECT 1")  # SQLAlchemy's own COMMIT has something to be about
        with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as admin:
            admin.execute("SELECT pg_terminate_backend(%s, 5000)", [driver.info.backend_pid])

    event.listen(catalog.database.engine, "commit", hang_up)

    def arm(*, done: bool) -> None:
        armed.append(done)

    catalog.arm = arm
    return catalog


@pytest.mark.parametrize("done", [True, False])
def test_a_lost_answer_to_commit_is_settled_by_what_the_database_says(lose_answer, done):
    publish = ready(lose_answer)
    lose_answer.arm(done=done)
    assert lose_answer.commits.publish(publish) == publish.commit
    assert [move.new for move in lose_answer.refs.reflog(REPO, "main")] == [publish.commit.id, FIRST.id]
    assert lose_answer.refs.branch(REPO, "main").sealed_tokens == ()


@pytest.mark.parametrize("done", [True, False])
def test_what_creates_or_repeats_is_settled_too(lose_answer, done):
    catalog = lose_answer
    catalog.arm(done=done)
    put(catalog, an_entry("a"))
    catalog.arm(done=done)
    state = seal(catalog)
    assert len(state.sealed_tokens) == 1
    catalog.arm(done=done)
    made = catalog.refs.create_branch(REPO, "dev", FIRST.id, token="t", actor="ada")
    assert made == catalog.refs.branch(REPO, "dev")
    catalog.arm(done=done)
    catalog.refs.create_tag(REPO, "v1", FIRST.id, actor="ada")
    assert len(catalog.refs.reflog(REPO, "dev")) == len(catalog.refs.reflog(REPO, "v1")) == 1
    catalog.arm(done=done)
    assert catalog.staging.begin_upload(REPO, "main", "data/x/", upload="u") == catalog.staging.uploads(REPO)["u"][1]


@pytest.mark.parametrize("done", [True, False])
def test_what_cannot_be_settled_is_said(lose_answer, done):
    put(lose_answer, an_entry("a"))
    lose_answer.arm(done=done)
    with pytest.raises(CatalogUnavailable, match="whether the change was made is not known"):
        lose_answer.staging.reset(REPO, "main", actor="ada")
    assert lose_answer.staging.has_staged(REPO, "main") is not done
