"""Tasks on Spark, in a cluster's Python workers: the tasks and functions that run in process too.

``engine`` is for callers. ``session`` gets hold of Spark, a JVM for it, and a package with this code. ``jobs`` runs
functions there and tells its failures in lakeops' own errors. ``worker`` is how tasks travel, and the code on the other
side. PySpark is imported inside functions only: a process that never uses Spark never loads it. Workers get a store and
never a catalog, so they cannot publish.
"""
