"""Pruning: what is past its time goes, what rests on it still works, and nothing looks damaged afterwards."""

import shutil
from contextlib import nullcontext

import pytest
from support.damage import catalog
from support.errors import raising

from lakeops import Lake, Settings, Split
from lakeops.model.errors import CommitExpired, KeyReused, RefNotFound
from lakeops.ops.fsck.findings import Severity
from lakeops.testing import ManualClock

RULES = {"default_retention_days": 1, "log_days": 30, "key_days": 10}


def settings_at(home):
    return Settings.load(home=home, fsync=False, committer="tester")


@pytest.fixture(scope="module")
def eighty_days(tmp_path_factory):
    """A home, a copy of it and the time: a commit every other day under a key, and a merge every tenth commit."""
    place, clock = tmp_path_factory.mktemp("old"), ManualClock()
    with Lake.open(settings=settings_at(place / "home"), clock=clock) as lake:
        repo = lake.create_repository("repo", split=Split(2, 4, 8))
        repo.gc.set_rules(RULES)
        repo.create_branch("dev")
        for day in range(40):
            clock.advance(days=2)
            repo.branch("main").put("a", str(day).encode())
            repo.branch("main").commit(f"day {day}", idempotency_key=f"key {day}")
            if day % 10 == 9:
                repo.branch("dev").put("b", str(day).encode())
                repo.branch("dev").commit(f"dev {day}")
                repo.merge("dev", "main", message=f"merge {day}")
                repo.delete_branch("dev")
                repo.create_branch("dev", source="main")
    shutil.copytree(place / "home", place / "saved")
    return place / "home", place / "saved", clock.now()


@pytest.fixture
def lake(eighty_days, clock):
    """The lake of ``old``. Its files are copied, which takes a fifth of making them; their place stays."""
    home, saved, then = eighty_days
    shutil.rmtree(home)
    shutil.copytree(saved, home)
    clock.advance(seconds=(then - clock.now()).total_seconds())
    with Lake.open(settings=settings_at(home), clock=clock) as lake:
        lake.repository("repo").adopt()  # the catalog is a copy of the one that was there
        yield lake


@pytest.fixture
def old(lake, clock):
    """Eighty days of history, and a day."""
    clock.advance(days=1)
    return lake.repository("repo")


def collect(repo):
    repo.gc.sweep(repo.gc.mark().id, force=True)


def damage(repo):
    return [finding.kind for finding in repo.fsck() if finding.severity is not Severity.INFO]


def test_a_sweep_prunes_what_is_past_its_time(old):
    collect(old)
    commits = catalog(old).commits.all(old.id).values()
    initial = catalog(old).commits.initial_commit(old.id)
    dates = sorted(commit.creation_date for commit in commits if commit != initial)
    now = catalog(old).now().timestamp()
    assert now - 30 * 86400 <= dates[0] < now - 27 * 86400
    moves = catalog(old).refs.reflog(old.id, limit=10_000)
    last = {move.sequence for move in {move.ref: move for move in reversed(moves)}.values()}
    assert all(move.at >= now - 30 * 86400 or move.sequence in last for move in moves)
    assert catalog(old).commits.of_key(old.id, "key 20", "") is None
    with pytest.raises(KeyReused):
        catalog(old).commits.of_key(old.id, "key 38", "")
    assert damage(old) == []
    assert old.gc.prune().to_json() == {"commits": 0, "moves": 0, "keys": 0, "tokens": 0, "dry_run": False}


def test_a_key_whose_commit_was_pruned_is_no_outage(old, clock):
    for source in ("main~35", "main"):
        old.create_branch("release", source)
        old.create_tag("t", "main")
        with nullcontext() if source == "main~35" else pytest.raises(RefNotFound, match="has no commit"):
            old.move_tag("t", "release", idempotency_key="k")
        old.delete_tag("t")
        old.delete_branch("release")
        clock.advance(days=9)
        collect(old)


def test_commits_stay_as_long_as_their_keys(old):
    old.gc.set_rules({**RULES, "key_days": 50})
    collect(old)
    assert old.branch("main").commit("day 20", idempotency_key="key 20").message == "day 20"


def test_a_dry_run_tells_what_is_then_done_and_changes_nothing(old, lake, clock, monkeypatch):
    monkeypatch.setattr("lakeops.ops.gc.sweep.PRUNE_STEP", 3)
    collect(old)
    clock.advance(days=40)
    lake.catalog.marks.confirm_clock()
    told = old.gc.prune(dry_run=True)
    assert told == old.gc.prune(dry_run=True)
    done = old.gc.prune()
    assert told.commits > 3
    assert told.moves > 0
    assert told.keys > 0
    assert told.tokens > 0
    assert done.to_json() == {**told.to_json(), "dry_run": False}


