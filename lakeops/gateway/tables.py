"""Iceberg's REST catalog over the refs of a lake, beside the gateway's S3: ``/iceberg/v1/...``.

Engines read and write the files themselves, at the addresses that the catalog gives. A warehouse is a repository, whose
namespaces begin with a ref, or ``REPO/REF[/FOLDER]``.
"""

from __future__ import annotations

import base64
import hmac
import json
import logging
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote

from pydantic import BaseModel, Field, ValidationError
from pyiceberg import exceptions
from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.table import CommitTableRequest
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from lakeops.gateway.answers import Refused
from lakeops.iceberg.tables import RefTables, TableCommit
from lakeops.model.errors import (
    BranchMoved,
    InvalidInput,
    LakeopsError,
    NotFound,
    PreconditionFailed,
    Transient,
    out_of_resources,
)
from lakeops.model.names import LakeUri
from lakeops.model.sanitising import excerpt, masked, safe
from lakeops.ops.iceberg.metadata import LoadedTable

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from lakeops.lake import Lake, Repository
    from lakeops.model.records import Credentials

log: logging.Logger = logging.getLogger(__name__)

PREFIX = "/iceberg/v1/"
TOKENS = "oauth/tokens"
TOKEN_SECONDS = 3600
MOST_BODY = 32 << 20
"""Bytes of a request: a commit of many tables has some kilobytes for each."""
_MOST_FORM = 64 << 10
"""Bytes of a request for a token, which nobody has vouched for."""
_MOST_PARAMETERS = 20
_SEPARATOR = "\x1f"
_RESOURCES = {"namespaces", "tables", "transactions", "views"}
_KINDS: tuple[tuple[type[Exception], int, str], ...] = (
    (exceptions.NoSuchNamespaceError, 404, "NoSuchNamespaceException"),
    (exceptions.NoSuchTableError, 404, "NoSuchTableException"),
    (exceptions.NamespaceNotEmptyError, 409, "NamespaceNotEmptyException"),
    (exceptions.NamespaceAlreadyExistsError, 409, "AlreadyExistsException"),
    (exceptions.TableAlreadyExistsError, 409, "AlreadyExistsException"),
    (exceptions.CommitFailedException, 409, "CommitFailedException"),
    (BranchMoved, 409, "CommitFailedException"),
    (NotFound, 404, "NoSuchNamespaceException"),
    (PreconditionFailed, 403, "ForbiddenException"),
    (InvalidInput, 400, "BadRequestException"),
    (ValidationError, 400, "BadRequestException"),
    (exceptions.ValidationError, 400, "BadRequestException"),
    (NotImplementedError, 406, "UnsupportedOperationException"),
)


class _NamespaceRequest(BaseModel):
    namespace: tuple[str, ...] = Field(min_length=1)
    properties: dict[str, str] = Field(default_factory=dict)


class _PropertiesRequest(BaseModel):
    removals: list[str] = Field(default_factory=list)
    updates: dict[str, str] = Field(default_factory=dict)


class _Identifier(BaseModel):
    namespace: tuple[str, ...]
    name: str


class _RenameRequest(BaseModel):
    source: _Identifier
    destination: _Identifier


class _RegisterRequest(BaseModel):
    name: str
    metadata_location: str = Field(alias="metadata-location")
    overwrite: bool = False


class _TransactionRequest(BaseModel):
    changes: list[CommitTableRequest] = Field(alias="table-changes", min_length=1)


class _Request(NamedTuple):
    method: str
    segments: tuple[str, ...]
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


