"""The gateway: an ASGI application that finds what a request names and answers it, and its server.

An answer is made in a thread, because the catalog and the stores block. The event loop only sends.
"""

from __future__ import annotations

import logging
import os
import pickle
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from errno import EADDRINUSE
from ipaddress import ip_address
from itertools import islice
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, BinaryIO, cast
from urllib.parse import parse_qsl, unquote

from lakeops.model.clock import Ids
from lakeops.model.errors import (
    InvalidInput,
    LakeopsError,
    PreconditionFailed,
    invalid_settings,
    out_of_resources,
    unsupported,
)
from lakeops.model.records import Credentials
from lakeops.model.sanitising import masked, safe

try:
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response

    from lakeops.serving import server_of
except ImportError:
    raise unsupported('the gateway needs starlette and uvicorn; install lakeops with its extra "gateway"') from None

from lakeops.gateway.answers import OWNER_ELEMENT, Refused, document, elements, error_document, nest, refusal, timestamp
from lakeops.gateway.chunks import Chunks, chunks_of
from lakeops.gateway.headers import BUCKET, check_headers, subresource
from lakeops.gateway.reading import OVERRIDES, get_object, list_objects, number_of, unknown
from lakeops.gateway.signature import S3Request, Seed, check_host, verify
from lakeops.gateway.writing import SPOOL_BYTES, Writing

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from lakeops.lake import Lake
    from lakeops.settings import Settings

log: logging.Logger = logging.getLogger(__name__)

REGION = "us-east-1"
_BACKLOG = 512
_MAX_PARAMETERS = 100
_MIN_SECRET = 16
ICEBERG = b"/iceberg/v1/"
_LISTING = {"prefix", "delimiter", "encoding-type", "fetch-owner", "list-type", "max-keys"}
_LISTING |= {"marker", "start-after", "continuation-token"}
_BUCKETS = {"bucket-region", "continuation-token", "max-buckets", "prefix"}
"""Parameters of listings. Any other one may ask for something that is not here."""

_INSTEAD = (
    "this gateway only reads; start it with --write, or write with lakeops fs upload, branch.put, branch.output or "
    "fsspec's lakefs:// URLs, and publish with lakeops commit"
)


def _parse_request(scope: Scope) -> S3Request:
    """Parse the request of an ASGI scope, without its body. Raises ``Refused`` for other text than UTF-8."""
    try:
        path = unquote(scope["raw_path"].decode("ascii"), errors="strict")
        text = scope["query_string"].decode("ascii")
        query = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=_MAX_PARAMETERS)
        headers = [(name.decode("ascii").lower(), _text(value)) for name, value in scope["headers"]]
    except ValueError:
        raise Refused(400, "InvalidURI", "the path or the query is not UTF-8, or has too many parts") from None
    if not path.startswith("/"):
        raise Refused(400, "InvalidURI", "the path must begin with /")
    return S3Request(scope["method"], path, query, headers)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


