"""Ten million entries in a process of its own, so that its memory can be measured.

Usage: python -m support.big_repository FOLDER ENTRIES

Builds a repository from a stream, applies changes to it, compares; prints one JSON document of what each step opened
and wrote and of the most memory that the process ever held.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
from support import synthetic
from support.rows import RecordingStore

from lakeops.engine.base import LocalEngine
from lakeops.model.records import Split
from lakeops.ranges.apply import Applied, apply
from lakeops.ranges.build import build
from lakeops.ranges.diff import diff
from lakeops.ranges.merge import plan_merge
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.read import RangeReader


def peak_megabytes() -> float:
    """The most memory that this program held. (``ru_maxrss`` survives ``exec``: it may be the parent's.)"""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


class Steps:
    """The measured values, by name."""

    def __init__(self, store: RecordingStore) -> None:
        self.found: dict[str, dict[str, float]] = {}
        self.store = store
        self._begun = time.perf_counter()

    def done(self, name: str, **numbers: float) -> None:
        self.found[name] = numbers | {
            "read": len(self.store.read),
            "written": len(self.store.written),
            "peak_mb": peak_megabytes(),
            "seconds": time.perf_counter() - self._begun,
        }
        self.store.forget()
        self._begun = time.perf_counter()


def changed(base: Metarange, store: RecordingStore, which: np.ndarray, name: str) -> Applied:
    reader, staged = RangeReader(store), synthetic.staged(np.sort(which).astype(np.uint64))
    return apply(reader, base, staged, engine=LocalEngine(), split=Split(), attempt=name)


def main() -> None:
    folder, entries = Path(sys.argv[1]), int(sys.argv[2])
    store = RecordingStore(folder)
    steps = Steps(store)
    tables = (synthetic.quick_entries(which) for which in synthetic.numbers(entries))
    base = build(store, tables, Split(), "base")
    steps.done("build", ranges=len(base), entries=base.count)

    found = changed(base, store, np.arange(entries // 2, entries // 2 + 1_000), "clustered")
    steps.done("clustered", total=found.summary.total)

    random = changed(base, store, np.random.default_rng(1).choice(entries, 1_000, replace=False), "random")
    steps.done("random", total=random.summary.total)

    starts = np.concatenate([[0], np.cumsum(base.table["count"].to_numpy())])
    places = starts[np.linspace(0, len(base) - 1, 10).astype(int)] + 50
    found = changed(base, store, np.concatenate([np.arange(place, place + 10) for place in places]), "places")
    steps.done("places", total=found.summary.total)

    for label, scattered, few in (
        ("listed ", random.metarange, found.metarange),
        ("", random.metarange.with_delta(None), found.metarange.with_delta(None)),
    ):
        total = sum(table.num_rows for table in diff(RangeReader(store), base, few))
        steps.done(f"{label}diff", total=total)

        total = sum(table.num_rows for table in diff(RangeReader(store), base, scattered))
        steps.done(f"{label}random diff", total=total)

        planned = plan_merge(RangeReader(store), base, scattered, few, None)
        opened = {row.key for row in few.at(few.without(base))} & set(store.read)
        steps.done(f"{label}merge", total=planned.summary.total, opened=len(opened))
    print(json.dumps(steps.found))


if __name__ == "__main__":
    main()
