"""Calls in several threads of this process that all start at the same moment."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import Any

from lakeops.model.errors import LakeopsError


def result_of(act: Callable[[], Any]) -> Any:
    """The result of a call, or the error of ours that it ended with."""
    try:
        return act()
    except LakeopsError as error:
        return error


def at_once(*acts: Callable[[], Any]) -> list[Any]:
    """The result of each call, or the error of ours that it ended with."""
    start = Barrier(len(acts))

    def one(act: Callable[[], Any]) -> Any:
        start.wait()
        return result_of(act)

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(one, acts))


def many_at_once(count: int, act: Callable[[int], Any]) -> list[Any]:
    """The results or errors of ``act(n)`` for n below ``count``."""
    return at_once(*(partial(act, number) for number in range(count)))
