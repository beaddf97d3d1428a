"""Retries: of a compare-and-swap, in which the first answer counts, and of calls after errors that may pass."""

import pytest

from lakeops.model import clock
from lakeops.model.clock import LONGEST_WAIT, Ids, retry, retrying
from lakeops.model.errors import Transient


def test_the_first_answer_ends_the_tries():
    answers = iter([None, None, 0, 1])
    assert retry(lambda: next(answers), 8, AssertionError) == 0, "zero is an answer"
    assert next(answers) == 1


def test_nobody_tries_for_ever():
    asked: list[str] = []
    with pytest.raises(Transient, match="busy"):
        retry(lambda: asked.append("again"), 3, lambda: Transient("busy"))
    assert len(asked) == 3


def test_an_outage_of_hours_is_bridged(monkeypatch):
    waits: list[float] = []
    monkeypatch.setattr(clock, "pause", waits.append)
    answers = iter([None] * 3_000)

    def attempt():
        if next(answers, "done") is None:
            raise Transient("no answer")
        return "done"

    assert retrying(lambda error: isinstance(error, Transient), Ids())(attempt) == "done"
    assert len(waits) == 3_000
    assert max(waits) <= LONGEST_WAIT < sum(waits)
