"""Putting content in the place of a prefix gives what building the outcome gives, and opens only the borders."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import (
    SMALL,
    THOROUGH,
    RecordingStore,
    attempt,
    built,
    contents,
    repositories,
)

from lakeops.model.errors import InvalidInput
from lakeops.ranges.build import replace_prefix
from lakeops.ranges.metarange import Metarange


def replaced(store, base: Metarange, prefix: str, part: Metarange) -> Metarange:
    return replace_prefix(base, prefix, part, store=store, split=SMALL, attempt=attempt())[0]


def under(prefix: str, count: int, contents: str = "0") -> dict[str, tuple[str, int]]:
    return {f"{prefix}{number:05}": (contents, 0) for number in range(count)}


def expected(repository, prefix, inside):
    return {path: value for path, value in repository.items() if not path.startswith(prefix)} | inside


@given(st.data())
@THOROUGH
def test_replacing_is_building_from_scratch(fresh_store, data):
    store = fresh_store()
    repository = data.draw(repositories())
    prefixes = ["", "m", "p/", "p/0", "p/05", "zz", "\x01", "\U0010ffff", *(path[:2] for path in list(repository)[-5:])]
    prefix = data.draw(st.sampled_from(prefixes))
    inside = {prefix + path: value for path, value in data.draw(repositories()).items()}
    base, part = built(store, repository), built(store, inside)
    wanted = expected(repository, prefix, inside)
    found = replaced(store, base, prefix, part)
    assert found.id == built(store, wanted).id
    assert contents(store, found) == wanted


@pytest.mark.parametrize("prefix", ["a/", "k/", "m/", "z/"])
def test_only_the_borders_are_opened(tmp_path, prefix):
    store = RecordingStore(tmp_path)
    base = built(store, under("k/", 500) | under("m/", 500))
    part = built(store, under(prefix, 700, "1"))
    store.forget()
    found = replaced(store, base, prefix, part)
    assert len(store.read) <= 8
    assert len(store.written) <= 8
    outside = sum(row.count for row in base.rows(0, len(base))) - (500 if prefix in {"k/", "m/"} else 0)
    assert found.count == outside + 700


def test_putting_the_same_back_changes_nothing_and_keeps_the_files(tmp_path):
    store = RecordingStore(tmp_path)
    inside = under("m/", 500)
    base = built(store, under("k/", 500) | inside | under("p/", 500))
    found = replaced(store, base, "m/", built(store, inside))
    assert found.id == base.id


def test_a_part_with_paths_outside_the_prefix_is_refused(fresh_store):
    store = fresh_store()
    part = built(store, under("m/", 50))
    with pytest.raises(InvalidInput):
        replaced(store, Metarange.empty(), "n/", part)
