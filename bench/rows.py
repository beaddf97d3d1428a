"""What is measured: each row says what git runs, what lakeops runs, and the goal.

Both processes read this list; a row's number in it is how they agree on what to do. *Range work* is the core alone:
metaranges in, a written metarange out. *Verbs* are what users call: staging area, catalog and disk included.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bench.dataset import DataSet
from bench.goal import Goal
from bench.sample import Sample

if TYPE_CHECKING:
    from bench.git_side import GitSide
    from bench.lake_side import LakeSide

LOAD = 500_000
HISTORY = 1_000
FOLDER = "images/train/n00000003/"


@dataclass(frozen=True)
class Row:
    """One line of the table.

    ``why`` explains a missed goal. ``heavy`` rows are repeated less, ``once`` ones not at all. ``beside`` names the row
    whose git runs stand beside this one too.
    """

    name: str
    lake: Callable[[LakeSide, int], Sample]
    git: Callable[[GitSide, int], Sample] | None = None
    goal: Goal | None = None
    why: str = ""
    heavy: bool = False
    once: bool = False
    beside: str = ""

    def repeats(self, light: int, heavy: int) -> int:
        """How often to run it."""
        return 1 if self.once else heavy if self.heavy else light


@dataclass(frozen=True)
class Section:
    """Rows that stand on the same repository."""

    title: str
    rows: tuple[Row, ...]


def neighbours(data: DataSet, again: int) -> list[str]:
    """A thousand paths of one stretch, another one each time."""
    start = (again * 31 + 7) * data.size // 997 % (data.size - 20_000)
    return list(data.paths(np.arange(start, start + 20_000, 20, dtype=np.uint64)).to_pylist())


_IMPORT = Section(
    "Import",
    (
        Row(
            "import, digests present",
            lambda lake, n: lake.import_sorted(n),
            lambda git, n: git.import_sorted(n),
            Goal(0.1),
            why="encoding is half a microsecond an entry, shared out between two cores",
            heavy=True,
        ),
        Row(
            "import, digests computed",
            lambda lake, n: lake.import_sorted(n, computed=True),
            heavy=True,
            beside="import, digests present",
        ),
    ),
)

_RANGES = Section(
    "Range work",
    (
        Row(
            "commit 1k clustered",
            lambda lake, n: lake.apply(lake.data.clustered(1_000, n + 1)),
            lambda git, n: git.commit(git.data.clustered(1_000, n + 1), durable=False),
            Goal(0.5),
            why="a whole range is read, verified, encoded and written",
        ),
        Row(
            "commit 1k random",
            lambda lake, n: lake.apply(lake.data.random(1_000, n + 1)),
            lambda git, n: git.commit(git.data.random(1_000, n + 1), durable=False),
            Goal(0.7),
            why="every range that a change falls in is read, verified and written, and half of it is encoded anew",
            heavy=True,
        ),
        *(
            Row(
                f"diff 100 keys, {places} place{'s' if places > 1 else ''}",
                lambda lake, n, places=places: lake.diff("main", f"places-{places}"),
                lambda git, n, places=places: git.diff("main", f"places-{places}"),
                Goal(ratio),
                why="the list of changes is read with the metarange that has it, or a range on each side is compared",
            )
            for places, ratio in ((1, 2), (10, 4), (100, 4))
        ),
        Row(
            "diff 1k random",
            lambda lake, n: lake.diff("main", "random-a"),
            lambda git, n: git.diff("main", "random-a"),
            Goal(0.8),
            why="every range that differs is verified, compared and decoded on each side",
        ),
        Row(
            "merge 1k+1k clustered",
            lambda lake, n: lake.merge("clustered-b", "clustered-a"),
            lambda git, n: git.merge("clustered-b", "clustered-a", durable=False),
            Goal(2),
            why="three metaranges and a list of changes are read, one is written; git reads a few small trees",
        ),
        Row(
            "merge 1k+1k random",
            lambda lake, n: lake.merge("random-b", "random-a"),
            lambda git, n: git.merge("random-b", "random-a", durable=False),
            Goal(1),
            why="the changes of the source are found by comparing, and ranges that both sides changed are written anew",
            heavy=True,
        ),
        Row(
            "stat, cold process",
            lambda lake, n: lake.stat_cold(neighbours(lake.data, n)),
            lambda git, n: git.stat(neighbours(git.data, n)),
        ),
        Row(
            "stat, warm",
            lambda lake, n: lake.stat_warm(neighbours(lake.data, n)),
            lambda git, n: git.stat_warm(neighbours(git.data, n)),
            Goal(0.02, "ms"),
            why="two binary searches, then seven Arrow cells become a Python record; no file is touched",
        ),
        Row(
            "list a page of 1,000",
            lambda lake, n: lake.page(FOLDER),
            lambda git, n: git.page(FOLDER),
            Goal(0.3),
            why="a cold page decodes all columns of a range; git reads one tree of 1,300 names, nothing else",
        ),
    ),
)

_VERBS = Section(
    "Verbs",
    (
        Row(
            "commit 1k clustered, durable",
            lambda lake, n: lake.commit(lake.data.clustered(1_000, n + 1)),
            lambda git, n: git.commit(git.data.clustered(1_000, n + 1), durable=True),
        ),
        Row(
            "commit 1k random, durable",
            lambda lake, n: lake.commit(lake.data.random(1_000, n + 1)),
            lambda git, n: git.commit(git.data.random(1_000, n + 1), durable=True),
            heavy=True,
        ),
        Row(
            "merge 1k+1k clustered, durable",
            lambda lake, n: lake.merge_verb("clustered-b", "clustered-a"),
            lambda git, n: git.merge("clustered-b", "clustered-a", durable=True),
        ),
        Row(
            "branch create, durable",
            lambda lake, n: lake.branch(),
            lambda git, n: git.branch(n),
            Goal(0.25),
            why="a lookup and a transaction of three statements through SQLAlchemy, and its fsync",
        ),
        Row(
            "log of 1,000",
            lambda lake, n: lake.log(HISTORY),
            lambda git, n: git.log(HISTORY),
            Goal(0.25),
            why="SQLite follows a thousand first parents and hands over eleven columns of each, then records are made",
        ),
        Row(
            "stat, warm, through a branch",
            lambda lake, n: lake.stat_verb(neighbours(lake.data, n)),
            lambda git, n: git.stat_warm(neighbours(git.data, n)),
        ),
        Row(
            "list a page of 1,000 of a branch", lambda lake, n: lake.page_verb(FOLDER), lambda git, n: git.page(FOLDER)
        ),
        Row(
            "`branch list`, whole process",
            lambda lake, n: lake.branch_list(),
            lambda git, n: git.branch_list(),
            Goal(0.5, "cpu s", 0),
            why="Python, typer and SQLAlchemy start; the query is a millisecond of it",
        ),
    ),
)

_LOAD = Section(
    "A load of 500,000 new objects, everywhere",
    (
        Row(
            "stage 500k",
            lambda lake, n: lake.stage(lake.data.load(LOAD, n)),
            goal=Goal(60_000, "ms", 10_000_000),
            once=True,
        ),
        Row(
            "commit 500k staged, durable",
            lambda lake, n: lake.commit_load(),
            lambda git, n: git.commit(git.data.load(LOAD, n), durable=True),
            Goal(15_000, "ms", 10_000_000),
            why="every range is read, merged, encoded and written, and one thread reads and removes the staged rows",
            once=True,
        ),
    ),
)

CANDIDATES = "GC candidates"

_GARBAGE = Section(
    "Garbage collection, beside DuckDB in git's place",
    (
        Row(
            CANDIDATES,
            lambda lake, n: lake.candidates(),
            lambda git, n: git.candidates(),
            Goal(1.2, size=10_000_000),
            why="every range is verified and decoded, and its addresses go over the disk to be joined",
            heavy=True,
        ),
    ),
)

SECTIONS = (_IMPORT, _RANGES, _VERBS, _LOAD, _GARBAGE)
ROWS = {row.name: row for section in SECTIONS for row in section.rows}


def settle(side: GitSide | LakeSide) -> None:
    """Make the branches that rows after the import stand on, the same on both sides."""
    data = side.data
    for places in (1, 10, 100):
        side.branch_off(f"places-{places}", data.places(100, places, 1))
    side.branch_off("clustered-a", data.clustered(1_000, 1))
    side.branch_off("clustered-b", data.clustered(1_000, 2, at=0.25))
    side.branch_off("random-a", data.random(1_000, 41))
    side.branch_off("random-b", data.random(1_000, 42))
    side.make_history(HISTORY)
