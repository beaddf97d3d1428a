"""A verb that garbage collection overtakes says *expired*; *missing* is said of live commits alone."""

from collections.abc import Callable
from typing import Any

import pytest
from support.catalogs import expire_commits
from support.scenes import SPLIT, root

from lakeops import Lake, Repository
from lakeops.model.errors import CommitExpired, FileMissing

Act = Callable[[Repository, str], Any]

VERBS: dict[str, Act] = {
    "diff": lambda repo, old: list(repo.diff(old, "main")),
    "diff-back": lambda repo, old: list(repo.diff("main", old)),
    "changed": lambda repo, old: repo.changed(old, "main"),
    "entries": lambda repo, old: repo.ref(old).entries().read_all(),
    "list": lambda repo, old: list(repo.ref(old).list()),
    "stat": lambda repo, old: repo.ref(old).stat("f01"),
    "compare": lambda repo, old: list(repo.compare("main", old)),
    "merge": lambda repo, old: repo.merge(old, "main"),
    "revert": lambda repo, old: repo.branch("main").revert(old),
    "revert-changes": lambda repo, old: list(repo.branch("main").revert_changes(old)),
    "cherry-pick": lambda repo, old: repo.cherry_pick(old, "main"),
    "cherry-pick-changes": lambda repo, old: list(repo.cherry_pick_changes(old, "main")),
}


@pytest.fixture
def repo(faulty_lake):
    return faulty_lake.create_repository("repo", split=SPLIT)


@pytest.fixture
def old(repo, clock):
    """A commit that no branch has any more, a mark away from expiry; ``main`` has moved on.

    It changes nearly all objects, so it keeps no list of changes, and verbs have to read its ranges.
    """
    main = repo.branch("main")
    with main.batch() as batch:
        for number in range(12):
            batch.put(f"f{number:02}", b"base")
    main.commit("base")
    branch = repo.create_branch("dev")
    with branch.batch() as batch:
        for number in {*range(12)} - {6}:
            batch.put(f"f{number:02}", b"dev")
    old = branch.commit("dev").id
    main.put("f06", b"main")
    main.commit("main")
    repo.delete_branch("dev")
    return old


def fresh(repo):
    """A lake that remembers no files, over the same catalog and stores."""
    return Lake(repo._ctx.catalog, repo._ctx.settings, stores=repo._ctx.stores())


def lose(repo, key):
    (root(repo) / key).unlink()


def files_of(repo, commit_id, kind):
    """The keys of metadata files that this commit has and ``main`` has not."""
    here, there = (repo._ctx.metarange(repo.ref(ref).commit) for ref in (commit_id, "main"))
    if kind == "metarange":
        return [f"_lakefs/metaranges/{repo.ref(commit_id).commit.meta_range_file}"]
    return [row.key for row in here.at(here.without(there))]


@pytest.mark.parametrize("kind", ["metarange", "range"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_that_is_overtaken_says_expired(repo, old, faults, verb, kind):
    keys = files_of(repo, old, kind)

    def collect(_):
        """The commit expires and its files go, just before the first of them is read."""
        expire_commits(repo._ctx.catalog, "repo", [old])
        for key in keys:
            if (root(repo) / key).exists():
                lose(repo, key)

    faults.hook("get" if kind == "metarange" else "get_range", when="before", action=collect)
    with pytest.raises(CommitExpired, match=f"commit {old} is expired"):
        VERBS[verb](fresh(repo).repository("repo"), old)


@pytest.mark.parametrize("kind", ["metarange", "range"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_file_of_live_commits_that_is_missing_is_missing(repo, old, verb, kind):
    for key in files_of(repo, old, kind):
        lose(repo, key)
    with pytest.raises(FileMissing, match="run `lakeops fsck`"):
        VERBS[verb](fresh(repo).repository("repo"), old)


def test_what_a_merge_did_is_told_without_what_has_expired(repo, old):
    first = repo.merge(old, "main", idempotency_key="k")
    assert first.summary.changed == 11
    (lost,) = {parent for parent in repo.ref("main").commit.parents if parent != old}
    keys = files_of(repo, lost, "metarange")
    expire_commits(repo._ctx.catalog, "repo", [lost])
    lose(repo, keys[0])
    again = fresh(repo).repository("repo").merge(old, "main", idempotency_key="k")
    assert (again.reference, again.summary.total) == (first.reference, 0)
