"""The end of a Parquet file as pieces that can be put together anew: what moving row groups between files takes.

A footer tells where everything lies by offsets from the file's beginning, in Thrift's compact protocol. Row groups
whose bytes are copied need those offsets changed and nothing else, so their descriptions are copied as well and only
the offsets are written again. Whatever is not known to be free of offsets is refused: then there is no outline, and
the rows are encoded instead.

Sources: ``parquet.thrift`` of apache/parquet-format, and Thrift's description of its compact protocol.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final

MARK: Final = b"PAR1"
"""What a Parquet file begins with and ends with."""

CLOSING: Final = 8
"""Bytes behind Parquet's metadata: its size, and the mark."""

STRUCT: Final = 12
"""The type of a struct, in the headers of fields and lists."""

LONG_LIST: Final = 15
"""From so many elements on their number follows a list's header."""


def integer(value: int) -> bytes:
    """A number that is not negative, as a field holds it."""
    return unsigned(2 * value)


def sized(data: bytes) -> bytes:
    """Bytes after their length."""
    return unsigned(len(data)) + data


def list_of(count: int) -> bytes:
    """The header of a list of structs."""
    return bytes([count << 4 | STRUCT]) if count < LONG_LIST else bytes([0xF0 | STRUCT]) + unsigned(count)


