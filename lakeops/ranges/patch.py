"""Rewriting one range by its row groups: those that no change touches keep their bytes.

Row groups end by the rule of ranges, only finer, so an edit re-synchronises at the next row group that both versions
share. Everything after that has the same rows, the same digests and, copied into the new file, the same bytes; only
touched row groups are decoded, hashed and encoded. What comes out equals, row for row and id for id, what the whole
range would be cut into. Where the range itself would end elsewhere, there is no patch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from lakeops.model.records import Split
from lakeops.ranges.changed import Changed, Fresh
from lakeops.ranges.cutter import Cut, Cutter
from lakeops.ranges.digest import group_digest, range_id
from lakeops.ranges.file import RangeFile
from lakeops.ranges.format import VERSION_KEY, RowGroup, decode_footer, encode_range, encode_tail
from lakeops.ranges.metarange import RangeRow
from lakeops.ranges.outline import MARK, GroupOutline, NotOutlined, Outline, outline, remember
from lakeops.ranges.split import VERSION, Positions, finer, path_hashes, possible_ends

Origin: TypeAlias = int | pa.Table
"""A row group of the new range: the number of one that is kept, or the rows of one that is not."""


@dataclass(frozen=True)
class Patch:
    """A whole range, some of whose row groups are those of a file.

    Attributes:
        file: the range as it was.
        parts: the row groups, in order.
        row: what the metarange will say. What tells of the new file is empty.
        fresh: those of them that are new, encoded, where ``encoded_together`` has done that.
    """

    file: RangeFile
    parts: tuple[Origin, ...]
    digests: tuple[bytes, ...]
    row: RangeRow
    fresh: tuple[_Group, ...] | None = None

    @property
    def new(self) -> list[tuple[pa.Table, bytes]]:
        """The rows of each new row group, and their digest."""
        both = zip(self.parts, self.digests, strict=True)
        return [(part, digest) for part, digest in both if not isinstance(part, int)]

    def described(self) -> RangeRow:
        """The metarange row, not written yet."""
        return self.row

    def encoded(self) -> tuple[bytes, int]:
        """The Parquet bytes of the file, and how many of them at the end are the footer."""
        try:
            return self._grafted()
        except NotOutlined:
            # Another version of the writer made the file.
            tables = [self.file.group(part) if isinstance(part, int) else part for part in self.parts]
            return encode_range(tables, self.digests)

    def _grafted(self) -> tuple[bytes, int]:
        kept = outline(self.file.tail)
        written = iter(_written([self]) if self.fresh is None else self.fresh)
        pieces: list[bytes | memoryview] = [MARK]
        groups: list[GroupOutline] = []
        marks: list[RowGroup] = []
        at = len(MARK)
        for number, part in enumerate(self.parts):
            if isinstance(part, int):
                group = _Group(self.file.raw(part), self.file.marks[part], kept.groups[part], (kept.head, kept.tail))
            else:
                group = next(written)
            if group.around != (kept.head, kept.tail):
                raise NotOutlined("the file was written with other settings")
            pieces.append(group.data)
            groups.append(group.outline.moved(at - group.mark.start, number))
            marks.append(group.mark._replace(start=at))
            at += group.mark.size
        footer = kept.footer(self.row.count, groups, VERSION_KEY.encode(), str(VERSION).encode())
        tail = encode_tail(marks, footer)
        _check(tail, marks, self.row.count)
        remember(tail, Outline(kept.head, tuple(groups), kept.tail))
        return b"".join((*pieces, tail)), len(tail)


@dataclass(frozen=True)
class _Group:
    """A row group as a file has it: its bytes, where they are, its description and what the footer has around it."""

    data: memoryview
    mark: RowGroup
    outline: GroupOutline
    around: tuple[bytes, bytes]


def patched(changed: Changed, split: Split, *, last: bool) -> Patch | None:
    """A range with changes laid over it. None where it is as well rewritten as a whole.

    Args:
        changed: a range that begins after a cut and ends with one, or the repository's last.
        split: the repository's split.
        last: whether nothing follows in the repository.
    """
    if changed.file is None:
        return None
    patching = _Patching(changed, changed.file, split)
    patching.run()
    return patching.patch() if patching.is_one_range(last=last) else None


class _Patching:
    """A range on its way, row group by row group."""

    def __init__(self, changed: Changed, file: RangeFile, split: Split) -> None:
        self._changed = changed
        self._file = file
        self._split = split
        self._cutter = Cutter(finer(split))
        self._parts: list[Origin] = []
        self._digests: list[bytes] = []
        self._ends: dict[int, Positions] = {}
        self._known = {mark.digest: index for index, mark in enumerate(file.marks)}

    def run(self) -> None:
        """Go through the row groups."""
        for part in self._changed.parts:
            if isinstance(part, Fresh):
                cuts = self._cutter.add(*part)
            elif self._cutter.open:
                cuts = self._cutter.add(self._file.group(part.number))
            else:
                self._keep(part.number)
                continue
            for cut in cuts:
                self._add(cut)
        if self._cutter.open:
            self._add(self._cutter.rest())

    def _keep(self, index: int) -> None:
        self._parts.append(index)
        self._digests.append(self._file.marks[index].digest)

    def _add(self, cut: Cut) -> None:
        """A row group that came about. The file may have one of these very rows, where changes changed nothing."""
        # Also of one that the file has: what was its last row group may be followed by others now.
        self._ends[len(self._parts)] = possible_ends(cut.hashes, self._split)
        digest = group_digest(cut.table.column("digest"))
        if digest in self._known:
            self._keep(self._known[digest])
            return
        self._parts.append(cut.table.combine_chunks())
        self._digests.append(digest)

    def is_one_range(self, *, last: bool) -> bool:
        """Whether the rows are one range: no cut is due before their end, and one is due there unless nothing follows.

        Rows of row groups that were kept are known not to end a range, but for the last one. Unless rows that were
        put in before them have moved them past the least size of a range.
        """
        ends, count = self._possible_ends(), self._count
        if not 0 < count <= self._split.max_entries or not self._ends_as_before:
            return False
        if np.any((ends >= self._split.min_entries) & (ends < count)):
            return False
        if last or count == self._split.max_entries:
            return True
        closed = count in ends or (isinstance(self._parts[-1], int) and self._file.row.count < self._split.max_entries)
        return closed and count >= self._split.min_entries

    def patch(self) -> Patch:
        """What came together."""
        file, digests = self._file, tuple(self._digests)
        first, last = self._parts[0], self._parts[-1]
        row = RangeRow(
            id=range_id(digests),
            file="",
            first_path=file.first_paths[first].decode() if isinstance(first, int) else first.column("path")[0].as_py(),
            last_path=file.row.last_path if isinstance(last, int) else last.column("path")[-1].as_py(),
            count=self._count,
            size_bytes=file.row.size_bytes + self._changed.grown,
            file_bytes=0,
            footer_bytes=0,
            footer_digest=b"",
        )
        return Patch(file, tuple(self._parts), digests, row)

    @property
    def _ends_as_before(self) -> bool:
        """Whether the last row group is the file's last, or new."""
        return bool(self._parts) and (not isinstance(self._parts[-1], int) or self._parts[-1] == self._file.groups - 1)

    @property
    def _count(self) -> int:
        return sum(self._rows(part) for part in self._parts)

    def _rows(self, part: Origin) -> int:
        return self._file.marks[part].rows if isinstance(part, int) else int(part.num_rows)

    def _possible_ends(self) -> Positions:
        """Where paths let the range end, as far as that is not known from the range as it was."""
        ends, at, least = [np.zeros(0, np.int64)], 0, self._split.min_entries
        for number, part in enumerate(self._parts):
            rows = self._rows(part)
            if number in self._ends:
                ends.append(at + self._ends[number])
            elif isinstance(part, int) and self._file.starts[part] < min(at, least) and at + rows >= least:
                hashes = path_hashes(self._file.group(part, ["path"]).column("path"))
                ends.append(at + possible_ends(hashes, self._split))
            at += rows
        return np.concatenate(ends)