class IcebergRest:
    """An ASGI application that answers Iceberg's REST requests from the refs of a lake.

    Args:
        lake: where the repositories are.
        keys: the client id and secret of tokens. None takes requests without one.
        write: let requests change tables on branches.
        check_host: raises for a request without keys that is not addressed to this machine itself.
    """

    def __init__(self, lake: Lake, keys: Credentials | None, *, write: bool, check_host: Callable[[str], None]) -> None:
        self._lake = lake
        self._keys = keys
        self._write = write
        self._check_host = check_host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            response = await run_in_threadpool(self._admit, scope, headers)
            if response is None:
                most = _MOST_FORM if scope["raw_path"].endswith(TOKENS.encode()) else MOST_BODY
                body = await _body(receive, most)
                if len(body) > most:
                    response = _error(413, "BadRequestException", f"a request like this has {most:,} bytes at most")
                else:
                    response = await run_in_threadpool(self._answer, scope, headers, body)
            else:
                response.headers["connection"] = "close"  # its body was not read
        except ClientDisconnect:
            return
        if scope["method"] == "HEAD":
            response = Response(None, response.status_code)
        await response(scope, receive, send)

    def _admit(self, scope: Scope, headers: dict[str, str]) -> Response | None:
        """The refusal of a request whose body is not worth reading."""
        path = scope["raw_path"].decode("latin-1").removeprefix(PREFIX)
        try:
            if self._keys is None:
                self._check_host(headers.get("host", ""))
            elif path != TOKENS and not self._is_valid(headers.get("authorization", "")):
                return _error(401, "NotAuthorizedException", "give a token of oauth/tokens, or credential=KEY:SECRET")
        except Refused as error:
            return _error(error.status, "ForbiddenException", error.message)
        return None

    def _answer(self, scope: Scope, headers: dict[str, str], body: bytes) -> Response:
        try:
            segments = tuple(scope["raw_path"].decode("ascii")[len(PREFIX) :].split("/"))
            query = parse_qsl(
                scope["query_string"].decode("ascii"), keep_blank_values=True, max_num_fields=_MOST_PARAMETERS
            )
            return self._dispatch(_Request(scope["method"], segments, dict(query), headers, body))
        except Exception as error:  # noqa: BLE001 - the last place that can turn it into an answer
            return _refusal(error, safe(f"{scope['method']} {scope['raw_path'].decode('latin-1')}"))

    # --- tokens ---

    def _token(self, request: _Request) -> Response:
        """Answer OAuth2's client credentials, and the exchange of a token for a newer one."""
        form = dict(parse_qsl(request.body.decode("utf-8", "replace"), max_num_fields=_MOST_PARAMETERS))
        given = request.headers.get("authorization", "")
        if given.startswith("Basic "):
            name, _, secret = base64.b64decode(given[6:] + "==").decode("utf-8", "replace").partition(":")
            form = {"client_id": unquote(name), "client_secret": unquote(secret), **form}
        keys = self._keys
        if keys is not None:
            exchanged = "subject_token" in form and self._is_valid(f"Bearer {form['subject_token']}")
            told = f"{form.get('client_id', '')}:{form.get('client_secret', '')}"
            known = hmac.compare_digest(told.encode(), f"{keys.access_key}:{keys.secret_key}".encode())
            if not (exchanged or known):
                answer = {
                    "error": "invalid_client",
                    "error_description": "the gateway does not know this key and secret",
                }
                return JSONResponse(answer, 401)
        until = str(int(time.time()) + TOKEN_SECONDS)
        token = "none" if keys is None else f"{until}.{_sign(keys, until)}"
        answer_of = {"issued_token_type": "urn:ietf:params:oauth:token-type:access_token", "token_type": "bearer"}
        return JSONResponse({"access_token": token, "expires_in": TOKEN_SECONDS, **answer_of})

    def _is_valid(self, authorization: str) -> bool:
        until, _, signature = authorization.removeprefix("Bearer ").strip().partition(".")
        if self._keys is None or not (until.isdecimal() and until.isascii() and len(until) < 12):
            return False
        told = signature.encode("latin-1", "replace")
        return hmac.compare_digest(told, _sign(self._keys, until).encode()) and int(until) > time.time()

    # --- requests ---

    def _dispatch(self, request: _Request) -> Response:
        if request.segments == ("oauth", "tokens") and request.method == "POST":
            return self._token(request)
        if request.segments == ("config",) and request.method == "GET":
            return self._config(request)
        place = next((at for at, one in enumerate(request.segments) if at and one in _RESOURCES), None)
        if place is None:
            raise InvalidInput(f"there is nothing at this path; paths are {PREFIX}PREFIX/namespaces/...")
        prefix = [unquote(one) for one in request.segments[:place]]
        names = [unquote(one) for one in request.segments[place:]]
        shape, levels, table = names.copy(), tuple[str, ...](), ""
        if names[0] == "namespaces" and len(names) > 1:
            levels, shape[1] = tuple(names[1].split(_SEPARATOR)), "{}"
        if len(names) > 3:
            table, shape[3] = names[3], "{}"
        method = "GET" if request.method == "HEAD" else request.method
        route = _ROUTES.get((method, *shape))
        if route is None:
            raise NotImplementedError(f"this catalog does not answer {method} of this path")
        if method != "GET" and shape[-1] != "metrics" and not self._write:
            raise PreconditionFailed("this gateway only reads; start it with --write")
        warehouse = _Warehouse(self._lake.repository(prefix[0]), *prefix[1:3])
        answer: Callable[[_Asked], Response] = getattr(self, f"_{route}")
        try:
            return answer(_Asked(request, warehouse, levels, table))
        except (NotFound, exceptions.NoSuchNamespaceError) as error:
            if not table:
                raise
            # Engines know this as a table that is not there (DROP TABLE IF EXISTS), and the other as a failure.
            raise exceptions.NoSuchTableError(str(error)) from None

    def _config(self, request: _Request) -> Response:
        given = request.query.get("warehouse", "").removeprefix("lakefs://")
        if not given:
            raise InvalidInput("name a warehouse: a repository, or REPO/REF, or REPO/REF/FOLDER")
        uri = LakeUri.parse(f"lakefs://{given}")
        self._lake.repository(uri.repository)
        parts = [one for one in (uri.repository, uri.ref, (uri.path or "").strip("/")) if one]
        prefix = "/".join(quote(one, safe="") for one in parts)
        return JSONResponse({"defaults": {}, "overrides": {"prefix": prefix}, "endpoints": _ENDPOINTS})

    def _list_namespaces(self, asked: _Asked) -> Response:
        warehouse, query = asked.warehouse, asked.request.query
        parent = tuple(one for one in query.get("parent", "").split(_SEPARATOR) if one)
        if warehouse.ref is None and not parent:
            repository = warehouse.repository
            found: Iterable[tuple[str, ...]] = [(one.id,) for one in (*repository.branches(), *repository.tags())]
        else:
            tables, levels = warehouse.at(parent)
            found = [parent + one[len(levels) :] for one in tables.namespaces(levels)]
        return _page("namespaces", [list(one) for one in found], query)

    def _create_namespace(self, asked: _Asked) -> Response:
        given = _NamespaceRequest.model_validate_json(asked.request.body)
        tables, levels = asked.warehouse.at(given.namespace)
        tables.create_namespace(_required(levels), given.properties)
        return JSONResponse(given.model_dump())

    def _load_namespace(self, asked: _Asked) -> Response:
        tables, levels = asked.tables()
        return JSONResponse({"namespace": asked.levels, "properties": tables.namespace(levels)})

    def _drop_namespace(self, asked: _Asked) -> Response:
        tables, levels = asked.tables()
        tables.drop_namespace(_required(levels))
        return Response(status_code=204)

    def _set_properties(self, asked: _Asked) -> Response:
        given = _PropertiesRequest.model_validate_json(asked.request.body)
        both = sorted(given.updates.keys() & set(given.removals))
        if both:
            answer = f"{', '.join(both)}: to be removed and to be set at once"
            return _error(422, "UnprocessableEntityException", answer)
        tables, levels = asked.tables()
        before = tables.namespace(_required(levels))
        tables.set_namespace(levels, {k: v for k, v in before.items() if k not in given.removals} | given.updates)
        removed = [one for one in given.removals if one in before]
        missing = [one for one in given.removals if one not in before]
        return JSONResponse({"updated": [*given.updates], "removed": removed, "missing": missing})

    def _list_tables(self, asked: _Asked) -> Response:
        tables, levels = asked.tables()
        found = [{"namespace": asked.levels, "name": one[-1]} for one in tables.tables(levels)]
        return _page("identifiers", found, asked.request.query)

    def _create_table(self, asked: _Asked) -> Response:
        optional = {"location": None, "partition-spec": None, "write-order": None}
        given = CreateTableRequest.model_validate(optional | _object(asked.request.body))
        tables, levels = asked.tables()
        made = tables.new_table(
            (*levels, given.name),
            given.table_schema,
            given.location,
            given.partition_spec,
            given.write_order,
            given.properties,
        )
        if given.stage_create:
            return self._loaded(made, staged=True)
        return self._loaded(tables.create((*levels, given.name), made.metadata))

    def _register_table(self, asked: _Asked) -> Response:
        given = _RegisterRequest.model_validate_json(asked.request.body)
        if given.overwrite:
            raise NotImplementedError("drop the table first, and register it then")
        tables, levels = asked.tables()
        return self._loaded(tables.register((*levels, given.name), given.metadata_location))

    def _load_table(self, asked: _Asked) -> Response:
        tables, levels = asked.tables()
        return self._loaded(tables.load((*levels, asked.table)), asked.request.headers.get("if-none-match"))

    def _commit_table(self, asked: _Asked) -> Response:
        identifier = {"namespace": asked.levels, "name": asked.table}
        given = CommitTableRequest.model_validate({**_object(asked.request.body), "identifier": identifier})
        tables, levels = asked.tables()
        (made,) = tables.commit([TableCommit((*levels, asked.table), given.requirements, given.updates)])
        return self._loaded(made)

    def _drop_table(self, asked: _Asked) -> Response:
        tables, levels = asked.tables()
        tables.drop((*levels, asked.table))
        return Response(status_code=204)

    def _rename_table(self, asked: _Asked) -> Response:
        given = _RenameRequest.model_validate_json(asked.request.body)
        tables, old = asked.warehouse.at(given.source.namespace)
        other, new = asked.warehouse.at(given.destination.namespace)
        if str(other) != str(tables):
            raise InvalidInput("a table keeps its ref; merge it to another one")
        tables.rename((*old, given.source.name), (*new, given.destination.name))
        return Response(status_code=204)

    def _commit_transaction(self, asked: _Asked) -> Response:
        given = _TransactionRequest.model_validate_json(asked.request.body)
        commits, places = [], {}
        for change in given.changes:
            tables, levels = asked.warehouse.at(tuple(change.identifier.namespace.root))
            places[str(tables)] = tables
            commits.append(TableCommit((*levels, change.identifier.name), change.requirements, change.updates))
        if len(places) > 1:
            raise InvalidInput("the tables of one transaction are at one ref")
        next(iter(places.values())).commit(commits)
        return Response(status_code=204)

    def _no_views(self, _: _Asked) -> Response:
        return JSONResponse({"identifiers": []})

    def _no_view(self, _: _Asked) -> Response:
        return _error(404, "NoSuchViewException", "this catalog has no views")

    def _no_credentials(self, _: _Asked) -> Response:
        return JSONResponse({"storage-credentials": []})

    def _take_metrics(self, _: _Asked) -> Response:
        return Response(status_code=204)

    def _loaded(self, table: LoadedTable, known: str | None = None, *, staged: bool = False) -> Response:
        settings, tag = self._lake.settings, f'"{table.location.rpartition("/")[2]}"'
        if known is not None and tag in {one.strip().removeprefix("W/") for one in known.split(",")}:
            return Response(status_code=304, headers={"etag": tag})
        config, here, there = {}, table.location.split("/", 3), table.metadata.location.split("/", 3)
        if table.location.startswith("s3://"):
            endpoint = settings.s3_endpoint_url
            # The SDK of engines asks for a region, also where a server has none.
            region = settings.s3_region or ("us-east-1" if endpoint else None)
            config = {"s3.endpoint": endpoint, "client.region": region, "s3.region": region}
            config["s3.path-style-access"] = "true" if endpoint else None
        if here[:3] != there[:3] or not here[3].startswith(f"{there[3]}/"):  # it was replicated from there
            if {here[0], there[0]} != {"s3:"} or not here[3].startswith(f"{there[3]}/"):
                raise InvalidInput(
                    f"the table's metadata names files below {excerpt(table.metadata.location)}, and engines cannot be "
                    "led from there to this mirror: read the table at its source, or make the mirror in a bucket under "
                    "the source's prefix"
                )
            config[f"s3.access-points.{there[2]}"] = here[2]
        answer: dict[str, Any] = {} if staged else {"metadata-location": table.location}
        answer["metadata"] = json.loads(table.metadata.model_dump_json())
        answer["config"] = {name: value for name, value in config.items() if value}
        return JSONResponse(answer, headers={} if staged else {"etag": tag})


