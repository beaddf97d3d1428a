"""The object-store seam: what lakeops asks of a store, and the stores that answer."""
