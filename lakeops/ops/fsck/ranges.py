"""Ranges, each verified once on the engine however many commits share it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa

from lakeops.engine.base import Engine
from lakeops.model.records import Split
from lakeops.ops.fsck.metaranges import Uses
from lakeops.ranges.metarange import RangeRow
from lakeops.ranges.verify import Flaw, VerifyTask, row_flaw, verify
from lakeops.store.base import ObjectStore

_MOST_IN_A_TASK = 4
"""Ranges a task: its result holds columns of all their rows."""

OPEN = Flaw("range_boundary", "it ends where the cutting rule does not, and another range follows it")


@dataclass(frozen=True, slots=True)
class CheckedRange:
    """One range of the repository, looked at.

    Attributes:
        number: its number among ``Uses``.
        row: what its metaranges tell of it.
        flaws: what is wrong with it.
        table: the wanted columns of its rows; None when the file cannot be used.
    """

    number: int
    row: RangeRow
    flaws: tuple[Flaw, ...]
    table: pa.Table | None


def check_ranges(
    engine: Engine, store: ObjectStore, uses: Uses, split: Split | None, columns: tuple[str, ...]
) -> Iterator[CheckedRange]:
    """Every range of ``uses``, in any order, each once."""
    numbered = enumerate(uses.rows())
    waiting: dict[int, list[tuple[int, RangeRow]]] = {}
    spoilt: list[CheckedRange] = []
    size = min(engine.group(len(uses)), _MOST_IN_A_TASK)

    def tasks() -> Iterator[VerifyTask]:
        index = 0
        while some := list(islice(numbered, size)):
            told = [(number, row, row_flaw(row)) for number, row in some]
            spoilt.extend(CheckedRange(number, row, (flaw,), None) for number, row, flaw in told if flaw is not None)
            usable = [(number, row) for number, row, flaw in told if flaw is None]
            if usable:
                waiting[index] = usable
                yield VerifyTask(index, tuple(row for _, row in usable), split, columns)
                index += 1

    for result in engine.run(verify, tasks(), store):
        # A task that ran twice has two results; the first counts.
        for (number, row), verified in zip(waiting.pop(result.index, ()), result.ranges, strict=False):
            open_inside = not verified.closed and uses.inner[number]
            flaws = (*verified.flaws, OPEN) if open_inside else verified.flaws
            yield CheckedRange(number, row, flaws, verified.table)
        yield from spoilt
        spoilt.clear()
    yield from spoilt
