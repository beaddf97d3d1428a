"""Garbage collection: what goes, what stays, what is refused, and what a clock that jumps does to it."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy import update
from support.damage import sql
from support.errors import has_kind, raising
from support.scenes import files, root, table

from lakeops import Lake, Settings
from lakeops.catalog.tables import MARK
from lakeops.model import errors
from lakeops.model.clock import Ids
from lakeops.ops import deletion_limit
from lakeops.ops.gc.files import digest
from lakeops.ops.gc.unreferenced import KINDS, LISTED_SCHEMA, StoreListing
from lakeops.store import layout

RULES = {"default_retention_days": 3, "branches": []}


def objects(repo):
    return files(repo, layout.DATA)


def collect(repo):
    """A quiet run; returns what it deleted."""
    before = files(repo)
    repo.gc.sweep(repo.gc.mark().id, force=True)
    return before - files(repo)


def test_a_mark_deletes_nothing_and_a_sweep_what_it_holds(repo, fill, clock, contents):
    fill(repo, "main", a="1", b="2")
    fill(repo, "main", a="3", b=None)
    repo.gc.set_rules(RULES)
    clock.advance(days=8)
    before = files(repo)
    mark = repo.gc.mark()
    assert (mark.objects, mark.bytes, mark.listed) == (2, 2, 3)
    assert files(repo) - before == {f"{layout.GC}{mark.id}/mark.parquet", f"{layout.GC}{mark.id}/report.json"}
    assert before <= files(repo)
    swept = repo.gc.sweep(mark.id)
    assert (swept.deleted, swept.mark.state.value) == (mark.rows, "swept")
    assert len(objects(repo)) == 1
    assert len(files(repo, layout.RANGES) | files(repo, layout.METARANGES)) == 2
    assert contents(repo, "main") == {"a": "3"}
    again = repo.gc.sweep(mark.id)
    assert (again.deleted, again.bytes) == (0, 0)
    assert repo.gc.mark().rows == 0


def test_without_rules_only_what_was_never_committed_goes(repo, fill, clock, contents):
    first = fill(repo, "main", a="1")
    fill(repo, "main", a="2")
    dev = repo.create_branch("dev")
    dev.put("b", b"overwritten")
    dev.put("b", b"staged")
    dev.put("c", b"reset")
    dev.reset(path="c")
    gone = repo.create_branch("gone")
    gone.put("d", b"dropped")
    repo.delete_branch("gone")
    with pytest.raises(RuntimeError), dev.output("out") as url:
        Path(url.removeprefix("file://"), "part").write_text("failed")
        raise RuntimeError
    assert len(objects(repo)) == 7
    clock.advance(hours=24)
    assert collect(repo) == set()
    clock.advance(seconds=1)
    assert len(collect(repo)) == 4
    assert (contents(repo, first), contents(repo, "main")) == ({"a": "1"}, {"a": "2"})
    assert contents(repo, "dev") == {"a": "2", "b": "staged"}


def test_a_tag_keeps_its_commit_for_ever(repo, fill, clock, contents):
    old = fill(repo, "main", a="1")
    repo.create_tag("v1", old)
    fill(repo, "main", a="2")
    repo.gc.set_rules(RULES)
    clock.advance(days=300)  # not so long that the commit is pruned from the log
    collect(repo)
    assert contents(repo, "v1") == {"a": "1"}
    repo.delete_tag("v1")
    collect(repo)
    assert contents(repo, old) == {"a": "1"}
    clock.advance(days=7)
    collect(repo)
    with pytest.raises(errors.CommitExpired):
        repo.ref(old).read("a")
    assert len(objects(repo)) == 1


@pytest.mark.parametrize("leaves", [False, True])
def test_two_quiet_runs_leave_nothing_that_nobody_needs(repo, fill, clock, contents, request, leaves):
    if leaves:
        request.getfixturevalue("only_leaves")
    for number in range(5):
        fill(repo, "main", **{f"f{n}": f"{number}" for n in range(12)})
    fill(repo, "main", f3="changed")  # shares leaves with the commit before
    repo.gc.set_rules({"default_retention_days": 0})
    clock.advance(days=7)
    collect(repo)
    clock.advance(days=2)
    collect(repo)
    head = repo.ref("main").commit
    needed = {entry.physical_address.rpartition("/data/")[2] for entry in repo.ref("main").list()}
    assert objects(repo) == {f"data/{name}" for name in needed}
    metarange = repo._ctx.metarange(head)
    ranges = {row.file for row in metarange.rows(0, len(metarange))}
    assert bool(metarange.leaf_files) is leaves
    assert files(repo, layout.RANGES) == {layout.range_key(file) for file in (*ranges, *metarange.leaf_files)}
    assert contents(repo, "main") == {f"f{n}": "4" for n in range(12)} | {"f3": "changed"}
    assert files(repo, layout.METARANGES) == {layout.metarange_key(head.meta_range_file)}


def test_old_runs_files_go_after_a_month(repo, clock):
    first = repo.gc.mark()
    clock.advance(days=2)
    repo.gc.sweep(first.id)
    assert collect(repo) == set()
    clock.advance(days=31)
    assert {name.split("/")[3] for name in collect(repo)} >= {first.id}
    with raising("mark_not_found"):
        repo.gc.report(first.id)


def test_strays_are_reported_and_left(repo, fill, clock):
    fill(repo, "main", a="1")
    strays = {
        "readme.txt", "data/mine.csv", "data/2020010100/short", "_lakefs/other/x", "_lakefs/ranges/notes.txt",
        "_lakefs/retention/gc/rules/config.json", "database/x", "data/20200101000/0123456789abcdefghij",
    }  # fmt: skip
    for name in strays:
        (root(repo) / name).parent.mkdir(parents=True, exist_ok=True)
        (root(repo) / name).write_text("theirs")
    (root(repo) / "link").symlink_to("/etc/passwd")
    clock.advance(days=400)
    mark = repo.gc.mark()
    report = repo.gc.report(mark.id)
    assert report["strays"]["count"] == len(strays)
    assert set(report["strays"]["sample"]) == strays
    repo.gc.sweep(mark.id)
    assert strays <= files(repo)


def test_relative_and_absolute_addresses_are_one_object_and_imported_ones_stay(repo, clock, tmp_path, contents):
    source = tmp_path / "elsewhere"
    source.mkdir()
    (source / "x").write_text("imported")
    main = repo.branch("main")
    main.import_objects(f"file://{source}", "in", "import")
    entry = main.put("a", b"1")
    other = main.put("b", b"2")
    relative = other.physical_address.removeprefix(repo.storage_namespace + "/")
    main.stage(table({"c": entry.physical_address, "d": relative}))
    main.delete("a")
    main.delete("b")
    main.commit("moved")
    repo.gc.set_rules({"default_retention_days": 0})
    clock.advance(days=9)
    collect(repo)
    assert contents(repo, "main") == {"c": "1", "d": "2", "in/x": "imported"}
    main.delete_prefix("")
    main.commit("nothing left")
    clock.advance(days=9)
    collect(repo)
    assert objects(repo) == set()
    assert (source / "x").read_text() == "imported"


def test_an_old_object_is_linked_only_while_nobody_is_about_to_delete_it(repo, clock, contents):
    main = repo.branch("main")
    kept = main.put("kept", b"1").physical_address
    gone = main.put("gone", b"2").physical_address
    main.reset(path="gone")
    main.commit("kept")
    clock.advance(days=2)
    main.stage(table({"again": gone}))
    first = repo.gc.mark()
    assert first.objects == 0
    main.reset()
    main.stage(table({"again": gone}))
    main.reset()
    second = repo.gc.mark()
    assert second.objects == 1
    main.stage(table({"copy": kept}))
    with raising("object_collected", f"mark {second.id} is going to delete it"):
        main.stage(table({"again": gone, "copy2": kept}))
    repo.gc.sweep(second.id)
    assert contents(repo, "main") == {"kept": "1", "copy": "1"}


def test_a_fresh_object_is_linked_whatever_garbage_collection_does(repo, clock, monkeypatch):
    main = repo.branch("main")
    fresh = main.put("a", b"1").physical_address
    main.reset()
    clock.advance(hours=11)
    mark = repo.gc.mark()
    main.stage(table({"a": fresh}))
    clock.advance(hours=20)
    repo.gc.sweep(mark.id)
    assert main.read("a") == b"1"


def test_uploads_in_flight_are_kept_and_late_ones_refused(repo, clock):
    main = repo.branch("main")
    with main.output("out") as url:
        Path(url.removeprefix("file://"), "part").write_text("1")
        clock.advance(hours=11)
        mark = repo.gc.mark()
        assert repo.gc.report(mark.id)["kept"]["uploads"] == 1
        assert mark.objects == 0
    assert main.read("out/part") == b"1"
    with pytest.raises(errors.AttemptExpired), main.output("late") as url:
        Path(url.removeprefix("file://"), "part").write_text("1")
        clock.advance(hours=25)
        assert repo.gc.mark().objects == 1


def test_the_report_says_what_goes_and_what_stays_and_why(repo, fill, clock):
    fill(repo, "main", a="1", b="22")
    repo.create_tag("v1", "main")
    fill(repo, "main", a="333")
    fill(repo, "main", a="4444")
    repo.gc.set_rules(RULES)
    clock.advance(days=8)
    repo.branch("main").put("new", b"5")
    mark = repo.gc.mark()
    report = repo.gc.report(mark.id)
    assert report["mark"] == mark.to_json()
    assert (report["objects"], report["bytes"]) == (1, 3)
    assert report["commits"]["live"] == {
        "heads": 1, "tags": 1, "mirrors": 0, "retention": 0, "merge_bases": 0, "undo": 0, "no_rules": 0,
    }  # fmt: skip
    assert report["commits"]["expired_now"] == 2
    assert report["kept"]["referenced"] == 3
    assert report["kept"]["staged"] == 1
    assert report["kept"]["grace"]["count"] == 1
    assert report["listed"]["count"] == 5
    assert report["share"] == 0.2
    assert report["by_prefix"] == [{"prefix": "data/20260101", "objects": 1, "bytes": 3}]
    assert report["by_age"] == [{"age": "7 to 30 days", "objects": 1, "bytes": 3}]
    assert report["metadata"]["range"]["count"] >= 1
    assert len(report["sample"]["object"]) == 1
    assert report["versioned"] is False
    assert json.loads(json.dumps(report)) == report
    listed = pq.read_table(root(repo) / layout.GC / mark.id / "mark.parquet")
    assert listed.column_names == ["physical_address", "size_bytes", "kind"]
    assert listed["kind"].to_pylist().count("object") == 1
    assert listed.num_rows == mark.rows


def test_a_read_only_repository_is_not_collected(repo, clock):
    mark = repo.gc.mark()
    repo.set_read_only()
    before = files(repo)
    for act, said in ((repo.gc.mark, "once writable"), (lambda: repo.gc.sweep(mark.id), "read-only")):
        with raising("read_only_repository", said):
            act()
    assert files(repo) == before


@pytest.fixture
def garbage(repo, clock):
    """A repository with something to sweep."""
    for number in range(3):
        repo.branch("main").put("a", f"{number}".encode())
    clock.advance(days=2)
    return repo


def test_a_mark_is_swept_in_its_own_repository_only(lake, garbage):
    mark = garbage.gc.mark()
    other = lake.create_repository("other")
    before = files(garbage)
    for repository, mark_id in ((other, mark.id), (garbage, "nonsense"), (garbage, "../" + mark.id), (garbage, "")):
        with raising("mark_not_found"):
            repository.gc.sweep(mark_id)
    assert files(garbage) == before


def test_a_mark_whose_list_a_later_collection_took_is_not_damaged(garbage, clock, monkeypatch):
    """A sweep that had looked at its mark before the other collection began."""
    mark, find = garbage.gc.mark(), type(garbage._ctx.catalog.marks).get

    def find_and_let_others_collect(marks, repository_id, mark_id):
        found = find(marks, repository_id, mark_id)
        monkeypatch.undo()
        while (root(garbage) / layout.GC / mark_id / "mark.parquet").exists():
            clock.advance(days=2)
            collect(garbage)
        return found

    monkeypatch.setattr(type(garbage._ctx.catalog.marks), "get", find_and_let_others_collect)
    with pytest.raises(errors.LakeopsError, check=has_kind("mark_refused", "mark_not_found")):
        garbage.gc.sweep(mark.id, force=True)


@pytest.mark.parametrize("damage", ["", "null", "[]", "1", "{}", '{"listed": {}}', "[" * 100_000])
def test_a_damaged_report_is_corrupted(garbage, damage):
    mark = garbage.gc.mark()
    file = root(garbage) / layout.GC / mark.id / "report.json"
    for text in (damage, file.read_text()[:-9], file.read_text().replace('"strays": {', '"strays": 1, "x": {')):
        file.write_text(text)
        with pytest.raises(errors.Corrupted, match=r"make a new mark"):
            garbage.gc.report(mark.id)


@pytest.mark.parametrize("damage", ["flip", "shorter", "longer", "another list", "gone", "empty"])
def test_an_altered_mark_is_not_swept(garbage, clock, damage):
    mark = garbage.gc.mark()
    file = root(garbage) / layout.GC / mark.id / "mark.parquet"
    data = file.read_bytes()
    file.unlink()
    changed = {
        "flip": data[:50] + bytes([data[50] ^ 1]) + data[51:],
        "shorter": data[:-1],
        "longer": data + b"x",
        "empty": b"",
    }
    if damage == "another list":
        pq.write_table(pa.table({"physical_address": ["data/x"], "size_bytes": [1], "kind": ["object"]}), file)
    elif damage != "gone":
        file.write_bytes(changed[damage])
    before = files(garbage)
    with pytest.raises(errors.Corrupted, match=r"make a new mark"):
        garbage.gc.sweep(mark.id)
    assert files(garbage) == before
    assert {found.id: found.state.value for found in garbage.gc.marks()}[mark.id] == "marked"
    garbage.gc.sweep(garbage.gc.mark().id)
    assert len(objects(garbage)) == 1


@pytest.mark.parametrize("name", ["mine.csv", "_lakefs/refs/main", "data/2026010100/../../mine.csv"])
def test_a_list_that_names_what_lakeops_did_not_make_is_not_swept(garbage, name):
    mark = garbage.gc.mark()
    file = root(garbage) / layout.GC / mark.id / "mark.parquet"
    pq.write_table(pa.table({"physical_address": [name], "size_bytes": [1], "kind": ["object"]}), file)
    sql(garbage, update(MARK).values(digest=digest(file)))
    before = files(garbage)
    with pytest.raises(errors.Corrupted, match="not lakeops' own"):
        garbage.gc.sweep(mark.id)
    assert files(garbage) == before


def test_a_stale_mark_is_not_swept(garbage, clock):
    old = garbage.gc.mark()
    new = garbage.gc.mark()
    before = files(garbage)
    with pytest.raises(errors.MarkRefused, match="stale: a newer one"):
        garbage.gc.sweep(old.id)
    clock.advance(days=7, seconds=1)
    with pytest.raises(errors.MarkRefused, match="older than 7 days"):
        garbage.gc.sweep(new.id)
    assert files(garbage) == before


def test_a_clock_that_went_back_deletes_nothing(garbage, clock):
    mark = garbage.gc.mark()
    clock.advance(seconds=-1)
    before = files(garbage)
    with pytest.raises(errors.MarkRefused, match="set back"):
        garbage.gc.sweep(mark.id)
    with pytest.raises(errors.MarkRefused, match="set back"):
        garbage.gc.mark()
    assert files(garbage) == before


@pytest.mark.parametrize(("hours", "refused"), [(0.9, False), (1.1, True), (-50, False)])
def test_a_database_clock_ahead_of_the_stores_expires_and_deletes_nothing(garbage, clock, monkeypatch, hours, refused):
    """Only where the clock is a real one; here the held one stands in for it, and for the store's."""
    store, now = garbage._ctx.store, clock.now()
    monkeypatch.setattr(type(garbage._ctx.catalog.marks), "has_real_clock", lambda *_, **__: True)
    head = store.head
    monkeypatch.setattr(store, "head", lambda key: replace(head(key), mtime=int(now.timestamp() - hours * 3600)))
    before = files(garbage)
    if not refused:
        assert garbage.gc.mark().state.value == "marked"
        return
    with pytest.raises(errors.MarkRefused, match=r"1:06:00 ahead of the store's"):
        garbage.gc.mark()
    assert files(garbage) == before
    assert garbage.gc.marks() == []


