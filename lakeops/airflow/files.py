"""``lakefs://`` paths in Airflow: ``ObjectStoragePath`` opens them in the lake of a connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lakeops.airflow.hook import DEFAULT_CONN_ID

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

schemes: list[str] = ["lakefs", "lakeops"]


def get_fs(conn_id: str | None, storage_options: Mapping[str, Any] | None = None) -> AbstractFileSystem:
    """The file system of a connection's lake, which is opened when it is first needed."""
    import fsspec

    return fsspec.filesystem("lakefs", conn_id=conn_id or DEFAULT_CONN_ID, **(storage_options or {}))
