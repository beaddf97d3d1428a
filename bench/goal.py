"""What a row is meant to reach, and whether it did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bench.sample import Sample


@dataclass(frozen=True)
class Goal:
    """At most so many times git's wall time in the same run, or so many milliseconds, or seconds of CPU.

    ``size`` is the smallest repository that the goal speaks of: below it costs that do not grow weigh most.
    """

    at_most: float
    of: Literal["git", "ms", "cpu s"] = "git"
    size: int = 1_000_000

    def __str__(self) -> str:
        return f"≤ {self.at_most:g}x" if self.of == "git" else f"≤ {self.at_most:g} {self.of}"

    def reached(self, lakeops: Sample, git: Sample | None) -> bool:
        """Whether these medians reach it."""
        if self.of == "ms":
            return lakeops.wall * 1000 <= self.at_most
        if self.of == "cpu s":
            return lakeops.cpu <= self.at_most
        return git is not None and lakeops.wall <= self.at_most * git.wall
