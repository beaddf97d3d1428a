"""Commits that marks expire, step by step; and how they come back."""

from functools import partial

import pytest
from sqlalchemy import event
from support.at_once import at_once
from support.catalogs import (
    FIRST,
    GRACE,
    REPO,
    a_commit,
    commit_all,
    create,
    draft,
    everything,
    expire_commits,
    finish,
    mirror_needs,
    new_token,
    put,
    seal,
)
from support.catalogs import an_entry as entry
from support.errors import raising

from lakeops.catalog.retention import MOVES, PrunePlan
from lakeops.model.clock import unix_seconds
from lakeops.model.errors import CommitExpired, LakeopsError, MarkRefused, RefNotFound
from lakeops.model.marks import MarkState
from lakeops.model.protection import Verdict


def begin(catalog, mark_id="m"):
    return catalog.marks.begin_mark(REPO, mark_id, cutoff=catalog.now() - GRACE)[1]


def expire(catalog, mark_id, since, *ids, rules=None):
    return catalog.retention.expire_by_mark(REPO, mark_id, since=since, rules=rules, choose=lambda _moves: ids)


def restore(catalog, mark_id="m"):
    """How many commits are live again."""
    mark, count = catalog.marks.restore_mark(REPO, mark_id), 0
    while mark.state is MarkState.RESTORING:
        mark, some = catalog.retention.restore_commits(REPO, mark_id)
        count += some
    return count


def chain(catalog, count):
    return [FIRST.id, *(commit_all(catalog, f"c{number}").id for number in range(count))]


def gone(catalog):
    return {commit.id for commit in catalog.commits.all(REPO).values() if commit.expired}


def test_a_step_expires_what_no_ref_shows_and_no_mirror_needs(catalog):
    first, one, two, head = chain(catalog, 3)
    catalog.refs.create_tag(REPO, "v1", one, actor="ada")
    catalog.mirrors.report_mirror(REPO, "there", frozenset({two}))
    since = begin(catalog)
    step = expire(catalog, "m", since, first, one, two, head, "f" * 64)
    assert (step.complete, step.expired, step.carried, step.sequence) == (True, {first}, set(), since)
    assert gone(catalog) == {first}
    with pytest.raises(CommitExpired):
        catalog.refs.create_tag(REPO, "v2", first, actor="ada")
    assert expire(catalog, "m", since, first).expired == set()


def test_a_step_says_which_refs_moved_and_what_they_show_now(catalog):
    first, one = chain(catalog, 1)
    since = begin(catalog)
    seen = []
    catalog.refs.create_branch(REPO, "dev", first, token=new_token(), actor="ada")
    head = commit_all(catalog, "later")
    catalog.refs.delete_branch(REPO, "dev", actor="ada")
    step = catalog.retention.expire_by_mark(
        REPO, "m", since=since, rules=None, choose=lambda moves: seen.extend(moves) or []
    )
    assert [tuple(move) for move in seen] == [
        (None, first, ()), (one, head.id, (one,)), (first, None, ()),
    ]  # fmt: skip
    assert step.sequence > since
    seen.clear()
    catalog.retention.expire_by_mark(
        REPO, "m", since=step.sequence, rules=None, choose=lambda moves: seen.extend(moves) or []
    )
    assert seen == []


def test_a_step_that_has_not_seen_all_moves_expires_nothing(catalog, monkeypatch):
    monkeypatch.setattr("lakeops.catalog.retention.MOVES", 2)
    first, *_ = chain(catalog, 0)
    since = begin(catalog)
    chain(catalog, 3)
    done = []
    while True:
        step = expire(catalog, "m", since, first)
        since = step.sequence
        done.append(step.complete)
        if step.complete:
            break
    assert done == [False, True]
    assert gone(catalog) == {first}
    assert MOVES > 100


def test_other_rules_than_those_decided_by_expire_nothing(catalog):
    first, _ = chain(catalog, 1)
    since = begin(catalog)
    catalog.retention.set_rules(REPO, "{}")
    step = expire(catalog, "m", since, first)
    assert (step.rules_changed, step.complete, gone(catalog)) == (True, False, set())
    assert expire(catalog, "m", since, first, rules="{}").expired == {first}


def test_only_a_mark_under_way_expires_or_revives(catalog):
    first, _ = chain(catalog, 1)
    since = begin(catalog)
    finish(catalog)
    restore(catalog)
    before = everything(catalog)
    for act in (
        lambda: expire(catalog, "m", since, first),
        lambda: catalog.retention.revive_commits(REPO, "m", [first]),
    ):
        with pytest.raises(MarkRefused, match="restored"):
            act()
    assert everything(catalog) == before


