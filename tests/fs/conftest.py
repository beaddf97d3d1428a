"""Fixtures for tests of the file system."""

import pytest

from lakeops.fs import LakeopsFileSystem


@pytest.fixture(autouse=True)
def opened(monkeypatch):
    """The lakes that file systems open, which a process keeps to its end. Here they end with the test."""
    lakes = {}
    monkeypatch.setattr(LakeopsFileSystem, "_opened", lakes)
    yield
    for lake in lakes.values():
        lake.close()
