"""Replication on Spark: what arrives is the same as in process."""

from __future__ import annotations

import pickle
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from support.references import listing
from support.rows import SMALL, built, entry_table, numbered
from support.spark_work import Number, length_beside

from lakeops import Lake, Settings, Split
from lakeops.engine.base import Engine, LocalEngine
from lakeops.engine.spark.engine import SparkEngine
from lakeops.engine.spark.jobs import PARK_ABOVE
from lakeops.model.errors import NotAllReplicated
from lakeops.model.records import Credentials, Strategy
from lakeops.ops import listed
from lakeops.ops.fsck.ranges import Uses, check_ranges
from lakeops.ops.gc.unreferenced import Slices, scratching
from lakeops.ops.mirror import copying
from lakeops.ops.mirror.presence import CheckOptions, check_presence, plan_presence
from lakeops.ops.mirror.replicate import Replicated, replicate
from lakeops.ranges.merge import plan_merge
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.read import RangeReader
from lakeops.store.base import StoreSettings
from lakeops.store.disk_cache import BackgroundWriter
from lakeops.store.layout import CLAIM
from lakeops.store.local import LocalStore
from lakeops.store.s3 import S3Store

pytestmark = pytest.mark.spark

CONTENTS = {CLAIM: b"{}", **{f"data/2026010100/{number:02}": b"x" * number for number in range(40)}}


@pytest.fixture
def destination(store: LocalStore, tmp_path, monkeypatch) -> LocalStore:
    monkeypatch.setattr(copying, "MOST_OBJECTS", 7)
    for key, data in CONTENTS.items():
        store.put(key, data)
    return LocalStore(tmp_path / "mirror", fsync=False)


def test_workers_copy_and_delete(spark: SparkEngine, store: LocalStore, destination: LocalStore):
    assert replicate(store, destination, spark).copied == 40
    assert {item.key: destination.get(item.key) for item in destination.list()} == CONTENTS
    store.delete(["data/2026010100/03"])
    assert replicate(store, destination, spark, delete=True) == Replicated(present=39, extra=1, deleted=1)


def test_failures_come_back_as_they_were(spark: SparkEngine, store: LocalStore, destination: LocalStore):
    (destination.root / "data/2026010100/05/in the way").mkdir(parents=True)
    with pytest.raises(NotAllReplicated) as caught:
        replicate(store, destination, spark)
    assert [(key, error.kind) for key, error in caught.value.failures] == [("data/2026010100/05", "invalid_path")]
    assert caught.value.done == 39


# --- what is put in the background is there before workers look for it ---
class Later(ThreadPoolExecutor):
    """Runs what is submitted when somebody asks for its result."""

    def submit(self, work, /, *given):
        class Asked(Future):
            def result(self, timeout=None):
                if not self.done():
                    self.set_result(work(*given))
                return super().result(timeout)

        return Asked()


@pytest.mark.parametrize("size", [10, PARK_ABOVE + 1], ids=["sent", "parked"])
def test_workers_find_what_was_put_in_the_background(spark: SparkEngine, store: LocalStore, size: int):
    writer = BackgroundWriter(store)
    writer.pool = Later()
    writer.put("early", b"x")
    tasks = [Number(number, bytes(size)) for number in range(5)]
    assert dict(spark.run(length_beside, tasks, writer)) == dict.fromkeys(range(5), (size, 1))
    assert [item.key for item in store.list()] == ["early"]


# --- ranges are verified alike ---


def checked(engine: Engine, store: LocalStore, uses: Uses, folder: Path) -> list[tuple[object, ...]]:
    names = ["data/2026010100/0", "data/2026010100/0-0", "data/2026010100/0-1"]
    with scratching(store, folder) as scratch:
        slices = Slices(scratch, [one for rows in listing(names) for one in scratch.write_chunks(rows)])
        slices.upload_for_workers(engine)
        found = [*check_ranges(engine, store, uses, SMALL, ("path",), slices)]
        free = {name for rows in slices.unreferenced(engine, ()).batches() for name in rows[0].to_pylist()}
    said = [
        (number, row, one.flaws, one.entries, one.table and one.table.to_pydict())
        for number, row, one in sorted(found, key=lambda checked: checked[0])
    ]
    return [*said, ([name for name in names if name not in free],)]


