"""Range work on Spark: the same tasks and the same functions as in process, in a cluster's Python workers.

``engine`` is what callers use. ``session`` gets hold of Spark, a JVM for it, and a package with this code. ``jobs``
runs functions there and tells its failures in lakeops' own errors. ``worker`` is how tasks travel, and what runs on
the other side. PySpark is imported inside functions only: a process that
never uses Spark never loads it. Workers get ranges and a store, never a catalog, so they cannot publish.
"""
