"""Signature Version 4, verified: botocore signs what came with the secret key, and the two signatures are compared.

botocore holds the algorithm. What is decided here is which parts of a request a signature must cover, and for how long
it counts. A request is signed in its headers or, as a presigned URL, in its query.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import cached_property
from io import BytesIO
from ipaddress import ip_address
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import quote, urlsplit

from lakeops.gateway.answers import Refused
from lakeops.model.records import Credentials

if TYPE_CHECKING:
    from botocore.awsrequest import AWSRequest

ALGORITHM = "AWS4-HMAC-SHA256"
SKEW = timedelta(minutes=15)
"""How far a signature's time may be from the gateway's clock, as in S3."""
LONGEST = timedelta(days=7)
"""How long a presigned URL may count, as in S3."""

_ISO = "%Y%m%dT%H%M%SZ"
_HEADER = re.compile(r"AWS4-HMAC-SHA256 +Credential=([^, ]+), *SignedHeaders=([^, ]+), *Signature=([0-9a-f]{64})")
_PARAMETERS = [f"X-Amz-{one}" for one in ("Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature")]


@dataclass(frozen=True)
class S3Request:
    """A request of S3's protocol, with the decoded path ``/BUCKET/KEY``.

    ``parameters`` are the decoded names and values of the query, ``fields`` the headers with names in lower case, both
    in the order in which they came. The body is at its beginning, out of its chunks, and ``trailers`` came behind it.
    """

    method: str
    path: str
    parameters: Sequence[tuple[str, str]]
    fields: Sequence[tuple[str, str]]
    body: BinaryIO = field(default_factory=BytesIO)
    trailers: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def bucket(self) -> str:
        """The repository, empty where none is named."""
        return self.path[1:].partition("/")[0]

    @cached_property
    def key(self) -> str:
        """The ref and the path, empty where none are named."""
        return self.path[1:].partition("/")[2]

    @cached_property
    def query(self) -> dict[str, str]:
        """The parameters by name. The last of equal ones counts."""
        return dict(self.parameters)

    @cached_property
    def headers(self) -> dict[str, str]:
        """The headers by name. Values of equal names are joined. Presigned URLs have some of them in their query."""
        signed = {*_PARAMETERS, "X-Amz-Security-Token"}
        hoisted = {name.lower(): value for name, value in self.parameters if name not in signed}
        came: dict[str, str] = {}
        for name, value in self.fields:
            came[name] = f"{came[name]},{value}" if name in came else value
        return {name: value for name, value in hoisted.items() if name.startswith("x-amz-")} | came

    @cached_property
    def asks(self) -> frozenset[str]:
        """The names of the parameters that say what is asked for."""
        plain = {name for name in self.query if not name.lower().startswith("x-amz-")} - {"x-id"}
        return frozenset(plain - {"versionId"} if self.query.get("versionId") == "null" else plain)


@dataclass(frozen=True, slots=True)
class _Claim:
    credential: str
    timestamp: str
    signed_headers: frozenset[str]
    signature: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Seed:
    """The signature of a request, which those of its chunks continue, with its time and scope (date, region, service).

    ``sign`` signs a text with the key that the request was signed with.
    """

    signature: str = field(repr=False)
    timestamp: str
    scope: str
    sign: Callable[[str], str] = field(repr=False)


def check_host(host: str) -> None:
    """Refuse a request without a signature that is not addressed to this machine itself."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        here = name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        here = False
    if not here:
        # A page of the web can give its name the address 127.0.0.1, and have a browser read what it sends there.
        raise Refused(403, "AccessDenied", "without keys the gateway answers to localhost and 127.0.0.1 only")


def verify(request: S3Request, keys: Credentials, now: datetime) -> Seed:
    """Verify that a request was signed with these keys, not too long ago. Returns the seed of its chunks' signatures.

    Raises:
        Refused: it was not, with the code that S3 has for the reason.
    """
    claim, payload = (_presigned if "X-Amz-Algorithm" in request.query else _in_headers)(request, now)
    # Any region will do, because the gateway has none.
    parts = claim.credential.split("/")
    if len(parts) < 5 or parts[-2:] != ["s3", "aws4_request"]:
        raise Refused(400, "AuthorizationHeaderMalformed", "the credential must end in DATE/REGION/s3/aws4_request")
    access_key, date, region = "/".join(parts[:-4]), parts[-4], parts[-3]
    if not hmac.compare_digest(access_key.encode(), keys.access_key.encode()):
        raise Refused(403, "InvalidAccessKeyId", "the gateway does not know this access key")
    expected, seed = _signature(request, claim, keys, region, payload)
    if not hmac.compare_digest(expected.encode(), claim.signature.encode()):
        flaw = "the signature is not of this request: compare the secret key, and let a proxy pass on Host unchanged"
        raise Refused(403, "SignatureDoesNotMatch", flaw)
    if date != claim.timestamp[:8]:
        raise Refused(403, "SignatureDoesNotMatch", "the credential's date is not that of the signature")
    return seed


