"""A mirror of a mirror: what the last one shows is kept at the first, whatever passes and deletes do in between."""

import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from support.catalogs import expire_commits
from support.faulty_catalog import ALL_EFFECTS, FaultyCatalog
from support.mirrors import SPLIT, open_lake, read_whole
from support.unruly import Unruly

from lakeops import Lake, Mirror, Repository
from lakeops.model.errors import CommitExpired, LakeopsError
from lakeops.model.ids import etags_are_md5
from lakeops.ranges.read import RangeReader
from lakeops.store import layout
from lakeops.store.local import LocalStore
from lakeops.store.open import Stores, StoreSettings
from lakeops.testing import Crash, Faults, ManualClock

MOMENTS = (*ALL_EFFECTS, "head", "get", "list")


@dataclass
class Chain:
    """A source, its mirror, and a mirror of that; what replicates each to the next, deletes included."""

    clock: ManualClock
    faults: Faults
    lakes: tuple[Lake, Lake, Lake]
    source: Repository
    mirrors: tuple[Mirror, Mirror]
    replicators: tuple[Unruly, Unruly]
    needs: dict[str, frozenset[str]] = field(default_factory=dict)
    number: int = 0

    def seen(self, place):
        """A lake as a pass sees it, with faults at every call."""
        lake = self.lakes[place]
        return Lake(FaultyCatalog(lake.catalog, self.faults), lake.settings, clock=self.clock)  # type: ignore[arg-type]

    def sync(self, place):
        self.mirrors[place].sync(self.seen(place))

    def commit(self, branch="main", **files):
        self.number += 1
        self.clock.advance(seconds=1)
        handle = self.source.branch(branch)
        for path, text in (files or {"a": f"{self.number}", f"p/{self.number % 7}": f"{self.number}"}).items():
            handle.put(path, text.encode())
        made = handle.commit("more")
        reader = RangeReader(self.replicators[0].source)
        metarange = reader.metarange(made)
        keys = {layout.metarange_key(made.meta_range_file), *(row.key for row in metarange.rows(0, len(metarange)))}
        for table in reader.scan(metarange):
            keys |= set(table.column("physical_address").to_pylist())
        self.needs[made.id] = frozenset(keys)
        return made.id

    def collect(self):
        """The strictest rules at the source: only refs, and what mirrors asked for, are kept."""
        catalog = self.lakes[0].catalog
        expire_commits(catalog, "flights")
        live = {commit.id for commit in catalog.retention.roots("flights").commits}
        kept = frozenset().union(*(self.needs.get(one, frozenset()) for one in live))
        store = self.replicators[0].source
        prefixes = (layout.DATA, layout.RANGES, layout.METARANGES)
        doomed = [item.key for prefix in prefixes for item in store.list(prefix) if item.key not in kept]
        assert store.delete(doomed) == []

    def check(self):
        for place, mirror in enumerate(self.mirrors):
            root = Path(mirror.storage_namespace.removeprefix("file://"))
            for ref in mirror.branches():
                missing = [key for key in self.needs.get(ref.commit_id, ()) if not (root / key).is_file()]
                assert not missing, (place, ref, missing)

    def catch_up(self, place):
        self.settle()
        self.sync(place)

    def settle(self):
        for replicator in self.replicators:
            replicator.settle()
            self.check()


@pytest.fixture
def chains(tmp_path):
    opened: list[Lake] = []
    fast = Path("/dev/shm")
    place = Path(tempfile.mkdtemp(prefix="lakeops-chain-", dir=fast if fast.is_dir() else tmp_path))  # others run too

    def make(seed):
        clock, faults = ManualClock(), Faults()
        here = place / f"{seed}"
        lakes = tuple(open_lake(here / name, clock, faults if name != "a" else None) for name in "abc")
        opened.extend(lakes)
        source = lakes[0].create_repository("flights", split=SPLIT)
        between = lakes[1].create_mirror("flights", source=lakes[0])
        last = lakes[2].create_mirror("flights", source=lakes[1])
        plain = Stores(StoreSettings(fsync=False))
        stores = [plain.at(one.storage_namespace) for one in (source, between, last)]
        replicators = (Unruly(stores[0], stores[1], Random(seed)), Unruly(stores[1], stores[2], Random(seed + 1)))
        return Chain(clock, faults, lakes, source, (between, last), replicators)  # type: ignore[arg-type]

    yield make
    for lake in opened:
        lake.close()
    shutil.rmtree(place, ignore_errors=True)


