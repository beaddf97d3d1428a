"""Plain requests to a bucket by obstore: contents, ranges, small writes and what a HEAD tells.

botocore takes about six times as much CPU for a request. So a request that is plain is made by obstore, once. What is
no success is made again by botocore: retries, redirects, other spellings of a condition and errors are known there
alone. botocore also finds the credentials. Where an administrator configured more than keys and a region, no request
goes this way.

obstore's threads do not cross a fork. A process that was forked from one that had used them has botocore only.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote_plus

from lakeops.model.clock import stopwatch
from lakeops.model.records import Credentials
from lakeops.store.base import StoredObject, StoreSettings
from lakeops.store.bucket import ACCESS_POINT, LazyModule, PerProcess, is_plain, stored, threads_lost

if TYPE_CHECKING:
    import obstore
    from botocore.credentials import Credentials as BotoCredentials
    from botocore.exceptions import ClientError
    from mypy_boto3_s3 import S3Client
    from obstore import GetOptions, ObjectMeta
    from obstore.store import S3Store as Client
else:
    obstore = LazyModule("obstore")

NO_ANSWER: Final = "lakeops-no-answer"
"""The code of the error that stands in place of such an answer. Its message says what is missing."""

_UNAVAILABLE = 503
_ELSEWHERE = {302, 303, 307, 308}
_ROOT = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<(?:\w+:)?(\w+)", re.DOTALL)
_TRUTH = re.compile(rb"<(?:\w+:)?IsTruncated>\s*(?:true|false)\s*<")
_SPAN = re.compile(r"bytes[ =](\d+)-(\d+)(?:/(\d+|\*))?")

_Fields = Mapping[str, Any]


class _Form(NamedTuple):
    """The form of an answer: one of some root elements (empty: no body), fields, and what a check asks for."""

    root: str | None = None
    fields: tuple[str, ...] = ()
    check: Callable[[_Fields, _Fields], str] = lambda _asked, _answer: ""


def find_flaw(operation: str, asked: _Fields, answer: _Fields) -> str:
    """Say what the fields of an answer lack, empty when nothing. Parameters and fields are named as botocore does."""
    form = _FORMS.get(operation, _Form())
    for name in form.fields:
        found: Any = answer
        for part in name.split("."):
            found = (found or {}).get(part)
        if found in (None, "", '""'):
            return f"it has no {name}"
    return form.check(asked, answer)


def _flaw_of_page(asked: _Fields, page: _Fields) -> str:
    decoded = unquote_plus if page.get("EncodingType") == "url" else str
    objects, folders = page.get("Contents", ()), page.get("CommonPrefixes", ())
    prefix, bucket, token = asked["Prefix"], asked["Bucket"], page.get("NextContinuationToken")
    # The name of an access point leads to a bucket of another name.
    if page.get("Name", bucket) != bucket and not bucket.endswith("-s3alias") and ":" not in bucket:
        return "it lists another bucket"
    told = page.get("Prefix", prefix)  # Ceph encodes keys alone, and XML changes the ends of lines
    if "".join(prefix.split()) not in {"".join(name.split()) for name in (told, decoded(told))}:
        return "it lists another prefix"
    if page["IsTruncated"] and (not token or token == asked.get("ContinuationToken")):
        return "it is truncated and has no token to go on with"
    if page.get("KeyCount", len(objects)) not in {len(objects), len(objects) + len(folders)}:  # some count no folders
        return "its KeyCount is not the number of its entries"
    if folders and not asked.get("Delimiter"):
        return "it has folders in place of objects"
    if any(not {"Key", "ETag", "LastModified"} <= item.keys() or item.get("Size", -1) < 0 for item in objects):
        return "an entry lacks its Key, Size, ETag or LastModified"
    names = chain((item["Key"] for item in objects), (item.get("Prefix", "") for item in folders))
    return "" if all(decoded(name).startswith(prefix) for name in names) else "an entry is not below the prefix"


def _flaw_of_contents(asked: _Fields, answer: _Fields) -> str:
    wanted, given = asked.get("IfMatch", "").strip('"'), answer["ETag"].strip('"')
    if wanted and wanted != given:
        return "its ETag is not the one that was asked for"
    told, size = answer.get("ContentRange"), answer["ContentLength"]
    if told is None:
        partial = answer.get("ResponseMetadata", {}).get("HTTPStatusCode") == 206
        return "it is a part without a Content-Range" if partial else ""
    found, span = _SPAN.fullmatch(told), _SPAN.fullmatch(asked.get("Range", ""))
    if found is None or span is None:
        return "its Content-Range is none that was asked for"
    whole = int(found[3]) if found[3] and found[3] != "*" else int(found[2]) + 1
    first, last = int(span[1]), min(int(span[2]), whole - 1)
    same = (first, last, last - first + 1) == (int(found[1]), int(found[2]), size)
    return "" if same else "it holds another range"


def _flaw_of_deletion(asked: _Fields, answer: _Fields) -> str:
    keys = {item["Key"] for item in asked["Delete"]["Objects"]}
    done, refused = ({item.get("Key") for item in answer.get(name, ())} for name in ("Deleted", "Errors"))
    if not refused <= keys:
        return "it refuses keys that were not to be deleted"
    return "" if asked["Delete"].get("Quiet") or keys == done | refused else "it leaves keys out"


_OBJECT = ("ETag", "ContentLength", "LastModified")
_BARE = "DeleteObject AbortMultipartUpload PutBucketVersioning PutBucketLifecycleConfiguration PutBucketReplication"
_FORMS: Mapping[str, _Form] = {
    "ListObjectsV2": _Form("ListBucketResult", ("IsTruncated",), _flaw_of_page),
    "HeadObject": _Form(None, _OBJECT),
    "GetObject": _Form(None, _OBJECT, _flaw_of_contents),
    "PutObject": _Form(None, ("ETag",)),
    "UploadPart": _Form(None, ("ETag",)),
    "CopyObject": _Form("CopyObjectResult", ("CopyObjectResult.ETag",)),
    "UploadPartCopy": _Form("CopyPartResult", ("CopyPartResult.ETag",)),
    "CreateMultipartUpload": _Form("InitiateMultipartUploadResult", ("UploadId",)),
    "CompleteMultipartUpload": _Form("CompleteMultipartUploadResult"),  # Ceph tells no ETag here
    "DeleteObjects": _Form("DeleteResult", (), _flaw_of_deletion),
    "GetBucketLocation": _Form("LocationConstraint"),
    "GetBucketVersioning": _Form("VersioningConfiguration|GetBucketVersioningResponse"),  # moto has the latter
    "GetBucketLifecycleConfiguration": _Form("LifecycleConfiguration"),
    "GetBucketReplication": _Form("ReplicationConfiguration"),
    "GetBucketEncryption": _Form("ServerSideEncryptionConfiguration"),
    **dict.fromkeys(_BARE.split(), _Form("")),
}


def let_parsers_read_anything(factory: Any) -> None:  # noqa: ANN401 - botocore's
    """Have botocore's parsers take a body that they cannot read for an answer of 503."""
    make = factory.create_parser

    def create(protocol: str) -> Any:  # noqa: ANN401 - botocore's
        parser = make(protocol)
        read = parser.parse

        def parse(response: dict[str, Any], shape: Any) -> Any:  # noqa: ANN401 - botocore's
            try:
                return read(response, shape)
            except Exception:  # noqa: BLE001 - whatever a parser meets in what is not the server's
                getattr(response["body"], "close", bool)()
                return read({**response, "status_code": _UNAVAILABLE, "body": b""}, shape)

        parser.parse = parse
        return parser

    factory.create_parser = create


