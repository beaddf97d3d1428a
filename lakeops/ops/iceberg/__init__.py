"""Iceberg's metadata of tables: the files that it names, and tables that both sides of a merge changed."""
