"""Damage to the catalog's rows, done by SQL: each is found, named, and nothing else is said to be wrong."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from sqlalchemy import delete, insert, update
from support.catalogs import expire_commits
from support.damage import catalog, head, sql

from lakeops import Repository
from lakeops.catalog import tables as t
from lakeops.catalog.records import commit_values
from lakeops.model.errors import Corrupted
from lakeops.model.ids import make_commit
from lakeops.ops.fsck.findings import Severity

NOWHERE = "0" * 64


def change(table, **values):
    """An update of the row of this name or id."""
    column = table.c.id if table in {t.COMMIT, t.REPOSITORY} else table.c.name
    return lambda name: update(table).where(column == name).values(**values)


def on_head(**values):
    return lambda repo: sql(repo, change(t.COMMIT, **values)(head(repo).id))


def on_base(**values):
    """On the second commit of the history: one that nothing points to."""
    return lambda repo: sql(repo, change(t.COMMIT, **values)(head(repo, "main~2").id))


def on_staged(**values):
    return lambda repo: sql(repo, update(t.STAGED).where(t.STAGED.c.path == "staged").values(**values))


def drop_default_branch(repo):
    repo.branch("main").reset()
    sql(repo, delete(t.BRANCH).where(t.BRANCH.c.name == "main"))


def drop_commit(ref):
    return lambda repo: sql(repo, delete(t.COMMIT).where(t.COMMIT.c.id == head(repo, ref).id))


def second_root(repo):
    root = make_commit(
        parents=[], committer="x", message="x", creation_date=7, meta_range_id=head(repo, "main~3").meta_range_id
    )
    sql(repo, insert(t.COMMIT).values(commit_values(repo.id, root)))


def other_metarange(repo):
    other = head(repo, "v1")
    sql(repo, change(t.COMMIT, meta_range_digest=other.meta_range_digest)(head(repo).id))


def bring_back(repo):
    values = {"repository_id": repo.id, "name": "side", "commit_id": head(repo, "v1").id}
    more = {"staging_token": "t", "sealed_tokens": [], "resets": 0, "sealed_resets": 0, "intents": []}
    sql(repo, insert(t.BRANCH).values(**values, **more))


def share_token(repo):
    token = catalog(repo).refs.branch(repo.id, "dev").staging_token
    repo.branch("main").reset()
    sql(repo, change(t.BRANCH, staging_token=token)("main"))


def retire_token(repo):
    token = catalog(repo).refs.branch(repo.id, "main").staging_token
    sql(repo, insert(t.RETIRED).values(repository_id=repo.id, token=token, commit_id=None, purged=False))


def forget_upload(repo):
    catalog(repo).staging.begin_upload(repo.id, "main", "data/2020010100/x/", upload="u")
    sql(repo, update(t.UPLOAD).values(started=0))


@dataclass(frozen=True)
class Damage:
    """The damage, the kinds that must be found, and the place of the first of them."""

    do: Callable[[Repository], None]
    kinds: tuple[str, ...]
    where: str


def one(do, kind, where):
    return Damage(do, (kind,), where)


DAMAGES = {
    "no default branch": Damage(drop_default_branch, ("default_branch_missing", "reflog_mismatch"), "branch main"),
    "a split that cuts nothing": Damage(
        lambda repo: sql(
            repo, update(t.REPOSITORY).values(split={"min_entries": 9, "target_entries": 4, "max_entries": 8})
        ),
        ("claim_mismatch", "split_invalid"),
        "_lakefs/repository.json",
    ),
    "another split": Damage(
        lambda repo: sql(
            repo, update(t.REPOSITORY).values(split={"min_entries": 3, "target_entries": 4, "max_entries": 8})
        ),
        ("claim_mismatch", "range_boundary"),
        "_lakefs/repository.json",
    ),
    "a branch into nothing": Damage(
        lambda repo: sql(repo, change(t.BRANCH, commit_id=NOWHERE)("dev")),
        ("branch_target_missing", "reflog_mismatch"),
        "branch dev",
    ),
    "a tag into nothing": Damage(
        lambda repo: sql(repo, change(t.TAG, commit_id=NOWHERE)("v1")),
        ("reflog_mismatch", "tag_target_missing"),
        "tag v1",
    ),
    "a branch at another commit": one(
        lambda repo: sql(repo, change(t.BRANCH, commit_id=head(repo).id)("dev")), "reflog_mismatch", "branch dev"
    ),
    "a deleted branch that is back": one(bring_back, "reflog_mismatch", "branch side"),
    "a move that is gone": one(
        lambda repo: sql(
            repo, delete(t.REFLOG).where(t.REFLOG.c.ref == "main", t.REFLOG.c.new == head(repo, "main~1").id)
        ),
        "reflog_broken",
        "branch main",
    ),
    "a branch at an expired commit": one(on_head(expired=True), "branch_target_expired", "branch main"),
    "a tag at an expired commit": one(
        lambda repo: sql(repo, change(t.COMMIT, expired=True)(head(repo, "v1").id)), "tag_target_expired", "tag v1"
    ),
    "a tag with a name that none may have": Damage(
        lambda repo: sql(repo, insert(t.TAG).values(repository_id=repo.id, name="bad..name", commit_id=head(repo).id)),
        ("ref_name_invalid", "reflog_mismatch"),
        "tag bad..name",
    ),
    "parents that are no list": one(on_base(parents="x"), "commit_unreadable", "commit "),
    "metadata that is no map": one(on_base(metadata=["x"]), "commit_unreadable", "commit "),
    "another message": one(on_base(message="altered"), "commit_id_mismatch", "commit "),
    "another committer": one(on_base(committer="mallory"), "commit_id_mismatch", "commit "),
    "another date": one(on_base(creation_date=1), "commit_id_mismatch", "commit "),
    "other metadata": one(on_base(metadata={"a": "b"}), "commit_id_mismatch", "commit "),
    "another metarange id": Damage(
        on_head(meta_range_id=NOWHERE), ("commit_id_mismatch", "metarange_pointer_invalid"), "commit "
    ),
    "a commit that is gone": one(drop_commit("main~2"), "commit_parent_missing", "commit "),
    "a first commit that is gone": Damage(drop_commit("main~3"), ("commit_parent_missing", "root_missing"), "commit "),
    "two first commits": one(second_root, "roots_several", "repository repo"),
    "another generation": one(
        lambda repo: sql(repo, change(t.COMMIT, generation=9)(head(repo, "v1").id)),
        "commit_generation_wrong",
        "commit ",
    ),
    "another first parent": one(on_head(first_parent=NOWHERE), "commit_first_parent_wrong", "commit "),
    "a key into nothing": one(
        lambda repo: sql(repo, update(t.KEY).values(commit_id=NOWHERE)),
        "idempotency_key_dangling",
        "idempotency key key",
    ),
    "a commit without its metarange's file": one(on_head(meta_range_file=""), "metarange_pointer_invalid", "commit "),
    "a metarange outside": one(
        on_head(meta_range_file="../../etc/passwd"), "metarange_pointer_invalid", "_lakefs/metaranges/"
    ),
    "a digest that is none": one(on_head(meta_range_digest="zz"), "metarange_pointer_invalid", "_lakefs/metaranges/"),
    "another metarange's digest": one(other_metarange, "metarange_damaged", "_lakefs/metaranges/"),
    "a staging token of two branches": one(share_token, "staging_token_shared", "branch main"),
    "a staging token that is retired": one(retire_token, "staging_token_retired", "branch main"),
    "rows that no branch reads": one(
        lambda repo: sql(repo, change(t.BRANCH, staging_token="another")("main")),
        "staged_rows_orphaned",
        "staging token ",
    ),
    "a staged row without a size": one(on_staged(size_bytes=None), "staged_row_invalid", "branch main, path staged"),
    "a staged row of negative size": one(on_staged(size_bytes=-1), "staged_row_invalid", "branch main, path staged"),
    "a staged row without a checksum": one(on_staged(checksum=""), "staged_row_invalid", "branch main, path staged"),
    "a staged row without an address": one(
        on_staged(physical_address=None), "staged_row_invalid", "branch main, path staged"
    ),
    "a staged row that leads outside": Damage(
        on_staged(physical_address="data/../../x"), ("staged_row_invalid",), "branch main, path staged"
    ),
    "a staged row into the metadata": Damage(
        on_staged(physical_address="_lakefs/ranges/x"), ("staged_row_invalid",), "branch main, path staged"
    ),
    "staged metadata that is no JSON": one(on_staged(metadata="{"), "staged_row_invalid", "branch main, path staged"),
    "staged metadata that is no map": one(on_staged(metadata="[1]"), "staged_row_invalid", "branch main, path staged"),
    "a staged path that none may be": one(on_staged(path="p" * 2000), "staged_row_invalid", "branch main, path p"),
}

INFORMATION = {
    "rows that wait for their removal": one(
        lambda repo: catalog(repo).refs.delete_branch(repo.id, "dev", actor="ada"),
        "staged_rows_retired",
        "staging token ",
    ),
    "an upload that was given up": one(forget_upload, "upload_overdue", "upload data/2020010100/x/"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damage_to_rows_is_found_and_named(in_database, damage):
    damage.do(in_database)
    findings = [finding for finding in in_database.fsck() if finding.severity != Severity.INFO]
    assert {finding.kind for finding in findings} == {*damage.kinds}
    first = min(findings, key=lambda finding: finding.kind)
    assert first.kind == damage.kinds[0]
    assert first.where.startswith(damage.where)
    assert first.message
    assert first.advice


@pytest.mark.parametrize("state", INFORMATION.values(), ids=INFORMATION.keys())
def test_what_is_normal_is_information(in_database, state):
    state.do(in_database)
    findings = list(in_database.fsck())
    assert {finding.severity for finding in findings} == {Severity.INFO}
    assert [f.where for f in findings if f.kind == state.kinds[0] and f.where.startswith(state.where)]


def test_one_broken_commit_hides_no_other(in_database):
    for ref in ("main@", "main~1", "main~2", "v1"):
        sql(in_database, change(t.COMMIT, message="altered")(head(in_database, ref).id))
    findings = [finding for finding in in_database.fsck() if finding.kind == "commit_id_mismatch"]
    assert len(findings) == 4
    assert all(finding.commits == (finding.where.removeprefix("commit "),) for finding in findings)


def test_an_expired_commit_whose_files_are_gone_is_healthy(in_database):
    repo = in_database
    base = head(repo, "main~2")
    kept = {commit.meta_range_file for commit in _commits(repo) if commit.id != base.id}
    assert base.meta_range_file not in kept
    expire_commits(catalog(repo), repo.id, [base.id])
    assert "unreferenced_metaranges" in {finding.kind for finding in repo.fsck()}
    _sweep_unreferenced(repo)
    assert list(repo.fsck(data=True)) == []


def _commits(repo):
    return [*catalog(repo).commits.all(repo.id).values()]


def _sweep_unreferenced(repo):
    live = [commit for commit in _commits(repo) if not commit.expired]
    keep = {f"_lakefs/metaranges/{commit.meta_range_file}" for commit in live}
    for commit in live:
        metarange = repo._ctx.reader.metarange(commit)
        keep |= {row.key for row in metarange.rows(0, len(metarange))}
    store = repo._ctx.store
    for prefix in ("_lakefs/ranges/", "_lakefs/metaranges/"):
        assert store.delete([item.key for item in store.list(prefix) if item.key not in keep]) == []


@pytest.mark.parametrize("column", ["grace_seconds", "grace_before", "grace_until", "fence"])
@pytest.mark.parametrize("number", [2**62, -(2**62)])
def test_a_number_that_is_no_time_is_a_finding(repo, column, number):
    sql(repo, change(t.REPOSITORY, **{column: number})(repo.id))
    assert "row_unreadable" in {finding.kind for finding in repo.fsck()}
    with pytest.raises(Corrupted):
        repo.gc.mark()
