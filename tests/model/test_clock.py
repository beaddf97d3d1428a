"""Retries of a compare-and-swap: the first answer counts, and so many tries are made."""

import pytest

from lakeops.model.clock import retry
from lakeops.model.errors import Transient


def test_the_first_answer_ends_the_tries() -> None:
    answers = iter([None, None, 0, 1])
    assert retry(lambda: next(answers), 8, AssertionError) == 0, "zero is an answer"
    assert next(answers) == 1


def test_nobody_tries_for_ever() -> None:
    asked: list[str] = []
    with pytest.raises(Transient, match="busy"):
        retry(lambda: asked.append("again"), 3, lambda: Transient("busy"))
    assert len(asked) == 3
