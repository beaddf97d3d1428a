from __future__ import annotations

import gc
import random

import pytest
from sqlalchemy import insert, update
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
    put,
    seal,
)
from support.graphs import make_history, random_parents
from support.statements import statements

from lakeops.catalog import commits
from lakeops.catalog.records import commit_values
from lakeops.catalog.tables import COMMIT
from lakeops.model.errors import CommitExpired, Corrupted, RefNotFound
from lakeops.model.records import Commit


def chain(catalog, length) -> list[Commit]:
    """Commits of main, newest first, the first one included."""
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


def store(catalog, history: list[Commit]) -> list[Commit]:
    """Put commits beside those of the repository, and give all of them: the highest generation first, then by id."""
    rows = [commit_values(REPO, commit) for commit in history if commit != FIRST]
    catalog.database.write(lambda conn: conn.execute(insert(COMMIT), rows))
    every = {commit.id: commit for commit in [*history, FIRST]}.values()
    return sorted(every, key=lambda commit: (commit.generation, commit.id), reverse=True)


@pytest.mark.parametrize("seed", range(5))
def test_commits_come_by_generation_a_few_at_a_time(catalog, monkeypatch, seed):
    for name, amount in {"AT_ONCE": 7, "FEW": 2, "ROWS": 3}.items():
        monkeypatch.setattr(commits, name, amount)
    rng = random.Random(seed)
    every = store(catalog, make_history(random_parents(rng, 60)))
    highest = every[0].generation
    some = [sorted(rng.choices(range(1, highest + 1), k=2), reverse=True) for _ in range(3)]
    for top, low in [(highest, 1), (highest, highest), (1, 1), *some]:
        expected = [(commit.id, commit.parents) for commit in every if commit.generation <= top]
        assert list(catalog.commits.descending(REPO, top, low)) == expected
    begun = catalog.commits.descending(REPO, highest, highest)
    with statements(catalog) as seen:
        next(begun)
    assert len(seen) <= 3, "no more is read than was asked for"


def test_a_commit_whose_parents_cannot_be_read_ends_the_walk(catalog):
    (made, *_) = chain(catalog, 2)
    change = update(COMMIT).where(COMMIT.c.id == made.id).values(parents={"a": 1})
    catalog.database.write(lambda conn: conn.execute(change))
    with pytest.raises(Corrupted, match=made.id):
        list(catalog.commits.descending(REPO, made.generation, 1))


def test_a_long_walk_keeps_no_rows(catalog):
    """Thousands of rows at once would make the garbage collector look at all that the process has."""
    parents = [(), *((number,) for number in range(6000))]
    store(catalog, make_history(parents))
    seen: list[int] = []
    gc.collect()
    gc.callbacks.append(count := lambda phase, info: seen.append(info["generation"]) if phase == "start" else None)
    try:
        walked = sum(1 for _ in catalog.commits.descending(REPO, 6001, 1))
    finally:
        gc.callbacks.remove(count)
    assert walked == 6002
    assert len(seen) <= 3