class Gateway:
    """An ASGI application that answers S3's requests from a lake: reads and, if it may, writes of objects.

    ``keys`` are what requests must be signed with. None takes unsigned ones, if they are addressed to this machine
    itself, and nothing is written then: a page of the web could send unsigned ones.
    """

    def __init__(self, lake: Lake, keys: Credentials | None = None, *, write: bool = False) -> None:
        if write and keys is None:
            raise invalid_settings("a gateway that takes writes needs gateway_access_key and gateway_secret_key")
        self._lake = lake
        self._keys = keys
        self._ids = Ids()
        self._writing = Writing() if write else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; errors become answers too."""
        request_id = self._ids.new()
        if is_iceberg(scope):
            try:
                from lakeops.gateway.tables import IcebergRest
            except ImportError:
                await Response("the catalog of tables needs the extra iceberg", 501)(scope, receive, send)
                return
            catalog = IcebergRest(self._lake, self._keys, write=self._writing is not None)
            await catalog(scope, receive, send)
            return
        body = None
        try:
            if self._writing is not None and scope["method"] in {"PUT", "POST"}:
                # The body of a request that is refused is not read.
                asked, seed = await run_in_threadpool(self._admit, scope)
                chunks = chunks_of(asked.headers, seed) if seed is not None else None
                body = await _receive_body(scope, receive, chunks)
                asked = replace(asked, body=body, trailers=chunks.trailers if chunks is not None else {})
                response = await run_in_threadpool(self._dispatch, asked)
            else:
                response = await run_in_threadpool(lambda: self._dispatch(self._admit(scope)[0]))
        except ClientDisconnect:
            return
        except Exception as error:  # noqa: BLE001 - the last place that can turn it into an answer
            response = _refused(scope, error, request_id)
        finally:
            if body is not None:
                body.close()
        response.headers["x-amz-request-id"] = request_id
        if body is None and any(name in {b"content-length", b"transfer-encoding"} for name, _ in scope["headers"]):
            # The body is not read, and a client that waits for 100 Continue may leave it out. Then nobody can tell
            # where the next request of the connection begins.
            response.headers["connection"] = "close"
        try:
            await response(scope, receive, send)
        except ClientDisconnect:
            pass
        except (LakeopsError, EOFError) as error:
            # The status is sent already. The server breaks the connection off, so the client misses bytes and says so.
            log.error("%s: broken off: %s", _for_log(scope), error)  # noqa: TRY400 - it is foreseen

    def _admit(self, scope: Scope) -> tuple[S3Request, Seed | None]:
        """Parse a request and verify its signature, which there is none of without keys. Raises ``Refused``."""
        asked = _parse_request(scope)
        if self._keys is not None:
            return asked, verify(asked, self._keys, self._lake.clock.now())
        check_host(asked.headers.get("host", ""))
        return asked, None

    def _dispatch(self, asked: S3Request) -> Response:
        if asked.method not in {"GET", "HEAD"}:
            if self._writing is None:
                raise Refused(405, "MethodNotAllowed", _INSTEAD, {"allow": "GET, HEAD"})
            return self._writing.answer(self._lake, asked)
        check_headers(asked.headers, None)
        if self._keys is None and not asked.asks.isdisjoint(OVERRIDES):
            raise Refused(400, "InvalidRequest", "headers of an answer are chosen by signed requests only")
        if not asked.bucket:
            return self._list_buckets(asked)
        repository = self._lake.repository(asked.bucket)
        if self._writing is not None and "uploadId" in asked.asks:
            return self._writing.list_parts(repository, asked)
        if asked.key:
            return get_object(repository, asked)
        if asked.method == "HEAD":
            return Response(headers={"x-amz-bucket-region": REGION})
        if self._writing is not None and "uploads" in asked.asks:
            return self._writing.list_uploads(repository, asked)
        if len(asked.asks) == 1 and asked.asks <= BUCKET.keys():
            return subresource(BUCKET, *asked.asks)
        if not asked.asks <= _LISTING:
            raise unknown(asked.asks - _LISTING)
        return list_objects(repository, asked.query)

    def _list_buckets(self, asked: S3Request) -> Response:
        if asked.method == "HEAD":
            raise Refused(405, "MethodNotAllowed", "HEAD needs a bucket", {"allow": "GET"})
        if not asked.asks <= _BUCKETS:
            raise unknown(asked.asks - _BUCKETS)
        prefix, after = asked.query.get("prefix", ""), asked.query.get("continuation-token", "")
        limit = number_of(asked.query, "max-buckets", 10_000)
        if asked.query.get("bucket-region", REGION) != REGION:
            limit = 0
        page = [*islice(self._lake.repositories(prefix=prefix, after=after), limit + 1)] if limit else []
        shown = [one.record for one in page[:limit]]
        buckets = [nest("Bucket", elements(Name=one.id, CreationDate=timestamp(one.creation_date))) for one in shown]
        more = elements(ContinuationToken=shown[-1].id) if len(page) > limit else []
        more += elements(Prefix=prefix) if prefix else []
        return document("ListAllMyBucketsResult", [OWNER_ELEMENT, nest("Buckets", buckets), *more])


async def _receive_body(scope: Scope, receive: Receive, chunks: Chunks | None) -> BinaryIO:
    """Receive the body of a request out of its chunks, in memory or, when it is large, on disk.

    Raises ``ClientDisconnect``, and ``Refused`` for chunks that are not what they say.
    """
    spool = cast("BinaryIO", SpooledTemporaryFile(SPOOL_BYTES))  # noqa: SIM115 - the caller closes it
    wrong: Refused | None = None
    try:
        async for piece in Request(scope, receive).stream():
            # The rest of a wrong body is read and dropped: a client that still sends hears no answer.
            if wrong is None:
                try:
                    spool.write(chunks.feed(piece) if chunks is not None else piece)
                except Refused as error:
                    wrong = error
        if wrong is not None:
            raise wrong
        if chunks is not None:
            chunks.end()
        spool.seek(0)
    except BaseException:
        spool.close()
        raise
    return spool


def is_iceberg(scope: Scope) -> bool:
    """Tell whether a request is for the catalog: its path is, and it is not signed for S3."""
    if not scope["raw_path"].startswith(ICEBERG) or b"X-Amz-Signature=" in scope["query_string"]:
        return False
    return not any(name == b"authorization" and value.startswith(b"AWS") for name, value in scope["headers"])


def _refused(scope: Scope, error: Exception, request_id: str) -> Response:
    """The answer to a request that met an error."""
    match out_of_resources(error) or error:
        case Refused() as refused:
            pass
        case LakeopsError() as known:
            refused = refusal(known)
        case other:
            refused = Refused(500, "InternalError", masked(f"unexpected {type(other).__name__}: {other}"))
    if refused.status in {500, 503}:
        log.error("%s: %s", _for_log(scope), refused.message)
    if scope["method"] == "HEAD" or refused.status == 304:  # whose answers have no body
        return Response(None, refused.status, refused.headers)
    return error_document(refused, safe(unquote(scope["raw_path"].decode("latin-1"))), request_id)


def _for_log(scope: Scope) -> str:
    """The request without its query, which may hold a signature."""
    return safe(f"{scope['method']} {scope['raw_path'].decode('latin-1')}")


def keys_of(settings: Settings) -> Credentials | None:
    """The keys of the settings; None without any. Raises ``InvalidInput`` (``invalid_settings``)."""
    name, secret = settings.gateway_access_key, settings.gateway_secret_key
    if name is None and secret is None:
        return None
    if name is None or secret is None:
        flaw = "gateway_access_key and gateway_secret_key go together; set both or none"
    elif "/" in name or not name.isascii() or not name.isprintable() or "," in name or " " in name:
        flaw = "gateway_access_key must be ASCII without spaces, commas and slashes"
    elif len(secret.get_secret_value()) < _MIN_SECRET:
        flaw = f"gateway_secret_key is too short; give at least {_MIN_SECRET} characters"
    else:
        return Credentials(name, secret.get_secret_value())
    raise invalid_settings(flaw)


@contextmanager
def listening(host: str, port: int, *, keys: Credentials | None) -> Iterator[socket.socket]:
    """A socket that takes connections at an address.

    Raises:
        PreconditionFailed: the port is taken.
        InvalidInput: nothing can listen there.
        InvalidInput: ``invalid_settings``: other machines would reach it, and there are no keys.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        opened = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no address"
        refused = PreconditionFailed if getattr(error, "errno", None) == EADDRINUSE else InvalidInput
        raise refused(f"cannot listen at {host}:{port}: {reason}") from None
    with opened:
        # The address is looked at, and not the name: a name may lead anywhere.
        if keys is None and not ip_address(opened.getsockname()[0]).is_loopback:
            raise invalid_settings(
                f"{host} can be reached from other machines; set gateway_access_key and gateway_secret_key, "
                "or listen at 127.0.0.1"
            )
        yield opened


