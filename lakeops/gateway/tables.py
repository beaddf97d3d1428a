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
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote

from pydantic import BaseModel, Field, ValidationError
from pyiceberg import exceptions
from pyiceberg.catalog.rest import CreateTableRequest, RegisterTableRequest
from pyiceberg.table import CommitTableRequest, TableIdentifier
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from lakeops.gateway.answers import Refused
from lakeops.gateway.signature import check_host
from lakeops.iceberg.tables import RefTables, TableCommit
from lakeops.model import errors
from lakeops.model.names import LakeUri
from lakeops.model.sanitising import excerpt, masked, one_line, safe
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
_KINDS: tuple[tuple[type[Exception], int, str], ...] = (
    (exceptions.NoSuchNamespaceError, 404, "NoSuchNamespaceException"),
    (exceptions.NoSuchTableError, 404, "NoSuchTableException"),
    (exceptions.NamespaceNotEmptyError, 409, "NamespaceNotEmptyException"),
    (exceptions.NamespaceAlreadyExistsError, 409, "AlreadyExistsException"),
    (exceptions.TableAlreadyExistsError, 409, "AlreadyExistsException"),
    (exceptions.CommitFailedException, 409, "CommitFailedException"),
    (errors.BranchMoved, 409, "CommitFailedException"),
    (errors.ObjectNotFound, 404, "NotFoundException"),
    (errors.NotFound, 404, "NoSuchNamespaceException"),
    (errors.PreconditionFailed, 403, "ForbiddenException"),
    (errors.InvalidInput, 400, "BadRequestException"),
    (ValidationError, 400, "BadRequestException"),
    (exceptions.ValidationError, 400, "BadRequestException"),
    (NotImplementedError, 406, "UnsupportedOperationException"),
)


class _NamespaceRequest(BaseModel):
    namespace: tuple[str, ...] = Field(min_length=1)
    properties: dict[str, str] = Field(default_factory=dict)


class _PropertiesRequest(BaseModel):
    removals: set[str] = Field(default_factory=set)
    updates: dict[str, str] = Field(default_factory=dict)


class _RenameRequest(BaseModel):
    source: TableIdentifier
    destination: TableIdentifier


class _TransactionRequest(BaseModel):
    changes: list[CommitTableRequest] = Field(alias="table-changes", min_length=1)


@dataclass(frozen=True)
class _Asked:
    """A request, and what its path names: a repository or a folder of a ref, a namespace's levels, a table."""

    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    repository: Repository
    ref: str | None
    folder: str
    levels: tuple[str, ...]
    table: str

    @property
    def tables(self) -> RefTables:
        """The tables that the namespace is among."""
        return self.at(self.levels)[0]

    @property
    def here(self) -> tuple[str, ...]:
        """The levels of the namespace among its tables."""
        return self.at(self.levels)[1]

    def at(self, levels: tuple[str, ...]) -> tuple[RefTables, tuple[str, ...]]:
        """The tables that another namespace is among, and its levels there."""
        if self.ref is not None:
            return RefTables(self.repository, self.ref, self.folder), levels
        if not levels:
            raise errors.InvalidInput("namespaces of a repository begin with a ref, such as main.web")
        return RefTables(self.repository, levels[0]), levels[1:]