@pytest.mark.parametrize("finished", [False, True])
def test_a_mark_is_restored_before_its_sweep_begins(catalog, finished):
    first, one, _ = chain(catalog, 2)
    since = begin(catalog)
    expire(catalog, "m", since, first, one)
    if finished:
        finish(catalog)
    assert restore(catalog) == 2
    assert gone(catalog) == set()
    assert catalog.marks.get(REPO, "m").state is MarkState.RESTORED
    assert restore(catalog) == 0
    for act in (lambda: finish(catalog), lambda: catalog.marks.begin_sweep(REPO, "m")):
        with pytest.raises(MarkRefused, match="restored"):
            act()


@pytest.mark.parametrize("end", [None, "swept", "incomplete", "carried"])
def test_a_mark_whose_sweep_began_is_not_restored(catalog, end):
    first, _ = chain(catalog, 1)
    expire(catalog, "m", begin(catalog), first)
    finish(catalog)
    catalog.marks.begin_sweep(REPO, "m")
    if end == "carried":
        begin(catalog, "n")
        finish(catalog, "n")
        catalog.marks.begin_sweep(REPO, "n")
    elif end is not None:
        catalog.marks.end_sweep(REPO, "m", refused=int(end == "incomplete"))
    before = everything(catalog)
    with pytest.raises(MarkRefused, match="its sweep has begun, what its commits need may be gone"):
        catalog.marks.restore_mark(REPO, "m")
    assert everything(catalog) == before
    begin(catalog, "after")
    catalog.retention.revive_commits(REPO, "after", [first])
    assert gone(catalog) == {first}


def test_a_newer_mark_takes_over_pending_commits_or_revives_them(catalog):
    first, one, two, _ = chain(catalog, 3)
    expire(catalog, "m", begin(catalog), first, one, two)
    finish(catalog)
    since = begin(catalog, "n")
    lineage = catalog.retention.lineage(REPO, left_since=0)
    assert {node.id for node in lineage.commits.values() if node.pending} == {first, one, two}
    assert not any(node.expired for node in lineage.commits.values())
    with pytest.raises(MarkRefused, match="left out commits that an earlier mark had expired"):
        finish(catalog, "n")
    step = expire(catalog, "n", since, first)
    assert (step.expired, step.carried) == (set(), {first})
    catalog.retention.revive_commits(REPO, "n", [one, two])
    finish(catalog, "n")
    assert gone(catalog) == {first}
    assert catalog.marks.restore_mark(REPO, "m").state is MarkState.STALE
    assert restore(catalog, "m") == 0
    assert restore(catalog, "n") == 1
    assert gone(catalog) == set()


def test_a_restore_that_was_killed_goes_on_or_leaves_the_rest_to_the_next_mark(catalog, monkeypatch):
    monkeypatch.setattr("lakeops.catalog.guards.IN_CHUNK", 2)
    *old, _ = chain(catalog, 4)
    expire(catalog, "m", begin(catalog), *old)
    catalog.marks.restore_mark(REPO, "m")
    assert catalog.retention.restore_commits(REPO, "m")[1] == 2
    since = begin(catalog, "n")
    with pytest.raises(MarkRefused, match="is stale"):
        catalog.retention.restore_commits(REPO, "m")
    rest = gone(catalog)
    assert len(rest) == 2
    assert expire(catalog, "n", since, *old).carried == rest
    assert restore(catalog, "n") == 4


def test_a_mark_with_pending_commits_is_not_forgotten(catalog):
    from lakeops.catalog.tables import MARK

    first, _ = chain(catalog, 1)
    expire(catalog, "m", begin(catalog), first)
    begin(catalog, "n")
    old = MARK.update().where(MARK.c.id == "m").values(created=0)
    catalog.database.write(lambda conn: conn.execute(old) and None)
    since = begin(catalog, "o")
    assert {mark.id for mark in catalog.marks.on_record(REPO)} == {"m", "n", "o"}
    expire(catalog, "o", since, first)
    begin(catalog, "p")
    assert {mark.id for mark in catalog.marks.on_record(REPO)} == {"n", "o", "p"}


def test_a_neighbours_commits_stay_as_they_are(catalog):
    create(catalog, "neighbour")
    first, _ = chain(catalog, 1)
    catalog.marks.begin_mark("neighbour", "m", cutoff=catalog.now() - GRACE)
    expire(catalog, "m", begin(catalog), first)
    assert not catalog.commits.get("neighbour", FIRST.id).expired
    catalog.marks.restore_mark("neighbour", "m")
    assert catalog.retention.restore_commits("neighbour", "m")[1] == 0
    assert gone(catalog) == {first}


