"""Dropping a candidate by hand: the newest head is waited for at once."""

from __future__ import annotations

import contextlib

from lakeops.model.errors import LakeopsError, RefNotFound
from lakeops.model.mirrors import MirrorRef, RefName
from lakeops.ops.context import Context
from lakeops.ops.mirror.sync import Reach, discover


def skip(ctx: Context, reach: Reach, ref: RefName) -> MirrorRef:
    """Let a ref wait for the newest head in place of its candidate. Returns the ref. See ``Mirror.skip``.

    The source is asked for its newest head. Where it does not answer, that is the head that the last pass saw.
    """
    ctx.catalog.mirror(ctx.repository_id).check_following()
    with contextlib.suppress(LakeopsError):
        discover(ctx, reach)
    found = _find(ctx, ref)
    if found.candidate is not None and found.candidate != found.source_head:
        ctx.catalog.give_up_candidate(ctx.repository_id, ref, found.ticket)
        found = _find(ctx, ref)
    return found


def _find(ctx: Context, ref: RefName) -> MirrorRef:
    for found in ctx.catalog.mirror_state(ctx.repository_id).refs:
        if found.ref == ref:
            return found
    raise RefNotFound(f"mirror {ctx.repository_id!r} follows no {ref.kind} {ref.name!r}")
