"""Requests that read: listings of refs and their objects, a page at a time, and the contents of one object."""

from __future__ import annotations

import base64
import re
from calendar import timegm
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_tz
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from lakeops.gateway import answers
from lakeops.gateway.answers import Refused, checksum_headers, document, elements, etag, nest, sum_elements
from lakeops.gateway.headers import OBJECT, subresource
from lakeops.model.errors import InvalidInput, RefNotFound
from lakeops.model.records import Entry
from lakeops.model.sanitising import excerpt

if TYPE_CHECKING:
    from lakeops.gateway.signature import S3Request
    from lakeops.lake import Ref, Repository
    from lakeops.store.recorded import ObjectFile

PAGE = 1000
"""Keys that a page holds at most, as in S3."""
PIECE = 1 << 20
"""Bytes of one object that an answer has in memory. Smaller objects are checked before their first byte goes out."""
OVERRIDES = {f"response-{name}": name for name in ("content-type", *answers.KEPT_HEADERS)}
"""Parameters that say what a header of the answer is to be."""
_RANGE = re.compile(r"bytes=([0-9]{0,99})-([0-9]{0,99})")


# --- listings ---


def list_objects(repository: Repository, query: Mapping[str, str]) -> Response:
    """Answer ListObjectsV2 or, without ``list-type=2``, ListObjects. Raises ``Refused``."""
    newer = query.get("list-type") == "2"
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    token, start = query.get("continuation-token", ""), query.get("start-after" if newer else "marker", "")
    after = start
    if newer and token:
        try:
            after = base64.b64decode(token, altchars=b"-_", validate=True).decode()
        except ValueError:
            raise Refused(400, "InvalidArgument", "the continuation token is not one of this gateway") from None
    encoding = query.get("encoding-type", "")
    if encoding not in {"", "url"}:
        raise Refused(400, "InvalidArgument", "encoding-type must be url")
    limit = number_of(query, "max-keys", PAGE)
    shown = partial(quote, safe="/") if encoding else str
    page = [*islice(_items(repository, prefix, after, delimiter), limit + 1)] if limit else []
    if not page and "/" in prefix and (token or query.get("marker")):  # an earlier page had keys
        repository.ref(prefix.partition("/")[0]).commit_id  # noqa: B018 - raises when the branch is gone
    truncated, page = len(page) > limit, page[:limit]
    given: dict[str, str | int | bool] = {"Name": repository.id, "Prefix": shown(prefix)}
    given |= {"Delimiter": shown(delimiter)} if delimiter else {}
    given |= {"MaxKeys": limit} | ({"EncodingType": "url"} if encoding else {}) | {"IsTruncated": truncated}
    if newer:
        given["KeyCount"] = len(page)
        given |= {"ContinuationToken": token} if "continuation-token" in query else {}
        if truncated:
            given["NextContinuationToken"] = base64.urlsafe_b64encode(page[-1][0].encode()).decode()
        given |= {"StartAfter": shown(start)} if start else {}
    else:
        given |= {"Marker": shown(start)} | ({"NextMarker": shown(page[-1][0])} if truncated else {})
    owner = [] if newer and query.get("fetch-owner") != "true" else [answers.OWNER_ELEMENT]
    rows = []
    for key, entry in page:
        if entry is None:
            rows.append(nest("CommonPrefixes", elements(Prefix=shown(key))))
            continue
        head = elements(Key=shown(key), LastModified=answers.timestamp(entry.mtime), ETag=etag(entry))
        rows.append(nest("Contents", [*head, *elements(Size=entry.size_bytes, StorageClass="STANDARD"), *owner]))
    return document("ListBucketResult", [*elements(**given), *rows])


def number_of(query: Mapping[str, str], name: str, most: int, left_out: int | None = None) -> int:
    """A parameter that is a number, ``most`` where it is larger or left out. Raises ``Refused``."""
    given = query.get(name, "")
    if given and not (given.isascii() and given.isdecimal() and len(given) < 10):
        raise Refused(400, "InvalidArgument", f"{name} must be a number from 0 on")
    return min(int(given), most) if given else most if left_out is None else left_out


