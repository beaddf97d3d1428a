"""The hook: opens the lake that an Airflow connection describes.

A connection holds what ``LAKEOPS_*`` variables hold elsewhere. What it leaves out comes from the worker's environment.
Passwords are masked in task logs, and no message holds one.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.sdk import BaseHook

from lakeops.airflow import get_provider_info
from lakeops.airflow.compat import NoSuchConnection, confirm_missing
from lakeops.model.errors import InvalidInput, LakeopsError, invalid_settings
from lakeops.model.names import DEFAULT_CONN_ID, check_repository
from lakeops.model.sanitising import excerpt

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow.sdk import Connection
    from fsspec import AbstractFileSystem

    from lakeops.lake import Lake, Repository
    from lakeops.model.records import Credentials
    from lakeops.settings import Settings

FIELDS: dict[str, Any] = get_provider_info()["connection-types"][0]["conn-fields"]
"""The extra fields of a connection, as its form has them."""

__all__ = ["DEFAULT_CONN_ID", "LakeopsHook", "check_connection", "create_mirror", "file_uri", "get_fs", "read_fields"]

schemes: list[str] = ["lakefs", "lakeops"]
"""The schemes of ``get_fs``, as Airflow reads them of a provider's file systems."""


class LakeopsHook(BaseHook):
    """Opens the lake that a connection of type ``lakeops`` describes.

    The connection's host is the home directory. Extra fields: ``database_url`` (user and password may come from the
    connection's login and password), ``s3_endpoint_url``, ``s3_region``, ``aws_conn_id``, ``engine``,
    ``spark_master``, ``committer``, ``default_repository`` and ``create``, without which the lake must exist. Any other
    field is refused. When there is no connection named ``lakeops_default``, that name means the environment's own lake.
    """

    conn_name_attr = "lakeops_conn_id"
    default_conn_name = DEFAULT_CONN_ID
    conn_type = "lakeops"
    hook_name = "lakeops"

    def __init__(self, lakeops_conn_id: str = DEFAULT_CONN_ID, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.lakeops_conn_id = lakeops_conn_id

    def get_conn(self) -> Lake:
        """The open lake. Close it, or use it as a context manager.

        Raises:
            AirflowNotFoundException: no such connection, and the id is not the default one.
            InvalidInput, Transient, PreconditionFailed: ``invalid_settings``, ``catalog_unavailable``:
                ``catalog_version``: the lake cannot be opened.
        """
        from airflow.sdk import get_current_context
        from sqlalchemy.engine import make_url

        from lakeops.lake import Lake

        person = None  # the user who triggered the DAG run
        with suppress(RuntimeError, KeyError):  # no task: a page, a trigger, a test of the connection
            person = getattr(get_current_context()["dag_run"], "triggering_user_name", None)
        connection = self._connection
        must_exist = connection is not None and not read_fields(connection)["create"]
        settings = self.settings()
        url = make_url(settings.catalog_url)
        if must_exist and url.drivername.startswith("sqlite") and not Path(url.database or "").is_file():
            raise invalid_settings(
                f"connection {self.lakeops_conn_id!r}: there is no lake at {url.database}; correct it, or set its "
                "extra field 'create' to true to make a lake there"
            )
        return Lake.open(settings=settings, person=person or None, must_exist=must_exist)

    def settings(self) -> Settings:
        """The lake's settings: the connection's, then the environment's. Raises ``InvalidInput``."""
        from lakeops.settings import Settings

        connection = self._connection
        if connection is None:
            return _patient(Settings.load())
        extra = read_fields(connection)
        given = {name: extra[name] for name in ("s3_endpoint_url", "s3_region", "engine", "spark_master", "committer")}
        credentials = None
        if extra["aws_conn_id"]:
            aws = self._aws(extra["aws_conn_id"])
            given["s3_endpoint_url"] = given["s3_endpoint_url"] or aws.extra_dejson.get("endpoint_url") or None
            given["s3_region"] = given["s3_region"] or aws.extra_dejson.get("region_name") or None
            credentials = _credentials(aws)
        url = _database_url(connection, extra["database_url"])
        loaded = Settings.load(home=connection.host or None, database_url=url, **given)
        return _patient(loaded.with_credentials(credentials))

    def default_repository(self) -> str | None:
        connection = self._connection
        return None if connection is None else read_fields(connection)["default_repository"]

    @contextmanager
    def repository(self, name: str | None = None) -> Iterator[Repository]:
        """A repository, or the connection's default one, in a lake that is closed at the end of the ``with``.

        Raises:
            InvalidInput: there is neither a name nor a default.
            RepositoryNotFound: and what ``get_conn`` raises.
        """
        chosen = self.repository_name(name)
        with self.get_conn() as lake, self.naming(lake):
            yield lake.repository(chosen)

    def naming(self, lake: Lake) -> AbstractContextManager[None]:
        """Name the lake in each *not found*: another one may have what was looked for."""
        from lakeops.settings import LakeAddress

        return LakeAddress(self.lakeops_conn_id).naming(lake.catalog.database.shown)

    @property
    def storage_options(self) -> dict[str, str]:
        """Options of fsspec for opening ``lakefs://`` URLs by this connection, in pandas for instance."""
        return {"conn_id": self.lakeops_conn_id}

    def uri(self, ref: str, path: str, repo: str | None = None) -> str:
        """The URL of a path, which pandas and others open by this connection."""
        return file_uri(self.repository_name(repo), f"{ref}/{path}", self.lakeops_conn_id)

    def repository_name(self, name: str | None = None) -> str:
        """The name, or the connection's default repository. Raises ``InvalidInput`` when there is neither."""
        chosen = name or self.default_repository()
        if not chosen:
            raise InvalidInput(
                f"no repository: set repo, or a default repository in connection {self.lakeops_conn_id!r}"
            )
        return chosen

    def test_connection(self) -> tuple[bool, str]:
        """Test the connection for its form: open the catalog, and write, read and delete objects in the store.

        The store is the one of the default repository. Returns whether it worked, and details.
        """
        try:
            with self.get_conn() as lake, self.naming(lake):
                facts = ", ".join(f"{name} {value}" for name, value in lake.catalog.describe().items())
                found = sum(1 for _ in lake.repositories())
                stored, name = "no default repository, so no store was tried", self.default_repository()
                if name is not None:
                    namespace = lake.repository(name).storage_namespace
                    stored = f"repository {name} is at {namespace}: {lake.stores().at(namespace).probe().summary}"
        except NoSuchConnection as error:
            return False, error.message
        except LakeopsError as error:
            return False, f"{error.kind}: {error.message}"
        return True, f"The lake opens: {facts}; repositories: {found}; {stored}"

    def _aws(self, conn_id: str) -> Connection:
        try:
            found = self.get_connection(conn_id)
        except AirflowNotFoundException:
            raise NoSuchConnection(
                f"connection {self.lakeops_conn_id!r} takes its AWS keys from connection {conn_id!r}, and there is none"
            ) from None
        _check_type(found, "aws")
        return found

    @cached_property
    def _connection(self) -> Connection | None:
        """The connection, which is asked for once: each question is a request to Airflow's API server."""
        try:
            found = self.get_connection(self.lakeops_conn_id)
        except AirflowNotFoundException:
            confirm_missing(self.lakeops_conn_id)
            if self.lakeops_conn_id == DEFAULT_CONN_ID:
                return None
            raise NoSuchConnection(
                f"there is no connection {self.lakeops_conn_id!r}; create one of type 'lakeops', or use "
                f"{DEFAULT_CONN_ID!r}, which stands for the LAKEOPS_* environment when nobody defined it"
            ) from None
        _check_type(found, self.conn_type)
        return found


def _check_type(connection: Connection, wanted: str) -> None:
    if connection.conn_type and connection.conn_type != wanted:
        raise invalid_settings(
            f"connection {connection.conn_id!r} is of type {connection.conn_type!r}; name one of type {wanted!r}"
        )


def _credentials(aws: Connection) -> Credentials | None:
    """The keys of an AWS connection, masked in every log. None where it leaves them to boto3's chain."""
    from airflow.sdk.log import mask_secret

    from lakeops.model.records import Credentials

    extra = aws.extra_dejson
    asked = sorted(name for name in ("role_arn", "profile_name", "assume_role_method") if extra.get(name))
    if asked:
        raise invalid_settings(
            f"connection {aws.conn_id!r} asks for {', '.join(asked)}, which lakeops does not follow: let boto3's "
            "chain on the worker do that, and name no AWS connection"
        )
    if bool(aws.login) != bool(aws.password):
        raise invalid_settings(f"connection {aws.conn_id!r} has half of an AWS key: give login and password")
    if not aws.login:
        return None
    token = extra.get("aws_session_token") or None
    for secret in filter(None, (aws.password, token)):
        mask_secret(secret)
    return Credentials(str(aws.login), str(aws.password), token)


def get_fs(conn_id: str | None, storage_options: Mapping[str, Any] | None = None) -> AbstractFileSystem:
    """The file system of a connection's lake, for ``ObjectStoragePath``. It opens the lake when it first needs it."""
    import fsspec

    return fsspec.filesystem("lakefs", conn_id=conn_id or DEFAULT_CONN_ID, **(storage_options or {}))


# As Airflow's own commands on connections do: without it, those of Airflow's database are not looked for.
_WITH_DATABASE = {"_AIRFLOW_PROCESS_CONTEXT": "server"}


def create_mirror(args: Namespace) -> None:
    """Create a mirror for ``airflow lakeops mirrors create``. Exit with 1 when it cannot be created."""
    from lakeops.airflow.idempotent import create_mirror as create

    os.environ.update(_WITH_DATABASE)
    follow = {"branches": args.branch or ("*",), "tags": args.tag or ("*",)}
    try:
        with LakeopsHook(args.conn_id).get_conn() as lake:
            mirror = create(lake, args.mirror, args.storage_namespace, args.source, **follow)
            sys.stdout.write(f"Mirror lakefs://{mirror.id} follows {mirror.configuration.source.text}\n")
    except LakeopsError as error:
        raise SystemExit(f"{error.kind}: {error.message}") from None


def check_connection(args: Namespace) -> None:
    """Test a connection for ``airflow lakeops connections test``. Exit with 1 when it does not work."""
    os.environ.update(_WITH_DATABASE)
    works, message = LakeopsHook(args.conn_id).test_connection()
    print(message, file=sys.stdout if works else sys.stderr)
    if not works:
        raise SystemExit(1)


def file_uri(repo: str, path: str, lakeops_conn_id: str) -> str:
    """``lakefs://REPO/PATH``, with the connection's name in front of the repository unless it is the default one."""
    connection = "" if lakeops_conn_id == DEFAULT_CONN_ID else f"{lakeops_conn_id}@"
    return f"lakefs://{connection}{repo}/{path}"


def read_fields(connection: Connection) -> dict[str, Any]:
    """Check each field of a connection of type ``lakeops``; returns its extra fields by name, None for empty ones.

    A field that nobody reads would leave its place to the environment's lake. Raises ``InvalidInput``, which names the
    field and repeats no value that may be a password.
    """
    from airflow.sdk.log import mask_secret

    try:
        try:
            extra = json.loads(connection.extra or "{}")
        except ValueError:
            extra = None
        if not isinstance(extra, dict):
            raise InvalidInput('extra is no JSON object; write one such as {"database_url": "..."}')
        mask_secret(extra)
        found = {name: _read_extra(name, value) for name, value in extra.items()}
        _check_place(connection, found.get("database_url") or "")
    except InvalidInput as error:
        raise invalid_settings(f"connection {connection.conn_id!r}: {error.message}") from None
    return {name: found.get(name) for name in FIELDS}


def _read_extra(name: str, value: Any) -> Any:
    """The value of an extra field; None for an empty one. Raises ``InvalidInput``."""
    if name not in FIELDS:
        plain = name.removeprefix("extra__lakeops__")
        near = [plain] if plain in FIELDS else get_close_matches(plain, FIELDS, 1)
        meant = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(FIELDS)}"
        raise InvalidInput(f"extra has no field {excerpt(name)}; {meant}")
    schema = FIELDS[name]["schema"]
    if schema["type"] == "boolean":
        word = str(value).lower()
        if word not in {"true", "false", "none", ""}:
            raise InvalidInput(f"{name} in extra must be true or false")
        return word == "true"
    if value is None or value == "":
        return None
    if not isinstance(value, str) or value != value.strip():
        raise InvalidInput(f"{name} in extra is no text, or has white space around it")
    if value not in schema.get("enum", [value]):
        raise InvalidInput(f"{name} in extra must be one of {', '.join(schema['enum'])}")
    if name == "default_repository":
        try:
            check_repository(value)
        except InvalidInput as error:
            raise InvalidInput(f"{name} in extra: {error.message}") from None
    return value


