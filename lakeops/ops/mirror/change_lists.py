"""Checks lists of changes that a source wrote.

A diff, a merge and a revert take the list in a metarange's file in place of ranges, and a merge writes rows of it. The
file's digest says that the source wrote the list, and nothing of whether it is so. So no commit is shown whose list has
a row that no object has, or says anything else than the ranges.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from lakeops.model.errors import (
    Corrupted,
    InvalidInput,
    LakeopsError,
    NotFound,
    PreconditionFailed,
    RecordRefused,
)
from lakeops.model.records import Commit
from lakeops.ops.context import Context
from lakeops.ops.mirror.presence import check_rows
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.read import RangeReader
from lakeops.ranges.verify import list_flaw
from lakeops.store.policy import AddressPolicy


def list_error(
    ctx: Context, reader: RangeReader, commit: Commit, metarange: Metarange, policy: AddressPolicy
) -> LakeopsError | None:
    """What is wrong with the list of a commit's metarange, or with a parent's list about it. None where nothing is.

    What the list is about may not be here. Nobody reads it then, and ``prove`` compares the two once it is there.

    Args:
        ctx: the mirror.
        reader: reads the ranges and the metaranges of parents.
        commit: the commit.
        metarange: its metarange, all of whose ranges are here.
        policy: which addresses the rows may have.
    """
    listed = metarange.changes
    if listed is not None:
        try:
            for side in (listed.before, listed.after):
                check_rows(side, policy)
        except Corrupted as error:
            return error
        except (InvalidInput, PreconditionFailed, pa.ArrowInvalid) as error:
            return RecordRefused(f"its list of changes is refused: {' '.join(str(error).split())}")
    for other in _others(ctx, reader, commit, None if listed is None else listed.since):
        found = disagreement(reader, metarange, other) or disagreement(reader, other, metarange)
        if found is not None:
            return found
    return None


def disagreement(reader: RangeReader, metarange: Metarange, since: Metarange) -> LakeopsError | None:
    """How a list differs from the ranges: that of ``metarange``, about ``since``. None where it has no such list."""
    if metarange.changes is None or metarange.changes.since != since.id:
        return None
    try:
        flaw = list_flaw(reader, metarange, since)
    except (NotFound, Corrupted):
        return None  # a range is not here
    return None if flaw is None else RecordRefused(flaw.message)


def _others(ctx: Context, reader: RangeReader, commit: Commit, since: str | None) -> Iterator[Metarange]:
    """The metaranges of a commit's parents, and the one with the id ``since``; those of them that are here."""
    found = [*ctx.catalog.commits(ctx.repository_id, commit.parents).values()]
    if since is not None and all(one.meta_range_id != since for one in found):
        history = ctx.catalog.history(ctx.repository_id).commits.values()
        found += [one for one in history if one.meta_range_id == since]
    for one in found:
        if one.meta_range_file:
            try:
                yield reader.metarange(one)
            except (NotFound, Corrupted):
                continue
