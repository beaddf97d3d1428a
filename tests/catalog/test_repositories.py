from __future__ import annotations

from datetime import UTC, timedelta

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
    follow,
    new_token,
    put,
    seal,
)
from support.errors import has_kind

from lakeops.model.errors import (
    AlreadyExists,
    NamespaceTaken,
    NotFound,
    PreconditionFailed,
    RepositoryNotFound,
)
from lakeops.model.findings import ReportKind
from lakeops.model.records import RepositoryRecord, Split


def test_creation_leaves_repository_commit_branch_and_reflog(empty):
    made = create(empty, split=Split(1, 2, 3), capabilities={"conditional_put": True, "notes": ["é"]})
    assert empty.repository(REPO) == made
    assert empty.commit(REPO, FIRST.id) == FIRST
    state = empty.branch(REPO, "main")
    assert (state.commit_id, state.sealed_tokens, state.resets) == (FIRST.id, (), 0)
    (move,) = empty.reflog(REPO)
    assert (move.ref, move.old, move.new, move.actor) == ("main", None, FIRST.id, "ada")
    assert abs(move.at - empty.now().timestamp()) < 60


def test_a_name_and_a_namespace_are_taken_once(catalog):
    before = everything(catalog)
    with pytest.raises(AlreadyExists, match="'repo'"):
        create(catalog)
    taken = RepositoryRecord("other", f"file:///{REPO}", "main", 1)
    with pytest.raises(NamespaceTaken, match="'repo'"):
        catalog.create_repository(taken, FIRST, token=new_token(), actor="ada")
    assert everything(catalog) == before


def test_repositories_are_listed_in_pages(empty):
    names = ["a-1", "a-2", "a1", "a2", "b"]
    for name in reversed(names):
        create(empty, name)
    assert [r.id for r in empty.repositories()] == names
    assert [r.id for r in empty.repositories(limit=2)] == names[:2]
    assert [r.id for r in empty.repositories(after="a-2", limit=2)] == ["a1", "a2"]
    assert [r.id for r in empty.repositories(prefix="a-")] == ["a-1", "a-2"]


def of_repositories(catalog):
    """All rows but those of the catalog itself, and of the audit, which forgets nothing."""
    return [(name, rows) for name, rows in everything(catalog).rows if name not in {"lakeops_clock", "lakeops_audit"}]


def test_deletion_leaves_no_row_and_touches_no_neighbour(catalog):
    catalog.identity()
    alone = of_repositories(catalog)
    create(catalog, "neighbour")
    catalog.delete_repository(REPO)
    before = of_repositories(catalog)
    create(catalog)
    put(catalog, an_entry("a"))
    commit_all(catalog, "one", key="k")
    put(catalog, an_entry("b"))
    catalog.create_tag(REPO, "v1", FIRST.id, actor="ada")
    catalog.protect(REPO, "release-*")
    catalog.begin_upload(REPO, "main", "data/x/", upload="u")
    catalog.set_rules(REPO, "{}")
    catalog.report_mirror(REPO, "there", frozenset({FIRST.id}))
    follow(catalog, REPO)
    mark(catalog)
    catalog.take_owner(REPO, "a record")
    catalog.pass_check(REPO, FIRST.id, "quality")
    catalog.add_report(REPO, ReportKind.CHECK, {}, actor="ada")
    assert {name for name, rows in everything(catalog).rows if not rows} == {"lakeops_queue"}
    catalog.delete_repository(REPO)
    assert of_repositories(catalog) == before
    assert before != alone
    with pytest.raises(RepositoryNotFound):
        catalog.delete_repository(REPO)


def mark(catalog, mark_id="m"):
    cutoff = catalog.now() - timedelta(hours=24)
    return catalog.begin_mark(REPO, mark_id, cutoff=cutoff)


def finish(catalog, mark_id):
    return catalog.finish_mark(REPO, mark_id, digest="d", rows=3, objects=2, size_bytes=9, listed=5)


