"""Tests of a check's promises: it reads only, looks at each file once, and does not cry wolf beside live writers."""

from collections import Counter
from pathlib import Path
from random import Random

import pytest
from support.catalogs import everything, expire_commits
from support.damage import catalog, head, metarange, object_key, populate, remove, store
from support.errors import raising
from support.faulty_catalog import count_effects
from support.mirrors import open_pair
from support.rows import Elsewhere
from support.scenes import open_faulty
from support.soundness import assert_sound, worse_than_information

from lakeops.engine.choose import ChoosingEngine
from lakeops.model.errors import StoreUnavailable, Transient
from lakeops.ops.fsck.findings import KINDS, Severity
from lakeops.store.local import LocalStore
from lakeops.testing import ManualClock


@pytest.fixture
def lake(settings, faults):
    with open_faulty(settings, faults) as opened:
        yield opened


@pytest.fixture
def watched(lake, faults):
    """A repository whose every effect is counted, and may be hooked."""
    repo = populate(lake)
    faults.revive()
    return repo


def files(repo):
    return {item.key: store(repo).get(item.key) for item in store(repo).list()}


@pytest.mark.parametrize(("database", "store"), [("sqlite", "local"), ("postgresql", "local"), ("sqlite", "moto")])
@pytest.mark.parametrize("data", [False, True])
def test_a_healthy_repository_gives_no_finding(make, database, store, data):
    check = make(database, store).fsck(data=data)
    assert [finding for finding in check if finding.severity != Severity.INFO] == []
    assert check.checked["commits"] == 6
    assert check.checked["ranges"] > 4
    assert check.checked["staged"] == 3
    assert (check.checked["objects"] >= 24) is data


@pytest.mark.parametrize("data", [False, True])
def test_a_check_only_reads(watched, faults, data):
    remove(watched, object_key(watched))
    before = files(watched), everything(catalog(watched))
    faults.revive()
    assert bool(worse_than_information(watched, data=data)) is data
    assert count_effects(faults) == 0
    assert {*faults.counts} <= {"get", "get_range", "open", "head", "scan"}
    assert (files(watched), everything(catalog(watched))) == before


def test_each_file_is_read_once_and_a_range_once_more_for_each_list_about_it(watched, faults):
    """However many commits share it. A list of changes is compared with the ranges before and after them."""
    main = watched.branch("main")
    for number in range(20):
        main.put("z", str(number).encode())
        main.commit(f"commit {number}")
    faults.revive()
    check = watched.fsck(data=True)
    assert [finding for finding in check if finding.severity != Severity.INFO] == []
    reads = Counter(call.key for call in faults.calls if call.operation in {"get", "get_range", "open"})
    assert reads
    ranges = {count for key, count in reads.items() if key.startswith("_lakefs/ranges/")}
    assert ranges <= {1, 2, 3}
    assert {count for key, count in reads.items() if not key.startswith("_lakefs/ranges/")} == {1}
    assert check.checked["ranges"] == sum(key.startswith("_lakefs/ranges/") for key in reads)


def test_nothing_is_asked_of_what_a_process_remembers(repo):
    repo.ref("main").read("f05")
    remove(repo, metarange(repo).row(0).key)
    assert [finding.kind for finding in worse_than_information(repo)] == ["range_missing"]


def test_staged_rows_are_read_a_page_at_a_time(in_database, monkeypatch):
    monkeypatch.setattr("lakeops.ops.fsck.check.PAGE", 2)
    for number in range(5):
        in_database.branch("dev").put(f"more/{number}", b"x")
    _, row = catalog(in_database).staging.staged_one(in_database.id, "dev", "more/3")
    remove(in_database, row.entry.physical_address)
    check = in_database.fsck(data=True)
    assert [f.where for f in check if f.severity != Severity.INFO] == ["branch dev, path more/3"]
    assert check.checked["staged"] == 8


# --- beside live writers ---
@pytest.mark.parametrize(("operation", "prefix"), [("get", "_lakefs/metaranges/"), ("get_range", "_lakefs/ranges/")])
def test_commits_meanwhile_are_no_damage(watched, faults, operation, prefix):
    main = watched.branch("main")

    def write():
        main.put("new", b"new")
        main.commit("meanwhile")
        main.put("newer", b"newer")

    faults.hook(operation, prefix=prefix, action=lambda _: write())
    assert_sound(watched, data=True)
    assert head(watched).message == "meanwhile"


