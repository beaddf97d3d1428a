from __future__ import annotations

import pytest
from support.catalogs import (
    FIRST,
    REPO,
    a_commit,
    an_entry,
    commit_all,
    draft,
    expire_commits,
    new_token,
    paths,
    put,
    seal,
)
from support.errors import has_kind

from lakeops.model.errors import AlreadyExists, CommitExpired, NotFound, PreconditionFailed, RefNotFound

NAMES = ["B", "Z", "a", "a.b", "aB", "a_b", "ab", "b", "dev:joe", "z", "é", "\uff5a", "𐀀", "😀"]
"""In the order of their bytes: capitals first, accents after z, and astral characters after all others."""


def branch(catalog, name, commit=FIRST):
    return catalog.refs.create_branch(REPO, name, commit.id, token=new_token(), actor="ada")


def test_names_are_sorted_by_their_bytes(catalog):
    assert sorted(NAMES, key=str.encode) == NAMES
    for name in reversed(NAMES):
        branch(catalog, name)
    catalog.refs.delete_branch(REPO, "ab", actor="ada")
    branch(catalog, "ab")
    every = sorted([*NAMES, "main"], key=str.encode)
    assert [ref.id for ref in catalog.refs.branches(REPO)] == every
    tags = [f"{name}-t" for name in NAMES]
    for name in reversed(tags):
        catalog.refs.create_tag(REPO, name, FIRST.id, actor="ada")
    tags.sort(key=str.encode)
    assert [ref.id for ref in catalog.refs.tags(REPO)] == tags
    for index, name in enumerate(tags):
        assert [ref.id for ref in catalog.refs.tags(REPO, after=name, limit=2)] == tags[index + 1 : index + 3]
    for prefix in ("a", "a_", "A", "%", "é", "😀", "\U0010ffff"):
        expected = [name for name in every if name.startswith(prefix)]
        assert [ref.id for ref in catalog.refs.branches(REPO, prefix=prefix)] == expected
    assert [r.id for r in catalog.refs.branches(REPO, prefix="a", after="a.b", limit=2)] == ["aB", "a_b"]


def test_a_branch_is_made_at_a_commit_with_an_empty_staging_area(catalog):
    put(catalog, an_entry("only-on-main"))
    state = branch(catalog, "dev")
    assert state == catalog.refs.branch(REPO, "dev")
    assert state.commit_id == FIRST.id
    assert not catalog.staging.has_staged(REPO, "dev")
    with pytest.raises(AlreadyExists, match="'dev'"):
        branch(catalog, "dev")
    with pytest.raises(RefNotFound, match="no commit"):
        branch(catalog, "other", a_commit("never published"))


def test_a_name_that_is_taken_is_said_before_anything_of_the_commit(catalog):
    catalog.refs.create_tag(REPO, "v1", FIRST.id, actor="ada")
    commit_all(catalog, "one")
    catalog.refs.delete_tag(REPO, "v1", actor="ada")
    branch(catalog, "dev", catalog.commits.get(REPO, catalog.refs.branch(REPO, "main").commit_id))
    assert expire_commits(catalog, REPO, [FIRST.id]) == [FIRST.id]
    for commit in (FIRST, a_commit("never published")):
        with pytest.raises(AlreadyExists, match="branch 'dev' exists already"):
            branch(catalog, "dev", commit)


def test_a_branch_and_a_tag_do_not_share_a_name(catalog):
    """Who reads by the name would get the branch, in place of what the tag was to keep."""
    catalog.refs.create_tag(REPO, "v1", FIRST.id, actor="ada")
    branch(catalog, "dev")
    with pytest.raises(
        AlreadyExists, match=r"tag 'v1' exists already in repository '.*', so no branch can be called so"
    ):
        branch(catalog, "v1")
    with pytest.raises(
        AlreadyExists, match=r"branch 'dev' exists already in repository '.*', so no tag can be called so"
    ):
        catalog.refs.create_tag(REPO, "dev", FIRST.id, actor="ada")
    catalog.refs.delete_tag(REPO, "v1", actor="ada")
    catalog.refs.delete_branch(REPO, "dev", actor="ada")
    branch(catalog, "v1")
    assert catalog.refs.create_tag(REPO, "dev", FIRST.id, actor="ada").commit_id == FIRST.id


def test_deleting_a_branch_retires_its_staging(catalog):
    branch(catalog, "dev")
    put(catalog, an_entry("a"), branch="dev")
    seal(catalog, "dev")
    put(catalog, an_entry("a"), an_entry("b"), branch="dev")
    put(catalog, an_entry("main's"))
    assert catalog.refs.delete_branch(REPO, "dev", actor="bob") == FIRST.id
    with pytest.raises(RefNotFound):
        catalog.refs.branch(REPO, "dev")
    assert catalog.staging.purge_retired(REPO) == 3
    assert catalog.staging.purge_retired(REPO) == 0
    assert paths(catalog.staging.staged_page(REPO, "main")[1]) == ["main's"]
    branch(catalog, "dev")
    assert not catalog.staging.has_staged(REPO, "dev")
    assert [(m.action, m.old, m.new, m.actor) for m in catalog.refs.reflog(REPO, "dev")] == [
        ("create-branch", None, FIRST.id, "ada"),
        ("delete-branch", FIRST.id, None, "bob"),
        ("create-branch", None, FIRST.id, "ada"),
    ]


