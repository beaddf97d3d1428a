from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event
from support.budget import examples
from support.catalogs import (
    FIRST,
    REPO,
    a_commit,
    an_entry,
    commit_all,
    create,
    draft,
    everything,
    expire_commits,
    gone,
    new_token,
    paths,
    put,
    seal,
)
from support.errors import raising

from lakeops.catalog.commits import FORGET
from lakeops.catalog.open import open_catalog
from lakeops.model.errors import AttemptExpired, BranchMoved, CommitExpired, KeyReused, RefNotFound


def ready(catalog, message="one", **given):
    """A draft over one sealed row, with another row staged after it."""
    put(catalog, an_entry("a"))
    state = seal(catalog)
    put(catalog, an_entry("b"))
    return draft(catalog, state, a_commit(message, catalog.commits.get(REPO, state.commit_id)), **given)


def test_publishing_does_everything_at_once(catalog):
    publish = ready(catalog, key="k", fingerprint="f", actor="bob")
    before = catalog.refs.branch(REPO, "main")
    assert catalog.commits.publish(publish) == publish.commit
    after = catalog.refs.branch(REPO, "main")
    assert after == replace(before, commit_id=publish.commit.id, sealed_tokens=())
    assert catalog.commits.get(REPO, publish.commit.id) == publish.commit
    assert paths(catalog.staging.staged_page(REPO, "main")[1]) == ["b"]
    assert catalog.commits.of_key(REPO, "k", "f").id == publish.commit.id
    move = catalog.refs.reflog(REPO, "main")[0]
    assert (move.old, move.new, move.action, move.actor) == (FIRST.id, publish.commit.id, "commit", "bob")
    assert catalog.staging.purge_retired(REPO) == 1
    assert paths(catalog.staging.staged_page(REPO, "main")[1]) == ["b"]


REFUSED = {
    "another head": (BranchMoved, lambda c, p: replace(p, expected_head="f" * 64)),
    "another reset": (BranchMoved, lambda c, p: replace(p, sealed_resets=p.sealed_resets + 1)),
    "an unknown token": (BranchMoved, lambda c, p: replace(p, consumed=("nope",))),
    "the active token": (BranchMoved, lambda c, p: replace(p, consumed=(c.refs.branch(REPO, "main").staging_token,))),
    "too many tokens": (BranchMoved, lambda c, p: replace(p, consumed=(*p.consumed, "nope"))),
    "an unknown parent": (RefNotFound, lambda c, p: replace(p, commit=a_commit("x", a_commit("never")))),
    "an unknown commit to rest on": (RefNotFound, lambda c, p: replace(p, live=frozenset({"f" * 64}))),
    "staged rows that are left, beside another verb": (BranchMoved, lambda _, p: replace(p, action="import")),
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


def test_a_known_key_gives_the_earlier_commit_whatever_happened_since(catalog):
    publish = ready(catalog, key="k", fingerprint="f")
    catalog.commits.publish(publish)
    commit_all(catalog, "later")
    expire_commits(catalog, REPO, [FIRST.id])
    catalog.refs.protect(REPO, "*")
    catalog.repositories.set_read_only(REPO, True)
    before = everything(catalog)
    late = replace(publish, commit=a_commit("again", FIRST), started=publish.started - timedelta(days=9), branch="gone")
    assert catalog.commits.publish(late) == publish.commit
    with pytest.raises(KeyReused, match="'k'"):
        catalog.commits.publish(replace(late, fingerprint="g"))
    assert everything(catalog) == before


def test_a_key_can_stand_for_a_commit_that_exists(catalog):
    assert catalog.commits.of_key(REPO, "k", "f") is None
    catalog.commits.remember_key(REPO, "k", "f", FIRST.id)
    catalog.commits.remember_key(REPO, "k", "g", "f" * 64)
    assert catalog.commits.of_key(REPO, "k", "f") == FIRST
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

    def arm(*, done):
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
    started = catalog.staging.begin_upload(REPO, "main", "data/x/", upload="u")
    assert catalog.retention.roots(REPO).uploads["u"][1] == started
    catalog.arm(done=done)
    catalog.staging.put_staged(REPO, "main", [an_entry("b")], started=started, upload="u")
    assert catalog.retention.roots(REPO).uploads == {}


@pytest.mark.parametrize("done", [True, False])
def test_what_cannot_be_settled_is_said(lose_answer, done):
    put(lose_answer, an_entry("a"))
    lose_answer.arm(done=done)
    with raising("catalog_unavailable", "whether the change was made is not known"):
        lose_answer.staging.reset(REPO, "main", actor="ada")
    assert lose_answer.staging.has_staged(REPO, "main") is not done


# --- the queue of publishers against a model of plain lists ---


NAMES = st.sampled_from(["ada", "bob", "eve"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("enqueue"), NAMES, st.integers(1, 30)),
        st.tuples(st.just("dequeue"), NAMES, st.just(0)),
        st.tuples(st.just("pass"), st.just(""), st.integers(-40, 40)),
        st.tuples(st.just("publish"), NAMES | st.none(), st.just(0)),
    ),
    max_size=14,
)


