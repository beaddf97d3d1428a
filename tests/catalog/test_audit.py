"""Every transition that changes something leaves one record; what changes nothing, and what is refused, leaves none."""

import inspect
import os
import pwd
import shutil
import tempfile
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget import examples
from support.catalogs import (
    FIRST,
    REPO,
    a_commit,
    an_entry,
    begin,
    commit_all,
    create,
    create_mirror,
    draft,
    finish,
    new_token,
    put,
    seal,
)

from lakeops.catalog.backups import DumpedRepository
from lakeops.catalog.guards import CatalogPart
from lakeops.catalog.open import open_catalog
from lakeops.catalog.records import Caller
from lakeops.catalog.retention import PrunePlan
from lakeops.model.errors import LakeopsError, RepositoryNotFound
from lakeops.model.mirrors import RefName
from lakeops.model.protection import Hook, Verdict
from lakeops.model.records import RefKind, ReportKind
from lakeops.testing import ManualClock

SILENT = {
    *("put_staged", "seal", "discard", "purge_retired", "begin_upload", "end_upload"),  # nothing committed changes
    *("enqueue", "withdraw", "dequeue", "remember_key", "check_clock", "advance_sweep", "confirm_lease", "identity"),
    *("copy_commits", "observe_source", "note_metadata", "give_up_candidate", "record_arrivals"),
    "add_report",  # what a run found, for people to look at
    "note",  # a mirror's memory: what it shows changes by ``promote`` alone
    *("upgrade", "cut"),
}
"""Transitions that change nothing that a lake shows, keeps or allows. ``observe_source`` records the refs that it
drops."""

DAY = timedelta(days=1)


def following(catalog):
    create_mirror(catalog)


def waiting(catalog):
    create_mirror(catalog)
    commit = a_commit("far", FIRST)
    catalog.mirrors.copy_commits("mirror", [commit])
    state = catalog.mirrors.observe_source("mirror", {RefName(RefKind.BRANCH, "main"): commit.id}, since=0, actor="ada")
    return commit, state.refs[0].ticket


def dev(catalog):
    catalog.refs.create_branch(REPO, "dev", FIRST.id, token=new_token(), actor="ada")


def promote(catalog, found):
    ref = RefName(RefKind.BRANCH, "main")
    assert catalog.mirrors.promote("mirror", ref, found[1], found[0].id, token=new_token(), actor="ada")


def restore(catalog):
    again = replace(catalog.repositories.get(REPO), id="again", storage_namespace="file:///again")
    at = 1_767_225_600_000_000
    found = DumpedRepository(again, at, 60, None, [FIRST], {"main": FIRST.id}, {}, *([[]] * 6))
    catalog.backups.restore_repository(found, new_token, None)


def nothing(_catalog):
    return None


