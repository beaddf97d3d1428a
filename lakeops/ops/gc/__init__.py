"""Garbage collection: rules decide which commits live, a mark finds what none of them needs, a sweep deletes it."""
