"""Random histories of every verb against a model in plain dicts; every promise that it can express after every step."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from support.errors import raising
from support.machine import Model, ModelBranch, ModelCommit, difference, foretold, merged
from support.scenes import table
from support.soundness import assert_sound

from lakeops import Lake, Settings, Split
from lakeops.model import errors
from lakeops.model.errors import MergeConflict
from lakeops.testing import ManualClock

paths = st.sampled_from([f"{folder}{name}" for folder in ("", "a/", "b/") for name in "xyz_\U0001f600"])
texts = st.sampled_from(["", "1", "2", "3"])
numbers = st.integers(0, 2**32)


class History(RuleBasedStateMachine):
    """One repository. Contents are staged without being written: only their checksum matters here."""

    branches = Bundle("branches")
    tags = Bundle("tags")

    def __init__(self):
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="lakeops-machine-"))
        self.clock = ManualClock()
        self.settings = Settings.load(home=self.home, fsync=False, committer="machine")
        self.lake = Lake.open(settings=self.settings, clock=self.clock)
        self.repo = self.lake.create_repository("repo", split=Split(1, 2, 4))
        self.model = Model()
        self.counter = 0

    def teardown(self):
        try:
            assert_sound(self.repo)
        finally:
            self.lake.close()
            shutil.rmtree(self.home)

    @initialize(target=branches)
    def first(self):
        root = self.repo.ref("main").commit.id
        self.model.commits[root] = ModelCommit({}, ())
        self.model.branches["main"] = ModelBranch(root)
        return "main"

    # --- staging ---

    @rule(branch=branches, files=st.dictionaries(paths, texts, min_size=1, max_size=5))
    def stage(self, branch, files):
        self.counter += 1
        ordered = sorted(files)
        self.repo.branch(branch).stage(
            table(
                {path: f"data/{self.counter}/{path}" for path in ordered},
                checksum=[f"sum-{files[path]}" for path in ordered],
                size_bytes=[len(files[path]) for path in ordered],
            )
        )
        self.model.branches[branch].staged.update(files)

    @rule(branch=branches, path=paths)
    def delete(self, branch, path):
        if path in self.model.shown(branch):
            self.repo.branch(branch).delete(path)
            self.model.branches[branch].staged[path] = None
        else:
            with pytest.raises(errors.ObjectNotFound):
                self.repo.branch(branch).delete(path)

    @rule(branch=branches, prefix=st.sampled_from(["", "a/", "b"]))
    def delete_prefix(self, branch, prefix):
        gone = [path for path in self.model.shown(branch) if path.startswith(prefix)]
        assert self.repo.branch(branch).delete_prefix(prefix) == len(gone)
        self.model.branches[branch].staged.update(dict.fromkeys(gone))

    @rule(branch=branches, prefix=st.sampled_from([None, "a/", "b", "x"]), one=st.booleans())
    def reset(self, branch, prefix, one):
        staged = self.model.branches[branch].staged
        if prefix is None:
            self.repo.branch(branch).reset()
            staged.clear()
        elif one:
            self.repo.branch(branch).reset(path=prefix)
            staged.pop(prefix, None)
        else:
            self.repo.branch(branch).reset(prefix=prefix)
            for path in [path for path in staged if path.startswith(prefix)]:
                del staged[path]

    # --- history ---

    @rule(branch=branches, empty=st.booleans(), seconds=st.integers(0, 2))
    def commit(self, branch, empty, seconds):
        self.clock.advance(seconds=seconds)
        state = self.model.branches[branch]
        tree = self.model.shown(branch)
        if not self.model.changes(branch) and not empty:
            with pytest.raises(errors.NoChanges):
                self.repo.branch(branch).commit("nothing")
            state.staged.clear()
            return
        made = self.repo.branch(branch).commit(f"commit {self.counter}", allow_empty=empty)
        assert made.parents == (state.head,)
        self._moved(branch, made.id, tree, (state.head,))

    @rule(
        source=branches,
        destination=branches,
        steps=st.integers(0, 2),
        strategy=st.sampled_from([None, "source-wins", "dest-wins"]),
    )
    def merge(self, source, destination, steps, strategy):
        ours = self.model.first_parents(self.model.branches[source].head)
        theirs = ours[min(steps, len(ours) - 1)]
        ref = f"{source}~{min(steps, len(ours) - 1)}"
        head = self.model.branches[destination].head
        base = self.repo.merge_base(ref, destination).id
        assert base in self.model.best_common_ancestors({theirs}, {head})
        seen = self._seen(self.repo.compare(destination, ref, strategy=strategy))
        if theirs in self.model.ancestors(head):
            result = self.repo.merge(ref, destination, strategy=strategy)
            assert result.up_to_date
            assert result.reference is None
            assert seen == {}
            return
        trees = self.model.base({theirs}, {head}), self.model.tree(theirs), self.model.tree(head)
        tree, conflicts = merged(*trees, strategy)
        assert seen == foretold(trees[2], trees[1], tree, conflicts)
        if self.model.changes(destination):
            with raising("dirty_branch"):
                self.repo.merge(ref, destination, strategy=strategy)
            return
        if conflicts:
            with pytest.raises(MergeConflict) as caught:
                self.repo.merge(ref, destination, strategy=strategy)
            assert caught.value.conflicts == conflicts
            return
        result = self.repo.merge(ref, destination, strategy=strategy)
        kinds = list(difference(trees[2], tree).values())
        assert result.summary.to_json() == {kind: kinds.count(kind) for kind in ("added", "removed", "changed")}
        assert result.reference is not None
        self._moved(destination, result.reference, tree, (head, theirs))

    @rule(one=branches, other=branches)
    def cross(self, one, other):
        """Two branches take what the other one was, at once."""
        heads = {name: self.model.branches[name].head for name in (one, other)}
        for source, destination in ((one, other), (other, one)):
            head = self.model.branches[destination].head
            if self.model.changes(destination) or heads[source] in self.model.ancestors(head):
                continue
            base = self.model.base({heads[source]}, {head})
            tree, _ = merged(base, self.model.tree(heads[source]), self.model.tree(head), "dest-wins")
            made = self.repo.merge(heads[source], destination, strategy="dest-wins").reference
            assert made is not None
            self._moved(destination, made, tree, (head, heads[source]))

    @rule(branch=branches, number=numbers, revert=st.booleans(), parent=st.integers(1, 2))
    def pick(self, branch, number, revert, parent):
        chosen = sorted(self.model.commits)[number % len(self.model.commits)]
        parents = self.model.commits[chosen].parents
        handle = self.repo.branch(branch)

        def act():
            if revert:
                return handle.revert(chosen, parent_number=parent).id
            return self.repo.cherry_pick(chosen, branch, parent_number=parent).id

        def look():
            if revert:
                return handle.revert_changes(chosen, parent_number=parent)
            return self.repo.cherry_pick_changes(chosen, branch, parent_number=parent)

        for call in (act, look):
            if self.model.changes(branch):
                with raising("invalid_ref" if call is act and parent > len(parents) else "dirty_branch"):
                    call()
            elif parent > len(parents):
                with raising("invalid_ref"):
                    call()
        if parent > len(parents) or self.model.changes(branch):
            return
        head = self.model.branches[branch].head
        pair = [self.model.tree(chosen), self.model.tree(parents[parent - 1])]
        base, source = pair if revert else pair[::-1]
        tree, conflicts = merged(base, source, self.model.tree(head), None)
        assert self._seen(look()) == foretold(self.model.tree(head), source, tree, conflicts)
        if conflicts:
            with pytest.raises(MergeConflict) as caught:
                act()
            assert caught.value.conflicts == conflicts
        elif tree == self.model.tree(head):
            with pytest.raises(errors.NoChanges):
                act()
        else:
            self._moved(branch, act(), tree, (head,))

    def _moved(self, branch, commit_id, tree, parents):
        date = self.repo.ref(commit_id).commit.creation_date
        self.model.commits[commit_id] = ModelCommit(tree, parents, date)
        self.model.branches[branch] = ModelBranch(commit_id)

    def _seen(self, changes):
        """Path to what is said to happen there; each path once, in order."""
        listed = list(changes)
        paths = [change.path.encode() for change in listed]
        assert paths == sorted(set(paths))
        return {change.path: (change.type.value, change.size_bytes) for change in listed}

    # --- refs ---

    @rule(target=branches, source=branches, number=numbers)
    def branch(self, source, number):
        name = f"b{number % 5}"
        if name in self.model.branches:
            with pytest.raises(errors.AlreadyExists):
                self.repo.create_branch(name, source=source)
            return multiple()
        self.repo.create_branch(name, source=source)
        self.model.branches[name] = ModelBranch(self.model.branches[source].head)
        return name

    @rule(name=consumes(branches))
    def delete_branch(self, name):
        if name == "main":
            with raising("default_branch"):
                self.repo.delete_branch(name)
            self.repo.create_branch("spare", source="main")
            self.repo.delete_branch("spare")
            return
        if name in self.model.branches:
            self.repo.delete_branch(name)
            del self.model.branches[name]
        return

    @rule(target=branches)
    def main_again(self):
        return "main"

    @rule(source=branches, number=numbers)
    def tag(self, source, number):
        name = f"t{number % 3}"
        if name in self.model.tags:
            self.repo.delete_tag(name)
        self.repo.create_tag(name, source)
        self.model.tags[name] = self.model.branches[source].head

    @rule()
    def reopen(self):
        self.lake.close()
        self.lake = Lake.open(settings=self.settings, clock=self.clock)
        self.repo = self.lake.repository("repo")

    # --- promises ---

    @invariant()
    def refs_agree(self):
        assert {ref.id: ref.commit_id for ref in self.repo.branches()} == {
            name: state.head for name, state in self.model.branches.items()
        }
        assert {ref.id: ref.commit_id for ref in self.repo.tags()} == self.model.tags

    @invariant()
    def one_branch_agrees_wholly(self):
        names = sorted(self.model.branches)
        if not names:
            return
        name = names[self.counter % len(names)]
        self.counter += 1
        state = self.model.branches[name]
        assert self._tree(name) == self.model.shown(name)
        assert self._tree(f"{name}@") == self.model.tree(state.head)
        changes = {change.path: change.type.value for change in self.repo.branch(name).uncommitted()}
        assert changes == self.model.changes(name)
        chain = [commit.id for commit in self.repo.log(name, first_parent=True)]
        assert chain == self.model.first_parents(state.head)
        assert {commit.id for commit in self.repo.log(name)} == self.model.ancestors(state.head)
        other = sorted(self.model.commits)[self.counter % len(self.model.commits)]
        kinds = {change.path: change.type.value for change in self.repo.diff(other, state.head)}
        assert kinds == difference(self.model.tree(other), self.model.tree(state.head))

    def _tree(self, ref):
        table = self.repo.ref(ref).entries().read_all()
        sums = table["checksum"].to_pylist()
        return {path: text.removeprefix("sum-") for path, text in zip(table["path"].to_pylist(), sums, strict=True)}


def histories(examples, steps):
    wanted = settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(History, settings=wanted)


def test_histories():
    histories(8, 30)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_long_histories():
    histories(400, 60)
