"""Staging objects that are there already, while garbage collection runs: linked and kept, or refused; never lost."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.errors import raising
from support.scenes import SPLIT, open_faulty, root, table

from lakeops import Lake, Repository, Settings
from lakeops.model import errors
from lakeops.testing import Faults, ManualClock

REFUSALS = ("object_collected", "object_not_found", "collection_running", "attempt_expired")


@pytest.fixture
def repo(faulty_lake):
    """A repository with two objects that nothing refers to, an old one and a young one."""
    repo = faulty_lake.create_repository("repo", split=SPLIT)
    main = repo.branch("main")
    with main.batch() as batch:
        for number in range(40):  # so that the deletion limit is not reached
            batch.put(f"f{number}", b"x")
    main.commit("kept")
    return repo


def orphan(repo, path):
    main = repo.branch("main")
    address = main.put(path, path.encode()).physical_address
    main.reset(path=path)
    return address


def rows(**addresses):
    return table(addresses, size_bytes=[len(path) for path in addresses])


def elsewhere(repo, clock, act):
    """The work of another process."""
    with Lake.open(settings=repo._ctx.settings, clock=clock) as lake:
        return act(lake.repository("repo"))


def sweep_all(repo):
    repo.gc.sweep(repo.gc.mark().id, force=True)


def check(repo, clock, path):
    """A staged object is read, is committed, and is read for ever."""
    clock.advance(days=2)
    repo.branch("main").commit("linked")
    for _ in range(2):
        clock.advance(days=2)
        elsewhere(repo, clock, sweep_all)
        assert elsewhere(repo, clock, lambda other: other.ref("main").read(path)) == path.encode()


def spellings(repo, address):
    place = root(repo)
    link = place.parent / "link"
    link.symlink_to(place)
    key = address.removeprefix(repo.storage_namespace + "/")
    return {
        "relative": key,
        "absolute": address,
        "encoded": address.replace("/data/", "/%64ata/"),
        "root encoded": f"file:///%{ord(str(place)[1]):x}{str(place)[2:]}/{key}",
        "through a link": f"file://{link}/{key}",
        "slashes doubled": f"file:/{address.removeprefix('file:')}",
        "slashes encoded": f"{repo.storage_namespace}%2F{key.replace('/', '%2F')}",
        "the last slash encoded": f"file://{link}/data%2f{key.removeprefix('data/')}",
    }


STRANGE = ("root encoded", "through a link", "slashes doubled", "slashes encoded", "the last slash encoded")
"""Spellings of the own namespace that are refused, whatever is there."""


@pytest.mark.parametrize("spelling", ["relative", "absolute", "encoded", *STRANGE])
def test_an_object_that_was_swept_is_not_staged_by_any_spelling(repo, clock, spelling):
    swept, kept = orphan(repo, "swept"), orphan(repo, "kept")
    spelled = spellings(repo, swept)[spelling]
    clock.advance(days=2)
    main = repo.branch("main")
    main.stage(rows(kept=kept))
    elsewhere(repo, clock, sweep_all)
    strange = spelling in STRANGE
    words = "overlaps with what|encodes a slash" if strange else r"1 of 2 are missing.*upload the contents again"
    with pytest.raises(errors.InvalidInput if strange else errors.ObjectNotFound, match=words):
        main.stage(rows(kept=kept, swept=spelled))
    main.stage(rows(again=kept))


def test_an_object_that_is_there_is_staged_by_any_spelling_and_kept(repo, clock):
    address = orphan(repo, "a")
    for spelling, spelled in spellings(repo, address).items():
        if spelling not in STRANGE:
            repo.branch("main").stage(rows(a=spelled))
            clock.advance(days=2)
            elsewhere(repo, clock, sweep_all)
            assert repo.branch("main").read("a") == b"a", spelling
    check(repo, clock, "a")


def test_a_young_object_that_is_not_there_is_refused_too(repo):
    address = orphan(repo, "a")
    Path(address.removeprefix("file://")).unlink()
    with pytest.raises(errors.ObjectNotFound):
        repo.branch("main").stage(rows(a=address))


def test_metadata_of_the_namespace_is_no_object_by_any_spelling(repo):
    place = root(repo)
    file = next((place / "_lakefs/ranges").iterdir())
    (place.parent / "link").symlink_to(place)
    for address in (f"file://{file}", f"file://{place.parent}/link/_lakefs/ranges/{file.name}"):
        with pytest.raises(errors.InvalidInput):
            repo.branch("main").stage(rows(a=address))


def test_a_mark_under_way_keeps_only_those_waiting_that_it_may_hold(repo, clock, faults):
    old = orphan(repo, "old")
    clock.advance(days=2)
    young = orphan(repo, "young")
    seen = []

    def link(_call):
        def stage(other):
            other.branch("main").stage(rows(young=young))
            with raising("collection_running"):
                other.branch("main").stage(rows(old=old))

        seen.append(elsewhere(repo, clock, stage))

    faults.hook("begin_mark", at=1, when="after", action=link)
    repo.gc.mark()
    assert seen
    check(repo, clock, "young")


def test_a_mark_that_begins_between_look_and_link_keeps_no_young_object_waiting(repo, clock, faults):
    young, begun = orphan(repo, "young"), []

    def begin(_call):
        def mark(other):
            begun.append(other._ctx.catalog.marks.begin_mark("repo", "m", cutoff=clock.now() - timedelta(days=1)))

        elsewhere(repo, clock, mark)

    faults.hook("put_staged", at=1, when="before", action=begin)
    repo.branch("main").stage(rows(young=young))
    assert begun
    check(repo, clock, "young")


ACTS: dict[str, Callable[[Repository, ManualClock], Any]] = {
    "mark and sweep": lambda repo, _: sweep_all(repo),
    "mark": lambda repo, _: repo.gc.mark(),
    "sweep of the mark": lambda repo, _: [repo.gc.sweep(mark.id, force=True) for mark in repo.gc.marks()[:1]],
    "two collections": lambda repo, clock: (sweep_all(repo), clock.advance(minutes=1), sweep_all(repo)),
    "mark and sweep, while the clock is ahead and somebody says it is right": lambda repo, clock: (
        clock.jump(hours=30), repo.gc.confirm_clock(), sweep_all(repo), clock.jump(hours=-30), repo.gc.confirm_clock(),
    ),
}  # fmt: skip
EFFECTS = ("on_record", "get", "open", "head", "list", "put_staged")


@pytest.mark.parametrize("age", [pytest.param(0, marks=pytest.mark.slow), 48])
@pytest.mark.parametrize("marked", [False, True], ids=["", "a mark is there"])
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("later", ["after", pytest.param("before", marks=pytest.mark.slow)])
def test_a_collection_at_every_effect_of_a_stage(tmp_path, clock, act, marked, age, later):
    """Another process collects before and after each look at the catalog or the store that ``stage`` takes.

    After one look is before the next, so the default run asks before the first one only.
    """
    at, when = 1, "before"
    while True:
        faults = Faults()
        settings = Settings.load(home=tmp_path / f"{at}-{when}", fsync=False, committer="tester")
        with open_faulty(settings, faults, clock=clock) as lake:
            repo = lake.create_repository("repo", split=SPLIT)
            main = repo.branch("main")
            main.put("kept", b"kept")
            main.commit("kept")
            address = orphan(repo, "a")
            clock.advance(hours=age)
            if marked:
                repo.gc.mark()
            done: list[int] = []

            def collect(_call, repo=repo, done=done):
                elsewhere(repo, clock, lambda other: ACTS[act](other, clock))
                done.append(1)

            faults.revive()
            faults.hook(*EFFECTS, at=at, when=when, action=collect)
            try:
                main.stage(rows(a=address))
            except errors.LakeopsError as error:
                assert error.kind in REFUSALS
                assert [item.path for item in repo.ref("main").list()] == ["kept"]
            else:
                faults.revive()  # what checks is not what is interrupted
                check(repo, clock, "a")
            if not done:
                assert at > 2
                return
        at, when = (at, "after") if when == "before" else (at + 1, later)


@pytest.mark.parametrize("age", [0, 48])
@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.slow), "after"])
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_a_stage_at_every_effect_of_a_collection(tmp_path, clock, step, when, age):
    """At every third one in the default run, which are others for each age."""
    at = 1 + bool(age and step > 1)
    while True:
        faults = Faults()
        settings = Settings.load(home=tmp_path / f"{at}", fsync=False, committer="tester")
        with open_faulty(settings, faults, clock=clock) as lake:
            repo = lake.create_repository("repo", split=SPLIT)
            repo.branch("main").put("kept", b"kept")
            repo.branch("main").commit("kept")
            address = orphan(repo, "a")
            clock.advance(hours=age)
            done: list[bool] = []

            def link(_call, repo=repo, address=address, done=done):
                def stage(other):
                    try:
                        other.branch("main").stage(rows(a=address))
                    except errors.LakeopsError as error:
                        assert error.kind in REFUSALS
                        return False
                    return True

                done.append(elsewhere(repo, clock, stage))

            faults.revive()
            faults.hook(at=at, when=when, action=link)
            sweep_all(repo)
            if done == [True]:
                check(repo, clock, "a")
            if not done:
                assert at > 8
                return
        at += step
