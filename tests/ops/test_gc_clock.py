"""A clock that jumps while somebody uploads, and one that is a year ahead: nothing is expired, deleted or lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.errors import has_kind
from support.scenes import files

from lakeops import Lake, Settings
from lakeops.model import errors


@pytest.mark.parametrize("hours", [3 * 24, 366 * 24])
def test_a_jump_during_an_upload_costs_nothing(repo, fill, clock, hours):
    for number in range(10):
        fill(repo, "main", a=f"{number}")
        clock.advance(hours=1)
    repo.gc.set_rules({"default_retention_days": 1})
    with repo.branch("main").output("out") as url:
        Path(url.removeprefix("file://"), "part").write_text("1")
        before = files(repo)
        clock.jump(hours=hours)
        with pytest.raises(errors.MarkRefused, match="a clock jumped ahead", check=has_kind("clock_in_doubt")):
            repo.gc.mark()
        with pytest.raises(errors.MarkRefused, check=has_kind("clock_in_doubt")):
            repo.gc.expire_refs()
        clock.jump(hours=-hours)
    assert repo.branch("main").read("out/part") == b"1"
    assert before <= files(repo)
    assert not any(commit.expired for commit in repo.log("main"))
    repo.branch("main").commit("out")
    repo.gc.sweep(repo.gc.mark().id)
    assert repo.branch("main").read("out/part") == b"1"


def test_a_jump_that_a_mark_believed_refuses_the_upload_that_it_took_for_garbage(repo, clock):
    """Below the bound: the upload is not linked, and not lost without a word either."""
    clock.advance(hours=1)
    output = repo.branch("main").output("out", allow_empty=True)  # its only file is collected
    with pytest.raises(errors.AttemptExpired, match="start it again"), output as url:
        Path(url.removeprefix("file://"), "part").write_text("1")
        repo._ctx.catalog.staging.end_upload(repo.id, next(iter(repo._ctx.catalog.staging.uploads(repo.id))))
        clock.jump(hours=50)
        repo.gc.sweep(repo.gc.mark().id)
        clock.jump(hours=-50)
    assert list(repo.ref("main").list()) == []


def test_two_processes_with_different_settings(tmp_path, clock):
    """A writer that was told 48 hours and a collector that was told 24, or one: the repository's count for both."""

    def opened(hours: float) -> Lake:
        return Lake.open(settings=Settings.load(home=tmp_path, fsync=False, grace_hours=hours), clock=clock)

    with opened(48) as writer, opened(24) as collector, opened(1) as hasty:
        main = writer.create_repository("repo").branch("main")
        with main.output("out") as url:
            Path(url.removeprefix("file://"), "part").write_text("1")
            for hours in (1.5, 22):
                clock.advance(hours=hours)
                for other in (collector, hasty):
                    theirs = other.repository("repo")
                    theirs.gc.sweep(theirs.gc.mark().id, force=True)
        main.commit("out")
        clock.advance(days=30)
        theirs.gc.sweep(theirs.gc.mark().id, force=True)
        assert main.read("out/part") == b"1"
        assert [lake.repository("repo").gc.grace()["grace_seconds"] for lake in (writer, hasty)] == [172_800] * 2