def _items(repository: Repository, prefix: str, after: str, delimiter: str) -> Iterator[tuple[str, Entry | None]]:
    """Keys below a prefix and behind ``after``, in byte order; an object with its entry, a common prefix with None.

    Branches and tags are folders. Other refs (``main~1``, a commit id) are not listed, and can be listed below. An
    unknown ref has nothing below it, as in S3.
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
            yield folder, None


def _below(
    repository: Repository, ref: str, path: str, after: str, delimiter: str
) -> Iterator[tuple[str, Entry | None]]:
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
        yield folder + one.path, one if isinstance(one, Entry) else None


# --- objects ---


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The bytes of an object that a request asks for."""

    start: int
    length: int
    is_range: bool


def find_object(repository: Repository, key: str) -> tuple[Ref, Entry]:
    """The ref and the object that a key names. Raises ``Refused``."""
    name, _, path = key.partition("/")
    ref = repository.ref(name)
    entry = ref.find(path) if path else None
    if entry is None:
        raise Refused(404, "NoSuchKey", f"no object {path!r} at {name!r} of repository {repository.id!r}")
    return ref, entry


def get_object(repository: Repository, asked: S3Request) -> Response:
    """Answer GetObject, HeadObject, GetObjectAttributes or a subresource of an object. Raises ``Refused``."""
    other = asked.asks - OVERRIDES.keys() - {"partNumber"}
    if other and (len(other) > 1 or not other <= {"attributes", *OBJECT}):
        raise unknown(other)
    ref, entry = find_object(repository, asked.key)
    if "attributes" in other:
        return _attributes(entry, asked.headers)
    if other:
        return subresource(OBJECT, *other)
    check_conditions(entry, asked.headers)
    whole = "if-range" in asked.headers and not has_etag(asked.headers["if-range"], entry)
    part = range_of(entry, None if whole else asked.headers.get("range"))
    number, parts = number_of(asked.query, "partNumber", answers.MOST_PARTS + 1, left_out=0), answers.parts_of(entry)
    if "partNumber" in asked.query:
        start = parts.size * (number - 1)
        if "range" in asked.headers:
            raise Refused(400, "InvalidRequest", "a request names a range or a part, and not both")
        if not 0 < number <= max(parts.number, 1):
            raise Refused(400, "InvalidPart", f"the object has {max(parts.number, 1)} parts")
        part = ByteRange(start, min(parts.size, entry.size_bytes - start), is_range=parts.number > 0)
    overridden = {name: asked.query[given] for given, name in OVERRIDES.items() if given in asked.query}
    if not all(answers.is_plain(value) for value in overridden.values()):
        raise Refused(400, "InvalidArgument", "a header is printable ASCII text")
    headers = {**answers.object_headers(entry), **overridden, "content-length": str(part.length)}
    if number:
        headers["x-amz-mp-parts-count"] = str(max(parts.number, 1))
    if part.is_range:
        headers["content-range"] = f"bytes {part.start}-{part.start + part.length - 1}/{entry.size_bytes}"
    if (number or not part.is_range) and asked.headers.get("x-amz-checksum-mode", "").upper() == "ENABLED":
        headers.update(checksum_headers(entry, number))
    status = 206 if part.is_range else 200
    if asked.method == "HEAD":
        return Response(None, status, headers)
    body = contents(ref, entry, part)
    return Response(body, status, headers) if isinstance(body, bytes) else StreamingResponse(body, status, headers)


