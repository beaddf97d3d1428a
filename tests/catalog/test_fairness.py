"""Who asks for a lock gets it in turn, however many others come after."""

import heapq
import itertools
import multiprocessing
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import event
from support.at_once import many_at_once
from support.catalogs import REPO, an_entry, commit_all, create, expire_commits, new_token, put, seal, table_of
from support.forked import run_forked

from lakeops.catalog import guards, sqlite
from lakeops.catalog.open import open_catalog
from lakeops.model.clock import SystemClock

PROCESSES, THREADS = 2, 16
MOST_PUTS = 10
"""How many puts of one thread may be acknowledged while another one waits for a lock: those that had it, or were ahead,
and those that came before the request was in line. It looks who holds the lock first."""

EXCLUSIVE = {
    "protect": lambda c: c.refs.protect(REPO, "release-*"),
    "unprotect": lambda c: c.refs.unprotect(REPO, "release-*"),
    "rules": lambda c: c.retention.set_rules(REPO, None),
    "expire": lambda c: expire_commits(c, REPO, []),
    "seal": seal,
    "reset": lambda c: c.staging.reset(REPO, "main", path="0/0/1", actor="ada"),
    "commit": lambda c: commit_all(c, "commit"),
}
"""What needs a repository or a branch for itself; a commit does twice."""


def test_what_needs_a_lock_for_itself_waits_for_few_puts(postgres_url, opened):
    create(opened(postgres_url))
    context = multiprocessing.get_context("fork")
    stop, counts = context.Event(), context.Array("l", PROCESSES * THREADS)

    def keep_putting(process):
        catalog = open_catalog(postgres_url, clock=SystemClock())

        def loop(thread):
            number = 0
            while not stop.is_set():
                put(catalog, an_entry(f"{process}/{thread}/{number % 50}"))
                counts[process * THREADS + thread] += 1
                number += 1

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(loop, range(THREADS)))

    def need_it_alone():
        catalog = open_catalog(postgres_url, clock=SystemClock())
        waits: list[tuple[str, int]] = []
        before: list[int] = []
        asking: list[str] = []

        def asked(_conn, _cursor, statement, *_rest):
            if ", true) AS here" in statement:
                before[:] = counts[:]

        def answered(_conn, _cursor, statement, *_rest):
            if ", true) AS here" in statement:
                waits.append((asking[-1], max(now - then for now, then in zip(counts[:], before, strict=True))))

        event.listen(catalog.database.engine, "before_cursor_execute", asked)
        event.listen(catalog.database.engine, "after_cursor_execute", answered)
        try:
            while not all(counts[:]):  # until everybody is under way
                catalog.now()
            for name, transition in EXCLUSIVE.items():
                asking.append(name)
                transition(catalog)
        finally:
            stop.set()
        return waits

    waits, *_ = run_forked(
        lambda role: need_it_alone() if role is None else keep_putting(role), [None, *range(PROCESSES)], seconds=200
    )
    assert [name for name, _ in waits] == [*EXCLUSIVE, "commit"]
    assert max(most for _, most in waits) <= MOST_PUTS, waits


def test_two_that_share_a_fair_lock_only_wait_for_each_other(postgres_url, opened, monkeypatch):
    """Keys are digests, and may be equal: no deadlock comes of it, whatever the repositories and branches."""
    monkeypatch.setattr(guards, "fair_lock_key", lambda _repository, branch=None: 2 + (branch is not None))
    catalog = opened(postgres_url)
    repositories = ["one", "two"]
    for name in repositories:
        create(catalog, name)
        head = catalog.refs.branch(name, "main").commit_id
        catalog.refs.create_branch(name, "dev", head, token=new_token(), actor="ada")
    failures = []
    event.listen(catalog.database.engine, "handle_error", lambda context: failures.append(context.original_exception))

    def work(number):
        name, branch = repositories[number % 2], ["main", "dev"][number // 2 % 2]
        for turn in range(6):
            rows = [an_entry(f"{number}/{turn}")]
            catalog.staging.put_staged(name, branch, table_of(rows) if turn % 2 else rows, started=catalog.now())
            catalog.staging.seal(name, branch, token=new_token())
            if turn % 3 == 0:
                catalog.refs.protect(name, f"p{number}")
            catalog.staging.purge_retired(name)

    assert many_at_once(8, work) == [None] * 8
    assert failures == []


WRITERS, WRITES = 8, 3000
MOST_OVERTAKING = 100
"""How many writes of others may come between the beginning and the end of one."""


class OneAtATime:
    """Threads of which one runs, by a clock that goes on only while all wait: whatever else the machine does."""

    def __init__(self):
        self.now = 0.0
        self._waiting: list[tuple[float, int, threading.Event]] = []
        self._order = itertools.count()

    def enqueue(self, seconds):
        mine = threading.Event()
        heapq.heappush(self._waiting, (self.now + seconds, next(self._order), mine))
        return mine

    def pause(self, seconds):
        mine = self.enqueue(seconds)
        self.go_on()
        mine.wait()

    def go_on(self):
        if self._waiting:
            self.now, _, following = heapq.heappop(self._waiting)
            following.set()

    def stopwatch(self):
        begun = self.now
        return lambda: self.now - begun


def most_overtaken(database):
    turns, drawn, written, most = OneAtATime(), random.Random(7), 0, 0

    def keep_writing(beginning):
        nonlocal written, most
        beginning.wait()
        while written < WRITES:
            before = written
            database.write(lambda _conn: turns.pause(drawn.uniform(0.0005, 0.0015)))
            most, written = max(most, written - before), written + 1
            turns.pause(drawn.uniform(0, 0.001))
        turns.go_on()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite, "pause", turns.pause)
        patch.setattr(sqlite, "stopwatch", turns.stopwatch)
        starts = [turns.enqueue(drawn.random() / 1000) for _ in range(WRITERS)]
        threads = [threading.Thread(target=keep_writing, args=(start,), daemon=True) for start in starts]
        for thread in threads:
            thread.start()
        turns.go_on()
        for thread in threads:
            thread.join(60)
    assert written >= WRITES
    return most


def test_no_sqlite_writer_waits_for_long(sqlite_url, opened, monkeypatch):
    database = opened(sqlite_url).database
    assert most_overtaken(database) <= MOST_OVERTAKING
    monkeypatch.setattr(sqlite, "AGING", 1e9)  # a wait that asks no more often the longer it takes
    assert most_overtaken(database) > MOST_OVERTAKING


def test_keys_of_fair_locks_are_the_same_everywhere():
    """Processes of all versions and machines must agree on them."""
    assert guards.fair_lock_key("repo") == 512462726528004184
    assert guards.fair_lock_key("repo", "main") == 2963367276802969069
    keys = [
        guards.fair_lock_key("repo"),
        guards.fair_lock_key("repo2"),
        *(guards.fair_lock_key("repo", name) for name in "abc"),
    ]
    assert len(set(keys)) == 5
    assert [key & 1 for key in keys] == [0, 0, 1, 1, 1]
    assert all(-(2**63) <= key < 2**63 for key in keys)
