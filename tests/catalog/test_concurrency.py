import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from threading import Barrier, BrokenBarrierError, Event

import pytest
from sqlalchemy import event
from support.at_once import many_at_once
from support.catalogs import (
    FIRST,
    REPO,
    a_commit,
    an_entry,
    commit_all,
    create,
    draft,
    everything,
    expire_commits,
    new_token,
    paths,
    put,
    seal,
    table_of,
)
from support.forked import CONTEXT, run_forked

from lakeops.catalog.open import open_catalog
from lakeops.model.clock import SystemClock
from lakeops.model.errors import AlreadyExists, BranchMoved, CommitExpired

COMMITS = 6


def first_parents(catalog, branch="main"):
    return catalog.commits.first_parents(REPO, catalog.refs.branch(REPO, branch).commit_id, limit=10_000)


def commit_until_published(catalog, message, **given):
    while True:
        state = seal(catalog)
        try:
            commit = a_commit(message, catalog.commits.get(REPO, state.commit_id))
            return catalog.commits.publish(draft(catalog, state, commit, **given))
        except BranchMoved:
            continue


def check_nothing_lost(catalog, writers):
    """Every commit is in the chain once, and every staged row was taken by exactly one of them."""
    chain = first_parents(catalog)
    assert [commit.parents for commit in chain] == [*((commit.id,) for commit in chain[1:]), ()]
    expected = [f"{writer}-{number}" for writer in writers for number in range(COMMITS)]
    assert sorted(commit.message for commit in chain) == sorted([*expected, "first"])
    moves = catalog.refs.reflog(REPO, "main", limit=10_000)
    assert [move.new for move in moves] == [commit.id for commit in chain]
    assert not catalog.staging.has_staged(REPO, "main")
    assert catalog.staging.purge_retired(REPO) == len(expected)


@pytest.mark.parametrize(("backend", "writers"), [("postgres_url", 8), ("sqlite_url", 2)])
def test_processes_publishing_to_one_branch_lose_nothing(request, opened, backend, writers):
    url = request.getfixturevalue(backend)
    catalog = opened(url)  # inherited over the fork, which must not be noticed
    create(catalog)

    def publish(writer):
        mine = catalog if writer % 2 else open_catalog(url, clock=SystemClock())
        for number in range(COMMITS):
            put(mine, an_entry(f"{writer}-{number}"))
            commit_until_published(mine, f"{writer}-{number}")

    run_forked(publish, range(writers))
    check_nothing_lost(catalog, range(writers))


def test_stagers_beside_commits_lose_no_row(catalog):
    """Rows arrive while tokens are sealed and published; each is in one commit's tokens or still staged."""
    stop, taken = Event(), []

    def stage(writer):
        for number in range(40):
            put(catalog, an_entry(f"{writer}/{number:03}"))

    def commit():
        number = 0
        while not stop.is_set():
            state = seal(catalog)
            rows = catalog.staging.staged_table(REPO, "main", tokens=state.sealed_tokens).staged
            head = catalog.commits.get(REPO, state.commit_id)
            catalog.commits.publish(draft(catalog, state, a_commit(str(number), head)))
            catalog.staging.purge_retired(REPO)
            taken.append(rows["path"].to_pylist())
            number += 1

    with ThreadPoolExecutor(4) as pool:
        committing = pool.submit(commit)
        staging = [pool.submit(stage, writer) for writer in range(3)]
        for future in staging:
            future.result()
        stop.set()
        committing.result()
    left = paths(catalog.staging.staged_page(REPO, "main")[1])
    every = [path for group in taken for path in group] + left
    assert sorted(every) == [f"{writer}/{number:03}" for writer in range(3) for number in range(40)]


