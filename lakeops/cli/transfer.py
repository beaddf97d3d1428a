"""Moving many files at a time: in parallel, in order, and stopping at the first failure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Annotated, TypeVar

import typer

from lakeops.cli.output import Output, counted
from lakeops.cli.session import Tally

PARALLELISM = 8
Parallelism = Annotated[
    int, typer.Option("--parallelism", "-p", min=1, max=64, metavar="N", help="How many files at a time.")
]

Item = TypeVar("Item")
Done = TypeVar("Done")


def transfer(
    out: Output, items: Sequence[Item], move: Callable[[Item], Done], tally: Tally, parallelism: int
) -> list[Done]:
    """What ``move`` returned for every item, in the items' order.

    After a failure, or Ctrl-C, nothing new begins and what is under way stops at its next read; the failure is raised,
    and a note tells how many items made it.
    """
    pool = ThreadPoolExecutor(max(1, min(parallelism, len(items))))
    try:
        futures = [pool.submit(move, item) for item in items]
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        failed = next((future for future in futures if future in done and future.exception()), None)
    finally:
        tally.stop()
        pool.shutdown(cancel_futures=True)
    if failed is not None:
        moved = sum(1 for future in futures if not future.cancelled() and not future.exception())
        if len(items) > 1:
            out.note(f"Stopped after {counted(moved, 'file')} of {len(items):,}; run it again to go on.")
        failed.result()
    return [future.result() for future in futures]
