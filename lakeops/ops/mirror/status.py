"""The lag of a mirror, from what the last pass recorded. The source need not be reachable."""

from __future__ import annotations

from functools import partial

from lakeops.model import graph
from lakeops.model.clock import unix_seconds
from lakeops.model.errors import Corrupted, NotFound, ObjectNotFound
from lakeops.model.graph import CommitSource
from lakeops.model.mirrors import SAMPLE, MirrorRecord, MirrorRef, MirrorStatus, RefKind, RefStatus, Wait
from lakeops.ops.context import Context, lookup, pages
from lakeops.ops.mirror.inspection import check_options
from lakeops.ops.mirror.presence import check_presence, plan_presence
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.read import RangeReader


def status(ctx: Context) -> MirrorStatus:
    """The progress of each ref, as the last pass saw it. Seconds count up to now. The source is not asked."""

    def found() -> MirrorStatus:
        state = ctx.catalog.mirrors.mirror_state(ctx.repository_id)
        now, get = unix_seconds(ctx.catalog.now()), lookup(ctx).get
        refs = [ref_status(get, state.mirror, ref, now) for ref in state.refs]
        return MirrorStatus(
            state.mirror,
            {ref.id: ref for ref in refs if ref.kind is RefKind.BRANCH},
            {ref.id: ref for ref in refs if ref.kind is RefKind.TAG},
            state.mirrors,
        )

    return ctx.catalog.in_snapshot(found)


def ref_status(get: CommitSource, mirror: MirrorRecord, ref: MirrorRef, now: int) -> RefStatus:
    """The progress of one ref. ``get`` gives commits that the source's head descends from."""
    commits, since = behind(get, ref.source_head, ref.promoted)
    if since is None and ref.promoted != ref.source_head:
        since = ref.noticed
    return RefStatus(
        id=ref.name,
        kind=ref.kind,
        promoted=ref.promoted,
        candidate=ref.candidate,
        source_head=ref.source_head,
        lag_commits=commits,
        lag_seconds=0 if since is None else max(0, now - since),
        missing_objects=ref.missing_objects,
        missing_bytes=ref.missing_bytes,
        last_check=ref.checked,
        error=ref.error,
        wait=ref.wait,
        stalled=ref.wait is not None and is_stalled(mirror, ref.wait, now),
    )


def behind(get: CommitSource, head: str, promoted: str | None) -> tuple[int | None, int | None]:
    """How many commits lead from ``promoted`` to ``head``, and when the oldest of them was made. None for no way."""
    if promoted is None:
        return None, None
    if promoted == head:
        return 0, None
    try:
        lowest, oldest = get(promoted).generation, get(head)
    except NotFound:
        return None, None
    for distance, commit in enumerate(graph.first_parents(get, head)):
        if commit.id == promoted:
            return distance, oldest.creation_date
        if commit.generation <= lowest:
            break
        oldest = commit
    return None, None


def check_promoted(ctx: Context) -> list[str]:
    """Look for everything that the mirror shows. Returns what is missing or damaged, in words.

    It relies on nothing that earlier passes remembered, so the cost grows with all that is shown. Use it after a
    fail-over.
    """
    commits: dict[str, str] = {}
    for kind, listing in (("branch", ctx.catalog.refs.branches), ("tag", ctx.catalog.refs.tags)):
        for ref in pages(partial(listing, ctx.repository_id)):
            commits.setdefault(ref.commit_id, f"{kind} {ref.id!r}")
    options = check_options(ctx, ctx.catalog.mirrors.get(ctx.repository_id))
    found: list[str] = []
    known = Metarange.empty()
    for commit_id, name in commits.items():
        try:
            wanted = RangeReader(ctx.store).whole(ctx.catalog.commits.get(ctx.repository_id, commit_id))
        except (ObjectNotFound, Corrupted) as error:
            found.append(f"{name}: {error.message}")
            continue
        flaws = []
        planned = plan_presence(wanted, known, {})
        for proof in check_presence(planned, engine=ctx.engine, store=ctx.store, options=options):
            wrong = proof.damage or proof.refused or proof.mismatch
            if wrong is not None:
                flaws.append(wrong)
            elif not proof.arrived:
                flaws.append(f"range {proof.file} is missing")
            elif proof.missing_objects:
                some = ", ".join(repr(one.path) for one in proof.missing[:SAMPLE])
                flaws.append(f"{proof.missing_objects:,} objects are missing, such as those of {some}")
        found += [f"{name}: {flaw}" for flaw in flaws]
        known = known if flaws else wanted
    return found


def is_stalled(mirror: MirrorRecord, wait: Wait, now: int) -> bool:
    """Whether nothing has arrived for longer than the mirror's stall timeout."""
    return now - wait.progressed >= mirror.stall_timeout
