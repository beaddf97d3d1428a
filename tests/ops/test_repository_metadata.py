"""A repository's own metadata: changed key by key, bounded, audited, and shown by mirrors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from support.errors import has_kind

from lakeops.model.errors import InvalidInput, PreconditionFailed
from lakeops.model.ids import COMMIT_METADATA_BYTES


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


def test_a_read_only_repository_keeps_its_own(repo):
    repo.set_read_only()
    with pytest.raises(PreconditionFailed, check=has_kind("read_only_repository")):
        repo.update_metadata({"k": "v"})
