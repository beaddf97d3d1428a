"""Random histories of a source and its mirror: arrivals in any order, kills, passes that overlap, deletes that follow.

Whatever happens, what the mirror shows is whole, and was the source's head at some time; and it catches up in the end.
What a commit needs is found out by opening it at the source when it is made, and looked for with the file system alone.
"""

import shutil
import tempfile
from itertools import count
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from support.catalogs import expire_commits
from support.faulty_catalog import ALL_EFFECTS, FaultyCatalog
from support.mirrors import SPLIT, Pair, open_lake, read_whole, replicator

from lakeops import Lake
from lakeops.catalog.tables import BRANCH
from lakeops.model.errors import LakeopsError
from lakeops.ranges.read import RangeReader
from lakeops.store import layout
from lakeops.testing import Crash, Faults, ManualClock

MOMENTS = (*ALL_EFFECTS, "head", "get", "list")
"""Where a pass may be killed or interrupted."""

paths = st.sampled_from(["a/x", "a/y", "b/x", "z"])
branches = st.sampled_from(["main", "main", "dev", "side"])
_numbers = count()


class Lakes:
    """Two lakes for all histories of a run; each history has repositories of its own in them."""

    def __init__(self):
        fast = Path("/dev/shm")
        self.place = Path(tempfile.mkdtemp(prefix="lakeops-mirror-", dir=fast if fast.is_dir() else None))
        self.clock = ManualClock()
        self.faults = Faults()
        self.here = open_lake(self.place / "here", self.clock)
        self.there = open_lake(self.place / "there", self.clock, self.faults)
        # What a pass sees of the source can be interrupted as well.
        catalog = FaultyCatalog(self.here.catalog, self.faults)
        self.seen = Lake(catalog, self.here.settings, clock=self.clock)  # type: ignore[arg-type]

    def close(self):
        self.there.close()
        self.here.close()
        shutil.rmtree(self.place)


