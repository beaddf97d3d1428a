"""Running a function in several forked processes at once: what they inherit is put to the test as well."""

import multiprocessing
import traceback
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from typing import Any

CONTEXT = multiprocessing.get_context("fork")


def run_forked(work: Callable[[Any], Any], arguments: Iterable[Any], *, seconds: float = 120) -> list[Any]:
    """The results of ``work`` for each argument, each run in a process of its own. A failure there fails here."""
    children = []
    for argument in arguments:
        ours, theirs = CONTEXT.Pipe()
        child = CONTEXT.Process(target=_run, args=(work, argument, theirs), daemon=True)
        child.start()
        theirs.close()
        children.append((child, ours))
    results = []
    for child, pipe in children:
        assert pipe.poll(seconds), "a process did not end"
        failed, result = pipe.recv()
        child.join()
        assert not failed, result
        results.append(result)
    return results


def _run(work: Callable[[Any], Any], argument: Any, pipe: Connection) -> None:
    try:
        pipe.send((False, work(argument)))
    except BaseException:
        pipe.send((True, traceback.format_exc()))
