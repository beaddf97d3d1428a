"""Planning a merge in stretches on an engine gives what a single walk gives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import THOROUGH, Groups, applied, built, change_sets, numbered, repositories

from lakeops.model.errors import Transient
from lakeops.model.records import Strategy
from lakeops.ranges.merge import plan_merge
from lakeops.ranges.read import RangeReader


class Elsewhere(Groups):
    """Work that leaves the process, a task's worth of ranges given; remembers how many tasks there were."""

    tasks = 0

    @property
    def in_process(self) -> bool:
        return False

    def run(self, work, tasks, store):
        for task in tasks:
            self.tasks += 1
            yield work(task, store)
            yield work(task, store)


@given(st.data(), st.integers(1, 4), st.sampled_from([None, *Strategy]))
@THOROUGH
def test_stretches_give_what_one_walk_gives(fresh_store, data, size, strategy):
    store = fresh_store()
    base = data.draw(repositories())
    sides = [base, *(applied(base, data.draw(change_sets(base))) for _ in range(2))]
    metaranges = [built(store, side) for side in sides]
    reader = RangeReader(store)
    whole = plan_merge(reader, *metaranges, strategy)
    parts = plan_merge(reader, *metaranges, strategy, engine=Elsewhere(size))
    assert parts.changes.equals(whole.changes)
    assert (parts.conflicts, parts.summary) == (whole.conflicts, whole.summary)
    assert (parts.result and parts.result.id) == (whole.result and whole.result.id)


@pytest.fixture
def sides(store):
    base = numbered(range(700))
    source = base | numbered(range(0, 700, 7), "1")
    dest = base | numbered(range(3, 700, 7), "2")
    return [built(store, side) for side in (base, source, dest)]


def test_a_large_walk_becomes_many_tasks(reader, sides):
    engine = Elsewhere(2)
    plan = plan_merge(reader, *sides, None, engine=engine)
    assert plan.summary.changed == 100
    assert engine.tasks > len(sides[0]) / 8
    assert plan.changes.equals(plan_merge(reader, *sides, None).changes)


def test_counting_what_a_merge_by_reference_brings_is_work_too(reader, sides):
    base, source, _ = sides
    engine = Elsewhere(2)
    plan = plan_merge(reader, base, source, base, None, engine=engine)
    assert plan.result is source
    assert (plan.summary.changed, plan.changes.num_rows) == (100, 0)
    assert engine.tasks > len(base) / 8


def test_nothing_to_do_is_seen_at_once(reader, sides):
    base, _, dest = sides
    engine = Elsewhere(2)
    assert plan_merge(reader, base, base, dest, None, engine=engine).result is dest
    assert engine.tasks == 0


def test_a_lost_part_is_noticed(reader, sides):
    class Losing(Elsewhere):
        def run(self, work, tasks, store):
            return super().run(work, list(tasks)[1:], store)

    with pytest.raises(Transient, match="gave back"):
        plan_merge(reader, *sides, None, engine=Losing(2))