class IcebergRest:
    """An ASGI application that answers Iceberg's REST requests from the refs of a lake.

    ``keys`` are the client id and secret of tokens. None takes requests without one, if they are addressed to this
    machine itself.
    """

    def __init__(self, lake: Lake, keys: Credentials | None, *, write: bool) -> None:
        self._lake = lake
        self._keys = keys
        self._write = write

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request to the Iceberg REST catalog."""
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            response = await run_in_threadpool(self._admit, scope, headers)
            if response is None:
                most = _MOST_FORM if scope["raw_path"].endswith(TOKENS.encode()) else MOST_BODY
                body = bytearray()
                async for piece in Request(scope, receive).stream():
                    body += piece if len(body) <= most else b""
                if len(body) > most:
                    response = _error(413, "BadRequestException", f"a request like this has {most:,} bytes at most")
                else:
                    response = await run_in_threadpool(self._answer, scope, headers, bytes(body))
            else:
                response.headers["connection"] = "close"  # its body was not read
        except ClientDisconnect:
            return
        if scope["method"] == "HEAD":
            response = Response(None, response.status_code)
        await response(scope, receive, send)

    def _admit(self, scope: Scope, headers: dict[str, str]) -> Response | None:
        path = scope["raw_path"].decode("latin-1").removeprefix(PREFIX)
        try:
            if self._keys is None:
                check_host(headers.get("host", ""))
            elif path != TOKENS and not self._is_valid(headers.get("authorization", "")):
                return _error(401, "NotAuthorizedException", "give a token of oauth/tokens, or credential=KEY:SECRET")
        except Refused as error:
            return _error(error.status, "ForbiddenException", error.message)
        return None

    def _answer(self, scope: Scope, headers: dict[str, str], body: bytes) -> Response:
        try:
            segments = scope["raw_path"].decode("ascii")[len(PREFIX) :].split("/")
            text = scope["query_string"].decode("ascii")
            query = parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_PARAMETERS)
            match scope["method"], *segments:
                case "POST", "oauth", "tokens":
                    return self._token(headers, body)
                case "GET", "config":
                    return self._config(dict(query).get("warehouse", "").removeprefix("lakefs://"))
            return self._dispatch(scope["method"], segments, dict(query), headers, body)
        except Exception as error:  # noqa: BLE001 - the last place that can turn it into an answer
            return _refusal(error, safe(f"{scope['method']} {scope['raw_path'].decode('latin-1')}"))

    # --- tokens ---

    def _token(self, headers: dict[str, str], body: bytes) -> Response:
        """Answer OAuth2's client credentials, and the exchange of a token for a newer one."""
        form = dict(parse_qsl(body.decode("utf-8", "replace"), max_num_fields=_MOST_PARAMETERS))
        given = headers.get("authorization", "")
        if given.startswith("Basic "):
            name, _, secret = base64.b64decode(given[6:] + "==").decode("utf-8", "replace").partition(":")
            form = {"client_id": unquote(name), "client_secret": unquote(secret), **form}
        keys = self._keys
        if keys is not None:
            exchanged = "subject_token" in form and self._is_valid(f"Bearer {form['subject_token']}")
            told = f"{form.get('client_id', '')}:{form.get('client_secret', '')}"
            known = hmac.compare_digest(told.encode(), f"{keys.access_key}:{keys.secret_key}".encode())
            if not (exchanged or known):
                why = "the gateway does not know this key and secret"
                return JSONResponse({"error": "invalid_client", "error_description": why}, 401)
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

    def _dispatch(
        self, method: str, segments: list[str], query: dict[str, str], headers: dict[str, str], body: bytes
    ) -> Response:
        warehouse, *names = map(unquote, segments)
        shape, levels, table = names.copy(), tuple[str, ...](), ""
        if names[:1] == ["namespaces"] and len(names) > 1:
            levels, shape[1] = tuple(names[1].split(_SEPARATOR)), "{}"
        if len(names) > 3:
            table, shape[3] = names[3], "{}"
        method = "GET" if method == "HEAD" else method
        if (method, *shape) not in _ROUTES:
            raise NotImplementedError(
                f"this catalog does not answer {method} of this path; paths begin with the prefix of {PREFIX}config"
            )
        if method != "GET" and shape[-1] != "metrics" and not self._write:
            raise errors.PreconditionFailed("this gateway only reads; start it with --write")
        name, *rest = warehouse.split(_SEPARATOR, 2)
        repository, (ref, folder) = self._lake.repository(name), (*rest, None, None)[:2]
        route = _ROUTES[method, *shape]
        if route is None:
            return Response(status_code=204)
        if not isinstance(route, str):
            return JSONResponse(route) if route else _error(404, "NoSuchViewException", "this catalog has no views")
        answer: Callable[[_Asked], Response | None] = getattr(self, f"_{route}")
        try:
            found = answer(_Asked(query, headers, body, repository, ref, folder or "", levels, table))
            return found or Response(status_code=204)
        except (errors.NotFound, exceptions.NoSuchNamespaceError) as error:
            if not table or isinstance(error, errors.ObjectNotFound):
                raise
            # Engines know this as a table that is not there (DROP TABLE IF EXISTS), and the other as a failure.
            raise exceptions.NoSuchTableError(f"Table does not exist: {'.'.join((*levels, table))}: {error}") from None

    def _config(self, warehouse: str) -> Response:
        if not warehouse:
            raise errors.InvalidInput("name a warehouse: a repository, or REPO/REF, or REPO/REF/FOLDER")
        uri = LakeUri.parse(f"lakefs://{warehouse}")
        self._lake.repository(uri.repository)
        parts = [one for one in (uri.repository, uri.ref, (uri.path or "").strip("/")) if one]
        prefix = quote(_SEPARATOR.join(parts), safe="")  # one segment, so that none is taken for a resource
        return JSONResponse({"defaults": {}, "overrides": {"prefix": prefix}, "endpoints": _ENDPOINTS})

    def _list_namespaces(self, asked: _Asked) -> Response:
        parent = tuple(one for one in asked.query.get("parent", "").split(_SEPARATOR) if one)
        if asked.ref is None and not parent:
            refs = (*asked.repository.branches(), *asked.repository.tags())
            return _page("namespaces", {one.id: (one.id,) for one in refs}, asked.query)
        tables, levels = asked.at(parent)
        return _page("namespaces", {one[-1]: (*parent, one[-1]) for one in tables.namespaces(levels)}, asked.query)

    def _create_namespace(self, asked: _Asked) -> Response:
        given = _NamespaceRequest.model_validate_json(asked.body)
        tables, levels = asked.at(given.namespace)
        tables.create_namespace(_required(levels), given.properties)
        return JSONResponse(given.model_dump())

    def _load_namespace(self, asked: _Asked) -> Response:
        return JSONResponse({"namespace": asked.levels, "properties": asked.tables.namespace(asked.here)})

    def _drop_namespace(self, asked: _Asked) -> None:
        asked.tables.drop_namespace(_required(asked.here))

    def _set_properties(self, asked: _Asked) -> Response:
        given = _PropertiesRequest.model_validate_json(asked.body)
        both = sorted(given.updates.keys() & given.removals)
        if both:
            answer = f"{', '.join(both)}: to be removed and to be set at once"
            return _error(422, "UnprocessableEntityException", answer)
        changed = asked.tables.update_namespace(_required(asked.here), given.removals, given.updates)
        return JSONResponse(vars(changed))

    def _list_tables(self, asked: _Asked) -> Response:
        names = [one[-1] for one in asked.tables.tables(asked.here)]
        return _page("identifiers", {name: {"namespace": asked.levels, "name": name} for name in names}, asked.query)

    def _create_table(self, asked: _Asked) -> Response:
        optional = {"location": None, "partition-spec": None, "write-order": None}
        given = CreateTableRequest.model_validate(optional | _object(asked.body))
        name, described = (*asked.here, given.name), (given.partition_spec, given.write_order, given.properties)
        made = asked.tables.new_table(name, given.table_schema, given.location, *described)
        if given.stage_create:
            return self._loaded(made, staged=True)
        return self._loaded(asked.tables.create(name, made.metadata))

    def _register_table(self, asked: _Asked) -> Response:
        given = RegisterTableRequest.model_validate({"overwrite": False} | _object(asked.body))
        if given.overwrite:
            raise NotImplementedError("drop the table first, and register it then")
        return self._loaded(asked.tables.register((*asked.here, given.name), given.metadata_location))

    def _load_table(self, asked: _Asked) -> Response:
        return self._loaded(asked.tables.load((*asked.here, asked.table)), asked.headers.get("if-none-match"))

    def _commit_table(self, asked: _Asked) -> Response:
        identifier = {"namespace": asked.levels, "name": asked.table}
        given = CommitTableRequest.model_validate({**_object(asked.body), "identifier": identifier})
        commit = TableCommit((*asked.here, asked.table), given.requirements, given.updates)
        (made,) = asked.tables.commit([commit])
        return self._loaded(made)

    def _drop_table(self, asked: _Asked) -> None:
        asked.tables.drop((*asked.here, asked.table))

    def _rename_table(self, asked: _Asked) -> None:
        given = _RenameRequest.model_validate_json(asked.body)
        tables, old = asked.at(tuple(given.source.namespace.root))
        other, new = asked.at(tuple(given.destination.namespace.root))
        if str(other) != str(tables):
            raise errors.InvalidInput("a table keeps its ref; merge it to another one")
        tables.rename((*old, given.source.name), (*new, given.destination.name))

    def _commit_transaction(self, asked: _Asked) -> None:
        changes = _TransactionRequest.model_validate_json(asked.body).changes
        places = [asked.at(tuple(one.identifier.namespace.root)) for one in changes]
        if len({str(tables) for tables, _ in places}) > 1:
            raise errors.InvalidInput("the tables of one transaction are at one ref")
        names = [(*levels, one.identifier.name) for (_, levels), one in zip(places, changes, strict=True)]
        commits = [TableCommit(name, one.requirements, one.updates) for name, one in zip(names, changes, strict=True)]
        places[0][0].commit(commits)

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
                raise errors.InvalidInput(
                    f"the table's metadata names files below {excerpt(table.metadata.location)}, so this mirror cannot "
                    "redirect engines to its files: read the table at its source, or by pyiceberg without a server, or "
                    "make the mirror in a bucket under the source's prefix"
                )
            config[f"s3.access-points.{there[2]}"] = here[2]
        answer: dict[str, Any] = {} if staged else {"metadata-location": table.location}
        answer["metadata"] = json.loads(table.metadata.model_dump_json())
        answer["config"] = {name: value for name, value in config.items() if value}
        return JSONResponse(answer, headers={} if staged else {"etag": tag})


