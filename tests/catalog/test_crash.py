from __future__ import annotations

import os
import signal

import pytest
from sqlalchemy import event
from support.catalogs import FIRST, REPO, a_commit, an_entry, commit_all, draft, everything, paths, put, seal
from support.forked import CONTEXT

from lakeops.catalog.open import open_catalog
from lakeops.model.clock import SystemClock


def kill_at(work, url) -> None:
    """Run ``work(catalog, here)`` in a process that is killed, without warning, when it calls ``here``."""
    ours, theirs = CONTEXT.Pipe()

    def child() -> None:
        def here(*_args) -> None:
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
    assert paths(catalog.staging.staged_page(REPO, "main").rows) == ["a"]
    put(catalog, an_entry("b"))
    state = seal(catalog)
    _, rows = catalog.staging.staged_table(REPO, "main", tokens=state.sealed_tokens)
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
    assert paths(catalog.staging.staged_page(REPO, "main").rows) == ["a"]