def test_ranges_are_verified_alike(spark: SparkEngine, store: LocalStore, tmp_path: Path) -> None:
    metarange = built(store, numbered(range(200)))
    missing, damaged = metarange.row(1), metarange.row(2)
    store.delete([missing.key])
    store.put(damaged.key, store.get(damaged.key)[:-1] + b"?")
    uses = Uses()
    uses.add(metarange, ["commit"])
    here = checked(LocalEngine(2), store, uses, tmp_path)
    *ranges, (needed,) = here
    assert [flaw.kind for one in ranges for flaw in one[2]] == ["range_missing", "range_damaged"]
    assert checked(spark, store, uses, tmp_path) == here
    assert sum(len(one[4]["path"]) for one in ranges if one[4]) == 200 - missing.count - damaged.count
    assert sum(one[3] for one in ranges) == 200 - missing.count - damaged.count
    assert needed == ["data/2026010100/0-0"], "the object that all entries share"


@pytest.fixture
def sizes(spark: SparkEngine, monkeypatch) -> list[int]:
    """The bytes that the driver gets of each job."""
    jobs, found = spark._connected(), list[int]()

    def counted(*job, run=jobs.run):
        outcomes = run(*job)
        found.append(len(pickle.dumps(outcomes)))
        return outcomes

    monkeypatch.setattr(jobs, "run", counted)
    return found


def test_a_check_of_many_commits_sends_the_driver_a_bit_for_each_object(spark: SparkEngine, tmp_path, sizes):
    """Eight commits that have most objects in common, and no range: neither jobs nor bytes grow with the commits."""
    with Lake.open(settings=Settings.load(home=tmp_path, fsync=False)) as lake:
        lake._engine = spark
        repo = lake.create_repository("repo", split=Split(100, 200, 400))
        main = repo.branch("main")
        for version in range(8):
            table = entry_table(numbered(range(version, 8_000, 60 if version else 1), str(version)))
            names = [f"{path[2:]}-{'x' * 60}" for path in table["path"].to_pylist()]
            addresses = pa.array([f"data/2026010100/{version}-{name}" for name in names])
            main.stage(table.set_column(1, table.schema.field(1), addresses))
            main.commit(str(version))
        sizes.clear()
        check = repo.fsck()
        assert [one.kind for one in check if one.kind != "unreferenced_ranges"] == []
    assert check.checked["entries"] > 4 * 8_000
    assert sum(sizes) < 400 * check.checked["ranges"], "a hundred bytes for each of 8,000 objects are more"
    assert len(sizes) == 3, "of six tasks each at most: one for listing, one for ranges, and the join of both"


def test_workers_plan_a_merge_and_the_driver_opens_no_range(spark: SparkEngine, store: LocalStore, sizes, monkeypatch):
    ours, theirs = (numbered(range(4_000)) | numbered(range(0, 4_000, step), "new") for step in (50, 70))
    theirs |= numbered(range(4_000, 4_400))  # a stretch that the destination takes as it is
    metaranges = [built(store, side) for side in (numbered(range(4_000)), theirs, ours)]
    opened: list[str] = []
    read = LocalStore.get_range
    monkeypatch.setattr(LocalStore, "get_range", lambda store, key, *at: (opened.append(key), read(store, key, *at))[1])
    here = plan_merge(RangeReader(store), *metaranges, Strategy.SOURCE_WINS)
    assert opened
    opened.clear()
    there = plan_merge(RangeReader(store), *metaranges, Strategy.SOURCE_WINS, engine=spark)
    assert opened == []
    assert there.changes.equals(here.changes)
    assert (there.conflicts, there.summary, there.onto.id) == (here.conflicts, here.summary, here.onto.id)
    assert there.settled.to_pylist() == here.settled.to_pylist()
    assert sum(sizes) < 5_000 + 400 * here.changes.num_rows < 100 * 4_000


