"""S3 clients: one a process for equal settings, made when first needed.

They are botocore's, which boto3's clients are as well. boto3 itself would add its resources and its transfer manager,
and a tenth of a second to each process that opens a bucket.

A store carries settings only, so it pickles and crosses a fork. A child process makes clients of its own, because
connections must not be shared between processes.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast
from xml.etree import ElementTree as ET

import botocore.exceptions as boto
from botocore.exceptions import BotoCoreError, ClientError
from urllib3.exceptions import HTTPError

from lakeops.model.errors import (
    InvalidInput,
    InvalidPath,
    LakeopsError,
    ObjectNotFound,
    StoreError,
    StoreUnavailable,
    unsupported,
)
from lakeops.store.base import StoreSettings
from lakeops.store.bucket import PerProcess, no_bucket
from lakeops.store.s3.direct import DEFAULT_REGION, NO_ANSWER, check_answers, let_parsers_read_anything

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


_clients: PerProcess[StoreSettings, S3Client] = PerProcess(lambda settings: _connect(settings))  # noqa: PLW0108


def client(settings: StoreSettings) -> S3Client:
    """The process's client for these settings. Threads may share it."""
    return _clients.get(settings)


def _connect(settings: StoreSettings) -> S3Client:
    import botocore.session
    from botocore.config import Config
    from botocore.handlers import add_expect_header, convert_body_to_file_like_object

    config = Config(
        signature_version="s3v4",
        s3={"addressing_style": "path" if settings.endpoint_url else "auto"},
        retries={"mode": "standard", "total_max_attempts": settings.max_attempts},
        connect_timeout=settings.connect_timeout,
        read_timeout=settings.read_timeout,
        max_pool_connections=settings.max_connections,
        # Older servers answer checksum trailers with 411. Each write has its checksum in a header.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        user_agent_extra="lakeops",
    )
    given = settings.credentials  # without them botocore looks for its own
    try:
        core = botocore.session.get_session()
        parsers = core.get_component("response_parser_factory")
        parsers.set_parser_defaults(timestamp_parser=moment)
        let_parsers_read_anything(parsers)
        made = cast(
            "S3Client",
            core.create_client(
                "s3",
                endpoint_url=settings.endpoint_url,
                region_name=settings.region or core.get_config_variable("region") or DEFAULT_REGION,
                config=config,
                aws_access_key_id=given.access_key if given else None,
                aws_secret_access_key=given.secret_key if given else None,
                aws_session_token=given.token if given else None,
            ),
        )
    except (BotoCoreError, ValueError) as error:
        kind = type(error).__name__
        raise StoreError(
            f"boto3's configuration does not allow an S3 client ({kind}); correct the AWS settings"
        ) from None
    for operation in ("PutObject", "UploadPart", "DeleteObjects"):
        made.meta.events.register_last(f"before-call.s3.{operation}", _add_content_md5)
        # Bytes go to the socket as they are. Of a file botocore sends 16 KiB at a time.
        made.meta.events.unregister(f"before-parameter-build.s3.{operation}", convert_body_to_file_like_object)
    if settings.requester_pays:
        made.meta.events.register("before-sign.s3", _name_requester)
    # With `Expect: 100-continue` each write would wait for two answers. Our bodies are small, or sent in parts.
    made.meta.events.unregister("before-call.s3", add_expect_header)
    # With a star botocore calls it before its own handler for all answers, which would parse the page once more.
    made.meta.events.register("before-parse.*.ListObjectsV2", take_objects)
    made.meta.events.register("needs-retry.s3", _log_lost_try)
    check_answers(made)
    return made


def _log_lost_try(attempts: int, caught_exception: Exception | None = None, response: Any = None, **_: Any) -> None:  # noqa: ANN401
    """Log a request that no server answered, or that one failed on: boto3 makes it again."""
    status = 0 if response is None else response[0].status_code
    if caught_exception is not None or status >= 500:
        why = type(caught_exception).__name__ if caught_exception is not None else status
        logging.getLogger("lakeops.store").warning("the object store does not answer (%s); try %d lost", why, attempts)


def _add_content_md5(params: dict[str, Any], **_: Any) -> None:  # noqa: ANN401 - botocore passes what it likes
    """Digest a body that has no checksum. Buckets with Object Lock demand one, and older servers know no other."""
    headers = params["headers"]
    if not any(name.lower().startswith("x-amz-checksum-") for name in headers):
        digest = hashlib.md5(params["body"], usedforsecurity=False).digest()
        headers["Content-MD5"] = base64.b64encode(digest).decode()


def _name_requester(request: Any, **_: Any) -> None:  # noqa: ANN401 - botocore's
    # Whoever opens a presigned URL sends no headers.
    place = request.params if request.context.get("is_presign_request") else request.headers
    place["x-amz-request-payer"] = "requester"


_MISSING = frozenset({"NoSuchKey", "404", "NotFound", "NoSuchVersion"})
_DENIED = frozenset({"AccessDenied", "AllAccessDisabled", "AccountProblem", "403", "Forbidden"})
_CREDENTIALS = frozenset(
    {
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidToken",
        "TokenRefreshRequired",
        "InvalidSecurity",
        "NotSignedUp",
        "InvalidClientTokenId",
    }
)
_REGION = frozenset({"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301"})
_PASSING = frozenset(
    {
        "InternalError",
        "SlowDown",
        "ServiceUnavailable",
        "RequestTimeout",
        "Throttling",
        "ThrottlingException",
        "RequestLimitExceeded",
        "TooManyRequests",
        "OperationAborted",
        "ConditionalRequestConflict",
        "BandwidthLimitExceeded",
        "XMinioServerNotInitialized",
    }
)
_NO_CREDENTIALS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.ProfileNotFound,
    boto.TokenRetrievalError,
    boto.SSOError,
    boto.RefreshWithMFAUnsupportedError,
    boto.NoAuthTokenError,
)
CONNECTION = (boto.HTTPClientError, boto.IncompleteReadError, boto.ConnectionError, HTTPError)
"""Errors of a request that got no whole answer."""


