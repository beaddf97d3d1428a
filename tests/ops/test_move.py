"""Branches and tags that are pointed at other commits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.errors import has_kind

from lakeops import Branch, Lake, Repository
from lakeops.model.errors import CommitExpired, InvalidInput, PreconditionFailed, RefNotFound
from lakeops.testing import Faults, ManualClock


@pytest.fixture
def main(repo: Repository, fill: Callable[..., str]) -> Branch:
    for number in range(12):
        fill(repo, "main", **{f"a{number:02}": "1", "same": str(number)})
    repo.create_branch("dev", source="main~2")
    fill(repo, "dev", b="1")
    return repo.branch("main")


def test_forward_back_and_sideways(repo: Repository, main: Branch, contents) -> None:
    side = repo.create_branch("side", source="main~5")
    tip, dev = main.commit_id, repo.branch("dev").commit_id
    assert side.move("main~1").to_json() == {"id": "side", "commit_id": repo.ref("main~1").commit_id}
    assert side.move(tip).commit_id == tip == side.commit_id
    for where in ("main~1", "dev", "main~12"):
        with pytest.raises(PreconditionFailed, match="--force", check=has_kind("not_forward")):
            side.move(where)
    assert side.move("dev", force=True).commit_id == dev
    assert contents(repo, "side") == contents(repo, "dev")
    assert side.move("dev").commit_id == dev, "nothing to do"
    moves = [move for move in repo.reflog("side") if move.action == "move-branch"]
    assert [(move.old, move.new) for move in moves] == [
        (tip, dev),
        (repo.ref("main~1").commit_id, tip),
        (repo.ref("main~5").commit_id, repo.ref("main~1").commit_id),
    ]
    side.move(moves[0].old or "", force=True)
    assert side.commit_id == tip, "the reflog undoes it"
    side.put("x", b"1")
    assert side.commit("it goes on from there").parents == (tip,)
    assert [finding for finding in repo.fsck() if finding.severity.value != "info"] == []


def test_what_is_staged_is_neither_lost_nor_taken_along(repo: Repository, main: Branch) -> None:
    tip = main.commit_id
    main.put("a00", b"1")  # as it is there
    main.move("main~1", force=True)
    assert list(main.uncommitted()) == []
    main.put("a00", b"2")
    for force in (False, True):
        with pytest.raises(PreconditionFailed, match="a00", check=has_kind("dirty_branch")):
            main.move(tip, force=force)
    assert main.read("a00") == b"2"
    assert main.commit_id != tip


def test_each_head_is_shown_before_it_is_left(repo: Repository, main: Branch, fill) -> None:
    seen: list[str] = []

    def meanwhile(head: str) -> None:
        seen.append(head)
        if len(seen) == 1:
            fill(repo, "main", meanwhile="1")

    before = main.commit_id
    main.move("dev", force=True, on_head=meanwhile)
    moves = repo.reflog("main", limit=2)
    assert seen == [before, moves[0].old]
    assert [move.action for move in moves] == ["move-branch", "commit"]


def test_a_row_that_is_staged_meanwhile_is_seen(faulty_lake: Lake, faults: Faults, main: Branch) -> None:
    before = main.commit_id
    faults.hook("move_branch", action=lambda _: main.put("late", b"1"))
    with pytest.raises(PreconditionFailed, match="late", check=has_kind("dirty_branch")):
        faulty_lake.repository("repo").branch("main").move("main~1", force=True)
    assert (main.commit_id, main.read("late")) == (before, b"1")


def test_refusals(lake: Lake, repo: Repository, main: Branch) -> None:
    repo.create_tag("v1", "main")
    with pytest.raises(InvalidInput, check=has_kind("invalid_ref")):
        repo._ctx.catalog.refs.branch("repo", "main") and main.move("main^{tree}")
    with pytest.raises(RefNotFound):
        main.move("nosuch", force=True)
    expired = repo.ref("main~3").commit_id
    lake.catalog.retention.expire_commits("repo", [expired])
    with pytest.raises(CommitExpired):
        main.move(expired, force=True)
    with pytest.raises(CommitExpired):
        repo.move_tag("v1", expired)
    repo.protect("main")
    with pytest.raises(PreconditionFailed, check=has_kind("protected_branch")):
        main.move("main~1", force=True)
    repo.set_read_only()
    for call in (lambda: main.move("main~1", force=True), lambda: repo.move_tag("v1", "main~1")):
        with pytest.raises(PreconditionFailed, check=has_kind("read_only_repository")):
            call()


def test_a_branch_at_an_expired_commit_is_set_right(repo: Repository, main: Branch) -> None:
    """As the advice of fsck says."""
    catalog, good = repo._ctx.catalog, repo.ref("main~1").commit_id

    def expire(conn) -> None:
        from sqlalchemy import update

        from lakeops.catalog.tables import COMMIT

        conn.execute(update(COMMIT).where(COMMIT.c.id == main.commit_id).values(expired=True))

    catalog.database.write(expire)
    found = {finding.kind: finding.advice for finding in repo.fsck()}
    assert "lakeops branch move BRANCH COMMIT --force" in found["branch_target_expired"]
    main.move(good, force=True)
    assert "branch_target_expired" not in {finding.kind for finding in repo.fsck()}


def test_a_key_does_not_move_a_branch_back_again(repo: Repository, main: Branch) -> None:
    moved = main.move("main~1", force=True, idempotency_key="k")
    main.put("after", b"1")
    later = main.commit("after").id
    assert main.move("main~1", force=True, idempotency_key="k") == moved
    assert main.commit_id == later


def test_tags_move_and_come_back(repo: Repository, main: Branch) -> None:
    old = repo.create_tag("v1", "main~1").commit_id
    assert repo.move_tag("v1", "main").commit_id == main.commit_id == repo.tag("v1").commit_id
    repo.move_tag("v1", "main")
    assert [(move.action, move.old, move.new) for move in repo.reflog("v1")] == [
        ("move-tag", old, main.commit_id),
        ("create-tag", None, old),
    ], "where it is already is no move"
    repo.move_tag("v1", old)
    assert repo.tag("v1").commit_id == old
    with pytest.raises(RefNotFound):
        repo.move_tag("nosuch", "main")
    assert [finding for finding in repo.fsck() if finding.severity.value != "info"] == []


def test_what_a_moved_ref_showed_stays_for_the_undo_window(clock: ManualClock, repo: Repository, main: Branch) -> None:
    repo.gc.set_rules({"default_retention_days": 1})
    repo.create_tag("v1", "dev")
    repo.delete_branch("dev")
    left = {main.commit_id, repo.tag("v1").commit_id}
    clock.advance(days=3)
    main.move("main~2", force=True)
    repo.move_tag("v1", "main")
    assert left <= repo.gc.live_commits()
    clock.advance(days=8)
    assert not left & repo.gc.live_commits()
