from datetime import UTC, timedelta

import pytest
from support.catalogs import (
    FIRST,
    REPO,
    a_commit,
    an_entry,
    begin,
    commit_all,
    create,
    draft,
    everything,
    expire_commits,
    finish,
    follow,
    new_token,
    paths,
    put,
    seal,
)
from support.errors import raising

from lakeops.model.errors import AlreadyExists, CommitExpired, NamespaceTaken, NotFound, RefNotFound, RepositoryNotFound
from lakeops.model.protection import Verdict
from lakeops.model.records import ReportKind, RepositoryRecord, Split


def test_creation_leaves_repository_commit_branch_and_reflog(empty):
    made = create(empty, split=Split(1, 2, 3), capabilities={"conditional_put": True, "notes": ["é"]})
    assert empty.repositories.get(REPO) == made
    assert empty.commits.get(REPO, FIRST.id) == FIRST
    state = empty.refs.branch(REPO, "main")
    assert (state.commit_id, state.sealed_tokens, state.resets) == (FIRST.id, (), 0)
    (move,) = empty.refs.reflog(REPO)
    assert (move.ref, move.old, move.new, move.actor) == ("main", None, FIRST.id, "ada")
    assert abs(move.at - empty.now().timestamp()) < 60


def test_a_name_and_a_namespace_are_taken_once(catalog):
    before = everything(catalog)
    with pytest.raises(AlreadyExists, match="'repo'"):
        create(catalog)
    taken = RepositoryRecord("other", f"file:///{REPO}", "main", 1)
    with pytest.raises(NamespaceTaken, match="'repo'"):
        catalog.repositories.create_repository(taken, FIRST, token=new_token(), actor="ada")
    assert everything(catalog) == before


def test_repositories_are_listed_in_pages(empty):
    names = ["a-1", "a-2", "a1", "a2", "b"]
    for name in reversed(names):
        create(empty, name)
    assert [r.id for r in empty.repositories.page()] == names
    assert [r.id for r in empty.repositories.page(limit=2)] == names[:2]
    assert [r.id for r in empty.repositories.page(after="a-2", limit=2)] == ["a1", "a2"]
    assert [r.id for r in empty.repositories.page(prefix="a-")] == ["a-1", "a-2"]


def of_repositories(catalog):
    """All rows but those of the catalog itself, and of the audit, which forgets nothing."""
    return [(name, rows) for name, rows in everything(catalog).rows if name not in {"lakeops_clock", "lakeops_audit"}]


def test_deletion_leaves_no_row_and_touches_no_neighbour(catalog):
    catalog.repositories.identity()
    alone = of_repositories(catalog)
    create(catalog, "neighbour")
    catalog.repositories.delete_repository(REPO)
    before = of_repositories(catalog)
    create(catalog)
    put(catalog, an_entry("a"))
    commit_all(catalog, "one", key="k")
    put(catalog, an_entry("b"))
    catalog.refs.create_tag(REPO, "v1", FIRST.id, actor="ada")
    catalog.refs.protect(REPO, "release-*")
    catalog.staging.begin_upload(REPO, "main", "data/x/", upload="u")
    catalog.retention.set_rules(REPO, "{}")
    catalog.mirrors.report_mirror(REPO, "there", frozenset({FIRST.id}))
    follow(catalog, REPO)
    begin(catalog)
    catalog.repositories.begin_lease(REPO, "a record")
    catalog.refs.record_verdict(REPO, Verdict(FIRST.id, "quality", "passed", "ada"))
    catalog.audit.add_report(REPO, ReportKind.FSCK, {}, actor="ada")
    assert {name for name, rows in everything(catalog).rows if not rows} == {"lakeops_queue"}
    catalog.repositories.delete_repository(REPO)
    assert of_repositories(catalog) == before
    assert before != alone
    with pytest.raises(RepositoryNotFound):
        catalog.repositories.delete_repository(REPO)


