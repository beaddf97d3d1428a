from __future__ import annotations

from datetime import timedelta

import pytest
from support.catalogs import (
    FIRST,
    REPO,
    a_commit,
    an_entry,
    commit_all,
    create,
    draft,
    everything,
    gone,
    new_token,
    paths,
    put,
    seal,
)

from lakeops.catalog.records import BranchState, ExpectedState
from lakeops.model.errors import AttemptExpired, BranchMoved, LakeopsError, RefNotFound, RepositoryNotFound
from lakeops.model.protection import CHECK_PROTECTION, TAG_PROTECTION

PATHS = sorted(
    [" ", "%", "A", "_", "a", "a b", "a\nb", "a\r\n", "a\"'b", "a\\.", "a//b", "a_", "ab", "z", "é", "\uff5a", "😀"],
    key=str.encode,
)


def staged(catalog, **where):
    return [(row.path, row.entry and row.entry.physical_address[-1]) for row in page(catalog, **where)]


def page(catalog, **where):
    return catalog.staging.staged_page(REPO, "main", **where).rows


def test_the_last_write_of_a_path_wins(catalog):
    state = put(catalog, an_entry("a", "1"), an_entry("b", "1"), an_entry("a", "2"))
    assert state == catalog.refs.branch(REPO, "main")
    put(catalog, an_entry("b", "2", k="v"), gone("c"))
    assert staged(catalog) == [("a", "2"), ("b", "2"), ("c", None)]
    assert catalog.staging.staged_one(REPO, "main", "b") == (FIRST, an_entry("b", "2", k="v"))
    put(catalog, gone("b"), an_entry("c", "3"))
    assert staged(catalog) == [("a", "2"), ("b", None), ("c", "3")]
    assert catalog.staging.staged_one(REPO, "main", "none") == (FIRST, None)
    put(catalog)
    assert len(page(catalog)) == 3


def test_a_branch_is_read_with_the_commit_it_points_to(catalog):
    head = commit_all(catalog, "one")
    put(catalog, an_entry("a"))
    found = catalog.staging.staged_page(REPO, "main")
    assert (found.state, found.head, paths(found.rows)) == (catalog.refs.branch(REPO, "main"), head, ["a"])
    assert catalog.staging.staged_one(REPO, "main", "a")[0] == head


def test_the_newest_token_wins(catalog):
    put(catalog, an_entry("a", "1"), an_entry("b", "1"), an_entry("c", "1"), gone("d"))
    first = seal(catalog)
    put(catalog, an_entry("a", "2"), gone("b"))
    second = seal(catalog)
    put(catalog, an_entry("a", "3"), an_entry("d", "3"))
    assert second.sealed_tokens == (first.staging_token, *first.sealed_tokens)
    assert staged(catalog) == [("a", "3"), ("b", None), ("c", "1"), ("d", "3")]
    assert catalog.staging.staged_one(REPO, "main", "b")[1] == gone("b")
    assert catalog.staging.staged_one(REPO, "main", "c")[1] == an_entry("c", "1")
    found = catalog.staging.staged_table(REPO, "main")
    table = found.staged
    assert found.state == catalog.refs.branch(REPO, "main")
    assert table.select(["path", "tombstone"]).to_pylist() == [
        {"path": row.path, "tombstone": row.entry is None} for row in page(catalog)
    ]
    sealed = catalog.staging.staged_table(REPO, "main", tokens=second.sealed_tokens).staged
    assert [path[-1:] for path in sealed["physical_address"].to_pylist() if path] == ["2", "1"]
    oldest = catalog.staging.staged_table(REPO, "main", tokens=first.sealed_tokens).staged
    assert oldest["tombstone"].to_pylist() == [False, False, False, True]
    assert catalog.staging.staged_table(REPO, "main", tokens=("not a token",)).staged.num_rows == 0


def test_pages_walk_all_tokens_in_byte_order(catalog):
    for path in PATHS[::2]:
        put(catalog, an_entry(path, "1"))
    seal(catalog)
    for path in PATHS[1::2]:
        put(catalog, an_entry(path, "2"))
    put(catalog, gone("a"))
    assert paths(page(catalog)) == PATHS
    for limit in (1, 2, 5):
        walked = [""]
        while more := paths(page(catalog, after=walked[-1], limit=limit)):
            assert len(more) <= limit
            walked += more
        assert walked[1:] == PATHS
    for prefix in ("a", "a_", "%", "é", "😀", "a\n", "nothing"):
        expected = [path for path in PATHS if path.startswith(prefix)]
        assert paths(page(catalog, prefix=prefix)) == expected
        assert catalog.staging.staged_table(REPO, "main", prefix=prefix).staged["path"].to_pylist() == expected
        assert paths(page(catalog, prefix=prefix, after="a", limit=1)) == [p for p in expected if p > "a"][:1]


