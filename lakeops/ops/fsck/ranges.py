"""Ranges, each verified once on the engine however many commits share it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakeops.catalog.audit import CatalogSnapshot
from lakeops.engine.base import Engine
from lakeops.model.errors import Corrupted, FileMissing, LakeopsError
from lakeops.model.records import Split
from lakeops.model.sanitising import excerpt
from lakeops.ops.fsck.findings import Finding, found
from lakeops.ops.gc.unreferenced import Slices
from lakeops.ranges.chunker import path_hashes
from lakeops.ranges.metarange import EMPTY_METARANGE_ID, METARANGE_SCHEMA, Metarange, RangeRow, fixed_bytes, ranges_for
from lakeops.ranges.read import RangeReader
from lakeops.ranges.validation import Flaw, VerifiedRange, VerifyTask, list_flaw, order_flaw, row_flaw, verify
from lakeops.store.base import ObjectStore
from lakeops.store.layout import metarange_key

Numbers = npt.NDArray[np.int32]

_DIGESTS = ("id", "file_digest")
_TEXTS = ("file", "first_path", "last_path")
_NUMBERS = ("count", "bytes", "file_bytes")


@dataclass(frozen=True)
class Pointed:
    """A metarange file as commits point to it, and these commits."""

    meta_range_id: str
    meta_range_file: str
    meta_range_digest: str
    commits: list[str] = field(default_factory=list, compare=False)

    @property
    def where(self) -> str:
        """The file, or the commit when it names none."""
        if self.meta_range_file:
            return metarange_key(self.meta_range_file)
        return f"commit {self.commits[0]}"

    def flaw(self) -> str | None:
        """The reason why this is no pointer to a metarange file. None when it may be one."""
        if not self.meta_range_file:
            is_empty = self.meta_range_id == EMPTY_METARANGE_ID
            return None if is_empty else "the commit holds objects, but names no metarange file"
        if not self.meta_range_file.startswith(f"{self.meta_range_id}-") or "/" in self.meta_range_file:
            return f"{excerpt(self.meta_range_file)} is not a file of metarange {self.meta_range_id[:16]}"
        try:
            digest = bytes.fromhex(self.meta_range_digest)
        except ValueError:
            digest = b""
        return None if len(digest) == 32 else f"{excerpt(self.meta_range_digest)} is not a SHA-256"


class Uses:
    """The different ranges of some metaranges, and where each is used."""

    def __init__(self) -> None:
        self.inner: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)
        """For each range whether it is followed by another somewhere, so that it must end at a cut."""
        self.files: set[str] = set()
        """Files of ranges and of leaves."""
        self._numbers: dict[bytes, int] = {}
        self.tables: list[pa.Table] = []
        """The different ranges: ``METARANGE_SCHEMA``."""
        self._members: list[tuple[list[str], Numbers]] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, metarange: Metarange, commits: list[str]) -> None:
        """Add the ranges of a metarange that these commits have."""
        table = metarange.table
        self.files.update(metarange.leaf_files, table["file"].to_pylist())
        known = len(self._numbers)
        numbers = [self._numbers.setdefault(key, len(self._numbers)) for key in _keys(table)]
        members = np.array(numbers, np.int32)
        fresh, firsts = np.unique(members, return_index=True)
        self.tables.append(table.take(pa.array(firsts[fresh >= known])))
        self._members.append((commits, members))
        self.inner = np.concatenate([self.inner, np.zeros(len(self._numbers) - known, np.bool_)])
        self.inner[members[:-1]] = True

    def rows(self) -> Iterator[tuple[int, RangeRow]]:
        """The different ranges with their numbers, each once, by their first paths: neighbours share objects."""
        whole = pa.concat_tables([METARANGE_SCHEMA.empty_table(), *self.tables])
        order = pc.sort_indices(whole["first_path"])
        for start in range(0, len(order), 1024):
            numbers = order.slice(start, 1024)
            yield from zip(numbers.to_pylist(), Metarange(whole.take(numbers)).rows(0, len(numbers)), strict=True)

    def commits(self, number: int) -> list[str]:
        """The commits that use a range."""
        return [commit for commits, members in self._members if (members == number).any() for commit in commits]


def pointers(records: CatalogSnapshot) -> list[Pointed]:
    """The different metaranges of all live commits, each with its commits. In the order of generations.

    Of a mirror's commits those that its refs show must be whole.
    """
    live = [commit for commit in records.commits.values() if not commit.expired]
    if records.follows:
        shown = {branch.commit_id for branch in records.branches} | {tag.commit_id for tag in records.tags}
        live = [commit for commit in live if commit.id in shown]
    known: dict[Pointed, Pointed] = {}
    for commit in sorted(live, key=lambda commit: (commit.generation, commit.id)):
        pointed = Pointed(commit.meta_range_id, commit.meta_range_file, commit.meta_range_digest)
        known.setdefault(pointed, pointed).commits.append(commit.id)
    return list(known)


def check_metaranges(
    reader: RangeReader,
    wanted: list[Pointed],
    uses: Uses,
    *,
    live: Callable[[Sequence[str]], Sequence[str]],
    on_progress: Callable[[int], None],
) -> Iterator[Finding]:
    """Check these metaranges. ``uses`` takes in the ranges of those that can be read.

    ``live`` says which of some commits are live by now. ``on_progress`` is told how many were looked at.
    """
    sound = []
    for pointed in wanted:
        flaw = pointed.flaw()
        if flaw is None:
            sound.append(pointed)
        else:
            yield found("metarange_pointer_invalid", pointed.where, flaw, commits=pointed.commits)
    by_id = {pointed.meta_range_id: pointed for pointed in sound}

    def load(pointed: Pointed) -> tuple[Pointed, Metarange | LakeopsError]:
        try:
            return pointed, reader.whole(pointed, ordered=False)
        except LakeopsError as error:
            return pointed, error

    for done, (pointed, loaded) in enumerate(reader.ahead(load, sound), 1):
        if isinstance(loaded, Metarange):
            flawed = order_flaw(loaded) or _list_flaw(reader, loaded, by_id)
            if flawed is not None:
                yield found(flawed.kind, pointed.where, flawed.message, commits=pointed.commits)
            uses.add(loaded, pointed.commits)
        else:
            commits: Sequence[str] = pointed.commits
            kind, why = "metarange_unreadable", f"the file cannot be read: {loaded.message}"
            if isinstance(loaded, FileMissing):
                kind, commits = "metarange_missing", live(pointed.commits)
                why = "the file is not there" if pointed.where in loaded.message else loaded.message
            elif isinstance(loaded, Corrupted):
                kind, why = "metarange_damaged", f"the file is not what was written: {loaded.message}"
            if commits:
                yield found(kind, pointed.where, why, commits=commits)
        on_progress(done)


def _list_flaw(reader: RangeReader, metarange: Metarange, by_id: Mapping[str, Pointed]) -> Flaw | None:
    """Check a metarange's list of changes, where the commit that it is about is there as well."""
    since = by_id.get(metarange.delta.since) if metarange.delta is not None else None
    if since is None:
        return None
    try:
        return list_flaw(reader, metarange, reader.metarange(since))
    except LakeopsError:
        return None  # A range or the other metarange cannot be read, and is a finding of its own.


