"""Hooks run beside every change that they concern, whoever makes it; what one raises before a change stops it."""

import logging
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.errors import raising
from support.scenes import SPLIT

from lakeops import HookEvent, Repository
from lakeops.model.errors import InvalidInput, NotAsSeen, NotFound, StoreUnavailable
from lakeops.model.protection import ACTIONS, Hook

Hooked = Callable[[HookEvent], object]


class Plugin:
    """An installed package whose hooks are called ``h1``, ``h2`` and so on; a test says what they do."""

    def __init__(self):
        self.events: list[HookEvent] = []
        self.does: dict[str, Hooked] = {}

    def call(self, name, event):
        self.events.append(event)
        self.does.get(name, lambda _: None)(event)


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    site = tmp_path / "site"
    info = site / "ourhooks-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ourhooks\nVersion: 1.0\n")
    entries = "\n".join(f"{name} = ourhooks:{name}" for name in ("h1", "h2"))
    (info / "entry_points.txt").write_text(f"[lakeops.hooks]\n{entries}\nbroken = ourhooks:none_such\n")
    (site / "ourhooks.py").write_text(
        "plugin = None\ndef h1(event): plugin.call('h1', event)\ndef h2(event): plugin.call('h2', event)\n"
    )
    monkeypatch.syspath_prepend(str(site))
    import ourhooks

    ourhooks.plugin = Plugin()
    yield ourhooks.plugin
    sys.modules.pop("ourhooks")


@pytest.fixture
def repo(lake):
    repo = lake.create_repository("repo", split=SPLIT)
    main = repo.branch("main")
    main.put("a", b"1")
    main.commit("first")
    dev = repo.create_branch("dev")
    dev.put("b", b"2")
    dev.commit("second")
    repo.create_tag("v1", "main")
    repo.create_branch("old")
    main.put("c", b"3")
    return repo


def source(repo, tmp_path):
    (tmp_path / "in").mkdir(exist_ok=True)
    (tmp_path / "in" / "x").write_bytes(b"x")
    return (tmp_path / "in").as_uri()


CHANGES: dict[str, tuple[str, Callable[[Repository, Path], object]]] = {
    # action: the ref that changes, and what changes it
    "commit": ("main", lambda repo, _: repo.branch("main").commit("third")),
    "merge": ("old", lambda repo, _: repo.merge("dev", "old")),
    "revert": ("dev", lambda repo, _: repo.branch("dev").revert("dev")),
    "cherry-pick": ("old", lambda repo, _: repo.cherry_pick("dev", "old")),
    "import": ("dev", lambda repo, at: repo.branch("dev").import_objects(source(repo, at), "in/", message="in")),
    "create-branch": ("new", lambda repo, _: repo.create_branch("new")),
    "move-branch": ("old", lambda repo, _: repo.branch("old").move("dev", force=True)),
    "delete-branch": ("old", lambda repo, _: repo.delete_branch("old")),
    "create-tag": ("v2", lambda repo, _: repo.create_tag("v2", "dev")),
    "move-tag": ("v1", lambda repo, _: repo.move_tag("v1", "dev")),
    "delete-tag": ("v1", lambda repo, _: repo.delete_tag("v1")),
}


def refs(repo):
    return {ref.id: ref.commit_id for ref in (*repo.branches(), *repo.tags())}


def test_every_change_that_hooks_run_beside_is_tried():
    assert CHANGES.keys() == set(ACTIONS)


@pytest.mark.parametrize("action", CHANGES)
def test_a_hook_stops_a_change_before_it_is_made_and_hears_of_it_afterwards(repo, plugin, tmp_path, action):
    """The handle was opened before any hook was set: what counts is what the catalog has at the change."""
    ref, change = CHANGES[action]

    def stop(event):
        raise ValueError(f"no {event.action} today\n")

    plugin.does["h1"] = stop
    repo.set_hook("h1")
    before, moves = refs(repo), repo.reflog()
    with raising("hook_refused", f"hook 'h1' stopped {action} of '{ref}': no {action} today"):
        change(repo, tmp_path)
    assert (refs(repo), repo.reflog()) == (before, moves)
    (event,) = plugin.events
    assert (event.repository, event.action, event.ref, event.old) == ("repo", action, ref, before.get(ref))
    repo.set_hook("h1", actions=[one for one in ACTIONS if one != action])
    repo.set_hook("h2", when="after", pattern=ref[:-1] + "?")
    plugin.events.clear()
    change(repo, tmp_path)
    (event,) = plugin.events
    assert (event.action, event.new) == (action, refs(repo).get(ref))
    if action in ("commit", "merge", "revert", "cherry-pick", "import"):
        commit = repo.ref(ref).commit
        assert (event.parents, event.message, event.metadata) == (commit.parents, commit.message, commit.metadata)


