"""Metaranges of leaves, however small they are."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lakeops.ranges import metarange


@contextmanager
def small_leaves(of_ranges: int = 2, inline: int = 0) -> Iterator[None]:
    """Every metarange of more than ``inline`` ranges has leaves, of about so many ranges."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metarange, "LEAF_RANGES", of_ranges)
        patch.setattr(metarange, "MOST_INLINE", inline)
        patch.setattr(metarange, "MOST_INLINE_NEAR", inline)
        yield


@pytest.fixture(params=["one-file", "leaves"])
def leaves(request):
    """Once with metaranges of one file, and once with leaves: everything holds whatever they are."""
    if request.param == "one-file":
        yield
    else:
        with small_leaves(3, 2):
            yield


@pytest.fixture
def only_leaves():
    """All metaranges have leaves."""
    with small_leaves():
        yield