def _keys(table: pa.Table) -> list[bytes]:
    """Equal bytes for equal rows: the digests, and a hash or number for all else that a row says of its file."""
    if not table.num_rows:
        return []
    described = np.empty((table.num_rows, len(_TEXTS) + len(_NUMBERS)), np.uint64)
    for column, name in enumerate(_TEXTS):
        described[:, column] = path_hashes(table[name])
    for column, name in enumerate(_NUMBERS, len(_TEXTS)):
        described[:, column] = table[name].to_numpy().view(np.uint64)
    parts = [np.frombuffer(fixed_bytes(table[name].combine_chunks()), np.uint8).reshape(-1, 32) for name in _DIGESTS]
    whole = np.concatenate([*parts, described.view(np.uint8).reshape(table.num_rows, -1)], axis=1)
    data, width = whole.tobytes(), whole.shape[1]
    return [data[at : at + width] for at in range(0, len(data), width)]


_MOST_IN_A_TASK = 500_000
_MOST_WITH_COLUMNS = 100_000
"""Objects in the ranges of a task, and where its result holds columns of all their rows."""

OPEN = Flaw("range_boundary", "the cutting rule does not end it here, and another range follows it")


CheckedRange: TypeAlias = tuple[int, RangeRow, VerifiedRange]
"""A range of the repository: its number among ``Uses``, its row, and what was found."""


def check_ranges(
    engine: Engine,
    store: ObjectStore,
    uses: Uses,
    split: Split | None,
    columns: tuple[str, ...],
    slices: Slices,
) -> Iterator[CheckedRange]:
    """Every range of ``uses``, in any order, each once. ``slices`` take in the references of their rows."""
    numbered = uses.rows()
    waiting: list[list[tuple[int, RangeRow]]] = []
    spoilt: list[CheckedRange] = []
    size = min(engine.group(len(uses)), ranges_for(_MOST_WITH_COLUMNS if columns else _MOST_IN_A_TASK, uses.tables))

    def tasks() -> Iterator[VerifyTask]:
        while some := list(islice(numbered, size)):
            usable = []
            for number, row in some:
                flaw = row_flaw(row)
                if flaw is None:
                    usable.append((number, row))
                else:
                    spoilt.append((number, row, VerifiedRange((flaw,))))
            if usable:
                waiting.append(usable)
                yield VerifyTask(tuple(row for _, row in usable), split, columns)

    for task, (ranges, cut) in engine.run(partial(verify, keep=slices.cutter.cut), tasks(), store):
        slices.references += cut
        for (number, row), verified in zip(waiting[task], ranges, strict=True):
            open_inside = not verified.closed and uses.inner[number]
            yield number, row, replace(verified, flaws=(*verified.flaws, OPEN)) if open_inside else verified
        waiting[task].clear()
        yield from spoilt
        spoilt.clear()
    yield from spoilt