def range_of(entry: Entry, wanted: str | None) -> ByteRange:
    """The bytes of an object that a ``Range`` header names. A malformed header counts for nothing, as in S3.

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


def unknown(names: Iterable[str]) -> Refused:
    """The refusal of a request for something else than objects."""
    return Refused(501, "NotImplemented", f"this gateway does not know {excerpt(', '.join(sorted(names)))}")


def _attributes(entry: Entry, headers: Mapping[str, str]) -> Response:
    """Answer GetObjectAttributes. Raises ``Refused``."""
    parts, sums = answers.parts_of(entry), sum_elements(checksum_headers(entry))
    page, told = page_of_parts(range(1, parts.number + 1), headers, "x-amz-")
    for number in page:
        about = elements(PartNumber=number, Size=min(parts.size, entry.size_bytes - parts.size * (number - 1)))
        told.append(nest("Part", about + sum_elements(checksum_headers(entry, number))[:1]))
    known = {
        "ETag": elements(ETag=etag(entry).strip('"')),
        "Checksum": [nest("Checksum", sums)] if sums else [],
        "ObjectParts": [nest("ObjectParts", [*elements(PartsCount=parts.number), *told])] if parts.number else [],
        "StorageClass": elements(StorageClass="STANDARD"),
        "ObjectSize": elements(ObjectSize=entry.size_bytes),
    }
    wanted = {name.strip() for name in headers.get("x-amz-object-attributes", "").split(",")}
    if not wanted <= known.keys():
        raise Refused(400, "InvalidArgument", f"x-amz-object-attributes is some of {', '.join(known)}")
    inner = [one for name, found in known.items() if name in wanted for one in found]
    answer = document("GetObjectAttributesResponse", inner)
    answer.headers["last-modified"] = answers.object_headers(entry)["last-modified"]
    return answer


def page_of_parts(numbers: Iterable[int], asked: Mapping[str, str], before: str = "") -> tuple[list[int], list[str]]:
    """The numbers of the parts of a page, and the elements that tell of the page. Raises ``Refused``."""
    limit = number_of(asked, f"{before}max-parts", PAGE)
    marker = number_of(asked, f"{before}part-number-marker", answers.MOST_PARTS, left_out=0)
    found = sorted(number for number in numbers if number > marker)
    told = elements(PartNumberMarker=marker, MaxParts=limit, IsTruncated=0 < limit < len(found))
    return found[:limit], told + (elements(NextPartNumberMarker=found[:limit][-1]) if found[:limit] else [])


def check_conditions(entry: Entry, asked: Mapping[str, str], before: str = "") -> None:
    """Check the conditions of a request on an object: by ETag where one is named, otherwise by time.

    The names of conditions on the source of a copy have something ``before`` them.

    Raises:
        Refused: they are not met (412), or the client has the object already (304).
    """
    asked = {name.removeprefix(before): value for name, value in asked.items() if name.startswith(before)}
    match, unmatched = asked.get("if-match"), asked.get("if-none-match")
    if match is not None:
        if not has_etag(match, entry):
            raise Refused(412, "PreconditionFailed", "the object is not the one of If-Match; it was replaced")
    elif (until := seconds_of(asked.get("if-unmodified-since"))) is not None and entry.mtime > until:
        raise Refused(412, "PreconditionFailed", "the object is newer than If-Unmodified-Since")
    since = seconds_of(asked.get("if-modified-since"))
    if has_etag(unmatched, entry) if unmatched is not None else since is not None and entry.mtime <= since:
        if before:
            raise Refused(412, "PreconditionFailed", "the source has not changed, so the condition of the copy fails")
        raise Refused(304, "NotModified", "", {"etag": etag(entry)})


def has_etag(given: str, entry: Entry) -> bool:
    """Tell whether a list of ETags, with or without quotes, holds the one of an object."""
    listed = [one.strip().removeprefix("W/").strip('"') for one in given.split(",")]
    return "*" in listed or etag(entry).strip('"') in listed


def seconds_of(date: str | None) -> int | None:
    """Unix seconds of a header's date, which is in UTC if it names no zone. None for text that is no date."""
    try:
        given = parsedate_tz(date or "")
        return None if given is None else timegm(given[:9]) - (given[9] or 0)
    except (ValueError, OverflowError):
        return None


def contents(ref: Ref, entry: Entry, part: ByteRange) -> bytes | Iterator[bytes]:
    """The bytes of a part: at once when they are few, otherwise piece by piece.

    The size and, of a small whole object, the contents are checked before this returns. A larger object that turns out
    wrong at its end raises ``Corrupted`` before the last piece.
    """
    if not part.is_range and part.length <= PIECE:
        return ref.read_entry(entry)
    pieces = _pieces(ref.open_entry(entry), entry, part)
    first = next(pieces)
    if len(first) == part.length:
        pieces.close()
        return first
    return chain([first], pieces)


def _pieces(file: ObjectFile, entry: Entry, part: ByteRange) -> Generator[bytes, None, None]:
    left = part.length
    with file:
        file.seek(part.start)
        while left:
            piece = file.read(min(left, PIECE))
            if not piece:
                raise EOFError(f"{entry.path!r} ended {left:,} bytes early")
            left -= len(piece)
            yield piece
