"""Listings: the refs of a repository as folders, and what is below them, a page at a time."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from lakeops.gateway.answers import Refused, document, element, etag, nest, timestamp, url_encoded
from lakeops.model.errors import (
    InvalidInput,
    RefNotFound,
)
from lakeops.model.records import Entry

if TYPE_CHECKING:
    from lakeops.lake import Repository

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
