"""Marks that are foretold, taken back and made again; and what a slip of the hand left to be brought back."""

import random

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.budget import examples
from support.catalogs import everything
from support.scenes import SPLIT, files, root

from lakeops import Lake, Settings
from lakeops.model import errors
from lakeops.ops.gc import plan
from lakeops.store import layout
from lakeops.testing import ManualClock


@pytest.fixture
def lake(faulty_lake):
    return faulty_lake


def expired(repo):
    return {commit.id for commit in repo._ctx.catalog.commits.all(repo.id).values() if commit.expired}


def test_a_slip_in_the_rules_is_healed_by_marking_again(repo, fill, clock, contents):
    old = [fill(repo, "main", a=f"{number}") for number in range(4)]
    repo.gc.set_rules({"default_retention_days": 90})
    clock.advance(days=30)
    repo.gc.set_rules({"default_retention_days": 0})
    slip = repo.gc.mark()
    assert len(expired(repo)) == 4
    with pytest.raises(errors.CommitExpired):
        contents(repo, old[0])
    repo.gc.set_rules({"default_retention_days": 90})
    assert repo.gc.mark(dry_run=True).report["objects"] == 0
    mark = repo.gc.mark()
    assert expired(repo) == set()
    assert [contents(repo, commit) for commit in old] == [{"a": f"{number}"} for number in range(4)]
    assert (mark.objects, repo.gc.report(mark.id)["commits"]["live_again"]) == (0, 4)
    repo.gc.sweep(mark.id)
    with pytest.raises(errors.MarkRefused, match="stale"):
        repo.gc.sweep(slip.id, force=True)
    assert contents(repo, old[0]) == {"a": "0"}


