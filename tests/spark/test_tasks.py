"""Replication on Spark: what arrives is the same as in process."""

from __future__ import annotations

import pytest
from support.rows import SMALL, built, numbered

from lakeops.engine.base import Engine, LocalEngine
from lakeops.engine.spark.engine import SparkEngine
from lakeops.model.errors import NotAllReplicated
from lakeops.ops.fsck.ranges import Uses, check_ranges
from lakeops.ops.mirror import copying
from lakeops.ops.mirror.presence import CheckOptions, check_presence, plan_presence
from lakeops.ops.mirror.replicate import Replicated, replicate
from lakeops.ranges.metarange import Metarange
from lakeops.store.base import StoreSettings
from lakeops.store.layout import CLAIM
from lakeops.store.local import LocalStore

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


# --- ranges are verified alike ---


def checked(engine: Engine, store: LocalStore, uses: Uses) -> list[tuple[object, ...]]:
    ranges = sorted(check_ranges(engine, store, uses, SMALL, ("path", "physical_address")), key=lambda one: one.number)
    return [(one.number, one.row, one.flaws, one.table and one.table.to_pydict()) for one in ranges]


def test_ranges_are_verified_alike(spark: SparkEngine, store: LocalStore) -> None:
    metarange = built(store, numbered(range(200)))
    missing, damaged = metarange.row(1), metarange.row(2)
    store.delete([missing.key])
    store.put(damaged.key, store.get(damaged.key)[:-1] + b"?")
    uses = Uses()
    uses.add(metarange, ["commit"])
    here = checked(LocalEngine(2), store, uses)
    assert [flaw.kind for one in here for flaw in one[2]] == ["range_missing", "range_damaged"]
    assert checked(spark, store, uses) == here
    assert sum(len(one[3]["path"]) for one in here if one[3]) == 200 - missing.count - damaged.count


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
