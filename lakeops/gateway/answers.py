"""Answers in S3's form: XML, headers of objects, and refusals with S3's codes.

Keys, metadata and messages come from whoever wrote them. None of them can end an element, a header or a line.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import formatdate
from typing import NamedTuple
from xml.sax.saxutils import escape

from starlette.responses import Response

from lakeops.model import errors
from lakeops.model.ids import algorithm_of
from lakeops.model.records import DEFAULT_CONTENT_TYPE, Entry
from lakeops.model.sanitising import safe

OWNER = "lakeops"
"""Whom all repositories and objects belong to, for clients that ask."""
NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_XML = '<?xml version="1.0" encoding="UTF-8"?>\n'
_LAST_MOMENT = 253402300799

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_CONTROLS = re.compile("[\x00-\x1f\x7f\ufffe\uffff]")

KEPT_HEADERS = ("cache-control", "content-disposition", "content-encoding", "content-language", "expires")
"""Headers that S3 keeps with an object and gives back as they are."""

HEADER = "http:"
"""Begins the name of user metadata that holds such a header. No name of a client's own metadata has a colon."""
PARTS = "s3:parts"
"""The name of user metadata that tells of the parts in which an object came."""
_PARTS = re.compile(r"([0-9a-f]{16}) ([1-9][0-9]{0,12}) (x-amz-checksum-[a-z0-9]{1,16}|) ([A-Za-z0-9+/=,-]*)")
CHECKSUM = "x-amz-checksum-"
MOST_PARTS = 10_000


