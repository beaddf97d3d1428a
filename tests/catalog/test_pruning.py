"""Pruning in small steps, on both databases: what goes, what stays, and what a step leaves for the next one."""

from __future__ import annotations

import pytest
from support.catalogs import FIRST, REPO, a_commit, commit_all, draft, expire_commits, put, seal
from support.catalogs import an_entry as entry
from support.errors import has_kind

from lakeops.catalog.retention import PrunePlan
from lakeops.model.clock import unix_seconds
from lakeops.model.errors import PreconditionFailed


@pytest.fixture
def line(catalog):
    """Twelve commits after the first one, each of a staged row and under a key."""
    commits = []
    for number in range(12):
        put(catalog, entry(f"f{number}"))
        commits.append(commit_all(catalog, f"c{number}", key=f"key {number}", fingerprint="f"))
    catalog.staging.purge_retired(REPO)
    return commits


def soon(catalog) -> int:
    return unix_seconds(catalog.now()) + 10


def prune(catalog, kind: str, *, limit: int = 3, between=lambda: None, **given) -> int:
    """All steps of a kind; ``between`` runs after each."""
    plan, count = PrunePlan(kind, given.pop("before", soon(catalog))), 0
    while True:
        step = catalog.retention.prune(REPO, plan, limit=limit, **given)
        count += step.count
        between()
        if step.after is None:
            return count
        plan = PrunePlan(kind, plan.before, step.after, plan.gone | step.gone)


def healthy(catalog) -> None:
    records = catalog.audit.snapshot(REPO)
    assert records.flaws == []


def test_expired_commits_go_from_the_beginning_on(catalog, line):
    expired = [FIRST, *line[:5], *line[6:9]]  # the sixth lives, and keeps what descends from it
    assert len(expire_commits(catalog, REPO, [commit.id for commit in expired])) == len(expired)
    assert prune(catalog, "commits", dry_run=True) == 5
    assert set(catalog.commits.all(REPO)) == {FIRST.id, *(commit.id for commit in line)}
    assert not catalog.retention.pruned(REPO)
    assert prune(catalog, "commits") == 5
    assert set(catalog.commits.all(REPO)) == {FIRST.id, *(commit.id for commit in line[5:])}
    assert catalog.retention.pruned(REPO)
    assert [one.id for one in catalog.commits.first_parents(REPO, line[-1].id, limit=100)][-1] == line[5].id
    assert catalog.commits.initial_commit(REPO).id == FIRST.id
    healthy(catalog)
    assert prune(catalog, "commits") == 0


def test_a_live_first_commit_keeps_all(catalog, line):
    expire_commits(catalog, REPO, [commit.id for commit in line[:5]])
    assert prune(catalog, "commits") == 0


def test_commits_younger_than_the_log_stay(catalog, line):
    expire_commits(catalog, REPO, [FIRST.id, *(commit.id for commit in line[:5])])
    assert prune(catalog, "commits", before=line[0].creation_date) == 0


def test_a_merge_goes_after_both_of_its_parents(catalog, line):
    catalog.refs.create_branch(REPO, "dev", line[3].id, token="t", actor="ada")
    state = seal(catalog, "dev")
    side = catalog.commits.publish(draft(catalog, state, a_commit("side", line[3])))
    state = seal(catalog)
    merge = catalog.commits.publish(draft(catalog, state, a_commit("merge", line[-1], side)))
    last = commit_all(catalog, "last")
    catalog.refs.delete_branch(REPO, "dev", actor="ada")
    gone = [FIRST, *line, merge]
    expire_commits(catalog, REPO, [commit.id for commit in gone])
    assert prune(catalog, "commits") == len(line)  # the side commit lives, and keeps the merge
    assert set(catalog.commits.all(REPO)) == {FIRST.id, side.id, merge.id, last.id}
    expire_commits(catalog, REPO, [side.id])
    assert prune(catalog, "commits") == 2
    healthy(catalog)


def test_writers_go_on_between_the_steps(catalog, line):
    expire_commits(catalog, REPO, [FIRST.id, *(commit.id for commit in line[:-1])])
    made = []

    def write():
        put(catalog, entry(f"new {len(made)}"))
        made.append(commit_all(catalog, f"new {len(made)}"))

    assert prune(catalog, "commits", between=write) == len(line) - 1
    assert len(made) > 3
    assert set(catalog.commits.all(REPO)) == {FIRST.id, line[-1].id, *(commit.id for commit in made)}
    healthy(catalog)


def test_moves_go_but_for_the_last_one_of_what_exists(catalog, line):
    catalog.refs.create_tag(REPO, "kept", line[-1].id, actor="ada")
    catalog.refs.create_tag(REPO, "gone", line[-1].id, actor="ada")
    catalog.refs.delete_tag(REPO, "gone", actor="ada")
    assert prune(catalog, "moves", before=0) == 0
    assert prune(catalog, "moves") == 14
    assert [(move.ref, move.new) for move in catalog.refs.reflog(REPO)] == [
        ("kept", line[-1].id),
        ("main", line[-1].id),
    ]
    healthy(catalog)


def test_keys_and_tokens_go(catalog, line):
    assert prune(catalog, "keys", before=0) == prune(catalog, "tokens", before=0) == 0
    assert prune(catalog, "keys") == prune(catalog, "tokens") == 12
    assert catalog.commits.of_key(REPO, "key 3", "") is None
    healthy(catalog)


def test_a_read_only_repository_is_not_pruned(catalog, line):
    catalog.repositories.set_read_only(REPO, True)
    with pytest.raises(PreconditionFailed, check=has_kind("read_only_repository")):
        prune(catalog, "keys")