def test_sealing_moves_the_token_once_and_only_with_rows(catalog):
    before = catalog.refs.branch(REPO, "main")
    assert seal(catalog) == before
    put(catalog, an_entry("a"))
    token = new_token()
    sealed = catalog.staging.seal(REPO, "main", token=token).state
    assert sealed == BranchState(REPO, "main", FIRST.id, token, (before.staging_token,), 0)
    put(catalog, an_entry("b"))
    assert catalog.staging.seal(REPO, "main", token=token).state == sealed  # the same call again: its answer was lost
    assert sealed == catalog.refs.branch(REPO, "main")


def test_rows_are_there_or_not(catalog):
    catalog.refs.create_branch(REPO, "dev", FIRST.id, token=new_token(), actor="ada")
    assert not catalog.staging.has_staged(REPO, "main")
    put(catalog, gone("never there"))
    assert catalog.staging.has_staged(REPO, "main")
    seal(catalog)
    assert catalog.staging.has_staged(REPO, "main")
    assert not catalog.staging.has_staged(REPO, "dev")
    with pytest.raises(RefNotFound):
        catalog.staging.has_staged(REPO, "nope")


def test_staging_can_depend_on_the_branch_as_it_was_seen(catalog):
    seen = catalog.refs.branch(REPO, "main")
    put(catalog, an_entry("a"), expect=ExpectedState(seen))
    put(catalog, an_entry("b"), expect=ExpectedState(seen))  # others may stage meanwhile
    changes = (
        lambda: seal(catalog),
        lambda: catalog.staging.reset(REPO, "main", path="b", actor="ada"),
        lambda: catalog.commits.publish(draft(catalog, catalog.refs.branch(REPO, "main"), a_commit("one", FIRST))),
    )
    for change in changes:
        seen = catalog.refs.branch(REPO, "main")
        change()
        before = everything(catalog)
        with pytest.raises(BranchMoved):
            put(catalog, an_entry("c"), expect=ExpectedState(seen))
        assert everything(catalog) == before


def test_uploads_end_when_they_are_linked_or_given_up(catalog):
    started = catalog.staging.begin_upload(REPO, "main", "data/p/one/", upload="one")
    catalog.staging.begin_upload(REPO, "main", "data/p/two/", upload="two")
    again = catalog.staging.begin_upload(REPO, "main", "data/p/two/", upload="two")
    assert catalog.retention.roots(REPO).uploads == {"one": ("data/p/one/", started), "two": ("data/p/two/", again)}
    with pytest.raises(AttemptExpired):
        put(catalog, an_entry("a"), started=started - timedelta(days=1), upload="one")
    assert list(catalog.retention.roots(REPO).uploads) == ["one", "two"]
    put(catalog, an_entry("a"), started=started, upload="one")
    assert list(catalog.retention.roots(REPO).uploads) == ["two"]
    catalog.staging.end_upload(REPO, "two")
    catalog.staging.end_upload(REPO, "two")
    assert catalog.retention.roots(REPO).uploads == {}
    with pytest.raises(RefNotFound):
        catalog.staging.begin_upload(REPO, "nope", "data/p/x/", upload="x")


def test_uploads_are_given_up_with_time(sqlite_url, opened, clock):
    catalog = opened(sqlite_url, grace_seconds=7200)
    create(catalog)
    started = catalog.staging.begin_upload(REPO, "main", "data/p/one/", upload="one")
    clock.advance(hours=1)
    put(catalog, an_entry("a"), started=started)
    assert list(catalog.retention.roots(REPO).uploads) == list(catalog.retention.roots(REPO).uploads) == ["one"]
    clock.advance(seconds=1)
    with pytest.raises(AttemptExpired):
        put(catalog, an_entry("a"), started=started)
    assert catalog.retention.roots(REPO).uploads == catalog.retention.roots(REPO).uploads == {}
    clock.advance(hours=1)
    catalog.staging.begin_upload(REPO, "main", "data/p/two/", upload="two")
    rows = dict(everything(catalog).rows)["lakeops_upload"]
    assert len(rows) == 1
    assert "data/p/two/" in rows[0]


def test_an_old_attempt_may_not_link(opened, database_url):
    catalog = opened(database_url, grace_seconds=7200)
    create(catalog)
    now = catalog.now()
    put(catalog, an_entry("young"), started=now - timedelta(minutes=59))
    with pytest.raises(AttemptExpired, match="3660 s ago and 3600 s are allowed"):
        put(catalog, an_entry("old"), started=now - timedelta(minutes=61))
    assert paths(page(catalog)) == ["young"]


