"""Mirrors: read-only copies of a repository that are consistent at every moment.

The stores' own replication moves bytes, in any order. These verbs copy commit records, wait until everything that a
head needs is there, and only then show it. See ``docs/mirroring.md``.
"""
