"""Names say when what wrote them began."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from lakeops.model.clock import Ids
from lakeops.store import layout

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 999_999, tzinfo=UTC)


def test_names_begin_with_the_second_that_their_writer_began_in():
    key = layout.object_key(MOMENT, Ids())
    assert key.startswith("data/2026010203/0405")
    assert re.match(layout.OBJECT_NAME, key)
    folder = layout.object_key(MOMENT, Ids()) + "/"
    assert folder.endswith("/")
    assert re.match(layout.OBJECT_NAME, folder + "part-0.parquet")
    assert re.fullmatch(r"20260102030405[0-9a-v]{20}", layout.attempt(MOMENT, Ids()))


def test_other_names_are_not_lakeops_own():
    for name in ("data/x", "data/2026010203/x", "data/2026010203/0405x", "x/data/2026010203/040500000000000000000000"):
        assert not re.match(layout.OBJECT_NAME, name)
