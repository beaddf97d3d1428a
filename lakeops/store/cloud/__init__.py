"""Azure's and Google's object stores, through obstore (the optional extras ``azure`` and ``gcs``)."""

from lakeops.store.cloud.store import CloudStore as CloudStore

__all__ = ["CloudStore"]