_IN = ("namespaces", "{}")
_ROUTES: dict[tuple[str, ...], str | dict[str, list[str]] | None] = {
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
    ("POST", *_IN, "tables", "{}", "metrics"): None,
    ("GET", *_IN, "tables", "{}", "credentials"): {"storage-credentials": []},
    ("GET", *_IN, "views"): {"identifiers": []},
    ("GET", *_IN, "views", "{}"): {},
    ("DELETE", *_IN, "views", "{}"): {},
    ("POST", "tables", "rename"): "rename_table",
    ("POST", "transactions", "commit"): "commit_transaction",
}
"""Methods and paths, each with the name of the method that answers it, or with an answer. There are no views."""
_ENDPOINTS = [
    f"{method} /v1/{{prefix}}/{'/'.join(path)}".replace("{}", "{namespace}", 1).replace("{}", "{table}")
    for asked, *path in _ROUTES
    if "views" not in path
    for method in ([asked, "HEAD"] if asked == "GET" and path[-1] == "{}" else [asked])
]
"""The paths that clients are told of, as Iceberg's specification writes them."""


def _required(levels: tuple[str, ...]) -> tuple[str, ...]:
    if not levels:
        raise errors.InvalidInput("a ref cannot be created, changed or dropped as a namespace; use lakeops branch")
    return levels


