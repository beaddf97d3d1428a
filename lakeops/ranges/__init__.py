"""Committed data: immutable ranges and metaranges in Arrow and Parquet."""
