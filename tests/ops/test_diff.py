"""Differences in short, and their sums: as counting the changes one by one."""

import random
from collections import Counter
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget import examples
from support.scenes import table

from lakeops import Lake, Repository, Settings, Split
from lakeops.model.records import Counts
from lakeops.testing import Faults, open_faulty

PATHS = ("a", "b", "a-b", "ab", "x/y", "x/z", "x-y/z", "q/1/2", "q/1/3", "q/9", "q", "zz/é", "zz/f", "zz/g/h/i")
MOST = 1_000


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """One for all examples."""
    return Lake.open(settings=Settings.load(home=tmp_path_factory.mktemp("sums"), fsync=False))


def rows(paths, mark):
    """Objects that lie elsewhere, of one byte each."""
    addresses = {path: f"s3://elsewhere/{mark}/{number}" for number, path in enumerate(paths)}
    return table(addresses, checksum=[f"{mark}-{number}" for number in range(len(paths))])


def counted(changes, prefix, folders):
    """The sums that are expected, one change after another."""
    everything, others = Counts(), Counts()
    found: dict[str, Counts] = {}
    for change in changes:
        name = change.path[: change.path.find("/", len(prefix)) + 1] or change.path
        mine = found.setdefault(name, Counts()) if name in found or len(found) < folders else others
        for one in (everything, mine):
            one.count(change)
    return everything, found, others


@given(st.integers(0, 2**32))
@settings(max_examples=examples(15), deadline=None)
def test_sums_are_those_of_the_changes_one_by_one(lake, seed):
    rng = random.Random(seed)
    repo = lake.create_repository(f"r{uuid4().hex}", split=Split(1, 2, 3))
    main = repo.branch("main")
    for number in range(3):
        main.stage(rows(sorted(rng.sample(PATHS, rng.randint(1, 10)), key=str.encode), f"{number}"))
        there = [entry.path for entry in main.list()]
        for path in rng.sample(there, min(3, len(there))):
            main.delete(path)
        main.commit("more", allow_empty=True)
        if number == 1:
            repo.create_branch("side")
    for path in rng.sample(PATHS, 3):
        repo.branch("side").put(path, b"side")
    repo.branch("side").commit("side")
    prefix, folders = rng.choice(["", "q/", "q", "x", "zz/g/"]), rng.choice([1, 3, 50])
    for two_way, pair in ((True, ("main~3", "main")), (True, ("main~1", "side")), (False, ("main", "side"))):
        changes = list((repo.diff if two_way else repo.compare)(*pair, prefix=prefix))
        most = rng.choice([MOST, max(1, len(changes))])
        found = repo.sums(*pair, two_way=two_way, prefix=prefix, most=most, folders=folders, first=2)
        assert (found.all, found.folders, found.others) == counted(changes, prefix, folders)
        assert list(found.folders) == sorted(found.folders, key=str.encode)
        assert (found.first, found.exact) == (changes[:2], True)
        assert found.conflicts == [change for change in changes if change.type == "conflict"]


def large(home, size):
    """A lake whose one repository has its first load in two commits: all of it, and all of it anew."""
    chosen = Settings.load(home=home, fsync=False)
    with Lake.open(settings=chosen) as lake:
        main = lake.create_repository("large", split=Split(50, 100, 200)).branch("main")
        for mark in ("first", "second"):
            main.stage(rows([f"events/{number:06}" for number in range(size)], mark))
            main.commit(mark)
    return chosen


def summed(chosen, left, right):
    """The sums, and how many requests to the store they took."""
    faults = Faults()
    with open_faulty(chosen, faults) as lake:
        faults.revive()
        repo: Repository = lake.repository("large")
        found = repo.sums(left, right, two_way=True, most=300, folders=50, first=10)
        return found, len(faults.calls)


def test_what_is_read_for_sums_does_not_grow_with_what_differs(tmp_path):
    small, many = large(tmp_path / "small", 2_000), large(tmp_path / "large", 12_000)
    loaded, few = summed(small, "main~2", "main~1")
    assert (loaded.all.total, loaded.exact) == (2_000, True)
    loaded, requests = summed(many, "main~2", "main~1")
    assert (loaded.all.total, loaded.all.bytes, loaded.exact) == (12_000, 12_000, True), "a first load is exact"
    assert loaded.folders["events/"].by_kind["added"] == 12_000
    assert requests <= few + 2
    removed, requests = summed(many, "main~1", "main~2")
    assert (removed.all.by_kind["removed"], removed.exact) == (12_000, True)
    assert requests <= few + 2
    renewed, few = summed(small, "main~1", "main")
    renewed, requests = summed(many, "main~1", "main")
    assert (renewed.all.total, renewed.exact) == (300, False), "what changed path by path is counted up to a bound"
    assert requests <= few + 2


# --- seen before it is done --------------------------------------------------------------------------------------


# --- a difference in short ---------------------------------------------------------------------------------------
def test_a_difference_in_short_counts_as_the_long_one_does(repo, fill):
    fill(repo, "main", **{f"t{table}/day={day}/part": "1" for table in range(3) for day in range(9)})
    left = repo.branch("main").commit_id
    fill(repo, "main", **{"t0/day=0/part": None, "t1/day=3/part": "2", "new": "1", "t2/day=x/deep/er": "1"})
    short = repo.changed(left, "main", partition_by="day")
    counted = Counter(change.type.value for change in repo.diff(left, "main"))
    assert short.summary.to_json() == {kind: counted[kind] for kind in ("added", "removed", "changed")}
    assert (short.prefixes, short.more_prefixes) == (("new", "t0/", "t1/", "t2/"), False)
    assert short.partitions == ("0", "3", "x")
    assert repo.changed("main", "main").summary.total == 0
