"""Ranges are verified on Spark as they are in process: the same findings, the same rows for the rest of the check."""

from __future__ import annotations

from support.rows import SMALL, built, numbered

from lakeops.engine.base import Engine, LocalEngine
from lakeops.engine.spark.engine import SparkEngine
from lakeops.ops.fsck.ranges import Uses, check_ranges
from lakeops.store.local import LocalStore


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