@settings(max_examples=examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_who_publishes_next(tmp_path_factory, clock, steps):
    """The first place that counts goes first; one that lapsed is passed over, and counts again once it is renewed."""
    catalog = open_catalog(f"sqlite:///{tmp_path_factory.mktemp('queue')}/catalog.db", clock=clock)
    create(catalog)
    line: list[str] = []  # in the order of their places
    lasts: dict[str, tuple] = {}  # since when each place counts, and until when
    for step, name, seconds in steps:
        counting = [each for each in line if lasts[each][0] <= clock.now() < lasts[each][1]]
        if step == "pass":
            clock.advance(seconds=seconds)
        elif step == "dequeue":
            catalog.commits.dequeue(REPO, "main", name)
            line = [each for each in line if each != name]
        elif step == "enqueue":
            line += [name] if name not in line else []
            lasts[name] = (clock.now(), clock.now() + timedelta(seconds=seconds))
            ahead = [each for each in line[: line.index(name)] if each in counting]
            assert catalog.commits.enqueue(REPO, "main", name, lasts=timedelta(seconds=seconds)) == len(ahead)
            assert catalog.commits.ahead(REPO, "main", name) == len(ahead)
        else:
            state = catalog.refs.branch(REPO, "main")
            commit = a_commit(new_token(), catalog.commits.get(REPO, state.commit_id))
            request = draft(catalog, state, commit, publisher=name)
            if counting and counting[0] != name:
                with pytest.raises(BranchMoved, match="others wait"):
                    catalog.commits.publish(request)
                assert catalog.refs.branch(REPO, "main") == state
            else:
                catalog.commits.publish(request)
                line = [each for each in line if each != name]
    assert [catalog.commits.ahead(REPO, "main", name) is not None for name in ("ada", "bob", "eve")] == [
        name in line for name in ("ada", "bob", "eve")
    ]
    catalog.close()


def test_each_branch_has_its_own_queue(catalog):
    catalog.refs.create_branch(REPO, "dev", FIRST.id, token=new_token(), actor="ada")
    assert catalog.commits.enqueue(REPO, "main", "ada", lasts=timedelta(hours=1)) == 0
    assert catalog.commits.enqueue(REPO, "main", "bob", lasts=timedelta(hours=1)) == 1
    assert catalog.commits.enqueue(REPO, "dev", "eve", lasts=timedelta(hours=1)) == 0
    catalog.commits.publish(draft(catalog, catalog.refs.branch(REPO, "dev"), a_commit("one", FIRST), publisher="eve"))
    assert catalog.commits.ahead(REPO, "dev", "eve") is None
    with pytest.raises(RefNotFound):
        catalog.commits.enqueue(REPO, "none", "ada", lasts=timedelta(hours=1))


def test_a_deleted_branch_leaves_no_queue(catalog):
    before = everything(catalog)
    catalog.refs.create_branch(REPO, "dev", FIRST.id, token=new_token(), actor="ada")
    catalog.commits.enqueue(REPO, "dev", "ada", lasts=timedelta(hours=1))
    catalog.refs.delete_branch(REPO, "dev", actor="ada")
    queue = "lakeops_queue"
    assert dict(everything(catalog).rows)[queue] == dict(before.rows)[queue] == []


def test_places_that_lapsed_long_ago_are_forgotten(sqlite_url, opened, clock):
    catalog = opened(sqlite_url)
    create(catalog)
    catalog.commits.enqueue(REPO, "main", "gone", lasts=timedelta(seconds=1))
    clock.advance(seconds=FORGET.total_seconds() + 2)
    catalog.commits.enqueue(REPO, "main", "here", lasts=timedelta(seconds=1))
    assert catalog.commits.ahead(REPO, "main", "gone") is None
    assert catalog.commits.ahead(REPO, "main", "here") == 0


# --- commits ---
def chain(catalog, length):
    return [*reversed([commit_all(catalog, f"c{number}") for number in range(length)]), FIRST]


def test_a_commit_comes_back_as_it_was(catalog):
    odd = a_commit("é😀\n\"'%s\\", FIRST, **{"k": 'v"\\', "": "é"})
    state = catalog.refs.branch(REPO, "main")
    assert catalog.commits.publish(draft(catalog, state, odd)) == odd
    assert catalog.commits.get(REPO, odd.id) == odd
    assert list(catalog.commits.get(REPO, odd.id).metadata) == list(odd.metadata)


def test_many_commits_are_read_at_once(catalog):
    made = chain(catalog, 3)
    assert catalog.commits.get_many(REPO, []) == {}
    wanted = [commit.id for commit in made] + [f"{number:064x}" for number in range(1200)]
    assert catalog.commits.get_many(REPO, wanted) == {commit.id: commit for commit in made}


def test_ids_are_found_by_prefix(catalog):
    made = sorted(commit.id for commit in chain(catalog, 40))
    for prefix in {commit_id[:size] for commit_id in made for size in (0, 1, 2, 64)} | {"f", "ffff", "%", "_"}:
        expected = [commit_id for commit_id in made if commit_id.startswith(prefix)]
        assert catalog.commits.commits_with_prefix(REPO, prefix, limit=100) == expected
        assert catalog.commits.commits_with_prefix(REPO, prefix, limit=2) == expected[:2]


def test_first_parents_leave_out_what_was_merged(catalog):
    made = chain(catalog, 30)
    side = a_commit("side", FIRST)
    catalog.refs.create_branch(REPO, "dev", FIRST.id, token=new_token(), actor="ada")
    catalog.commits.publish(draft(catalog, catalog.refs.branch(REPO, "dev"), side))
    merge = a_commit("merge", made[0], side)
    catalog.commits.publish(draft(catalog, catalog.refs.branch(REPO, "main"), merge, action="merge"))
    for limit in (1, 2, 31, 32, 33, 100):
        assert catalog.commits.first_parents(REPO, merge.id, limit=limit) == [merge, *made][:limit]
    assert catalog.commits.first_parents(REPO, FIRST.id, limit=5) == [FIRST]
    with pytest.raises(RefNotFound, match="no commit"):
        catalog.commits.first_parents(REPO, "f" * 64, limit=5)


def test_a_neighbours_commits_are_not_seen(catalog):
    create(catalog, "neighbour")
    chain(catalog, 3)
    assert catalog.commits.first_parents("neighbour", FIRST.id, limit=9) == [FIRST]
    assert list(catalog.commits.get_many("neighbour", catalog.commits.all(REPO))) == [FIRST.id]
    assert catalog.commits.commits_with_prefix("neighbour", "") == [FIRST.id]
    catalog.refs.create_branch(REPO, "dev", FIRST.id, token=new_token(), actor="ada")
    assert expire_commits(catalog, "neighbour", [catalog.refs.branch(REPO, "main").commit_id]) == []


def test_expired_commits_are_marked_and_still_read(catalog):
    head, middle, oldest, first = chain(catalog, 3)
    catalog.refs.create_tag(REPO, "v1", oldest.id, actor="ada")
    every = [head.id, middle.id, oldest.id, first.id, "f" * 64]
    assert expire_commits(catalog, REPO, every) == sorted([middle.id, first.id])
    assert expire_commits(catalog, REPO, every) == []
    assert [c.expired for c in catalog.commits.first_parents(REPO, head.id, limit=9)] == [False, True, False, True]
    assert catalog.commits.get(REPO, middle.id).expired
    assert {commit.id for commit in catalog.commits.all(REPO).values() if not commit.expired} == {head.id, oldest.id}
    assert {commit.id for commit in catalog.retention.roots(REPO).commits} == {head.id, oldest.id}


@pytest.mark.parametrize("role", ["parent", "reused", "second parent"])
def test_publishing_refuses_to_rest_on_an_expired_commit(catalog, role):
    catalog.refs.create_branch(REPO, "dev", FIRST.id, token=new_token(), actor="ada")
    doomed = catalog.commits.publish(draft(catalog, catalog.refs.branch(REPO, "dev"), a_commit("doomed", FIRST)))
    catalog.refs.delete_branch(REPO, "dev", actor="ada")
    state = catalog.refs.branch(REPO, "main")
    parents = {"parent": (doomed,), "reused": (FIRST,), "second parent": (FIRST, doomed)}[role]
    live = {doomed.id} if role == "reused" else set()
    publish = draft(catalog, state, a_commit("late", *parents), live=frozenset(live), action="merge")
    expire_commits(catalog, REPO, [doomed.id])
    before = everything(catalog)
    with pytest.raises(CommitExpired, match=f"{doomed.id} is expired.* start from a newer commit"):
        catalog.commits.publish(publish)
    assert everything(catalog) == before


def test_a_commit_that_was_expired_does_not_come_back_as_a_head(catalog):
    old = catalog.commits.publish(draft(catalog, catalog.refs.branch(REPO, "main"), a_commit("old", FIRST)))
    catalog.refs.create_branch(REPO, "dev", FIRST.id, token=new_token(), actor="ada")
    commit_all(catalog, "newer")
    expire_commits(catalog, REPO, [old.id])
    with pytest.raises(CommitExpired):
        catalog.commits.publish(draft(catalog, catalog.refs.branch(REPO, "dev"), old))


def test_roots_hold_every_staged_address_of_every_branch(catalog):
    catalog.refs.create_branch(REPO, "dev", FIRST.id, token=new_token(), actor="ada")
    put(catalog, an_entry("a", "shadowed"), gone("x"))
    seal(catalog)
    put(catalog, an_entry("a", "newest"), an_entry("b", "other"))
    put(catalog, an_entry("a", "dev's"), branch="dev")
    started = catalog.staging.begin_upload(REPO, "dev", "data/p/u/", upload="u")
    roots = catalog.retention.roots(REPO)
    names = [address.rpartition("/")[2] for address in roots.staged["physical_address"].to_pylist()]
    assert sorted(names) == ["dev's", "newest", "other", "shadowed"]
    assert roots.uploads == {"u": ("data/p/u/", started)}
    assert [commit.id for commit in roots.commits] == [FIRST.id]
    commit_all(catalog, "one")
    catalog.refs.delete_branch(REPO, "dev", actor="ada")
    assert catalog.retention.roots(REPO).staged.num_rows == 0
