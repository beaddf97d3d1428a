"""Merges over several merge bases: what they rest on, where they work, and what they leave behind."""

import pickle
import tempfile
from pathlib import Path

import pytest
from support.catalogs import expire_commits
from support.rows import Groups
from support.scenes import SPLIT, fill_paths, open_faulty, tree
from support.soundness import assert_sound

from lakeops import Settings
from lakeops.model.errors import CommitExpired, MergeConflict
from lakeops.ops import ancestor
from lakeops.store.local import LocalStore
from lakeops.testing import ManualClock

PATHS = [f"p{number:02}" for number in range(40)]


@pytest.fixture
def repo(tmp_path, faults):
    settings = Settings.load(home=tmp_path / "home", fsync=False, committer="tester")
    with open_faulty(settings, faults, clock=ManualClock()) as lake:
        yield lake.create_repository("repo", split=SPLIT)


def cross(repo, strategy="dest-wins"):
    """Both branches take what the other one was; returns what they were: the merge bases from then on."""
    heads = {name: repo.branch(name).commit_id for name in ("main", "dev")}
    repo.merge(heads["dev"], "main", strategy=strategy)
    repo.merge(heads["main"], "dev", strategy=strategy)
    return set(heads.values())


@pytest.fixture
def bases(repo):
    """``main`` has taken back p30, which came from ``dev``; ``dev`` has gone on."""
    fill_paths(repo, "main", dict.fromkeys(PATHS, "0"))
    repo.create_branch("dev")
    fill_paths(repo, "main", {"p05": "1"})
    fill_paths(repo, "dev", {"p30": "1", "p31": "1"})
    bases = cross(repo)
    fill_paths(repo, "main", {"p30": "0"})
    fill_paths(repo, "dev", {"p20": "1"})
    return bases


def test_all_bases_must_be_live_when_the_merge_is_published(repo, bases, faults):
    head = repo.branch("main").commit_id
    asked: list[frozenset[str]] = []
    publish = repo._ctx.catalog.commits.publish

    def noted(request):
        asked.append(request.live)
        expire_commits(repo._ctx.catalog, "repo", [min(bases)])
        return publish(request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repo._ctx.catalog.commits, "publish", noted, raising=False)
        with pytest.raises(CommitExpired):
            repo.merge("dev", "main")
    assert repo.branch("main").commit_id == head
    (live,) = asked
    assert live >= bases | {head, repo.branch("dev").commit_id}


def test_a_base_that_has_expired_is_said_to_be(repo, bases):
    for base in bases:
        expire_commits(repo._ctx.catalog, "repo", [base])
    for act in (lambda: list(repo.compare("main", "dev")), lambda: repo.merge("dev", "main")):
        with pytest.raises(CommitExpired):
            act()


def test_foretelling_writes_nothing_to_the_namespace(repo, bases, faults, tmp_path, monkeypatch):
    machine = tmp_path / "machine"
    machine.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(machine))
    repo.set_read_only()
    faults.fail("put", at=None)
    changes = repo.compare("main", "dev")
    assert [(change.type.value, change.path) for change in changes] == [("changed", "p20")]
    del changes
    assert list(machine.iterdir()) == []


class Cluster(Groups):
    """Work that leaves the process: tasks travel, and the namespace is opened again where they arrive."""

    def __init__(self, repo):
        super().__init__(1)
        self.ran = 0
        self._namespace = Path(repo.storage_namespace.removeprefix("file://"))

    @property
    def in_process(self):
        return False

    def perform(self, work, tasks, store):
        for task, number in tasks:
            self.ran += 1
            yield number, work(pickle.loads(pickle.dumps(task)), LocalStore(self._namespace, fsync=False))


def test_ids_are_the_same_on_any_engine(repo, bases):
    fill_paths(repo, "main", {"p21": "1"})  # beside what dev brings, so that a range is written
    repo.create_branch("here", source="main")
    repo.merge("dev", "here")
    cluster = Cluster(repo)
    repo._ctx.__dict__["engine"] = lambda: cluster
    repo.merge("dev", "main")
    assert cluster.ran
    assert repo.ref("main").commit.meta_range_id == repo.ref("here").commit.meta_range_id
    assert tree(repo, "main") == {**dict.fromkeys(PATHS, b"0"), "p05": b"1", "p20": b"1", "p21": b"1", "p31": b"1"}
    assert_sound(repo)


def twice(repo):
    """A criss-cross over a criss-cross: both levels matter at p10, the upper one at p20."""
    fill_paths(repo, "main", dict.fromkeys(PATHS, "0"))
    repo.create_branch("dev")
    fill_paths(repo, "main", {"p10": "1"})
    fill_paths(repo, "dev", {"p30": "1"})
    below = cross(repo)
    fill_paths(repo, "dev", {"p10": "2", "p20": "1"})
    fill_paths(repo, "main", {"p05": "1"})
    cross(repo)
    fill_paths(repo, "main", {"p10": "3"})
    fill_paths(repo, "dev", {"p25": "1"})
    return below


@pytest.fixture
def deepest(monkeypatch):
    return lambda levels: monkeypatch.setattr(ancestor, "DEEPEST", levels)


def test_levels_below_are_looked_at_as_far_as_they_matter(repo, deepest):
    below = twice(repo)
    assert len(below) == 2
    known = [(change.type.value, change.path) for change in repo.compare("main", "dev")]
    assert known == [("changed", "p25")], "dev's p10 is the base's, and main went on from it"
    deepest(0)
    unknown = [(change.type.value, change.path) for change in repo.compare("main", "dev")]
    assert unknown == [("conflict", "p10"), ("changed", "p25")]


def test_a_level_that_expired_makes_conflicts_and_no_other_result(repo):
    below = twice(repo)
    assert set(expire_commits(repo._ctx.catalog, "repo", below)) == below
    with pytest.raises(MergeConflict) as caught:
        repo.merge("dev", "main")
    assert caught.value.conflicts == ["p10"]
    repo.merge("dev", "main", strategy="dest-wins")
    after = tree(repo, "main")
    assert {path: text for path, text in after.items() if text != b"0"} == {
        "p05": b"1",
        "p10": b"3",
        "p20": b"1",
        "p25": b"1",
        "p30": b"1",
    }


LEVELS = 5
"""Enough for work that doubles with each level to go beyond the bound."""


def test_the_work_grows_with_the_levels_and_no_faster(repo, monkeypatch):
    """Three branches that take each other's changes in step, and all change one path every time."""
    names, merges = ("main", "b", "c"), []
    fill_paths(repo, "main", dict.fromkeys(PATHS, "0"))
    for name in names[1:]:
        repo.create_branch(name)
    for step in range(LEVELS):
        for name in names:
            fill_paths(repo, name, {"p10": f"{name} {step}", "p20": f"{step}"})
        heads = {name: repo.branch(name).commit_id for name in names}
        for name in names:
            for other in names:
                if other != name:
                    repo.merge(heads[other], name, strategy="dest-wins")
    for name in names:
        fill_paths(repo, name, {"p10": f"{name} at last"})
    merged_base = ancestor.merged_base
    monkeypatch.setattr(ancestor, "merged_base", lambda *args, **kw: merges.append(1) or merged_base(*args, **kw))
    assert [change.path for change in repo.compare("main", "b")] == ["p10"]
    assert LEVELS < len(merges) <= LEVELS * 6
