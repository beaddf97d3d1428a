"""What a commit changed in the one before it, as a list of rows that its metarange file keeps.

A thousand changes all over a repository are in nearly a thousand ranges. Who compares these ranges to find the changes
again opens each of them twice. So a commit that rewrites many ranges for few changes keeps the rows that it changed,
and a diff or a merge reads those instead. The list is inside the metarange file, so it needs no request of its own, it
is verified with that file, and it comes and goes with it. It is no part of any id, and nothing needs it: without a list
the ranges are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from lakeops.model.arrow import RANGE_SCHEMA, in_one, no_rows
from lakeops.ranges.format import Attachment, decode_rows, encode_rows, not_decodable

FEWEST_RANGES = 8
"""Ranges that a commit rewrites: fewer are as quick to compare as a list is to read."""
MOST_CHANGES = 20_000
"""Changes that a list is made of: a list of more would not be kept."""
MOST_OF_RANGE = 100
"""Changes that a list is made of for each range that is rewritten: with more of them ranges are as quick to compare."""
_FREE = 256 << 10
_FREE_OF_RANGE = 128
"""Bytes of a list: every reader of the commit reads them. A range takes about as many in the metarange."""

Rows = tuple[pa.Table, pa.Table]


@dataclass(frozen=True)
class ChangeList:
    """The rows at all paths whose identities differ between two metaranges.

    Attributes:
        since: the id of the metarange that was changed.
        nbytes: what it keeps in memory before anybody looks at its rows.
    """

    since: str
    _load: Callable[[], Rows]
    nbytes: int = 0

    @classmethod
    def of(cls, since: str, before: pa.Table, after: pa.Table) -> ChangeList:
        """The list of these rows: ``RANGE_SCHEMA``, in path order.

        Args:
            since: the id of the metarange that was changed.
            before: the rows that were removed, and those that were replaced.
            after: the rows that were added, and those that replaced others.
        """
        return cls(since, lambda: (before, after))

    @classmethod
    def read(cls, attachment: Attachment, key: str) -> ChangeList:
        """The list that the metarange file ``key`` keeps. Its rows are decoded once they are asked for.

        They raise ``Corrupted`` then if they are not what they should be.
        """
        since, _, count = attachment.note.partition(" ")
        if not count.isdecimal():
            raise not_decodable(key, "its list of changes is not described")
        return cls(since, lambda: _decoded(attachment.data, int(count), key), len(attachment.data))

    @property
    def before(self) -> pa.Table:
        """The rows that were removed or replaced: ``RANGE_SCHEMA``, in path order."""
        return self._rows[0]

    @property
    def after(self) -> pa.Table:
        """The rows that were added or replaced others: ``RANGE_SCHEMA``, in path order."""
        return self._rows[1]

    def made_to(self, since: str) -> ChangeList:
        """A list of these changes, made to the metarange with the id ``since``."""
        return ChangeList(since, lambda: self._rows)

    def undone(self, since: str) -> ChangeList:
        """What leads back, from the metarange with the id ``since``."""
        return ChangeList(since, lambda: (self.after, self.before))

    def only(self, chosen: Callable[[pa.ChunkedArray], pa.Array]) -> ChangeList:
        """What changes at some paths. ``chosen`` says of each path whether it is one of them."""

        def load() -> Rows:
            before, after = (side.filter(chosen(side.column("path"))) for side in self._rows)
            return before, after

        return ChangeList(self.since, load)

    def under(self, prefix: str) -> ChangeList:
        """What changes below a prefix."""
        return self.only(lambda paths: pc.starts_with(paths, prefix)) if prefix else self

    def then(self, other: ChangeList) -> ChangeList:
        """What both change, one after the other. They have no path in common."""
        return ChangeList.of(
            self.since,
            *(pa.concat_tables(sides).sort_by("path") for sides in zip(self._rows, other._rows, strict=True)),
        )

    def attachment(self, ranges: int) -> Attachment | None:
        """How a metarange of so many ranges keeps it. None where it would take too much there."""
        if self.before.num_rows + self.after.num_rows > 2 * MOST_CHANGES:
            return None
        data = encode_rows(pa.concat_tables(self._rows))
        if len(data) > _FREE + _FREE_OF_RANGE * ranges:
            return None
        return Attachment(f"{self.since} {self.before.num_rows}", data)

    @cached_property
    def _rows(self) -> Rows:
        before, after = self._load()
        return before.combine_chunks(), after.combine_chunks()


def nothing_since(since: str) -> ChangeList:
    """The list of no changes."""
    return ChangeList.of(since, no_rows(RANGE_SCHEMA), no_rows(RANGE_SCHEMA))


def _decoded(data: bytes, count: int, key: str) -> Rows:
    rows = decode_rows(data, key)
    before, after = rows.slice(0, count), rows.slice(count)
    for side in (before, after):
        paths = in_one(side.column("path"))
        if pc.any(pc.greater_equal(paths[:-1], paths[1:])).as_py():
            raise not_decodable(key, "its list of changes is out of order")
    return before, after
