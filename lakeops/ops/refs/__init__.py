"""Dumps of a repository's records in its own storage namespace, and catalogs that are made of them."""