def test_a_row_lands_under_the_token_of_its_instant(postgres_url, opened):
    """A stager that holds the branch keeps sealing waiting, and the other way round."""
    catalog, other = opened(postgres_url), opened(postgres_url)
    create(catalog)
    put(catalog, an_entry("before"))
    before = catalog.refs.branch(REPO, "main")
    holding, go_on = Event(), Event()

    def hold(conn):
        from lakeops.catalog.guards import lock_branch, lock_repository

        lock_repository(conn, REPO)
        lock_branch(conn, REPO, "main", exclusive=False)
        holding.set()
        assert go_on.wait(30)

    with ThreadPoolExecutor(3) as pool:
        holder = pool.submit(catalog.database.write, hold)
        assert holding.wait(30)
        beside = put(catalog, an_entry("beside"))  # stagers do not wait for each other, but for who waits to seal
        sealing = pool.submit(seal, other)
        assert beside == before
        assert not sealing.done()
        go_on.set()
        holder.result()
        sealed = sealing.result()
    assert sealed.sealed_tokens == (before.staging_token,)
    assert catalog.staging.staged_table(REPO, "main", tokens=sealed.sealed_tokens).staged["path"].to_pylist() == [
        "before",
        "beside",
    ]


@pytest.mark.parametrize("bulk", [False, True])
def test_stagers_of_the_same_paths_do_not_deadlock(postgres_url, opened, bulk):
    catalog = opened(postgres_url)
    create(catalog)
    failures = []
    event.listen(catalog.database.engine, "handle_error", lambda context: failures.append(context.original_exception))

    def stage(writer):
        rows = [an_entry(f"{number:03}", str(writer)) for number in range(60)][:: 1 if writer % 2 else -1]
        for _ in range(5):
            catalog.staging.put_staged(REPO, "main", table_of(rows) if bulk else rows, started=catalog.now())

    assert many_at_once(4, stage) == [None] * 4
    assert failures == []
    left = catalog.staging.staged_page(REPO, "main")[1]
    assert len(left) == 60
    assert len({row.entry.physical_address for row in left}) == 1  # a call's rows are there all together


def test_duplicates_of_one_keyed_call_publish_once(catalog):
    put(catalog, an_entry("a"))
    state = seal(catalog)

    def publish(number):
        mine = draft(catalog, state, a_commit(f"try {number}", FIRST), key="k", fingerprint="f")
        return catalog.commits.publish(mine)

    (commit,) = {made.id for made in many_at_once(4, publish)}
    assert catalog.refs.branch(REPO, "main").commit_id == commit
    assert len(first_parents(catalog)) == 2


def test_of_parallel_creations_one_wins(catalog):
    def make(number):
        return catalog.refs.create_branch(REPO, "dev", FIRST.id, token=f"token-{number}", actor="ada")

    (made,) = [state for state in many_at_once(4, make) if not isinstance(state, AlreadyExists)]
    assert catalog.refs.branch(REPO, "dev") == made
    assert len(catalog.refs.reflog(REPO, "dev")) == 1


def test_the_same_commit_on_two_branches_at_once_is_inserted_once(catalog):
    same = a_commit("same", FIRST)
    names = ["b0", "b1", "b2", "b3"]
    for name in names:
        catalog.refs.create_branch(REPO, name, FIRST.id, token=new_token(), actor="ada")

    def publish(number):
        state = catalog.refs.branch(REPO, names[number])
        return catalog.commits.publish(draft(catalog, state, replace(same, meta_range_file=names[number])))

    assert len({made.meta_range_file for made in many_at_once(4, publish)}) == 1
    assert {catalog.refs.branch(REPO, name).commit_id for name in names} == {same.id}


def test_expiry_sees_all_or_nothing_of_what_runs_beside_it(catalog):
    """Branches are made at a commit while it is being expired: it ends as a live head, or nobody got it."""
    doomed = [commit_all(catalog, f"doomed {number}") for number in range(12)]
    commit_all(catalog, "head")

    def branch(number):
        try:
            catalog.refs.create_branch(REPO, f"b{number}", doomed[number].id, token=new_token(), actor="ada")
        except CommitExpired:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        made = pool.map(branch, range(12))
        marked = [pool.submit(expire_commits, catalog, REPO, [commit.id]) for commit in reversed(doomed)]
        expired = {commit_id for future in marked for commit_id in future.result()}
        for commit, won in zip(doomed, made, strict=True):
            assert won == (commit.id not in expired)
            assert catalog.commits.get(REPO, commit.id).expired != won


