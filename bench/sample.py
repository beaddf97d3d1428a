"""One measurement, and what many of one thing come to."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

MARKS = Path("/proc/self/clear_refs")
ROOT = Path(__file__).parents[1]
CODE = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
"""Where processes that measure find this package and the tests' support."""


@dataclass(frozen=True)
class Sample:
    """What one run took: seconds of wall and CPU, and what it did to the store; ``peak_mb`` is 0 where unknown."""

    wall: float
    cpu: float
    opened: int = 0
    metaranges: int = 0
    written: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    peak_mb: float = 0.0
    output: bytes = field(default=b"", compare=False)

    def __add__(self, other: Sample) -> Sample:
        return replace(self, wall=self.wall + other.wall, cpu=self.cpu + other.cpu)

    def __truediv__(self, times: int) -> Sample:
        return replace(self, wall=self.wall / times, cpu=self.cpu / times)

    def plain(self) -> dict[str, Any]:
        """The numbers, for a JSON document."""
        numbers = asdict(self)
        del numbers["output"]
        return numbers


def typical(samples: Sequence[Sample]) -> Sample:
    """The median of each number on its own; peak memory is the largest."""
    numbers = [sample.plain() for sample in samples]
    middle = {name: median(each[name] for each in numbers) for name in numbers[0]}
    return Sample(**middle | {"peak_mb": max(sample.peak_mb for sample in samples)})


def peak_mb() -> float:
    """The most memory that this process held since the mark was set back; 0 where only Linux could tell."""
    if not MARKS.exists():
        return 0.0
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024