READS = {
    "repository": lambda c: c.repository("none"),
    "branch": lambda c: c.branch("none", "main"),
    "branches": lambda c: c.branches("none"),
    "tag": lambda c: c.tag("none", "v1"),
    "tags": lambda c: c.tags("none"),
    "reflog": lambda c: c.reflog("none"),
    "protections": lambda c: c.protections("none"),
    "commit": lambda c: c.commit("none", FIRST.id),
    "first_parents": lambda c: c.first_parents("none", FIRST.id, limit=5),
    "history": lambda c: c.history("none"),
    "roots": lambda c: c.roots("none"),
    "get_rules": lambda c: c.get_rules("none"),
    "set_rules": lambda c: c.set_rules("none", None),
    "report_mirror": lambda c: c.report_mirror("none", "there", frozenset()),
    "drop_mirror": lambda c: c.drop_mirror("none", "there"),
    "grace": lambda c: c.grace("none"),
    "set_grace": lambda c: c.set_grace("none", 60),
    "marks": lambda c: c.marks("none"),
    "mark": lambda c: c.mark("none", "m"),
    "begin_sweep": lambda c: c.begin_sweep("none", "m"),
    "advance_sweep": lambda c: c.advance_sweep("none", "m", 0),
    "end_sweep": lambda c: c.end_sweep("none", "m"),
    "restore_mark": lambda c: c.restore_mark("none", "m"),
    "restore_commits": lambda c: c.restore_commits("none", "m"),
    "lineage": lambda c: c.lineage("none", left_since=0),
    "expire_by_mark": lambda c: c.expire_by_mark("none", "m", since=0, rules=None, choose=lambda _: ()),
    "revive_commits": lambda c: c.revive_commits("none", "m", ["c"]),
    "registrations": lambda c: c.registrations("none"),
    "mirror": lambda c: c.mirror("none"),
    "mirror_state": lambda c: c.mirror_state("none"),
    "initial_commit": lambda c: c.initial_commit("none"),
    "copy_commits": lambda c: c.copy_commits("none", [FIRST]),
    "uploads": lambda c: c.uploads("none"),
    "staged_one": lambda c: c.staged_one("none", "main", "a"),
    "staged_page": lambda c: c.staged_page("none", "main"),
    "staged_table": lambda c: c.staged_table("none", "main"),
    "has_staged": lambda c: c.has_staged("none", "main"),
    "stageable": lambda c: c.stageable("none", "main"),
    "purge_retired": lambda c: c.purge_retired("none"),
    "set_read_only": lambda c: c.set_read_only("none", True),
    "update_metadata": lambda c: c.update_metadata("none", {}),
    "protect": lambda c: c.protect("none", "*"),
    "seal": lambda c: c.seal("none", "main", token="t"),
    "create_branch": lambda c: c.create_branch("none", "b", FIRST.id, token="t", actor="ada"),
}


@pytest.mark.parametrize("name", READS)
def test_an_unknown_repository_is_said_to_be_unknown(catalog, name):
    with pytest.raises(RepositoryNotFound, match="'none'"):
        READS[name](catalog)


WRITES = {
    "create_branch": lambda c: c.create_branch(REPO, "b", FIRST.id, token="t", actor="ada"),
    "delete_branch": lambda c: c.delete_branch(REPO, "dev", actor="ada"),
    "create_tag": lambda c: c.create_tag(REPO, "v2", FIRST.id, actor="ada"),
    "delete_tag": lambda c: c.delete_tag(REPO, "v1", actor="ada"),
    "protect": lambda c: c.protect(REPO, "x"),
    "unprotect": lambda c: c.unprotect(REPO, "release-*"),
    "expire": lambda c: c.expire_commits(REPO, [FIRST.id]),
    "set_rules": lambda c: c.set_rules(REPO, "{}"),
    "set_grace": lambda c: c.set_grace(REPO, 60),
    "begin_mark": mark,
    "finish_mark": lambda c: finish(c, "old"),
    "begin_sweep": lambda c: c.begin_sweep(REPO, "older"),
    "restore_mark": lambda c: c.restore_mark(REPO, "old"),
    "expire_by_mark": lambda c: c.expire_by_mark(REPO, "old", since=0, rules=None, choose=lambda _: ()),
    "revive_commits": lambda c: c.revive_commits(REPO, "old", [FIRST.id]),
    "put": lambda c: put(c, an_entry("a")),
    "stageable": lambda c: c.stageable(REPO, "main"),
    "seal": seal,
    "reset": lambda c: c.reset(REPO, "main", actor="ada"),
    "discard": lambda c: c.discard(c.branch(REPO, "dev"), c.branch(REPO, "dev").sealed_tokens),
    "publish": lambda c: c.publish(draft(c, c.branch(REPO, "main"), a_commit("m", FIRST), action="merge")),
    "remember_key": lambda c: c.remember_key(REPO, "k", "f", FIRST.id),
    "begin_upload": lambda c: c.begin_upload(REPO, "main", "data/x/", upload="u"),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_read_only_repository_refuses_every_writing_transition(catalog, name):
    catalog.create_branch(REPO, "dev", FIRST.id, token=new_token(), actor="ada")
    catalog.create_tag(REPO, "v1", FIRST.id, actor="ada")
    catalog.protect(REPO, "release-*")
    put(catalog, an_entry("a"), branch="dev")
    seal(catalog, "dev")
    mark(catalog, "older")
    finish(catalog, "older")
    catalog.begin_sweep(REPO, "older")
    mark(catalog, "old")
    catalog.set_read_only(REPO, True)
    before = everything(catalog)
    with pytest.raises(PreconditionFailed, match="'repo'", check=has_kind("read_only_repository")):
        WRITES[name](catalog)
    assert everything(catalog) == before
    catalog.set_read_only(REPO, False)
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
    for ask in (lambda: catalog.branch(REPO, "x"), lambda: catalog.tag(REPO, "x"), lambda: catalog.commit(REPO, "x")):
        with pytest.raises(NotFound, match="'x'"):
            ask()
