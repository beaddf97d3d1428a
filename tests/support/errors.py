"""Expecting errors by their kind."""

from collections.abc import Callable

import pytest

from lakeops.model.errors import LakeopsError


def has_kind(*kinds: str) -> Callable[[LakeopsError], bool]:
    """A check of ``pytest.raises``: the error has one of the kinds."""
    return lambda error: error.kind in kinds


def raising(expected: type[Exception] | str, match: str | None = None) -> pytest.RaisesExc:
    """``pytest.raises`` for a class of errors, or for a kind of lakeops' errors."""
    if isinstance(expected, str):
        return pytest.raises(LakeopsError, match=match, check=has_kind(expected))
    return pytest.raises(expected, match=match)
