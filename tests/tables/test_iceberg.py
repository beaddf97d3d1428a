"""pyiceberg's own writers and readers on branches: no row is lost, and conflicts are the format's own."""

from __future__ import annotations

import bz2
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.expressions import EqualTo
from support.errors import has_kind

from lakeops import Lake, Repository
from lakeops.fs import LakeopsFileSystem
from lakeops.model.errors import InvalidInput, MergeConflict

Open = Callable[[str], Catalog]
pytestmark = pytest.mark.filterwarnings("ignore:Delete operation did not match any records")


def rows(*amounts: int, day: int = 1) -> pa.Table:
    return pa.table({"day": pa.array([day] * len(amounts), pa.int32()), "amount": pa.array(amounts, pa.int64())})


@pytest.fixture
def catalog(shop: Repository, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Open:
    settings = lake.settings
    monkeypatch.setenv("LAKEOPS_HOME", str(settings.home))
    monkeypatch.setenv("LAKEOPS_FSYNC", "false")
    monkeypatch.setattr(LakeopsFileSystem, "_opened", {})
    impl = {"py-catalog-impl": "lakeops.iceberg.RefCatalog"}
    return lambda ref: load_catalog("shop", **impl, warehouse=f"lakefs://shop/{ref}/warehouse")


@pytest.fixture
def published(shop: Repository, catalog: Open) -> Repository:
    main = catalog("main")
    main.create_namespace("web", {"owner": "ada"})
    main.create_table("web.sales", rows().schema).append(rows(1, 2))
    shop.branch("main").commit("Create the table")
    return shop


def amounts(catalog: Catalog, table: str = "web.sales") -> list[int]:
    return sorted(catalog.load_table(table).scan().to_arrow()["amount"].to_pylist())


def test_a_table_is_read_at_any_ref(published: Repository, catalog: Open) -> None:
    published.create_tag("v1", "main")
    catalog("main").load_table("web.sales").append(rows(3))
    assert amounts(catalog("main")) == [1, 2, 3]
    assert amounts(catalog("main@")) == [1, 2]
    commit = published.branch("main").commit("Append").id
    assert amounts(catalog(commit)) == [1, 2, 3]
    assert amounts(catalog("main~1")) == amounts(catalog("v1")) == [1, 2]
    history = catalog("main").load_table("web.sales")
    assert len(history.history()) == 2
    with pytest.raises(Exception, match="v1"):
        catalog("v1").load_table("web.sales").append(rows(4))
    published.create_branch("dev")
    assert amounts(catalog("dev")) == [1, 2, 3]
    locations = [entry.path for entry in published.ref("main").list("warehouse/web/sales/metadata/v")]
    assert [path.rpartition("/")[2] for path in locations] == [f"v{n}.metadata.json" for n in (1, 2, 3)]


def test_writers_who_contradict_get_iceberg_s_own_conflict(published: Repository, catalog: Open) -> None:
    first, second = catalog("main").load_table("web.sales"), catalog("main").load_table("web.sales")
    # The transaction of the second one is under way when the first one commits.
    with pytest.raises((CommitFailedException, ValidationException)), second.transaction() as begun:
        begun.delete(EqualTo("amount", 1))
        first.overwrite(rows(7), EqualTo("amount", 1))
    assert amounts(catalog("main")) == [2, 7]


def test_writers_at_once_lose_no_row(published: Repository, catalog: Open) -> None:
    meet = threading.Barrier(3)

    def write(number: int) -> None:
        meet.wait()
        while True:  # until Iceberg's conflict comes no more
            with suppress(CommitFailedException):
                catalog("main").load_table("web.sales").append(rows(100 + number))
                return

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write, range(3)))
    assert amounts(catalog("main")) == [1, 2, 100, 101, 102]


def test_appends_on_two_branches_conflict_in_the_merge(published: Repository, catalog: Open) -> None:
    published.create_branch("dev")
    catalog("dev").load_table("web.sales").append(rows(10, day=2))
    published.branch("dev").commit("dev")
    catalog("main").load_table("web.sales").append(rows(20, day=3))
    published.branch("main").commit("main")
    with pytest.raises(MergeConflict) as conflict:
        published.merge("dev", "main")
    assert conflict.value.conflicts == ["warehouse/web/sales/metadata/v3.metadata.json"]
    assert (amounts(catalog("main")), amounts(catalog("dev"))) == ([1, 2, 20], [1, 2, 10])
    # Once more on what main is now: nothing is lost.
    published.create_branch("again")
    new = catalog("dev").load_table("web.sales").scan(EqualTo("day", 2)).to_arrow()
    catalog("again").load_table("web.sales").append(new)
    published.branch("again").commit("again")
    published.merge("again", "main")
    assert amounts(catalog("main")) == [1, 2, 10, 20]


