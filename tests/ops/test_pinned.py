"""What was shown is what is then done, or nothing is done: deletions, resets and moves of tags after a look."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from lakeops import Branch, Lake, Repository
from lakeops.model.errors import NotAsSeen, RefNotFound
from lakeops.testing import Faults

MEANWHILE: dict[str, Callable[[Branch], object]] = {
    "staged": lambda dev: dev.put("in/new", b"acknowledged"),
    "another of its size": lambda dev: dev.put("in/old", b"OLD"),
    "deleted": lambda dev: dev.delete("in/kept"),
    "committed": lambda dev: dev.commit("meanwhile"),
    "dropped and staged again": lambda dev: (dev.reset(), dev.put("in/old", b"old")),
}


@pytest.fixture
def dev(repo: Repository) -> Branch:
    main = repo.branch("main")
    main.put("in/kept", b"kept")
    main.commit("kept")
    branch = repo.create_branch("dev", source="main")
    branch.put("in/old", b"old")
    return branch


@pytest.mark.parametrize("meanwhile", MEANWHILE)
def test_what_came_after_the_look_is_not_dropped(repo: Repository, dev: Branch, meanwhile: str) -> None:
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


def test_what_is_as_it_was_is_dropped(repo: Repository, dev: Branch) -> None:
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


def test_a_tag_that_moved_after_the_look_stays(repo: Repository, dev: Branch) -> None:
    old = repo.create_tag("v1", "main").commit_id
    new = dev.commit("later").id
    repo.move_tag("v1", "dev", old=old, idempotency_key="k")
    for act in (lambda: repo.delete_tag("v1", old=old), lambda: repo.move_tag("v1", "main", old=old)):
        with pytest.raises(NotAsSeen, match=f"is at {new[:16]} by now"):
            act()
    assert repo.move_tag("v1", "dev", old=old, idempotency_key="k").commit_id == new, "the same call again"
    assert repo.delete_tag("v1", old=new).commit_id == new


def test_an_idle_tag_that_moves_at_the_last_moment_stays(
    repo: Repository, dev: Branch, clock, faulty_lake: Lake, faults: Faults
) -> None:
    repo.create_tag("latest", "main")
    repo.gc.set_rules({"default_retention_days": 30, "tags": [{"tag_id": "*", "expire_after_days": 2}]})
    clock.advance(days=3)
    new = dev.commit("today").id
    faults.hook("delete_tag", action=lambda _: repo.move_tag("latest", "dev"))
    assert faulty_lake.repository("repo").gc.expire_refs() == []
    assert repo.tag("latest").commit_id == new


def test_only_the_idle_refs_that_were_shown_go(repo: Repository, dev: Branch, clock) -> None:
    for name in ("shown", "later", "moved"):
        repo.create_tag(name, "main")
    repo.gc.set_rules({"default_retention_days": 30, "tags": [{"tag_id": "*", "expire_after_days": 2}]})
    clock.advance(days=2, hours=1)
    shown = [ref for ref in repo.gc.idle_refs() if ref.id != "later"]
    repo.move_tag("moved", dev.commit("today").id)
    assert [ref.id for ref in repo.gc.expire_refs(only=shown)] == ["shown"]
    assert [ref.id for ref in repo.tags()] == ["later", "moved"]


def test_a_deleted_tag_was_where_the_answer_says(lake_of_threads: Lake) -> None:
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
