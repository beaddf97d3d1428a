"""Garbage collection in every order: of a small model that has each rule, and of verbs on a real catalog."""

import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from support.collected import BRANCHES, PATHS, Steps, World
from support.gc_protocol import RULES, SCENARIOS, violation

from lakeops.catalog import guards
from lakeops.catalog.open import Catalog, open_catalog
from lakeops.model.errors import LakeopsError
from lakeops.ops.gc import plan
from lakeops.testing import ManualClock

LONG = {"slow upload, the clock goes back between two collections"}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in SCENARIOS]
)
def test_nothing_needed_is_lost_in_any_order(name):
    history, states = violation(name)
    assert history is None
    assert states > 100


@pytest.mark.timeout(900)
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_needed(rule):
    rest = frozenset(RULES) - {rule}
    history, _ = violation(RULES[rule], rest)
    assert history, f"nothing breaks without {rule!r}"
    assert any(step.startswith("delete ") for step in history)


HOURS = (1, 5, 11, 13, 25, 72, 200)
_numbers = count()

Start = Callable[[World, int], Steps]


def _branch(number):
    return BRANCHES[number % 3]


def _path(number):
    return PATHS[number // 3 % 3]


VERBS: list[Start] = [
    lambda w, n: w.put(_branch(n), _path(n)),
    lambda w, n: w.put("main", _path(n)),
    lambda w, n: w.output(_branch(n), _path(n)[0], fail=n % 5 == 0),
    lambda w, n: w.delete(_branch(n), _path(n)),
    lambda w, n: w.import_object(_branch(n), _path(n)),
    lambda w, n: w.link(_branch(n), _path(n), n, absolute=n % 2 == 0),
    lambda w, n: w.link("main", _path(n), n, absolute=False),
    lambda w, n: w.commit(_branch(n)),
    lambda w, n: w.commit("main"),
    lambda w, n: w.merge(n, _branch(n), picks=False),
    lambda w, n: w.merge(n, _branch(n), picks=True),
    lambda w, n: w.create_branch(("dev", "old")[n % 2], n),
    lambda w, n: w.delete_branch(("dev", "old")[n % 2]),
    lambda w, n: w.tag(n),
    lambda w, _: w.untag(),
    lambda w, n: w.reset(_branch(n), None if n % 2 else _path(n)),
    lambda w, n: w.report(n),
    lambda w, n: w.rules(n % 4),
]
COLLECTION: list[Start] = [lambda w, _: w.mark(), lambda w, n: w.sweep(n), lambda w, n: w.restore(n)]

firsts = st.sampled_from([99, 99, 1, 2, 3])
"""How many steps something takes when it begins; most things run to their end at once."""

steps = st.one_of(
    st.tuples(st.just("verb"), st.integers(0, len(VERBS) - 1), st.integers(0, 35), firsts),
    st.tuples(st.just("collect"), st.integers(0, 2), st.integers(0, 2), firsts),
    st.tuples(st.just("on"), st.integers(0, 4), st.just(0), firsts),
    st.tuples(st.sampled_from(["time", "time", "kill"]), st.integers(0, len(HOURS) - 1), st.just(0), st.just(0)),
)
Step = tuple[str, int, int, int]


@pytest.fixture(scope="module")
def clock():
    return ManualClock()


@pytest.fixture(scope="module")
def catalog(clock):
    memory = Path("/dev/shm")  # where there is one, databases cost no disk
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as place:
        opened = open_catalog(f"sqlite:///{place}/catalog.db", clock=clock)
        assert isinstance(opened, Catalog)
        yield opened
        opened.close()


def play(world, program):
    """Run a program: things are begun, taken a few steps on, run to their end, killed; time passes."""
    running: list[Steps] = []

    def step(steps, most):
        try:
            for _ in range(most):
                next(steps)
        except (StopIteration, LakeopsError):
            running.remove(steps)

    for what, which, number, first in program:
        if what == "time":
            world.clock.advance(hours=HOURS[which])
        elif what in ("verb", "collect"):
            started = (VERBS if what == "verb" else COLLECTION)[which](world, number)
            running.append(started)
            step(started, first)
        elif running and what == "kill":
            running.pop(which % len(running))
        elif running:
            step(running[which % len(running)], first)
    for left in list(running):
        step(left, 99)


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch):
    """One commit a transaction, so that everything can happen between two of them."""
    monkeypatch.setattr(plan, "STEP", 1)
    monkeypatch.setattr(guards, "IN_CHUNK", 1)


def begin(world):
    """The start of histories: an old commit under a new one, a branch at the old one, and garbage of all kinds."""
    for verb in (
        world.put("main", "a/x"), world.put("main", "b/x"), world.commit("main"), world.create_branch("dev", 1),
        world.put("main", "a/x"), world.commit("main"), world.put("dev", "a/y"), world.reset("dev", None),
        world.rules(1),
    ):  # fmt: skip
        for _ in verb:
            pass
    world.clock.advance(hours=8 * 24)


def history(catalog, clock, program):
    world = World(catalog, clock, f"repo-{next(_numbers)}")
    begin(world)
    play(world, program)
    clock.advance(days=60)
    for _ in range(2):
        world.collect()
        clock.advance(days=2)
    assert world.store == world.referenced()


def histories(catalog, clock, *, number, examples, steps_at_most):
    """So many histories, others for every number."""

    @seed(number)
    @given(program=st.lists(steps, min_size=3, max_size=steps_at_most))
    @settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=examples, database=None)
    def one(program):
        history(catalog, clock, program)

    one()


@pytest.mark.timeout(1200)
def test_nothing_needed_goes_and_nothing_else_stays(catalog, clock):
    histories(catalog, clock, number=0, examples=40, steps_at_most=12)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(100))
def test_nothing_needed_goes_and_nothing_else_stays_in_long_histories(catalog, clock, part):
    """Fifty thousand histories."""
    histories(catalog, clock, number=1_000 + part, examples=500, steps_at_most=50)
