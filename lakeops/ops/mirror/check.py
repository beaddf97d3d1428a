"""After a fail-over: is everything there that branches and tags show?

A mirror shows what was proved, so nothing should be missing. This looks again, at the store alone and with nothing
taken for granted: whoever lost a site wants to know what else was lost. Its cost follows what is shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from lakeops.engine.presence import Terms, plan, prove
from lakeops.model.errors import Corrupted, ObjectNotFound
from lakeops.model.ids import etags_are_md5
from lakeops.model.mirrors import SAMPLE
from lakeops.ops.context import Context
from lakeops.ops.paging import pages
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.read import RangeReader


def check_shown(ctx: Context) -> list[str]:
    """What is missing or damaged of the heads of all branches and of all tags, in words; nothing when all is whole."""
    commits: dict[str, str] = {}
    for kind, listing in (("branch", ctx.catalog.branches), ("tag", ctx.catalog.tags)):
        for ref in pages(partial(listing, ctx.repository_id)):
            commits.setdefault(ref.commit_id, f"{kind} {ref.id!r}")
    imported = ctx.catalog.mirror(ctx.repository_id).check_imported
    etags = etags_are_md5(ctx.repository.capabilities)
    terms = Terms(settings=ctx.stores.settings, imported=imported, etags=etags)
    found: list[str] = []
    known = Metarange.empty()
    for commit_id, name in commits.items():
        commit = ctx.catalog.commit(ctx.repository_id, commit_id)
        try:
            wanted = RangeReader(ctx.store).metarange(commit)
        except (ObjectNotFound, Corrupted) as error:
            found.append(f"{name}: {error.message}")
            continue
        flaws = list(_flaws(ctx, terms, wanted, known))
        found += [f"{name}: {flaw}" for flaw in flaws]
        known = known if flaws else wanted
    return found


def _flaws(ctx: Context, terms: Terms, wanted: Metarange, known: Metarange) -> Iterator[str]:
    for proof in prove(plan(wanted, known, {}), engine=ctx.engine, store=ctx.store, terms=terms):
        if proof.damage is not None or proof.mismatch is not None:
            yield proof.damage or proof.mismatch or ""
        elif not proof.arrived:
            yield f"range {proof.file} is missing"
        elif proof.missing_objects:
            some = ", ".join(repr(one.path) for one in proof.missing[:SAMPLE])
            yield f"{proof.missing_objects:,} objects are missing, such as those of {some}"
