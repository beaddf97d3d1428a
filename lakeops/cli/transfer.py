"""Moving many files at a time: in parallel, in order, and stopping at the first failure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Annotated, TypeVar

import typer

from lakeops.cli.output import Output
from lakeops.cli.text import counted

PARALLELISM = 8
Parallelism = Annotated[
    int, typer.Option("--parallelism", "-p", min=1, max=64, metavar="N", help="How many files at a time.")
]

Item = TypeVar("Item")
Done = TypeVar("Done")


def transfer(
    out: Output, items: Sequence[Item], move: Callable[[Item], Done], parallelism: int = PARALLELISM
) -> list[Done]:
    """What ``move`` returned for every item, in the items' order.

    After a failure nothing new begins, what is under way ends, and the first item's error that failed is raised; a
    note tells how many items made it.
    """
    if len(items) < 2:
        return [move(item) for item in items]
    pool = ThreadPoolExecutor(min(parallelism, len(items)))
    try:
        futures = [pool.submit(move, item) for item in items]
        wait(futures, return_when=FIRST_EXCEPTION)
    finally:
        pool.shutdown(cancel_futures=True)
    failed = next((future for future in futures if not future.cancelled() and future.exception()), None)
    if failed is not None:
        moved = sum(1 for future in futures if not future.cancelled() and not future.exception())
        out.note(f"Stopped after {counted(moved, 'file')} of {len(items):,}; run it again to go on.")
        failed.result()
    return [future.result() for future in futures]
