"""A mirror whose catalog was restored from a backup notices that its source knows better, and starts over."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from support.mirrors import Pair, check_whole, open_lake

from lakeops.testing import ManualClock


def copied(database: Path, copy: Path) -> None:
    """A consistent copy of a catalog, as a backup tool makes it."""
    with sqlite3.connect(database) as source, sqlite3.connect(copy) as target:
        source.backup(target)
    source.close()
    target.close()


def test_a_restored_mirror_catches_up_under_a_name_of_its_own(pair: Pair, tmp_path: Path, clock: ManualClock) -> None:
    database, backup = tmp_path / "there" / "catalog.db", tmp_path / "backup.db"
    pair.commit(a="1")
    pair.catch_up()
    copied(database, backup)
    before = pair.mirror.configuration
    for number in range(5):
        pair.commit(a=str(number), b=str(number))
        pair.catch_up()
    pair.there.close()
    copied(backup, database)
    pair.commit(a="new")
    pair.replicator.settle()
    pair.there = open_lake(tmp_path / "there", clock, pair.faults)
    pair.mirror = pair.there.mirror("flights")
    assert pair.mirror.configuration == before
    status = pair.mirror.sync()
    assert status.caught_up
    check_whole(pair)
    after = pair.mirror.configuration
    assert after.registration != before.registration
    known = {one.id: one for one in pair.repo.registrations()}
    assert known.keys() == {before.registration, after.registration}, "another copy may rely on the old one"
    assert pair.head() in known[after.registration].commits
    pair.commit(a="newer")
    assert pair.catch_up().caught_up
    assert pair.mirror.configuration.registration == after.registration


def test_two_copies_of_a_catalog_come_to_have_a_name_each(pair: Pair, tmp_path: Path, clock: ManualClock) -> None:
    """A copy of the catalog, as for a drill: each shows what its source keeps for it, whoever reports first."""
    pair.commit(a="1")
    pair.catch_up()
    (tmp_path / "copy").mkdir()
    copied(tmp_path / "there" / "catalog.db", tmp_path / "copy" / "catalog.db")
    with open_lake(tmp_path / "copy", clock) as drill:
        other = drill.mirror("flights")
        for number in range(4):
            pair.commit(a=str(number))
            pair.replicator.settle()
            for mirror in (other, pair.mirror, pair.mirror) if number % 2 else (pair.mirror, other, other, other):
                mirror.sync(pair.here)
        names = {mirror.configuration.registration for mirror in (other, pair.mirror)}
        assert len(names) == 2
        kept = {one.id: one.commits for one in pair.repo.registrations()}
        for mirror in (other, pair.mirror):
            assert mirror.branch("main").commit_id in kept[mirror.configuration.registration]
