"""Anything inside anything: nested histories of all verbs; see ``support.histories``."""

from collections import Counter

import pytest
from support.histories import Chances

from harness.__main__ import history

SEEDS = range(3)


# A clock that jumps is steady most of the time.
STEADY = pytest.param(0.0, id="steady clock", marks=pytest.mark.slow)


@pytest.mark.parametrize("jump", [STEADY, pytest.param(0.01, id="jumping clock")])
def test_nothing_is_lost_whatever_happens_inside_what(jump):
    ran = sum((history("nested", seed, chances=Chances(jump=jump)) for seed in SEEDS), Counter())
    assert all(ran[name] for name in ("commit", "merge", "collect", "link", "adopt", "nested", "killed")), ran


def test_a_mirror_shows_nothing_that_is_not_there():
    ran = sum((history("mirror", seed) for seed in SEEDS), Counter())
    assert all(ran[name] for name in ("sync", "collect", "tear", "take over", "prove", "copy", "nested", "killed")), ran


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", ["nested", "mirror"])
def test_long(kind):
    for seed in range(1000, 3000):
        history(kind, seed, chances=Chances(jump=0.01 if seed % 2 else 0.0))