def code_of(error: ClientError) -> str:
    """The server's name for the error."""
    return str(error.response.get("Error", {}).get("Code", ""))


def status_of(error: ClientError) -> int:
    """The HTTP status of the answer, 0 when there is none."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def is_vague(error: ClientError) -> bool:
    """Whether a GET has to say what a HEAD's answer means. It has no body: no code, and a proxy may have given it."""
    return error.operation_name == "HeadObject" and (status_of(error) == 404 or code_of(error) == "400")


@contextmanager
def translated(bucket: str, url: str) -> Iterator[None]:
    """Turn botocore's errors inside the ``with`` into lakeops' own, naming the bucket and ``url``."""
    try:
        yield
    except ClientError as error:
        raise _from_answer(error, bucket, ascii(url)) from None
    except (BotoCoreError, HTTPError) as error:
        raise _from_no_answer(error, bucket, ascii(url)) from None
    except RuntimeError as error:  # others are of the caller's own file
        if "the refreshed credentials are still expired" not in str(error):
            raise
        raise StoreError(f"bucket {bucket!r}: no usable AWS credentials, they have expired; renew them") from None


def _from_answer(error: ClientError, bucket: str, where: str) -> LakeopsError:
    code, status, place = code_of(error), status_of(error), f"bucket {bucket!r}"
    if code == "NoSuchBucket":
        return no_bucket(bucket, "endpoint")
    if code == NO_ANSWER:
        return StoreUnavailable(
            f"{place} keeps sending malformed answers about {where}: {error.response['Error']['Message']}; "
            "look whether a proxy answers in its place, and try again"
        )
    if code in _REGION or status == 301:
        return StoreError(f"{place} lives in another region or behind another endpoint; set it ({code})")
    if code in _CREDENTIALS:
        return StoreError(f"{place}: the server refuses the credentials ({code}); renew or correct them")
    if code == "RequestTimeTooSkewed":
        return StoreError(f"{place}: this machine's clock is wrong ({code}); set it")
    if code == "InvalidObjectState":
        return StoreError(f"{place}: {where} is archived; restore it first ({code})")
    if code in _DENIED or status == 403:
        return StoreError(f"{place}: access to {where} is denied ({code}); give these credentials the right to it")
    if (code in _MISSING or status == 404) and code != "NoSuchUpload" and not is_vague(error):
        return ObjectNotFound(f"there is no object {where}")
    if code == "KeyTooLongError":
        return InvalidPath(f"{where} is longer than this server takes")
    if status == 501 or code == "NotImplemented":
        return unsupported(f"the server of {place} cannot do what was asked of {where} ({code})")
    if code in _PASSING or status in {404, 429} or status >= 500:
        return StoreUnavailable(f"{place} keeps failing on {where} ({code or status}); try again later")
    return StoreError(f"{place} refuses {where} ({code or status}); see the server's documentation of this code")


def _from_no_answer(error: Exception, bucket: str, where: str) -> LakeopsError:
    kind, place = type(error).__name__, f"bucket {bucket!r}"
    if isinstance(error, _NO_CREDENTIALS):
        return StoreError(f"{place}: no usable AWS credentials ({kind}); set them up the way boto3 reads them")
    if isinstance(error, boto.SSLError):
        return StoreError(f"{place}: no trusted TLS connection to its endpoint; correct the certificates")
    if isinstance(error, CONNECTION):
        return StoreUnavailable(f"{place} does not answer on {where} ({kind}); check the endpoint, try again")
    if isinstance(error, boto.ParamValidationError):
        return InvalidInput(f"{where} cannot be sent to an S3 server ({kind})")
    return StoreError(f"{place}: the request for {where} could not be made ({kind}); correct the AWS settings")


_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


def xml_part(name: str) -> str:
    """The longest beginning of a name that XML can spell. It has no way to write control characters, for instance.

    Batch deletes and the answers to listings are XML, so only this part can go into their requests.
    """
    unfit = _NOT_XML.search(name)
    return name[: unfit.start()] if unfit else name


def moment(value: str) -> datetime:
    """A time in an answer. botocore's own parser takes most of the time of a listing. This one knows its spelling."""
    with suppress(ValueError):
        found = datetime.fromisoformat(value)
        if found.tzinfo is not None:
            return found
    from botocore.utils import parse_timestamp  # late: it brings urllib3, which obstore's requests do without

    return parse_timestamp(value)


def take_objects(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object) -> None:
    """A handler of botocore's event ``before-parse``: the objects of a page, as botocore would give them."""
    if response_dict["status_code"] >= 300:
        return
    try:
        root = ET.fromstring(response_dict["body"])  # noqa: S314 - botocore parses it with the same parser
        spaces = root.tag[: root.tag.rindex("}") + 1] if "}" in root.tag else ""
        name, modified, etag, size = (f"{spaces}{part}" for part in ("Key", "LastModified", "ETag", "Size"))
        contents = f"{spaces}Contents"
        entries = ({part.tag: part.text or "" for part in item} for item in root.iterfind(contents))
        objects = [
            {"Key": said[name], "LastModified": moment(said[modified]), "ETag": said[etag], "Size": int(said[size])}
            for said in entries
        ]
    except (ET.ParseError, KeyError, ValueError):
        return
    if objects:
        root[:] = [item for item in root if item.tag != contents]
        response_dict["body"] = ET.tostring(root)
        customized_response_dict["Contents"] = objects
