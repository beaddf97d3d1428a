"""Applying changes gives what building from scratch gives, whatever the changes and however the work is cut."""

import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import (
    SMALL,
    THOROUGH,
    Groups,
    Losing,
    Racing,
    applied,
    attempt,
    boundary_paths,
    built,
    byte_order,
    change_sets,
    contents,
    numbered,
    repositories,
    staged_table,
    summed,
)

from lakeops.engine.base import LocalEngine
from lakeops.model.errors import Corrupted, InvalidInput, Transient
from lakeops.model.records import Split, Summary
from lakeops.ranges.apply import apply, plan
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.read import RangeReader
from lakeops.ranges.rewrite import run_task


def done(store, base, changes, engine=None, split=SMALL, **options):
    table = changes if isinstance(changes, pa.Table) else staged_table(changes)
    return apply(RangeReader(store), base, table, engine=engine or Groups(), split=split, attempt=attempt(), **options)


def check(store, base, repository, changes, **options):
    found = done(store, base, changes, **options)
    expected = applied(repository, changes)
    assert found.metarange.id == built(store, expected).id
    assert found.summary == summed(repository, expected)
    return found


@pytest.mark.usefixtures("leaves")
@given(st.data(), st.sampled_from([1, 2, 3, 50]))
@THOROUGH
def test_applying_is_building_from_scratch(fresh_store, data, size):
    store = fresh_store()
    repository = data.draw(repositories())
    changes = data.draw(change_sets(repository))
    base = built(store, repository)
    found = check(store, base, repository, changes, engine=Groups(size))
    assert contents(store, found.metarange) == applied(repository, changes)
    again = data.draw(change_sets(applied(repository, changes)))
    check(store, found.metarange, applied(repository, changes), again, engine=Racing(size))
    assert len(set(store.written)) == len(store.written), "a name was used twice"


REPOSITORY = numbered(range(300))


def scenarios(base):
    """Changes that meet every way in which cuts can move."""
    paths = byte_order(REPOSITORY)
    ends = list(boundary_paths(base))
    rows = base.rows(0, len(base))
    second = [path for path in paths if rows[1].first_path <= path <= rows[1].last_path]
    last = [path for path in paths if path >= rows[-1].first_path]
    new = ("9", 9)
    yield "nothing", {}
    yield "one key", {paths[100]: new}
    yield "every key", dict.fromkeys(paths, new)
    yield "all gone", dict.fromkeys(paths)
    yield "all but one gone", dict.fromkeys(paths[1:])
    yield "every boundary key gone", dict.fromkeys(ends)
    yield "one boundary key gone", {ends[3]: None}
    yield "two neighbouring boundary keys gone", {ends[3]: None, ends[4]: None}
    yield "a key after every boundary key", {end + "!": new for end in ends}
    yield "a key before the first", {" ": new}
    yield "keys past the last", {f"z/{number:03}": new for number in range(90)}
    yield "a whole range gone", dict.fromkeys(second)
    yield "the last range gone", dict.fromkeys(last)
    yield "the first and the last key gone", dict.fromkeys([paths[0], paths[-1]])
    yield "a range filled up", {f"{second[0]}/{number:03}": new for number in range(200)}
    yield (
        "every second range gone",
        {
            path: None
            for index, row in enumerate(rows)
            if index % 2
            for path in paths
            if row.first_path <= path <= row.last_path
        },
    )
    yield "half replaced", {path: new if index % 2 else None for index, path in enumerate(paths[:150])}


@pytest.fixture(scope="module")
def store(fresh_store):
    return fresh_store()


@pytest.fixture(scope="module")
def base(store):
    return built(store, REPOSITORY)


@pytest.mark.parametrize(
    ("size", "split"),
    [
        *((size, SMALL) for size in (1, 4, 1_000)),
        *((5, split) for split in (Split(1, 2, 2), Split(3, 3, 9), Split(16, 2, 16), Split(5, 1_000, 20))),
    ],
)
@pytest.mark.usefixtures("leaves")
def test_scenarios(store, size, split):
    base = built(store, REPOSITORY, split)
    for name, changes in scenarios(base):
        found = done(store, base, changes, engine=Groups(size), split=split)
        expected = applied(REPOSITORY, changes)
        assert found.metarange.id == built(store, expected, split).id, name
        assert found.summary == summed(REPOSITORY, expected), name