def test_reset_drops_everything_a_prefix_or_a_path(catalog):
    put(catalog, an_entry("t/a"), an_entry("t/b"), an_entry("t0"))
    seal(catalog)
    put(catalog, an_entry("t/a"), an_entry("t/c"), an_entry("s"), gone("t"))
    assert catalog.staging.reset(REPO, "main", path="t/", actor="ada") == 0
    assert catalog.staging.reset(REPO, "main", path="t/a", actor="ada") == 1
    assert paths(page(catalog)) == ["s", "t", "t/b", "t/c", "t0"]
    assert catalog.staging.reset(REPO, "main", prefix="t/", actor="ada") == 2
    assert paths(page(catalog)) == ["s", "t", "t0"]
    assert catalog.staging.reset(REPO, "main", actor="bob") == 3
    assert not catalog.staging.has_staged(REPO, "main")
    assert (catalog.refs.branch(REPO, "main").resets, catalog.refs.branch(REPO, "main").sealed_resets) == (3, 3)
    before = everything(catalog)
    assert catalog.staging.reset(REPO, "main", actor="bob") == 0
    assert everything(catalog) == before
    move = catalog.refs.reflog(REPO, "main")[0]
    assert (move.action, move.old, move.new, move.actor) == ("reset", FIRST.id, FIRST.id, "bob")


def test_discarded_tokens_leave_without_a_commit(catalog):
    put(catalog, an_entry("a"))
    old = seal(catalog)
    put(catalog, an_entry("b"))
    state = seal(catalog)
    with pytest.raises(BranchMoved):
        catalog.staging.discard(state, (old.staging_token,))  # the newer of two: the older would cover it
    catalog.staging.discard(state, old.sealed_tokens)
    assert catalog.refs.branch(REPO, "main").sealed_tokens == (old.staging_token,)
    assert paths(page(catalog)) == ["b"]
    assert catalog.staging.consumed_by(REPO, old.sealed_tokens[0]) is None
    assert catalog.staging.purge_retired(REPO) == 1
    catalog.staging.discard(state, ())
    catalog.staging.reset(REPO, "main", actor="ada")
    with pytest.raises(BranchMoved):
        catalog.staging.discard(state, (old.staging_token,))


def test_the_commit_that_took_a_token_is_remembered(catalog):
    put(catalog, an_entry("a"))
    token = catalog.refs.branch(REPO, "main").staging_token
    assert catalog.staging.consumed_by(REPO, token) is None
    commit = commit_all(catalog, "one")
    assert catalog.staging.consumed_by(REPO, token) == commit.id
    assert catalog.staging.purge_retired(REPO) == 1
    assert catalog.staging.consumed_by(REPO, token) == commit.id
    assert catalog.staging.purge_retired(REPO) == 0


# --- the looks before an upload, and the one in the transaction that links what was uploaded, refuse the same ---


def refusals(catalog, branch="main", repository=REPO):
    """What the look and the transaction raise."""
    found = []
    for refused in (
        lambda: catalog.staging.staging_time(repository, branch),
        lambda: catalog.staging.put_staged(repository, branch, [an_entry("a")], started=catalog.now()),
    ):
        with pytest.raises(LakeopsError) as caught:
            refused()
        found.append(caught.value)
    assert len({(type(one), one.message) for one in found}) == 1
    return found[0]


def test_a_branch_that_no_pattern_protects_may_be_staged_to(catalog):
    catalog.refs.protect(REPO, "release-*")
    catalog.refs.protect(REPO, "prod", kind=CHECK_PROTECTION, check="tests")
    catalog.refs.protect(REPO, "*", kind=TAG_PROTECTION)
    now = catalog.staging.staging_time(REPO, "main")
    assert now <= catalog.now()
    assert catalog.staging.put_staged(REPO, "main", [an_entry("a")], started=now) == catalog.refs.branch(REPO, "main")


@pytest.mark.parametrize("kind", ["branch", "check"])
def test_one_pattern_of_several_protects(catalog, kind):
    for pattern in ("release-*", "ma*", "x"):
        catalog.refs.protect(REPO, pattern, kind=kind, check="tests" if kind == CHECK_PROTECTION else "")
    error = refusals(catalog)
    assert error.kind == "protected_branch"
    assert "'main' is protected by 'ma*'" in error.message


def test_a_read_only_repository_is_named(catalog):
    catalog.repositories.set_read_only(REPO, True)
    error = refusals(catalog)
    assert error.kind == "read_only_repository"
    assert f"repository {REPO!r}" in error.message


def test_what_is_missing_is_named(catalog):
    assert isinstance(error := refusals(catalog, branch="none"), RefNotFound)
    assert "'none'" in error.message
    assert isinstance(error := refusals(catalog, repository="none"), RepositoryNotFound)
    assert "'none'" in error.message