def check_answers(client: S3Client) -> None:
    """Have a client check all of its answers."""
    keep = "before-parameter-build.s3"
    client.meta.events.register(keep, lambda params, context, **_: context.update(lakeops_params=params))
    client.meta.events.register_first("needs-retry.s3.*", _check)


def _check(response: Any, operation: Any, request_dict: dict[str, Any], **_: object) -> None:  # noqa: ANN401 - botocore's
    """A handler of botocore's event ``needs-retry``: turn a malformed answer into one with the status 503."""
    if response is None:
        return
    http, parsed = response
    if flaw := _flaw_of(operation, http, parsed, request_dict["context"]["lakeops_params"]):
        if "Body" in parsed:
            parsed["Body"].close()
        about = {**parsed["ResponseMetadata"], "HTTPStatusCode": _UNAVAILABLE}
        http.status_code = _UNAVAILABLE
        parsed.clear()  # botocore goes on with what is left
        parsed.update(Error={"Code": NO_ANSWER, "Message": flaw}, ResponseMetadata=about)


def _flaw_of(operation: Any, http: Any, parsed: _Fields, asked: _Fields) -> str:  # noqa: ANN401 - botocore's
    """Say what is wrong with an answer: its status, its body or its fields."""
    if http.status_code in _ELSEWHERE:
        return "it leads to another place"
    if http.status_code == 404 and operation.http["method"] != "HEAD" and _root(http) != "Error":
        return "it says that nothing is there, and not as S3 says it"
    if http.status_code >= 300:
        return ""
    if parsed["ResponseMetadata"]["HTTPStatusCode"] == _UNAVAILABLE:
        return "its body cannot be read"
    if "Error" in parsed:  # botocore has seen that the body is an error
        return ""
    roots = _FORMS.get(operation.name, _Form()).root
    if roots is not None and _root(http) not in roots.split("|"):
        return f"its body is no {roots.partition('|')[0]}" if roots else "it has a body"
    if operation.name == "ListObjectsV2" and not _TRUTH.search(http.content):
        return "it does not say whether it is truncated"
    return find_flaw(operation.name, asked, parsed)


