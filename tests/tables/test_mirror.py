"""Iceberg tables at a mirror: its head shows whole snapshots, and its catalog leads engines to its own files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
import requests
from pyiceberg.catalog import Catalog, load_catalog
from support.mirrors import Pair, open_pair
from support.served import running

from lakeops.testing import ManualClock


def rows(*amounts: int) -> pa.Table:
    return pa.table({"amount": pa.array(amounts, pa.int64())})


def amounts(catalog: Catalog) -> list[int]:
    return sorted(catalog.load_table("web.sales").scan().to_arrow()["amount"].to_pylist())


@pytest.fixture
def pair(tmp_path: Path, clock: ManualClock) -> Iterator[Pair]:
    with open_pair(tmp_path, clock=clock, random=Random(7)) as pair:
        yield pair


def catalog(pair: Pair, side: str) -> Catalog:
    home = (pair.here if side == "here" else pair.there).settings
    properties = {"py-catalog-impl": "lakeops.iceberg.RefCatalog", "lakeops.database_url": home.catalog_url}
    properties["lakeops.home"] = str(home.home)
    return load_catalog("shop", **properties, warehouse="lakefs://flights/main/warehouse")


def test_a_head_shows_a_whole_snapshot_however_files_arrive(pair: Pair) -> None:
    source = catalog(pair, "here")
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
            found = amounts(catalog(pair, "there"))
            assert found == [*range(1, len(found) + 1)]
            seen.add(len(found))
    pair.catch_up()
    assert amounts(catalog(pair, "there")) == [*range(1, number + 1)]
    assert len(seen) > 2
    # The mirror reads no file of the source, and keeps the tables after a fail-over.
    Path(pair.repo.storage_namespace.removeprefix("file://")).rename(pair.here.settings.home / "gone")
    pair.fail_over()
    assert amounts(catalog(pair, "there")) == [*range(1, number + 1)]


def test_engines_are_not_led_to_the_source(pair: Pair) -> None:
    source = catalog(pair, "here")
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
    assert "read the table at its source, or make the mirror in a bucket under the source's prefix" in error["message"]
    assert error["message"].startswith("the table's metadata names files below 'file:///")