def test_what_the_last_one_shows_is_kept_at_the_first(chains):
    chain = chains(1)
    first = chain.commit()
    for _ in range(2):
        chain.catch_up(0)
        chain.catch_up(1)
    assert chain.mirrors[1].branch("main").commit_id == first
    [registration] = chain.mirrors[0].registrations()
    assert first in registration.commits
    chain.commit()
    chain.catch_up(0)
    chain.commit()
    chain.catch_up(0)
    chain.collect()
    chain.settle()
    assert read_whole(chain.replicators[1].destination, "", chain.source.ref(first).commit)
    [told] = chain.mirrors[0].status().to_json()["mirrors"]
    assert told["id"] == registration.id
    for _ in range(2):
        chain.sync(1)
        chain.sync(0)
    chain.collect()
    assert [one for one in chain.source.log("main") if one.id == first][0].expired, "nobody shows it any more"


def test_a_mirror_takes_no_report_of_what_its_source_does_not_keep_for_it(chains):
    chain = chains(2)
    first, second = chain.commit(), chain.commit()
    chain.catch_up(0)
    catalog = chain.lakes[1].catalog
    catalog.mirrors.report_mirror("flights", "other", frozenset({second}), sequence=1)
    with pytest.raises(CommitExpired, match="next pass"):
        catalog.mirrors.report_mirror("flights", "other", frozenset({first}), sequence=2)
    assert catalog.mirrors.unkept("flights", {first, second}) == {first}
    assert chain.lakes[0].catalog.mirrors.unkept("flights", {first, second}) == frozenset()


@pytest.mark.parametrize("moment", ["report_mirror", "branches", "observe_source"])
def test_a_mirror_that_moves_on_while_it_is_followed(chains, moment):
    """The last mirror has seen a head; before it asks for it, the one between goes on, and the source collects."""
    chain = chains(3)
    chain.commit()
    for place in (0, 1):
        chain.catch_up(place)

    def go_on(_call):
        chain.commit()
        chain.settle()
        for _ in range(2):
            chain.mirrors[0].sync(chain.lakes[0])
        chain.collect()
        chain.replicators[0].settle()

    chain.commit()
    chain.catch_up(0)
    chain.settle()
    chain.faults.hook(moment, action=go_on, when="after" if moment == "branches" else "before")
    chain.sync(1)
    chain.faults.revive()
    chain.catch_up(1)
    chain.settle()
    assert chain.mirrors[1].status().caught_up


def act(chain, random):
    """One thing that may happen, anywhere in the chain."""
    match random.randrange(9):
        case 0 | 1:
            chain.commit()
        case 2:
            chain.collect()
        case 3:
            chain.collect()
            chain.settle()
        case 4:
            chain.replicators[random.randrange(2)].run(random.randrange(1, 30))
        case 5:
            chain.settle()
        case _:
            chain.sync(random.randrange(2))


def hurt(chain, random):
    """A pass that dies, or in the middle of which something else happens."""
    place = random.randrange(2)
    busy: list[bool] = []

    def happen(_call):
        if not busy:
            busy.append(True)
            act(chain, random)

    if random.randrange(2):
        chain.faults.crash(at=random.randrange(1, 16), when=random.choice(["before", "after"]), operations=MOMENTS)
    else:
        chain.faults.hook(*MOMENTS, at=random.randrange(1, 16), action=happen)
    try:
        chain.sync(place)
    except (Crash, LakeopsError):
        pass
    chain.faults.revive()


def play(chain, seed, steps):
    random = Random(seed)
    for _ in range(steps):
        (hurt if random.randrange(3) == 0 else act)(chain, random)
        chain.check()
    newest = chain.commit()
    for _ in range(3):
        chain.catch_up(0)
        chain.catch_up(1)
    assert [mirror.branch("main").commit_id for mirror in chain.mirrors] == [newest, newest]


@pytest.mark.timeout(900)
def test_any_order_of_passes_deletes_and_kills(chains):
    for seed in range(6):
        play(chains(seed), seed, 30)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_any_order_at_length(chains):
    for seed in range(100, 500):
        play(chains(seed), seed, 60)


@pytest.mark.parametrize("last", ["mirror", "restore"])
def test_etags_that_are_no_md5_are_none_in_any_replica(tmp_path, clock, monkeypatch, last):
    """The first bucket encrypts, so its ETags look like MD5 and are none. The other buckets give plain ones."""
    probe = LocalStore.probe
    monkeypatch.setattr(LocalStore, "probe", lambda self: replace(probe(self), etag_is_md5="/first/" not in self.url))
    with ExitStack() as stack:
        lakes = [stack.enter_context(open_lake(tmp_path / name, clock)) for name in ("first", "second", "third")]
        repo = lakes[0].create_repository("flights")
        if last == "mirror":
            for source, lake in pairwise(lakes):
                repo = lake.create_mirror("flights", source=source)
        else:
            repo.refs.dump()
            replica = shutil.copytree(repo.storage_namespace.removeprefix("file://"), tmp_path / "replica")
            lakes[1].restore_repository("flights", replica.as_uri())
            repo = lakes[1].repository("flights")
        assert not etags_are_md5(repo.record.capabilities)
