"""Iceberg tables at a mirror: its head shows whole snapshots, and its catalog leads engines to its own files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
import requests
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.expressions import EqualTo
from pyiceberg.table.update import AddSnapshotUpdate
from support.budget import examples
from support.engines import Driver, iceberg_configuration
from support.mirrors import Pair, open_lake, open_pair
from support.served import running

from lakeops import Lake, Mirror, Repository, Settings
from lakeops.gateway.app import serving
from lakeops.model.errors import InvalidInput
from lakeops.store.s3 import S3Store
from lakeops.testing import ManualClock


def rows(*amounts: int) -> pa.Table:
    return pa.table({"amount": pa.array(amounts, pa.int64())})


def amounts(catalog: Catalog) -> list[int]:
    return sorted(catalog.load_table("web.sales").scan().to_arrow()["amount"].to_pylist())


@pytest.fixture
def pair(tmp_path: Path, clock: ManualClock) -> Iterator[Pair]:
    with open_pair(tmp_path, clock=clock, random=Random(7)) as pair:
        yield pair


def catalog(lake: Lake, ref: str = "main") -> Catalog:
    home = lake.settings
    properties = {"py-catalog-impl": "lakeops.iceberg.RefCatalog", "lakeops.database_url": home.catalog_url}
    properties["lakeops.home"] = str(home.home)
    return load_catalog("shop", **properties, warehouse=f"lakefs://flights/{ref}/warehouse")


def test_a_head_shows_a_whole_snapshot_however_files_arrive(pair: Pair) -> None:
    source = catalog(pair.here)
    source.create_namespace("web")
    table = source.create_table("web.sales", rows().schema)
    seen, number = set[int](), 0
    for _ in range(12):  # a write a minute, and files that arrive in any order
        number += 1
        table = source.load_table("web.sales")
        table.append(rows(number))
        if number % 4 == 0:
            source.load_table("web.sales").overwrite(rows(*range(1, number + 1)))
        pair.repo.branch("main").commit("A minute")
        pair.replicator.run(40)
        pair.mirror.sync()
        if pair.mirror.branch("main").exists("warehouse/web/sales/metadata.json"):
            found = amounts(catalog(pair.there))
            assert found == [*range(1, len(found) + 1)]
            seen.add(len(found))
    pair.catch_up()
    assert amounts(catalog(pair.there)) == [*range(1, number + 1)]
    assert len(seen) > 2
    # The mirror reads no file of the source, and keeps the tables after a fail-over.
    Path(pair.repo.storage_namespace.removeprefix("file://")).rename(pair.here.settings.home / "gone")
    pair.fail_over()
    assert amounts(catalog(pair.there)) == [*range(1, number + 1)]


def test_engines_are_not_led_to_the_source(pair: Pair) -> None:
    source = catalog(pair.here)
    source.create_namespace("web")
    source.create_table("web.sales", rows().schema).append(rows(1))
    pair.repo.branch("main").commit("A table")
    pair.catch_up()
    with running(pair.there, None) as url:
        path = f"{url}/iceberg/v1/flights%1Fmain%1Fwarehouse/namespaces/web/tables"
        assert requests.get(path, timeout=30).json()["identifiers"] == [{"namespace": ["web"], "name": "sales"}]
        answer = requests.get(f"{path}/sales", timeout=30)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "BadRequestException")
    assert (
        "read the table at its source, or by pyiceberg without a server, or make the mirror in a bucket"
        in error["message"]
    )
    assert error["message"].startswith("the table's metadata names files below 'file:///")


def test_tables_are_written_at_a_mirror_that_took_over(pair: Pair) -> None:
    """Their metadata goes on to name the lost source, and the files lie here."""
    source = catalog(pair.here)
    source.create_namespace("web")
    source.create_table("web.sales", rows().schema, properties={"write.metadata.previous-versions-max": "2"})
    source.load_table("web.sales").append(rows(1, 2))
    pair.repo.branch("main").commit("A table")
    pair.catch_up()
    Path(pair.repo.storage_namespace.removeprefix("file://")).rename(pair.here.settings.home / "gone")
    repo, there = pair.fail_over(), catalog(pair.there)
    table = there.load_table("web.sales")
    table.append(rows(3))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    forged = table.location().replace("/here/", "/elsewhere/")
    numbers = {"snapshot_id": 77, "parent_snapshot_id": snapshot.snapshot_id, "sequence_number": 9}
    elsewhere = snapshot.manifest_list.replace(table.location(), forged)
    made = snapshot.model_copy(update={**numbers, "manifest_list": elsewhere})
    with pytest.raises(InvalidInput, match="does not lie below the table's location"):
        table.catalog.commit_table(table, (), (AddSnapshotUpdate(snapshot=made),))
    for location in (table.location(), forged):
        with pytest.raises(InvalidInput, match="leave the location out"):
            there.create_table("web.more", rows().schema, location=location)
    there.load_table("web.sales").delete(EqualTo("amount", 1))
    there.create_table("web.new", rows().schema).append(rows(7))
    assert there.load_table("web.new").location().startswith(repo.storage_namespace)
    repo.branch("main").commit("Written at the mirror")
    repo.create_branch("dev")
    for branch, number in (("dev", 4), ("main", 5)):
        catalog(pair.there, branch).load_table("web.sales").append(rows(number))
        repo.branch(branch).commit("Append")
    repo.merge("dev", "main", tables="rebase")
    assert amounts(there) == [2, 3, 4, 5]
    assert [one.kind for one in repo.fsck(data=True) if one.severity != "info"] == []


@pytest.mark.parametrize("place", ["a replica", "in place, after a fail-over"])
def test_tables_are_written_where_a_dump_was_restored(
    pair: Pair, tmp_path: Path, clock: ManualClock, place: str
) -> None:
    """No dump has the mirror's record, and the metadata names the lost source in either place."""
    source = catalog(pair.here)
    source.create_namespace("web")
    source.create_table("web.sales", rows().schema).append(rows(1, 2))
    pair.repo.branch("main").commit("A table")
    pair.catch_up()
    repo = pair.repo if place == "a replica" else pair.fail_over()
    repo.refs.dump()
    gone = Path(pair.repo.storage_namespace.removeprefix("file://")).rename(tmp_path / "gone")
    with open_lake(tmp_path / "heir", clock) as heir:
        heir.restore_repository("flights", gone.as_uri() if place == "a replica" else repo.storage_namespace)
        restored = catalog(heir)
        restored.load_table("web.sales").append(rows(3))
        assert amounts(restored) == [1, 2, 3]