def _root(http: Any) -> str:  # noqa: ANN401 - botocore's
    found = _ROOT.match(http.content)
    return found[1].decode() if found else "something else" if http.content else ""


DEFAULT_REGION = "us-east-1"

PATIENCE = 5.0
"""Seconds to wait for a connection or for the next bytes, at most: no signal is handled meanwhile. botocore waits
longer, and lets a signal through."""
_LONGEST_REQUEST = timedelta(minutes=10)
LARGEST_WRITE = 1024 * 1024
"""Bytes of contents that cross most networks within the patience. Python's main thread leaves larger ones to botocore,
because it handles the signals. Other threads handle none, whoever they wait for."""
WRITE_PATIENCE = 30.0
"""Seconds that those threads wait for a larger write, which is one part of an upload at most."""
_MOST_FAILURES = 3
"""Failures in a row, after which a process leaves a bucket to botocore: it may be behind a redirect."""
_REST_SECONDS = 60
"""For so long."""

_ANSWERS = {"AlreadyExistsError", "PreconditionError"}
"""Errors of obstore that are no failure of the way: a condition did not hold."""

_TRUST = re.compile(r"(AWS|REQUESTS)_CA_BUNDLE|SSL_CERT_\w+")
_ROUTE = re.compile(r"(HTTPS?|ALL)_PROXY|AWS_USE_\w+", re.IGNORECASE)
"""Variables that change whom connections trust, and where they go."""
_NAMES_SERVER = re.compile(r"AWS_ENDPOINT_URL(_S3)?")
_WHO_AND_WHERE = re.compile(
    r"(aws_|sso_)\w+|credential_(process|source)|duration_seconds|external_id|mfa_serial|output|region|role_arn"
    r"|role_session_name|source_profile|web_identity_token_file"
)
"""Lines of a profile that say who asks, and in which region. Any other line may change how."""

# Regions whose endpoints end in amazonaws.com, and buckets that are plain ones by their names.
_REGION = re.compile(r"(af|ap|ca|eu|il|me|mx|sa|us|us-gov)-[a-z]+-\d")
_BUCKET = re.compile(r"(?!xn--)(?!.*-(s3|s3alias)$)[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")


