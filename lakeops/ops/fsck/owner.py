"""The owner record: which catalog may delete in the namespace."""

from __future__ import annotations

from collections.abc import Iterator

from lakeops.model.errors import LakeopsError
from lakeops.model.findings import Finding, found
from lakeops.model.words import safe
from lakeops.ops.context import Context
from lakeops.ops.owner import look
from lakeops.store.layout import owner_key


def check_owner(ctx: Context, *, follows: bool) -> Iterator[Finding]:
    """Whether garbage collection of this catalog may run; a mirror has nobody who deletes."""
    key = owner_key(ctx.store.url)
    try:
        owner, ours = look(ctx)
    except LakeopsError as error:
        yield found("owner_missing", key, f"the record cannot be read: {' '.join(error.message.split())}")
        return
    if owner is None and not follows:
        yield found("owner_missing", key, "no catalog may delete here: the record is not there, or cannot be read")
    elif owner is not None and not ours:
        whose = f"the catalog at {safe(owner.identity.shown)} (epoch {owner.epoch})"
        yield found("owner_mismatch", key, f"{whose} may delete here, and this one may not")
