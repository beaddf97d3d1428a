"""A COMMIT whose answer is lost: each verb tells what it has done, also when the database is asked too early."""

import sqlite3
from itertools import count

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from lakeops.catalog.database import Database, TransactionFailure
from lakeops.catalog.sqlite import Sqlite

VERBS = {
    "create a repository": lambda lake, repo: lake.create_repository("other").id,
    "create a branch": lambda lake, repo: repo.create_branch("new").id,
    "create a tag": lambda lake, repo: repo.create_tag("v2", "dev").id,
    "move a tag": lambda lake, repo: repo.move_tag("v1", "dev", old=repo.tag("v1").commit_id).commit_id,
    "move a branch": lambda lake, repo: repo.branch("main").move("dev").commit_id,
    "commit": lambda lake, repo: repo.branch("staged").commit("b").id,
    "merge": lambda lake, repo: repo.merge("dev", "main").reference,
    "squash": lambda lake, repo: repo.merge("dev", "main", squash=True).reference,
    "revert": lambda lake, repo: repo.branch("main").revert("main").id,
    "cherry-pick": lambda lake, repo: repo.cherry_pick("dev", "main").id,
}


class LostError(sqlite3.OperationalError):
    """The connection broke at COMMIT, which the server has done all the same."""


@pytest.fixture(params=["asked afterwards", "asked too early"])
def lose_answers(request, monkeypatch):
    """Lets every other COMMIT lose its answer. Asked too early, the database does not know of it yet."""
    commit, read, failure_of, commits, early = Connection.commit, Database.read, Sqlite.failure_of, count(), []

    def lose(conn):
        commit(conn)
        if next(commits) % 2 == 0:
            early.extend(["ask"] if request.param == "asked too early" else [])
            raise OperationalError("COMMIT", {}, LostError("lost"))

    def failed(self, error):
        return TransactionFailure.LOST if isinstance(error, LostError) else failure_of(self, error)

    def start():
        monkeypatch.setattr(Connection, "commit", lose)
        monkeypatch.setattr(Sqlite, "failure_of", failed)
        monkeypatch.setattr(Database, "read", lambda self, work: None if early and early.pop() else read(self, work))

    return start


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_tells_what_it_did(lake, repo, fill, lose_answers, verb):
    fill(repo, "main", a="1")
    repo.create_branch("dev")
    repo.create_tag("v1", "main")
    fill(repo, "dev", a="2")
    repo.create_branch("staged").put("b", b"1")
    before = len(repo.reflog())
    lose_answers()
    assert VERBS[verb](lake, repo)
    assert len(repo.reflog()) == before + (verb != "create a repository")
