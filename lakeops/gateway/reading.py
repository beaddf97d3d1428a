"""Listings: the refs of a repository as folders, and what is below them, a page at a time."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from lakeops.gateway.answers import (
    Refused,
    checksum_headers,
    document,
    element,
    etag,
    nest,
    object_headers,
    timestamp,
    url_encoded,
)
from lakeops.model.errors import (
    InvalidInput,
    RefNotFound,
)
from lakeops.model.records import Entry

if TYPE_CHECKING:
    from lakeops.lake import Ref, Repository
    from lakeops.store.recorded import ObjectFile

PAGE = 1000
"""Keys that a page holds at most, as in S3."""


class Item(NamedTuple):
    """A row of a listing: an object by its key, or a common prefix."""

    key: str
    entry: Entry | None


def items(repository: Repository, prefix: str, after: str, delimiter: str) -> Iterator[Item]:
    """What is below a prefix and behind ``after``, in byte order. An unknown ref has nothing below it, as in S3.

    Branches and tags are folders. Other refs (``main~1``, a commit id) are not listed, and can be listed below.
    """
    ref, in_ref, path = prefix.partition("/")
    if in_ref:
        yield from _below(repository, ref, path, after, delimiter)
        return
    if delimiter not in {"", "/"}:
        raise Refused(501, "NotImplemented", "above a ref the only delimiter is /")
    # Sorted with the slash: a branch dev-1 comes before dev/, because "-" does.
    for folder in sorted({f"{one.id}/" for one in (*repository.branches(prefix=ref), *repository.tags(prefix=ref))}):
        if not delimiter:
            yield from _below(repository, folder[:-1], "", after, "")
        elif folder > after:
            yield Item(folder, None)


def _below(repository: Repository, ref: str, path: str, after: str, delimiter: str) -> Iterator[Item]:
    folder = ref + "/"
    if not after.startswith(folder) and after > folder:
        return
    behind = after.removeprefix(folder) if after > folder else ""
    try:
        found = repository.ref(ref).list(path, after=behind, delimiter=delimiter)
    except (RefNotFound, InvalidInput) as error:
        if error.kind not in {"ref_not_found", "invalid_ref"}:
            raise
        return
    for one in found:
        yield Item(folder + one.path, one if isinstance(one, Entry) else None)


def answer(repository: Repository, query: Mapping[str, str]) -> bytes:
    """A page as ListObjectsV2 or, without ``list-type=2``, as ListObjects writes it. Raises ``Refused``."""
    newer = query.get("list-type") == "2"
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    token, start = query.get("continuation-token", ""), query.get("start-after" if newer else "marker", "")
    after = _position(token) if newer and token else start
    limit = _limit(query.get("max-keys", ""))
    shown = _encoding(query.get("encoding-type", ""))
    page = [*islice(items(repository, prefix, after, delimiter), limit + 1)] if limit else []
    truncated, page = len(page) > limit, page[:limit]
    inner = [
        element("Name", repository.id),
        element("Prefix", shown(prefix)),
        *([element("Delimiter", shown(delimiter))] if delimiter else []),
        element("MaxKeys", limit),
        *([element("EncodingType", "url")] if shown is url_encoded else []),
        element("IsTruncated", truncated),
    ]
    if newer:
        inner.append(element("KeyCount", len(page)))
        inner.extend([element("ContinuationToken", token)] if token else [])
        inner.extend([element("NextContinuationToken", _token(page[-1].key))] if truncated else [])
        inner.extend([element("StartAfter", shown(start))] if start else [])
    else:
        inner.append(element("Marker", shown(start)))
        inner.extend([element("NextMarker", shown(page[-1].key))] if truncated else [])
    for key, entry in page:
        if entry is None:
            inner.append(nest("CommonPrefixes", [element("Prefix", shown(key))]))
        else:
            inner.append(_contents(shown(key), entry))
    return document("ListBucketResult", inner)


def _contents(key: str, entry: Entry) -> str:
    inner = (
        element("Key", key),
        element("LastModified", timestamp(entry.mtime)),
        element("ETag", etag(entry)),
        element("Size", entry.size_bytes),
        element("StorageClass", "STANDARD"),
    )
    return nest("Contents", inner)


def _limit(text: str) -> int:
    if text and not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise Refused(400, "InvalidArgument", "max-keys must be a number from 0 on")
    return min(int(text), PAGE) if text else PAGE


def _encoding(text: str) -> Callable[[str], str]:
    if text not in {"", "url"}:
        raise Refused(400, "InvalidArgument", "encoding-type must be url")
    return url_encoded if text else str


def _token(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode()).decode()


def _position(token: str) -> str:
    """The key behind which a listing goes on."""
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise Refused(400, "InvalidArgument", "the continuation token is not one of this gateway") from None


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