class _Warehouse:
    """The tables of a repository, or of one ref of it."""

    def __init__(self, repository: Repository, ref: str | None = None, folder: str = "") -> None:
        self.repository = repository
        self.ref = ref
        self._folder = folder

    def at(self, levels: tuple[str, ...]) -> tuple[RefTables, tuple[str, ...]]:
        """The tables that a namespace is among, and its levels there."""
        if self.ref is not None:
            return RefTables(self.repository, self.ref, self._folder), levels
        if not levels:
            raise InvalidInput("namespaces of a repository begin with a ref, such as main.web")
        tables = RefTables(self.repository, levels[0])
        return tables, levels[1:]


class _Asked(NamedTuple):
    """A request, and what its path names."""

    request: _Request
    warehouse: _Warehouse
    levels: tuple[str, ...]
    table: str

    def tables(self) -> tuple[RefTables, tuple[str, ...]]:
        """The tables of the ref, and the levels of the namespace there."""
        return self.warehouse.at(self.levels)


_IN = ("namespaces", "{}")
_ROUTES: dict[tuple[str, ...], str] = {
    ("GET", "namespaces"): "list_namespaces",
    ("POST", "namespaces"): "create_namespace",
    ("GET", *_IN): "load_namespace",
    ("DELETE", *_IN): "drop_namespace",
    ("POST", *_IN, "properties"): "set_properties",
    ("GET", *_IN, "tables"): "list_tables",
    ("POST", *_IN, "tables"): "create_table",
    ("POST", *_IN, "register"): "register_table",
    ("GET", *_IN, "tables", "{}"): "load_table",
    ("POST", *_IN, "tables", "{}"): "commit_table",
    ("DELETE", *_IN, "tables", "{}"): "drop_table",
    ("POST", *_IN, "tables", "{}", "metrics"): "take_metrics",
    ("GET", *_IN, "tables", "{}", "credentials"): "no_credentials",
    ("GET", *_IN, "views"): "no_views",
    ("GET", *_IN, "views", "{}"): "no_view",
    ("DELETE", *_IN, "views", "{}"): "no_view",
    ("POST", "tables", "rename"): "rename_table",
    ("POST", "transactions", "commit"): "commit_transaction",
}
"""Methods and paths, each with the name of the method that answers it."""
_ENDPOINTS = [
    f"{method} /v1/{{prefix}}/{'/'.join(path)}".replace("{}", "{namespace}", 1).replace("{}", "{table}")
    for asked, *path in _ROUTES
    if "views" not in path
    for method in ([asked, "HEAD"] if asked == "GET" and path[-1] == "{}" else [asked])
]
"""The paths that clients are told of, as Iceberg's specification writes them."""