def test_the_deletion_limit(repo, clock, monkeypatch):
    monkeypatch.setattr(deletion_limit, "FLOOR", 2)
    for number in range(10):
        repo.branch("main").put(f"f{number}", b"x")
    repo.branch("main").reset()
    clock.advance(days=2)
    for number in range(3):
        repo.branch("main").put(f"f{number}", b"y")
    mark = repo.gc.mark()
    before = files(repo)
    with pytest.raises(errors.MarkRefused, match=r"holds 10 of 13 objects, more than 30%.*--force"):
        repo.gc.sweep(mark.id)
    assert files(repo) == before
    repo.gc.sweep(mark.id, force=True)
    assert len(objects(repo)) == 3


def test_damaged_metadata_of_a_live_commit_stops_the_mark(repo, fill, clock):
    fill(repo, "main", a="1", b="2")
    clock.advance(days=2)
    (file,) = files(repo, layout.RANGES)
    (root(repo) / file).chmod(0o644)
    (root(repo) / file).write_bytes(b"not a range")
    with Lake.open(settings=repo._ctx.settings, clock=clock) as fresh, pytest.raises(errors.Corrupted):
        fresh.repository("repo").gc.mark()
    assert repo.gc.marks()[0].state.value == "marking"


@pytest.mark.parametrize("hours", [3 * 24, 366 * 24])
def test_a_jump_during_an_upload_costs_nothing(repo, fill, clock, hours):
    for number in range(10):
        fill(repo, "main", a=f"{number}")
        clock.advance(hours=1)
    repo.gc.set_rules({"default_retention_days": 1})
    with repo.branch("main").output("out") as url:
        Path(url.removeprefix("file://"), "part").write_text("1")
        before = files(repo)
        clock.jump(hours=hours)
        with raising("clock_in_doubt", "a clock jumped ahead"):
            repo.gc.mark()
        with raising("clock_in_doubt"):
            repo.gc.expire_refs()
        clock.jump(hours=-hours)
    assert repo.branch("main").read("out/part") == b"1"
    assert before <= files(repo)
    assert not any(commit.expired for commit in repo.log("main"))
    repo.branch("main").commit("out")
    repo.gc.sweep(repo.gc.mark().id)
    assert repo.branch("main").read("out/part") == b"1"