TRANSITIONS = {
    # name: (what comes before, the transition, action, kind, ref, before, after)
    "create_repository": (
        nothing, lambda c, _: create(c, "other"),
        ("create-repository", "repository", "other", None, "file:///other"),
    ),
    "delete_repository": (
        nothing, lambda c, _: c.repositories.delete_repository(REPO),
        ("delete-repository", "repository", REPO, "file:///repo", None),
    ),
    "set_read_only": (
        nothing, lambda c, _: c.repositories.set_read_only(REPO, True),
        ("set-read-only", "repository", REPO, "writable", "read-only"),
    ),
    "update_metadata": (
        nothing, lambda c, _: c.repositories.update_metadata(REPO, {"owner": "ada", "gone": None}),
        ("set-metadata", "repository", REPO, "{}", '{"owner": "ada"}'),
    ),
    "create_branch": (nothing, lambda c, _: dev(c), ("create-branch", "branch", "dev", None, FIRST.id)),
    "delete_branch": (
        dev,
        lambda c, _: c.refs.delete_branch(REPO, "dev", actor="ada"),
        ("delete-branch", "branch", "dev", FIRST.id, None),
    ),
    "create_tag": (
        nothing, lambda c, _: c.refs.create_tag(REPO, "v1", FIRST.id, actor="ada"),
        ("create-tag", "tag", "v1", None, FIRST.id),
    ),
    "delete_tag": (
        lambda c: c.refs.create_tag(REPO, "v1", FIRST.id, actor="ada"),
        lambda c, _: c.refs.delete_tag(REPO, "v1", actor="ada"),
        ("delete-tag", "tag", "v1", FIRST.id, None),
    ),
    "move_branch": (
        lambda c: (dev(c), put(c, an_entry("a")), commit_all(c, "one")),
        lambda c, done: c.refs.move_branch(c.refs.branch(REPO, "dev"), done[2].id, actor="ada"),
        ("move-branch", "branch", "dev", FIRST.id, a_commit("one", FIRST).id),
    ),
    "move_tag": (
        lambda c: (c.refs.create_tag(REPO, "v1", FIRST.id, actor="ada"), put(c, an_entry("a")), commit_all(c, "one")),
        lambda c, done: c.refs.move_tag(REPO, "v1", done[2].id, actor="ada"),
        ("move-tag", "tag", "v1", FIRST.id, a_commit("one", FIRST).id),
    ),
    "protect": (
        nothing, lambda c, _: c.refs.protect(REPO, "main"), ("protect", "protection", "main", None, "protected branch")
    ),
    "unprotect": (
        lambda c: c.refs.protect(REPO, "main"), lambda c, _: c.refs.unprotect(REPO, "main"),
        ("unprotect", "protection", "main", "protected branch", None),
    ),
    "set_hook": (
        nothing, lambda c, _: c.refs.set_hook(REPO, Hook("look", actions=("commit",))),
        ("add-hook", "hook", "look", None, "before commit of *, 60 s"),
    ),
    "remove_hook": (
        lambda c: c.refs.set_hook(REPO, Hook("look", "after", pattern="main")),
        lambda c, _: c.refs.remove_hook(REPO, "look"),
        ("remove-hook", "hook", "look", "after every change of main, 60 s", None),
    ),
    "record_verdict": (
        lambda c: c.refs.record_verdict(REPO, Verdict(FIRST.id, "quality", "passed", "ada")),
        lambda c, _: c.refs.record_verdict(REPO, Verdict(FIRST.id, "quality", "failed", "bob", 0, "late")),
        ("fail-check", "check", "quality", "passed", f"{FIRST.id} by bob: late"),
    ),
    "withdraw_check": (
        lambda c: c.refs.record_verdict(REPO, Verdict(FIRST.id, "quality", "passed", "ada")),
        lambda c, _: c.refs.withdraw_check(REPO, FIRST.id, "quality"),
        ("withdraw-check", "check", "quality", FIRST.id, None),
    ),
    "set_rules": (
        lambda c: c.retention.set_rules(REPO, "{}"), lambda c, _: c.retention.set_rules(REPO, None),
        ("set-rules", "rules", "retention", "{}", None),
    ),
    "set_grace": (
        nothing, lambda c, _: c.retention.set_grace(REPO, 90_000), ("set-grace", "rules", "grace", "86400", "90000")
    ),
    "publish": (
        lambda c: put(c, an_entry("a")), lambda c, _: commit_all(c, "one"),
        ("commit", "branch", "main", FIRST.id, a_commit("one", FIRST).id),
    ),
    "reset": (
        lambda c: put(c, an_entry("a")), lambda c, _: c.staging.reset(REPO, "main", actor="ada"),
        ("reset", "branch", "main", FIRST.id, FIRST.id),
    ),
    "begin_mark": (nothing, lambda c, _: begin(c), ("begin-mark", "mark", "m", None, "marking")),
    "expire_by_mark": (
        lambda c: (commit_all(c, "one"), begin(c)),
        lambda c, _: c.retention.expire_by_mark(REPO, "m", since=9, rules=None, choose=lambda _moves: [FIRST.id]),
        ("expire", "mark", "m", None, "1 commits expired"),
    ),
    "revive_commits": (
        begin, lambda c, _: c.retention.revive_commits(REPO, "m", [FIRST.id]),
        ("revive", "mark", "m", None, "up to 1 commits live again"),
    ),
    "finish_mark": (
        begin, lambda c, _: finish(c), ("finish-mark", "mark", "m", "marking", "marked, 3 files, 9 bytes")
    ),
    "restore_mark": (
        begin, lambda c, _: c.marks.restore_mark(REPO, "m"),
        ("restore-mark", "mark", "m", "marking", "restoring, 0 files, 0 bytes"),
    ),
    "restore_commits": (
        lambda c: (begin(c), c.marks.restore_mark(REPO, "m")), lambda c, _: c.retention.restore_commits(REPO, "m"),
        ("restore-commits", "mark", "m", "restoring", "restored"),
    ),
    "begin_sweep": (
        lambda c: (begin(c), finish(c)), lambda c, _: c.marks.begin_sweep(REPO, "m"),
        ("begin-sweep", "mark", "m", "marked", "sweeping, 3 files, 9 bytes"),
    ),
    "end_sweep": (
        lambda c: (begin(c), finish(c), c.marks.begin_sweep(REPO, "m")), lambda c, _: c.marks.end_sweep(REPO, "m"),
        ("end-sweep", "mark", "m", "sweeping", "swept, 3 files, 9 bytes"),
    ),
    "prune": (
        lambda c: c.commits.remember_key(REPO, "key", "f", FIRST.id),
        lambda c, _: c.retention.prune(REPO, PrunePlan("keys", int(c.now().timestamp()) + 9), limit=5),
        ("prune", "keys", "", None, "1 removed"),
    ),
    "confirm_clock": (
        nothing, lambda c, _: c.marks.confirm_clock(), ("confirm-clock", "clock", "", None, "confirmed")
    ),
    "begin_lease": (
        nothing, lambda c, _: c.repositories.begin_lease(REPO, "record"), ("take-owner", "owner", REPO, None, "record")
    ),
    "restore_repository": (
        nothing, lambda c, _: restore(c),
        ("restore-repository", "repository", "again", None, "file:///again, dump of 2026-01-01 00:00:00 UTC"),
    ),
    "accept_restored": (
        restore, lambda c, _: c.backups.accept_restored("again"),
        ("accept-restored", "repository", "again", "2026-01-01 00:00:00", "accepted"),
    ),
    "report_mirror": (
        nothing, lambda c, _: c.mirrors.report_mirror(REPO, "far", frozenset()),
        ("register-mirror", "mirror", "far", None, None)
    ),
    "drop_mirror": (
        lambda c: c.mirrors.report_mirror(REPO, "far", frozenset()), lambda c, _: c.mirrors.drop_mirror(REPO, "far"),
        ("drop-mirror", "mirror", "far", None, None),
    ),
    "create_mirror": (
        nothing, lambda c, _: create_mirror(c), ("create-mirror", "repository", "mirror", None, "file:///mirror")
    ),
    "promote": (
        waiting, promote, ("promote", "branch", "main", FIRST.id, a_commit("far", FIRST).id)
    ),
    "start_over": (
        following, lambda c, _: c.mirrors.start_over("mirror", "new", sequence=1),
        ("start-over", "mirror", "mirror", "mirror-x", "new"),
    ),
    "set_stall_timeout": (
        following, lambda c, _: c.mirrors.set_stall_timeout("mirror", 60),
        ("set-stall-timeout", "mirror", "mirror", "900", "60"),
    ),
    "promote_writable": (
        following, lambda c, _: c.mirrors.promote_writable("mirror", 0, actor="ada"),
        ("promote-writable", "branch", "main", FIRST.id, FIRST.id),
    ),
    "revive_proved": (
        lambda c: (
            promote(c, waiting(c)),
            c.mirrors.promote_writable("mirror", c.mirrors.get("mirror").sequence, actor="ada"),
        ),
        lambda c, _: c.mirrors.revive_proved("mirror", [FIRST.id]),
        ("verify-history", "commits", "", None, "1 live again"),
    ),
}  # fmt: skip


