"""Mark: find what no live commit, staged row or upload needs, and write it down. Deletes nothing.

The order of the steps makes it safe:

1. The store is listed. Objects younger than the grace period are left out for good.
2. Commits expire (``plan``). From then on no transition may rest on an expired commit.
3. The roots are read: the commits that are live now, staged rows, uploads in flight. A listed object that no root needs
   is garbage. Nothing can refer to it later: attempts that wrote it began before the cutoff and are refused, a link of
   an old object looks into this mark first, and a restored commit ends the mark.

A dry run writes nothing: it plans, and takes as live what would be.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.catalog.retention import Roots
from lakeops.engine.base import Engine
from lakeops.model.clock import unix_seconds
from lakeops.model.errors import MarkRefused, PreconditionFailed
from lakeops.model.marks import Mark, MarkState
from lakeops.model.retention import DAY, counted
from lakeops.ops.context import Context
from lakeops.ops.gc.files import BEGUN, MARK_FILES, VERSIONED, MarkWriter, digest, mark_key, write_report
from lakeops.ops.gc.plan import MarkDecision, expire_commits, make_plan
from lakeops.ops.gc.unreferenced import Scratch, StoreListing, distinct_ranges, list_store, scratching, unreferenced
from lakeops.ops.owner import check_owner, renew_lease
from lakeops.ranges.metarange import Metarange
from lakeops.store import layout

AHEAD = timedelta(hours=1)
"""How much the database's clock may be ahead of the store's."""

AGES = (2, 7, 30, 90, 365)
"""Borders between the ages of objects, in days."""

PREFIXES = 100
"""How many prefixes are shown, the largest first."""

SILENT_DAYS = 7
"""After so many days without a report, a mirror that commits are kept for is named in the notes."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """A mark that was not made: what it would do to commits, how many files it would hold, and its report."""

    decided: MarkDecision
    rows: int
    report: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The report, for programs."""
        return self.report


def mark(ctx: Context) -> Mark:
    """Make a mark of the repository, ready to be swept: see ``GarbageCollection.mark``."""
    _check_writable(ctx)
    renew_lease(ctx)
    if ctx.catalog.mirrors.unproved(ctx.repository_id):
        from lakeops.ops.mirror.failover import verify_history  # needed once, after a fail-over

        verify_history(ctx)  # what is left unproved is given up by ``begin_mark``
    now = ctx.catalog.now()
    mark_id = layout.attempt(now, ctx.ids)
    _check_clocks(ctx, mark_id, now)
    with scratching(ctx.store) as scratch:
        # 1. List.
        grace = ctx.catalog.retention.grace(ctx.repository_id).at(now)
        listing = StoreListing(now - grace)
        engine = list_store(ctx.store, listing, ctx.engine(), scratch, lambda done: ctx.progress("listing", done, 0))
        # 2. Expire commits.
        begun, since = ctx.catalog.marks.begin_mark(ctx.repository_id, mark_id, cutoff=now - grace)
        decided = expire_commits(ctx, begun, since, unix_seconds(now))
        # 3. Read the roots, and write down what none of them needs.
        roots = ctx.catalog.retention.roots(ctx.repository_id)
        with MarkWriter(scratch.folder / "mark.parquet") as found:
            referenced = _find_garbage(ctx, listing, roots, found, scratch, engine)
        with found.file.open("rb") as data:
            ctx.store.put(mark_key(mark_id), data)
        write_report(ctx, mark_id, _report(ctx, begun, grace, listing, decided, roots, found, referenced))
        check_owner(ctx)
        return ctx.catalog.marks.finish_mark(
            ctx.repository_id,
            mark_id,
            digest=digest(found.file),
            rows=found.rows,
            objects=found.kinds["object"].count,
            size_bytes=found.kinds["object"].size_bytes,
            listed=listing.listed.count,
        )