@dataclass(frozen=True)
class Buckets:
    """A repository ``shop`` in one bucket of a server and its mirror in another one, each in a lake of its own."""

    here: Lake
    there: Lake
    repo: Repository
    mirror: Mirror
    source: S3Store

    def publish(self) -> str:
        """Commit what is staged, and let the mirror follow. Returns the mirror's head."""
        self.repo.branch("main").commit("A minute", allow_empty=True)
        self.mirror.replicate()
        self.mirror.sync()
        return self.mirror.branch("main").commit_id


@pytest.fixture
def in_buckets(
    two_buckets: Callable[..., tuple[S3Store, S3Store]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Buckets]]:
    with ExitStack() as opened:

        def make(kind: str, folder: str = "shop") -> Buckets:
            source, mirror = two_buckets(kind, "shop")
            endpoint = source.settings.endpoint_url
            monkeypatch.setenv("LAKEOPS_S3_ENDPOINT_URL", str(endpoint))
            here, there = (
                opened.enter_context(
                    Lake.open(settings=Settings.load(home=tmp_path / name, fsync=False, s3_endpoint_url=endpoint))
                )
                for name in ("here", "there")
            )
            repo = here.create_repository("shop", source.url)
            namespace = f"{mirror.url.rpartition('/')[0]}/{folder}"
            return Buckets(here, there, repo, there.create_mirror("shop", namespace, source=here), source)

        yield make


@pytest.mark.parametrize("folder", ["shop", "mirrors/shop"])
def test_engines_get_the_mirrors_bucket_where_keys_are_equal(
    in_buckets: Callable[..., Buckets], tmp_path: Path, folder: str
) -> None:
    buckets = in_buckets("moto", folder)
    source, mirror = (
        load_catalog(
            "shop",
            **{"py-catalog-impl": "lakeops.iceberg.RefCatalog", "lakeops.home": str(tmp_path / home)},
            warehouse="lakefs://shop/main",
        )
        for home in ("here", "there")
    )
    source.create_namespace("web")
    source.create_table("web.sales", rows().schema).append(rows(1))
    buckets.publish()
    with running(buckets.there, None) as url:
        answer = requests.get(f"{url}/iceberg/v1/shop/namespaces/main%1Fweb/tables/sales", timeout=30)
    told, theirs = answer.json(), buckets.source.bucket
    if folder == "shop":
        ours = buckets.mirror.storage_namespace.split("/")[2]
        assert told["metadata-location"].startswith(f"s3://{ours}/shop/data/tables/")
        assert told["metadata"]["location"].startswith(f"s3://{theirs}/shop/data/tables/")
        assert told["config"][f"s3.access-points.{theirs}"] == ours
    else:
        assert answer.status_code == 400
        assert "make the mirror in a bucket under the source's prefix" in told["error"]["message"]
    keys = [item.key for item in buckets.source.list()]
    assert buckets.source.delete(keys) == []
    assert amounts(mirror) == [1]