def _in_headers(request: S3Request, now: datetime) -> tuple[_Claim, str]:
    given = request.headers.get("authorization", "")
    if given.startswith("AWS ") or "AWSAccessKeyId" in request.query:
        raise Refused(400, "InvalidRequest", "signatures of version 2 are not taken; sign with version 4 (s3v4)")
    if not given and request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise Refused(501, "NotImplemented", "this gateway takes no forms; presign a PutObject")
    if not given:
        raise Refused(403, "AccessDenied", "this gateway takes signed requests only; configure its access key")
    found = _HEADER.fullmatch(given.strip())
    if found is None:
        code = "AuthorizationHeaderMalformed" if given.startswith(ALGORITHM) else "InvalidArgument"
        raise Refused(400, code, f"the Authorization header is not one of {ALGORITHM}")
    begun = _parse_timestamp(request.headers.get("x-amz-date") or request.headers.get("date", ""))
    if abs(now - begun) > SKEW:
        raise Refused(403, "RequestTimeTooSkewed", "the request's time is more than 15 minutes from the gateway's")
    payload = request.headers.get("x-amz-content-sha256")
    if payload is None:
        raise Refused(400, "InvalidRequest", "the header x-amz-content-sha256 is missing")
    return _Claim(found[1], begun.strftime(_ISO), _covered(request, found[2]), found[3]), payload


def _presigned(request: S3Request, now: datetime) -> tuple[_Claim, str]:
    if "authorization" in request.headers:
        raise Refused(400, "InvalidArgument", "a request is signed in its headers or in its query, not in both")
    names = [name for name, _ in request.parameters]
    for name in _PARAMETERS:
        if names.count(name) != 1:
            raise Refused(400, "AuthorizationQueryParametersError", f"a presigned URL has exactly one {name}")
    algorithm, credential, timestamp, seconds, signed, signature = (request.query[name] for name in _PARAMETERS)
    if algorithm != ALGORITHM:
        raise Refused(400, "AuthorizationQueryParametersError", f"X-Amz-Algorithm must be {ALGORITHM}")
    if not re.fullmatch(r"[0-9]{1,6}", seconds) or not 0 < int(seconds) <= LONGEST.total_seconds():
        raise Refused(400, "AuthorizationQueryParametersError", "X-Amz-Expires must be 1 to 604800 seconds")
    begun = _parse_timestamp(timestamp)
    if begun - now > SKEW:
        raise Refused(403, "AccessDenied", "the presigned URL does not count yet")
    if now > begun + timedelta(seconds=int(seconds)):
        raise Refused(403, "AccessDenied", "Request has expired")
    payload = request.headers.get("x-amz-content-sha256") or "UNSIGNED-PAYLOAD"
    return _Claim(credential, timestamp, _covered(request, signed), signature), payload


def _covered(request: S3Request, listed: str) -> frozenset[str]:
    """The headers that the signature covers. It must cover ``Host`` and every ``x-amz-`` header that came."""
    covered = frozenset(listed.split(";"))
    missing = {"host", *(name for name, _ in request.fields if name.startswith("x-amz-"))} - covered
    if missing:
        raise Refused(403, "AccessDenied", f"these headers must be signed and are not: {', '.join(sorted(missing))}")
    if "x-amz-security-token" in request.headers or "X-Amz-Security-Token" in request.query:
        raise Refused(400, "InvalidToken", "the gateway's keys have no session token; leave it out")
    return covered


def _parse_timestamp(timestamp: str) -> datetime:
    try:
        if re.fullmatch(r"[0-9]{8}T[0-9]{6}Z", timestamp):
            return datetime.strptime(timestamp, _ISO).replace(tzinfo=UTC)
        return parsedate_to_datetime(timestamp).astimezone(UTC)
    except (ValueError, OverflowError):
        raise Refused(403, "AccessDenied", "a signed request has x-amz-date as 20260131T235959Z") from None


def _signature(request: S3Request, claim: _Claim, keys: Credentials, region: str, payload: str) -> tuple[str, Seed]:
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.compat import HTTPHeaders
    from botocore.credentials import Credentials as Botos

    headers = HTTPHeaders()
    for name, value in request.fields:
        if name in claim.signed_headers:
            headers.add_header(name, value)

    class Signer(S3SigV4Auth):
        def headers_to_sign(self, _: AWSRequest) -> HTTPHeaders:
            return headers  # botocore would leave some out, which other programs sign

        def payload(self, _: AWSRequest) -> str:
            return payload

    signer = Signer(Botos(keys.access_key, keys.secret_key), "s3", region)
    # Clients escape paths and queries differently on the wire. They all sign this form.
    query = "&".join(
        f"{quote(key, '')}={quote(value, '')}" for key, value in request.parameters if key != "X-Amz-Signature"
    )
    again = AWSRequest(method=request.method, url=f"http://gateway{quote(request.path, '/')}?{query}")
    again.context["timestamp"] = claim.timestamp
    expected = str(signer.signature(signer.string_to_sign(again, signer.canonical_request(again)), again))

    def sign(text: str) -> str:
        return str(signer.signature(text, again))

    return expected, Seed(expected, claim.timestamp, str(signer.credential_scope(again)), sign)
