"""Spark reads and writes refs.

::

    import lakeops.spark

    flights = lakeops.spark.read(spark, "lakefs://flights/main~1/flights/")
    lakeops.spark.write(flights, "lakefs://flights/dev/copy/", "overwrite")

``read`` and ``write`` hand Spark's own readers and writers the physical files. ``register`` makes
``spark.read.format("lakeops")``, ``df.write.format("lakeops")`` and ``spark.readStream.format("lakeops")`` known, which
go through Python workers and lakeops' own stores. Importing this package imports no PySpark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from lakeops.spark.tables import Files, files, read, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakeops.spark.source import LakeopsDataSource

__all__ = ["Files", "LakeopsDataSource", "files", "read", "register", "write"]


def register(spark: SparkSession) -> None:
    """Make the format ``lakeops`` known to a session, with the session's settings of now.

    The driver's machine and the executors need lakeops installed. The code that range work sends to workers is not
    enough, because Spark plans with the catalog.
    """
    from sqlalchemy import make_url

    from lakeops.catalog.database import url_for_message
    from lakeops.settings import LakeAddress
    from lakeops.spark.source import USUAL_SETTINGS, LakeopsDataSource

    address = LakeAddress.of()
    settings = address.settings()
    session = {name: str(spark.conf.get(name, usual)).lower() for name, usual in USUAL_SETTINGS.items()}

    class Registered(LakeopsDataSource):
        # Spark plans in processes with the environment of its JVM, which may be older than this one's.
        default_home = str(settings.home) if settings.database_url is None and hasattr(spark, "_sc") else None
        default_connection = address.connection
        default_catalog = url_for_message(make_url(settings.catalog_url))
        unusual_settings = ", ".join(f"{one}={value}" for one, value in session.items() if value != USUAL_SETTINGS[one])

    spark.dataSource.register(Registered)


def __getattr__(name: str) -> object:
    if name != "LakeopsDataSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("lakeops.spark.source").LakeopsDataSource
