"""Reading ahead: few statements for long walks, few commits for short ones."""

import itertools

import pytest
from support.graphs import History, make_history, merge_base

from lakeops.model import graph
from lakeops.model.errors import RefNotFound
from lakeops.model.graph import ReadAhead, log


class Statements:
    """Loads runs from a history, and writes down how long each was."""

    def __init__(self, commits):
        self.history = History(commits)
        self.runs: list[int] = []

    def load(self, commit_id, limit):
        self.runs.append(limit)
        return list(itertools.islice(log(self.history, commit_id, first_parent=True), limit))


@pytest.fixture(scope="module")
def line():
    return make_history([(), *((index,) for index in range(9999))])


def test_a_long_walk_takes_few_statements(line):
    statements = Statements(line)
    assert list(log(ReadAhead(statements.load), line[-1].id, first_parent=True)) == line[::-1]
    assert statements.runs[:4] == [1, 2, 4, 8]
    assert max(statements.runs) == 1024
    assert len(statements.runs) < 22


def test_one_commit_takes_one_row(line):
    statements = Statements(line)
    source = ReadAhead(statements.load)
    assert source(line[5].id) is source(line[5].id) is line[5]
    assert statements.runs == [1]


def test_a_walk_whose_length_is_known_takes_one_statement(line):
    statements = Statements(line)
    walk = log(ReadAhead(statements.load, 1000), line[-1].id, first_parent=True)
    assert list(itertools.islice(walk, 1000)) == line[::-1][:1000]
    assert statements.runs == [1000]
    for ahead, first in ((0, 1), (10**9, 1024)):
        ReadAhead(statements.load, ahead)(line[-1].id)
        assert statements.runs[-1] == first


def test_two_diverged_branches(line):
    commits = make_history([(), *((index,) for index in range(500)), (0,), *((index,) for index in range(501, 1000))])
    statements = Statements(commits)
    assert merge_base(ReadAhead(statements.load), commits[500].id, commits[-1].id) == commits[0].id
    assert len(statements.runs) < 14


def test_merges_of_short_branches_load_little_more_than_is_asked_for():
    parents: list[tuple[int, ...]] = [(), *((index,) for index in range(1000))]
    for _ in range(20):  # each a branch of one commit, merged
        head = len(parents) - 1
        parents += [(head,), (head, head + 1), *((head + 2 + index,) for index in range(3))]
    commits = make_history(parents)
    statements = Statements(commits)
    asked = list(itertools.islice(log(ReadAhead(statements.load, 100), commits[-1].id), 100))
    assert len(asked) == 100
    assert sum(statements.runs) < 4 * len(asked)


def test_a_missing_commit_is_not_found(line):
    with pytest.raises(RefNotFound):
        ReadAhead(Statements(line).load)("nothing")


def test_what_is_kept_is_bounded(line, monkeypatch):
    monkeypatch.setattr(graph, "MOST_KEPT", 100)
    monkeypatch.setattr(graph, "LONGEST_RUN", 64)
    statements = Statements(line)
    source = ReadAhead(statements.load)
    assert list(log(source, line[-1].id, first_parent=True)) == line[::-1]
    assert len(source._kept) < 200
    assert source(line[-1].id) == line[-1]


def test_branches_that_were_merged_one_after_the_other_come_together():
    """The merge base of a branch that many others were merged into: a statement for each would be a round trip each."""
    parents: list[tuple[int, ...]] = [()]
    parents += [(0,)] * 100  # a branch of one commit each
    for number in range(99):
        parents.append((len(parents) - 1 if number else 0, 1 + number))
    commits = make_history(parents)
    by_id = {commit.id: commit for commit in commits}
    statements, asked = Statements(commits), list[int]()

    def some(ids):
        asked.append(len(ids))
        return [by_id[one] for one in ids]

    source = ReadAhead(statements.load, load_some=some)
    assert merge_base(source, commits[-1].id, commits[100].id) == commits[0].id
    assert asked[0] <= graph.FIRST_SIDES
    assert sum(asked) == 99
    assert len(asked) + len(statements.runs) < 16
