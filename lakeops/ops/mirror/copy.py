"""Copying commit records from the source: parents first, under the same ids, only what is missing.

History at the mirror is whole at every moment, so a copy that was killed is gone on with by the next one.
"""

from __future__ import annotations

from collections.abc import Iterable

from lakeops.model.records import Commit
from lakeops.ops.context import Context
from lakeops.ops.mirror.source import Source
from lakeops.ops.resolve import line_of

BATCH = 500
"""Commits of one transaction, and of one statement at the source."""


def copy_history(ctx: Context, source: Source, heads: Iterable[str]) -> int:
    """Copy everything that these commits of the source descend from and the mirror lacks; returns how many commits."""
    missing = _missing(ctx, source, heads)
    # What the source has pruned comes as "gone", and is not copied: the mirror's history ends there too.
    pruned = frozenset(commit.id for commit in missing.values() if commit.is_gone)
    kept = (commit for commit in missing.values() if not commit.is_gone)
    ordered = sorted(kept, key=lambda commit: (commit.generation, commit.id))
    for start in range(0, len(ordered), BATCH):
        ctx.catalog.copy_commits(ctx.repository_id, ordered[start : start + BATCH], pruned=pruned)
        ctx.progress("copying commits", min(start + BATCH, len(ordered)), len(ordered))
    return len(ordered)


def _missing(ctx: Context, source: Source, heads: Iterable[str]) -> dict[str, Commit]:
    """The commits that the mirror lacks, by id.

    First parents come in long runs, so a linear history takes few calls.
    """
    found: dict[str, Commit] = {}
    known: set[str] = set()
    waiting = _unknown(ctx, heads, known)
    while waiting:
        chain = line_of(source.catalog, source.repository_id, waiting.pop(), BATCH)
        ids = {one for commit in chain for one in (commit.id, *commit.parents)} - found.keys()
        lacking = _unknown(ctx, ids, known)
        for commit in chain:
            if commit.id not in lacking:
                break  # what it descends from is there as well, or was found before
            found[commit.id] = commit
            waiting.update(parent for parent in commit.parents if parent in lacking)
        waiting -= found.keys()
    return found


def _unknown(ctx: Context, ids: Iterable[str], known: set[str]) -> set[str]:
    """Those of the commits that the mirror does not have; ``known`` remembers those that it has."""
    asked = set(ids) - known
    known.update(ctx.catalog.commits(ctx.repository_id, asked))
    return asked - known
