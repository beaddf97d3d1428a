"""Range work on Spark: the same tasks and the same functions as in process, in a cluster's Python workers.

``engine`` is what callers use, ``session`` gets hold of Spark (``java`` finds it a JVM, ``package`` brings this code
along), ``jobs`` run functions there, ``parcel`` is how tasks travel, ``worker`` is what runs on the other side, and
``failures`` says what went wrong in lakeops' own errors. PySpark is imported inside functions only: a process that
never uses Spark never loads it. Workers get ranges and a store, never a catalog, so they cannot publish.
"""
