"""A call on a clone is killed at any of its effects: the directory stays understood, and the call can be run again."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from support.killed_local import run
from support.scenes import tree

from lakeops.model.errors import NoChanges

OLD = {"a": "one", "deep/b": "two", "same": "same", "old": "old"}
NEW = {"a": "ONE", "same": "same", "deeper/c": "three", "new": "new"}
STEPS = 3
"""How many places of each call are tried; the slow form tries all."""


def files(folder: Path) -> dict[str, str]:
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_text() for name, path in found.items() if not name.startswith(".lakeops-local")}


@pytest.fixture
def scene(repo, fill, tmp_path):
    """A clone of the old files at ``main``, which has the new ones by now, as ``dev`` has."""
    fill(repo, "main", **{f"raw/{name}": text for name, text in OLD.items()})
    repo.ref("main").clone(tmp_path / "old", "raw")
    repo.create_branch("dev", source="main")
    for branch in ("main", "dev"):
        fill(
            repo, branch, **{f"raw/{name}": NEW.get(name) for name in {**OLD, **NEW} if OLD.get(name) != NEW.get(name)}
        )
    return repo


def places(count: int, every: bool) -> list[int]:
    return (
        sorted({1 + number * (count - 1) // (STEPS - 1) for number in range(STEPS)})
        if not every
        else [*range(1, count + 1)]
    )


def again(lake, folder: Path, verb: str) -> None:
    """The same call as ``run`` makes, in this process, to its end."""
    if verb == "clone":
        lake.repository("repo").ref("main").clone(folder, "raw")
    elif verb == "checkout":
        lake.local(folder).checkout("dev")
    else:
        lake.local(folder).pull()


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("verb", ["clone", "pull", "checkout"])
def test_files_are_taken_whatever_was_killed(lake, scene, settings, tmp_path, verb, every):
    def fresh(name: str) -> Path:
        folder = tmp_path / name
        if verb != "clone":
            shutil.copytree(tmp_path / "old", folder, copy_function=shutil.copy2)
            (folder / "mine").write_text("mine")
        return folder

    mine = {} if verb == "clone" else {"mine": "mine"}
    code, count = run(settings.home, fresh("whole"), verb, 0)
    assert (code, files(tmp_path / "whole")) == (0, NEW | mine)
    for at in places(count, every):
        folder = fresh(f"killed{at}")
        assert run(settings.home, folder, verb, at)[0] == -9
        now = files(folder) if folder.exists() else {}
        assert all(text in {OLD.get(name), NEW.get(name), mine.get(name)} for name, text in now.items()), (at, now)
        assert {name: now.get(name) for name in mine} == mine
        if (folder / ".lakeops-local/index.json").exists():
            status = lake.local(folder).status()
            assert ([change.path for change in status.local], status.conflicts) == ([*mine], []), at
        again(lake, folder, verb)
        assert files(folder) == NEW | mine
        assert sorted(path.name for path in (folder / ".lakeops-local").iterdir()) == ["index.json", "lock"]
        status = lake.local(folder).status()
        assert ([change.path for change in status.local], status.remote, status.interrupted) == ([*mine], (), None)


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_commit_is_published_once_whatever_was_killed(lake, scene, settings, tmp_path, every):
    def fresh(branch: str) -> Path:
        scene.create_branch(branch, source="main")
        folder = tmp_path / branch
        scene.ref(branch).clone(folder, "raw")
        (folder / "a").write_text("mine")
        (folder / "new").unlink()
        return folder

    code, count = run(settings.home, fresh("whole"), "commit", 0)
    assert code == 0
    for at in places(count, every):
        branch = f"killed{at}"
        folder = fresh(branch)
        code, effects = run(settings.home, folder, "commit", at)
        assert code == -9 or effects < at, "a busy machine takes one effect more or less"
        lake.local(folder).status()
        with suppress(NoChanges):
            lake.local(folder).commit("mine")
        assert tree(scene, branch)["raw/a"] == b"mine"
        assert "raw/new" not in tree(scene, branch)
        assert scene.ref(f"{branch}~1").commit_id == scene.ref("main").commit_id, "one commit"
        lake.local(folder).pull()
        status = lake.local(folder).status()
        assert (status.local, status.remote) == ([], ())