def told(catalog):
    return [(r.action, r.kind, r.ref, r.before, r.after) for r in catalog.audit.page()]


@pytest.mark.parametrize("name", TRANSITIONS)
def test_a_transition_leaves_one_record(catalog, name):
    prepare, run, record = TRANSITIONS[name]
    found = prepare(catalog)
    before = told(catalog)
    run(catalog, found)
    assert told(catalog) == [record, *before]


def test_every_transition_leaves_a_record_or_is_known_to_change_nothing_that_counts(catalog):
    """The test finds writing methods in the source, so that nobody adds a transition without deciding."""
    writing = set()
    late = [getattr(catalog, name) for name in type(catalog).__annotations__]
    assert all(isinstance(part, CatalogPart) for part in late)
    for part in [catalog, *(part for part in vars(catalog).values() if isinstance(part, CatalogPart))]:
        for name, method in inspect.getmembers(type(part), inspect.isfunction):
            if not name.startswith("_"):
                text = inspect.getsource(method)
                if any(call in text for call in ("database.write(", "@write_transaction", "self._create(")):
                    writing.add(name)
    assert writing == SILENT | TRANSITIONS.keys() | {"grant_role"}, (
        "grants are of PostgreSQL alone: tests/ops/test_roles.py"
    )


def test_who_did_it(opened, database_url):
    catalog = opened(database_url, caller=Caller("Ada L.", "ada@airflow"))
    create(catalog)
    catalog.refs.protect(REPO, "main")
    server = catalog.database.dialect.name == "postgresql"
    login = "postgres" if server else pwd.getpwuid(os.geteuid()).pw_name
    protected, created = catalog.audit.page()
    assert (protected.actor, protected.login, protected.claimed) == ("ada@airflow", login, "Ada L.")
    assert (created.actor, created.login, created.claimed) == ("ada@airflow", login, "ada")
    assert protected.at == pytest.approx(catalog.now().timestamp(), abs=60)
    alone = opened(database_url)
    alone.refs.unprotect(REPO, "main")
    assert (alone.audit.page()[0].actor, alone.audit.page()[0].claimed) == (login, "")
    assert [record.action for record in alone.audit.page(actor="ada@airflow")] == ["protect", "create-repository"]
    assert [record.action for record in alone.audit.page(actor=login)] == ["unprotect"]


