"""What a check promises: it reads only, looks at each file once, and does not cry wolf beside live writers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from support.catalogs import everything, expire_commits
from support.damage import catalog, head, metarange, object_key, populate, remove, store
from support.errors import has_kind
from support.faulty_catalog import count_effects
from support.scenes import open_faulty
from support.soundness import assert_sound, worse_than_information

from lakeops import Lake, Repository, Settings
from lakeops.model.errors import StoreUnavailable, Transient
from lakeops.ops.fsck.findings import KINDS, Finding, Severity
from lakeops.testing import Faults


@pytest.fixture
def lake(settings: Settings, faults: Faults):
    with open_faulty(settings, faults) as opened:
        yield opened


@pytest.fixture
def watched(lake: Lake, faults: Faults) -> Repository:
    """A repository whose every effect is counted, and may be hooked."""
    repo = populate(lake)
    faults.revive()
    return repo


def files(repo: Repository) -> dict[str, bytes]:
    return {item.key: store(repo).get(item.key) for item in store(repo).list()}


@pytest.mark.parametrize(("database", "store"), [("sqlite", "local"), ("postgresql", "local"), ("sqlite", "moto")])
@pytest.mark.parametrize("data", [False, True])
def test_a_healthy_repository_gives_no_finding(make, database: str, store: str, data: bool) -> None:
    check = make(database, store).fsck(data=data)
    assert [finding for finding in check if finding.severity != Severity.INFO] == []
    assert check.checked["commits"] == 6
    assert check.checked["ranges"] > 4
    assert check.checked["staged"] == 3
    assert (check.checked["objects"] >= 24) is data


@pytest.mark.parametrize("data", [False, True])
def test_a_check_only_reads(watched: Repository, faults: Faults, data: bool) -> None:
    remove(watched, object_key(watched))
    before = files(watched), everything(catalog(watched))
    faults.revive()
    assert bool(worse_than_information(watched, data=data)) is data
    assert count_effects(faults) == 0
    assert {*faults.counts} <= {"get", "get_range", "open", "head", "list"}
    assert (files(watched), everything(catalog(watched))) == before


def test_each_file_is_read_once_however_many_commits_share_it(watched: Repository, faults: Faults) -> None:
    main = watched.branch("main")
    for number in range(20):
        main.put("z", str(number).encode())
        main.commit(f"commit {number}")
    faults.revive()
    check = watched.fsck(data=True)
    assert [finding for finding in check if finding.severity != Severity.INFO] == []
    reads = Counter(call.key for call in faults.calls if call.operation in {"get", "get_range", "open"})
    assert reads
    assert max(reads.values()) == 1
    assert check.checked["ranges"] == sum(key.startswith("_lakefs/ranges/") for key in reads)


def test_nothing_is_asked_of_what_a_process_remembers(repo: Repository) -> None:
    repo.ref("main").read("f05")
    remove(repo, metarange(repo).row(0).key)
    assert [finding.kind for finding in worse_than_information(repo)] == ["range_missing"]


def test_staged_rows_are_read_a_page_at_a_time(in_database: Repository, monkeypatch) -> None:
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
def test_commits_meanwhile_are_no_damage(watched: Repository, faults: Faults, operation: str, prefix: str) -> None:
    main = watched.branch("main")

    def write() -> None:
        main.put("new", b"new")
        main.commit("meanwhile")
        main.put("newer", b"newer")

    faults.hook(operation, prefix=prefix, action=lambda _: write())
    assert_sound(watched, data=True)
    assert head(watched).message == "meanwhile"


def test_an_object_that_came_after_the_listing_is_there(watched: Repository, faults: Faults, monkeypatch) -> None:
    inspect = type(catalog(watched).audit._inner).snapshot
    main = watched.branch("main")

    def records(self, repository_id: str):
        main.put("late", b"late")
        main.commit("after the listing")
        main.put("later", b"later")
        return inspect(self, repository_id)

    monkeypatch.setattr(type(catalog(watched).audit._inner), "snapshot", records)
    assert_sound(watched, data=True)


@pytest.mark.parametrize("prefix", ["_lakefs/metaranges/", "_lakefs/ranges/"])
def test_what_is_expired_and_swept_meanwhile_is_no_damage(watched: Repository, faults: Faults, prefix: str) -> None:
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

    def sweep() -> None:
        expire_commits(catalog(watched), watched.id, [commit.id])
        store(watched).delete(doomed)

    faults.revive()
    faults.hook("get_range" if "/ranges/" in prefix else "get", prefix=prefix, action=lambda _: sweep())
    assert_sound(watched, data=True)
    assert catalog(watched).commits.get(watched.id, commit.id).expired


# --- a store and a catalog that refuse ---


def test_a_store_that_does_not_answer_is_told_and_the_rest_is_checked(watched: Repository, faults: Faults) -> None:
    broken = metarange(watched).row(1)
    faults.fail("get_range", at=None, prefix=broken.key, error=StoreUnavailable("the store is away"))
    found = worse_than_information(watched)
    assert [(finding.kind, finding.where) for finding in found] == [("range_unreadable", broken.key)]
    assert "the store is away" in found[0].message


@pytest.mark.parametrize(("operation", "kind"), [("get", "metarange_unreadable"), ("open", "object_unreadable")])
def test_a_file_that_cannot_be_read_is_told(watched: Repository, faults: Faults, operation: str, kind: str) -> None:
    metarange_key = f"_lakefs/metaranges/{head(watched).meta_range_file}"
    key = metarange_key if operation == "get" else object_key(watched)
    faults.fail(operation, at=None, prefix=key, error=StoreUnavailable("away"))
    assert [finding.kind for finding in worse_than_information(watched, data=True)] == [kind]


def test_a_namespace_that_cannot_be_listed_is_told_and_the_rest_is_checked(watched: Repository, faults: Faults) -> None:
    remove(watched, object_key(watched))
    faults.fail("list", at=None, error=StoreUnavailable("no listing"))
    kinds = [finding.kind for finding in watched.fsck(data=True)]
    assert kinds == ["namespace_unreadable", "object_missing", "leftovers_unknown"]


def test_a_catalog_that_goes_away_ends_the_check(watched: Repository, monkeypatch) -> None:
    def gone(self, *_args, **_given):
        raise Transient("the catalog is away", kind="catalog_unavailable")

    check = watched.fsck()
    monkeypatch.setattr(type(catalog(watched).audit._inner), "staged_rows", gone)
    with pytest.raises(Transient, check=has_kind("catalog_unavailable")):
        list(check)
    assert list(check) == []


# --- information ---


def by_kind(repo: Repository) -> dict[str, Finding]:
    return {finding.kind: finding for finding in repo.fsck()}


def test_files_that_nothing_needs_are_counted(in_store: Repository) -> None:
    before = by_kind(in_store)
    wrote = {
        "data/2020010100/garbage": b"12345",
        "data/2020010100/more": b"1",
        "_lakefs/ranges/x-y.parquet": b"123",
        "_lakefs/metaranges/x-y.parquet": b"12",
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

    def more(kind: str) -> tuple[int, int]:
        old = before.get(kind)
        return after[kind].count - (old.count if old else 0), after[kind].size_bytes - (old.size_bytes if old else 0)

    assert more("unreferenced_objects") == (2, 6)
    assert more("unreferenced_ranges") == (1, 3)
    assert more("unreferenced_metaranges") == (1, 2)
    assert more("unreferenced_tasks") == (2, 2)
    assert more("stray_files") == (2, 10)


def test_an_upload_in_flight_is_no_leftover(repo: Repository) -> None:
    with repo.branch("main").output("out/") as url:
        (Path(url.removeprefix("file://")) / "part").write_bytes(b"x")
        assert "unreferenced_objects" not in by_kind(repo)
    assert "unreferenced_objects" not in by_kind(repo)


def test_what_lies_in_the_namespace_under_an_absolute_address_is_needed(repo: Repository) -> None:
    from support.damage import forge_tables, with_column

    url = f"{repo.storage_namespace}/{object_key(repo, 'f00')}"
    forge_tables(repo, lambda tables: [with_column(tables[0], "physical_address", url), *tables[1:]])
    assert [finding.kind for finding in repo.fsck(data=True)] == ["address_not_relative"]


def test_every_kind_is_documented() -> None:
    assert all(kind.advice for kind in KINDS.values())
    page = (Path(__file__).parents[2] / "docs" / "fsck.md").read_text(encoding="utf-8")
    assert [name for name, kind in KINDS.items() if f"| `{name}` | {kind.severity.value} |" not in page] == []