READS = {
    "repository": lambda c: c.repositories.get("none"),
    "branch": lambda c: c.refs.branch("none", "main"),
    "branches": lambda c: c.refs.branches("none"),
    "tag": lambda c: c.refs.tag("none", "v1"),
    "tags": lambda c: c.refs.tags("none"),
    "reflog": lambda c: c.refs.reflog("none"),
    "protections": lambda c: c.refs.all_protections("none"),
    "commit": lambda c: c.commits.get("none", FIRST.id),
    "first_parents": lambda c: c.commits.first_parents("none", FIRST.id, limit=5),
    "all_commits": lambda c: c.commits.all("none"),
    "roots": lambda c: c.retention.roots("none"),
    "get_rules": lambda c: c.retention.get_rules("none"),
    "set_rules": lambda c: c.retention.set_rules("none", None),
    "report_mirror": lambda c: c.mirrors.report_mirror("none", "there", frozenset()),
    "drop_mirror": lambda c: c.mirrors.drop_mirror("none", "there"),
    "grace": lambda c: c.retention.grace("none"),
    "set_grace": lambda c: c.retention.set_grace("none", 60),
    "marks": lambda c: c.marks.on_record("none"),
    "mark": lambda c: c.marks.get("none", "m"),
    "begin_sweep": lambda c: c.marks.begin_sweep("none", "m"),
    "advance_sweep": lambda c: c.marks.advance_sweep("none", "m", 0),
    "end_sweep": lambda c: c.marks.end_sweep("none", "m"),
    "restore_mark": lambda c: c.marks.restore_mark("none", "m"),
    "restore_commits": lambda c: c.retention.restore_commits("none", "m"),
    "lineage": lambda c: c.retention.lineage("none", left_since=0),
    "expire_by_mark": lambda c: c.retention.expire_by_mark("none", "m", since=0, rules=None, choose=lambda _: ()),
    "revive_commits": lambda c: c.retention.revive_commits("none", "m", ["c"]),
    "registrations": lambda c: c.mirrors.registrations("none"),
    "mirror": lambda c: c.mirrors.get("none"),
    "mirror_state": lambda c: c.mirrors.mirror_state("none"),
    "initial_commit": lambda c: c.commits.initial_commit("none"),
    "copy_commits": lambda c: c.mirrors.copy_commits("none", [FIRST]),
    "uploads": lambda c: c.retention.roots("none").uploads,
    "staged_one": lambda c: c.staging.staged_one("none", "main", "a"),
    "staged_page": lambda c: c.staging.staged_page("none", "main"),
    "staged_table": lambda c: c.staging.staged_table("none", "main"),
    "has_staged": lambda c: c.staging.has_staged("none", "main"),
    "staging_time": lambda c: c.staging.staging_time("none", "main"),
    "purge_retired": lambda c: c.staging.purge_retired("none"),
    "set_read_only": lambda c: c.repositories.set_read_only("none", True),
    "update_metadata": lambda c: c.repositories.update_metadata("none", {}),
    "protect": lambda c: c.refs.protect("none", "*"),
    "seal": lambda c: c.staging.seal("none", "main", token="t"),
    "create_branch": lambda c: c.refs.create_branch("none", "b", FIRST.id, token="t", actor="ada"),
}


@pytest.mark.parametrize("name", READS)
def test_an_unknown_repository_is_said_to_be_unknown(catalog, name):
    with pytest.raises(RepositoryNotFound, match="'none'"):
        READS[name](catalog)


