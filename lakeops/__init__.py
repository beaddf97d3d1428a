"""lakeops: Git for an object store, without a server."""

from __future__ import annotations

from lakeops.version import __version__

__all__ = ["__version__"]
