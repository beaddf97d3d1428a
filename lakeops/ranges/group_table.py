"""The table of row groups: what lies right before Parquet's own footer in a range file.

Parquet's footer says of each row group a hundred things that readers parse before they read a row. Whoever compares
two ranges needs four of them, and whoever reads one row group needs Parquet's description of that one. So the table
says where row groups are, what they hash to and where each begins among the paths, and where Parquet's descriptions
of them lie in the footer: a footer of a few row groups can be put together from those without parsing the others.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from lakeops.ranges.outline import CLOSING, MARK, closed, integer, list_of, metadata_at, sized

_TABLE_MARK: Final = b"lakeops groups 2"
_TRAILER: Final = struct.Struct("<IIIII16s")
_RECORD: Final = struct.Struct("<QIII32s32s")

_GROUP: Final = re.compile(rb"\x19\x9c\x26")
"""How the description of a row group begins: field 1, a list of nine structs whose first field is number 2, an i64."""
_NO_PAIRS: Final = b"\x19" + list_of(0)


class RowGroup(NamedTuple):
    """One row group of a range file.

    Attributes:
        start: where its bytes begin in the file.
        size: how many there are.
        rows: how many rows it has.
        first_path: the path of the first row, UTF-8.
        file_digest: the SHA-256 of the bytes.
        digest: the digest of the rows.
    """

    start: int
    size: int
    rows: int
    first_path: bytes
    file_digest: bytes
    digest: bytes

    @property
    def end(self) -> int:
        """Where its bytes end."""
        return self.start + self.size


class GroupTable(NamedTuple):
    """What a table says: the row groups, and where in Parquet's metadata what is found.

    Attributes:
        groups: the row groups, one after another from the file's mark on.
        rows_at: the place of the number of rows.
        groups_at: where the description of each row group begins, and where the last one ends; empty: unknown.
        rest_at: where what follows the key-value pairs begins.
    """

    groups: tuple[RowGroup, ...]
    rows_at: int
    groups_at: tuple[int, ...]
    rest_at: int

    def footer(self, footer: bytes, wanted: Sequence[int]) -> bytes:
        """Parquet's footer as if the file had only some of its row groups, and no key-value pairs."""
        data = memoryview(footer)[metadata_at(footer) : -CLOSING]
        rows = sum(self.groups[index].rows for index in wanted)
        described = [data[self.groups_at[index] : self.groups_at[index + 1]] for index in wanted]
        # A field's header is 16 times its distance from the field before, plus its type.
        small = b"".join(
            (
                data[: self.rows_at],
                integer(rows),
                b"\x19",
                list_of(len(wanted)),
                *described,
                _NO_PAIRS,
                data[self.rest_at :],
            )
        )
        return closed(small)


def with_table(groups: Sequence[RowGroup], footer: bytes, pair: bytes) -> bytes:
    """The end of a range file: Parquet's footer after the table of these row groups.

    Args:
        groups: the row groups, which follow one another from the file's mark on.
        footer: everything after the last row group as Parquet would have it, with one key-value pair.
        pair: that pair's key.
    """
    begin = metadata_at(footer)
    data = footer[begin:-CLOSING]
    at = [match.start() for match in _GROUP.finditer(data)]
    before = integer(sum(group.rows for group in groups)) + b"\x19" + list_of(len(groups))
    # The list of pairs: field 5, one struct, whose field 1 is text.
    pairs_at = data.rfind(b"\x19" + list_of(1) + b"\x18" + sized(pair))
    rows_at = at[0] - len(before) if at else 0
    if len(at) == len(groups) and data[rows_at : at[0]] == before and pairs_at > at[-1]:
        at.append(pairs_at)
        rest_at = _after_pair(data, pairs_at + 3)
    else:
        # Parquet's metadata looks otherwise than it did: readers will parse all of it.
        at, rows_at, rest_at = [0] * (len(groups) + 1), 0, 0
    sizes = [end - start for start, end in pairwise(at)]
    records = [
        _RECORD.pack(group.size, group.rows, size, len(group.first_path), group.file_digest, group.digest)
        for group, size in zip(groups, sizes, strict=True)
    ]
    paths = b"".join(group.first_path for group in groups)
    trailer = _TRAILER.pack(len(paths), len(groups), rows_at, at[0], rest_at, _TABLE_MARK)
    return b"".join((footer[:begin], *records, paths, trailer, footer[begin:]))


def find_table(tail: bytes) -> GroupTable | None:
    """The table in the bytes at a file's end; None where there is none. Raises ``ValueError`` when it is not whole."""
    end = metadata_at(tail) - _TRAILER.size
    if end < 0:
        return None
    paths, count, rows_at, first_at, rest_at, mark = _TRAILER.unpack_from(tail, end)
    if mark != _TABLE_MARK:
        return None
    path_at, begin = end - paths, end - paths - count * _RECORD.size
    if begin < 0:
        raise ValueError("the table of row groups is not whole")
    groups, groups_at, start = [], [first_at], len(MARK)
    for size, rows, described, path_size, file_digest, digest in _RECORD.iter_unpack(tail[begin:path_at]):
        groups.append(RowGroup(start, size, rows, tail[path_at : path_at + path_size], file_digest, digest))
        groups_at.append(groups_at[-1] + described)
        start, path_at = start + size, path_at + path_size
    return GroupTable(tuple(groups), rows_at, tuple(groups_at) if first_at else (), rest_at)


def _after_pair(data: bytes, at: int) -> int:
    """Where a key-value pair with a short key and a short value ends, from the length of its key on."""
    value_at = at + 1 + data[at] + 1
    return value_at + 1 + data[value_at] + 1
