"""Repositories: their own metadata, and handles that outlive them."""

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lakeops import Repository
from lakeops.model.errors import InvalidInput, RepositoryNotFound
from lakeops.model.ids import COMMIT_METADATA_BYTES
from lakeops.model.names import HeldRepository


def test_keys_are_set_and_removed(lake):
    repo = lake.create_repository("meta", metadata={"owner": "ada", "tier": "1"})
    assert repo.metadata == {"owner": "ada", "tier": "1"}
    assert repo.update_metadata({"tier": None, "contact": "#data", "nosuch": None}) == {
        "owner": "ada",
        "contact": "#data",
    }
    assert lake.repository("meta").record.to_json()["metadata"] == {"owner": "ada", "contact": "#data"}
    repo.update_metadata({"owner": "ada"})
    told = [one for one in repo.audit() if one.action == "set-metadata"]
    assert [(one.before, one.after) for one in told] == [('{"tier": "1"}', '{"contact": "#data"}')]


def test_writers_of_other_keys_lose_nothing(repo):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: repo.update_metadata({f"k{number}": str(number)}), range(12)))
    assert repo.metadata == {f"k{number}": str(number) for number in range(12)}


@pytest.mark.parametrize(
    "changes", [{"": "x"}, {"k": 1}, {1: "x"}, ["k"], {"k\0": "v"}, {"\0": None}, {"k": "x" * COMMIT_METADATA_BYTES}]
)
def test_bad_metadata_is_refused(repo, changes):
    with pytest.raises(InvalidInput):
        repo.update_metadata(changes)
    assert repo.metadata == {}


def test_all_of_it_together_is_bounded(lake, repo):
    half = "x" * (COMMIT_METADATA_BYTES // 2)
    repo.update_metadata({"a": half})
    with pytest.raises(InvalidInput, match="limit"):
        repo.update_metadata({"b": half})
    assert set(repo.metadata) == {"a"}
    with pytest.raises(InvalidInput):
        lake.create_repository("other", metadata={"a": half, "b": half})


def _output(branch):
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
    "exists": lambda repo: repo.branch("main").exists("kept"),
    "uncommitted": lambda repo: list(repo.branch("main").uncommitted()),
    "log": lambda repo: list(repo.log("main")),
    "branches": lambda repo: list(repo.branches()),
    "tags": lambda repo: list(repo.tags()),
    "tag": lambda repo: repo.tag("v1"),
}


@pytest.fixture
def held(lake, tmp_path):
    """A handle of a repository that is gone, and one of the repository that has its name now."""
    old = lake.create_repository("repo", storage_namespace=(tmp_path / "old").as_uri())
    old.branch("main").put("old", b"old")
    old.branch("main").commit("old")
    lake.delete_repository("repo")
    new = lake.create_repository("repo", storage_namespace=(tmp_path / "new").as_uri())
    new.branch("main").put("kept", b"kept")
    new.branch("main").commit("first")
    new.create_branch("dev", source="main")
    new.create_tag("v1", "main")
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


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("read", READS)
def test_an_old_handle_reads_nothing_of_the_repository_that_has_its_name_now(lake, held, tmp_path, read, empty):
    old, new = held
    new.branch("main").put("staged", b"staged")
    if not empty:
        READS[read](new)
    else:
        lake.delete_repository("repo")
        lake.create_repository("repo", storage_namespace=(tmp_path / "empty").as_uri()).create_tag("v1", "main")
    with pytest.raises(RepositoryNotFound, match="another one has its name now"):
        READS[read](old)


def test_a_held_name_is_the_plain_name_everywhere_else():
    name = HeldRepository("repo", "file:///place")
    assert name == "repo"
    assert {name: 1}["repo"] == 1
    assert f"{name!r} {name}" == "'repo' repo"
    assert [other.namespace for other in (copy.copy(name), pickle.loads(pickle.dumps(name)))] == ["file:///place"] * 2