def test_the_default_branch_stays(catalog):
    with pytest.raises(PreconditionFailed, match="'main'", check=has_kind("default_branch")):
        catalog.refs.delete_branch(REPO, "main", actor="ada")
    with pytest.raises(RefNotFound):
        catalog.refs.delete_branch(REPO, "nope", actor="ada")


def test_tags_are_made_once_and_deleted(catalog):
    one = commit_all(catalog, "one")
    assert catalog.refs.create_tag(REPO, "v1", FIRST.id, actor="ada").commit_id == FIRST.id
    with pytest.raises(AlreadyExists, match="'v1'"):
        catalog.refs.create_tag(REPO, "v1", one.id, actor="ada")
    with pytest.raises(RefNotFound):
        catalog.refs.create_tag(REPO, "v2", "f" * 64, actor="ada")
    assert catalog.refs.tag(REPO, "v1").commit_id == FIRST.id
    assert catalog.refs.delete_tag(REPO, "v1", actor="ada") == FIRST.id
    with pytest.raises(RefNotFound):
        catalog.refs.delete_tag(REPO, "v1", actor="ada")
    assert [move.action for move in catalog.refs.reflog(REPO, "v1")] == ["delete-tag", "create-tag"]


def test_nothing_new_rests_on_an_expired_commit(catalog):
    commit_all(catalog, "one")
    assert expire_commits(catalog, REPO, [FIRST.id]) == [FIRST.id]
    for make in (lambda: branch(catalog, "late"), lambda: catalog.refs.create_tag(REPO, "late", FIRST.id, actor="ada")):
        with pytest.raises(CommitExpired, match=f"{FIRST.id} is expired"):
            make()


def test_the_reflog_is_newest_first(catalog):
    made = [commit_all(catalog, str(number)) for number in range(3)]
    catalog.refs.create_tag(REPO, "v1", FIRST.id, actor="ada")
    assert [move.new for move in catalog.refs.reflog(REPO, "main")] == [*(c.id for c in reversed(made)), FIRST.id]
    assert [move.ref for move in catalog.refs.reflog(REPO, limit=2)] == ["v1", "main"]
    sequences = [move.sequence for move in catalog.refs.reflog(REPO)]
    assert sequences == sorted(sequences, reverse=True)


def test_protection_is_by_glob_pattern(catalog):
    catalog.refs.protect(REPO, "ma?n")
    catalog.refs.protect(REPO, "release-*")
    catalog.refs.protect(REPO, "release-*")
    assert [one.pattern for one in catalog.refs.all_protections(REPO)] == ["ma?n", "release-*"]
    branch(catalog, "release-1")
    branch(catalog, "Release-1")
    put(catalog, an_entry("a"), branch="Release-1")
    with pytest.raises(
        PreconditionFailed, match=r"'release-1' is protected by 'release-\*'", check=has_kind("protected_branch")
    ):
        put(catalog, an_entry("a"), branch="release-1")
    catalog.refs.unprotect(REPO, "release-*")
    put(catalog, an_entry("a"), branch="release-1")
    with pytest.raises(NotFound, match="release"):
        catalog.refs.unprotect(REPO, "release-*")


@pytest.mark.parametrize("action", ["commit", "revert", "cherry-pick", "import", "anything new"])
def test_a_protected_branch_takes_merges_alone(catalog, action):
    catalog.refs.protect(REPO, "main")
    state = catalog.refs.branch(REPO, "main")
    with pytest.raises(PreconditionFailed, check=has_kind("protected_branch")):
        catalog.commits.publish(draft(catalog, state, a_commit("one", FIRST), action=action))
    assert catalog.refs.branch(REPO, "main") == state
    merged = catalog.commits.publish(draft(catalog, state, a_commit("one", FIRST), action="merge"))
    assert catalog.refs.branch(REPO, "main").commit_id == merged.id


def test_a_protected_branch_refuses_staging_and_deletion_but_not_reset(catalog):
    branch(catalog, "dev")
    put(catalog, an_entry("a"), branch="dev")
    catalog.refs.protect(REPO, "dev")
    for refused in (
        lambda: put(catalog, an_entry("b"), branch="dev"),
        lambda: catalog.staging.staging_time(REPO, "dev"),
        lambda: catalog.staging.begin_upload(REPO, "dev", "data/x/", upload="u"),
        lambda: catalog.refs.delete_branch(REPO, "dev", actor="ada"),
    ):
        with pytest.raises(PreconditionFailed, check=has_kind("protected_branch")):
            refused()
    assert catalog.staging.reset(REPO, "dev", actor="ada") == 1