class History(RuleBasedStateMachine):
    """One source, one mirror. ``lakes`` is set by who runs it."""

    lakes: Lakes
    reports = True

    # A seed, not random choices of Hypothesis: how many there are to make depends on names, which no two runs share.
    @initialize(seed=st.integers(0, 1 << 32), busy=st.booleans())
    def begin(self, seed, busy):
        lakes, name = self.lakes, f"repo{next(_numbers)}"
        lakes.faults.revive()
        repo = lakes.here.create_repository(name, split=SPLIT)
        mirror = lakes.there.create_mirror(name, source=lakes.here, reports=self.reports)
        self.pair = Pair(
            lakes.clock, lakes.faults, lakes.here, lakes.there, repo, mirror, replicator(repo, mirror, Random(seed))
        )
        first = repo.branch("main").commit_id
        self.name = name
        self.needs: dict[str, frozenset[str]] = {first: frozenset()}
        self.shown: dict[str, set[str]] = {"main": {first}}
        self.number = 0
        if busy:
            self.commit("main", {"a/x": True, "z": True})
            self.arrive()

    def teardown(self):
        if not hasattr(self, "pair"):
            return
        self.lakes.faults.revive()
        try:
            self.catches_up()
        finally:
            for lake in (self.lakes.here, self.lakes.there):
                shutil.rmtree(lake.settings.home / "storage" / self.name, ignore_errors=True)

    def catches_up(self):
        """Once everything has arrived, the mirror shows what the source shows, and all of it can be read."""
        self.pair.replicator.release()
        for _ in range(4):
            self.pair.replicator.settle()
            status = self.pair.mirror.sync(self.lakes.seen)
            self.whole()
            if status.caught_up:
                break
        ours = {ref.id: ref.commit_id for ref in self.pair.repo.branches()}
        tags = {f"tag:{ref.id}": ref.commit_id for ref in self.pair.repo.tags()}
        assert self.pair.heads() == {**ours, **tags}
        for commit_id in set(ours.values()):
            commit = self.pair.there.catalog.commits.get(self.name, commit_id)
            read_whole(self.pair.store, self.pair.mirror.storage_namespace, commit)
            theirs = [one.id for one in self.pair.repo.log(commit_id, first_parent=True)]
            assert [one.id for one in self.pair.mirror.log(commit_id, first_parent=True)] == theirs
        assert self.pair.there.catalog.mirrors.arrivals(self.name) == {}
        assert self.pair.mirror.status().caught_up

    # --- the source ---

    @rule(branch=branches, files=st.dictionaries(paths, st.booleans(), min_size=1, max_size=4))
    def commit(self, branch, files):
        if branch not in self.source_heads():
            return
        self.number += 1
        self.lakes.clock.advance(seconds=1)
        handle = self.pair.repo.branch(branch)
        there = {item.path for item in handle.list()}
        for path, keep in files.items():
            if keep or path not in there:
                handle.put(path, f"{self.number}".encode())
            else:
                handle.delete(path)
        made = handle.commit(f"{self.number}", allow_empty=True)
        self.note(made.id)
        self.shown.setdefault(branch, set()).add(made.id)

    @rule(branch=st.sampled_from(["dev", "side"]), back=st.integers(0, 2))
    def branch_or_delete(self, branch, back):
        if branch in self.source_heads():
            self.pair.repo.delete_branch(branch)
            return
        try:
            made = self.pair.repo.create_branch(branch, source=f"main~{back}")
        except LakeopsError:
            return  # there is no such ancestor, or it is expired
        self.shown.setdefault(branch, set()).add(made.commit_id)

    @rule(branch=branches, back=st.integers(1, 2))
    def move_back(self, branch, back):
        """Nobody's verb does this to a default branch; a restored database does."""
        from sqlalchemy import update

        heads = self.source_heads()
        chain = list(self.pair.repo.log(heads[branch], first_parent=True)) if branch in heads else []
        if len(chain) <= back or chain[back].expired:
            return
        here = (BRANCH.c.repository_id == self.name, BRANCH.c.name == branch)
        change = update(BRANCH).where(*here).values(commit_id=chain[back].id)
        self.pair.here.catalog.database.write(lambda conn: conn.execute(change) and None)  # type: ignore[attr-defined]
        self.shown[branch].add(chain[back].id)

    @rule(source=branches)
    def tag(self, source):
        if source not in self.source_heads():
            return
        if any(True for _ in self.pair.repo.tags()):
            self.pair.repo.delete_tag("v1")
        made = self.pair.repo.create_tag("v1", source)
        self.shown.setdefault("tag:v1", set()).add(made.commit_id)

    def collect_garbage(self):
        """The strictest rules that there can be: only refs, and what the mirror asked for, are kept."""
        if not self.reports:
            return
        catalog = self.pair.here.catalog
        expire_commits(catalog, self.name)
        live = {commit.id for commit in catalog.retention.roots(self.name).commits}
        kept = frozenset().union(*(self.needs[one] for one in live))
        store = self.pair.replicator.source
        doomed = [
            item.key
            for prefix in (layout.DATA, layout.RANGES, layout.METARANGES)
            for item in store.list(prefix)
            if item.key not in kept
        ]
        assert store.delete(doomed) == []

    @rule()
    def collect_garbage_and_its_deletes(self):
        self.collect_garbage()
        self.replicate_all()

    # --- what lies between ---

    @rule(steps=st.integers(1, 20))
    def replicate(self, steps):
        if any(done.action == "delete" for done in self.pair.replicator.run(steps)):
            self.whole()

    def replicate_all(self):
        self.pair.replicator.settle()
        self.whole()

    @rule()
    def arrive(self):
        """Written objects arrive, and a pass sees them."""
        self.replicate_all()
        self.sync()

    @rule(prefixes=st.sampled_from([(), ("data/",), (layout.RANGES,), (layout.METARANGES,), ("data/", layout.RANGES)]))
    def hold(self, prefixes):
        self.pair.replicator.release()
        self.pair.replicator.hold(*prefixes)

    @rule(held=st.sampled_from(["data/", layout.RANGES]), steps=st.integers(0, 6))
    def arrive_in_parts(self, held, steps):
        """Some of it long before the rest: passes see a commit half there, more than once."""
        self.commit("main", {"a/x": True, "a/y": True})
        self.hold((held,))
        self.arrive()
        self.pair.replicator.release()
        self.replicate(steps + 1)
        self.sync()
        self.sync()

    # --- the mirror ---

    @rule()
    def sync(self):
        self.pair.mirror.sync(self.lakes.seen)
        self.whole()

    @rule(at=st.integers(1, 14), after=st.booleans())
    def killed_sync(self, at, after):
        self.lakes.faults.revive()
        self.lakes.faults.crash(at=at, when="after" if after else "before", operations=MOMENTS)
        try:
            self.pair.mirror.sync(self.lakes.seen)
        except Crash:
            pass
        self.lakes.faults.revive()
        self.whole()

    @rule(at=st.integers(1, 14), what=st.sampled_from(["sync", "source", "gc", "replicate"]), data=st.data())
    def interrupted_sync(self, at, what, data):
        """Something else happens at some moment of a pass: another whole pass, the source, its garbage collection."""
        files = data.draw(st.dictionaries(paths, st.booleans(), min_size=1, max_size=2))
        busy: list[bool] = []

        def happen(_call):
            if not busy:
                busy.append(True)
                acts = {
                    "sync": lambda: self.pair.mirror.sync(self.pair.here),
                    "source": lambda: self.commit("main", files),
                    "gc": self.collect_garbage,
                    "replicate": self.pair.replicator.settle,
                }
                acts[what]()

        self.lakes.faults.revive()
        self.lakes.faults.hook(*MOMENTS, at=at, action=happen)
        self.pair.mirror.sync(self.lakes.seen)
        self.lakes.faults.revive()
        self.whole()

    # --- promises ---

    def whole(self):
        """Everything that the mirror shows is there, and the source showed it on that ref."""
        root = Path(self.pair.mirror.storage_namespace.removeprefix("file://"))
        for name, commit_id in self.pair.heads().items():
            assert commit_id in self.shown[name], (name, commit_id)
            missing = [key for key in self.needs[commit_id] if not (root / key).is_file()]
            assert not missing, (name, commit_id, missing)

    def source_heads(self):
        return {ref.id: ref.commit_id for ref in self.pair.repo.branches()}

    def note(self, commit_id):
        """Remember what a commit of the source needs, read from what the source has stored."""
        commit = self.pair.here.catalog.commits.get(self.name, commit_id)
        if commit_id in self.needs or not commit.meta_range_file:
            self.needs.setdefault(commit_id, frozenset())
            return
        reader = RangeReader(self.pair.replicator.source)
        metarange = reader.metarange(commit)
        keys = {layout.metarange_key(commit.meta_range_file)}
        keys |= {row.key for row in metarange.rows(0, len(metarange))}
        for table in reader.scan(metarange):
            keys |= set(table.column("physical_address").to_pylist())
        self.needs[commit_id] = frozenset(keys)


@pytest.fixture(scope="module")
def lakes():
    opened = Lakes()
    yield opened
    opened.close()


def run(lakes, *, examples, steps, reports=True, **given):
    machine = type("Histories", (History,), {"lakes": lakes, "reports": reports})
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    wanted = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=checks,
        database=None,
        **given,
    )
    run_state_machine_as_test(machine, settings=wanted)


@pytest.mark.timeout(1200)
def test_forty_histories(lakes):
    run(lakes, examples=40, steps=5)


@pytest.mark.timeout(1200)
def test_histories_of_a_source_that_is_only_read(lakes):
    run(lakes, examples=12, steps=5, reports=False)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_twenty_thousand_histories(lakes):
    run(lakes, examples=20_000, steps=25)
