"""Mark: find what no live commit, staged row or upload needs, and write it down. Deletes nothing.

The order of the steps makes it safe:

1. The store is listed. Objects younger than the grace period are left out for good.
2. Commits expire (``plan``). From then on no transition may rest on an expired commit.
3. The roots are read: the commits that are live now, staged rows, uploads in flight. A listed object that no root needs
   is garbage. Nothing can refer to it later: attempts that wrote it began before the cutoff and are refused, a link of
   an old object looks into this mark first, and a restored commit ends the mark.

A dry run is the same with nothing written: it plans, and takes as live what would be.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.catalog.records import Roots
from lakeops.model.clock import unix_seconds
from lakeops.model.errors import (
    MarkRefused,
    PreconditionFailed,
)
from lakeops.model.marks import Mark, MarkState
from lakeops.ops.context import Context
from lakeops.ops.gc.files import MARK_FILES, Findings, MarkWriter, begun_key, mark_key, write_report
from lakeops.ops.gc.plan import Held, MarkDecision, carry_out, list_store, make_plan
from lakeops.ops.gc.unreferenced import distinct_ranges, unreferenced
from lakeops.ops.mirror.failover import prove
from lakeops.ops.owner import check_owner, take_turn
from lakeops.ranges.metarange import Metarange
from lakeops.store import layout

AHEAD = timedelta(hours=1)
"""How much the database's clock may be ahead of the store's."""

_COMPACT = 1_000_000
"""Names of range files after which those that repeat are dropped."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a mark would do now.

    Attributes:
        decided: what would become of the commits.
        rows: how many files it would hold.
        report: the report that it would write.
    """

    decided: MarkDecision
    rows: int
    report: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The result for programs: the report."""
        return self.report


def mark(ctx: Context) -> Mark:
    """A new mark of the repository, ready to be swept.

    Raises:
        PreconditionFailed: ``read_only_repository``: the repository is a mirror. Its source collects, and deletions
            are replicated.
        PreconditionFailed: ``not_the_owner``: another catalog may delete in the namespace. `lakeops repo adopt` takes
            it over.
        MarkRefused: the database's clock was set back or is ahead of the store's, the run took too long, or the mark
            was restored meanwhile.
        Corrupted, ObjectNotFound: metadata of a live commit is damaged. Run ``lakeops fsck``.
    """
    _check_writable(ctx)
    take_turn(ctx)
    prove(ctx)  # what is left unproved is given up by ``begin_mark``
    now = ctx.catalog.now()
    mark_id = layout.attempt(now, ctx.ids)
    if ctx.catalog.marks.has_own_clock or (ctx.store.remote and ctx.catalog.marks.has_real_clock):
        _check_clocks(ctx, mark_id, now)
    with tempfile.TemporaryDirectory(prefix="lakeops-gc-") as name:
        cutoff = now - ctx.catalog.retention.grace(ctx.repository_id).at(now)
        held = list_store(ctx, ctx.store, cutoff, Path(name))
        begun, since = ctx.catalog.marks.begin_mark(ctx.repository_id, mark_id, cutoff=cutoff)
        decided = carry_out(ctx, begun, since, unix_seconds(now))
        roots = ctx.catalog.retention.roots(ctx.repository_id)
        findings = Findings(begun, now - cutoff, held, decided, roots)
        writer = _written(ctx, held, roots, Path(name), findings)
        with writer.file.open("rb") as data:
            ctx.store.put(mark_key(mark_id), data)
        write_report(ctx, mark_id, findings.to_json(ctx, writer.rows))
        check_owner(ctx)
        return ctx.catalog.marks.finish_mark(
            ctx.repository_id,
            mark_id,
            digest=writer.digest(),
            rows=writer.rows,
            objects=findings.objects.count,
            size_bytes=findings.objects.size_bytes,
            listed=held.listed.count,
        )


def dry_run(ctx: Context) -> DryRun:
    """What a mark would do and hold if it were made now. Changes nothing. Raises what ``mark`` raises."""
    _check_writable(ctx)
    check_owner(ctx)
    if ctx.catalog.mirrors.unproved(ctx.repository_id):
        raise MarkRefused(
            "nobody has looked at the commits from before the fail-over, so what they need is not known; run "
            "`lakeops mirror prove` first (a mark that is no dry run does it by itself)"
        )
    now = ctx.catalog.now()
    grace = ctx.catalog.retention.grace(ctx.repository_id).at(now)
    foretold = Mark("", MarkState.MARKING, now, now - grace)
    with tempfile.TemporaryDirectory(prefix="lakeops-gc-") as name:
        held = list_store(ctx, ctx.store, foretold.cutoff, Path(name))
        decided = make_plan(ctx, unix_seconds(now)).foretold()
        roots = _foretold_roots(ctx, decided)
        findings = Findings(foretold, grace, held, decided, roots)
        rows = _written(ctx, held, roots, Path(name), findings).rows
        return DryRun(decided, rows, findings.to_json(ctx, rows))


