"""Directories that follow a folder of a ref."""
