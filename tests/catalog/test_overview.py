"""What lists show of many repositories and commits, on both databases: in few statements, and never more than asked."""

from __future__ import annotations

import pytest
from support.catalogs import REPO, an_entry, commit_all, create, put, seal
from support.statements import ours, statements

from lakeops.model.errors import RepositoryNotFound
from lakeops.model.findings import ReportKind


def saying(catalog, *messages: str) -> list[str]:
    """Commits with these messages on main, oldest first."""
    return [commit_all(catalog, message).id for message in messages]


def test_an_overview_tells_of_each_repository_in_two_statements(empty) -> None:
    for name in ("one", "two", "three"):
        create(empty, name)
    for name in ("a", "b", "c"):
        empty.refs.create_branch("two", name, empty.refs.branch("two", "main").commit_id, token=name, actor="ada")
    empty.audit.add_report("two", ReportKind.CHECK, {"severities": {"error": 1}}, actor="ada")
    with statements(empty) as seen:
        found = empty.audit.overviews(["one", "two", "three", "gone"], most_branches=3)
    assert len(ours(seen)) == 2
    assert set(found) == {"one", "two", "three"}
    assert found["one"].head == empty.commits.get("one", empty.refs.branch("one", "main").commit_id)
    assert (found["one"].branches, found["two"].branches) == (1, 3), "no more than so many are counted"
    assert found["one"].last_check is None
    assert found["two"].last_check.found == {"severities": {"error": 1}}
    with statements(empty) as seen:
        assert empty.audit.overviews([], most_branches=3) == {}
    assert not seen


def test_messages_are_searched_page_by_page_and_each_commit_is_looked_at_once(catalog) -> None:
    made = saying(catalog, *(f"Load {number} of 100%" if number % 3 else "else" for number in range(10)))
    wanted = [made[number] for number in range(9, -1, -1) if number % 3]
    for looked_at, limit in ((100, 100), (100, 2), (3, 100), (4, 1), (1, 1)):
        found, below, pages = [], None, 0
        while True:
            with statements(catalog) as seen:
                page = catalog.audit.search_messages(REPO, "load", below=below, looked_at=looked_at, limit=limit)
            assert len(ours(seen)) <= 3
            found += [commit.id for commit in page.commits]
            pages += 1
            if page.next_below is None:
                break
            assert below is None or page.next_below < below
            below = page.next_below
        assert found == wanted, (looked_at, limit)
        assert pages <= 12


@pytest.mark.parametrize(("text", "count"), [("100%", 1), ("100_", 0), ("%", 1), ("ÄPFEL", 1), ("Ada", 3), ("'", 0)])
def test_what_is_searched_for_is_text(catalog, text: str, count: int) -> None:
    saying(catalog, "load 100% of it", "ÄPFEL")
    assert len(catalog.audit.search_messages(REPO, text, looked_at=100, limit=100).commits) == count


def test_a_search_needs_its_repository(catalog) -> None:
    with pytest.raises(RepositoryNotFound):
        catalog.audit.search_messages("nosuch", "x", looked_at=1, limit=1)


def test_staged_paths_are_counted_in_two_statements_at_most(catalog) -> None:
    put(catalog, an_entry("a"), an_entry("b"))
    seal(catalog)
    put(catalog, an_entry("b"), an_entry("c"))
    catalog.refs.create_branch(REPO, "idle", catalog.refs.branch(REPO, "main").commit_id, token="t", actor="ada")
    with statements(catalog) as seen:
        assert catalog.staging.staged_counts(REPO, ["main", "idle", "nosuch"], most=10) == {"main": 3}, "b is one path"
    assert len(ours(seen)) == 2
    with statements(catalog) as seen:
        assert catalog.staging.staged_counts(REPO, ["idle"], most=10) == {}
    assert len(ours(seen)) == 1
    put(catalog, an_entry("x"), an_entry("y"), branch="idle")
    assert catalog.staging.staged_counts(REPO, ["idle"], most=10) == {"idle": 2}
    assert catalog.staging.staged_counts(REPO, ["idle"], most=1) == {"idle": 1}
    assert catalog.staging.staged_counts(REPO, ["main"], most=2) == {"main": 2}, "no more are counted"
    assert catalog.staging.staged_counts(REPO, [], most=2) == {}