def test_lineage_is_what_deciding_needs(catalog):
    first, one = chain(catalog, 1)
    catalog.refs.create_branch(REPO, "dev", first, token=new_token(), actor="ada")
    two = catalog.commits.publish(draft(catalog, catalog.refs.branch(REPO, "dev"), a_commit("two", FIRST)))
    merge = catalog.commits.publish(
        draft(
            catalog,
            catalog.refs.branch(REPO, "main"),
            a_commit("m", catalog.commits.get(REPO, one), two),
            action="merge",
        )
    )
    catalog.refs.delete_branch(REPO, "dev", actor="ada")
    catalog.refs.create_tag(REPO, "v1", one, actor="ada")
    catalog.refs.delete_tag(REPO, "v1", actor="ada")
    catalog.refs.create_tag(REPO, "v2", one, actor="ada")
    catalog.mirrors.report_mirror(REPO, "there", frozenset({first}))
    catalog.retention.set_rules(REPO, "{}")
    found = catalog.retention.lineage(REPO, left_since=0)
    assert (found.branches, found.tags, found.rules) == ({"main": merge.id}, {"v2": one}, "{}")
    assert found.mirrors == {"there": {first}}
    assert found.deleted == {two.id}
    assert found.left.keys() == {first, one, two.id}
    assert found.left[two.id] == catalog.refs.reflog(REPO, "dev")[0].at
    node = found.commits[merge.id]
    assert (node.parents, node.creation_date, node.generation) == ((one, two.id), merge.creation_date, 3)
    assert found.commits.keys() == {first, one, two.id, merge.id}
    later = catalog.retention.lineage(REPO, left_since=max(found.left.values()))
    assert (later.left, later.deleted) == ({}, set())


@pytest.mark.parametrize("other", ["sweep", "mark", "branch"])
def test_restoring_races_and_one_of_the_two_wins(catalog, opened, database_url, other):
    second = opened(database_url)
    for number in range(6):
        first = catalog.refs.branch(REPO, "main").commit_id
        commit_all(catalog, f"c{number}")
        name = f"m{number}"
        expire(catalog, name, begin(catalog, name), first, *gone(catalog))
        finish(catalog, name)
        races = {
            "sweep": partial(second.marks.begin_sweep, REPO, name),
            "mark": partial(begin, second, f"n{name}"),
            "branch": partial(second.refs.create_tag, REPO, f"t{number}", first, actor="bob"),
        }
        done, restored = at_once(races[other], partial(restore, catalog, name))
        refused = isinstance(done, MarkRefused | CommitExpired)
        assert refused or not isinstance(done, LakeopsError)
        lost = isinstance(restored, MarkRefused)
        assert lost or isinstance(restored, int)
        live = not catalog.commits.get(REPO, first).expired
        assert live == (not lost and restored > 0) or (other == "mark" and lost)
        if other == "sweep":
            assert lost is not refused
        elif other == "branch":
            assert live


def test_a_branch_at_a_commit_that_is_restored_meanwhile_is_made(opened, postgres_url):
    """Between the statement that finds the commit expired and the look that says why.

    SQLite has no such between, and a new tag holds the repository's row alone.
    """
    catalog, second = opened(postgres_url), opened(postgres_url)
    create(catalog)
    first = catalog.refs.branch(REPO, "main").commit_id
    commit_all(catalog, "one")
    expire(catalog, "m", begin(catalog, "m"), first)
    finish(catalog, "m")
    catalog.marks.restore_mark(REPO, "m")
    restored = []

    def restore_now(_conn, _cursor, statement, *_rest):
        if statement.startswith("INSERT INTO lakeops_branch") and not restored:
            restored.append(second.retention.restore_commits(REPO, "m")[1])

    event.listen(catalog.database.engine, "after_cursor_execute", restore_now)
    catalog.refs.create_branch(REPO, "dev", first, token=new_token(), actor="ada")
    assert restored == [1]


def test_rules_are_kept_as_they_are_and_replaced(catalog):
    assert catalog.retention.get_rules(REPO) is None
    for text in ('{"default_retention_days": 21}', '{"é": "😀\'"}'):
        catalog.retention.set_rules(REPO, text)
        assert catalog.retention.get_rules(REPO) == text
    create(catalog, "neighbour")
    assert catalog.retention.get_rules("neighbour") is None
    catalog.retention.set_rules(REPO, None)
    catalog.retention.set_rules(REPO, None)
    assert catalog.retention.get_rules(REPO) is None


