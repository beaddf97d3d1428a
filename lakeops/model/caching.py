"""Attributes that are computed when they are first asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

__all__ = ["cached_property"]

if TYPE_CHECKING:
    from functools import cached_property  # for type checkers it is the same
else:

    class cached_property(functools.cached_property):  # noqa: N801 - as the one of functools
        """A ``functools.cached_property`` without a lock, as in Python 3.12. Two threads may both compute the value.

        The lock of Python 3.11 is one for all objects of a class. So threads would read and decode one after the other,
        and one that waits for another while it computes would wait for ever.
        """

        def __init__(self, func: Callable[[Any], Any]) -> None:
            super().__init__(func)
            self.lock = nullcontext()