WRITES = {
    "create_branch": lambda c: c.refs.create_branch(REPO, "b", FIRST.id, token="t", actor="ada"),
    "delete_branch": lambda c: c.refs.delete_branch(REPO, "dev", actor="ada"),
    "create_tag": lambda c: c.refs.create_tag(REPO, "v2", FIRST.id, actor="ada"),
    "delete_tag": lambda c: c.refs.delete_tag(REPO, "v1", actor="ada"),
    "protect": lambda c: c.refs.protect(REPO, "x"),
    "unprotect": lambda c: c.refs.unprotect(REPO, "release-*"),
    "set_rules": lambda c: c.retention.set_rules(REPO, "{}"),
    "set_grace": lambda c: c.retention.set_grace(REPO, 60),
    "begin_mark": begin,
    "finish_mark": lambda c: finish(c, "old"),
    "begin_sweep": lambda c: c.marks.begin_sweep(REPO, "older"),
    "restore_mark": lambda c: c.marks.restore_mark(REPO, "old"),
    "expire_by_mark": lambda c: c.retention.expire_by_mark(REPO, "old", since=0, rules=None, choose=lambda _: ()),
    "revive_commits": lambda c: c.retention.revive_commits(REPO, "old", [FIRST.id]),
    "put": lambda c: put(c, an_entry("a")),
    "staging_time": lambda c: c.staging.staging_time(REPO, "main"),
    "seal": seal,
    "reset": lambda c: c.staging.reset(REPO, "main", actor="ada"),
    "discard": lambda c: c.staging.discard(c.refs.branch(REPO, "dev"), c.refs.branch(REPO, "dev").sealed_tokens),
    "publish": lambda c: c.commits.publish(draft(c, c.refs.branch(REPO, "main"), a_commit("m", FIRST), action="merge")),
    "remember_key": lambda c: c.commits.remember_key(REPO, "k", "f", FIRST.id),
    "begin_upload": lambda c: c.staging.begin_upload(REPO, "main", "data/x/", upload="u"),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_read_only_repository_refuses_every_writing_transition(catalog, name):
    catalog.refs.create_branch(REPO, "dev", FIRST.id, token=new_token(), actor="ada")
    catalog.refs.create_tag(REPO, "v1", FIRST.id, actor="ada")
    catalog.refs.protect(REPO, "release-*")
    put(catalog, an_entry("a"), branch="dev")
    seal(catalog, "dev")
    begin(catalog, "older")
    finish(catalog, "older")
    catalog.marks.begin_sweep(REPO, "older")
    begin(catalog, "old")
    catalog.repositories.set_read_only(REPO, True)
    before = everything(catalog)
    with raising("read_only_repository", "'repo'"):
        WRITES[name](catalog)
    assert everything(catalog) == before
    catalog.repositories.set_read_only(REPO, False)
    WRITES[name](catalog)


def test_time_is_the_databases(catalog, clock):
    moment = catalog.now()
    assert moment.tzinfo is UTC
    if catalog.database.dialect.name == "sqlite":
        assert moment == clock.now()
        clock.advance(hours=1)
        assert catalog.now() == moment + timedelta(hours=1)
    else:
        assert catalog.now() > moment


def test_missing_refs_are_not_found(catalog):
    for ask in (
        lambda: catalog.refs.branch(REPO, "x"),
        lambda: catalog.refs.tag(REPO, "x"),
        lambda: catalog.commits.get(REPO, "x"),
    ):
        with pytest.raises(NotFound, match="'x'"):
            ask()


# --- refs ---

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
        AlreadyExists, match=r"tag 'v1' exists already in repository '.*', so no branch can have this name"
    ):
        branch(catalog, "v1")
    with pytest.raises(
        AlreadyExists, match=r"branch 'dev' exists already in repository '.*', so no tag can have this name"
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
    with raising("default_branch", "'main'"):
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
    with raising("protected_branch", r"'release-1' is protected by 'release-\*'"):
        put(catalog, an_entry("a"), branch="release-1")
    catalog.refs.unprotect(REPO, "release-*")
    put(catalog, an_entry("a"), branch="release-1")
    with pytest.raises(NotFound, match="release"):
        catalog.refs.unprotect(REPO, "release-*")


@pytest.mark.parametrize("action", ["commit", "revert", "cherry-pick", "import", "anything new"])
def test_a_protected_branch_takes_merges_alone(catalog, action):
    catalog.refs.protect(REPO, "main")
    state = catalog.refs.branch(REPO, "main")
    with raising("protected_branch"):
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
        with raising("protected_branch"):
            refused()
    assert catalog.staging.reset(REPO, "dev", actor="ada") == 1