def encoded_together(patches: Sequence[Patch | None], known: Callable[[Patch], bool]) -> list[Patch | None]:
    """The same patches with their new row groups encoded, except of those that are ``known``.

    One writer encodes them all, because each takes as long as some hundreds of rows.
    """
    wanted = [patch for patch in patches if patch is not None and not known(patch)]
    try:
        written = iter(_written(wanted))
    except NotOutlined:
        return list(patches)
    encoded = (replace(patch, fresh=tuple(islice(written, len(patch.new)))) for patch in wanted)
    return [patch if patch is None or known(patch) else next(encoded) for patch in patches]


def _written(patches: Sequence[Patch]) -> list[_Group]:
    """The new row groups of patches, encoded."""
    new = [one for patch in patches for one in patch.new]
    if not new:
        return []
    data, size = encode_range([table for table, _ in new], [digest for _, digest in new])
    tail = data[-size:]
    outlined = outline(tail)
    marks = decode_footer(tail, "new row groups").groups
    around = (outlined.head, outlined.tail)
    return [
        _Group(memoryview(data)[mark.start : mark.end], mark, group, around)
        for mark, group in zip(marks, outlined.groups, strict=True)
    ]


def _check(tail: bytes, marks: list[RowGroup], rows: int) -> None:
    """A footer that was put together says of every row group where it is."""
    footer = decode_footer(tail, "a new range")
    metadata = footer.parse()
    starts = [metadata.row_group(index).column(0).data_page_offset for index in range(metadata.num_row_groups)]
    if metadata.num_rows != rows or footer.groups != tuple(marks) or starts != [mark.start for mark in marks]:
        raise NotOutlined("the new footer does not say where row groups are")
