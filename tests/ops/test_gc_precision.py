"""Names have seconds or hours and the fence has microseconds: what a mark may hold is at or before the fence."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from lakeops.model.clock import Ids
from lakeops.ops.gc.files import KINDS, StoreListing
from lakeops.ops.gc.unreferenced import LISTED_SCHEMA
from lakeops.store import layout

HOUR = datetime(2026, 1, 1, 12, tzinfo=UTC)
moments = st.integers(-3 * 3_600_000_000, 3 * 3_600_000_000).map(lambda count: HOUR + timedelta(microseconds=count))


def names(started: datetime) -> dict[str, str]:
    """Everything that an attempt may have written, by kind."""
    attempt = layout.attempt(started, Ids())
    return {
        "object": layout.object_key(started, Ids()),
        "object of an hour": f"{layout.DATA}{layout.partition(started)}/{Ids().new()}",
        "output": layout.output_prefix(started, Ids()) + "part",
        "range": layout.range_key(layout.attempt_file("0" * 64, attempt)),
        "metarange": layout.metarange_key(layout.attempt_file("0" * 64, attempt)),
        "mark": f"{layout.GC}{attempt}/report.json",
    }


def held(addresses: list[str], cutoff: datetime) -> set[str]:
    """Those that are old enough for a mark of this cutoff."""
    with TemporaryDirectory() as name:
        found = StoreListing(Path(name) / "objects.arrow", cutoff)
        rows = {"physical_address": addresses, "size_bytes": [1] * len(addresses), "mtime": [0] * len(addresses)}
        with pa.ipc.new_stream(found.objects, LISTED_SCHEMA) as spool:
            found.sort(pa.table(rows, schema=LISTED_SCHEMA), spool)
        tables = [*found.batches(), *(found.old(kind) for kind in KINDS)]
    return {address for table in tables for address in table["physical_address"].to_pylist()}


@given(started=moments, cutoff=moments)
@example(started=HOUR, cutoff=HOUR)
@example(started=HOUR, cutoff=HOUR + timedelta(microseconds=999_999))
@example(started=HOUR + timedelta(microseconds=999_999), cutoff=HOUR + timedelta(seconds=1))
@example(started=HOUR - timedelta(microseconds=1), cutoff=HOUR)
def test_what_a_mark_may_hold_was_begun_at_or_before_its_cutoff(started, cutoff):
    by_kind = names(started)
    found = held(list(by_kind.values()), cutoff)
    if found:
        assert started <= cutoff
    if started + timedelta(seconds=2) <= cutoff:
        assert found >= {address for kind, address in by_kind.items() if kind != "object of an hour"}