def test_records_outlive_their_repository_and_its_successor_of_the_name(catalog):
    catalog.repositories.delete_repository(REPO)
    create(catalog)
    actions = [record.action for record in catalog.audit.page(REPO)]
    assert actions == ["create-repository", "delete-repository", "create-repository"]


def test_pages_are_newest_first_and_lose_nothing(catalog, clock):
    for number in range(5):
        catalog.refs.protect(REPO, f"p{number}")
    every = catalog.audit.page(REPO)
    found, below = [], None
    while page := catalog.audit.page(REPO, below=below, limit=2):
        found += page
        below = (page[-1].at, page[-1].sequence)
    assert found == every
    assert [record.ref for record in every] == ["p4", "p3", "p2", "p1", "p0", REPO]


def test_since_and_until(sqlite_url, opened, clock):
    catalog = opened(sqlite_url)
    create(catalog)
    clock.advance(hours=1)
    catalog.refs.protect(REPO, "a")
    at = catalog.audit.page()[0].at
    clock.advance(hours=1)
    catalog.refs.protect(REPO, "b")
    assert [record.ref for record in catalog.audit.page(since=at)] == ["b", "a"]
    assert [record.ref for record in catalog.audit.page(until=at)] == [REPO]
    assert [record.ref for record in catalog.audit.page(since=at, until=at + 1)] == ["a"]


def test_what_is_refused_or_changes_nothing_leaves_no_record(catalog):
    catalog.refs.protect(REPO, "main")
    catalog.retention.set_rules(REPO, "{}")
    before = catalog.audit.page()
    catalog.refs.protect(REPO, "main")
    catalog.retention.set_rules(REPO, "{}")
    catalog.repositories.set_read_only(REPO, False)
    catalog.retention.set_grace(REPO, 86_400)
    catalog.staging.reset(REPO, "main", actor="ada")
    for refused in (
        lambda: catalog.refs.unprotect(REPO, "none"),
        lambda: catalog.refs.delete_branch(REPO, "main", actor="ada"),
        lambda: catalog.refs.create_branch(REPO, "main", FIRST.id, token=new_token(), actor="ada"),
        lambda: catalog.commits.publish(draft(catalog, catalog.refs.branch(REPO, "main"), a_commit("x", FIRST))),
        lambda: catalog.refs.delete_tag(REPO, "none", actor="ada"),
    ):
        with pytest.raises(LakeopsError):
            refused()
    assert catalog.audit.page() == before


NAMES = st.sampled_from(["a", "b"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["create_branch", "delete_branch", "create_tag", "delete_tag"]), NAMES),
        st.tuples(st.sampled_from(["protect", "unprotect", "stage", "commit", "reset", "close", "open"]), NAMES),
    ),
    max_size=25,
)


def step(catalog, verb, name):
    """The action that a step is expected to leave, or None."""
    state = catalog.refs.branch(REPO, "main")
    match verb:
        case "create_branch":
            catalog.refs.create_branch(REPO, name, state.commit_id, token=new_token(), actor="ada")
        case "delete_branch":
            catalog.refs.delete_branch(REPO, name, actor="ada")
        case "create_tag":
            catalog.refs.create_tag(REPO, name, state.commit_id, actor="ada")
        case "delete_tag":
            catalog.refs.delete_tag(REPO, name, actor="ada")
        case "protect":
            known = name in {one.pattern for one in catalog.refs.all_protections(REPO)}
            catalog.refs.protect(REPO, name)
            return None if known else "protect"
        case "unprotect":
            catalog.refs.unprotect(REPO, name)
        case "stage":
            put(catalog, an_entry(name))
            return None
        case "commit":
            commit_all(catalog, new_token())
        case "reset":
            return "reset" if catalog.staging.reset(REPO, "main", actor="ada") else None
        case _:
            closed = catalog.repositories.get(REPO).read_only
            catalog.repositories.set_read_only(REPO, verb == "close")
            return "set-read-only" if closed != (verb == "close") else None
    return verb.replace("_", "-")