class Refused(Exception):
    """A request was refused, with S3's status and code."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message: str = safe(message)
        self.headers: dict[str, str] = dict(headers or {})


def refusal(error: errors.LakeopsError) -> Refused:
    """The refusal for an error of lakeops.

    Only an object that was never there is "not found". Expired and damaged ones have another code, so that no program
    takes them for an empty table.
    """
    match error:
        case errors.RepositoryNotFound():
            return Refused(404, "NoSuchBucket", f"{error.message}; clients name it in the path (path-style addressing)")
        case errors.RefNotFound() | errors.InvalidInput(kind="invalid_ref"):
            return Refused(404, "NoSuchKey", error.message)
        case errors.PathTaken() | errors.NotAsSeen():
            # Delta's GCSLogStore, which is right over S3A too, knows a conflict by the status in the message.
            return Refused(412, "PreconditionFailed", f"412 Precondition Failed: {error.message}")
        case errors.CommitExpired() | errors.PreconditionFailed(kind="object_collected"):
            return Refused(403, "InvalidObjectState", error.message)
        case errors.InvalidInput():
            return Refused(400, "InvalidArgument", error.message)
        case errors.PreconditionFailed():
            return Refused(403, "AccessDenied", error.message)
        case errors.Transient():
            return Refused(503, "ServiceUnavailable", error.message)
    return Refused(500, "InternalError", error.message)


def element(name: str, content: str | int | bool) -> str:
    """An element that holds text. Control characters become references, as S3 writes them."""
    text = str(content).lower() if isinstance(content, bool) else str(content)
    return f"<{name}>{_CONTROLS.sub(lambda found: f'&#x{ord(found[0]):x};', escape(text))}</{name}>"


def nest(name: str, inner: Iterable[str]) -> str:
    """An element that holds elements."""
    return f"<{name}>{''.join(inner)}</{name}>"


def elements(**contents: str | int | bool) -> list[str]:
    """An element for each keyword."""
    return [element(name, content) for name, content in contents.items()]


OWNER_ELEMENT: str = nest("Owner", elements(ID=OWNER, DisplayName=OWNER))


def document(name: str, inner: Iterable[str]) -> Response:
    """An answer that is an XML document."""
    body = f'{_XML}<{name} xmlns="{NAMESPACE}">{"".join(inner)}</{name}>'
    return Response(body, headers={"content-type": "application/xml"})


def error_document(refused: Refused, resource: str, request_id: str) -> Response:
    """An answer that tells of a refusal. S3 writes it without a namespace."""
    inner = elements(Code=refused.code, Message=refused.message, Resource=resource, RequestId=request_id)
    headers = {**refused.headers, "content-type": "application/xml"}
    return Response(_XML + nest("Error", inner), refused.status, headers)


def timestamp(seconds: int) -> str:
    """Unix seconds as listings write them."""
    return datetime.fromtimestamp(min(max(seconds, 0), _LAST_MOMENT), UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def etag(entry: Entry) -> str:
    """The quoted ETag of an object."""
    known = algorithm_of(entry.checksum) == "sha256"
    return etag_of(entry.checksum if known else hashlib.sha256(entry.checksum.encode()).hexdigest())


def etag_of(sha256: str) -> str:
    """The quoted ETag of contents. Clients that compute MD5s compare none with an ETag that tells a number of parts."""
    return f'"{sha256}-1"'


def object_headers(entry: Entry) -> dict[str, str]:
    """The headers of an object, but for those that depend on the range."""
    return {
        "etag": etag(entry),
        "last-modified": formatdate(min(max(entry.mtime, 0), _LAST_MOMENT), usegmt=True),
        "content-type": entry.content_type if is_plain(entry.content_type) else DEFAULT_CONTENT_TYPE,
        "accept-ranges": "bytes",
        **_metadata(entry.metadata),
    }


class Parts(NamedTuple):
    """How many parts an object came in, 0 if whole, and checksums in base64: of the object and, if known, the parts."""

    number: int
    size: int
    header: str
    sums: list[str]


def parts_of(entry: Entry) -> Parts:
    """The parts of an object. Metadata of other contents counts for nothing."""
    sha256 = entry.checksum if algorithm_of(entry.checksum) == "sha256" else ""
    header, whole = f"{CHECKSUM}sha256", base64.b64encode(bytes.fromhex(sha256)).decode()
    found = _PARTS.fullmatch(entry.metadata.get(PARTS, ""))
    if found is None or found[1] != sha256[:16] or entry.size_bytes > MOST_PARTS * int(found[2]):
        return Parts(0, entry.size_bytes, header, [whole])
    header, sums = (found[3], found[4].split(",")) if found[3] else (header, [whole])
    return Parts(-(-entry.size_bytes // int(found[2])), int(found[2]), header, sums)


def checksum_headers(entry: Entry, number: int = 0) -> dict[str, str]:
    """The checksum that the client of an upload in parts chose, of all or of a part, or else the SHA-256."""
    parts = parts_of(entry)
    value = next(iter(parts.sums[number if parts.number else 0 :]), "")
    if not value:
        return {}
    return {parts.header: value, f"{CHECKSUM}type": "COMPOSITE" if "-" in parts.sums[0] else "FULL_OBJECT"}


def sum_elements(headers: Mapping[str, str]) -> list[str]:
    """Checksums as documents have them."""
    named = [(name.removeprefix(CHECKSUM), value) for name, value in headers.items()]
    return [element("Checksum" + ("Type" if name == "type" else name.upper()), value) for name, value in named]


def _metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    missing = 0
    for key, value in metadata.items():
        if key.removeprefix(HEADER) in KEPT_HEADERS and key.startswith(HEADER) and is_plain(value):
            found[key.removeprefix(HEADER)] = value
        elif _TOKEN.fullmatch(key) and (name := f"x-amz-meta-{key.lower()}") not in found:
            found[name] = value if is_plain(value) else f"=?utf-8?b?{base64.b64encode(value.encode()).decode()}?="
        else:
            missing += key != PARTS
    return found | ({"x-amz-missing-meta": str(missing)} if missing else {})


def is_plain(text: str) -> bool:
    """Tell whether a text can be a header's value as it is."""
    return text.isascii() and text.isprintable() and text == text.strip()
