"""Random changes of a clone and of its branches, beside a model of three maps: nothing is lost."""

import shutil
from contextlib import suppress
from dataclasses import dataclass, field

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.budget import examples
from support.scenes import tree

from lakeops.model.errors import MergeConflict, NoChanges

NAMES = ("a", "b", "d/e", "d/f")
BRANCHES = ("main", "dev")
TEXTS = ("1", "2", "33")

Files = dict[str, str]

changes = st.tuples(st.sampled_from(NAMES), st.sampled_from([None, *TEXTS]))
steps = st.one_of(
    st.tuples(st.just("here"), changes),
    st.tuples(st.just("here"), changes),
    st.tuples(st.sampled_from(BRANCHES), changes),
    st.tuples(st.just("pull"), st.booleans()),
    st.tuples(st.just("checkout"), st.tuples(st.sampled_from(BRANCHES), st.booleans())),
    st.tuples(st.just("commit"), st.none()),
)


@dataclass
class Model:
    """The expected state: of the directory, of the branches, and what the directory was last made equal to."""

    here: Files = field(default_factory=dict)
    known: Files = field(default_factory=dict)
    there: dict[str, Files] = field(default_factory=lambda: {name: {} for name in BRANCHES})
    branch: str = "main"

    def changed(self, side):
        return {name for name in NAMES if side.get(name) != self.known.get(name)}

    def conflicts(self, branch):
        there = self.there[branch]
        both = self.changed(self.here) & self.changed(there)
        return {name for name in both if self.here.get(name) != there.get(name)}

    def take(self, branch, *, force):
        if self.conflicts(branch) and not force:
            return False
        there = self.there[branch]
        for name in self.changed(there):
            put(self.here, name, there.get(name))
        self.known, self.branch = dict(there), branch
        return True

    def commit(self):
        """The conflicts; None when there is nothing to commit."""
        there = self.there[self.branch]
        changed = self.changed(self.here)
        if self.conflicts(self.branch):
            return self.conflicts(self.branch)
        new = {name for name in changed if self.here.get(name) != there.get(name)}
        for name in changed:
            put(self.known, name, self.here.get(name))
            put(there, name, self.here.get(name))
        return set() if new else None


def put(files, name, text):
    if text is None:
        files.pop(name, None)
    else:
        files[name] = text


def read(folder):
    return {name: (folder / name).read_text() for name in NAMES if (folder / name).exists()}


BOTH_CHANGED = [("here", ("a", "1")), ("main", ("a", "2")), ("here", ("d/e", "1")), ("main", ("d/e", "1"))]
REMOVED = [("main", ("a", "1")), ("main", ("b", "1")), ("pull", True), ("here", ("a", None)), ("main", ("a", "2"))]


@example(played=[*BOTH_CHANGED, ("pull", False), ("commit", None), ("pull", True)])
@example(played=[*REMOVED, ("here", ("b", "2")), ("main", ("b", None)), ("pull", False), ("checkout", ("dev", False))])
@example(played=[("here", ("a", "1")), ("main", ("b", "2")), ("commit", None), ("here", ("b", "1")), ("commit", None)])
@settings(max_examples=examples(10), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(played=st.lists(steps, max_size=14))
def test_a_clone_does_what_three_maps_do(lake, repo, tmp_path, played):
    folder, model = tmp_path / "clone", Model()
    shutil.rmtree(folder, ignore_errors=True)
    for name in BRANCHES:
        branch = repo.branch(name) if name == "main" else repo.create_branch(name, source="main")
        for path in tree(repo, name):
            branch.delete(path)
        with suppress(NoChanges):
            branch.commit("empty")
    repo.ref("main").clone(folder, "raw/")
    local = lake.local(folder)
    try:
        for kind, what in played:
            play(repo, local, folder, model, kind, what)
            assert read(folder) == model.here
            for name in BRANCHES:
                assert {path: data.decode() for path, data in tree(repo, name).items()} == {
                    f"raw/{path}": text for path, text in model.there[name].items()
                }
            status, there = local.status(), model.there[model.branch]
            agreed = {name for name in NAMES if model.here.get(name) == there.get(name)}
            assert {change.path for change in status.local} - agreed == model.changed(model.here) - agreed
            assert {change.path for change in status.remote} == model.changed(there) - (
                agreed & model.changed(model.here)
            )
            assert set(status.conflicts) == model.conflicts(model.branch)
    finally:
        repo.delete_branch("dev")


def play(repo, local, folder, model, kind, what):
    if kind == "here":
        name, text = what
        put(model.here, name, text)
        if text is None:
            (folder / name).unlink(missing_ok=True)
        else:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
    elif kind in BRANCHES:
        name, text = what
        branch = repo.branch(kind)
        if text is not None:
            branch.put(f"raw/{name}", text.encode())
        elif branch.exists(f"raw/{name}"):
            branch.delete(f"raw/{name}")
        with suppress(NoChanges):
            branch.commit("theirs")
        put(model.there[kind], name, text)
    elif kind == "commit":
        wanted = model.commit()
        try:
            local.commit("mine")
            assert wanted == set()
        except MergeConflict as refused:
            assert set(refused.conflicts) == wanted
        except NoChanges:
            assert wanted is None
    else:
        branch, force = (model.branch, what) if kind == "pull" else what
        before = model.conflicts(branch)
        try:
            local.pull(force=force) if kind == "pull" else local.checkout(branch, force=force)
            assert model.take(branch, force=force)
        except MergeConflict as refused:
            assert set(refused.conflicts) == before
            assert not model.take(branch, force=force)