def _object(body: bytes) -> dict[str, object]:
    found = json.loads(body)
    if not isinstance(found, dict):
        raise errors.InvalidInput("the body is no JSON object")
    return found


def _page(key: str, found: dict[str, object], query: dict[str, str]) -> Response:
    """A page of a list, by name. A client that sends no ``pageToken``, the last name of a page, gets all of it."""
    try:
        after, size = bytes.fromhex(query.get("pageToken", "")).decode(), int(query.get("pageSize", "100"))
    except ValueError:
        after, size = "", 0
    if size < 1:
        raise errors.InvalidInput("pageToken is one of an earlier answer, and pageSize a number from 1 on")
    names = sorted(name for name in found if name > after)
    page = names[:size] if "pageToken" in query else names
    more = {"next-page-token": page[-1].encode().hex()} if len(page) < len(names) else {}
    return JSONResponse({key: [found[name] for name in page], **more})


def _sign(keys: Credentials, until: str) -> str:
    return hmac.digest(keys.secret_key.encode(), f"iceberg {keys.access_key} {until}".encode(), "sha256").hex()


def _error(status: int, kind: str, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "type": kind, "code": status}}, status)


def _refusal(error: Exception, asked: str) -> Response:
    error = errors.out_of_resources(error) or error
    for kind, status, name in _KINDS:
        if isinstance(error, kind):
            return _error(status, name, masked(one_line(error)))
    if isinstance(error, ValueError):
        return _error(400, "BadRequestException", masked(f"the request cannot be read: {error}"))
    log.error("%s: %s", asked, masked(str(error)))
    if isinstance(error, errors.Transient) and error.kind == "catalog_unavailable":
        return _error(504, "CommitStateUnknownException", masked(error.message))  # it may have been made
    if isinstance(error, errors.LakeopsError):
        return _error(503, "ServiceUnavailableException", masked(error.message))
    return _error(500, "InternalServerError", masked(f"unexpected {type(error).__name__}: {error}"))
