"""Checking a repository from its refs down to its objects. It only reads, and reports findings instead of raising."""