STATEMENTS = (
    "INSERT INTO shop.main.web.sales SELECT id, concat('n', id) FROM range({0} * 10, {0} * 10 + 10)",
    "DELETE FROM shop.main.web.sales WHERE id % 10 = {0}",
    """MERGE INTO shop.main.web.sales t USING (SELECT id * 3 AS id FROM range({0} * 5)) s ON t.id = s.id
    WHEN MATCHED THEN UPDATE SET name = 'merged' WHEN NOT MATCHED THEN INSERT (id, name) VALUES (s.id, 'new')""",
)


@pytest.mark.engines
@pytest.mark.s3
@pytest.mark.timeout(900)
def test_spark_reads_a_mirror_while_spark_writes_the_source(
    in_buckets: Callable[..., Buckets], place: Path, tmp_path: Path
) -> None:
    """Each head of the mirror is a snapshot of the source, and no byte of it comes from the source's bucket."""
    buckets = in_buckets("real")
    with ExitStack() as started:
        drivers = []
        for name, lake in (("source", buckets.here), ("mirror", buckets.there)):
            options = started.enter_context(serving(lake, write=lake is buckets.here))
            lines = {**iceberg_configuration(place, options), "spark.sql.catalog.shop.cache-enabled": "false"}
            drivers.append(Driver(place, tmp_path / f"spark-{name}", lines, "iceberg"))
            started.callback(drivers[-1].stop)
        source, mirror = drivers
        modes = ", ".join(f"'write.{verb}.mode' = 'merge-on-read'" for verb in ("delete", "update", "merge"))
        source.run("spark.sql('CREATE NAMESPACE shop.main.web')")
        source.run(
            f'spark.sql("CREATE TABLE shop.main.web.sales (id BIGINT, name STRING) USING iceberg '
            f"TBLPROPERTIES ('format-version' = '2', {modes})\")"
        )

        def at(driver: Driver, ref: str, more: str = "") -> list[list]:
            query = f"SELECT id, name FROM shop.`{ref}`.web.sales {more} ORDER BY id, name"
            found = driver.run(f"value = [[*row] for row in spark.sql({query!r}).collect()]")
            assert isinstance(found, list)
            return found

        shown = {buckets.publish(): at(mirror, "main")}
        writing = source.start(
            f"for number in range({examples(6)}):\n"
            f"    for one in {STATEMENTS!r}:\n"
            "        spark.sql(one.format(number))"
        )
        with ThreadPoolExecutor(1) as pool:
            written, seen = pool.submit(writing), []
            while not written.done():
                head = buckets.publish()
                shown[head] = at(mirror, head)
                seen.append(at(mirror, "main"))
            assert written.result()["error"] == ""
        head = buckets.publish()
        shown[head] = at(mirror, head)
        assert len({len(rows) for rows in shown.values()}) > 2
        assert shown == {commit: at(source, commit) for commit in shown}
        snapshots = source.run(
            "value = [row[0] for row in spark.sql('SELECT snapshot_id FROM shop.main.web.sales.snapshots').collect()]"
        )
        assert isinstance(snapshots, list)
        states = [[], *(at(source, "main", f"VERSION AS OF {one}") for one in snapshots)]
        assert [rows for rows in seen if rows not in states] == []
        # The source is lost while the mirror is read.
        with ThreadPoolExecutor(1) as pool:
            keys = [item.key for item in buckets.source.list()]
            lost = pool.submit(buckets.source.delete, keys)
            while not lost.done():
                assert at(mirror, "main") == shown[head]
            assert lost.result() == []
        assert list(buckets.source.list()) == []
        assert {commit: at(mirror, commit) for commit in shown} == shown
        error = mirror.start("spark.sql('INSERT INTO shop.main.web.sales VALUES (1, \"x\")')")()["error"]
        assert "read-only" in error or "only reads" in error
