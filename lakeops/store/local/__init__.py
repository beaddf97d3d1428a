"""Objects as files below a directory of this machine, or of a file system that several machines share."""

from lakeops.store.local.store import LocalStore

__all__ = ["LocalStore"]
