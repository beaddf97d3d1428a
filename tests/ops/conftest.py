from contextlib import ExitStack
from random import Random

import pytest
from support.copies import open_at, sqlite_url
from support.leaves import only_leaves
from support.scenes import fill_paths, open_faulty

from lakeops import Lake, Settings, Split

__all__ = ["only_leaves"]

SMALL = Split(min_entries=2, target_entries=4, max_entries=8)


@pytest.fixture
def faulty_lake(settings, clock, faults):
    """A lake whose stores and catalog play the script of ``faults``."""
    with open_faulty(settings, faults, clock=clock) as opened:
        yield opened


@pytest.fixture(params=["sqlite", "postgresql"])
def lake_of_threads(request, tmp_path):
    """A lake for threads that work at the same time."""
    url = None if request.param == "sqlite" else request.getfixturevalue("empty_postgres_url")
    with Lake.open(settings=Settings.load(home=tmp_path / "home", database_url=url, fsync=False)) as lake:
        yield lake


@pytest.fixture
def repo(lake):
    return lake.create_repository("repo", split=SMALL)


@pytest.fixture
def fill():
    """Puts ``path=contents`` (None deletes) on a branch and commits; returns the commit id."""

    def fill(repository, branch, /, *, message="", **files):
        return fill_paths(repository, branch, files, message=message)

    return fill


@pytest.fixture
def contents():
    """Everything that a ref shows: path to contents."""

    def contents(repository, ref):
        handle = repository.ref(ref)
        return {item.path: handle.read(item.path).decode() for item in handle.list()}

    return contents


PATHS = [f"{folder}/{number}" for folder in ("a", "ab", "b") for number in range(9)] + ["a", "top"]


@pytest.fixture
def wander(repo, clock):
    """Random steps on three branches: each ``every``-th merges two of them, the others change paths of ``PATHS``."""

    def wander(seed, *, steps, every, changes, seconds):
        draw, names = Random(seed), ["main", "left", "right"]
        for name in names[1:]:
            repo.create_branch(name)
        for step in range(steps):
            clock.advance(seconds=draw.choice(seconds))
            name = draw.choice(["main", *names])
            if step % every == every - 1:
                other = draw.choice([each for each in names if each != name])
                repo.merge(other, name, strategy=draw.choice(["source-wins", "dest-wins"]))
                continue
            branch = repo.branch(name)
            for path in draw.sample(PATHS, changes):
                if draw.random() < 0.3 and branch.exists(path):
                    branch.delete(path)
                else:
                    branch.put(path, f"{draw.randrange(3)}".encode())
            branch.commit(f"step {step}", allow_empty=True)
        return repo

    return wander


@pytest.fixture
def opened(clock, tmp_path):
    """Opens lakes, each over a catalog of its own name, or at a URL."""
    with ExitStack() as stack:

        def open_one(name, faults=None):
            url = name if "://" in name else sqlite_url(tmp_path / name)
            (tmp_path / name).mkdir(exist_ok=True) if "://" not in name else None
            return stack.enter_context(open_at(tmp_path / "home", url, clock, faults))

        yield open_one
