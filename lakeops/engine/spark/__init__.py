"""Tasks on Spark, in a cluster's Python workers: the tasks and functions that run in process too.

``engine`` is for callers. ``session`` gets hold of Spark, a JVM for it, and a package with this code. ``jobs`` sends
tasks there, runs them, and turns Spark's failures into lakeops' errors. PySpark is imported inside functions only: a
process that never uses Spark never loads it. Workers get a store and never a catalog, so they cannot publish.
"""
