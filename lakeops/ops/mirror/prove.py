"""After a fail-over: let those older commits live again that are whole.

A fail-over looks at nothing but what the mirror shows, and expires all other commits as unproved. This looks at them:
one listing of ranges and metaranges, and the metarange of each. A commit whose metarange and ranges are all there lives
again. Single objects that did not arrive are reported by fsck. Commits that nothing live descends from were never shown
here, and stay expired. It may be killed and repeated. A mark begins with it, and then gives up what is left: what such
commits need may be garbage from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.errors import Corrupted, NotFound
from lakeops.model.records import Commit
from lakeops.ops.context import Context
from lakeops.store import layout

STEP = 500
"""How many commits are looked at before those that are whole live again."""

THREADS = 16


@dataclass(frozen=True, slots=True)
class Proved:
    """What became of the unproved commits: how many live again, and how many are left."""

    commits: int
    unproved: int

    def to_json(self) -> dict[str, Any]:
        """The result for programs."""
        return {"commits": self.commits, "unproved": self.unproved}


def prove(ctx: Context) -> Proved:
    """Let unproved commits live again that are whole. Raises ``ReadOnlyRepository``, ``RepositoryNotFound``."""
    unproved = ctx.catalog.unproved(ctx.repository_id)
    if not unproved:
        return Proved(0, 0)
    commits = ctx.catalog.history(ctx.repository_id).commits
    older = [commits[one] for one in sorted(unproved & _below(commits))]
    is_whole = _wholeness(ctx)
    proved = 0
    with ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="prove") as pool:
        for start in range(0, len(older), STEP):
            some = older[start : start + STEP]
            answers = pool.map(is_whole, some)
            whole = [commit.id for commit, answer in zip(some, answers, strict=True) if answer]
            proved += ctx.catalog.revive_proved(ctx.repository_id, whole)
            ctx.progress("proving commits", start + len(some), len(older))
    return Proved(proved, len(unproved) - proved)


def _wholeness(ctx: Context) -> Callable[[Commit], bool]:
    """Says of a commit whether its metarange and ranges are there; the store is listed once for it."""
    metaranges = {item.key.removeprefix(layout.METARANGES) for item in ctx.store.list(layout.METARANGES)}
    names = (item.key.removeprefix(layout.RANGES) for item in ctx.store.list(layout.RANGES))
    ranges = pa.array(names, pa.string())

    def is_whole(commit: Commit) -> bool:
        if commit.meta_range_file and commit.meta_range_file not in metaranges:
            return False
        try:
            files = ctx.reader.metarange(commit).table.column("file")
        except (Corrupted, NotFound):
            return False
        return pc.all(pc.is_in(files, value_set=ranges)).as_py() is not False  # None for no ranges at all

    return is_whole


def _below(commits: Mapping[str, Commit]) -> set[str]:
    """What live commits descend from, themselves included."""
    found: set[str] = set()
    waiting = [commit.id for commit in commits.values() if not commit.expired]
    while waiting:
        one = waiting.pop()
        if one not in found and one in commits:
            found.add(one)
            waiting += commits[one].parents
    return found