@pytest.mark.parametrize("killed", [False, True])
def test_a_mark_that_is_restored_leaves_everything_as_it_was(repo, fill, clock, contents, killed, monkeypatch):
    old = fill(repo, "main", a="1")
    fill(repo, "main", a="2")
    repo.gc.set_rules({"default_retention_days": 0})
    clock.advance(days=8)
    if killed:
        monkeypatch.setattr("lakeops.ops.gc.mark.write_report", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            repo.gc.mark()
        (mark,) = repo.gc.marks()
    else:
        mark = repo.gc.mark()
    assert len(expired(repo)) == 2
    done = repo.gc.restore(mark.id)
    assert (done.commits, done.mark.state.value, done.newer) == (2, "restored", None)
    assert contents(repo, old) == {"a": "1"}
    with pytest.raises(errors.MarkRefused, match="was restored; make a new one"):
        repo.gc.sweep(mark.id)
    assert repo.gc.restore(mark.id).commits == 0


def test_a_mark_restored_while_it_is_made_is_not_finished(repo, fill, clock, contents, faults):
    old = fill(repo, "main", a="1")
    fill(repo, "main", a="2")
    repo.gc.set_rules({"default_retention_days": 0})
    clock.advance(days=8)
    faults.hook("finish_mark", action=lambda _: [repo.gc.restore(mark.id) for mark in repo.gc.marks()])
    with pytest.raises(errors.MarkRefused, match="is restored: it was restored"):
        repo.gc.mark()
    assert contents(repo, old) == {"a": "1"}


def test_a_branch_deleted_by_a_slip_comes_back_whole_and_merges_for_seven_days(repo, fill, clock, contents):
    fill(repo, "main", a="1")
    repo.create_branch("dev")
    fill(repo, "main", a="2")
    head = fill(repo, "dev", b="1")
    repo.gc.set_rules({"default_retention_days": 1, "branches": []})
    clock.advance(days=30)
    repo.delete_branch("dev")

    def collect():
        repo.gc.sweep(repo.gc.mark().id, force=True)

    collect()
    clock.advance(days=7, seconds=-1)
    collect()
    (gone, *_) = repo.reflog("dev")
    assert (gone.action, gone.old) == ("delete-branch", head)
    repo.create_branch("dev", source=gone.old)
    assert contents(repo, "dev") == {"a": "1", "b": "1"}
    repo.merge("dev", "main")
    assert contents(repo, "main") == {"a": "2", "b": "1"}
    repo.delete_branch("dev")
    clock.advance(days=7)
    assert repo.gc.report(repo.gc.mark().id)["commits"]["live"]["undo"] == 0
    collect()
    with pytest.raises(errors.CommitExpired):
        repo.create_branch("dev", source=head)


def test_long_lived_branches_merge_however_little_history_is_kept(repo, fill, clock, contents):
    fill(repo, "main", a="1", b="1")
    repo.create_branch("dev")
    for number in range(3):
        fill(repo, "main", a=f"main {number}")
        fill(repo, "dev", b=f"dev {number}")
    repo.gc.set_rules({"default_retention_days": 0})
    clock.advance(days=400)
    mark = repo.gc.mark()
    live = repo.gc.report(mark.id)["commits"]["live"]
    assert {why: count for why, count in live.items() if count} == {"heads": 2, "merge_bases": 1}
    repo.gc.sweep(mark.id, force=True)
    repo.merge("dev", "main")
    assert contents(repo, "main") == {"a": "main 2", "b": "dev 2"}


@given(seed=st.integers(0, 2**32))
@settings(max_examples=examples(5), deadline=None, suppress_health_check=list(HealthCheck))
def test_a_dry_run_foretells_what_a_mark_does_and_changes_nothing(tmp_path_factory, seed):
    """Random histories, refs, rules, marks before it; nothing moves between the two."""
    rng = random.Random(seed)
    clock = ManualClock()
    settings = Settings.load(home=tmp_path_factory.mktemp("lake"), fsync=False, committer="tester")
    with Lake.open(settings=settings, clock=clock) as lake:
        repo = lake.create_repository("repo", split=SPLIT)
        play(rng, repo, clock, rng.randint(3, 10))
        before = everything(repo._ctx.catalog), files(repo)
        foretold = repo.gc.mark(dry_run=True)
        assert (everything(repo._ctx.catalog), files(repo)) == before
        was = expired(repo)
        mark = repo.gc.mark()
        assert expired(repo) == (was | foretold.decided.expired) - foretold.decided.revived
        report = repo.gc.report(mark.id)
        made = {"mark": report["mark"], "cutoff": report["cutoff"]}
        assert {**report, **made} == {**foretold.report, **made}
        assert mark.rows == foretold.rows
        listed = pq.read_table(root(repo) / layout.GC / mark.id / "mark.parquet")
        assert listed.num_rows == foretold.rows
        repo.gc.restore(mark.id)
        assert not foretold.decided.expired & expired(repo)


def play(rng, repo, clock, count):
    """Verbs, rules and marks at random; some of them refuse."""
    commits: list[str] = []
    for number in range(count):
        branch = rng.choice([ref.id for ref in repo.branches()])
        verb = rng.choice(["commit", "commit", "commit", "branch", "delete", "merge", "tag", "rules", "mark", "time"])
        try:
            if verb == "commit":
                repo.branch(branch).put(f"f{rng.randrange(5)}", b"%d" % number)
                commits.append(repo.branch(branch).commit("c").id)
            elif verb == "branch":
                repo.create_branch(f"b{number}", source=rng.choice([*commits, branch]))
            elif verb == "delete":
                repo.delete_branch(branch)
            elif verb == "merge":
                repo.merge(branch, "main", strategy="source-wins")
            elif verb == "tag":
                repo.create_tag(f"t{number}", rng.choice([*commits, branch]))
            elif verb == "rules":
                repo.gc.set_rules({"default_retention_days": rng.choice([0, 5, 20, 100])})
            elif verb == "mark":
                mark = repo.gc.mark()
                if rng.random() < 0.3:
                    repo.gc.sweep(mark.id, force=True)
        except errors.LakeopsError:
            pass
        clock.advance(days=rng.choice([0, 1, 4, 10]))


MOVES = {
    "branch": lambda repo, old: repo.create_branch("late", source=old),
    "tag": lambda repo, old: repo.create_tag("late", old),
    "merge": lambda repo, old: repo.merge(old, "other", strategy="source-wins"),
}


@pytest.fixture
def step_by_step(monkeypatch):
    """Commits expire one in a transaction, the newest first."""
    monkeypatch.setattr(plan, "STEP", 1)


@pytest.fixture
def history(repo, fill, clock):
    """Eight commits of ``main``, of which all but the newest expire with the next mark; ``other`` has none of them."""
    repo.create_branch("other")
    fill(repo, "other", b="1")
    history = [fill(repo, "main", a=f"{number}") for number in range(8)]
    repo.gc.set_rules({"default_retention_days": 0})
    clock.advance(days=8)
    return history


@pytest.mark.usefixtures("step_by_step")
@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("at", [1, 4])
def test_what_a_ref_comes_to_show_while_commits_expire_lives_with_its_history(
    repo, fill, history, contents, faults, name, at
):
    """A ref moves before one of the steps."""
    faults.hook("expire_by_mark", at=at, action=lambda _: MOVES[name](repo, history[2]))
    repo.gc.sweep(repo.gc.mark().id, force=True)
    assert [contents(repo, commit)["a"] for commit in history[:3]] == ["0", "1", "2"]
    if at == 1:
        assert {*history[3:7]} == expired(repo)


@pytest.mark.usefixtures("step_by_step")
def test_a_busy_repository_does_not_keep_a_mark_from_finishing(repo, fill, history, faults, monkeypatch):
    """Before every step somebody commits, and the plan is made once."""
    lineage, plans = repo._ctx.catalog.retention.lineage, list[int]()
    monkeypatch.setattr(repo._ctx.catalog.retention, "lineage", lambda *a, **g: plans.append(1) or lineage(*a, **g))
    faults.hook("expire_by_mark", at=None, action=lambda _: fill(repo, "main", b=f"{len(files(repo))}"))
    repo.gc.mark()
    assert {*history[:-1]} <= expired(repo)
    assert plans == [1]


@pytest.mark.usefixtures("step_by_step")
def test_rules_that_change_meanwhile_are_decided_by(repo, history, faults):
    faults.hook("expire_by_mark", at=3, action=lambda _: repo.gc.set_rules({"default_retention_days": 90}))
    mark = repo.gc.mark()
    assert not expired(repo) & {*history}
    assert repo.gc.report(mark.id)["commits"]["expired_now"] == 0