# --- what a mirror waits for is found alike ---


TERMS = CheckOptions(StoreSettings(fsync=False))


def objects(count: int) -> dict[str, tuple[str, int]]:
    """As many paths, each with an object of its own."""
    return {path: (str(number % 7), number) for number, path in enumerate(numbered(range(count)))}


def test_workers_find_what_threads_find(spark: SparkEngine, store: LocalStore) -> None:
    wanted = built(store, objects(400))
    for number in range(0, 400, 3):
        store.put(f"data/2026010100/{number % 7}-{number}", b"x")
    store.delete([wanted.row(5).key])
    known = built(store, dict(list(objects(400).items())[:40]))
    planned = plan_presence(wanted, known, {})
    answers = [
        sorted(check_presence(planned, engine=engine, store=store, options=TERMS), key=lambda proof: proof.file)
        for engine in (LocalEngine(threads=2), spark)
    ]
    assert answers[0] == answers[1]
    assert len(answers[1]) == planned.size > 10
    assert not all(proof.complete for proof in answers[1])
    assert [proof.file for proof in answers[1] if not proof.arrived] == [wanted.row(5).file]


def test_a_damaged_range_is_no_arrival(spark: SparkEngine, store: LocalStore) -> None:
    wanted = built(store, objects(100))
    store.put(wanted.row(2).key, b"PAR1 nothing PAR1")
    proofs = list(
        check_presence(plan_presence(wanted, Metarange.empty(), {}), engine=spark, store=store, options=TERMS)
    )
    [damaged] = [proof for proof in proofs if proof.damage is not None]
    assert not damaged.arrived
    assert wanted.row(2).file in (damaged.damage or "")


# --- a bucket is listed by workers ---
SHAPES = {
    "folders": [f"{number % 13:02}/{number:03}" for number in range(400)],
    "flat": [f"part-{number:05}" for number in range(1_300)],
}


@pytest.mark.parametrize("names", SHAPES.values(), ids=SHAPES)
def test_a_bucket_is_listed_in_parts_and_imported_alike(spark, endpoint_of, buckets, tmp_path, monkeypatch, names):
    endpoint, seen, scan = endpoint_of("moto"), [], S3Store.scan
    source = S3Store(buckets(endpoint), f"{tmp_path.name}/source", StoreSettings(endpoint))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: source.put(name, b""), names))

    def scanned(store, **how):
        seen.append([])
        for some in scan(store, **how):
            seen[-1].extend(some.keys)
            yield some

    monkeypatch.setattr(S3Store, "scan", scanned)
    monkeypatch.setattr(listed, "_BATCH", 50)
    mains, taken = [], []
    with ExitStack() as opened:
        for engine in (LocalEngine(2), spark):
            settings = Settings.load(home=tmp_path / engine.name, fsync=False, s3_endpoint_url=endpoint)
            # Workers that Spark started for an earlier test have the environment of then.
            settings = settings.with_credentials(Credentials("test-access-key", "test-secret-key"))
            lake = opened.enter_context(Lake.open(settings=settings))
            lake._engine = engine
            mains.append(lake.create_repository("repo", split=Split(2, 4, 8)).branch("main"))
        for message in ("all", "again"):
            for main in mains:
                seen.clear()
                main.import_objects(source.url, "r/", message)
                taken.append(max(map(len, seen)))
            local, there = (main.head for main in mains)
            assert (there.meta_range_id, there.metadata) == (local.meta_range_id, local.metadata)
            assert there.metadata["lakeops.import.objects"] == str(len(names))
            source.put(names[len(names) // 2], message.encode())
    assert taken[::2] == [len(names)] * 2
    assert max(taken[1::2]) < len(names), "the driver has listed everything by itself"