def test_a_jump_that_a_mark_believed_refuses_the_upload_that_it_took_for_garbage(repo, clock):
    """Below the bound: the upload is not linked, and not lost without a word either."""
    clock.advance(hours=1)
    output = repo.branch("main").output("out", allow_empty=True)  # its only file is collected
    with pytest.raises(errors.AttemptExpired, match="start it again"), output as url:
        Path(url.removeprefix("file://"), "part").write_text("1")
        repo._ctx.catalog.staging.end_upload(repo.id, next(iter(repo._ctx.catalog.retention.roots(repo.id).uploads)))
        clock.jump(hours=50)
        repo.gc.sweep(repo.gc.mark().id)
        clock.jump(hours=-50)
    assert list(repo.ref("main").list()) == []


def test_two_processes_with_different_settings(tmp_path, clock):
    """A writer that was told 48 hours and a collector that was told 24, or one: the repository's count for both."""

    def opened(hours):
        return Lake.open(settings=Settings.load(home=tmp_path, fsync=False, grace_hours=hours), clock=clock)

    with opened(48) as writer, opened(24) as collector, opened(1) as hasty:
        main = writer.create_repository("repo").branch("main")
        with main.output("out") as url:
            Path(url.removeprefix("file://"), "part").write_text("1")
            for hours in (1.5, 22):
                clock.advance(hours=hours)
                for other in (collector, hasty):
                    theirs = other.repository("repo")
                    theirs.gc.sweep(theirs.gc.mark().id, force=True)
        main.commit("out")
        clock.advance(days=30)
        theirs.gc.sweep(theirs.gc.mark().id, force=True)
        assert main.read("out/part") == b"1"
        assert [lake.repository("repo").gc.grace()["grace_seconds"] for lake in (writer, hasty)] == [172_800] * 2


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
moments = st.integers(-3 * 3_600_000_000, 3 * 3_600_000_000).map(lambda count: NOON + timedelta(microseconds=count))