@dataclass(repr=False, eq=False)
class Direct:
    """Plain requests to one bucket. Threads may share it.

    Every method returns None where botocore has to ask: the request was not made, or it was no success. Only that an
    object is missing is known for sure: then methods raise what botocore raises. ``keys`` gives the keys of now, None
    where there are none. ``options`` says where the bucket is, as obstore takes it.
    """

    bucket: str
    settings: StoreSettings
    keys: Callable[[], Credentials | None]
    options: dict[str, Any]
    _made: dict[float, tuple[Credentials, Client]] = field(default_factory=dict)
    _failures: int = 0
    _since_failure: Callable[[], float] = field(default_factory=stopwatch)

    def read(self, name: str, start: int = 0, length: int | None = None, etag: str = "") -> bytes | None:
        """An object's contents, or ``length`` bytes of them at most; with ``etag`` if it still has this one."""
        options: GetOptions = {"if_match": f'"{etag}"'} if etag else {}
        if length is not None:
            options["range"] = (start, start + length)
        found = self._get(name, options)
        return None if found is None else found[1]

    def head(self, key: str, name: str) -> StoredObject | None:
        """Describe an object, under its key."""
        found = self._get(name, {"head": True})
        return None if found is None else stored(key, found[0], found[2])

    def write(self, name: str, body: bytes, attributes: dict[str, str], *, new: bool) -> str | None:
        """Write an object in one request, with ``new`` on the condition that there is none. Gives its ETag.

        After None the object may be there all the same, as after any request whose answer is lost.
        """
        large = len(body) > LARGEST_WRITE
        if large and threading.current_thread() is threading.main_thread():
            return None
        client = self._client(name, WRITE_PATIENCE if large else PATIENCE)
        if client is None:
            return None
        try:
            mode: Any = "create" if new else "overwrite"
            done = obstore.put(client, name, body, attributes=attributes, mode=mode, use_multipart=False)
        except Exception as error:  # noqa: BLE001 - botocore finds out what it is
            self._count(error)
            return None
        self._failures = 0
        return (done["e_tag"] or "").strip('"') or None

    def _get(self, name: str, options: GetOptions) -> tuple[ObjectMeta, bytes, str] | None:
        """The description of an object, its contents, and their type."""
        client = self._client(name)
        if client is None:
            return None
        try:
            answer = obstore.get(client, name, options=options)
            body = b"" if "head" in options else bytes(answer.bytes())
            found = answer.meta, body, str(answer.attributes.get("Content-Type", ""))
        except FileNotFoundError as error:
            if "head" in options or "<Code>NoSuchKey</Code>" in str(error):
                raise _missing("HeadObject" if "head" in options else "GetObject") from None
            return None  # the bucket is missing
        except Exception as error:  # noqa: BLE001 - botocore finds out what it is
            self._count(error)
            return None
        etag, size, moment = found[0]["e_tag"], found[0]["size"], found[0]["last_modified"].timestamp()
        # obstore has 1970 for no time, and has compared the range that the answer tells, not how long the body is.
        told = {"ETag": etag, "ContentLength": size, "LastModified": moment or None}
        whole = "head" in options or len(body) == answer.range[1] - answer.range[0]
        if not whole or find_flaw("GetObject", {"IfMatch": options.get("if_match") or ""}, told):
            return None
        self._failures = 0
        return found

    def _count(self, error: Exception) -> None:
        if type(error).__name__ not in _ANSWERS:
            self._failures += 1
            self._since_failure = stopwatch()

    def _client(self, name: str, patience: float | None = None) -> Client | None:
        """The client for an object's name, which waits so many seconds for an answer."""
        resting = self._failures >= _MOST_FAILURES and self._since_failure() < _REST_SECONDS
        keys = self.keys() if is_plain(name) and not resting else None
        if keys is None:
            return None
        patience = patience or PATIENCE
        made = self._made.get(patience)
        if made is None or made[0] != keys:  # those that last for some time only were renewed
            made = keys, _connect(self.bucket, self.settings, keys, self.options, patience)
            self._made[patience] = made
        return made[1]


def _current_keys(given: Credentials | None, found: BotoCredentials | None) -> Credentials | None:
    """The given keys, or the current keys of botocore, which renews them in time."""
    if given is not None or found is None:
        return given
    frozen = found.get_frozen_credentials()
    if not frozen.access_key or not frozen.secret_key:
        return None
    return Credentials(frozen.access_key, frozen.secret_key, frozen.token)


_buckets: PerProcess[tuple[str, StoreSettings], Direct | None] = PerProcess(lambda place: _open(*place), keep=True)


def direct(bucket: str, settings: StoreSettings) -> Direct | None:
    """The plain requests of this process to a bucket; None where all requests are botocore's."""
    return None if threads_lost() else _buckets.get((bucket, settings))