def _foretold_roots(ctx: Context, decided: MarkDecision) -> Roots:
    """The roots as they are once commits have expired and live again."""
    roots = ctx.catalog.retention.roots(ctx.repository_id)
    live = [commit for commit in roots.commits if commit.id not in decided.expired]
    again = ctx.catalog.commits.get_many(ctx.repository_id, decided.revived)
    return replace(roots, commits=[*live, *again.values()])


def _check_writable(ctx: Context) -> None:
    if ctx.catalog.repositories.get(ctx.repository_id).read_only:
        raise PreconditionFailed(
            f"repository {ctx.repository_id!r} is read-only: garbage collection runs at a mirror's source alone",
            kind="read_only_repository",
        )


def _written(ctx: Context, held: Held, roots: Roots, folder: Path, findings: Findings) -> MarkWriter:
    """The list of what nothing refers to, in a local file."""
    with MarkWriter(folder / "mark.parquet") as writer:
        _find(ctx, held, roots, writer, findings)
    return writer


def _check_clocks(ctx: Context, mark_id: str, now: datetime) -> None:
    """Refuse to go by a database clock that is far ahead of the store's: everything would look old at once."""
    key = begun_key(mark_id)
    ctx.store.put(key, b"")
    ahead = unix_seconds(now) - ctx.store.head(key).mtime
    if ahead > AHEAD.total_seconds():
        ctx.store.delete([key])
        raise MarkRefused(
            f"the database's clock says {now:%Y-%m-%d %H:%M} UTC, {timedelta(seconds=ahead)} ahead of the store's: "
            "one of them is wrong; nothing is expired or deleted until they agree"
        )


def _find(ctx: Context, held: Held, roots: Roots, writer: MarkWriter, findings: Findings) -> None:
    """Write down what nothing refers to: metadata files first, then objects, each sorted by address."""
    used = _MetadataFiles()
    ranges = distinct_ranges(used.watching(_metaranges(ctx, roots, used)))
    for kind, needed in _needed_files(ctx, used):
        files = held.old(kind)
        names = files["physical_address"]
        files = files.filter(pc.invert(pc.is_in(names, needed))).sort_by("physical_address")
        writer.add(kind, files)
        findings.add(kind, files)
    with unreferenced(
        ctx.store,
        held.batches,
        ranges,
        engine=ctx.engine,
        addresses=[roots.staged["physical_address"]],
        prefixes=[address for address, _ in roots.uploads.values()],
        on_progress=lambda done, total: ctx.progress("reading ranges", done, total),
    ) as found:
        findings.referenced = found.kept
        for table in found.batches():
            writer.add("object", table)
            findings.add("object", table)


def _needed_files(ctx: Context, used: _MetadataFiles) -> Iterator[tuple[str, pa.Array]]:
    """The metadata files that stay, by kind, in the order of their keys."""
    marks = [
        key(mark.id) for mark in ctx.catalog.marks.on_record(ctx.repository_id, lasting=True) for key in MARK_FILES
    ]
    nothing = pa.array([], pa.string())
    yield "metarange", pa.array(sorted(used.metaranges), pa.string())
    yield "probe", nothing
    yield "range", used.ranges()
    yield "mark", pa.array(marks, pa.string())
    yield "task", nothing


def _metaranges(ctx: Context, roots: Roots, used: _MetadataFiles) -> Iterator[Metarange]:
    """The metaranges of all live commits, each file once, neighbours in history beside each other."""
    commits = sorted(roots.commits, key=lambda commit: (commit.generation, commit.id))
    once = {commit.meta_range_file: commit for commit in commits if commit.meta_range_file}
    used.metaranges.update(layout.metarange_key(file) for file in once)
    for done, metarange in enumerate(ctx.reader.ahead(ctx.reader.metarange, once.values()), 1):
        ctx.progress("reading metaranges", done, len(once))
        yield metarange


@dataclass
class _MetadataFiles:
    """The metadata files that live commits need. One range may lie in several files, and all of them are needed."""

    metaranges: set[str] = field(default_factory=set)
    _names: list[pa.ChunkedArray] = field(default_factory=list)
    _count: int = 0

    def watching(self, metaranges: Iterable[Metarange]) -> Iterator[Metarange]:
        """Yield the metaranges and note their files. Each costs only what differs from the one before."""
        last = Metarange.empty().table["file"]
        for metarange in metaranges:
            names = metarange.table["file"]
            fresh = names.filter(pc.invert(pc.is_in(names, last.combine_chunks())))
            self._names.append(fresh)
            self._count += len(fresh)
            if self._count > _COMPACT:
                self._names, self._count = [pa.chunked_array([self._unique()])], 0
            last = names
            yield metarange

    def ranges(self) -> pa.Array:
        """The keys of the range files."""
        return pc.binary_join_element_wise(layout.RANGES, self._unique(), "")

    def _unique(self) -> pa.Array:
        chunks = [chunk for names in self._names for chunk in names.chunks]
        return pa.chunked_array(chunks, pa.string()).unique()
