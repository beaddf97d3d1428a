"""Checking a repository from its refs down to its objects. Reads only, and tells instead of raising."""
