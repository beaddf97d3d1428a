"""What S3's and botocore's errors mean to a caller, and what to do about them.

Messages name the bucket and the key and the server's error code. They carry nothing that a server or botocore wrote,
because that may hold a signed URL, a credential or a whole request.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
    Unsupported,
)

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
"""What a request ends with when no whole answer came."""


def code_of(error: ClientError) -> str:
    """The server's name for the error."""
    return str(error.response.get("Error", {}).get("Code", ""))


def status_of(error: ClientError) -> int:
    """The HTTP status of the answer, 0 when there is none."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


@contextmanager
def translated(bucket: str, url: str) -> Iterator[None]:
    """Turn botocore's errors inside the ``with`` into lakeops' own, naming the bucket and ``url``."""
    try:
        yield
    except ClientError as error:
        raise _answered(error, bucket, ascii(url)) from None
    except (BotoCoreError, HTTPError) as error:
        raise _unanswered(error, bucket, ascii(url)) from None


def _answered(error: ClientError, bucket: str, where: str) -> LakeopsError:
    code, status = code_of(error), status_of(error)
    if code == "NoSuchBucket":
        return no_bucket(bucket)
    if code in _REGION or status == 301:
        return StoreError(f"bucket {bucket!r} lives in another region or behind another endpoint; set it ({code})")
    if code in _CREDENTIALS:
        return StoreError(f"bucket {bucket!r}: the server refuses the credentials ({code}); renew or correct them")
    if code == "RequestTimeTooSkewed":
        return StoreError(f"bucket {bucket!r}: this machine's clock is wrong ({code}); set it")
    if code == "InvalidObjectState":
        return StoreError(f"bucket {bucket!r}: {where} is archived; restore it first ({code})")
    if code in _DENIED or status == 403:
        return StoreError(
            f"bucket {bucket!r}: access to {where} is denied ({code}); give these credentials the right to it"
        )
    if code in _MISSING or status == 404:
        return ObjectNotFound(f"there is no object {where}")
    if code == "KeyTooLongError":
        return InvalidPath(f"{where} is longer than this server takes")
    if status == 501 or code == "NotImplemented":
        return Unsupported(f"the server of bucket {bucket!r} cannot do what was asked of {where} ({code})")
    if code in _PASSING or status == 429 or status >= 500:
        return StoreUnavailable(f"bucket {bucket!r} keeps failing on {where} ({code or status}); try again later")
    return StoreError(
        f"bucket {bucket!r} refuses {where} ({code or status}); see the server's documentation of this code"
    )


def _unanswered(error: Exception, bucket: str, where: str) -> LakeopsError:
    kind = type(error).__name__
    if isinstance(error, _NO_CREDENTIALS):
        return StoreError(
            f"bucket {bucket!r}: no usable AWS credentials ({kind}); set them up the way boto3 reads them"
        )
    if isinstance(error, boto.SSLError):
        return StoreError(f"bucket {bucket!r}: no trusted TLS connection to its endpoint; correct the certificates")
    if isinstance(error, CONNECTION):
        return StoreUnavailable(f"bucket {bucket!r} does not answer on {where} ({kind}); check the endpoint, try again")
    if isinstance(error, boto.ParamValidationError):
        return InvalidInput(f"{where} cannot be asked of an S3 server ({kind})")
    return StoreError(
        f"bucket {bucket!r}: the request for {where} could not be made ({kind}); correct the AWS settings"
    )


def no_bucket(bucket: str) -> StoreError:
    """The error for a bucket that is not there."""
    return StoreError(f"bucket {bucket!r} does not exist; create it, or correct the storage namespace or the endpoint")
