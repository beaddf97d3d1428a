"""Stores for the tests of committed data, and metaranges of one file and of leaves."""

from support.leaves import leaves
from support.range_stores import fresh_store, reader, store

__all__ = ["fresh_store", "leaves", "reader", "store"]