def _check_place(connection: Connection, url: str) -> None:
    """Check the fields that Airflow's connections have beside extra. Raises ``InvalidInput``."""
    how = "name the catalog by the extra field database_url, such as postgresql+psycopg://db.example:5432/lakeops"
    host = connection.host or ""
    if host and not host.startswith(("/", "~")):
        raise InvalidInput(f"host {excerpt(host)} is no absolute path, and it is a lake's home directory; {how}")
    for name in ("port", "schema"):
        if getattr(connection, name):
            raise InvalidInput(f"{name} has no meaning; {how}")
    if connection.login and (not url or url.startswith("sqlite")):
        raise InvalidInput(f"login has no meaning without a database server; {how}")


OUTAGE_MINUTES = 5.0
"""How long the calls of a task wait for a catalog or a store that does not answer, where no setting says otherwise."""


def _patient(settings: Settings) -> Settings:
    """The settings, with ``OUTAGE_MINUTES`` in a task, or half of its execution timeout. A sensor waits by itself."""
    from airflow.sdk import get_current_context

    with suppress(RuntimeError, KeyError):  # no task: a page, a trigger, a test of the connection
        task = get_current_context()["task"]
        if settings.outage_minutes is None and not hasattr(task, "poke_interval"):
            limit = getattr(task, "execution_timeout", None)
            minutes = OUTAGE_MINUTES if limit is None else min(OUTAGE_MINUTES, limit.total_seconds() / 120)
            return settings.model_copy(update={"outage_minutes": minutes})
    return settings


def _database_url(connection: Connection, url: str | None) -> str | None:
    """The catalog's URL, with the connection's user (unless it names one) and password."""
    if not url:
        return None
    from airflow.sdk.log import mask_secret
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # such as a password where the port would be, because the host is missing
        raise invalid_settings(f"connection {connection.conn_id!r}: the database URL cannot be read") from None
    if parsed.password or any("password" in name.lower() for name in parsed.query):
        raise invalid_settings(
            f"connection {connection.conn_id!r}: the database URL holds a password, which Airflow would show; move it "
            "to the connection's password field"
        )
    if parsed.drivername.startswith("sqlite"):
        return url
    if connection.password:
        mask_secret(connection.password)
    parsed = parsed.set(username=parsed.username or connection.login or None, password=connection.password or None)
    return parsed.render_as_string(hide_password=False)
