"""Linking objects that were there before: none of them may be on its way out.

What a verb has written itself is young, and no mark holds anything young. But ``stage`` takes any address, also that
of an object which nobody refers to and which a mark may hold. So it looks into every mark that can still delete, and
the catalog refuses the link if there is a mark that was not looked into.
"""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.engine.addresses import managed
from lakeops.model.errors import ObjectCollected
from lakeops.model.marks import MarkState
from lakeops.ops.context import Context
from lakeops.ops.gc.files import opened
from lakeops.store import layout


def old_objects(ctx: Context, addresses: pa.ChunkedArray, now: datetime) -> pa.Array:
    """Those of some stored addresses that a mark may hold: objects named by lakeops before the deadline.

    What was named within the deadline before ``now`` is younger than the grace period until the attempt expires.
    """
    inside = managed(ctx.repository.storage_namespace, addresses)
    since = f"{now - ctx.catalog.grace / 2:%Y%m%d%H}"
    hour = pc.utf8_slice_codeunits(inside, 5, 15)
    old = pc.and_(pc.match_substring_regex(inside, layout.OBJECT_NAME), pc.less_equal(hour, since))
    return inside.filter(old)


def cleared(ctx: Context, old: pa.Array) -> frozenset[str]:
    """The marks that hold none of these objects, or have nothing left to delete.

    Raises:
        ObjectCollected: one of them holds one of the objects.
    """
    found = set()
    for mark in ctx.catalog.marks(ctx.repository_id):
        if mark.state is not MarkState.MARKING:
            found.add(mark.id)
        if mark.state not in (MarkState.MARKED, MarkState.SWEEPING):
            continue
        with opened(ctx, mark) as file:
            for batch in file.iter_batches(columns=["physical_address"]):
                doomed = pc.is_in(batch.column(0), value_set=old)
                if pc.any(doomed).as_py():
                    name = batch.column(0).filter(doomed)[0].as_py()
                    raise ObjectCollected(
                        f"nothing refers to {name!r} any more, and mark {mark.id} is going to delete it: "
                        "upload the contents again"
                    )
    return frozenset(found)