@pytest.mark.parametrize("name", ["not-installed", "broken"])
def test_what_cannot_be_loaded_stops_every_change_that_it_runs_before(repo, plugin, name):
    there = repo._ctx.catalog.refs  # as a process sets it that has the hook
    there.set_hook("repo", Hook(name, pattern="v*"))
    with raising("hook_missing", name):
        repo.create_tag("v2", "main")
    repo.create_tag("w2", "main")
    there.set_hook("repo", Hook(name, "after"))
    repo.create_tag("v2", "main")
    repo.remove_hook(name)
    with pytest.raises(NotFound):
        repo.remove_hook(name)
    assert repo.hooks() == []


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ["not-installed", "broken"])
def test_what_cannot_be_loaded_is_not_set(repo, plugin, name, when):
    with raising("hook_missing", f"{name}.*install it"):
        repo.set_hook(name, when=when)
    assert repo.hooks() == []
    repo.branch("main").commit("goes on")


def test_no_caller_of_the_catalog_passes_a_hook_by(repo, plugin):
    hook = repo.set_hook("h1", actions=["delete-tag", "create-tag"])
    catalog = repo._ctx.catalog
    for given in (frozenset(), frozenset({Hook("h2")}), frozenset({Hook("h1")})):
        with raising("hooks_changed", "h1"):
            catalog.refs.delete_tag("repo", "v1", actor="ada", hooks=given)
    catalog.refs.delete_tag("repo", "v1", actor="ada", hooks=frozenset({hook}))


def test_a_hook_that_was_removed_refuses_nothing(lake, repo, plugin):
    plugin.does["h1"] = lambda _: 1 / 0
    repo.set_hook("h1")
    opened = lake.repository("repo")
    with raising("hook_refused"):
        opened.create_tag("v2", "main")
    repo.remove_hook("h1")
    opened.create_tag("v2", "main")


def test_a_commit_that_was_refused_leaves_no_message_behind(repo, plugin):
    def stop(_):
        raise ValueError("no")

    plugin.does["h1"] = stop
    repo.set_hook("h1")
    for key in (None, "k"):
        with raising("hook_refused"):
            repo.branch("main").commit("refused", idempotency_key=key)
    plugin.does.clear()
    done = repo.branch("main").commit("made")
    assert (done.along, done.message, repo.ref("main").read("c")) == ([], "made", b"3")


def test_a_hook_has_so_much_time(repo, plugin):
    ended = threading.Event()
    plugin.does["h1"] = lambda _: ended.wait(60)
    repo.set_hook("h1", seconds=1)
    try:
        with raising("hook_refused", "did not end within 1 s"):
            repo.create_tag("v2", "main")
    finally:
        ended.set()
    assert "v2" not in refs(repo)


def test_what_fails_afterwards_changes_nothing(repo, plugin, caplog):
    plugin.does["h2"] = lambda _: 1 / 0
    repo.set_hook("h2", when="after")
    with caplog.at_level(logging.WARNING):
        repo.create_tag("v2", "main")
    assert "division by zero" in caplog.text
    assert "v2" in refs(repo)


def test_a_hook_is_asked_again_when_the_branch_moved_first(lake, repo, plugin):
    other = lake.repository("repo")

    def move_first(event):
        if len(plugin.events) == 1:
            repo.remove_hook("h2")
            other.merge("dev", "main", allow_empty=True)

    plugin.does["h1"] = move_first
    repo.set_hook("h2")
    repo.set_hook("h1", actions=["revert"])
    repo.branch("main").reset()
    commit = repo.branch("main").revert("main")
    asked = [event for event in plugin.events if event.action == "revert"]
    assert [event.parents for event in asked][-1] == commit.parents
    assert len({event.old for event in asked}) == 2, "once for the head that it saw, once for the one that came first"


OTHERS: dict[str, Callable[[Repository], object]] = {
    # action: what another process does to the ref meanwhile, which does not run the hook
    "delete-branch": lambda repo: repo.branch("old").move("dev", force=True),
    "move-tag": lambda repo: (repo.delete_tag("v1"), repo.create_tag("v1", "main~1")),
    "delete-tag": lambda repo: repo.move_tag("v1", "dev"),
}