def names_of_attempt(started):
    """Everything that an attempt may have written, by kind."""
    attempt = layout.attempt(started, Ids())
    return {
        "object": layout.object_key(started, Ids()),
        "object of an hour": f"{layout.DATA}{layout.partition(started)}/{Ids().new()}",
        "output": layout.object_key(started, Ids()) + "/part",
        "range": layout.range_key(layout.attempt_file("0" * 64, attempt)),
        "metarange": layout.metarange_key(layout.attempt_file("0" * 64, attempt)),
        "mark": f"{layout.GC}{attempt}/report.json",
    }


def held(addresses, cutoff):
    """The addresses that are old enough for a mark of this cutoff."""
    found = StoreListing(cutoff)
    rows = {"physical_address": addresses, "size_bytes": [1] * len(addresses), "mtime": [0] * len(addresses)}
    objects = found.sort(pa.table(rows, schema=LISTED_SCHEMA), cutoff)
    tables = [objects, *(found.old(kind) for kind in KINDS)]
    return {address for table in tables for address in table["physical_address"].to_pylist()}


@given(started=moments, cutoff=moments)
@example(started=NOON, cutoff=NOON)
@example(started=NOON, cutoff=NOON + timedelta(microseconds=999_999))
@example(started=NOON + timedelta(microseconds=999_999), cutoff=NOON + timedelta(seconds=1))
@example(started=NOON - timedelta(microseconds=1), cutoff=NOON)
def test_what_a_mark_may_hold_was_begun_at_or_before_its_cutoff(started, cutoff):
    by_kind = names_of_attempt(started)
    found = held(list(by_kind.values()), cutoff)
    if found:
        assert started <= cutoff
    if started + timedelta(seconds=2) <= cutoff:
        assert found >= {address for kind, address in by_kind.items() if kind != "object of an hour"}
