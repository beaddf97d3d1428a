"""The verbs that ``bench.far`` measures: on lakeops, and on lakeFS."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from bench.dataset import Changes, DataSet

if TYPE_CHECKING:
    from bench.lakefs_side import LakeFs
    from lakeops import Repository

CHANGES = 1_000
PUTS, PUTTERS = 400, 8
MERGES, MERGERS = 24, 8


@dataclass(frozen=True)
class Verb:
    """A line of the table.

    Attributes:
        run: the verb, on the repository and with the name of this run.
        before: what it stands on, made near the server and not measured.
        theirs: the same verb on lakeFS.
        before_theirs: the same on lakeFS.
        lakefs: what lakeFS 1.84 took on another machine, in milliseconds.
        heavy: it takes seconds, and is run once.
    """

    name: str
    run: Callable[[Repository, str], object]
    theirs: Callable[[LakeFs, str], object]
    lakefs: float
    before: Callable[[Repository, DataSet, str, int], object] = lambda repo, data, name, run: None
    before_theirs: Callable[[LakeFs, str, int], object] = lambda lakefs, name, run: None
    heavy: bool = False


def branch_off(repo: Repository, name: str, changes: Changes, *, commit: bool = True) -> None:
    """A branch of main with changes on it."""
    catalog: Any = repo._ctx.catalog
    repo.create_branch(name, "main")
    catalog.staging.put_staged(repo.id, name, changes.staged, started=catalog.now())
    if commit:
        repo.branch(name).commit("changes")


def changed(kind: str) -> Callable[[DataSet, int, int], Changes]:
    """A thousand changes of a kind; ``side`` tells those of a merge from each other."""

    def made(data: DataSet, run: int, side: int = 0) -> Changes:
        count = min(CHANGES, data.size // 20)
        if kind == "random":
            return data.random(count, 1 + 2 * run + side)
        return data.clustered(count, 1 + 2 * run + side, at=0.75 if side else 0.2)

    return made


def _merge_sides(kind: str) -> Callable[[Repository, DataSet, str, int], None]:
    def before(repo: Repository, data: DataSet, name: str, run: int) -> None:
        for side, suffix in enumerate(("", "-to")):
            branch_off(repo, name + suffix, changed(kind)(data, run, side))

    return before


def _one_file_branches(repo: Repository, data: DataSet, name: str, run: int) -> None:
    repo.create_branch(f"{name}-to", "main")
    for number in range(MERGES):
        branch = repo.create_branch(f"{name}-{number}", "main")
        branch.put(f"merged/{name}/{number}", b"one file")
        branch.commit("one file")


def _puts(repo: Repository, name: str) -> None:
    branch = repo.branch(name)
    with ThreadPoolExecutor(PUTTERS) as pool:
        list(pool.map(lambda number: branch.put(f"puts/{name}/{number}", os.urandom(1_000)), range(PUTS)))


def _merges(repo: Repository, name: str) -> None:
    with ThreadPoolExecutor(MERGERS) as pool:
        list(pool.map(lambda number: repo.merge(f"{name}-{number}", f"{name}-to"), range(MERGES)))


def _import(repo: Repository, name: str) -> None:
    repo.branch(name).import_objects(os.environ["BENCH_SOURCE"], "imported/", message="import")


def _their_branch(commit: bool, changes: Callable[[DataSet, int, int], Changes]) -> Callable[[LakeFs, str, int], None]:
    def before(lakefs: LakeFs, name: str, run: int) -> None:
        lakefs.branch(name)
        lakefs.stage(name, changes(lakefs.data, run, 0))
        if commit:
            lakefs.commit(name)

    return before


def _their_merge_sides(kind: str) -> Callable[[LakeFs, str, int], None]:
    def before(lakefs: LakeFs, name: str, run: int) -> None:
        for side, suffix in enumerate(("", "-to")):
            lakefs.branch(name + suffix)
            lakefs.stage(name + suffix, changed(kind)(lakefs.data, run, side))
            lakefs.commit(name + suffix)

    return before


def _their_one_file_branches(lakefs: LakeFs, name: str, run: int) -> None:
    lakefs.branch(f"{name}-to")
    for number in range(MERGES):
        branch = f"{name}-{number}"
        lakefs.branch(branch)
        lakefs.put(branch, f"merged/{name}/{number}", b"one file")
        lakefs.commit(branch)


def _their_puts(lakefs: LakeFs, name: str) -> None:
    with ThreadPoolExecutor(PUTTERS) as pool:
        list(pool.map(lambda number: lakefs.put(name, f"puts/{name}/{number}", os.urandom(1_000)), range(PUTS)))


def _their_merges(lakefs: LakeFs, name: str) -> None:
    with ThreadPoolExecutor(MERGERS) as pool:
        list(pool.map(lambda number: lakefs.merge(f"{name}-{number}", f"{name}-to"), range(MERGES)))


def _commits(kind: str, took: float) -> Verb:
    return Verb(
        f"commit {CHANGES:,} {kind}",
        lambda repo, name: repo.branch(name).commit("changes"),
        lambda lakefs, name: lakefs.commit(name),
        took,
        lambda repo, data, name, run: branch_off(repo, name, changed(kind)(data, run), commit=False),
        _their_branch(False, changed(kind)),
    )


def _diffs(kind: str, took: float) -> Verb:
    return Verb(
        f"diff {CHANGES:,} {kind}",
        lambda repo, name: sum(1 for _ in repo.diff("main", name)),
        lambda lakefs, name: lakefs.diff("main", name),
        took,
        lambda repo, data, name, run: branch_off(repo, name, changed(kind)(data, run)),
        _their_branch(True, changed(kind)),
    )


def _merge_of(kind: str, took: float) -> Verb:
    return Verb(
        f"merge {CHANGES:,} + {CHANGES:,} {kind}",
        lambda repo, name: repo.merge(name, f"{name}-to"),
        lambda lakefs, name: lakefs.merge(name, f"{name}-to"),
        took,
        _merge_sides(kind),
        _their_merge_sides(kind),
    )


VERBS = (
    _commits("clustered", 168),
    _commits("random", 374),
    _diffs("clustered", 104),
    _diffs("random", 215),
    _merge_of("clustered", 241),
    _merge_of("random", 479),
    Verb(
        "first page of 1,000",
        lambda repo, name: list(islice(repo.ref("main").list(), 1_000)),
        lambda lakefs, name: lakefs.page(),
        14,
    ),
    Verb(
        "first stat",
        lambda repo, name: repo.ref("main").stat(os.environ["BENCH_PATH"]),
        lambda lakefs, name: lakefs.stat(lakefs.some_path),
        7.6,
    ),
    Verb(
        f"{PUTS} puts of 1 kB, {PUTTERS} threads",
        _puts,
        _their_puts,
        3_002,
        lambda repo, data, name, run: repo.create_branch(name, "main"),
        lambda lakefs, name, run: lakefs.branch(name),
        heavy=True,
    ),
    Verb(
        "import of all entries from a bucket",
        _import,
        lambda lakefs, name: lakefs.import_all(name, "imported/"),
        5_089,
        lambda repo, data, name, run: repo.create_branch(name, "main"),
        lambda lakefs, name, run: lakefs.branch(name),
        heavy=True,
    ),
    Verb(
        f"{MERGES} one-file merges, {MERGERS} at once",
        _merges,
        _their_merges,
        2_197,
        _one_file_branches,
        _their_one_file_branches,
        heavy=True,
    ),
)
BY_NAME = {verb.name: verb for verb in VERBS}
