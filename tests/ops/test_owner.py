"""One catalog may delete in a storage namespace: copies, restored ones and other lakes may not."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from threading import Event

import pytest
from services.postgres import fresh_database
from support.copies import copied_file, dropped, dump_of, dumped_file, open_at, pass_for, sqlite_url, template_of
from support.errors import raising
from support.faulty_catalog import ALL_EFFECTS
from support.scenes import SPLIT, tree
from support.soundness import assert_sound

from lakeops import Lake
from lakeops.model.errors import (
    AlreadyExists,
    LakeopsError,
    NamespaceTaken,
    PreconditionFailed,
    RepositoryNotFound,
    StoreUnavailable,
)
from lakeops.model.marks import read_owner
from lakeops.ops.owner import renew_lease
from lakeops.store import layout
from lakeops.testing import Crash, Faults, ManualClock

Open = Callable[..., Lake]


def fill(repo, clock, text="prod", days=9):
    """Two commits of which the rules keep one, longer ago than moves can be taken back."""
    main = repo.branch("main")
    for number in range(6):
        main.put(f"f{number}", f"{text} old".encode())
    main.commit(f"{text} old")
    for number in range(4):
        main.put(f"f{number}", f"{text} new".encode())
    main.commit(f"{text} new")
    repo.gc.set_rules({"default_retention_days": 1})
    clock.advance(days=days)
    repo.gc.confirm_clock()  # nothing happened for so long


@pytest.fixture
def production(opened, tmp_path, clock):
    repo = opened(sqlite_url(tmp_path / "home")).create_repository("flights", split=SPLIT)
    fill(repo, clock)
    return repo


@pytest.fixture(params=["cp", "sqlite dump", "template", "pg_dump"])
def copies(request, tmp_path, postgres_socket, opened, clock):
    """Production with a repository and a mark that was not swept, and a copy of its catalog."""
    home = tmp_path / "home"
    with ExitStack() as stack:
        on_server = request.param in {"template", "pg_dump"}
        url = stack.enter_context(fresh_database(postgres_socket)) if on_server else sqlite_url(home)
        with open_at(home, url, clock) as lake:
            repo = lake.create_repository("flights", split=SPLIT)
            fill(repo, clock)
            repo.gc.mark()
        if on_server:
            made = (template_of if request.param == "template" else dump_of)(url, "staging")
            stack.enter_context(dropped([made]))
        else:
            made = (copied_file if request.param == "cp" else dumped_file)(home, tmp_path / "staging")
        with open_at(home, url, clock) as production, open_at(tmp_path / "staging", made, clock) as staging:
            yield production, staging


def objects(repo):
    return {item.key for item in repo._ctx.store.list(layout.DATA)}


def test_a_copy_neither_marks_nor_sweeps_until_it_adopts(copies, clock):
    production, staging = (lake.repository("flights") for lake in copies)
    pending = staging.gc.marks()[0]
    production.branch("main").put("later", b"written after the copy was made")
    production.branch("main").commit("later")
    clock.advance(days=3)
    shown, there, found = tree(production, "main"), objects(production), staging.gc.marks()
    expired = [commit.expired for commit in staging.log("main")]
    for attempt in (
        staging.gc.mark,
        lambda: staging.gc.sweep(pending.id),
        lambda: staging.gc.sweep(pending.id, force=True),
    ):
        with raising("not_the_owner") as refused:
            attempt()
        assert copies[0].catalog.repositories.identity().shown in refused.value.message
        assert "lakeops repo adopt lakefs://flights" in refused.value.message
    assert objects(production) == there
    assert staging.gc.marks() == found
    assert [commit.expired for commit in staging.log("main")] == expired
    assert {finding.kind for finding in staging.fsck() if finding.severity != "info"} == {"owner_mismatch"}
    production.gc.sweep(production.gc.mark().id)
    assert tree(production, "main") == shown
    assert_sound(production, data=True)


def test_whoever_adopted_last_deletes_and_the_other_one_stops(copies, clock):
    production, staging = (lake.repository("flights") for lake in copies)
    before = production.gc.mark()
    taken = staging.adopt()
    assert taken.owner.epoch == 2
    assert taken.before is not None
    assert taken.before.identity.shown == copies[0].catalog.repositories.identity().shown
    assert staging.adopt().owner == taken.owner
    for attempt in (production.gc.mark, lambda: production.gc.sweep(before.id)):
        with raising("not_the_owner", "epoch 2"):
            attempt()
    shown = tree(staging, "main")
    assert staging.gc.sweep(staging.gc.mark().id).deleted > 0
    assert tree(staging, "main") == shown
    assert_sound(staging, data=True)
    assert production.adopt().owner.epoch == 3
    with raising("not_the_owner", "epoch 3"):
        staging.gc.mark()
    production.gc.sweep(production.gc.mark().id)


@pytest.fixture
def clones(tmp_path, clock):
    """Production, and a copy of the whole machine: nothing in the catalogs or around them tells the two apart."""
    home = tmp_path / "home"
    with open_at(home, sqlite_url(home), clock) as lake:
        repo = lake.create_repository("flights", split=SPLIT)
        fill(repo, clock)
    url = copied_file(home, tmp_path / "clone")
    with open_at(home, sqlite_url(home), clock) as one, open_at(tmp_path / "clone", url, clock) as other:
        pass_for(other, one)
        yield one, other


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_clones_the_first_that_marks_is_the_owner(clones, first, clock):
    owner, other = (lake.repository("flights") for lake in (clones[first], clones[1 - first]))
    other.branch("main").put("later", b"of the other one")
    clock.advance(days=3)
    shown = tree(owner, "main")
    mark = owner.gc.mark()
    with raising("not_the_owner"):
        other.gc.mark()
    owner.gc.sweep(mark.id)
    with raising("not_the_owner"):
        other.gc.mark()
    assert tree(owner, "main") == shown
    assert {finding.kind for finding in other.fsck() if finding.severity == "warning"} == {"owner_mismatch"}


def test_clones_that_mark_at_once(clones):
    """Both have read the record before either writes: the namespace takes one of the two."""
    repos = [lake.repository("flights") for lake in clones]
    for _ in range(3):
        with ThreadPoolExecutor(2) as pool:
            done = list(pool.map(_outcome, [repo.gc.mark for repo in repos]))
        assert done.count(None) == 1
        assert [error.kind for error in done if error is not None] == ["not_the_owner"]


def _outcome(act):
    try:
        act()
    except LakeopsError as error:
        return error
    return None


def test_marks_of_one_catalog_do_not_mistake_each_other(opened, tmp_path):
    url = sqlite_url(tmp_path / "home")
    opened(url).create_repository("flights", split=SPLIT)
    repos = [opened(url).repository("flights") for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            assert list(pool.map(_outcome, [lambda repo=repo: renew_lease(repo._ctx) for repo in repos])) == [None] * 4
    assert repos[0].owner()[1]


def test_a_sweep_stops_when_another_catalog_adopts(clones, clock, tmp_path, monkeypatch):
    monkeypatch.setattr("lakeops.ops.gc.sweep.STEP", 2)
    faults = Faults()
    with open_at(tmp_path / "home", sqlite_url(tmp_path / "home"), clock, faults) as lake:
        repo, heir = lake.repository("flights"), clones[1].repository("flights")
        mark = repo.gc.mark()
        assert mark.rows > 4
        faults.hook("delete", prefix="data/", when="after", action=lambda _: heir.adopt())
        there = objects(heir)
        with raising("not_the_owner"):
            repo.gc.sweep(mark.id, force=True)
        assert len(there - objects(heir)) == 2
        with raising("not_the_owner"):
            repo.gc.sweep(mark.id, force=True)
    shown = tree(heir, "main")
    heir.gc.sweep(heir.gc.mark().id)
    assert tree(heir, "main") == shown


@pytest.mark.parametrize("moment", ["begin_mark", "put"])
def test_a_mark_is_not_finished_once_another_catalog_adopted(clones, clock, tmp_path, moment):
    faults = Faults()
    with open_at(tmp_path / "home", sqlite_url(tmp_path / "home"), clock, faults) as lake:
        repo, heir = lake.repository("flights"), clones[1].repository("flights")
        faults.hook(moment, prefix="" if moment == "begin_mark" else layout.GC, action=lambda _: heir.adopt())
        with raising("not_the_owner"):
            repo.gc.mark()
        assert not [mark for mark in repo.gc.marks() if mark.state == "marked"]


def test_a_moved_catalog_adopts(opened, tmp_path, clock):
    home = tmp_path / "home"
    with open_at(home, sqlite_url(home), clock) as lake:
        fill(lake.create_repository("flights", split=SPLIT), clock)
    moved = opened(copied_file(home, tmp_path / "moved"))
    for file in home.glob("catalog.db*"):
        file.unlink()
    repo = moved.repository("flights")
    with raising("not_the_owner"):
        repo.gc.mark()
    repo.adopt()
    assert repo.gc.sweep(repo.gc.mark().id).deleted > 0
    assert_sound(repo, data=True)


@pytest.mark.parametrize("damage", ["gone", "garbage", "empty"])
def test_without_a_record_nothing_is_deleted(production, damage):
    mark = production.gc.mark()
    store, key = production._ctx.store, layout.owner_key(production.storage_namespace)
    if damage == "gone":
        store.delete([key])
    else:
        store.put(key, b"" if damage == "empty" else b"{")
    for attempt in (production.gc.mark, lambda: production.gc.sweep(mark.id)):
        with raising("not_the_owner", "no owner record that can be read"):
            attempt()
    assert {finding.kind for finding in production.fsck() if finding.severity == "warning"} == {"owner_missing"}
    assert production.adopt().owner.epoch == 1
    assert production.gc.sweep(mark.id).deleted > 0
    assert_sound(production)


def test_a_namespace_with_another_claim_is_neither_collected_nor_adopted(production):
    production._ctx.store.put(layout.CLAIM, b'{"repository": "theirs", "id": "another"}')
    for attempt in (production.gc.mark, production.adopt):
        with pytest.raises(NamespaceTaken, match="theirs"):
            attempt()


def test_a_record_is_never_garbage_and_no_stray(opened, tmp_path, clock):
    repo = opened(sqlite_url(tmp_path / "home")).create_repository("flights", split=SPLIT)
    fill(repo, clock, days=30)
    mark = repo.gc.mark()
    assert repo.gc.report(mark.id)["strays"]["count"] == 0
    repo.gc.sweep(mark.id)
    assert repo.owner()[1]
    assert_sound(repo)


def test_no_message_holds_a_password(copies):
    for lake in copies:
        text = (
            copies[0]
            .repository("flights")
            ._ctx.store.get(layout.owner_key(copies[0].repository("flights").storage_namespace))
        )
        owner = read_owner(text)
        assert owner is not None
        assert "@" not in owner.identity.shown
        assert "@" not in lake.catalog.repositories.identity().shown


# --- adopting and creating, killed at every effect ---
def test_adopting_is_killed_at_every_effect_and_run_again(tmp_path, clock):
    home = tmp_path / "home"
    with open_at(home, sqlite_url(home), clock) as lake:
        fill(lake.create_repository("flights", split=SPLIT), clock)
    other = tmp_path / "copy"
    url = copied_file(home, other)
    effect, when, killed = 1, "before", 0
    while True:
        faults = Faults()
        faults.crash(at=effect, when=when, operations=ALL_EFFECTS)
        taker, last = (url, sqlite_url(home)) if killed % 2 == 0 else (sqlite_url(home), url)
        with open_at(home, taker, clock, faults) as lake:
            repo = lake.repository("flights")
            try:
                repo.adopt()
            except Crash:
                killed += 1
            else:
                break
        with open_at(home, taker, clock) as again, open_at(home, last, clock) as before:
            ours = [again.repository("flights").owner()[1], before.repository("flights").owner()[1]]
            assert ours.count(True) == 1
            again.repository("flights").adopt()
            with raising("not_the_owner"):
                before.repository("flights").gc.mark()
            again.repository("flights").gc.mark()
        effect, when = (effect, "after") if when == "before" else (effect + 1, "before")
    assert killed >= 6


def test_creating_is_killed_at_every_effect(tmp_path, clock):
    """Whoever comes to have the repository has it alone: the one that was killed, or another lake."""
    effect, when, outcomes = 1, "before", set()
    while True:
        place = tmp_path / f"{effect}-{when}"
        namespace = f"file://{place}/objects"
        faults = Faults()
        faults.crash(at=effect, when=when, operations=ALL_EFFECTS)
        with open_at(place, sqlite_url(place / "a"), clock, faults) as lake:
            try:
                lake.create_repository("flights", namespace, split=SPLIT)
            except Crash:
                pass
            else:
                break
        with (
            open_at(place, sqlite_url(place / "a"), clock) as mine,
            open_at(place, sqlite_url(place / "b"), clock) as theirs,
        ):
            with suppress(NamespaceTaken):
                fill(theirs.create_repository("flights", namespace, split=SPLIT), clock, "theirs")
            with suppress(NamespaceTaken, AlreadyExists):
                mine.create_repository("flights", namespace, split=SPLIT)
            having = [lake for lake in (mine, theirs) if _has(lake)]
            assert len(having) == 1
            outcomes.add("mine" if having == [mine] else "theirs")
            repo = having[0].repository("flights")
            if having == [mine]:
                fill(repo, clock, "mine")
            shown = tree(repo, "main")
            repo.gc.sweep(repo.gc.mark().id)
            assert tree(repo, "main") == shown
            assert_sound(repo, data=True)
        effect, when = (effect, "after") if when == "before" else (effect + 1, "before")
    assert outcomes == {"mine", "theirs"}
    assert effect == 4


def _has(lake):
    try:
        lake.repository("flights")
    except RepositoryNotFound:
        return False
    return True


def test_a_repository_has_a_row_only_with_its_claim_and_its_record(tmp_path, opened):
    faults = Faults()
    lake = opened(sqlite_url(tmp_path / "home"), faults)
    faults.fail("swap", error=StoreUnavailable("the store is away"))
    with pytest.raises(StoreUnavailable):
        lake.create_repository("flights", split=SPLIT)
    assert not _has(lake)
    with pytest.raises(NamespaceTaken, match="'flights'"):
        lake.create_repository("other", lake.settings.default_namespace("flights"))
    repo = lake.create_repository("flights", split=SPLIT)
    assert repo.owner()[1]
    assert_sound(repo)


def test_a_copy_does_not_take_up_what_the_original_began(tmp_path, clock):
    """The claim of a new repository without objects bears the id that the copy has too."""
    home = tmp_path / "home"
    with open_at(home, sqlite_url(home), clock) as lake:
        lake.catalog.repositories.identity()
    url = copied_file(home, tmp_path / "copy")
    with open_at(home, sqlite_url(home), clock) as lake, open_at(home, url, clock) as copy:
        repo = lake.create_repository("flights", split=SPLIT)
        with pytest.raises(NamespaceTaken):
            copy.create_repository("flights", repo.storage_namespace)
        assert not _has(copy)
        assert_sound(repo)


def test_a_forgotten_repository_has_no_owner(tmp_path, opened):
    lake = opened(sqlite_url(tmp_path / "home"))
    repo = lake.create_repository("flights", split=SPLIT)
    store = repo._ctx.store
    lake.delete_repository("flights")
    assert not list(store.list(layout.OWNER))
    assert list(store.list(layout.CLAIM))


@pytest.mark.parametrize("early", [True, False])
def test_a_repository_that_is_made_again_beside_its_deletion_has_an_owner(tmp_path, opened, early):
    """The creation finds the record that the deletion is about to remove, before its row is there or after."""
    faults, others = Faults(), Faults()
    lake, other = (opened(sqlite_url(tmp_path / "home"), one) for one in (faults, others))
    lake.create_repository("flights", split=SPLIT)
    faults.revive()
    at_work, go_on = Event(), Event()
    faults.hook("delete", action=lambda _: at_work.set() or go_on.wait(60))
    with ThreadPoolExecutor(1) as pool:
        deletion = pool.submit(lake.delete_repository, "flights")
        assert at_work.wait(60)
        if early:
            others.hook("create_repository", action=lambda _: go_on.set() or deletion.result())
        repo = other.create_repository("flights", split=SPLIT)
        go_on.set()
        deletion.result()
    assert repo.owner()[1]
    assert_sound(repo)
    lake.delete_repository("flights")
    assert not list(repo._ctx.store.list(layout.OWNER))


# --- any order ---
class Namespace:
    """Catalogs on one namespace. Before each deletion it is asked whether the rightful owner shows what goes."""

    def __init__(self, place, rng):
        self.place, self.rng, self.clock = place, rng, ManualClock()
        self.faults = Faults()
        self.lakes: list[Lake] = []
        self.seen: list[Lake] = []
        self.deleted = self.refused = 0
        self.open(0)
        repo = self.lakes[0].create_repository("flights", f"file://{place}/objects", split=SPLIT)
        repo.gc.set_rules({"default_retention_days": 1})

    def open(self, number):
        """Open a catalog, and once more for looking at it."""
        url = sqlite_url(self.place / str(number))
        self.lakes.append(open_at(self.place, url, self.clock, self.faults))
        self.seen.append(open_at(self.place, url, self.clock))

    def close(self):
        for lake in (*self.lakes, *self.seen):
            lake.close()

    def copy(self):
        number = self.rng.randrange(len(self.lakes))
        here, there = (self.place / str(one) for one in (number, len(self.lakes)))
        (copied_file, dumped_file)[self.rng.randrange(2)](here, there)
        self.open(len(self.lakes))
        if self.rng.random() < 0.3:
            for lake in (self.lakes[-1], self.seen[-1]):
                pass_for(lake, self.seen[number])

    def step(self):
        repo = self.rng.choice(self.lakes).repository("flights")
        verb = self.rng.choice(["write", "write", "mark", "mark", "sweep", "sweep", "adopt", "wait"])
        self.faults.revive()
        self.faults.hook("delete", prefix=layout.DATA, at=None, action=self._check)
        if self.rng.random() < 0.25:
            at, when = self.rng.randrange(1, 8), self.rng.choice(["before", "after"])
            self.faults.crash(at=at, when=when, operations=ALL_EFFECTS)
        try:
            getattr(self, verb)(repo)
        except Crash:
            pass
        except PreconditionFailed:
            self.refused += 1
        except LakeopsError as error:
            # What an owner before this one deleted is gone; nobody deletes what the present one shows.
            assert error.kind in {"object_not_found", "corrupted"}, error

    def write(self, repo):
        repo.branch("main").put(f"f{self.rng.randrange(4)}", self.rng.randbytes(4))
        repo.branch("main").commit("more")

    def mark(self, repo):
        repo.gc.mark()

    def sweep(self, repo):
        for mark in repo.gc.marks()[:1]:
            self.deleted += repo.gc.sweep(mark.id, force=True).deleted

    def adopt(self, repo):
        if self.rng.random() < 0.5:
            repo.adopt()

    def wait(self, _):
        self.clock.advance(days=2)

    def _check(self, call):
        owners = [repo for repo in (lake.repository("flights") for lake in self.seen) if repo.owner()[1]]
        # More than one only where nothing has told clones apart yet.
        assert owners
        for repo in owners:
            assert call.key not in needed(repo), f"{call.key} goes, and {repo._ctx.settings.catalog_url} shows it"


def needed(repo):
    """The objects that live commits and staged rows of a catalog need, as far as its metadata is there."""
    found = set(repo._ctx.catalog.retention.roots(repo.id).staged["physical_address"].to_pylist())
    for commit in repo._ctx.catalog.retention.roots(repo.id).commits:
        with suppress(LakeopsError):
            metarange = repo._ctx.metarange(commit)
            for table in repo._ctx.reader.scan(metarange):
                found.update(table["physical_address"].to_pylist())
    return found


@pytest.fixture
def one_by_one(monkeypatch):
    """Files are deleted one a request, two between two looks at the owner."""
    monkeypatch.setattr("lakeops.ops.gc.sweep.BATCH", 1)
    monkeypatch.setattr("lakeops.ops.gc.sweep.STEP", 2)


def play(place, seed, steps):
    world = Namespace(place, random.Random(seed))
    try:
        for number in range(steps):
            if number in (steps // 5, steps // 2):
                world.copy()
            world.step()
    finally:
        world.close()
    return world


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("seed", range(6))
def test_any_order_of_marks_sweeps_and_adoptions(tmp_path, seed):
    play(tmp_path, seed, 40)


@pytest.mark.slow
@pytest.mark.usefixtures("one_by_one")
def test_any_order_for_long(tmp_path):
    worlds = [play(tmp_path / str(seed), seed, 60) for seed in range(1000, 1060)]
    assert sum(world.deleted for world in worlds) > 100
    assert sum(world.refused for world in worlds) > 100