def test_a_report_replaces_the_mirrors_last_one(catalog):
    one = commit_all(catalog, "one")
    assert mirror_needs(catalog, REPO) == {}
    catalog.mirrors.report_mirror(REPO, "there", frozenset({FIRST.id, one.id}))
    catalog.mirrors.report_mirror(REPO, "elsewhere", frozenset())
    assert mirror_needs(catalog, REPO) == {"there": {FIRST.id, one.id}, "elsewhere": set()}
    catalog.mirrors.report_mirror(REPO, "there", frozenset({one.id}))
    assert mirror_needs(catalog, REPO) == {"there": {one.id}, "elsewhere": set()}
    create(catalog, "neighbour")
    assert mirror_needs(catalog, "neighbour") == {}
    catalog.mirrors.drop_mirror(REPO, "there")
    catalog.mirrors.drop_mirror(REPO, "there")
    assert mirror_needs(catalog, REPO) == {"elsewhere": set()}


def test_what_a_mirror_needs_does_not_expire(catalog):
    one = commit_all(catalog, "one")
    two = commit_all(catalog, "two")
    catalog.mirrors.report_mirror(REPO, "there", frozenset({one.id}))
    assert expire_commits(catalog, REPO, [FIRST.id, one.id, two.id]) == [FIRST.id]
    catalog.mirrors.report_mirror(REPO, "there", frozenset({two.id}))
    assert expire_commits(catalog, REPO) == [one.id]


@pytest.mark.parametrize(("commit_id", "error"), [(FIRST.id, CommitExpired), ("f" * 64, RefNotFound)])
def test_a_report_of_a_commit_that_cannot_be_kept_is_refused(catalog, commit_id, error):
    one = commit_all(catalog, "one")
    catalog.mirrors.report_mirror(REPO, "there", frozenset({one.id}))
    expire_commits(catalog, REPO, [FIRST.id])
    before = everything(catalog)
    with pytest.raises(error, match=commit_id):
        catalog.mirrors.report_mirror(REPO, "there", frozenset({one.id, commit_id}))
    assert everything(catalog) == before


def test_a_read_only_repository_takes_reports(catalog):
    catalog.repositories.set_read_only(REPO, True)
    catalog.mirrors.report_mirror(REPO, "there", frozenset({FIRST.id}))
    assert mirror_needs(catalog, REPO) == {"there": {FIRST.id}}
    catalog.mirrors.drop_mirror(REPO, "there")
    assert mirror_needs(catalog, REPO) == {}


def test_a_report_that_races_with_expiry_wins_or_is_refused(catalog, opened, database_url):
    """Never both: an accepted report of a commit that is expired."""
    other = opened(database_url)
    for number in range(12):
        old = catalog.commits.get(REPO, catalog.refs.branch(REPO, "main").commit_id)
        commit_all(catalog, f"c{number}")
        report = partial(other.mirrors.report_mirror, REPO, "there", frozenset({old.id}))
        reported, marked = at_once(report, partial(expire_commits, catalog, REPO, [old.id]))
        kept = old.id in mirror_needs(catalog, REPO).get("there", ())
        assert (marked, type(reported), kept) in (([old.id], CommitExpired, False), ([], type(None), True))


# --- pruning in small steps, on both databases: what goes, what stays, and what a step leaves for the next one ---
@pytest.fixture
def line(catalog):
    """Twelve commits after the first one, each of a staged row and under a key."""
    commits = []
    for number in range(12):
        put(catalog, entry(f"f{number}"))
        commits.append(commit_all(catalog, f"c{number}", key=f"key {number}", fingerprint="f"))
    catalog.staging.purge_retired(REPO)
    return commits


def prune(catalog, kind, *, limit=3, between=lambda: None, **given):
    """All steps of a kind; ``between`` runs after each."""
    plan, count = PrunePlan(kind, given.pop("before", (unix_seconds(catalog.now()) + 10))), 0
    while True:
        step = catalog.retention.prune(REPO, plan, limit=limit, **given)
        count += step.count
        between()
        if step.after is None:
            return count
        plan = PrunePlan(kind, plan.before, step.after, plan.gone | step.gone)


def healthy(catalog):
    records = catalog.audit.snapshot(REPO)
    assert records.flaws == []


