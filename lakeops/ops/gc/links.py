"""Linking objects that are there already: none of them may be gone, or on its way out.

What a verb has written itself is safe: the catalog refuses it once a mark has looked at what was begun then. But
``stage`` takes any address, also that of an object which nobody refers to and which a mark may hold. Three steps, in
this order, make it safe whatever runs beside them, and no clock is asked:

1. look into every mark that can still delete one of the objects (``cleared``);
2. prove that every object is there (``check_present``): no mark that was looked into can take it away any more;
3. link them in a transaction that refuses when there is a mark that was not looked into (``catalog.check_links``).
"""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.engine.addresses import managed
from lakeops.model.errors import InvalidInput, ObjectCollected, ObjectNotFound
from lakeops.model.marks import HOLDING, MarkState
from lakeops.ops.context import Context
from lakeops.ops.gc.files import opened
from lakeops.store import layout
from lakeops.store.presence import present


def own_objects(ctx: Context, addresses: pa.ChunkedArray) -> pa.Array:
    """Those of some stored addresses that lakeops named in the namespace, by whatever spelling, relative to it.

    What somebody else put below ``data/`` is never collected, and is the caller's word, as imported objects are.

    Raises:
        InvalidInput: one of them is lakeops' own metadata, or lies elsewhere in the namespace.
    """
    inside = managed(ctx.repository.storage_namespace, addresses)
    strange = inside.filter(pc.invert(pc.starts_with(inside, layout.DATA)))
    if len(strange):
        raise InvalidInput(f"{strange[0].as_py()!r} of {ctx.store.url} is not an object: objects lie below data/")
    return inside.filter(pc.match_substring_regex(inside, layout.OBJECT_NAME))


def cleared(ctx: Context, objects: pa.Array) -> frozenset[str]:
    """The marks that hold none of these objects and never will, or have nothing left to delete.

    Raises:
        ObjectCollected: one of them holds one of the objects.
    """
    found = set()
    for mark in ctx.catalog.marks(ctx.repository_id):
        within = _begun_by(objects, mark.cutoff)
        if mark.state is MarkState.MARKING and len(within):
            continue
        found.add(mark.id)
        if mark.state not in HOLDING or not len(within):
            continue
        with opened(ctx, mark) as file:
            for batch in file.iter_batches(columns=["physical_address"]):
                doomed = pc.is_in(batch.column(0), value_set=within)
                if pc.any(doomed).as_py():
                    name = batch.column(0).filter(doomed)[0].as_py()
                    raise ObjectCollected(
                        f"nothing refers to {name!r} any more, and mark {mark.id} is going to delete it: "
                        "upload the contents again"
                    )
    return frozenset(found)


def check_present(ctx: Context, objects: pa.Array) -> None:
    """Prove that every object is in the store; asked of the store, after ``cleared``. Raises ``ObjectNotFound``."""
    names = objects.unique().to_pylist()
    found = present(ctx.store, names)
    missing = next((name for name in names if name not in found), None)
    if missing is not None:
        raise ObjectNotFound(
            f"there is no object {missing!r} in {ctx.store.url} ({len(names) - len(found):,} of {len(names):,} are "
            "missing): garbage collection took it, or it was never written; upload the contents again"
        )


def _begun_by(objects: pa.Array, cutoff: datetime) -> pa.Array:
    """Those that a mark of this cutoff may hold: named in no later hour."""
    hour = pc.utf8_slice_codeunits(objects, 5, 15)
    return objects.filter(pc.less_equal(hour, f"{cutoff:%Y%m%d%H}"))