def test_an_object_that_came_after_the_listing_is_there(watched, faults, monkeypatch):
    inspect = type(catalog(watched).audit._inner).snapshot
    main = watched.branch("main")

    def records(self, repository_id):
        main.put("late", b"late")
        main.commit("after the listing")
        main.put("later", b"later")
        return inspect(self, repository_id)

    monkeypatch.setattr(type(catalog(watched).audit._inner), "snapshot", records)
    assert_sound(watched, data=True)


@pytest.mark.parametrize("prefix", ["_lakefs/metaranges/", "_lakefs/ranges/"])
def test_what_is_expired_and_swept_meanwhile_is_no_damage(watched, faults, prefix):
    """The files of a commit go while the check is at them: it was expired first, so that is right."""
    for text in (b"one", b"two"):
        watched.branch("main").put("f05", text)
        watched.branch("main").commit(f"{text!r}")
    commit = head(watched, "main~1")

    def rows(of):
        found = watched._ctx.reader.metarange(of)
        return found.rows(0, len(found))

    shared = {row.key for each in watched.log("main") if each.id != commit.id for row in rows(each)}
    doomed = [row.key for row in rows(commit) if row.key not in shared]
    doomed.append(f"_lakefs/metaranges/{commit.meta_range_file}")
    assert len(doomed) > 1

    def sweep():
        expire_commits(catalog(watched), watched.id, [commit.id])
        store(watched).delete(doomed)

    faults.revive()
    faults.hook("get_range" if "/ranges/" in prefix else "get", prefix=prefix, action=lambda _: sweep())
    assert_sound(watched, data=True)
    assert catalog(watched).commits.get(watched.id, commit.id).expired


# --- a store and a catalog that refuse ---
def test_a_store_that_does_not_answer_is_told_and_the_rest_is_checked(watched, faults):
    broken = metarange(watched).row(1)
    faults.fail("get_range", at=None, prefix=broken.key, error=StoreUnavailable("the store is away"))
    found = worse_than_information(watched)
    assert [(finding.kind, finding.where) for finding in found] == [("range_unreadable", broken.key)]
    assert "the store is away" in found[0].message


@pytest.mark.parametrize(("operation", "kind"), [("get", "metarange_unreadable"), ("open", "object_unreadable")])
def test_a_file_that_cannot_be_read_is_told(watched, faults, operation, kind):
    metarange_key = f"_lakefs/metaranges/{head(watched).meta_range_file}"
    key = metarange_key if operation == "get" else object_key(watched)
    faults.fail(operation, at=None, prefix=key, error=StoreUnavailable("away"))
    assert [finding.kind for finding in worse_than_information(watched, data=True)] == [kind]


def test_a_namespace_that_cannot_be_listed_is_told_and_the_rest_is_checked(watched, faults):
    remove(watched, object_key(watched))
    faults.fail("scan", at=None, error=StoreUnavailable("no listing"))
    kinds = [finding.kind for finding in watched.fsck(data=True)]
    assert kinds == ["namespace_unreadable", "object_missing", "leftovers_unknown"]


def test_a_catalog_that_goes_away_ends_the_check(watched, monkeypatch):
    def gone(self, *_args, **_given):
        raise Transient("the catalog is away", kind="catalog_unavailable")

    check = watched.fsck()
    monkeypatch.setattr(type(catalog(watched).audit._inner), "staged_rows", gone)
    with raising("catalog_unavailable"):
        list(check)
    assert list(check) == []


# --- information ---
def by_kind(repo):
    return {finding.kind: finding for finding in repo.fsck()}