@settings(max_examples=examples(6), deadline=None)
@given(STEPS)
def test_any_sequence_of_transitions_leaves_as_many_records(steps):
    home = Path(tempfile.mkdtemp(prefix="lakeops-audit-"))
    catalog = open_catalog(f"sqlite:///{home}/catalog.db", clock=ManualClock())
    try:
        create(catalog)
        expected = ["create-repository"]
        for verb, name in steps:
            try:
                expected.append(step(catalog, verb, name))
            except LakeopsError:
                continue
        found = [record.action for record in reversed(catalog.audit.page())]
        assert found == [action for action in expected if action is not None]
    finally:
        catalog.close()
        shutil.rmtree(home)


# --- what lists show of many repositories and commits, on both databases, and never more than asked ---
def saying(catalog, *messages):
    """Commits with these messages on main, oldest first."""
    return [commit_all(catalog, message).id for message in messages]


def test_an_overview_tells_of_each_repository(empty):
    for name in ("one", "two", "three"):
        create(empty, name)
    for name in ("a", "b", "c"):
        empty.refs.create_branch("two", name, empty.refs.branch("two", "main").commit_id, token=name, actor="ada")
    empty.audit.add_report("two", ReportKind.FSCK, {"severities": {"error": 1}}, actor="ada")
    found = empty.audit.overviews(["one", "two", "three", "gone"], most_branches=3)
    assert set(found) == {"one", "two", "three"}
    assert found["one"].head == empty.commits.get("one", empty.refs.branch("one", "main").commit_id)
    assert (found["one"].branches, found["two"].branches) == (1, 3), "no more than so many are counted"
    assert found["one"].last_fsck is None
    assert found["two"].last_fsck.found == {"severities": {"error": 1}}
    assert empty.audit.overviews([], most_branches=3) == {}


def test_messages_are_searched_page_by_page_and_each_commit_is_looked_at_once(catalog):
    made = saying(catalog, *(f"Load {number} of 100%" if number % 3 else "else" for number in range(10)))
    wanted = [made[number] for number in range(9, -1, -1) if number % 3]
    for looked_at, limit in ((100, 100), (100, 2), (3, 100), (4, 1), (1, 1)):
        found, below, pages = [], None, 0
        while True:
            page = catalog.audit.search_messages(REPO, "load", below=below, looked_at=looked_at, limit=limit)
            found += [commit.id for commit in page.commits]
            pages += 1
            if page.next_below is None:
                break
            assert below is None or page.next_below < below
            below = page.next_below
        assert found == wanted, (looked_at, limit)
        assert pages <= 12


@pytest.mark.parametrize(("text", "count"), [("100%", 1), ("100_", 0), ("%", 1), ("ÄPFEL", 1), ("Ada", 3), ("'", 0)])
def test_what_is_searched_for_is_text(catalog, text, count):
    saying(catalog, "load 100% of it", "ÄPFEL")
    assert len(catalog.audit.search_messages(REPO, text, looked_at=100, limit=100).commits) == count


def test_a_search_needs_its_repository(catalog):
    with pytest.raises(RepositoryNotFound):
        catalog.audit.search_messages("nosuch", "x", looked_at=1, limit=1)


def test_staged_paths_are_counted(catalog):
    put(catalog, an_entry("a"), an_entry("b"))
    seal(catalog)
    put(catalog, an_entry("b"), an_entry("c"))
    catalog.refs.create_branch(REPO, "idle", catalog.refs.branch(REPO, "main").commit_id, token="t", actor="ada")
    assert catalog.staging.staged_counts(REPO, ["main", "idle", "nosuch"], most=10) == {"main": 3}, "b is one path"
    assert catalog.staging.staged_counts(REPO, ["idle"], most=10) == {}
    put(catalog, an_entry("x"), an_entry("y"), branch="idle")
    assert catalog.staging.staged_counts(REPO, ["idle"], most=10) == {"idle": 2}
    assert catalog.staging.staged_counts(REPO, ["idle"], most=1) == {"idle": 1}
    assert catalog.staging.staged_counts(REPO, ["main"], most=2) == {"main": 2}, "no more are counted"
    assert catalog.staging.staged_counts(REPO, [], most=2) == {}
