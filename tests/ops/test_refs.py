"""Branches and tags: moved, deleted after a look, protected, and those that require checks."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.catalogs import expire_commits
from support.errors import raising

from lakeops import Branch
from lakeops.model.errors import CommitExpired, NotAsSeen, NotFound, RefNotFound


@pytest.fixture
def main(repo, fill):
    for number in range(12):
        fill(repo, "main", **{f"a{number:02}": "1", "same": str(number)})
    repo.create_branch("dev", source="main~2")
    fill(repo, "dev", b="1")
    return repo.branch("main")


def test_forward_back_and_sideways(repo, main, contents):
    side = repo.create_branch("side", source="main~5")
    tip, dev = main.commit_id, repo.branch("dev").commit_id
    assert side.move("main~1").to_json() == {"id": "side", "commit_id": repo.ref("main~1").commit_id}
    assert side.move(tip).commit_id == tip == side.commit_id
    for where in ("main~1", "dev", "main~12"):
        with raising("not_forward", "--force"):
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


def test_what_is_staged_is_neither_lost_nor_taken_along(repo, main):
    tip = main.commit_id
    main.put("a00", b"1")  # as it is there
    main.move("main~1", force=True)
    assert list(main.uncommitted()) == []
    main.put("a00", b"2")
    for force in (False, True):
        with raising("dirty_branch", "a00"):
            main.move(tip, force=force)
    assert main.read("a00") == b"2"
    assert main.commit_id != tip


def test_each_head_is_shown_before_it_is_left(repo, main, fill):
    seen: list[str] = []

    def meanwhile(head):
        seen.append(head)
        if len(seen) == 1:
            fill(repo, "main", meanwhile="1")

    before = main.commit_id
    main.move("dev", force=True, on_head=meanwhile)
    moves = repo.reflog("main", limit=2)
    assert seen == [before, moves[0].old]
    assert [move.action for move in moves] == ["move-branch", "commit"]


def test_a_row_that_is_staged_meanwhile_is_seen(faulty_lake, faults, main):
    before = main.commit_id
    faults.hook("move_branch", action=lambda _: main.put("late", b"1"))
    with raising("dirty_branch", "late"):
        faulty_lake.repository("repo").branch("main").move("main~1", force=True)
    assert (main.commit_id, main.read("late")) == (before, b"1")


def test_what_no_move_does(lake, repo, main):
    repo.create_tag("v1", "main")
    with raising("invalid_ref"):
        repo._ctx.catalog.refs.branch("repo", "main") and main.move("main^{tree}")
    with pytest.raises(RefNotFound):
        main.move("nosuch", force=True)
    expired = repo.ref("main~3").commit_id
    expire_commits(lake.catalog, "repo", [expired])
    with pytest.raises(CommitExpired):
        main.move(expired, force=True)
    with pytest.raises(CommitExpired):
        repo.move_tag("v1", expired)
    repo.protect("main")
    with raising("protected_branch"):
        main.move("main~1", force=True)
    repo.set_read_only()
    for call in (lambda: main.move("main~1", force=True), lambda: repo.move_tag("v1", "main~1")):
        with raising("read_only_repository"):
            call()


def test_a_branch_at_an_expired_commit_is_set_right(repo, main):
    """As the advice of fsck says."""
    catalog, good = repo._ctx.catalog, repo.ref("main~1").commit_id

    def expire(conn):
        from sqlalchemy import update

        from lakeops.catalog.tables import COMMIT

        conn.execute(update(COMMIT).where(COMMIT.c.id == main.commit_id).values(expired=True))

    catalog.database.write(expire)
    found = {finding.kind: finding.advice for finding in repo.fsck()}
    assert "lakeops branch move BRANCH COMMIT --force" in found["branch_target_expired"]
    main.move(good, force=True)
    assert "branch_target_expired" not in {finding.kind for finding in repo.fsck()}


def test_tags_move_and_come_back(repo, main):
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


def test_what_a_moved_ref_showed_stays_for_the_undo_window(clock, repo, main):
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


MEANWHILE: dict[str, Callable[[Branch], object]] = {
    "staged": lambda dev: dev.put("in/new", b"acknowledged"),
    "another of its size": lambda dev: dev.put("in/old", b"OLD"),
    "deleted": lambda dev: dev.delete("in/kept"),
    "committed": lambda dev: dev.commit("meanwhile"),
    "dropped and staged again": lambda dev: (dev.reset(), dev.put("in/old", b"old")),
}


@pytest.fixture
def dev(repo):
    main = repo.branch("main")
    main.put("in/kept", b"kept")
    main.commit("kept")
    branch = repo.create_branch("dev", source="main")
    branch.put("in/old", b"old")
    return branch


@pytest.mark.parametrize("meanwhile", MEANWHILE)
def test_what_came_after_the_look_is_not_dropped(repo, dev, meanwhile):
    whole, folder = dev.pin(), dev.pin("in/")
    MEANWHILE[meanwhile](dev)
    shown = {entry.path: dev.read(entry.path) for entry in dev.list()}
    for act in (
        lambda: dev.reset(pinned=whole),
        lambda: dev.reset("in/", pinned=folder),
        lambda: repo.delete_branch("dev", pinned=whole),
        lambda: dev.delete_prefix("in/", pinned=folder),
    ):
        with pytest.raises(NotAsSeen, match="changed since it was looked at; nothing was done"):
            act()
    assert {entry.path: dev.read(entry.path) for entry in dev.list()} == shown


def test_what_is_as_it_was_is_dropped(repo, dev):
    folder, one = dev.pin("in/"), dev.pin(path="in/old")
    dev.put("elsewhere", b"1")
    assert dev.delete_prefix("in/", pinned=folder) == 2
    assert dev.reset("in/", pinned=dev.pin("in/")) == 2
    assert [change.path for change in dev.uncommitted()] == ["elsewhere"]
    with pytest.raises(NotAsSeen):
        dev.reset(path="in/old", pinned=one)
    assert repo.delete_branch("dev", pinned=dev.pin()).id == "dev"
    with pytest.raises(RefNotFound):
        dev.pin()


def test_a_tag_that_moved_after_the_look_stays(repo, dev):
    old = repo.create_tag("v1", "main").commit_id
    new = dev.commit("later").id
    repo.move_tag("v1", "dev", old=old, idempotency_key="k")
    for act in (lambda: repo.delete_tag("v1", old=old), lambda: repo.move_tag("v1", "main", old=old)):
        with pytest.raises(NotAsSeen, match=f"is at {new[:16]} by now"):
            act()
    assert repo.move_tag("v1", "dev", old=old, idempotency_key="k").commit_id == new, "the same call again"
    assert repo.delete_tag("v1", old=new).commit_id == new


def test_an_idle_tag_that_moves_at_the_last_moment_stays(repo, dev, clock, faulty_lake, faults):
    repo.create_tag("latest", "main")
    repo.gc.set_rules({"default_retention_days": 30, "tags": [{"tag_id": "*", "expire_after_days": 2}]})
    clock.advance(days=3)
    new = dev.commit("today").id
    faults.hook("delete_tag", action=lambda _: repo.move_tag("latest", "dev"))
    assert faulty_lake.repository("repo").gc.expire_refs() == []
    assert repo.tag("latest").commit_id == new


def test_only_the_idle_refs_that_were_shown_go(repo, dev, clock):
    for name in ("shown", "later", "moved"):
        repo.create_tag(name, "main")
    repo.gc.set_rules({"default_retention_days": 30, "tags": [{"tag_id": "*", "expire_after_days": 2}]})
    clock.advance(days=2, hours=1)
    shown = [ref for ref in repo.gc.idle_refs() if ref.id != "later"]
    repo.move_tag("moved", dev.commit("today").id)
    assert [ref.id for ref in repo.gc.expire_refs(only=shown)] == ["shown"]
    assert [ref.id for ref in repo.tags()] == ["later", "moved"]


def test_a_deleted_tag_was_where_the_answer_says(lake_of_threads):
    repo = lake_of_threads.create_repository("repo")
    commits = [repo.branch("main").commit(f"{number}", allow_empty=True).id for number in range(2)]
    with ThreadPoolExecutor(2) as pool:
        for turn in range(20):
            repo.create_tag("v1", commits[turn % 2])
            moved = pool.submit(repo.move_tag, "v1", commits[1 - turn % 2])
            gone = repo.delete_tag("v1")
            if moved.exception() is None:
                assert gone.commit_id == moved.result().commit_id
            assert repo.reflog("v1", limit=1)[0].old == gone.commit_id


def test_a_protected_tag_stays_where_it_is(repo):
    repo.create_tag("v1", "main")
    repo.create_tag("w1", "main")
    repo.protect_tags("v*")
    assert repo.tag_protections() == ["v*"]
    assert repo.protections() == []
    with raising("protected_tag", "protected by 'v\\*'"):
        repo.delete_tag("v1")
    repo.delete_tag("w1")
    repo.branch("main").commit("more", allow_empty=True)
    with raising("protected_tag"):
        repo.move_tag("v1", "main")
    repo.unprotect_tags("v*")
    repo.delete_tag("v1")
    with pytest.raises(NotFound):
        repo.unprotect_tags("v*")
