"""Touched ranges with their changes, a window of them at a time: what comes out does not depend on the windows."""

import shutil

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.far import FarStore, Requests
from support.rows import (
    THOROUGH,
    RecordingStore,
    applied,
    built,
    byte_order,
    entry_table,
    numbered,
    staged_table,
    summed,
    values,
)

from lakeops.model.arrow import RANGE_SCHEMA
from lakeops.model.errors import Corrupted, FileMissing
from lakeops.model.records import Split, Summary
from lakeops.ranges import rewrite
from lakeops.ranges.chunker import path_hashes
from lakeops.ranges.range_file import fetch_ranges
from lakeops.ranges.rewrite import changed_ranges, with_change_digests
from lakeops.store.disk_cache import DiskCache, with_cache

SPLIT = Split(16, 40, 120)

REPOSITORY = numbered(range(400))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return RecordingStore(tmp_path_factory.mktemp("windows"))


@pytest.fixture(scope="module")
def base(store):
    return built(store, REPOSITORY, SPLIT)


def told(store, base, changes, on_applied=lambda _: None):
    """Each touched range's number and what is told of it."""
    staged = staged_table(changes)
    numbers, counts = np.unique(base.route(staged["path"]), return_counts=True)
    touched = [(base.row(int(number)), int(count)) for number, count in zip(numbers, counts, strict=True)]
    changed = changed_ranges(store, touched, with_change_digests(staged), on_applied)
    return [(int(number), list(rows)) for number, rows in zip(numbers, changed, strict=True)]


@given(st.data())
@THOROUGH
def test_every_range_becomes_what_its_changes_say_whatever_the_window(store, base, data):
    known = st.sampled_from(byte_order(REPOSITORY))
    path = st.one_of(
        known, known.map(lambda one: one + "!"), st.sampled_from(["", "a/0", "a/~", "b", "zz"]).filter(bool)
    )
    changes = data.draw(st.dictionaries(path, st.none() | values(), min_size=1, max_size=60))
    changes = {path: REPOSITORY.get(path) if data.draw(st.integers(0, 9)) == 0 else to for path, to in changes.items()}
    applied_ = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewrite, "_ROWS", data.draw(st.sampled_from([1, 100, 300, 24_000])))
        found = told(store, base, changes, applied_.append)
    after = applied(REPOSITORY, changes)
    for number, rows in found:
        row = base.row(number)
        mine = {path: to for path, to in changes.items() if base.route(pa.array([path]))[0] == number}
        before = {path: to for path, to in REPOSITORY.items() if row.first_path <= path <= row.last_path}
        expected = entry_table(applied(before, mine))
        table = pa.concat_tables([RANGE_SCHEMA.empty_table(), *(some for some, _ in rows)])
        assert table.drop_columns("digest").equals(expected)
        assert all(np.array_equal(path_hashes(some["path"]), own) for some, own in rows)
    assert sum((one.summary for one in applied_), Summary()) == summed(REPOSITORY, after)
    assert {number for number, *_ in found} == {int(number) for number in base.route(staged_table(changes)["path"])}


def test_windows_hold_as_many_ranges_as_fit(store, base, monkeypatch):
    """And a range that does not fit has one of its own."""
    firsts = {base.row(index).first_path: ("9", 9) for index in range(len(base))}
    steps = []
    most = 3 * max(row.count + 1 for row in base.rows(0, len(base)))
    for rows in (1, most, 10**9):
        applied_ = []
        monkeypatch.setattr(rewrite, "_ROWS", rows)
        told(store, base, firsts, applied_.append)
        steps.append(len(applied_))
    assert steps[0] == len(base) > 8
    assert len(base) / 8 < steps[1] <= -(-len(base) // 3)
    assert steps[2] == 1


def test_files_of_a_window_are_read_when_it_begins(store, base, monkeypatch):
    monkeypatch.setattr(rewrite, "_ROWS", 2 * max(one.count + 1 for one in base.rows(0, len(base))))
    changes = {base.row(index).first_path: ("9", 9) for index in range(len(base))}
    staged = with_change_digests(staged_table(changes))
    store.forget()
    found = changed_ranges(store, [(one, 1) for one in base.rows(0, len(base))], staged, lambda _: None)
    assert store.read == []
    next(found)
    assert store.read[0] == base.row(0).key
    assert 2 <= len(store.read) < len(base)
    assert len(list(found)) == len(base) - 1
    assert len(store.read) == len(base)
    assert not store.twice


@pytest.fixture
def far(store):
    """The ranges behind a network, whose requests are answered in rounds."""
    return FarStore(store.root, Requests(0.1))


def test_a_far_store_is_asked_for_all_files_of_a_window_at_once(far, base):
    rows = base.rows(0, len(base))
    files = fetch_ranges(far, rows)
    assert [file.row for file in files] == rows
    assert sorted(far.requests.rounds[0]) == sorted(f"get {row.key}" for row in rows)
    assert len(far.requests.rounds) == 1


def test_files_that_this_machine_keeps_are_not_asked_for_again(far, base, tmp_path):
    rows = base.rows(0, 3)
    store = with_cache(far, DiskCache(tmp_path / "kept", 10**8))
    first = [file.read() for file in fetch_ranges(store, rows)]
    assert [file.read() for file in fetch_ranges(store, rows)] == first
    assert far.requests.made == 3


def test_a_file_that_is_missing_or_damaged_fails_the_window_and_says_which(tmp_path, base, store):
    shutil.copytree(store.root, tmp_path / "copy")
    far = FarStore(tmp_path / "copy", Requests(0.0))
    rows = base.rows(0, 4)
    (tmp_path / "copy" / rows[1].key).unlink()
    with pytest.raises(FileMissing, match=rows[1].key):
        fetch_ranges(far, rows)
    (tmp_path / "copy" / rows[1].key).write_bytes(b"x" * rows[1].file_bytes)
    with pytest.raises(Corrupted, match=rows[1].key):
        fetch_ranges(far, rows)
