"""Garbage collection in the middle of every verb, verbs in the middle of it, and stores that refuse."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from support.errors import raising
from support.scenes import SPLIT, open_faulty, table, tree

from lakeops import Lake, Repository, Settings
from lakeops.model import errors
from lakeops.store import layout
from lakeops.store.base import DeleteFailure
from lakeops.testing import Crash, Faults

Act = Callable[[Repository], Any]


@pytest.fixture
def repo(faulty_lake, clock, faults):
    """Old commits under a new one, and a branch at the oldest that is idle; with the next mark they expire."""
    repo = faulty_lake.create_repository("repo", split=SPLIT)
    main = repo.branch("main")
    for number in range(6):
        main.put(f"f{number}", b"old")
    main.commit("old")
    repo.create_branch("dev", source="main")
    repo.branch("dev").put("g", b"dev")
    repo.branch("dev").commit("on dev")
    for kept in (2, 4):
        for number in range(kept):
            main.put(f"f{number}", b"new")
        main.commit("new")
    repo.gc.set_rules({"default_retention_days": 0})
    clock.advance(days=8)
    faults.revive()
    return repo


@pytest.fixture
def collect(repo, clock):
    """Collects in another process's place: with a lake of its own."""

    def collect(*, later=0):
        clock.advance(hours=later)
        with Lake.open(settings=repo._ctx.settings, clock=clock) as lake:
            here = lake.repository("repo")
            here.gc.sweep(here.gc.mark().id)

    return collect


VERBS: dict[str, tuple[str, Act]] = {
    "branch": ("create_branch", lambda repo: repo.create_branch("b", source="main~1")),
    "tag": ("create_tag", lambda repo: repo.create_tag("t", "main~1")),
    "merge": ("publish", lambda repo: repo.merge("main", "dev", strategy="source-wins")),
    "revert": ("publish", lambda repo: repo.branch("main").revert("main")),
    "cherry-pick": ("publish", lambda repo: repo.cherry_pick("main", "dev")),
    "cherry-pick a child": ("publish", lambda repo: repo.cherry_pick("dev", "main")),
}