async def _body(receive: Receive, most: int) -> bytes:
    """The body of a request, and no more than a message of it above ``most`` bytes."""
    found, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        if len(found) <= most:
            found += message.get("body", b"")
        more = message.get("more_body", False)
    return bytes(found)


def _required(levels: tuple[str, ...]) -> tuple[str, ...]:
    if not levels:
        raise InvalidInput("a ref is no namespace that can be made, changed or dropped here; use lakeops branch")
    return levels


def _object(body: bytes) -> dict[str, object]:
    found = json.loads(body)
    if not isinstance(found, dict):
        raise InvalidInput("the body is no JSON object")
    return found


def _page(name: str, found: list[Any], query: dict[str, str]) -> Response:
    """A page of a list, in order. A client that sends no ``pageToken`` gets all of it."""
    found = sorted(found, key=json.dumps)
    if "pageToken" not in query:
        return JSONResponse({name: found})
    try:
        start, size = int(query["pageToken"] or 0), int(query.get("pageSize", "100"))
    except ValueError:
        raise InvalidInput("pageToken is one of an earlier answer, and pageSize a number") from None
    if start < 0 or size < 1:
        raise InvalidInput("pageSize is at least 1")
    answer: dict[str, Any] = {name: found[start : start + size]}
    if start + size < len(found):
        answer["next-page-token"] = str(start + size)
    return JSONResponse(answer)


def _sign(keys: Credentials, until: str) -> str:
    return hmac.digest(keys.secret_key.encode(), f"iceberg {keys.access_key} {until}".encode(), "sha256").hex()


def _error(status: int, kind: str, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "type": kind, "code": status}}, status)


def _refusal(error: Exception, asked: str) -> Response:
    error = out_of_resources(error) or error
    for kind, status, name in _KINDS:
        if isinstance(error, kind):
            return _error(status, name, masked(" ".join(str(error).split())))
    if isinstance(error, ValueError):
        return _error(400, "BadRequestException", masked(f"the request cannot be read: {error}"))
    log.error("%s: %s", asked, masked(str(error)))
    if isinstance(error, Transient) and error.kind == "catalog_unavailable":
        return _error(504, "CommitStateUnknownException", masked(error.message))  # it may have been made
    if isinstance(error, LakeopsError):
        return _error(503, "ServiceUnavailableException", masked(error.message))
    return _error(500, "InternalServerError", masked(f"unexpected {type(error).__name__}: {error}"))