def test_files_that_nothing_needs_are_counted_and_told_from_those_that_garbage_collection_leaves(in_store):
    before = by_kind(in_store)
    wrote = {
        f"data/2020010100/{'0' * 24}": b"12345",
        f"data/2020010100/{'0' * 24}x/more": b"by somebody else",
        f"data/tables/{'0' * 20}/more": b"1",
        "data/odd folder/a b%41": b"by somebody else",
        f"_lakefs/ranges/{'0' * 64}-y.parquet": b"123",
        f"_lakefs/metaranges/{'0' * 64}-y.parquet": b"12",
        "_lakefs/metaranges/x-y.parquet": b"by somebody else",
        "_lakefs/tasks/run/part": b"1",
        "_lakefs/probe/left": b"1",
        "_lakefs/retention/gc/run/mark": b"gc's own",
        "_lakefs/unknown": b"1234",
        "elsewhere/file": b"123456",
    }
    for key, contents in wrote.items():
        store(in_store).put(key, contents)
    after = by_kind(in_store)
    assert {finding.severity for finding in after.values()} == {Severity.INFO}

    def more(kind):
        old = before.get(kind)
        return after[kind].count - (old.count if old else 0), after[kind].size_bytes - (old.size_bytes if old else 0)

    assert more("unreferenced_objects") == (2, 6)
    assert more("unreferenced_ranges") == (1, 3)
    assert more("unreferenced_metaranges") == (1, 2)
    assert more("unreferenced_tasks") == (2, 2)
    assert more("stray_files") == (5, 58)


def test_an_upload_in_flight_is_no_leftover(repo):
    with repo.branch("main").output("out/") as url:
        (Path(url.removeprefix("file://")) / "part").write_bytes(b"x")
        assert "unreferenced_objects" not in by_kind(repo)
    assert "unreferenced_objects" not in by_kind(repo)


def test_what_lies_in_the_namespace_under_an_absolute_address_is_needed(repo):
    from support.damage import forge_tables, with_column

    url = f"{repo.storage_namespace}/{object_key(repo, 'f00')}"
    forge_tables(repo, lambda tables: [with_column(tables[0], "physical_address", url), *tables[1:]])
    assert [finding.kind for finding in repo.fsck(data=True)] == ["address_not_relative"]


def test_every_kind_is_documented():
    assert all(kind.advice for kind in KINDS.values())
    page = (Path(__file__).parents[2] / "docs" / "fsck.md").read_text(encoding="utf-8")
    assert [name for name, kind in KINDS.items() if f"| `{name}` | {kind.severity.value} |" not in page] == []


# --- the listing that is looked up from disk, against a dictionary ---


# --- a mirror promises what it shows: nothing else is asked of it, and of that everything ---
@pytest.fixture
def pair(tmp_path):
    with open_pair(tmp_path, clock=ManualClock(), random=Random(1)) as opened:
        for number in range(5):
            opened.commit(**{"shared": str(number), f"f{number}": "x"})
        opened.catch_up()
        yield opened


def worse(pair):
    return [(one.kind, one.where) for one in pair.mirror.fsck(data=True) if one.severity != Severity.INFO]


def test_a_mirror_that_shows_its_source_is_healthy(pair):
    assert head(pair.mirror).id == head(pair.repo).id
    assert worse(pair) == []


def test_what_has_not_arrived_for_a_commit_that_is_not_shown_is_no_damage(pair):
    older = head(pair.repo, "main~2")
    assert store(pair.mirror).delete([f"_lakefs/metaranges/{older.meta_range_file}"]) == []
    pair.commit(new="1")
    pair.mirror.sync()
    assert worse(pair) == []


def test_what_is_missing_of_a_shown_commit_is_damage(pair):
    key = f"_lakefs/metaranges/{head(pair.mirror).meta_range_file}"
    assert store(pair.mirror).delete([key]) == []
    assert worse(pair) == [("metarange_missing", key)]
    assert "unreferenced_objects" not in {finding.kind for finding in pair.mirror.fsck()}


# --- the engine's workers keep what ranges refer to below ``_lakefs/tasks/`` meanwhile ---
@pytest.fixture
def elsewhere(monkeypatch):
    monkeypatch.setattr(ChoosingEngine, "for_work", lambda _engine, _seconds: Elsewhere(2))


def test_a_check_elsewhere_says_what_one_in_process_says_and_leaves_nothing(watched, request):
    store(watched).put(f"data/2026010100/{'0' * 24}", b"x")
    expected, before = [*watched.fsck()], files(watched)
    assert [finding.kind for finding in expected] == ["unreferenced_objects"]
    request.getfixturevalue("elsewhere")
    assert [*watched.fsck()] == expected
    assert files(watched) == before


@pytest.mark.usefixtures("elsewhere")
def test_a_check_writes_nothing_to_a_mirror(pair, monkeypatch):
    monkeypatch.setattr(LocalStore, "put", lambda *_: pytest.fail("something was written"))
    assert [one for one in pair.mirror.fsck() if one.severity != Severity.INFO] == []
