"""Mark: find what no live commit, staged row or upload needs, and write it down. Deletes nothing.

The order is the safety. First the store is listed; what is younger than the grace period then is left out for good.
Then one transaction expires commits, and from it on no transition rests on an expired one. Then the roots are read:
the commits that are live now, staged rows, uploads in flight. What was listed and is not referred to is garbage, and
nothing can come to refer to it any more: attempts that wrote it are past their deadline, and old objects are linked
only after looking into this mark.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.catalog.base import History, Roots
from lakeops.engine.unreferenced import distinct_ranges, unreferenced
from lakeops.model.clock import unix_seconds
from lakeops.model.errors import MarkRefused, ReadOnlyRepository
from lakeops.model.marks import Mark
from lakeops.model.retention import Kept, live
from lakeops.model.rules import read_rules
from lakeops.ops.context import Context
from lakeops.ops.gc.files import MARK_FILES, MarkWriter, begun_key, mark_key, write_report
from lakeops.ops.gc.listing import Held, list_store
from lakeops.ops.gc.report import Findings
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.prefetch import prefetched
from lakeops.store import layout

AHEAD = timedelta(hours=1)
"""How far the database's clock may be ahead of the store's."""

_COMPACT = 1_000_000
"""Names of range files after which those that repeat are dropped."""


def mark(ctx: Context) -> Mark:
    """A new mark of the repository, ready to be swept.

    Raises:
        ReadOnlyRepository: the repository is a mirror; its source collects, and deletions are replicated.
        MarkRefused: the database's clock was set back or is ahead of the store's, or the run took too long.
        Corrupted, ObjectNotFound: metadata of a live commit is damaged; run ``lakeops fsck``.
    """
    if ctx.catalog.repository(ctx.repository_id).read_only:
        raise ReadOnlyRepository(
            f"repository {ctx.repository_id!r} is read-only: garbage collection runs at a mirror's source alone"
        )
    now = ctx.catalog.now()
    mark_id = layout.attempt(now, ctx.ids)
    if ctx.catalog.has_own_clock:
        _check_clocks(ctx, mark_id, now)
    with tempfile.TemporaryDirectory(prefix="lakeops-gc-") as name:
        held = list_store(ctx, ctx.store, now - ctx.catalog.grace, Path(name))
        decision = Decision(unix_seconds(now))
        begun, gone = ctx.catalog.begin_mark(
            ctx.repository_id, mark_id, cutoff=now - ctx.catalog.grace, expiring=decision
        )
        roots = ctx.catalog.roots(ctx.repository_id)
        findings = Findings(begun, held, decision.kept, len(gone), roots)
        with MarkWriter(Path(name) / "mark.parquet") as writer:
            _find(ctx, held, roots, writer, findings)
        digest = writer.digest()
        with writer.file.open("rb") as data:
            ctx.store.put(mark_key(mark_id), data)
        write_report(ctx, mark_id, findings.to_json(ctx, writer.rows))
        return ctx.catalog.finish_mark(
            ctx.repository_id,
            mark_id,
            digest=digest,
            rows=writer.rows,
            objects=findings.objects.count,
            size_bytes=findings.objects.size_bytes,
            listed=held.listed.count,
        )


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


class Decision:
    """Which commits to expire; asked inside the transaction, it remembers why the others live."""

    def __init__(self, now: int) -> None:
        self._now = now
        self.kept: dict[str, Kept] = {}

    def __call__(self, history: History) -> Iterable[str]:
        """The commits that the rules keep no longer."""
        rules = None if history.rules is None else read_rules(history.rules)
        self.kept = live(history, rules, self._now)
        return history.commits.keys() - self.kept.keys()


def _find(ctx: Context, held: Held, roots: Roots, writer: MarkWriter, findings: Findings) -> None:
    """Write down what nothing refers to: metadata files first, then objects, each sorted by address."""
    used = _Files()
    ranges = distinct_ranges(used.watching(_metaranges(ctx, roots, used)))
    for kind, needed in _needed(ctx, used):
        files = held.old(kind)
        names = files["physical_address"]
        files = files.filter(pc.invert(pc.is_in(names, needed))).sort_by("physical_address")
        writer.add(kind, files)
        findings.add(kind, files)
    with unreferenced(
        ctx.store,
        held.batches(),
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


def _needed(ctx: Context, used: _Files) -> Iterator[tuple[str, pa.Array]]:
    """The metadata files that stay, by kind, in the order of their keys."""
    marks = [key(mark.id) for mark in ctx.catalog.marks(ctx.repository_id) for key in MARK_FILES]
    nothing = pa.array([], pa.string())
    yield "metarange", pa.array(sorted(used.metaranges), pa.string())
    yield "probe", nothing
    yield "range", used.ranges()
    yield "mark", pa.array(marks, pa.string())
    yield "task", nothing


def _metaranges(ctx: Context, roots: Roots, used: _Files) -> Iterator[Metarange]:
    """The metaranges of all live commits, each file once, neighbours in history beside each other."""
    commits = sorted(roots.commits, key=lambda commit: (commit.generation, commit.id))
    once = {commit.meta_range_file: commit for commit in commits if commit.meta_range_file}
    used.metaranges.update(layout.metarange_key(file) for file in once)
    for done, metarange in enumerate(prefetched(ctx.reader.metarange, once.values()), 1):
        ctx.progress("reading metaranges", done, len(once))
        yield metarange


@dataclass
class _Files:
    """The metadata files that live commits need. One range may lie in several files, and all of them are needed."""

    metaranges: set[str] = field(default_factory=set)
    _names: list[pa.ChunkedArray] = field(default_factory=list)
    _count: int = 0

    def watching(self, metaranges: Iterable[Metarange]) -> Iterator[Metarange]:
        """The same metaranges; notes their files on the way, at the cost of what each differs in from the last."""
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
