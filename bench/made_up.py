"""Objects that nobody wrote: stores list them from files of names, in this process and in Spark's workers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakeops.store.base import Listing

TOGETHER = 1_000
"""Names of a page."""
NAMES = pa.schema([("name", pa.string())])


def write(file: str, pages: Iterable[pa.Array]) -> None:
    """Write names in order, ``TOGETHER`` a page, and the first name of each page."""
    firsts = []
    with pa.OSFile(file, "wb") as sink, pa.ipc.new_file(sink, NAMES) as out:
        for page in pages:
            out.write_batch(pa.record_batch([page], NAMES))
            firsts.append(page[0].as_py())
    Path(f"{file}.firsts").write_text("\n".join(firsts))


@cache
def _pages(file: str) -> tuple[pa.ipc.RecordBatchFileReader, list[str]]:
    """A file of names, and the first name of each of its pages."""
    return pa.ipc.open_file(pa.OSFile(file)), Path(f"{file}.firsts").read_text().split("\n")


def _listed(file: str, after: str, until: str) -> Iterator[Listing]:
    found, firsts = _pages(file)
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
    scan, borders, reduced = kind.scan, kind.borders, kind.__reduce_ex__

    def scanned(store: Any, *, under: str = "", after: str = "", until: str = "", **how: bool) -> Iterator[Listing]:
        yield from scan(store, under=under, after=after, until=until, **how) if store.url not in only else ()
        if store.url in shown and not under:
            yield from _listed(shown[store.url], after, until)

    def divided(store: Any, after: str, count: int) -> Sequence[str]:
        if store.url not in shown:
            return borders(store, after, count)
        firsts = _pages(shown[store.url])[1]
        return [name for name in firsts[:: -(-len(firsts) // count)] if name > after]

    def taken_along(store: Any, protocol: int) -> tuple[Any, ...]:
        make, arguments, *state = reduced(store, protocol)
        return _reopened, (shown, only, make, arguments), *state

    kind.scan, kind.borders, kind.__reduce_ex__ = scanned, divided, taken_along
    kind.pretending = True


def _reopened(shown: dict[str, str], only: Sequence[str], make: Any, arguments: tuple[Any, ...]) -> Any:
    store = make(*arguments)
    if not hasattr(type(store), "pretending"):
        pretend(type(store), shown, only)
    return store