def test_expiry_is_not_starved_by_stagers(postgres_url, opened):
    catalog = opened(postgres_url)
    create(catalog)
    old = [commit_all(catalog, str(number)) for number in range(10)]

    def work(role):
        mine = open_catalog(postgres_url, clock=SystemClock())
        if role == "expire":
            return [len(expire_commits(mine, REPO, [commit.id])) for commit in old[:-1]]
        return [put(mine, an_entry(f"{role}/{number}")) and 1 for number in range(60)]

    expired, *_ = run_forked(work, ["expire", "one", "two", "three"])
    assert expired == [1] * 9
    assert len(catalog.staging.staged_page(REPO, "main")[1]) == 180


def test_a_branch_and_a_tag_of_one_name_are_not_made_at_once(catalog):
    both = Barrier(2, timeout=1)

    def inserted(_conn, _cursor, statement, *_rest):
        if statement.startswith(("INSERT INTO lakeops_branch ", "INSERT INTO lakeops_tag ")):
            with suppress(BrokenBarrierError):  # the other one waits for this transaction to end
                both.wait()

    def refused(make, *given, **options):
        try:
            make(REPO, "v1", FIRST.id, *given, actor="ada", **options)
        except AlreadyExists:
            return True
        return False

    event.listen(catalog.database.engine, "after_cursor_execute", inserted)
    with ThreadPoolExecutor(2) as pool:
        branch = pool.submit(refused, catalog.refs.create_branch, token=new_token())
        tag = pool.submit(refused, catalog.refs.create_tag)
        assert {branch.result(), tag.result()} == {True, False}
    assert len([*catalog.refs.branches(REPO), *catalog.refs.tags(REPO)]) == 2, "main and one of them"


def kill_at(work, url):
    """Run ``work(catalog, here)`` in a process that is killed, without warning, when it calls ``here``."""
    ours, theirs = CONTEXT.Pipe()

    def child():
        def here(*_args):
            theirs.send("here")
            signal.pause()

        work(open_catalog(url, clock=SystemClock()), here)
        theirs.send("past it")
        os._exit(1)

    process = CONTEXT.Process(target=child, daemon=True)
    process.start()
    theirs.close()
    assert ours.poll(60)
    assert ours.recv() == "here"
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def test_what_a_killed_commit_sealed_goes_into_the_next_one(catalog, database_url):
    put(catalog, an_entry("a"))

    def commit(mine, here):
        seal(mine)
        here()

    kill_at(commit, database_url)
    assert paths(catalog.staging.staged_page(REPO, "main")[1]) == ["a"]
    put(catalog, an_entry("b"))
    state = seal(catalog)
    rows = catalog.staging.staged_table(REPO, "main", tokens=state.sealed_tokens).staged
    assert rows["path"].to_pylist() == ["a", "b"]
    catalog.commits.publish(draft(catalog, state, a_commit("one", FIRST)))
    assert catalog.refs.branch(REPO, "main").sealed_tokens == ()
    assert catalog.staging.purge_retired(REPO) == 2


@pytest.mark.parametrize(
    "moment", ["INSERT INTO lakeops_commit", "UPDATE lakeops_branch", "INSERT INTO lakeops_reflog"]
)
def test_a_publish_killed_in_the_middle_never_happened(catalog, database_url, moment):
    put(catalog, an_entry("a"))
    state = seal(catalog)
    before = everything(catalog)

    def publish(mine, here):
        def stop(_conn, _cursor, statement, *_rest):
            if moment in statement:  # on a server, the reflog's is part of one with the audit's
                here()

        event.listen(mine.database.engine, "after_cursor_execute", stop)
        mine.commits.publish(draft(mine, state, a_commit("killed", FIRST), key="k"))

    kill_at(publish, database_url)
    assert everything(catalog) == before
    assert commit_all(catalog, "one", key="k").message == "one"


def test_a_killed_bulk_load_never_happened(catalog, database_url):
    from lakeops.model.arrow import STAGED_SCHEMA

    table = STAGED_SCHEMA.empty_table().from_pylist([{"path": "a", "tombstone": True}], STAGED_SCHEMA)
    before = everything(catalog)

    def load(mine, here):
        event.listen(mine.database.engine, "commit", here)
        mine.staging.put_staged(REPO, "main", table, started=mine.now())

    kill_at(load, database_url)
    assert everything(catalog) == before
    catalog.staging.put_staged(REPO, "main", table, started=catalog.now())
    assert paths(catalog.staging.staged_page(REPO, "main")[1]) == ["a"]
