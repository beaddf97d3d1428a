"""Writes to a repository whose disk is not mounted fail, and make nothing where the disk is to be mounted."""

import pytest
from support.errors import raising

from lakeops import Lake, Settings
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


def test_a_mirror_that_shows_something_is_not_replicated_anew_below_the_place_of_its_disk(lake, tmp_path):
    main = lake.create_repository("flights").branch("main")
    main.put("a", b"here")
    main.commit("Load")
    disk, away = tmp_path / "disk", tmp_path / "away"
    disk.mkdir()
    with Lake.open(settings=Settings.load(home=tmp_path / "there", fsync=False)) as there:
        mirror = there.create_mirror("flights", storage_namespace=(disk / "copy").as_uri(), source=lake)
        mirror.replicate()
        mirror.sync()
        disk.rename(away)
        disk.mkdir()
        with raising(StoreUnavailable, "is its disk mounted"):
            there.mirror("flights").replicate()
        disk.rmdir()
        away.rename(disk)
        assert there.mirror("flights").replicate().copied == 0
