from __future__ import annotations

from threading import Barrier, Thread

import pytest
from support.catalogs import FIRST, REPO, commit_all, create, everything

from lakeops.model.errors import CommitExpired, RefNotFound


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
    assert catalog.commits.history(REPO).mirrors == {}
    catalog.mirrors.report_mirror(REPO, "there", frozenset({FIRST.id, one.id}))
    catalog.mirrors.report_mirror(REPO, "elsewhere", frozenset())
    assert catalog.commits.history(REPO).mirrors == {"there": {FIRST.id, one.id}, "elsewhere": set()}
    catalog.mirrors.report_mirror(REPO, "there", frozenset({one.id}))
    assert catalog.commits.history(REPO).mirrors == {"there": {one.id}, "elsewhere": set()}
    create(catalog, "neighbour")
    assert catalog.commits.history("neighbour").mirrors == {}
    catalog.mirrors.drop_mirror(REPO, "there")
    catalog.mirrors.drop_mirror(REPO, "there")
    assert catalog.commits.history(REPO).mirrors == {"elsewhere": set()}


def test_what_a_mirror_needs_does_not_expire(catalog):
    one = commit_all(catalog, "one")
    two = commit_all(catalog, "two")
    catalog.mirrors.report_mirror(REPO, "there", frozenset({one.id}))
    assert catalog.retention.expire_commits(REPO, [FIRST.id, one.id, two.id]) == [FIRST.id]
    catalog.mirrors.report_mirror(REPO, "there", frozenset({two.id}))
    assert catalog.retention.expire_commits(REPO, lambda history: history.commits) == [one.id]


@pytest.mark.parametrize(("commit_id", "error"), [(FIRST.id, CommitExpired), ("f" * 64, RefNotFound)])
def test_a_report_of_a_commit_that_cannot_be_kept_is_refused(catalog, commit_id, error):
    one = commit_all(catalog, "one")
    catalog.mirrors.report_mirror(REPO, "there", frozenset({one.id}))
    catalog.retention.expire_commits(REPO, [FIRST.id])
    before = everything(catalog)
    with pytest.raises(error, match=commit_id):
        catalog.mirrors.report_mirror(REPO, "there", frozenset({one.id, commit_id}))
    assert everything(catalog) == before


def test_a_read_only_repository_takes_reports(catalog):
    catalog.repositories.set_read_only(REPO, True)
    catalog.mirrors.report_mirror(REPO, "there", frozenset({FIRST.id}))
    assert catalog.commits.history(REPO).mirrors == {"there": {FIRST.id}}
    catalog.mirrors.drop_mirror(REPO, "there")
    assert catalog.commits.history(REPO).mirrors == {}


def test_a_report_that_races_with_expiry_wins_or_is_refused(catalog, opened, database_url):
    """Never both: an accepted report of a commit that is expired."""
    other = opened(database_url)
    for number in range(12):
        old = catalog.commits.get(REPO, catalog.refs.branch(REPO, "main").commit_id)
        commit_all(catalog, f"c{number}")
        start = Barrier(2)
        refused = []

        def report(old=old, start=start, refused=refused):
            start.wait()
            try:
                other.mirrors.report_mirror(REPO, "there", frozenset({old.id}))
            except CommitExpired:
                refused.append(old.id)

        thread = Thread(target=report)
        thread.start()
        start.wait()
        marked = catalog.retention.expire_commits(REPO, [old.id])
        thread.join()
        kept = old.id in catalog.commits.history(REPO).mirrors.get("there", ())
        assert (marked, refused, kept) in (([old.id], [old.id], False), ([], [], True))
