"""What a mirror waits for is looked for by workers as by threads, with the same answers."""

from __future__ import annotations

from support.rows import built, numbered

from lakeops.engine.base import LocalEngine
from lakeops.engine.spark.engine import SparkEngine
from lakeops.ops.mirror.presence import CheckOptions, check_presence, plan_presence
from lakeops.ranges.metarange import Metarange
from lakeops.store.base import StoreSettings
from lakeops.store.local import LocalStore

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
