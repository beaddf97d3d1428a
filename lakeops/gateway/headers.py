"""The headers and the subresources of S3's requests, and the gateway's answer to each.

A request that is answered with 200 was carried out whole. So a header that asks for something which the gateway does
not do refuses the request, unless it asks for what is so anyway. ``docs/gateway.md`` has the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from starlette.responses import Response

from lakeops.gateway.answers import OWNER, OWNER_ELEMENT, Refused, document, element, nest


@dataclass(frozen=True)
class Header:
    """The answer to headers of some names, in which ``*`` stands for any text. The page has it in words.

    ``harmless`` are the values, in lower case, that ask for nothing else than is so. None: any value.
    """

    names: tuple[str, ...]
    answer: str
    harmless: frozenset[str] | None = None
    status: int = 501
    code: str = "NotImplemented"


def _refused(answer: str, *names: str, harmless: Sequence[str] = ()) -> Header:
    status, code = answer.split()
    said = " or ".join(f"`{value}`" if value else "no value" for value in harmless)
    taken = f"with {said}: ignored; with another value: " if said else ""
    return Header(names, f"{taken}refused, {status} `{code}`", frozenset(harmless), int(status), code)


HEADERS: tuple[Header, ...] = (
    Header(("x-amz-date", "x-amz-content-sha256", "x-amz-decoded-content-length", "x-amz-trailer"), "served"),
    Header(("x-amz-meta-*", "x-amz-metadata-directive", "x-amz-copy-source"), "served"),
    Header(("x-amz-copy-source-range",), "served by UploadPartCopy"),
    Header(("x-amz-copy-source-if-*match", "x-amz-copy-source-if-*modified-since"), "served by copies"),
    Header(("x-amz-checksum-*", "x-amz-sdk-checksum-algorithm"), "served: sums are compared, and given back"),
    Header(("x-amz-mp-object-size",), "served by CompleteMultipartUpload"),
    Header(("x-amz-if-match-last-modified-time", "x-amz-if-match-size"), "served by DeleteObject"),
    Header(("x-amz-object-attributes", "x-amz-max-parts", "x-amz-part-number-marker"), "served"),
    _refused("403 AccessDenied", "x-amz-expected-bucket-owner", "x-amz-source-expected-bucket-owner", harmless=[OWNER]),
    _refused("400 InvalidStorageClass", "x-amz-storage-class", harmless=["standard"]),
    _refused("400 AccessControlListNotSupported", "x-amz-acl", harmless=["private", "bucket-owner-full-control"]),
    _refused("400 AccessControlListNotSupported", "x-amz-grant-*"),
    _refused("400 InvalidRequest", "x-amz-object-lock-*"),
    _refused("501 NotImplemented", "x-amz-bucket-object-lock-enabled", harmless=["false"]),
    _refused("501 NotImplemented", "x-amz-server-side-encryption*", "x-amz-copy-source-server-side-encryption-*"),
    _refused("501 NotImplemented", "x-amz-tagging", harmless=[""]),
    _refused("501 NotImplemented", "x-amz-website-redirect-location", "x-amz-write-offset-bytes"),
    _refused("501 NotImplemented", "x-amz-mfa", "x-amz-if-*"),
    _refused("400 InvalidArgument", "x-amz-tagging-directive", harmless=["copy", "replace"]),
    Header(("x-amz-request-payer", "x-amz-bypass-governance-retention"), "ignored: nobody pays, and nothing is locked"),
    Header(("x-amz-optional-object-attributes",), "ignored: no object is restored"),
    Header(("x-amz-te", "x-amz-user-agent", "x-amz-api-version", "x-amz-cf-id"), "ignored"),
    _refused("501 NotImplemented", "x-amz-*"),
)
"""The first row that has a header's name counts."""

_CONDITIONS = ("if-match", "if-none-match", "if-modified-since", "if-unmodified-since")
SOURCE_CONDITIONS: tuple[str, ...] = tuple(f"x-amz-copy-source-{name}" for name in _CONDITIONS)
DELETE_CONDITIONS: tuple[str, ...] = ("if-match", "x-amz-if-match-last-modified-time", "x-amz-if-match-size")
_OF_SOME = {*_CONDITIONS, *SOURCE_CONDITIONS, *DELETE_CONDITIONS}
_OF_SOME |= {"content-range", "x-amz-copy-source-range", "x-amz-mp-object-size"}
"""Headers of requests that write which some of them serve, and all others refuse."""


def check_headers(headers: Mapping[str, str], conditions: tuple[str, ...] | None) -> None:
    """Refuse what is asked for and is not done. Raises ``Refused``.

    The request serves some ``conditions``. None stands for requests that read, which serve them all, and which headers
    that are not known do not change.
    """
    for name, value in headers.items():
        if conditions is not None and name in _OF_SOME and name not in conditions:
            raise Refused(501, "NotImplemented", f"this gateway does not know {name} in such a request")
        if not name.startswith("x-amz-"):
            continue
        row = next(row for row in HEADERS if any(fnmatchcase(name, pattern) for pattern in row.names))
        if row.harmless is None or value.lower() in row.harmless or (row is HEADERS[-1] and conditions is None):
            continue
        raise Refused(row.status, row.code, f"this gateway does not do what {name} asks for; leave it out")


_GRANT = (
    '<Grant><Grantee xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="CanonicalUser">'
    f"<ID>{OWNER}</ID><DisplayName>{OWNER}</DisplayName></Grantee><Permission>FULL_CONTROL</Permission></Grant>"
)
_ACL = ("AccessControlPolicy", [OWNER_ELEMENT, nest("AccessControlList", [_GRANT])])
_NO_LOCK = "NoSuchObjectLockConfiguration"

BUCKET: dict[str, tuple[str, list[str]] | str] = {
    "accelerate": ("AccelerateConfiguration", []),
    "acl": _ACL,
    "cors": "NoSuchCORSConfiguration",
    "encryption": "ServerSideEncryptionConfigurationNotFoundError",
    "lifecycle": "NoSuchLifecycleConfiguration",
    "location": ("LocationConstraint", []),  # what S3 says for us-east-1
    "logging": ("BucketLoggingStatus", []),
    "notification": ("NotificationConfiguration", []),
    "object-lock": "ObjectLockConfigurationNotFoundError",
    "ownershipControls": "OwnershipControlsNotFoundError",
    "policy": "NoSuchBucketPolicy",
    "policyStatus": "NoSuchBucketPolicy",
    "publicAccessBlock": "NoSuchPublicAccessBlockConfiguration",
    "replication": "ReplicationConfigurationNotFoundError",
    "requestPayment": ("RequestPaymentConfiguration", [element("Payer", "BucketOwner")]),
    "tagging": "NoSuchTagSet",
    "versioning": ("VersioningConfiguration", []),
    "website": "NoSuchWebsiteConfiguration",
}
"""The answers to reading subresources of a bucket: a document, or the code for "there is none"."""

OBJECT: dict[str, tuple[str, list[str]] | str] = {
    "acl": _ACL,
    "legal-hold": _NO_LOCK,
    "retention": _NO_LOCK,
    "tagging": ("Tagging", [nest("TagSet", [])]),
}
"""The answers to reading subresources of an object."""


def subresource(table: Mapping[str, tuple[str, list[str]] | str], name: str) -> Response:
    """Answer a request that reads a subresource of a table. Raises ``Refused`` where there is none."""
    found = table[name]
    if isinstance(found, str):
        raise Refused(404, found, f"there is no {name} here")
    return document(*found)
