"""Spark reads and writes refs.

::

    import lakeops.spark

    flights = lakeops.spark.read(spark, "lakefs://flights/main~1/flights/")
    lakeops.spark.write(flights, "lakefs://flights/dev/copy/", "overwrite")

``read`` and ``write`` hand Spark's own readers and writers the physical files. ``register`` makes
``spark.read.format("lakeops")``, ``df.write.format("lakeops")`` and ``spark.readStream.format("lakeops")`` known, which
go through Python workers and lakeops' own stores. Importing this room imports no PySpark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from lakeops.spark.files import Files, files
from lakeops.spark.tables import read, register, write

if TYPE_CHECKING:
    from lakeops.spark.source import LakeopsDataSource

__all__ = ["Files", "LakeopsDataSource", "files", "read", "register", "write"]


def __getattr__(name: str) -> object:
    if name != "LakeopsDataSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("lakeops.spark.source").LakeopsDataSource
