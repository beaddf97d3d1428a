"""The staging area against a model of plain dicts: tokens newest first, reset, seal, publish, discard, purge."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.budget import examples
from support.catalogs import FIRST, REPO, a_commit, an_entry, create, draft, gone, new_token, put

from lakeops.catalog.open import open_catalog
from lakeops.model.errors import BranchMoved
from lakeops.testing import ManualClock

PATH = st.sampled_from(["a", "a/", "a/b", "a/b/c", "aé", "b", "Z", "é", "😀", "\uff5a"])
PREFIX = st.sampled_from(["", "a", "a/", "a/b", "é", "zz"])
ROW = st.tuples(PATH, st.none() | st.sampled_from("123"))


class StagingMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="lakeops-machine-"))
        self.catalog = open_catalog(f"sqlite:///{self.home}/catalog.db", clock=ManualClock())
        create(self.catalog)
        self.tokens: list[dict[str, str | None]] = [{}]  # newest first; the first one is active
        self.retired: list[dict[str, str | None]] = []
        self.head = FIRST
        self.resets = 0
        self.sealed_resets = 0
        self.plan = None  # what a commit in flight saw: its draft, how many tokens it takes, sealed_resets

    def teardown(self) -> None:
        self.catalog.close()
        shutil.rmtree(self.home)

    @rule(rows=st.lists(ROW, max_size=4))
    def stage(self, rows):
        self.tokens[0].update(rows)
        staged = [gone(path) if text is None else an_entry(path, text) for path, text in rows]
        put(self.catalog, *staged)

    @rule()
    def seal_and_plan(self):
        if self.tokens[0]:
            self.tokens.insert(0, {})
        state = self.catalog.staging.seal(REPO, "main", token=new_token()).state
        commit = a_commit(new_token(), self.head)
        self.plan = (draft(self.catalog, state, commit), [id(token) for token in self.tokens[1:]], self.sealed_resets)

    @precondition(lambda self: self.plan)
    @rule()
    def publish(self):
        publish, taken, sealed_resets = self.plan
        stay = len(self.tokens) - len(taken)
        fits = (
            publish.expected_head == self.head.id
            and sealed_resets == self.sealed_resets
            and [id(token) for token in self.tokens[max(stay, 1) :]] == taken
        )
        if fits:
            self.catalog.commits.publish(publish)
            self.retired += self.tokens[stay:]
            self.tokens = self.tokens[:stay]
            self.head = publish.commit
        else:
            with pytest.raises(BranchMoved):
                self.catalog.commits.publish(publish)

    @precondition(lambda self: len(self.tokens) > 1)
    @rule(data=st.data())
    def discard(self, data):
        count = data.draw(st.integers(1, len(self.tokens) - 1))
        state = self.catalog.refs.branch(REPO, "main")
        self.catalog.staging.discard(state, state.sealed_tokens[-count:])
        self.retired += self.tokens[-count:]
        self.tokens = self.tokens[:-count]

    @rule(prefix=PREFIX)
    def reset_prefix(self, prefix):
        self.reset(lambda path: path.startswith(prefix), prefix=prefix)

    @rule(path=PATH)
    def reset_path(self, path):
        self.reset(lambda other: other == path, path=path)

    def reset(self, chosen, **where):
        dropped = {path for token in self.tokens for path in token if chosen(path)}
        assert self.catalog.staging.reset(REPO, "main", actor="ada", **where) == len(dropped)
        self.sealed_resets += any(path in token for token in self.tokens[1:] for path in dropped)
        self.resets += bool(dropped)
        for token in self.tokens:
            for path in dropped:
                token.pop(path, None)

    @rule()
    def purge(self):
        assert self.catalog.staging.purge_retired(REPO) == sum(map(len, self.retired))
        self.retired = []

    @rule(prefix=PREFIX, after=PATH | st.just(""), limit=st.integers(1, 4))
    def read_a_page(self, prefix, after, limit):
        expected = [row for row in self.shown() if row[0].startswith(prefix) and row[0] > after]
        found = self.catalog.staging.staged_page(REPO, "main", prefix=prefix, after=after, limit=limit).rows
        assert [self.plain(row) for row in found] == expected[:limit]

    @rule(path=PATH)
    def read_one(self, path):
        row = self.catalog.staging.staged_one(REPO, "main", path)[1]
        assert (row and self.plain(row)) == {each[0]: each for each in self.shown()}.get(path)

    @invariant()
    def everything_agrees(self):
        state = self.catalog.refs.branch(REPO, "main")
        assert (state.commit_id, state.resets) == (self.head.id, self.resets)
        assert state.sealed_resets == self.sealed_resets
        assert len(state.tokens) == len(self.tokens)
        assert [self.plain(row) for row in self.catalog.staging.staged_page(REPO, "main").rows] == self.shown()
        assert self.catalog.staging.has_staged(REPO, "main") == any(self.tokens)
        table = self.catalog.staging.staged_table(REPO, "main").staged.select(["path", "tombstone"])
        assert table.to_pylist() == [{"path": path, "tombstone": text is None} for path, text in self.shown()]

    def shown(self) -> list[tuple[str, str | None]]:
        laid: dict[str, str | None] = {}
        for token in reversed(self.tokens):
            laid.update(token)
        return sorted(laid.items(), key=lambda row: row[0].encode())

    @staticmethod
    def plain(row) -> tuple[str, str | None]:
        return (row.path, row.entry and row.entry.physical_address.rpartition("/")[2])


TestStaging = StagingMachine.TestCase
TestStaging.settings = settings(max_examples=examples(10), stateful_step_count=30, deadline=None)