@pytest.mark.parametrize("sets", [(), ("h2",)])
@pytest.mark.parametrize("action", OTHERS)
def test_a_hook_judges_the_commit_that_is_deleted_or_left(lake, repo, plugin, tmp_path, action, sets):
    ref, change = CHANGES[action]
    other = lake.repository("repo")
    first = refs(repo)[ref]

    def judge(event):
        if event.old != first:
            raise ValueError("not this one")
        OTHERS[action](other)
        for name in sets:
            other.set_hook(name, actions=[action])

    plugin.does["h1"] = judge
    repo.set_hook("h1", actions=[action])
    with raising("hook_refused", "not this one"):
        change(repo, tmp_path)
    there = refs(repo)[ref]
    assert [event.old for event in plugin.events] == [first, there]
    plugin.does.clear()
    change(repo, tmp_path)
    assert repo.reflog(ref)[0].old == there != first


@pytest.mark.parametrize("moves", [True, False])
@pytest.mark.parametrize("action", ["move-tag", "delete-tag"])
def test_a_tag_that_is_not_where_the_caller_saw_it_stays_though_a_hook_agrees(repo, plugin, action, moves):
    old = refs(repo)["v1"] if moves else repo.ref("main~1").commit.id
    plugin.does["h1"] = lambda _: moves and OTHERS[action](repo)
    repo.set_hook("h1", actions=[action])
    with pytest.raises(NotAsSeen):
        repo.move_tag("v1", "dev", old=old) if action == "move-tag" else repo.delete_tag("v1", old=old)
    assert refs(repo)["v1"] != old
    assert [event.old for event in plugin.events] == [old]


def test_a_call_that_is_repeated_runs_no_hook(repo, plugin):
    commit = repo.branch("main").commit("third", idempotency_key="k")
    repo.set_hook("h1")
    assert repo.branch("main").commit("third", idempotency_key="k") == commit
    assert plugin.events == []


def test_hooks_that_make_no_sense_are_refused(repo, plugin):
    for given in (
        {"name": "-"}, {"name": ""}, {"name": "refs-dump"}, {"name": "a", "when": "later"},
        {"name": "a", "actions": ["push"]}, {"name": "a", "pattern": "a/b"}, {"name": "a", "pattern": ""},
        {"name": "a", "seconds": 0}, {"name": "a", "seconds": 10**6}, {"name": 7}, {"name": "a", "seconds": True},
    ):  # fmt: skip
        with pytest.raises(InvalidInput):
            repo.set_hook(**given)
    repo.set_read_only()
    with raising("read_only_repository"):
        repo.set_hook("h1")


# --- the hook that comes with lakeops: each change goes to the dump ---
def test_each_change_is_in_the_dump_at_once(repo, tmp_path, plugin):
    repo.refs.automatic()
    assert repo.refs.status().automatic
    assert repo.hooks() == []
    for ref, change in CHANGES.values():
        change(repo, tmp_path) if ref != "old" or "old" in refs(repo) else None
        status = repo.refs.status()
        assert not status.behind
        assert status.dump is not None
    assert status.dump.parts > len(CHANGES) / 2, "and only what came since was written each time"
    repo.refs.automatic(False)
    repo.create_tag("v9", "main")
    assert repo.refs.status().behind
    repo.refs.automatic(False)


def test_a_dump_without_a_temporary_directory_stops_no_change(repo, tmp_path, monkeypatch, caplog):
    repo.refs.automatic()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with caplog.at_level(logging.WARNING):
        repo.create_tag("made", "main")
    assert "refs-dump" in caplog.text


def test_a_dump_that_fails_stops_no_change_but_a_sweep(faulty_lake, faults, lake_clock, caplog):
    repo = faulty_lake.create_repository("repo", split=SPLIT)
    repo.refs.automatic()
    main = repo.branch("main")
    repo.gc.set_rules({"default_retention_days": 1, "branches": []})
    for number in range(2):
        main.put("a", str(number).encode())
        main.commit(f"load {number}")
    lake_clock.advance(days=9)
    repo.gc.confirm_clock()
    mark = repo.gc.mark()
    assert mark.rows
    faults.fail("put", prefix="_lakefs/refs/", at=None, error=StoreUnavailable("no"))
    main.put("a", b"more")
    with caplog.at_level(logging.WARNING):
        main.commit("made all the same")
    assert "refs-dump" in caplog.text
    assert repo.refs.status().behind
    deleted = faults.counts["delete"]
    with pytest.raises(StoreUnavailable):
        repo.gc.sweep(mark.id)
    assert faults.counts["delete"] == deleted
    faults.revive()
    assert repo.gc.sweep(mark.id).deleted
    first = next(call for call in faults.calls if call.operation in ("swap", "delete"))
    assert (first.operation, first.key[:13]) == ("swap", "_lakefs/refs/"), "the dump knows first what expired"
