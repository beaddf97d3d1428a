"""Merges that rebase tables: rows are those of one table that both sides wrote, and conflicts are Iceberg's."""

from __future__ import annotations

import json
import random
import warnings
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.expressions import In
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AddSnapshotUpdate
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType
from support.budget import examples
from support.errors import has_kind, raising
from support.scenes import files
from typer.testing import CliRunner

from lakeops import Lake, MergeConflict, Repository, Settings
from lakeops.cli.app import app
from lakeops.gateway.app import serving
from lakeops.model.errors import InvalidInput
from lakeops.model.records import Split, StrategyName
from lakeops.store import layout
from lakeops.testing import ManualClock

FOLDER = "warehouse/web/sales/"


def rows(*amounts: int, day: int = 1) -> pa.Table:
    return pa.table({"day": pa.array([day] * len(amounts), pa.int32()), "amount": pa.array(amounts, pa.int64())})


class Shop:
    """A repository whose branches ``main`` and ``dev`` have a table that pyiceberg writes without a server."""

    def __init__(self, repo: Repository, home: Path) -> None:
        self.repo = repo
        self._home = str(home)
        main = self.catalog("main")
        main.create_namespace("web")
        main.create_table("web.sales", rows().schema)
        self.append("main", 1, 2)
        self.append("main", 3, 4)
        self.commit("main")
        repo.create_branch("dev")

    def catalog(self, ref: str) -> Catalog:
        properties = {"py-catalog-impl": "lakeops.iceberg.RefCatalog", "lakeops.home": self._home}
        return load_catalog("shop", **properties, warehouse=f"lakefs://{self.repo.id}/{ref}/warehouse")

    def table(self, ref: str) -> Table:
        return self.catalog(ref).load_table("web.sales")

    def amounts(self, ref: str) -> list[int]:
        return sorted(self.table(ref).scan().to_arrow()["amount"].to_pylist())

    def commit(self, branch: str) -> None:
        self.repo.branch(branch).commit("Change the table")

    def append(self, branch: str, *amounts: int) -> None:
        self.table(branch).append(rows(*amounts))

    def delete(self, branch: str, *amounts: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # no file may match
            self.table(branch).delete(In("amount", amounts))

    def files(self, ref: str) -> list[DataFile]:
        return [task.file for task in self.table(ref).scan().plan_files()]

    def compact(self, branch: str, *files: DataFile) -> None:
        """Write the rows of some files into one, as Spark's ``rewrite_data_files`` does: a snapshot that replaces."""
        table = self.table(branch)
        chosen = files or self.files(branch)
        whole = [task.file.file_path for task in table.scan().plan_files()]
        held = [table.scan().to_arrow() if len(chosen) == len(whole) else self._rows(table, chosen)]
        requested = table.catalog.commit_table

        def replacing(update: object) -> object:
            if not isinstance(update, AddSnapshotUpdate):
                return update
            snapshot = update.snapshot
            summary = snapshot.summary.model_copy(update={"operation": Operation.REPLACE})
            return AddSnapshotUpdate(snapshot=snapshot.model_copy(update={"summary": summary}))

        def as_replacement(table: Table, requirements: tuple, updates: tuple) -> object:
            return requested(table, requirements, tuple(map(replacing, updates)))

        table.catalog.commit_table = as_replacement  # type: ignore[method-assign]
        from pyiceberg.io.pyarrow import _dataframe_to_data_files

        with table.transaction() as begun, begun.update_snapshot().overwrite() as update:
            for file in chosen:
                update.delete_data_file(file)
            for file in _dataframe_to_data_files(table.metadata, pa.concat_tables(held), table.io):
                update.append_data_file(file)

    def insert_missing(self, branch: str, *amounts: int) -> None:
        """Add the rows that are not there yet, as ``MERGE INTO`` does: a snapshot that overwrites."""
        from pyiceberg.io.pyarrow import _dataframe_to_data_files

        table, new = self.table(branch), sorted({*amounts} - {*self.amounts(branch)})
        with table.transaction() as begun, begun.update_snapshot().overwrite() as update:
            for file in _dataframe_to_data_files(table.metadata, rows(*new), table.io) if new else ():
                update.append_data_file(file)

    def _rows(self, table: Table, files: tuple[DataFile, ...]) -> pa.Table:
        import pyarrow.parquet as pq

        read = []
        for file in files:
            with table.io.new_input(file.file_path).open() as opened:
                read.append(pq.read_table(opened).select(["day", "amount"]).cast(rows().schema))
        return pa.concat_tables(read)

    def merge(self) -> None:
        """Merge dev into main, and look at all that has to hold of the merge commit."""
        told = self.repo.preview_merge("dev", "main", tables="rebase").summary
        done = self.repo.merge("dev", "main", tables="rebase")
        assert done.reference is not None
        assert done.summary == told
        kinds = Counter(change.type.value for change in self.repo.diff("main~1", "main"))
        assert done.summary.to_json() == {name: kinds[name] for name in ("added", "removed", "changed")}
        assert [one for one in self.repo.fsck(data=True) if one.severity != "info"] == []
        self.check("main")

    def check(self, ref: str) -> None:
        """The objects of the table's folder are the files that its metadata names, and no others."""
        table = self.table(ref)
        named = {table.metadata_location, *(one.metadata_file for one in table.metadata.metadata_log)}
        for snapshot in table.snapshots():
            manifests = snapshot.manifests(table.io)
            named |= {snapshot.manifest_list, *(one.manifest_path for one in manifests)}
            for manifest in manifests:
                named |= {one.data_file.file_path for one in manifest.fetch_manifest_entry(table.io)}
        shown = {entry.physical_address for entry in self.repo.ref(ref).list(FOLDER) if "README" not in entry.path}
        assert shown == named


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    with Lake.open(settings=Settings.model_construct(home=tmp_path, fsync=False, committer="tester")) as lake:
        yield lake


SPLITS = {"one range": Split(), "many ranges": Split(1, 2, 4)}


@pytest.fixture
def split() -> str:
    return "one range"


@pytest.fixture
def shop(lake: Lake, split: str) -> Shop:
    return Shop(lake.create_repository("shop", split=SPLITS[split]), lake.settings.home)


def evolve(shop: Shop, branch: str) -> None:
    with shop.table(branch).update_schema() as update:
        update.add_column(f"of_{branch}", LongType())


def set_property(shop: Shop, branch: str) -> None:
    with shop.table(branch).transaction() as begun:
        begun.set_properties({"owner": branch})


def partition(shop: Shop, branch: str) -> None:
    with shop.table(branch).update_spec() as update:
        update.add_field("day", IdentityTransform(), "day")


def expire(shop: Shop, branch: str) -> None:
    table = shop.table(branch)
    table.maintenance.expire_snapshots().by_ids([one.snapshot_id for one in table.snapshots()[:-1]]).commit()


def as_version_3(shop: Shop, branch: str) -> None:
    """What an engine wrote beside the catalog, which takes no such table."""
    path = f"{FOLDER}metadata.json"
    told = json.loads(shop.repo.ref(branch).read(path))
    shop.repo.branch(branch).put(path, json.dumps({**told, "format-version": 3, "next-row-id": 0}).encode())


def without_properties(shop: Shop, branch: str) -> None:
    path = f"{FOLDER}metadata.json"
    told = json.loads(shop.repo.ref(branch).read(path))
    shop.repo.branch(branch).put(path, json.dumps({**told, "properties": {}}).encode())


def name_as_manifests(shop: Shop, branch: str, other: str) -> None:
    """Metadata whose current snapshot names another file as its list of manifests, or itself as its parent."""
    path = f"{FOLDER}metadata.json"
    table, told = shop.table(branch), json.loads(shop.repo.ref(branch).read(path))
    files = {"a manifest": table.inspect.manifests()["path"][0].as_py(), "metadata": table.metadata_location}
    (last,) = (one for one in told["snapshots"] if one["snapshot-id"] == told["current-snapshot-id"])
    last |= {"manifest-list": files[other]} if other in files else {"parent-snapshot-id": last["snapshot-id"]}
    shop.repo.branch(branch).put(path, json.dumps(told).encode())


def write_anew(shop: Shop, branch: str) -> None:
    catalog = shop.catalog(branch)
    catalog.drop_table("web.sales")
    catalog.create_table("web.sales", rows().schema)
    shop.append(branch, 7)


Step = Callable[[Shop, str], object]
APPEND: dict[str, Step] = {
    branch: (lambda shop, at, a=amount: shop.append(at, a)) for branch, amount in (("dev", 10), ("main", 20))
}
FOLLOWING: dict[str, tuple[list[Step], list[Step], list[int]]] = {
    "both append": ([APPEND["dev"]], [APPEND["main"]], [1, 2, 3, 4, 10, 20]),
    "several appends": ([APPEND["dev"]] * 2, [APPEND["main"]] * 2, [1, 2, 3, 4, 10, 10, 20, 20]),
    "an append after a deletion": ([APPEND["dev"]], [lambda s, at: s.delete(at, 1)], [2, 3, 4, 10]),
    "an append after a compaction": ([APPEND["dev"]], [lambda s, at: s.compact(at)], [1, 2, 3, 4, 10]),
    "an append after a compaction whose files are expired": (
        [APPEND["dev"]],
        [lambda s, at: s.compact(at), expire],
        [1, 2, 3, 4, 10],
    ),
    "a compaction after an append": ([lambda s, at: s.compact(at)], [APPEND["main"]], [1, 2, 3, 4, 20]),
    "a compaction and an append": (
        [lambda s, at: s.compact(at), APPEND["dev"]],
        [APPEND["main"]],
        [1, 2, 3, 4, 10, 20],
    ),
    "compactions of different files": (
        [lambda s, at: s.compact(at, s.files(at)[0])],
        [lambda s, at: s.compact(at, s.files(at)[1])],
        [1, 2, 3, 4],
    ),
    "a deletion after a compaction of another file": (
        [lambda s, at: s.delete(at, 1, 2)],
        [lambda s, at: s.compact(at, *(one for one in s.files(at) if one.lower_bounds[2][0] == 3))],
        [3, 4],
    ),
    "snapshots expired at the source": ([APPEND["dev"], expire], [APPEND["main"]], [1, 2, 3, 4, 10, 20]),
    "snapshots expired at the destination": ([APPEND["dev"]], [APPEND["main"], expire], [1, 2, 3, 4, 10, 20]),
    "a column of the source": ([evolve, APPEND["dev"]], [APPEND["main"]], [1, 2, 3, 4, 10, 20]),
    "a column of the destination": ([APPEND["dev"]], [evolve, APPEND["main"]], [1, 2, 3, 4, 10, 20]),
    "rows merged after a compaction": (
        [lambda s, at: s.insert_missing(at, 4, 5)],
        [lambda s, at: s.compact(at)],
        [1, 2, 3, 4, 5],
    ),
    "an append after merged rows": ([APPEND["dev"]], [lambda s, at: s.insert_missing(at, 4, 5)], [1, 2, 3, 4, 5, 10]),
    "a property of the source": ([set_property], [APPEND["main"]], [1, 2, 3, 4, 20]),
    "properties that went": ([without_properties], [APPEND["main"]], [1, 2, 3, 4, 20]),
    "a snapshot that is its own ancestor": (
        [APPEND["dev"], lambda s, at: name_as_manifests(s, at, "")],
        [APPEND["main"]],
        [1, 2, 3, 4, 10, 20],
    ),
    "a deletion beside a property": ([lambda s, at: s.delete(at, 1)], [set_property], [2, 3, 4]),
}


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", FOLLOWING)
def test_a_change_follows_the_other_sides(shop: Shop, name: str) -> None:
    theirs, ours, expected = FOLLOWING[name]
    for branch, steps in (("dev", theirs), ("main", ours)):
        for step in steps:
            step(shop, branch)
        shop.commit(branch)
    with pytest.raises(MergeConflict) as conflict:
        shop.repo.merge("dev", "main")
    assert conflict.value.conflicts == [f"{FOLDER}metadata.json"]
    shop.merge()
    assert shop.amounts("main") == expected
    names = {field.name for field in shop.table("main").schema().fields} - {"day", "amount"}
    assert names == {f"of_{at}" for at, steps in (("dev", theirs), ("main", ours)) if evolve in steps}
    shop.repo.delete_branch("dev")
    assert shop.amounts("main") == expected
    assert shop.repo.preview_merge("main~1", "main", tables="rebase").up_to_date


@pytest.mark.parametrize(
    "name", ["both append", "a compaction after an append", "an append after a compaction whose files are expired"]
)
def test_garbage_collection_keeps_what_the_merged_table_names(tmp_path: Path, name: str) -> None:
    """Files of the dropped branch's own snapshots go. Its data files that the destination's table got stay."""
    clock = ManualClock(datetime.now(UTC))
    with Lake.open(settings=Settings.model_construct(home=tmp_path, fsync=False), clock=clock) as lake:
        shop = Shop(lake.create_repository("shop"), tmp_path)
        theirs, ours, expected = FOLLOWING[name]
        for branch, steps in (("dev", theirs), ("main", ours)):
            for step in steps:
                step(shop, branch)
            shop.commit(branch)
        own = {shop.table("dev").metadata_location, shop.table("dev").current_snapshot().manifest_list}
        shop.merge()
        shop.repo.delete_branch("dev")
        shop.repo.gc.set_rules({"default_retention_days": 1, "branches": []})
        clock.advance(days=9)
        swept = shop.repo.gc.sweep(shop.repo.gc.mark().id)
        there = {one.split("/")[-1] for one in files(shop.repo, layout.DATA)}
        assert swept.deleted > 0
        assert not there & {one.rpartition("/")[2] for one in own}
        assert [one.kind for one in shop.repo.fsck(data=True) if one.severity != "info"] == []
        assert shop.amounts("main") == expected
        shop.check("main")


CONTRADICTING: dict[str, tuple[list[Step], list[Step], str]] = {
    "a deletion, and an append": (
        [lambda s, at: s.delete(at, 1)],
        [APPEND["main"]],
        "the source deleted, changed or merged rows",
    ),
    "two deletions": (
        [lambda s, at: s.delete(at, 1)],
        [lambda s, at: s.delete(at, 3)],
        "the source deleted, changed or merged",
    ),
    "two deletions in one file": ([lambda s, at: s.delete(at, 1)], [lambda s, at: s.delete(at, 2)], "the same files"),
    "two compactions": ([lambda s, at: s.compact(at)], [lambda s, at: s.compact(at)], "the same files"),
    "a compaction of what was deleted": (
        [lambda s, at: s.compact(at)],
        [lambda s, at: s.delete(at, 1, 2)],
        "the same files",
    ),
    "rows that both sides merged": (
        [lambda s, at: s.insert_missing(at, 5)],
        [lambda s, at: s.insert_missing(at, 5)],
        "the source deleted, changed or merged",
    ),
    "snapshots expired between": (
        [APPEND["dev"], APPEND["dev"], expire],
        [APPEND["main"]],
        "the source expired snapshots that changed rows",
    ),
    "format version 3": ([as_version_3], [APPEND["main"]], "format-version is 1 or 2 here"),
    "format version 3 at the destination": ([APPEND["dev"]], [as_version_3], "format-version is 1 or 2 here"),
    "two schemas": ([evolve], [evolve], "both sides changed its schema"),
    "one property": ([set_property], [set_property], "both sides changed its property owner"),
    "another partitioning": ([APPEND["dev"]], [partition], "under another partitioning"),
    "a manifest in place of a list": (
        [APPEND["dev"], lambda s, at: name_as_manifests(s, at, "a manifest")],
        [APPEND["main"]],
        "",
    ),
    "a list that is no Avro file": (
        [APPEND["dev"], lambda s, at: name_as_manifests(s, at, "metadata")],
        [APPEND["main"]],
        "is no .avro file",
    ),
    "a dropped table": (
        [lambda s, at: s.catalog(at).drop_table("web.sales")],
        [APPEND["main"]],
        "one side created, dr",
    ),
    "a table made anew": ([write_anew], [APPEND["main"]], "one side dropped it and created it again"),
}


@pytest.mark.parametrize("name", CONTRADICTING)
def test_what_contradicts_stays_a_conflict_with_the_tables_name(shop: Shop, name: str) -> None:
    theirs, ours, reason = CONTRADICTING[name]
    for branch, steps in (("dev", theirs), ("main", ours)):
        for step in steps:
            step(shop, branch)
        shop.commit(branch)
    head, before = shop.repo.branch("main").commit_id, shop.repo.ref("main").read(f"{FOLDER}metadata.json")
    for ask in (shop.repo.merge, shop.repo.preview_merge):
        with pytest.raises(MergeConflict, match=f"table warehouse/web/sales: .*{reason}") as conflict:
            ask("dev", "main", tables="rebase")
        assert conflict.value.conflicts == [f"{FOLDER}metadata.json"]
    assert shop.repo.branch("main").commit_id == head
    assert shop.repo.ref("main").read(f"{FOLDER}metadata.json") == before
    assert len(shop.repo.table_diffs("dev~1", "dev", [f"{FOLDER}metadata.json"])) <= 1


@pytest.mark.parametrize("compacted", [None, "dev", "main"])
@pytest.mark.parametrize("took", ["cherry-pick", "squash"])
def test_rows_that_the_destination_took_otherwise_than_by_a_merge_come_once(
    shop: Shop, took: str, compacted: str | None
) -> None:
    shop.append("dev", 10)
    shop.commit("dev")
    if took == "squash":
        shop.repo.merge("dev", "main", squash=True)
    else:
        shop.repo.cherry_pick("dev", "main")
    if compacted:
        shop.compact(compacted)
        expire(shop, compacted)
    for branch, amount in (("dev", 11), ("main", 20)):
        shop.append(branch, amount)
        shop.commit(branch)
    if compacted is None:
        shop.merge()
        assert shop.amounts("main") == [1, 2, 3, 4, 10, 11, 20]
        return
    with pytest.raises(MergeConflict, match="both sides took the same commits"):
        shop.repo.merge("dev", "main", tables="rebase")


def test_changes_that_expired_are_noticed_in_a_table_that_was_empty(shop: Shop) -> None:
    shop.catalog("main").drop_table("web.sales")
    shop.catalog("main").create_table("web.sales", rows().schema)
    shop.commit("main")
    shop.repo.branch("dev").move("main")
    for branch in ("dev", "main"):
        shop.append(branch, 6)
        shop.insert_missing(branch, 5)
        shop.compact(branch)
        expire(shop, branch)
        shop.commit(branch)
    with pytest.raises(MergeConflict, match="the source expired snapshots that changed rows"):
        shop.repo.merge("dev", "main", tables="rebase")


def test_a_merge_counts_no_file_that_the_destination_kept(shop: Shop) -> None:
    shop.delete("main", 1, 2)
    shop.commit("main")
    shop.repo.branch("dev").move("main")
    dev = shop.table("dev")
    dev.manage_snapshots().rollback_to_snapshot(dev.snapshots()[1].snapshot_id).commit()
    set_property(shop, "main")
    for branch in ("dev", "main"):
        shop.commit(branch)
    shop.merge()
    assert shop.amounts("main") == [1, 2, 3, 4]


def test_sides_that_merged_a_table_across_each_other_conflict(shop: Shop) -> None:
    for branch, amount in (("dev", 10), ("main", 20)):
        shop.append(branch, amount)
        shop.commit(branch)
    heads = {branch: shop.repo.branch(branch).commit_id for branch in ("dev", "main")}
    for branch, other in (("main", "dev"), ("dev", "main")):
        shop.repo.merge(heads[other], branch, tables="rebase")
        shop.append(branch, 30)
        shop.commit(branch)
    with pytest.raises(MergeConflict, match="both sides merged it across each other"):
        shop.repo.merge("dev", "main", tables="rebase")


@pytest.mark.parametrize("strategy", ["source-wins", "dest-wins"])
@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("compacted", ["main", "dev"])
def test_a_strategy_tears_no_table_apart(shop: Shop, strategy: StrategyName, squash: bool, compacted: str) -> None:
    """The files that one side's snapshots need may be those that the other side expired."""
    repo = shop.repo
    shop.compact(compacted)
    expire(shop, compacted)
    shop.append("dev" if compacted == "main" else "main", 10)
    for branch in ("dev", "main"):
        repo.branch(branch).put("orders.csv", branch.encode())
        shop.commit(branch)
    head = repo.branch("main").commit_id
    says = "table warehouse/web/sales: a strategy would mix the files of two tables"
    for ask in (repo.merge, repo.preview_merge):
        with pytest.raises(MergeConflict, match=says) as conflict:
            ask("dev", "main", strategy=strategy, squash=squash)
        assert conflict.value.conflicts == [f"{FOLDER}metadata.json"]
    assert repo.branch("main").commit_id == head
    # One side's table, whole: the other side takes it over first.
    kept, other = ("dev", "main") if strategy == "source-wins" else ("main", "dev")
    repo.branch(other).delete_prefix(FOLDER)
    repo.branch(other).copy(FOLDER, FOLDER, ref=kept, recursive=True)
    shop.commit(other)
    expected = shop.amounts(kept)
    repo.merge("dev", "main", strategy=strategy, squash=squash)
    assert (shop.amounts("main"), repo.ref("main").read("orders.csv")) == (expected, kept.encode())
    shop.check("main")


@pytest.mark.parametrize("dropped", ["main", "dev"])
def test_a_strategy_brings_back_no_part_of_a_table(shop: Shop, dropped: str) -> None:
    shop.append("dev" if dropped == "main" else "main", 10)
    shop.catalog(dropped).drop_table("web.sales")
    for branch in ("dev", "main"):
        shop.commit(branch)
    for strategy in ("source-wins", "dest-wins"):
        with pytest.raises(
            MergeConflict, match="table warehouse/web/sales: a strategy would mix the files of two tables"
        ):
            shop.repo.merge("dev", "main", strategy=strategy)


def test_files_beside_tables_merge_as_ever(shop: Shop) -> None:
    """Objects that somebody put into the table's folder are none of the table's, and other conflicts stay."""
    repo = shop.repo
    for branch, amount in (("dev", 10), ("main", 20)):
        shop.append(branch, amount)
    repo.branch("dev").put(f"{FOLDER}README.md", b"of dev")
    repo.branch("dev").put("orders.csv", b"of dev")
    shop.commit("dev")
    shop.commit("main")
    shop.merge()
    assert repo.ref("main").read(f"{FOLDER}README.md") == b"of dev"
    for branch, amount in (("dev", 11), ("main", 21)):
        shop.append(branch, amount)
        repo.branch(branch).put("orders.csv", branch.encode())
        repo.branch(branch).put("metadata.json", branch.encode())
        shop.commit(branch)
    with pytest.raises(MergeConflict) as conflict:
        repo.merge("dev", "main", tables="rebase")
    assert conflict.value.conflicts == ["metadata.json", "orders.csv"]


@pytest.mark.parametrize("options", [{"squash": True}, {"strategy": "source-wins"}, {"tables": "append"}])
def test_options_that_do_not_go_together(shop: Shop, options: dict) -> None:
    with pytest.raises(InvalidInput):
        shop.repo.merge("dev", "main", **{"tables": "rebase", **options})


def test_a_second_call_under_the_key_gives_the_first_merge(shop: Shop) -> None:
    for branch, amount in (("dev", 10), ("main", 20)):
        shop.append(branch, amount)
        shop.commit(branch)
    first = shop.repo.merge("dev", "main", tables="rebase", idempotency_key="k")
    assert shop.repo.merge("dev", "main", tables="rebase", idempotency_key="k").reference == first.reference
    with pytest.raises(Exception) as reused:
        shop.repo.merge("dev", "main", idempotency_key="k")
    assert has_kind(reused.value, "key_reused")
    assert shop.amounts("main") == [1, 2, 3, 4, 10, 20]


@settings(max_examples=examples(4), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_histories_of_two_branches_lose_and_double_no_row(lake: Lake, seed: int) -> None:
    """Rows of the merged table are those of the base, without those that one side deleted, and with all appended."""
    dice = random.Random(seed)
    split = SPLITS[dice.choice([*SPLITS])]
    shop = Shop(lake.create_repository(f"shop-{uuid4().hex}", split=split), lake.settings.home)
    model = {branch: {1, 2, 3, 4} for branch in ("main", "dev")}
    base, number = {1, 2, 3, 4}, 10

    for _ in range(4):
        for branch in ("main", "dev"):
            for _ in range(dice.randrange(3)):
                doing = dice.choice(["append", "append", "append", "compact", "delete", "expire", "merge"])
                if doing == "append":
                    number += 1
                    shop.append(branch, number)
                    model[branch] = model[branch] | {number}
                elif doing == "merge":
                    looked_for = dice.sample(range(1, 8), 2)
                    shop.insert_missing(branch, *looked_for)
                    model[branch] = model[branch] | set(looked_for)
                elif doing == "delete" and model[branch]:
                    gone = set(dice.sample(sorted(model[branch]), 1))
                    shop.delete(branch, *gone)
                    model[branch] = model[branch] - gone
                elif doing == "compact" and shop.files(branch):
                    shop.compact(branch, *dice.sample(shop.files(branch), dice.randint(1, len(shop.files(branch)))))
                elif doing == "expire":
                    expire(shop, branch)
            if shop.repo.branch(branch).is_dirty:
                shop.commit(branch)
        try:
            if shop.repo.preview_merge("dev", "main", tables="rebase").up_to_date:
                continue
        except MergeConflict as conflict:
            assert conflict.conflicts == [f"{FOLDER}metadata.json"]
            assert shop.amounts("main") == sorted(model["main"])
            shop.repo.delete_branch("dev")
            shop.repo.create_branch("dev")
            model["dev"] = set(model["main"])
        else:
            shop.merge()
            deleted = (base - model["main"]) | (base - model["dev"])
            model["main"] = (model["main"] | model["dev"]) - deleted
            assert shop.amounts("main") == sorted(model["main"])
            if dice.random() < 0.5:  # otherwise dev goes on from where it is
                shop.repo.merge("main", "dev")
                model["dev"] = set(model["main"])
        base = set(model["dev"])
        assert shop.amounts("dev") == sorted(model["dev"])


VERBS: dict[str, Callable[..., object]] = {
    "merge": lambda repo, **told: repo.merge("dev", "main", **told),
    "merge and rebase": lambda repo, **told: repo.merge("dev", "main", tables="rebase", **told),
    "cherry-pick": lambda repo, **told: repo.cherry_pick("dev", "main", **told),
    "revert": lambda repo, **told: repo.branch("main").revert("main", **told),
}


@pytest.mark.parametrize("written", ["Iceberg", "Delta", "an object", "an object, and sealed"])
@pytest.mark.parametrize("verb", VERBS)
def test_nothing_is_published_beneath_what_was_staged_meanwhile(
    shop: Shop, lake: Lake, verb: str, written: str
) -> None:
    """A writer of a table looks at the head. A table that rests on the old head would hide what the new one brings."""
    repo = shop.repo

    def write(branch: str, amount: int) -> None:
        if written == "Iceberg":
            shop.append(branch, amount)
        elif written == "Delta":
            write_deltalake(f"s3://shop/{branch}/t", rows(amount), mode="append", storage_options=options)
        else:
            seen = repo.ref(branch).find("t.csv")
            repo.branch(branch).put("t.csv", str(amount).encode(), if_absent=seen is None, seen=seen)

    def meanwhile(_: str) -> None:
        write("main", 20)
        if "sealed" in written:  # as a commit that has begun leaves it
            lake.catalog.staging.seal(repo.id, "main", token="next")

    with serving(lake, write=True) as options:
        write("main", 5)
        shop.commit("main")
        repo.branch("dev").move("main")
        write("dev", 10)
        shop.commit("dev")
        head = repo.branch("main").commit_id
        with raising("dirty_branch"):
            VERBS[verb](repo, on_head=meanwhile)
        assert repo.branch("main").commit_id == head


def test_diffs_speak_of_tables(shop: Shop, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, columns and snapshots: on the command line, on the page of the comparison and in an approval's form."""
    from lakeops.airflow.previews import MergeOutcome

    repo = shop.repo
    repo.branch("dev").put("data/metadata.json", b"of no table")
    shop.append("dev", 10, 11, 12)
    shop.delete("dev", 1)
    evolve(shop, "dev")
    said = "table warehouse/web/sales: rows: 4 added, 2 deleted; column of_dev long added; 2 new snapshots"
    monkeypatch.setenv("LAKEOPS_HOME", str(lake.settings.home))

    def told(*args: str) -> list[str]:
        result = CliRunner().invoke(app, ["diff", *args])
        assert result.exit_code == 0, result.output
        return [line for line in result.stderr.splitlines() if line.startswith("table ")]

    assert told("lakefs://shop/dev") == [said]
    shop.commit("dev")
    shop.append("main", 20)
    shop.commit("main")
    assert told("lakefs://shop/main", "lakefs://shop/dev") == [said]
    (back,) = told("lakefs://shop/main", "lakefs://shop/dev", "--two-way")
    assert back.startswith("table warehouse/web/sales: rows: 4 added, 3 deleted; column of_dev long added")
    outcome = MergeOutcome.of(repo, repo.branch("main").commit_id, repo.branch("dev").commit_id)
    assert [str(one) for one in outcome.tables] == [said]
    base = repo.merge_base("main", "dev").id
    assert [one.snapshots for one in repo.table_diffs(base, "main", [f"{FOLDER}metadata.json"])] == [1]
    (dropped,) = repo.table_diffs("dev", f"{base}~1", [f"{FOLDER}metadata.json", "data/metadata.json"])
    assert (dropped.rows, dropped.columns[1]) == ((0, 6), {})