@contextmanager
def serving(lake: Lake, *, write: bool = False) -> Iterator[dict[str, str]]:
    """Let programs of this machine read refs as ``s3://REPO/REF/PATH`` while the block runs; with ``write`` write, too.

    The gateway is a process of its own, which a client that holds Python's lock cannot stop. It listens at a loopback
    address, takes keys that nobody else knows, and ends with the block and when this process ends in any way.

    Yields:
        What delta-rs, polars and other programs over Rust's object_store take as ``storage_options``.

    Raises:
        LakeopsError: the gateway does not start, ``unsupported``. Its own words are on standard error.
    """
    keys = Credentials("lakeops", secrets.token_urlsafe())
    command = [sys.executable, "-P", "-c", f"from {__name__} import _serve_parent; _serve_parent()"]
    # This package comes first: Spark puts a part of it, for its workers, on the path of a driver.
    here = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [here, *sys.path]))}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, bufsize=0, env=environment, stdin=pipe, stdout=pipe, start_new_session=True
    ) as child:
        to, out = cast("BinaryIO", child.stdin), cast("BinaryIO", child.stdout)
        try:
            with suppress(BrokenPipeError):  # it says why
                pickle.dump((lake.settings, lake.clock, lake.catalog.caller.person, keys, write), to)
            port = out.readline().strip().decode()
            if not port:
                raise unsupported("the gateway's process did not start; see standard error")
            yield {
                "aws_endpoint_url": f"http://127.0.0.1:{port}",
                "aws_access_key_id": keys.access_key,
                "aws_secret_access_key": keys.secret_key,
                "aws_region": "us-east-1",
                "aws_allow_http": "true",
                "aws_conditional_put": "etag",
            }
        finally:
            with suppress(BrokenPipeError):
                to.write(b"end")


def _serve_parent() -> None:
    from lakeops.lake import Lake

    told = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    with os.fdopen(told, "rb") as parent:
        settings, clock, person, keys, write = pickle.load(parent)  # noqa: S301 - the parent wrote it
        with Lake.open(settings=settings, clock=clock, must_exist=True, person=person) as lake:
            server = server_of(Gateway(lake, keys, write=write))
            with listening("127.0.0.1", 0, keys=keys) as opened:
                thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]}, name="lakeops-gateway")
                thread.start()
                print(opened.getsockname()[1], flush=True)  # noqa: T201 - to the parent
                parent.read(1)
                server.should_exit = True
                thread.join()
