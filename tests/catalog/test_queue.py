"""The queue of publishers against a model of plain lists."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.budget import examples
from support.catalogs import FIRST, REPO, a_commit, create, draft, everything, new_token

from lakeops.catalog.open import open_catalog
from lakeops.catalog.publishing import FORGET
from lakeops.model.errors import BranchMoved, RefNotFound

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