def test_a_log_ends_where_history_was_pruned(old):
    before = [commit.id for commit in old.log("main")]
    collect(old)
    after = [commit.id for commit in old.log("main")]
    assert 0 < len(after) < len(before)
    assert after == before[: len(after)]
    assert [commit.id for commit in old.log("main", first_parent=True)][-1] in before
    with pytest.raises(RefNotFound):
        old.ref(before[-2]).commit  # noqa: B018
    with pytest.raises((RefNotFound, CommitExpired)):
        old.ref(f"main~{len(before)}").commit  # noqa: B018


def test_merges_and_marks_go_on_over_a_pruned_history(old, lake, clock):
    collect(old)
    old.branch("dev").put("c", b"c")
    old.branch("dev").commit("after")
    assert old.merge("dev", "main", message="merge after").reference
    clock.advance(days=60)
    lake.catalog.marks.confirm_clock()
    collect(old)
    assert damage(old) == []
    assert {item.path for item in old.branch("main").list()} == {"a", "b", "c"}


def test_a_common_history_that_was_pruned_is_expired_and_not_counted(old, lake, clock):
    main, side = old.branch("main"), old.create_branch("side", "main~35")
    side.put("fix", b"1")
    old.create_tag("v1", side.commit("fix").id)
    old.delete_branch("side")
    clock.advance(days=60)
    lake.catalog.marks.confirm_clock()
    main.put("new", b"1")
    main.commit("new")
    collect(old)
    assert [len(list(old.log(ref, first_parent=True))) for ref in ("main", "v1")] == [2, 1]
    for verb in (old.merge_base, old.compare, old.merge, old.preview_merge):
        with raising("expired", "was pruned"):
            verb("v1", "main")
    assert old.divergence("main", ["v1", "main", "main~1"]) == [None, (0, 0), (0, 1)]
    assert next(old.diff("v1", "main"), None) is not None


def test_what_descends_from_a_live_commit_stays(old):
    first = [*old.log("main", first_parent=True)][-3]
    old.create_tag("kept", first.id)
    collect(old)
    assert [commit.id for commit in old.log("main", first_parent=True)][-1] == first.id
    assert old.merge_base("kept", "main").id == first.id
    assert damage(old) == []


def test_a_clock_that_jumped_prunes_nothing(old, clock):
    collect(old)
    clock.jump(days=1000)
    with raising("clock_in_doubt"):
        old.gc.prune()
    assert len(list(old.log("main"))) > 10


def test_moves_made_while_the_clock_was_ahead_leave_no_hole(old, clock):
    """A hole would look as if somebody had removed moves, and a deleted tag would seem to be there."""
    old.create_tag("gone", "main")
    clock.jump(days=200)
    old.move_tag("gone", "main~1")
    old.branch("main").put("ahead", b"x")
    old.branch("main").commit("ahead")
    clock.jump(days=-200)
    old.delete_tag("gone")
    for number in range(3):
        clock.advance(days=1)
        old.branch("main").put("back", str(number).encode())
        old.branch("main").commit("back")
    clock.advance(days=40)
    old.gc.confirm_clock()
    old.gc.prune()
    assert damage(old) == []
    assert [move.new for move in old.reflog("gone")][0] is None
    clock.advance(days=240)
    old.gc.confirm_clock()
    old.gc.prune()
    assert damage(old) == []
    assert (len(list(old.reflog("main"))), len(list(old.reflog("gone")))) == (1, 0)


def test_nothing_is_pruned_while_a_mark_waits_for_its_sweep(old):
    old.gc.mark()
    assert old.gc.prune(dry_run=True).commits == 0


def test_a_commit_that_is_lost_is_no_pruned_one(old):
    from sqlalchemy import delete

    from lakeops.catalog.tables import COMMIT

    collect(old)
    lost = old.ref("main~3").commit.id
    with catalog(old).database.engine.connect() as conn:
        conn.execute(delete(COMMIT).where(COMMIT.c.id == lost))
        conn.commit()
    assert set(damage(old)) >= {"commit_parent_missing"}


@pytest.mark.parametrize(("key", "value"), [("log_days", 29), ("key_days", 0), ("log_days", "x"), ("key_days", 1e9)])
def test_the_numbers_are_checked(old, key, value):
    with raising("invalid_rules", key):
        old.gc.set_rules({**RULES, key: value})


def test_a_mirror_ends_where_its_source_was_pruned(old, lake, tmp_path):
    collect(old)
    mirror = lake.create_mirror("far", source=lake, source_repository="repo")
    from lakeops.ops.mirror.source import Source
    from lakeops.ops.mirror.sync import copy_history

    copy_history(mirror._ctx, Source(lake, "repo"), [old.ref("main").commit.id])
    copied = lake.catalog.commits.all("far")
    assert {commit.id for commit in old.log("main")} <= copied.keys()
    assert lake.catalog.retention.pruned("far")
