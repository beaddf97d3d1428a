"""boto3 clients: one a process for equal settings, made when first needed.

A store carries settings only, so it pickles and crosses a fork; a child process makes clients of its own, because
connections must not be shared between processes.
"""

from __future__ import annotations

import base64
import hashlib
import os
import threading
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lakeops.model.errors import StoreError
from lakeops.store.settings import StoreSettings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

DEFAULT_REGION = "us-east-1"


class _Clients:
    """The clients of this process."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start anew, as a child process must."""
        self._lock = threading.Lock()
        self._made: dict[StoreSettings, S3Client] = {}

    def get(self, settings: StoreSettings) -> S3Client:
        """The client for these settings."""
        found = self._made.get(settings)
        if found is None:
            with self._lock:
                found = self._made.get(settings) or _connect(settings)
                self._made[settings] = found
        return found


_clients = _Clients()
os.register_at_fork(after_in_child=_clients.forget)


def client(settings: StoreSettings) -> S3Client:
    """The process's client for these settings; threads may share it."""
    return _clients.get(settings)


def _connect(settings: StoreSettings) -> S3Client:
    import boto3
    import botocore.session
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    config = Config(
        signature_version="s3v4",
        s3={"addressing_style": "path" if settings.endpoint_url else "auto"},
        retries={"mode": "standard", "total_max_attempts": settings.max_attempts},
        connect_timeout=settings.connect_timeout,
        read_timeout=settings.read_timeout,
        max_pool_connections=settings.max_connections,
        # Older servers answer the newer checksum trailers with 411. Contents stay protected: the signature covers them.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        user_agent_extra="lakeops",
    )
    try:
        core = botocore.session.get_session()
        core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_moment)
        session = boto3.session.Session(botocore_session=core)
        made = session.client(
            "s3",
            endpoint_url=settings.endpoint_url,
            region_name=settings.region or session.region_name or DEFAULT_REGION,
            config=config,
        )
    except (BotoCoreError, ValueError) as error:
        kind = type(error).__name__
        raise StoreError(
            f"boto3's configuration does not allow an S3 client ({kind}); correct the AWS settings"
        ) from None
    made.meta.events.register_last("before-call.s3.DeleteObjects", _add_content_md5)
    return made


def _moment(value: str) -> datetime:
    """A time in an answer. botocore's own parser takes most of the time of a listing; this one knows its spelling."""
    from botocore.utils import parse_timestamp

    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return parse_timestamp(value)
    return found if found.tzinfo is not None else parse_timestamp(value)


def _add_content_md5(params: dict[str, Any], **_: Any) -> None:  # noqa: ANN401 - botocore passes what it likes
    """Digest the body the way servers asked for it before checksum headers existed; some still insist."""
    digest = hashlib.md5(params["body"], usedforsecurity=False).digest()
    params["headers"]["Content-MD5"] = base64.b64encode(digest).decode()
