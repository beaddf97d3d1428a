"""One object: whether the conditions of a request hold, which part is asked for, and its contents, checked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from lakeops.gateway.answers import Refused, checksum_headers, etag, object_headers
from lakeops.model.records import Entry

if TYPE_CHECKING:
    from lakeops.lake import Ref
    from lakeops.store.recorded import ObjectFile

PIECE = 1 << 20
"""Bytes of one object that an answer has in memory. Smaller objects are checked before their first byte goes out."""

_RANGE = re.compile(r"bytes=([0-9]{0,19})-([0-9]{0,19})")


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The bytes that a request asks for."""

    start: int
    length: int
    is_range: bool


def headers_of(entry: Entry, part: ByteRange, asked: Mapping[str, str]) -> dict[str, str]:
    """All headers of an object's answer."""
    headers = {**object_headers(entry), "content-length": str(part.length)}
    if part.is_range:
        last = part.start + part.length - 1
        headers["content-range"] = f"bytes {part.start}-{last}/{entry.size_bytes}"
    elif asked.get("x-amz-checksum-mode", "").upper() == "ENABLED":
        headers.update(checksum_headers(entry))
    return headers


def range_of(entry: Entry, wanted: str | None) -> ByteRange:
    """What a ``Range`` header means for an object. One that is not understood counts for nothing, as in S3.

    Raises:
        Refused: the object has no byte of the range.
    """
    size = entry.size_bytes
    found = _RANGE.fullmatch(wanted.strip()) if wanted else None
    if found is None or not any(found.groups()) or (all(found.groups()) and int(found[1]) > int(found[2])):
        return ByteRange(0, size, is_range=False)
    if found[1]:
        start, end = int(found[1]), min(int(found[2]) + 1 if found[2] else size, size)
    else:
        start, end = max(size - int(found[2]), 0), size
    if start >= end:
        raise Refused(416, "InvalidRange", "the object has no byte of this range", {"content-range": f"bytes */{size}"})
    return ByteRange(start, end - start, is_range=True)


def check_conditions(entry: Entry, asked: Mapping[str, str]) -> None:
    """Returns when an object may be sent: by its ETag where one is named, otherwise by its time.

    Raises:
        Refused: it is not (412), or the client has it already (304).
    """
    mark = etag(entry)
    match, unmatched = asked.get("if-match"), asked.get("if-none-match")
    if match is not None:
        if not names_mark(match, mark):
            raise Refused(412, "PreconditionFailed", "the object is not the one of If-Match; it was replaced")
    elif _is_later(entry, asked.get("if-unmodified-since")) is True:
        raise Refused(412, "PreconditionFailed", "the object is newer than If-Unmodified-Since")
    if unmatched is not None:
        if names_mark(unmatched, mark):
            raise Refused(304, "NotModified", "", {"etag": mark})
    elif _is_later(entry, asked.get("if-modified-since")) is False:
        raise Refused(304, "NotModified", "", {"etag": mark})


def names_mark(given: str, mark: str) -> bool:
    """Whether a list of ETags, with or without quotes, holds this one."""
    listed = [one.strip().removeprefix("W/").strip('"') for one in given.split(",")]
    return "*" in listed or mark.strip('"') in listed


def _is_later(entry: Entry, date: str | None) -> bool | None:
    """Whether an object is newer than a date. None without a date that can be read."""
    try:
        return None if date is None else entry.mtime > parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None


def contents(ref: Ref, entry: Entry, part: ByteRange) -> bytes | Iterator[bytes]:
    """The bytes of a part: at once when they are few, otherwise piece by piece.

    What can be checked is checked before this returns: size and, of a small whole object, the contents. A larger object
    that turns out wrong at its end raises ``Corrupted`` before the last piece.
    """
    if not part.is_range and part.length <= PIECE:
        return ref.read_entry(entry)
    file = ref.open_entry(entry)
    try:
        file.seek(part.start)
        first = _piece(file, entry, part.length)
    except BaseException:
        file.close()
        raise
    if len(first) == part.length:
        file.close()
        return first
    return _pieces(file, entry, first, part.length - len(first))


def _pieces(file: ObjectFile, entry: Entry, first: bytes, left: int) -> Iterator[bytes]:
    with file:
        yield first
        while left:
            piece = _piece(file, entry, left)
            left -= len(piece)
            yield piece


def _piece(file: ObjectFile, entry: Entry, left: int) -> bytes:
    piece = file.read(min(left, PIECE))
    if not piece:
        raise EOFError(f"{entry.path!r} ended {left:,} bytes early")
    return piece