def test_a_border_that_opens_is_repaired_without_applying_a_change_again(store, base):
    ends = list(boundary_paths(base))
    changes = dict.fromkeys(ends[2:12])
    tasks = list(plan(base, staged_table(changes), split=SMALL, attempt=attempt()).tasks(1))
    results = [run_task(task, store) for task in tasks]
    assert sum(bool(run.remainder) for result in results for run in result.runs) >= 3
    found = done(store, base, changes, engine=Groups(1))
    assert found.summary == Summary(removed=10)
    assert found.metarange.id == built(store, applied(REPOSITORY, changes)).id


def test_the_first_ranges_of_an_empty_repository(store, base):
    found = done(store, Metarange.empty(), REPOSITORY)
    assert found.metarange.id == base.id
    assert found.summary == Summary(added=300)
    assert done(store, Metarange.empty(), {"a": None}).metarange.id == Metarange.empty().id


def test_many_changes_in_one_range_stream_through(store, monkeypatch):
    monkeypatch.setattr("lakeops.ranges.rewrite._ROWS", 1)
    monkeypatch.setattr("lakeops.ranges.rewrite._AT_ONCE", 7)
    repository = numbered(range(40))
    base = built(store, repository)
    for number in range(0, 40, 13):
        path = byte_order(repository)[number]
        changes = {f"{path}{more:03}": ("5", 5) for more in range(60)} | dict.fromkeys(byte_order(repository)[::3])
        check(store, base, repository, changes)


def test_untouched_ranges_go_by_reference_unread(store, base):
    rows = base.rows(0, len(base))
    store.forget()
    found = done(store, base, {rows[3].first_path: ("9", 9)})
    assert store.read == [rows[3].key]
    assert len(store.written) == 1
    assert store.bytes_read == rows[3].file_bytes
    after = found.metarange.rows(0, len(found.metarange))
    assert [row for row in after if row in rows] == rows[:3] + rows[4:]
    assert store.head(store.written[0]).size_bytes == after[3].file_bytes


def test_what_is_there_already_is_not_written_again(store, base):
    store.forget()
    again = {path: (value[0], 77) for path, value in list(REPOSITORY.items())[::5]}
    found = done(store, base, again | {"a/nothing": None, "zzz": None})
    assert found.metarange is base
    assert found.summary == Summary()
    assert store.written == []


def test_a_range_that_comes_out_as_another_live_commit_has_it_is_not_written(store, base):
    changes = {"a/00100": ("9", 9), "b/00201": None}
    other = done(store, base, changes).metarange
    store.forget()
    found = done(store, base, changes, reuse=other)
    assert found.metarange.table.equals(other.table)
    assert store.written == []


def test_unsorted_changes_are_refused(store, base):
    table = staged_table({"a": None, "b": None})
    for wrong in (table.take([1, 0]), table.take([0, 0])):
        with pytest.raises(InvalidInput, match="sorted"):
            done(store, base, wrong)


def test_a_damaged_range_stops_everything(fresh_store):
    store = fresh_store()
    base = built(store, REPOSITORY)
    row = base.row(5)
    (store.root / row.key).write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(Corrupted, match=row.file):
        done(store, base, dict.fromkeys(REPOSITORY), engine=LocalEngine(2))


def test_a_lost_result_is_noticed(store, base):
    with pytest.raises(Transient, match="try again"):
        done(store, base, dict.fromkeys(boundary_paths(base)), engine=Losing())


def test_the_plan_is_told_before_and_progress_during(store, base):
    progress = []
    changes = dict.fromkeys(list(boundary_paths(base))[::2], ("9", 9))
    done(store, base, changes, label="commit", progress=lambda *step: progress.append(step))
    touched = len(changes)
    size = sum(row.file_bytes for row in base.rows(0, len(base))[::2])
    assert {label for label, _, _ in progress} == {
        f"commit: will rewrite {touched} of {len(base)} ranges, {size / 1000:.1f} kB, in process"
    }
    assert (progress[0][1:], progress[-1][1:]) == ((0, touched), (touched, touched))
    assert [done for _, done, _ in progress] == sorted({done for _, done, _ in progress})


def test_tasks_are_small_plain_data(store, base):
    changes = dict.fromkeys(list(boundary_paths(base))[::9])
    tasks = list(plan(base, staged_table(changes), split=SMALL, attempt="x").tasks(2))
    assert pickle.loads(pickle.dumps(tasks)) == tasks
    assert sum(len(segment.rows) for task in tasks for segment in task.segments) <= 5 * len(changes)
    assert sum(sum(segment.changes) for task in tasks for segment in task.segments) == len(changes)
