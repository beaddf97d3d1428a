"""Killed at any effect, run again: the same outcome, once."""

import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from support.errors import raising
from support.faulty_catalog import ALL_EFFECTS, count_effects
from support.rewinding import Rewinding
from support.scenes import SCENES, make, open_faulty
from support.soundness import assert_sound

from lakeops import Lake, Settings
from lakeops.model.errors import Transient
from lakeops.testing import Crash, Faults, ManualClock

# A killed process closes no file, and neither does one that only seems to be killed.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
TESTS = Path(__file__).parents[1]
FEW = ("commit", "merge")


def settings_at(home):
    return Settings.load(home=home, fsync=False, committer="tester")


@pytest.fixture(params=SCENES.values(), ids=SCENES.keys())
def scene(request):
    return request.param


def begin(scene, home):
    """A home in which the scene may begin, to be put back to that."""
    with Lake.open(settings=settings_at(home), clock=ManualClock()) as lake:
        make(lake, scene)
    return Rewinding(home)


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """The scenes' homes, each made when it is first needed."""
    return cache(lambda name: begin(SCENES[name], tmp_path_factory.mktemp("scene") / "home"))


@pytest.fixture
def rewind(scene, begun):
    return begun(scene.name)


def effects_of(scene, home):
    faults = Faults()
    with open_faulty(settings_at(home), faults, clock=scene.clock()) as lake:
        repo = lake.repository("repo")
        faults.revive()
        scene.act(repo)
        count = count_effects(faults)
        scene.check(repo)
        assert_sound(repo, data=True)
    return count


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_every_effect_and_run_again(scene, rewind, step):
    """At every third one, from the last backwards, in the default run."""
    total = effects_of(scene, rewind())
    assert total >= 1  # a revert to a tree that is stored already is one transaction
    kill(scene, rewind, 1, "before")
    for effect in range(total, 0, -step):  # after one effect is before the next
        kill(scene, rewind, effect, "after")


@pytest.mark.usefixtures("only_leaves")
@pytest.mark.parametrize("name", FEW)
def test_killed_where_metaranges_have_leaves_and_run_again(name, tmp_path):
    scene = SCENES[name]
    rewind = begin(scene, tmp_path / "home")
    for effect in range(effects_of(scene, rewind()), 0, -2):
        kill(scene, rewind, effect, "after")


def kill(scene, rewind, effect, when):
    home = rewind()
    faults = Faults()
    lake = open_faulty(settings_at(home), faults, clock=scene.clock())
    repo = lake.repository("repo")
    faults.crash(at=effect, when=when, operations=ALL_EFFECTS)
    try:
        scene.act(repo)
    except Crash:
        pass
    else:  # threads of pyiceberg link two files at once, or one after the other
        assert scene.name == "tables"
        assert count_effects(faults) < effect
    lake.close()
    run_again(scene, home, data=False)


def run_again(scene, home, *, data):
    with Lake.open(settings=settings_at(home), clock=scene.clock()) as again:
        repo = again.repository("repo")
        assert_sound(repo, data=True)
        scene.act(repo)
        scene.check(repo)
        assert_sound(repo, data=data)


@pytest.mark.parametrize(
    "scene",
    [pytest.param(one, id=name, marks=() if name in FEW else pytest.mark.slow) for name, one in SCENES.items()],
)
@pytest.mark.parametrize("place", ["middle", *(pytest.param(end, marks=pytest.mark.slow) for end in ("first", "last"))])
def test_killed_for_real_and_run_again(scene, rewind, place):
    """The test does it with SIGKILL to a process of its own, at one of the effects."""
    total = effects_of(scene, rewind())
    effect, when = {"first": (1, "after"), "middle": (max(1, total // 2), "after"), "last": (total, "before")}[place]
    home = rewind()
    child = subprocess.run(
        [sys.executable, "-m", "support.killed", str(home), scene.name, str(effect), when],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    # Threads of pyiceberg link two files at once, or one after the other: its last effect may not come.
    ends = {-signal.SIGKILL, 0} if (scene.name, place) == ("tables", "last") else {-signal.SIGKILL}
    assert child.returncode in ends, child.stderr
    run_again(scene, home, data=True)


def test_a_lost_answer_is_not_a_lost_commit(tmp_path):
    """The publish transaction happened, its answer did not arrive: the key finds the commit."""
    scene = SCENES["commit"]
    with Lake.open(settings=settings_at(tmp_path)) as lake:
        make(lake, scene)
    faults = Faults()
    with open_faulty(settings_at(tmp_path), faults) as lake:
        repo = lake.repository("repo")
        faults.fail("publish", when="after", error=Transient("the answer was lost", kind="catalog_unavailable"))
        with raising("catalog_unavailable"):
            scene.act(repo)
        scene.act(repo)
        scene.check(repo)
        assert_sound(repo, data=True)


@pytest.mark.parametrize("verb", ["commit", "reset"])
def test_what_cannot_be_tidied_up_now_is_tidied_up_later(tmp_path, verb):
    """A commit that is published has not failed because others held the catalog when its staged rows were to go."""
    faults = Faults()
    with open_faulty(settings_at(tmp_path), faults) as lake:
        main = lake.create_repository("repo").branch("main")
        main.put("a", b"1")
        faults.fail("purge_retired", error=Transient("database is locked", kind="catalog_unavailable"))
        if verb == "commit":
            assert main.commit("one").message == "one"
        else:
            assert main.reset() == 1
        main.put("b", b"2")
        main.commit("two")
        assert not lake.catalog.staging.purge_retired("repo")
        assert_sound(lake.repository("repo"), data=True)