def dry_run(ctx: Context) -> DryRun:
    """Say what a mark would do and hold if it were made now. Changes nothing.

    Raises what ``mark`` raises, with two exceptions. A repository that was restored from a dump may be looked at before
    it is accepted. The store's clock is not read, because that takes a new file.
    """
    _check_writable(ctx)
    check_owner(ctx)
    proved = set[str]()
    if unproved := ctx.catalog.mirrors.unproved(ctx.repository_id):
        from lakeops.ops.mirror.failover import complete  # as in ``mark``

        proved.update(*complete(ctx, unproved))
    now = ctx.catalog.marks.read_clock()
    grace = ctx.catalog.retention.grace(ctx.repository_id).at(now)
    planned = Mark("", MarkState.MARKING, now, now - grace)
    with scratching(ctx.store) as scratch:
        listing = StoreListing(planned.cutoff)
        engine = list_store(ctx.store, listing, ctx.engine(), scratch, lambda done: ctx.progress("listing", done, 0))
        decided = make_plan(ctx, unix_seconds(now), proved).decided
        roots = ctx.catalog.retention.roots(ctx.repository_id)
        live = [commit for commit in roots.commits if commit.id not in decided.expired]
        live += ctx.catalog.commits.get_many(
            ctx.repository_id, decided.revived | (proved & decided.kept.keys())
        ).values()
        roots = replace(roots, commits=live)
        with MarkWriter(scratch.folder / "mark.parquet") as found:
            referenced = _find_garbage(ctx, listing, roots, found, scratch, engine)
        report = _report(ctx, planned, grace, listing, decided, roots, found, referenced)
        return DryRun(decided, found.rows, report)


def _check_writable(ctx: Context) -> None:
    if ctx.catalog.repositories.get(ctx.repository_id).read_only:
        raise PreconditionFailed(
            f"repository {ctx.repository_id!r} is read-only: a mirror is collected at its source, others once writable",
            kind="read_only_repository",
        )


def _check_clocks(ctx: Context, mark_id: str, now: datetime) -> None:
    """Refuse to go by a database clock that is far ahead of the store's: everything would look old at once."""
    if not ctx.catalog.marks.has_real_clock(remote=ctx.store.remote):
        return
    key = mark_key(mark_id, BEGUN)
    ctx.store.put(key, b"")
    ahead = unix_seconds(now) - ctx.store.head(key).mtime
    if ahead > AHEAD.total_seconds():
        ctx.store.delete([key])
        raise MarkRefused(
            f"the database's clock says {now:%Y-%m-%d %H:%M} UTC, {timedelta(seconds=ahead)} ahead of the store's: "
            "one of them is wrong; nothing is expired or deleted until they agree"
        )


def _find_garbage(
    ctx: Context, listing: StoreListing, roots: Roots, found: MarkWriter, scratch: Scratch, engine: Engine
) -> int:
    """Write the files that no root needs to ``found``. Returns how many of the old objects are still needed."""
    commits = sorted(roots.commits, key=lambda commit: (commit.generation, commit.id))
    metaranges = {commit.meta_range_file: commit for commit in commits if commit.meta_range_file}
    leaves = set[str]()

    def read() -> Iterator[Metarange]:
        for done, metarange in enumerate(ctx.reader.ahead(ctx.reader.metarange, metaranges.values()), 1):
            ctx.progress("reading metaranges", done, len(metaranges))
            leaves.update(metarange.leaf_files)
            yield metarange

    ranges = distinct_ranges(read())
    marks = ctx.catalog.marks.on_record(ctx.repository_id, lasting=True)
    needed = {
        "metarange": pa.array(sorted(map(layout.metarange_key, metaranges)), pa.string()),
        "probe": pa.array([], pa.string()),
        "range": pa.array([*map(layout.range_key, [*leaves, *ranges["file"].to_pylist()])], pa.string()),
        "mark": pa.array([mark_key(one.id, name) for one in marks for name in MARK_FILES], pa.string()),
        "task": pa.array([], pa.string()),
    }
    for kind, names in needed.items():
        files = listing.old(kind)
        files = files.filter(pc.invert(pc.is_in(files["physical_address"], names)))
        found.add(kind, files.sort_by("physical_address"))
    garbage = unreferenced(
        scratch,
        listing.chunks,
        ranges,
        engine=engine,
        addresses=[roots.staged["physical_address"]],
        prefixes=[address for address, _ in roots.uploads.values()],
        on_progress=lambda done, total: ctx.progress("reading ranges", done, total),
    )
    for table in garbage.batches():
        found.add("object", table)
    return garbage.kept