def test_a_merge_brings_tables_whole_and_needs_no_branch_afterwards(published: Repository, catalog: Open) -> None:
    published.create_branch("dev")
    dev = catalog("dev")
    dev.load_table("web.sales").append(rows(10))
    dev.load_table("web.sales").delete(EqualTo("amount", 1))
    dev.create_table("web.refunds", rows().schema).append(rows(30))
    published.branch("dev").commit("dev")
    catalog("main").create_table("web.visits", rows().schema).append(rows(5))
    published.branch("main").commit("main")
    published.merge("dev", "main")
    published.delete_branch("dev")
    main = catalog("main")
    assert main.list_tables("web") == [("web", "refunds"), ("web", "sales"), ("web", "visits")]
    assert [amounts(main, f"web.{name}") for name in ("sales", "refunds", "visits")] == [[2, 10], [30], [5]]


def test_names_and_what_is_not_there(published: Repository, catalog: Open) -> None:
    main = catalog("main")
    assert main.list_namespaces() == [("web",)]
    assert main.load_namespace_properties("web") == {"owner": "ada"}
    main.update_namespace_properties("web", {"owner"}, {"team": "sales"})
    assert main.load_namespace_properties("web") == {"team": "sales"}
    assert (main.table_exists("web.sales"), main.table_exists("web.none")) == (True, False)
    with pytest.raises(NamespaceAlreadyExistsError):
        main.create_namespace("web")
    with pytest.raises(TableAlreadyExistsError):
        main.create_table("web.sales", rows().schema)
    with pytest.raises(NoSuchNamespaceError):
        main.create_table("none.sales", rows().schema)
    with pytest.raises(NoSuchTableError):
        main.load_table("web.none")
    with pytest.raises(InvalidInput):
        main.create_namespace("a/b")
    with pytest.raises(NamespaceNotEmptyError):
        main.drop_namespace("web")
    with pytest.raises(InvalidInput, match="needs the name of a branch", check=has_kind("invalid_ref")):
        catalog("main~1").create_namespace("more")
    main.drop_table("web.sales")
    with pytest.raises(NoSuchTableError):
        main.drop_table("web.sales")
    main.drop_namespace("web")
    assert (main.list_namespaces(), amounts(catalog("main@"))) == ([], [1, 2])


@pytest.mark.parametrize("text", [b"[" * 100_000, b"[1]", b"{"])
def test_properties_that_are_none_are_one_line(published: Repository, catalog: Open, text: bytes) -> None:
    published.branch("main").put("warehouse/web/_namespace.json", text)
    with pytest.raises(InvalidInput, match="holds no properties of a namespace"):
        catalog("main").load_namespace_properties("web")


def test_metadata_that_is_too_large_is_not_read(
    published: Repository, catalog: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakeops.iceberg.MOST_METADATA", 10)
    for ask in (
        lambda: catalog("main").load_table("web.sales"),
        lambda: catalog("main").load_namespace_properties("web"),
    ):
        with pytest.raises(InvalidInput, match="metadata has 10 at most"):
            ask()


@pytest.mark.parametrize("codec", ["deflate", "zstandard", "bzip2", "null", "lzma"])
def test_a_manifest_that_decodes_to_too_much_is_not_decoded(
    shop: Repository, monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    """A few kilobytes of Avro may hold gigabytes of zeros, or claim more records than they have bytes."""
    from lakeops import iceberg

    packed = {
        "deflate": lambda data: zlib.compress(data, wbits=-15),
        "zstandard": lambda data: pa.compress(data, "zstd", asbytes=True),
        "bzip2": bz2.compress,
    }.get(codec, lambda data: data)

    def avro(count: int, data: bytes) -> bytes:
        body, name = packed(data), b"avro.codec"
        head = b"Obj\x01" + long(1) + long(len(name)) + name + long(len(codec)) + codec.encode() + long(0)
        return head + b"s" * 16 + long(count) + long(len(body)) + body + b"s" * 16

    monkeypatch.setattr(iceberg, "MOST_DECODED", 1 << 20)
    if codec == "lzma":
        with pytest.raises(InvalidInput, match="lzma"):
            iceberg._check_manifest(avro(1, b"0"), "m.avro")
        return
    iceberg._check_manifest(avro(1, bytes(1 << 20)), "m.avro")
    for bomb in (avro(1, bytes((1 << 20) + 1)), avro(1 << 40, b"0")):
        with pytest.raises(InvalidInput, match="too large to decode"):
            iceberg._check_manifest(bomb, "m.avro")
    good = avro(1, b"0")
    for cut in range(len(good) - 17):
        with suppress(InvalidInput):
            iceberg._check_manifest(good[:cut], "m.avro")
    with pytest.raises(InvalidInput, match="no Avro file"):
        iceberg._check_manifest(b"<html>", "m.avro")


def test_a_table_reads_its_manifests_through_the_check(
    published: Repository, catalog: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lakeops import iceberg

    assert amounts(catalog("main")) == [1, 2]
    monkeypatch.setattr(iceberg, "MOST_DECODED", 1)
    with pytest.raises(InvalidInput, match="too large to decode"):
        amounts(catalog("main"))


def long(number: int) -> bytes:
    value, found = (number << 1) ^ (number >> 63), b""
    while value > 127:
        found, value = found + bytes([value & 127 | 128]), value >> 7
    return found + bytes([value])
