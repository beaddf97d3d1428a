"""A handle that outlives its repository: its name belongs to another one meanwhile, in another storage namespace."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from lakeops import Branch, Lake, Repository
from lakeops.model.errors import RepositoryNotFound
from lakeops.model.names import HeldRepository


def _output(branch: Branch) -> None:
    with branch.output("out/") as url:
        (Path(url.removeprefix("file://")) / "part").write_bytes(b"other")


WRITES: dict[str, Callable[[Repository], object]] = {
    "put": lambda repo: repo.branch("main").put("path", b"other"),
    "delete": lambda repo: repo.branch("main").delete("kept"),
    "output": lambda repo: _output(repo.branch("main")),
    "upload": lambda repo: repo.branch("main").upload(__file__, "path"),
    "commit": lambda repo: repo.branch("main").commit("other", allow_empty=True),
    "merge": lambda repo: repo.merge("dev", "main", allow_empty=True),
    "squash": lambda repo: repo.merge("dev", "main", squash=True, allow_empty=True),
    "reset": lambda repo: repo.branch("main").reset(),
    "branch": lambda repo: repo.create_branch("another", source="main"),
    "mark": lambda repo: repo.gc.mark(),
}
READS: dict[str, Callable[[Repository], object]] = {
    "list": lambda repo: list(repo.ref("main").list()),
    "entries": lambda repo: repo.ref("main").entries().read_all(),
    "stat": lambda repo: repo.ref("main").stat("kept"),
    "read": lambda repo: repo.ref("main").read("kept"),
    "read of what is staged": lambda repo: repo.ref("main").read("staged"),
    "open": lambda repo: repo.ref("main").open("staged"),
    "diff": lambda repo: list(repo.diff("main~1", "main")),
    "compare": lambda repo: list(repo.compare("dev", "main")),
    "sums": lambda repo: repo.size("main"),
}


@pytest.fixture
def held(lake: Lake, tmp_path: Path) -> tuple[Repository, Repository]:
    """A handle of a repository that is gone, and one of the repository that has its name now."""
    old = lake.create_repository("repo", storage_namespace=(tmp_path / "old").as_uri())
    old.branch("main").put("old", b"old")
    old.branch("main").commit("old")
    lake.delete_repository("repo")
    new = lake.create_repository("repo", storage_namespace=(tmp_path / "new").as_uri())
    new.branch("main").put("kept", b"kept")
    new.branch("main").commit("first")
    new.create_branch("dev", source="main")
    return old, new


@pytest.mark.parametrize("write", WRITES)
def test_an_old_handle_writes_nothing_to_the_repository_that_has_its_name_now(held, write):
    old, new = held
    head = new.branch("main").commit_id
    with pytest.raises(RepositoryNotFound, match="another one has its name now"):
        WRITES[write](old)
    assert new.branch("main").commit_id == head
    assert not list(new.branch("main").uncommitted())
    assert [item.kind for item in new.fsck() if item.severity == "error"] == []
    WRITES[write](new)


@pytest.mark.parametrize("read", READS)
def test_an_old_handle_that_misses_a_file_says_why(held, read):
    old, new = held
    new.branch("main").put("staged", b"staged")
    with pytest.raises(RepositoryNotFound, match="another one has its name now"):
        READS[read](old)
    READS[read](new)


def test_a_held_name_is_the_plain_name_everywhere_else():
    name = HeldRepository("repo", "file:///place")
    assert name == "repo"
    assert {name: 1}["repo"] == 1
    assert f"{name!r} {name}" == "'repo' repo"
    assert [other.namespace for other in (copy.copy(name), pickle.loads(pickle.dumps(name)))] == ["file:///place"] * 2
