"""Handles: a lake that settings open, its repositories, and their branches and refs.

A handle is cheap, keeps no state of its own, and may be used from several threads. Its methods are the verbs of
``lakeops.ops``.
"""

from lakeops.lake.lake import Lake
from lakeops.lake.repository import Branch, GarbageCollection, Local, Ref, RefsDump, Repository

__all__ = ["Branch", "GarbageCollection", "Lake", "Local", "Ref", "RefsDump", "Repository"]