@pytest.mark.parametrize("name", VERBS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_verb_that_races_with_expiry_wins_and_keeps_its_objects_or_is_refused(repo, faults, collect, name, when):
    transition, act = VERBS[name]
    faults.hook(transition, when=when, action=lambda _: collect())
    try:
        act(repo)
    except errors.CommitExpired:
        assert when == "before"
    for ref in (*repo.branches(), *repo.tags()):
        for path, data in tree(repo, ref.id).items():
            assert data in (b"old", b"new", b"dev"), (ref, path)
    collect(later=48)
    for ref in (*repo.branches(), *repo.tags()):
        tree(repo, ref.id)


WRITES: dict[str, Act] = {
    "put": lambda repo: repo.branch("dev").put("f0", b"new"),
    "commit": lambda repo: (repo.branch("dev").put("f1", b"new"), repo.branch("dev").commit("c")),
    "merge": lambda repo: (
        repo.branch("main").put("f1", b"new"),
        repo.branch("main").commit("m"),
        repo.merge("dev", "main"),
    ),
    "delete": lambda repo: (repo.branch("dev").delete("f1"), repo.branch("dev").commit("d")),
}


SOON_AND_LATE = [pytest.param(hours, marks=pytest.mark.slow) for hours in (0, 30)]


@pytest.mark.parametrize("hours", [11, 13, *SOON_AND_LATE])
@pytest.mark.parametrize("name", WRITES)
def test_a_slow_write_is_complete_or_refused_at_every_effect(tmp_path, name, hours, clock):
    """A collection, hours later, before each store and catalog effect of the verb."""
    effects = ("put", "put_staged", "seal", "publish", "purge_retired")
    at = 1
    while True:
        settings = Settings.load(home=tmp_path / f"{at}", fsync=False, committer="tester")
        faults = Faults()
        with open_faulty(settings, faults, clock=clock) as lake:
            repo = lake.create_repository("repo", split=SPLIT)
            main = repo.branch("main")
            for number in range(3):
                main.put(f"f{number}", b"old")
            main.commit("old")
            repo.create_branch("dev")
            repo.branch("dev").put("g", b"dev")
            repo.branch("dev").commit("dev")
            repo.gc.set_rules({"default_retention_days": 0})
            clock.advance(days=8)
            faults.revive()
            done = []

            def collect(_call, settings=settings, done=done):
                clock.advance(hours=hours)
                with Lake.open(settings=settings, clock=clock) as other:
                    here = other.repository("repo")
                    here.gc.sweep(here.gc.mark().id)
                done.append(1)

            faults.hook(*effects, at=at, action=collect)
            try:
                WRITES[name](repo)
            except errors.AttemptExpired:
                assert hours > 12
            for ref in repo.branches():
                assert set(tree(repo, ref.id).values()) <= {b"old", b"new", b"dev"}
            if not done:
                assert at > 2
                return
        at += 1


EFFECTS = ("scan", "begin_mark", "put", "finish_mark", "begin_sweep", "delete", "advance_sweep")
MOMENTS = [
    ("scan", "before"),
    *((effect, "after") for effect in EFFECTS),
    # After one effect is before the next.
    *(pytest.param(effect, "before", marks=pytest.mark.slow) for effect in EFFECTS[1:]),
]


@pytest.mark.parametrize(("moment", "when"), MOMENTS, ids=lambda value: value)
def test_everything_that_happens_during_a_collection_is_kept(repo, faults, clock, moment, when):
    """Every verb at one moment of mark and sweep, in another process; then everything reads, and garbage goes later."""
    happened = []

    def everything(_call):
        with Lake.open(settings=repo._ctx.settings, clock=clock) as lake:
            here = lake.repository("repo")
            main, dev = here.branch("main"), here.branch("dev")
            main.put("during", b"new")
            dev.put("f0", b"new")
            for act in (
                lambda: dev.commit("during"),
                lambda: main.commit("during"),
                lambda: here.merge("dev", "main", strategy="source-wins"),
                lambda: here.create_branch("during", source="main~2"),
                lambda: here.create_tag("during-tag", "main~1"),
                lambda: main.revert("main~2"),
            ):
                try:
                    act()
                except (errors.CommitExpired, errors.MergeConflict, errors.NoChanges):
                    happened.append("refused")
            dev.put("staged", b"new")
        happened.append("done")

    faults.hook(moment, when=when, action=everything)
    repo.gc.sweep(repo.gc.mark().id)
    assert happened[-1] == "done"
    for _ in range(2):
        refs = {ref.id: tree(repo, ref.id) for ref in (*repo.branches(), *repo.tags())}
        assert refs["main"]["during"] == b"new"
        assert refs["dev"]["staged"] == b"new"
        clock.advance(hours=30)
        repo.gc.sweep(repo.gc.mark().id, force=True)
    shown = {entry.physical_address for ref in refs for entry in repo.ref(ref).list()}
    committed = {entry.physical_address for ref in refs for entry in repo.ref(f"{ref}").list()}
    stored = {f"{repo.storage_namespace}/{item.key}" for item in repo._ctx.store.list(layout.DATA)}
    assert shown | committed <= stored


class Refusing:
    """A local store that refuses to delete some keys."""

    def __init__(self, store, refuses):
        self._store = store
        self.refuses = refuses
        self.asked: list[list[str]] = []

    def __getattr__(self, name):
        return getattr(self._store, name)

    def delete(self, keys):
        keys = [*keys]
        self.asked.append(keys)
        refused = [DeleteFailure(key, "AccessDenied") for key in keys if self.refuses(key)]
        return refused + self._store.delete([key for key in keys if not self.refuses(key)])


@pytest.fixture
def refusing(tmp_path, clock, monkeypatch):
    """A repository with 25 objects of garbage, in a store that can refuse; swept in steps of five, two a request."""
    import lakeops.ops.gc.sweep as module
    from lakeops.catalog.open import open_catalog
    from lakeops.store.open import Stores, StoreSettings

    monkeypatch.setattr(module, "STEP", 5)
    monkeypatch.setattr(module, "BATCH", 2)
    settings = Settings.load(home=tmp_path, fsync=False, committer="tester")
    stores: list[Refusing] = []

    def wrap(store):
        stores.append(Refusing(store, lambda _: False))
        return stores[-1]

    lake = Lake(
        open_catalog(settings.catalog_url, clock=clock), settings, stores=Stores(StoreSettings(fsync=False), wrap=wrap)
    )
    repo = lake.create_repository("repo")
    for number in range(25):
        repo.branch("main").put(f"f{number:02}", b"x")
    repo.branch("main").reset()
    clock.advance(days=2)
    mark = repo.gc.mark()
    assert mark.rows == 25
    return repo, [store for store in stores if store.url == repo.storage_namespace][-1]


def left(repo):
    return len(list(repo._ctx.store.list(layout.DATA)))


def test_a_store_that_refuses_deletes_is_named_and_nothing_goes(refusing):
    repo, store = refusing
    (mark,) = repo.gc.marks()
    store.refuses = lambda _: True
    with pytest.raises(errors.SweepIncomplete, match=f"25 of the files of mark {mark.id}.*AccessDenied") as caught:
        repo.gc.sweep(mark.id)
    assert sum(map(len, store.asked)) == 5  # one step was enough to know
    assert left(repo) == 25
    assert caught.value.to_json()["failures"][0]["reason"] == "AccessDenied"
    store.refuses = lambda _: False
    assert repo.gc.sweep(mark.id).deleted == 25


def test_what_is_refused_is_tried_again_reported_and_kept_for_the_next_sweep(refusing):
    repo, store = refusing
    (mark,) = repo.gc.marks()
    bad = sorted(item.key for item in store.list(layout.DATA))[12]
    store.refuses = lambda key: key == bad
    done = repo.gc.sweep(mark.id)
    assert (done.deleted, done.mark.state.value, done.mark.refused, done.mark.swept) == (24, "incomplete", 1, 10)
    assert done.to_json()["mark"]["failures"] == [{"key": bad, "reason": "AccessDenied"}]
    assert repo.gc.report(mark.id)["mark"]["failures"] == [{"key": bad, "reason": "AccessDenied"}]
    assert repo.gc.marks()[0] == done.mark
    assert store.asked[-1] == [bad]
    assert left(repo) == 1
    store.refuses = lambda _: False
    done = repo.gc.sweep(mark.id)
    assert (done.mark.state.value, done.mark.refused, left(repo)) == ("swept", 0, 0)


def test_a_step_that_is_refused_whole_does_not_end_a_sweep(refusing):
    repo, store = refusing
    store.refuses = frozenset(sorted(item.key for item in store.list(layout.DATA))[5:10]).__contains__
    done = repo.gc.sweep(repo.gc.marks()[0].id)
    assert (done.deleted, done.mark.state.value, done.mark.refused, left(repo)) == (20, "incomplete", 5, 5)


def test_what_is_refused_for_ever_is_on_the_newest_list_and_lists_stay_few(refusing, clock, monkeypatch):
    """Twenty daily runs, and an object under a legal hold: staging an old object opens one list or two."""
    import lakeops.ops.gc.files as module

    repo, store = refusing
    repo.branch("main").put("kept", b"x")
    repo.branch("main").commit("kept")
    bad = sorted(item.key for item in store.list(layout.DATA))[12]
    store.refuses = lambda key: key == bad
    for day in range(20):
        clock.advance(days=1)
        mark = repo.gc.mark()
        if day % 2:
            with suppress(errors.SweepIncomplete):
                repo.gc.sweep(mark.id, force=True)
    opened: list[str] = []
    really = module.opened
    monkeypatch.setattr(module, "opened", lambda ctx, mark: opened.append(mark.id) or really(ctx, mark))
    kept = repo.branch("main").stat("kept").physical_address
    repo.branch("main").stage(table({"again": kept}))
    assert len(opened) <= 2
    with raising("object_collected"):
        repo.branch("main").stage(table({"bad": bad}))
    states = [found.state.value for found in repo.gc.marks()]
    assert states.count("incomplete") == 1
    assert "sweeping" not in states
    store.refuses = lambda _: False
    repo.gc.sweep(repo.gc.mark().id, force=True)
    assert not [item for item in store.list(layout.DATA) if item.key == bad]


def test_a_sweep_that_a_newer_one_overtook_stops(refusing, clock):
    repo, store = refusing
    (mark,) = repo.gc.marks()
    done: list[str] = []

    def overtake(_key):
        if not done:
            done.append("")
            newer = repo.gc.mark()
            done.append(repo.gc.sweep(newer.id).mark.state.value)
        return False

    store.refuses = overtake
    found = repo.gc.sweep(mark.id)
    assert (done[1], found.mark.state.value, left(repo)) == ("swept", "carried", 0)
    assert sum(map(len, store.asked)) <= 25 + 5 + 2


def test_a_refusal_that_passes_is_no_failure(refusing):
    repo, store = refusing
    (mark,) = repo.gc.marks()
    seen: set[str] = set()

    def once(key):
        known = key in seen
        seen.add(key)
        return not known and key.endswith(tuple("0123456789"))

    store.refuses = once
    done = repo.gc.sweep(mark.id)
    assert (done.deleted, done.bytes, done.mark.state.value, left(repo)) == (25, 25, "swept", 0)


def test_a_killed_sweep_goes_on_where_it_was(tmp_path, clock, monkeypatch):
    import lakeops.ops.gc.sweep as module

    monkeypatch.setattr(module, "STEP", 5)
    settings = Settings.load(home=tmp_path, fsync=False, committer="tester")
    faults = Faults()
    with open_faulty(settings, faults, clock=clock) as lake:
        repo = lake.create_repository("repo")
        for number in range(25):
            repo.branch("main").put(f"f{number:02}", b"x")
        repo.branch("main").reset()
        clock.advance(days=2)
        mark = repo.gc.mark()
        faults.revive()
        faults.crash(at=3, operations=("delete",))
        with pytest.raises(Crash):
            repo.gc.sweep(mark.id)
        faults.revive()
        assert repo.gc.marks()[0].swept == 10
        assert left(repo) == 15
        done = repo.gc.sweep(mark.id)
        assert (done.deleted, faults.counts["delete"], left(repo)) == (15, 3, 0)