def _open(bucket: str, settings: StoreSettings) -> Direct | None:
    plain_http = (settings.endpoint_url or "").startswith("http:")
    if any(_ROUTE.fullmatch(name) or (_TRUST.fullmatch(name) and not plain_http) for name in os.environ):
        return None
    if _is_intercepted() or find_spec("obstore") is None:  # executors of Spark may have no more than boto3
        return None
    given = settings.credentials or _keys_of_variables()
    found, region = None, os.environ.get("AWS_DEFAULT_REGION")
    if given is None or _has_profiles():
        import botocore.session
        from botocore.exceptions import BotoCoreError

        try:
            session = botocore.session.get_session()
            region = session.get_config_variable("region")
            if not all(_WHO_AND_WHERE.fullmatch(line) for line in session.get_scoped_config()):
                return None
            if settings.credentials is None:
                given, found = None, session.get_credentials()
        except BotoCoreError:
            return None
    options = _where(bucket, settings.endpoint_url, settings.region or region or DEFAULT_REGION)
    options = options and {**options, "request_payer": settings.requester_pays}
    return Direct(bucket, settings, partial(_current_keys, given, found), options) if options else None


def _keys_of_variables() -> Credentials | None:
    """The keys of the environment, which come first in boto3's chain. None where they are to be renewed."""
    values = os.environ
    access_key, secret_key = values.get("AWS_ACCESS_KEY_ID"), values.get("AWS_SECRET_ACCESS_KEY")
    if not access_key or not secret_key or "AWS_CREDENTIAL_EXPIRATION" in values:
        return None
    return Credentials(access_key, secret_key, values.get("AWS_SESSION_TOKEN") or values.get("AWS_SECURITY_TOKEN"))


def _has_profiles() -> bool:
    """Whether there may be a profile. botocore takes 40 ms to say so."""
    file = Path(os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config").expanduser()
    shared = Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials").expanduser()
    named = "AWS_PROFILE" in os.environ or "AWS_DEFAULT_PROFILE" in os.environ
    return named or file.exists() or shared.exists()


def _is_intercepted() -> bool:
    """Whether somebody puts answers in the place of servers' for every client of botocore, as moto's mocks do."""
    handlers = sys.modules.get("botocore.handlers")
    return any(entry[0].startswith("before-send") for entry in getattr(handlers, "BUILTIN_HANDLERS", ()))


def _where(bucket: str, endpoint: str | None, region: str) -> dict[str, Any]:
    """The server, as obstore takes it. Nothing where only botocore knows it."""
    by_host = endpoint is None
    if endpoint is None:
        if any(_NAMES_SERVER.fullmatch(name) for name in os.environ):
            return {}
        place, point = f"{bucket}.s3", ACCESS_POINT.fullmatch(bucket)
        if point is not None:
            region, account, name = point.groups()
            place = f"{name}-{account}.s3-accesspoint"
        if not (_REGION.fullmatch(region) and (point or _BUCKET.fullmatch(bucket))):
            return {}
        endpoint = f"https://{place}.{region}.amazonaws.com"
    # Everything is said here. obstore would ask variables of its own for what is left out.
    return {
        "endpoint": endpoint,
        "aws_endpoint_url_s3": endpoint,
        "region": region,
        "virtual_hosted_style_request": by_host,
        "skip_signature": False,
        "unsigned_payload": False,
        "checksum_algorithm": "SHA256",
        "conditional_put": "etag",
        "s3_express": False,
    }


def _connect(
    bucket: str, settings: StoreSettings, keys: Credentials, options: dict[str, Any], patience: float
) -> Client:
    from obstore.store import S3Store as Client

    credential: Any = {
        "access_key_id": keys.access_key,
        "secret_access_key": keys.secret_key,
        "token": keys.token,
        "expires_at": None,
    }
    return Client(
        bucket,
        **options,
        credential_provider=lambda: credential,
        client_options={
            "allow_http": True,  # the endpoint says which
            "connect_timeout": timedelta(seconds=min(PATIENCE, settings.connect_timeout)),
            "read_timeout": timedelta(seconds=min(patience, settings.read_timeout)),
            "timeout": _LONGEST_REQUEST,
            "pool_max_idle_per_host": str(settings.max_connections),
            "user_agent": "lakeops",
        },
        retry_config={"max_retries": 0},
    )


def _missing(operation: str) -> ClientError:
    from botocore.exceptions import ClientError

    return ClientError({"Error": {"Code": "NoSuchKey"}, "ResponseMetadata": {"HTTPStatusCode": 404}}, operation)  # type: ignore[typeddict-item]
