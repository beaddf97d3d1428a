"""Objects that nobody wrote: stores list them from files of names, in this process and in Spark's workers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import pyarrow as pa

from lakeops.store.base import Listing

TOGETHER = 1_000
"""Names of a page."""


@cache
def _batches(file: str) -> tuple[pa.ipc.RecordBatchFileReader, list[str]]:
    """A file of names, and the first name of each of its batches."""
    found = pa.ipc.open_file(pa.OSFile(file))
    return found, [found.get_batch(number)[0][0].as_py() for number in range(found.num_record_batches)]


def _listed(file: str, after: str, until: str) -> Iterator[Listing]:
    found, firsts = _batches(file)
    for number in range(max(0, bisect_right(firsts, after) - 1), len(firsts)):
        if until and firsts[number] > until:
            return
        names = found.get_batch(number)[0].to_pylist()
        if names[0] <= after or (until and names[-1] > until):
            names = [name for name in names if name > after and (not until or name <= until)]
        if names:
            count = len(names)
            yield Listing(names, [1_000] * count, [1_700_000_000] * count, ["0" * 32] * count)


def pretend(kind: Any, shown: dict[str, str], only: Sequence[str] = ()) -> None:
    """Let stores of a kind list, behind what there is, the names of the file that ``shown`` has for their URL.

    In the places ``only`` there is nothing else.
    """
    scan, borders, reduced = kind.scan, kind.borders, kind.__reduce__

    def scanned(store: Any, *, under: str = "", after: str = "", until: str = "", **how: bool) -> Iterator[Listing]:
        yield from scan(store, under=under, after=after, until=until, **how) if store.url not in only else ()
        if store.url in shown and not under:
            yield from _listed(shown[store.url], after, until)

    def divided(store: Any, after: str, count: int) -> Sequence[str]:
        if store.url not in shown:
            return borders(store, after, count)
        firsts = _batches(shown[store.url])[1]
        return [name for name in firsts[:: -(-len(firsts) // count)] if name > after]

    def taken_along(store: Any) -> tuple[Any, ...]:
        return _reopened, (shown, only, *reduced(store)[:2])

    kind.scan, kind.borders, kind.__reduce__ = scanned, divided, taken_along
    kind.pretending = True


def _reopened(shown: dict[str, str], only: Sequence[str], make: Any, arguments: tuple[Any, ...]) -> Any:
    store = make(*arguments)
    if not hasattr(type(store), "pretending"):
        pretend(type(store), shown, only)
    return store