def test_expired_commits_go_from_the_beginning_on(catalog, line):
    expired = [FIRST, *line[:5], *line[6:9]]  # the sixth lives, and keeps what descends from it
    assert len(expire_commits(catalog, REPO, [commit.id for commit in expired])) == len(expired)
    assert prune(catalog, "commits", dry_run=True) == 5
    assert set(catalog.commits.all(REPO)) == {FIRST.id, *(commit.id for commit in line)}
    assert not catalog.retention.pruned(REPO)
    assert prune(catalog, "commits") == 5
    assert set(catalog.commits.all(REPO)) == {FIRST.id, *(commit.id for commit in line[5:])}
    assert catalog.retention.pruned(REPO)
    assert [one.id for one in catalog.commits.first_parents(REPO, line[-1].id, limit=100)][-1] == line[5].id
    assert catalog.commits.initial_commit(REPO).id == FIRST.id
    healthy(catalog)
    assert prune(catalog, "commits") == 0


def test_verdicts_go_with_their_commits(catalog, line):
    gone, kept = line[0].id, line[-1].id
    for commit_id in (gone, kept):
        catalog.refs.record_verdict(REPO, Verdict(commit_id, "quality", "passed", "ada"))
    expire_commits(catalog, REPO, [FIRST.id, gone])
    assert prune(catalog, "commits") == 1
    assert [verdict.commit_id for verdict in catalog.refs.verdicts(REPO, [gone, kept])] == [kept]


def test_a_live_first_commit_keeps_all(catalog, line):
    expire_commits(catalog, REPO, [commit.id for commit in line[:5]])
    assert prune(catalog, "commits") == 0


def test_commits_younger_than_the_log_stay(catalog, line):
    expire_commits(catalog, REPO, [FIRST.id, *(commit.id for commit in line[:5])])
    assert prune(catalog, "commits", before=line[0].creation_date) == 0


def test_a_merge_goes_after_both_of_its_parents(catalog, line):
    catalog.refs.create_branch(REPO, "dev", line[3].id, token="t", actor="ada")
    state = seal(catalog, "dev")
    side = catalog.commits.publish(draft(catalog, state, a_commit("side", line[3])))
    state = seal(catalog)
    merge = catalog.commits.publish(draft(catalog, state, a_commit("merge", line[-1], side)))
    last = commit_all(catalog, "last")
    catalog.refs.delete_branch(REPO, "dev", actor="ada")
    gone = [FIRST, *line, merge]
    expire_commits(catalog, REPO, [commit.id for commit in gone])
    assert prune(catalog, "commits") == len(line)  # the side commit lives, and keeps the merge
    assert set(catalog.commits.all(REPO)) == {FIRST.id, side.id, merge.id, last.id}
    expire_commits(catalog, REPO, [side.id])
    assert prune(catalog, "commits") == 2
    healthy(catalog)


def test_writers_go_on_between_the_steps(catalog, line):
    expire_commits(catalog, REPO, [FIRST.id, *(commit.id for commit in line[:-1])])
    made = []

    def write():
        put(catalog, entry(f"new {len(made)}"))
        made.append(commit_all(catalog, f"new {len(made)}"))

    assert prune(catalog, "commits", between=write) == len(line) - 1
    assert len(made) > 3
    assert set(catalog.commits.all(REPO)) == {FIRST.id, line[-1].id, *(commit.id for commit in made)}
    healthy(catalog)


def test_moves_go_but_for_the_last_one_of_what_exists(catalog, line):
    catalog.refs.create_tag(REPO, "kept", line[-1].id, actor="ada")
    catalog.refs.create_tag(REPO, "gone", line[-1].id, actor="ada")
    catalog.refs.delete_tag(REPO, "gone", actor="ada")
    assert prune(catalog, "moves", before=0) == 0
    assert prune(catalog, "moves") == 14
    assert [(move.ref, move.new) for move in catalog.refs.reflog(REPO)] == [
        ("kept", line[-1].id),
        ("main", line[-1].id),
    ]
    healthy(catalog)


def test_keys_and_tokens_go(catalog, line):
    assert prune(catalog, "keys", before=0) == prune(catalog, "tokens", before=0) == 0
    assert prune(catalog, "keys") == prune(catalog, "tokens") == 12
    assert catalog.commits.of_key(REPO, "key 3", "") is None
    assert not catalog.retention.pruned(REPO)  # no commit went
    healthy(catalog)


def test_a_read_only_repository_is_not_pruned(catalog, line):
    catalog.repositories.set_read_only(REPO, True)
    with raising("read_only_repository"):
        prune(catalog, "keys")
