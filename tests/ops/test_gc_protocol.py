"""The protocol, in every interleaving of a small world; and that none of its rules can be left out."""

from __future__ import annotations

import pytest
from support.gc_protocol import RULES, SCENARIOS, violation

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