def unsigned(value: int) -> bytes:
    """A number of any size, seven bits a byte."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def metadata_at(footer: bytes) -> int:
    """Where Parquet's ``FileMetaData`` begins in the bytes at a file's end."""
    return len(footer) - CLOSING - int.from_bytes(footer[-CLOSING : -len(MARK)], "little")


def closed(metadata: bytes) -> bytes:
    """The end of a file with this ``FileMetaData``: it, its size, the mark."""
    return metadata + len(metadata).to_bytes(4, "little") + MARK


_VARINT_SIZES: Final = frozenset((4, 5, 6))
_BYTES, _LIST = 8, 9
_PAGE_FIELD: Final = 0x15
"""The header of a field right behind the one before, with a number of 32 bits."""

_Known = Mapping[int, Any]

_STAYS: Final = None
_MOVES: Final = "offset"
_COLUMN_META: _Known = dict.fromkeys((*range(1, 9), 12, 13, 16, 17), _STAYS) | {9: _MOVES, 11: _MOVES}
"""``ColumnMetaData``: the data page's and the dictionary page's offsets."""
_COLUMN: _Known = {1: _STAYS, 2: _MOVES, 3: _COLUMN_META}
_GROUP: _Known = {1: _COLUMN, 2: _STAYS, 3: _STAYS, 4: _STAYS, 5: _MOVES, 6: _STAYS, 7: "ordinal"}
_FILE = (1, 2, 3, 4, 5, 6, 7)
"""``FileMetaData``: version, schema, rows, row groups, key-value pairs, created by, column orders."""


class NotOutlined(Exception):
    """The footer has something that is not known to stay true when its row groups are moved."""


@dataclass(frozen=True, slots=True)
class GroupOutline:
    """One row group's description.

    Attributes:
        data: its bytes, a ``RowGroup``.
        marks: where in them a number must be written again: first byte, one past the last, the number, whether it is
            an offset (or else the group's number in the file).
    """

    data: bytes
    marks: tuple[tuple[int, int, int, bool], ...]

    def moved(self, by: int, number: int) -> GroupOutline:
        """The description of the same bytes ``by`` bytes further on, as the file's row group ``number``."""
        parts: list[bytes] = []
        marks: list[tuple[int, int, int, bool]] = []
        done = longer = 0
        for start, stop, value, offset in self.marks:
            if offset and not value:  # an offset of zero is one that is not given
                marks.append((start + longer, stop + longer, value, offset))
                continue
            new = value + by if offset else number
            written = integer(new)
            parts += (self.data[done:start], written)
            begin, longer, done = start + longer, longer + len(written) - (stop - start), stop
            marks.append((begin, begin + len(written), new, offset))
        return GroupOutline(b"".join((*parts, self.data[done:])), tuple(marks))


@dataclass(frozen=True, slots=True)
class Outline:
    """A footer in pieces: what comes before the number of rows, the row groups, what follows the key-value pairs."""

    head: bytes
    groups: tuple[GroupOutline, ...]
    tail: bytes

    def footer(self, rows: int, groups: Sequence[GroupOutline], key: bytes, value: bytes) -> bytes:
        """A whole footer of these row groups: ``FileMetaData`` with one key-value pair, its size, Parquet's mark."""
        pair = b"".join((b"\x18", sized(key), b"\x18", sized(value), b"\0"))
        # A field's header is 16 times its distance from the field before, plus its type.
        data = b"".join(
            (
                *(self.head, integer(rows), b"\x19", list_of(len(groups))),
                *(group.data for group in groups),
                *(b"\x19", list_of(1), pair, self.tail),
            )
        )
        return closed(data)


def outline(footer: bytes) -> Outline:
    """The pieces of a verified footer: the bytes at a file's end. Raises ``NotOutlined``."""
    with _lock:
        found = _remembered.get(footer)
    if found is None:
        try:
            found = _outline(footer[metadata_at(footer) : -CLOSING])
        except IndexError as error:
            raise NotOutlined("it ends too early") from error
        remember(footer, found)
    return found


def remember(footer: bytes, pieces: Outline) -> None:
    """Keep the pieces of a footer: who publishes again and again to one branch changes the file that it has written."""
    with _lock:
        _remembered[footer] = pieces
        while len(_remembered) > MOST_REMEMBERED:
            del _remembered[next(iter(_remembered))]


MOST_REMEMBERED: Final = 8
"""Footers whose pieces are kept, a few hundred KB each: taking one apart costs some milliseconds."""

_lock = Lock()
_remembered: dict[bytes, Outline] = {}


def page_bytes(column: bytes | memoryview) -> int:
    """How many bytes the pages of a column's chunk say that they are without compression.

    The footer says so too, but memory is taken as the pages ask for it. Raises ``NotOutlined``.
    """
    data, at, total = bytes(column), 0, 0
    try:
        while at < len(data):
            values, place = [], at
            for _ in range(3):  # the page's type, its size without compression and with it
                if data[place] != _PAGE_FIELD:
                    raise NotOutlined("a page's header is not in order")
                value, place = _varint(data, place + 1)
                values.append((value >> 1) ^ -(value & 1))
            _, plain, stored = values
            if plain < 0 or stored < 0:
                raise NotOutlined("a page has a negative size")
            total, at = total + plain, _skip(data, at, STRUCT) + stored
    except IndexError as error:
        raise NotOutlined("a page ends too early") from error
    if at != len(data):
        raise NotOutlined("the last page does not end where its column does")
    return total


def _outline(data: bytes) -> Outline:
    at, head, after = 0, 0, 0
    groups: list[GroupOutline] = []
    for field in _FILE:
        # All seven are there, one after another, or this is no footer of ours.
        if data[at] >> 4 != 1:
            raise NotOutlined(f"it lacks field {field}")
        kind, at = data[at] & 15, at + 1
        if field == 3:
            head = at
        if field == 4:
            count, _, at = _list_header(data, at)
            for _ in range(count):
                marks: list[tuple[int, int, int, bool]] = []
                start, at = at, _scan(data, at, _GROUP, marks)
                moved = tuple((first - start, last - start, value, offset) for first, last, value, offset in marks)
                groups.append(GroupOutline(data[start:at], moved))
        else:
            at = _skip(data, at, kind)
        if field == 5:
            after = at
    if data[at:] != b"\0":
        raise NotOutlined("something follows its last field")
    return Outline(data[:head], tuple(groups), data[after:])


def _scan(data: bytes, at: int, known: _Known, marks: list[tuple[int, int, int, bool]]) -> int:
    """Pass a struct, noting what must be written again. Gives where it ends."""
    field = 0
    while head := data[at]:
        at += 1
        if not head >> 4:
            raise NotOutlined("its fields are not in order")
        field += head >> 4
        if field not in known:
            raise NotOutlined(f"field {field} is not known")
        kind, what = head & 15, known[field]
        if what is _STAYS:
            at = _skip(data, at, kind)
        elif isinstance(what, str):
            start = at
            value, at = _varint(data, at)
            marks.append((start, at, (value >> 1) ^ -(value & 1), what is _MOVES))
        elif kind == _LIST:
            count, _, at = _list_header(data, at)
            for place in range(count):
                at = _column(data, at, place, marks) if what is _COLUMN else _scan(data, at, what, marks)
        else:
            at = _scan(data, at, what, marks)
    return at + 1


MOST_SHAPES: Final = 4
"""Shapes that are known of a column. Those of texts vary with their lengths, and are not worth more."""

WORTH_LEARNING: Final = 64
"""Columns at one place that are walked over before shapes are noted, which costs as much as taking a footer apart."""

_shapes: dict[int, list[re.Pattern[bytes]]] = {}
_walked: Counter[int] = Counter()


def _column(data: bytes, at: int, place: int, marks: list[tuple[int, int, int, bool]]) -> int:
    """``_scan`` of a row group's column, which has the shape of that column in other row groups: one step in C."""
    shapes = _shapes.setdefault(place, [])
    for shape in shapes:
        found = shape.match(data, at)
        if found is not None:
            for start, stop in found.regs[1:]:
                value, _ = _varint(data, start)
                marks.append((start, stop, (value >> 1) ^ -(value & 1), True))
            return found.end()
    mine: list[tuple[int, int, int, bool]] = []
    end = _scan(data, at, _COLUMN, mine)
    _walked[place] += 1
    if _walked[place] > WORTH_LEARNING and len(shapes) < MOST_SHAPES:
        pattern, _ = _shape(data, at, STRUCT, {start for start, *_ in mine})
        shapes.append(re.compile(pattern, re.DOTALL))
    marks += mine
    return end


_NUMBER: Final = rb"[\x80-\xff]*[\x00-\x7f]"


def _shape(data: bytes, at: int, kind: int, offsets: set[int]) -> tuple[bytes, int]:
    """What matches values of a field that differ in numbers and in bytes of texts only, and where this one ends.

    Each offset is a group. What matches has the same fields of the same types, so it is taken apart in one way alone.
    """
    if kind in _VARINT_SIZES:
        return (b"(%b)" % _NUMBER if at in offsets else _NUMBER), _skip(data, at, kind)
    parts: list[bytes] = []
    if kind == _BYTES:
        size, start = _varint(data, at)
        return re.escape(data[at:start]) + b".{%d}" % size, start + size
    if kind == STRUCT:
        while head := data[at]:
            start, at = at, at + 1
            if not head >> 4:
                at = _skip(data, at, 4)
            parts.append(re.escape(data[start:at]))
            if head & 15 > 2:
                part, at = _shape(data, at, head & 15, offsets)
                parts.append(part)
        return b"".join((*parts, b"\\x00")), at + 1
    if kind == _LIST:
        start = at
        count, of, at = _list_header(data, at)
        parts.append(re.escape(data[start:at]))
        for _ in range(count):
            part, at = _shape(data, at, of, offsets) if of > 2 else (b".", at + 1)
            parts.append(part)
        return b"".join(parts), at
    return b".", _skip(data, at, kind)


def _skip(data: bytes, at: int, kind: int) -> int:
    """Where a value of a field ends."""
    if kind in _VARINT_SIZES:
        while data[at] > 127:
            at += 1
        return at + 1
    if kind == _BYTES:
        size, at = _varint(data, at)
        return at + size
    if kind == STRUCT:
        while head := data[at]:
            at += 1
            if not head >> 4:
                at = _skip(data, at, 4)
            if head & 15 > 2:  # a truth value is in the header
                at = _skip(data, at, head & 15)
        return at + 1
    if kind == _LIST:
        count, of, at = _list_header(data, at)
        for _ in range(count):
            at = _skip(data, at, of) if of > 2 else at + 1
        return at
    if kind == 3:
        return at + 1
    raise NotOutlined(f"values of type {kind} are not known")


def _list_header(data: bytes, at: int) -> tuple[int, int, int]:
    """How many elements follow, their type, where the first one is."""
    count, of = data[at] >> 4, data[at] & 15
    at += 1
    if count == LONG_LIST:
        count, at = _varint(data, at)
    return count, of, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while (byte := data[at]) > 127:
        value |= (byte & 127) << shift
        shift += 7
        at += 1
    return value | byte << shift, at + 1
