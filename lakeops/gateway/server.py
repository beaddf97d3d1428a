"""Serving the gateway: where it may listen, and the process that answers."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING

from lakeops.model.errors import InvalidInput, InvalidSettings, Unsupported
from lakeops.model.records import Credentials

if TYPE_CHECKING:
    import uvicorn

    from lakeops.lake import Lake
    from lakeops.settings import Settings

_MIN_SECRET = 16
_BACKLOG = 512


def keys_of(settings: Settings) -> Credentials | None:
    """What requests must be signed with, where the settings have keys. Raises ``InvalidSettings``."""
    name, secret = settings.gateway_access_key, settings.gateway_secret_key
    if name is None and secret is None:
        return None
    if name is None or secret is None:
        raise InvalidSettings("gateway_access_key and gateway_secret_key go together; set both or none")
    if "/" in name or not name.isascii() or not name.isprintable() or "," in name or " " in name:
        raise InvalidSettings("gateway_access_key must be ASCII without spaces, commas and slashes")
    if len(secret.get_secret_value()) < _MIN_SECRET:
        raise InvalidSettings(f"gateway_secret_key is too short; give at least {_MIN_SECRET} characters")
    return Credentials(name, secret.get_secret_value())


@contextmanager
def listening(host: str, port: int, *, keys: Credentials | None) -> Iterator[socket.socket]:
    """A socket that takes connections at an address. Without keys only one that no other machine reaches.

    Raises:
        InvalidInput: it cannot be listened there.
        InvalidSettings: others would reach it, and there are no keys.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        opened = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no address"
        raise InvalidInput(f"cannot listen at {host}:{port}: {reason}") from None
    with opened:
        # The address is looked at, and not the name: a name may lead anywhere.
        if keys is None and not ip_address(opened.getsockname()[0]).is_loopback:
            raise InvalidSettings(
                f"{host} can be reached from other machines; set gateway_access_key and gateway_secret_key, "
                "or listen at 127.0.0.1"
            )
        yield opened


def server_of(lake: Lake, keys: Credentials | None, *, write: bool = False) -> uvicorn.Server:
    """A server that is ready to run. Raises ``Unsupported`` without the extra, ``InvalidSettings`` as ``Gateway``."""
    try:
        from lakeops.gateway.app import Gateway
        from lakeops.serving import server_of as limited
    except ImportError:
        raise Unsupported('the gateway needs starlette and uvicorn; install lakeops with its extra "gateway"') from None
    return limited(Gateway(lake, keys, write=write))


@contextmanager
def serving(lake: Lake, *, write: bool = False) -> Iterator[dict[str, str]]:
    """Let programs of this machine read refs as ``s3://REPO/REF/PATH`` while the block runs; with ``write`` write, too.

    The gateway runs in a thread of this process, at a loopback address, with keys that nobody else knows.

    Yields:
        What delta-rs, polars and other programs over Rust's object_store take as ``storage_options``.
    """
    keys = Credentials("lakeops", secrets.token_urlsafe())
    server = server_of(lake, keys, write=write)
    with listening("127.0.0.1", 0, keys=keys) as opened:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]}, name="lakeops-gateway")
        thread.start()
        try:
            yield {
                "aws_endpoint_url": f"http://127.0.0.1:{opened.getsockname()[1]}",
                "aws_access_key_id": keys.access_key,
                "aws_secret_access_key": keys.secret_key,
                "aws_region": "us-east-1",
                "aws_allow_http": "true",
                "aws_conditional_put": "etag",
            }
        finally:
            server.should_exit = True
            thread.join()
