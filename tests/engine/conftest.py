"""Stores for the tests of committed data."""

from support.range_stores import fresh_store, reader, store

__all__ = ["fresh_store", "reader", "store"]