def _report(
    ctx: Context,
    mark: Mark,
    grace: timedelta,
    listing: StoreListing,
    decided: MarkDecision,
    roots: Roots,
    found: MarkWriter,
    referenced: int,
) -> dict[str, Any]:
    objects, versions = found.kinds["object"], ctx.store.keeps_versions()
    now = unix_seconds(mark.created)
    registered = ctx.catalog.mirrors.registrations(ctx.repository_id)
    mirrors: list[dict[str, Any]] = [
        {
            "id": mirror.id,
            "last_report": mirror.at,
            "silent_days": max(0, now - mirror.at) // DAY,
            "commits": len(mirror.commits),
            "only_for_it": len(decided.only_for_mirrors.get(mirror.id, ())),
        }
        for mirror in sorted(registered, key=lambda mirror: (mirror.at, mirror.id))
    ]
    silent = [
        f"mirror {mirror['id']} has not reported for {mirror['silent_days']} days, and {mirror['only_for_it']:,} "
        f"commits are kept for it alone; if it is gone: lakeops mirror drop lakefs://{ctx.repository_id} {mirror['id']}"
        for mirror in mirrors
        if mirror["only_for_it"] and mirror["silent_days"] >= SILENT_DAYS
    ]
    return {
        "mark": mark.to_json(),
        "repository": ctx.repository_id,
        "storage_namespace": ctx.repository.storage_namespace,
        "cutoff": mark.cutoff.isoformat(timespec="seconds"),
        "grace_hours": grace.total_seconds() / 3600,
        "files": found.rows,
        "objects": objects.count,
        "bytes": objects.size_bytes,
        "share": round(objects.count / listing.listed.count, 4) if listing.listed.count else 0.0,
        "metadata": {kind: tally.to_json() for kind, tally in found.kinds.items() if kind != "object"},
        "by_prefix": _by_prefix(found.hours),
        "by_age": _by_age(found.hours, mark.created),
        "sample": {kind: tally.sample for kind, tally in found.kinds.items() if tally.sample},
        "commits": {
            "live": counted(decided.kept.values()),
            "expired_now": len(decided.expired),
            "expired_earlier": len(decided.carried),
            "live_again": len(decided.revived),
        },
        "kept": {
            "referenced": referenced,
            "staged": roots.staged.num_rows,
            "uploads": len(roots.uploads),
            "grace": listing.young.to_json(),
        },
        "listed": listing.listed.to_json(),
        "strays": {**listing.strays.to_json(), "sample": listing.strays.sample},
        "versioned": versions,
        "mirrors": mirrors,
        "notes": [*([VERSIONED] if versions else []), *silent],
    }


def _by_prefix(hours: dict[str, list[int]]) -> list[dict[str, Any]]:
    """Objects and bytes by the day that they were begun on, the largest first; those of small days together."""
    days: dict[str, list[int]] = {}
    for hour, counts in hours.items():
        day = f"data/{hour[:8]}"
        days[day] = [one + more for one, more in zip(days.get(day, (0, 0)), counts, strict=True)]
    largest = sorted(days.items(), key=lambda item: (-item[1][1], item[0]))
    shown = [{"prefix": day, "objects": count, "bytes": size} for day, (count, size) in largest[:PREFIXES]]
    rest = [counts for _, counts in largest[PREFIXES:]]
    if rest:
        count, size = (sum(column) for column in zip(*rest, strict=True))
        shown.append({"prefix": f"{len(rest)} more", "objects": count, "bytes": size})
    return shown


def _by_age(hours: dict[str, list[int]], now: datetime) -> list[dict[str, Any]]:
    """Objects and bytes by how many days ago they were begun."""
    sums = [[0, 0] for _ in range(len(AGES) + 1)]
    for hour, (count, size) in hours.items():
        try:
            begun = datetime.strptime(hour, "%Y%m%d%H").replace(tzinfo=UTC)
        except ValueError:  # ten digits that are no hour: older than anything
            begun = datetime.min.replace(tzinfo=UTC)
        counts = sums[sum((now - begun).days >= border for border in AGES)]
        counts[0] += count
        counts[1] += size
    names = [f"under {AGES[0]} days", *(f"{a} to {b} days" for a, b in itertools.pairwise(AGES))]
    names.append(f"{AGES[-1]} days and more")
    by_name = zip(names, sums, strict=True)
    return [{"age": name, "objects": count, "bytes": size} for name, (count, size) in by_name if count]
