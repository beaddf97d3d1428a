"""A mirror promises what it shows: nothing else is asked of it, and of that everything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from support.damage import head, store
from support.mirrors import Pair, open_pair

from lakeops.ops.fsck.findings import Severity
from lakeops.testing import ManualClock


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with open_pair(tmp_path, clock=ManualClock(), random=Random(1)) as opened:
        for number in range(5):
            opened.commit(**{"shared": str(number), f"f{number}": "x"})
        opened.catch_up()
        yield opened


def worse(pair: Pair) -> list[tuple[str, str]]:
    return [(one.kind, one.where) for one in pair.mirror.fsck(data=True) if one.severity != Severity.INFO]


def test_a_mirror_that_shows_its_source_is_healthy(pair: Pair) -> None:
    assert head(pair.mirror).id == head(pair.repo).id
    assert worse(pair) == []


def test_what_has_not_arrived_for_a_commit_that_is_not_shown_is_no_damage(pair: Pair) -> None:
    older = head(pair.repo, "main~2")
    assert store(pair.mirror).delete([f"_lakefs/metaranges/{older.meta_range_file}"]) == []
    pair.commit(new="1")
    pair.mirror.sync()
    assert worse(pair) == []


def test_what_is_missing_of_a_shown_commit_is_damage(pair: Pair) -> None:
    key = f"_lakefs/metaranges/{head(pair.mirror).meta_range_file}"
    assert store(pair.mirror).delete([key]) == []
    assert worse(pair) == [("metarange_missing", key)]
    assert "unreferenced_objects" not in {finding.kind for finding in pair.mirror.fsck()}
