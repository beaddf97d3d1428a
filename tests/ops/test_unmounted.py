"""Writes to a repository whose disk is not mounted fail, and make nothing where the disk is to be mounted."""

import pytest
from support.errors import raising

from lakeops import Lake
from lakeops.model.errors import StoreUnavailable

WRITES = {
    "put": lambda repo: repo.branch("main").put("b", b"lost"),
    "output": lambda repo: repo.branch("main").open_output("out/"),  # engines make its directories themselves
    "commit": lambda repo: repo.branch("main").commit("lost"),
    "adopt": lambda repo: repo.adopt(),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("is_root", [False, True], ids=["a folder of the disk", "the disk"])
def test_a_disk_that_is_not_mounted(settings, tmp_path, is_root, write):
    disk, away = tmp_path / "disk", tmp_path / "away"
    root = disk if is_root else disk / "flights"
    disk.mkdir()
    with Lake.open(settings=settings) as lake:
        lake.create_repository("flights", storage_namespace=root.as_uri()).branch("main").put("a", b"here")
    disk.rename(away)
    disk.mkdir()
    with Lake.open(settings=settings) as lake, raising(StoreUnavailable, "is its disk mounted"):
        write(lake.repository("flights"))
    disk.rmdir()  # it is empty
    away.rename(disk)
    with Lake.open(settings=settings) as lake:
        main = lake.repository("flights").branch("main")
        main.commit("found")
        assert [item.path for item in main.list()] == ["a"]
        assert main.read("a") == b"here"
