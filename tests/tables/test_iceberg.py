"""pyiceberg's own writers and readers on branches: no row is lost, and conflicts are the format's own."""

from __future__ import annotations

import bz2
import json
import os
import random
import re
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import pyarrow as pa
import pytest
import requests
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    RESTError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.expressions import EqualTo
from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus, write_manifest, write_manifest_list
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AddSortOrderUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSortOrderId,
    AssertDefaultSpecId,
    AssertLastAssignedFieldId,
    AssertLastAssignedPartitionId,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePropertiesUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    SetPropertiesUpdate,
    UpgradeFormatVersionUpdate,
)
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField
from support.served import KEYS, running

from lakeops import Lake, Repository
from lakeops.catalog.staging import Staging
from lakeops.gateway.app import serving
from lakeops.model.errors import FileMissing, InvalidInput, MergeConflict
from lakeops.model.records import Credentials
from lakeops.testing import Faults, open_faulty

Open = Callable[..., Catalog]
"""Opens a catalog of the tables at a ref, below a folder."""
REFUSED = (InvalidInput, BadRequestError)
"""The error in the process, and the error of Iceberg's REST protocol."""
pytestmark = pytest.mark.filterwarnings("ignore:Delete operation did not match any records")


def rows(*amounts: int, day: int = 1) -> pa.Table:
    return pa.table({"day": pa.array([day] * len(amounts), pa.int32()), "amount": pa.array(amounts, pa.int64())})


def rest_properties(options: dict[str, str]) -> dict[str, str]:
    """The catalog of a gateway, for pyiceberg. ``options`` are those of ``serving``."""
    uri = f"{options['aws_endpoint_url']}/iceberg"
    credential = f"{options['aws_access_key_id']}:{options['aws_secret_access_key']}"
    return {"type": "rest", "uri": uri, "oauth2-server-uri": f"{uri}/v1/oauth/tokens", "credential": credential}


@contextmanager
def rest(lake: Lake) -> Iterator[dict[str, str]]:
    """The catalog of a gateway that writes. It has a lake of its own, in a thread of this process."""
    keys = Credentials("lakeops", "secret")
    with Lake.open(settings=lake.settings, must_exist=True) as served, running(served, keys, write=True) as url:
        options = {"aws_endpoint_url": url, "aws_access_key_id": keys.access_key}
        yield rest_properties({**options, "aws_secret_access_key": keys.secret_key})


@pytest.fixture
def alone(shop: Repository, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens the tables of a ref by pyiceberg without a server."""
    monkeypatch.setenv("LAKEOPS_HOME", str(lake.settings.home))
    monkeypatch.setenv("LAKEOPS_FSYNC", "false")
    impl = {"py-catalog-impl": "lakeops.iceberg.RefCatalog"}
    return lambda ref, folder="warehouse": load_catalog("shop", **impl, warehouse=f"lakefs://shop/{ref}/{folder}")


@pytest.fixture(params=["pyiceberg alone", "REST"])
def catalog(request: pytest.FixtureRequest, lake: Lake, alone: Open) -> Iterator[Open]:
    """Opens the tables of a ref, by pyiceberg without a server and through the gateway."""
    if request.param == "REST":
        with rest(lake) as properties:
            yield lambda ref, folder="warehouse": load_catalog("shop", **properties, warehouse=f"shop/{ref}/{folder}")
    else:
        yield alone


@pytest.fixture
def published(shop: Repository, catalog: Open) -> Repository:
    return publish(shop, catalog("main"))


def publish(shop: Repository, main: Catalog) -> Repository:
    main.create_namespace("web", {"owner": "ada"})
    main.create_table("web.sales", rows().schema).append(rows(1, 2))
    shop.branch("main").commit("Create the table")
    return shop


def amounts(catalog: Catalog, table: str | tuple[str, ...] = "web.sales") -> list[int]:
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
    names = [entry.path.rpartition("/")[2] for entry in published.ref("main").list("warehouse/web/sales/metadata/")]
    assert [name[:6] for name in names if name.endswith(".json")] == ["00000-", "00001-", "00002-"]


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


@contextmanager
def gateway(home: Path, port: int) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A gateway in a process of its own, and its port. It is killed at the end."""
    keys = {"LAKEOPS_GATEWAY_ACCESS_KEY": KEYS.access_key, "LAKEOPS_GATEWAY_SECRET_KEY": KEYS.secret_key}
    command = [sys.executable, "-m", "lakeops", "gateway", "--write", "--port", str(port), "--json"]
    environment = {**os.environ, **keys, "LAKEOPS_HOME": str(home)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stdout is not None
            yield server, urlsplit(json.loads(server.stdout.readline())["url"]).port or 0
        finally:
            server.kill()


@pytest.mark.slow
def test_a_killed_server_loses_and_doubles_no_row(shop: Repository, lake: Lake, alone: Open) -> None:
    """Writers whose append got no answer look for it, and append again where it is not there."""
    publish(shop, alone("main"))
    home, dice, done = lake.settings.home, random.Random(5), threading.Event()

    def write(port: int, numbers: range) -> None:
        endpoint = {"aws_endpoint_url": f"http://127.0.0.1:{port}"}
        keys = {"aws_access_key_id": KEYS.access_key, "aws_secret_access_key": KEYS.secret_key}
        properties = rest_properties({**endpoint, **keys})
        for number in numbers:
            while True:
                try:
                    main = load_catalog("shop", **properties, warehouse="shop/main/warehouse")
                    table = main.load_table("web.sales")
                    if any(one.summary and one.summary["run"] == str(number) for one in table.snapshots()[1:]):
                        break
                    table.append(rows(number), snapshot_properties={"run": str(number)})
                    break
                except (CommitFailedException, CommitStateUnknownException, requests.RequestException):
                    continue

    with gateway(home, 0) as (_, port):
        pass
    with ThreadPoolExecutor(3) as pool:
        writers = [pool.submit(write, port, range(at, at + 4)) for at in (100, 200, 300)]
        for writer in writers:
            writer.add_done_callback(lambda _: done.set() if all(one.done() for one in writers) else None)
        kills = 0
        while not done.is_set():
            with gateway(home, port) as (server, _):
                before = len(alone("main").load_table("web.sales").snapshots())
                while not done.is_set() and len(alone("main").load_table("web.sales").snapshots()) < before + 2:
                    assert server.poll() is None
                # So that it dies anywhere in the next append.
                kills += not done.wait(dice.uniform(0, 0.2))
        for writer in writers:
            writer.result()
    assert kills > 1
    assert amounts(alone("main")) == [1, 2, *range(100, 104), *range(200, 204), *range(300, 304)]
    shop.branch("main").commit("Append")
    assert [one.kind for one in shop.fsck(data=True) if one.severity != "info"] == []


def test_appends_on_two_branches_conflict_in_the_merge(published: Repository, catalog: Open) -> None:
    published.create_branch("dev")
    catalog("dev").load_table("web.sales").append(rows(10, day=2))
    published.branch("dev").commit("dev")
    catalog("main").load_table("web.sales").append(rows(20, day=3))
    published.branch("main").commit("main")
    with pytest.raises(MergeConflict) as conflict:
        published.merge("dev", "main")
    assert conflict.value.conflicts == ["warehouse/web/sales/metadata.json"]
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
    with pytest.raises(REFUSED, match="no slash"):
        main.create_namespace("a/b")
    with pytest.raises(NamespaceNotEmptyError):
        main.drop_namespace("web")
    with pytest.raises(REFUSED, match="needs the name of a branch"):
        catalog("main~1").create_namespace("more")
    main.purge_table("web.sales")  # and the files stay for other refs
    with pytest.raises(NoSuchTableError):
        main.drop_table("web.sales")
    main.drop_namespace("web")
    assert (main.list_namespaces(), amounts(catalog("main@"))) == ([], [1, 2])


CHANGES: dict[str, Callable[[Catalog], object]] = {
    "create namespace": lambda at: at.create_namespace("more"),
    "drop namespace": lambda at: at.drop_namespace("empty"),
    "namespace properties": lambda at: at.update_namespace_properties("web", updates={"a": "b"}),
    "create table": lambda at: at.create_table("web.more", rows().schema),
    "append": lambda at: at.load_table("web.sales").append(rows(1)),
    "alter": lambda at: at.load_table("web.sales").transaction().set_properties({"a": "b"}).commit_transaction(),
    "register": lambda at: at.register_table("web.again", at.load_table("web.sales").metadata_location),
    "rename": lambda at: at.rename_table("web.sales", "web.more"),
    "drop": lambda at: at.drop_table("web.sales"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_tag_is_only_read_and_says_so(published: Repository, catalog: Open, name: str) -> None:
    catalog("main").create_namespace("empty")
    published.branch("main").commit("An empty namespace")
    published.create_tag("v1", "main")
    with pytest.raises(REFUSED, match="'v1' is no branch: tables can only be read there"):
        CHANGES[name](catalog("v1"))


@pytest.mark.parametrize("version", ["0", "3", "x", ""])
def test_format_versions_that_cannot_be_written_are_refused(published: Repository, catalog: Open, version: str) -> None:
    main = catalog("main")
    with pytest.raises((*REFUSED, ValueError), match=r"format-version is 1 or 2 here|invalid literal"):
        main.create_table("web.more", rows().schema, properties={"format-version": version})
    if version == "3":
        table = main.load_table("web.sales")
        with pytest.raises(REFUSED, match="format-version is 1 or 2 here"):
            table.catalog.commit_table(table, (), (UpgradeFormatVersionUpdate(format_version=3),))
    assert list(published.branch("main").uncommitted()) == []


def test_an_unknown_ref_has_no_tables_and_is_no_namespace(published: Repository, lake: Lake) -> None:
    """Spark asks for a table before ``DROP TABLE IF EXISTS``, and for a namespace before ``CREATE NAMESPACE``."""
    with rest(lake) as properties:
        refs = load_catalog("shop", **properties, warehouse="shop")
        assert [refs.namespace_exists(one) for one in ("main", "none")] == [True, False]
        assert not refs.table_exists(("none", "web", "sales"))
        for ask in (refs.load_table, refs.drop_table):
            with pytest.raises(NoSuchTableError, match="'none'"):
                ask(("none", "web", "sales"))
        with pytest.raises(NoSuchNamespaceError, match="'none'"):
            refs.create_table(("none", "web", "sales"), rows().schema)
        with pytest.raises(BadRequestError, match="use lakeops branch"):
            refs.create_namespace("none")


RESOURCES = ("namespaces", "tables", "transactions", "views", "config", "oauth", "tokens", "rename", "register")
"""Words of Iceberg's REST paths."""


@pytest.mark.parametrize("word", RESOURCES)
def test_repositories_refs_folders_and_tables_may_have_the_name_of_a_resource(lake: Lake, word: str) -> None:
    lake.create_repository(word).create_branch(word)
    warehouses = {word: (word, word), **{"/".join([word] * parts): (word,) for parts in (2, 3, 4, 5)}}
    with rest(lake) as properties:
        for warehouse, namespace in warehouses.items():
            catalog = load_catalog(word, **properties, warehouse=warehouse)
            catalog.create_namespace(namespace)
            assert catalog.list_namespaces(namespace[:-1]) == [namespace]
            catalog.create_table((*namespace, word), rows().schema).append(rows(1))
            assert amounts(catalog, (*namespace, word)) == [1]
            catalog.rename_table((*namespace, word), (*namespace, "other"))
            assert catalog.list_tables(namespace) == [(*namespace, "other")]
            catalog.drop_table((*namespace, "other"))
            catalog.drop_namespace(namespace)
    assert [one.path for one in lake.repository(word).branch(word).uncommitted()] == []


def concurrent_create(at: Catalog) -> None:
    with at.create_table_transaction("web.more", rows().schema):
        at.create_table("web.more", rows().schema)


def a_table_as_namespace(at: Catalog) -> None:
    at.create_namespace(("web", "sales"))


def a_nested_namespace(at: Catalog) -> None:
    at.create_namespace("outer")
    at.create_namespace(("outer", "inner"))
    at.drop_namespace("outer")


WORDS: dict[str, tuple[Callable[[Catalog], object], str]] = {
    "load a table": (lambda at: at.load_table("web.none"), "Table does not exist: web.none"),
    "load a table of no namespace": (lambda at: at.load_table("none.none"), "Table does not exist: none.none"),
    "drop a table": (lambda at: at.drop_table("web.none"), "Table does not exist: web.none"),
    "rename no table": (lambda at: at.rename_table("web.none", "web.more"), "Table does not exist: web.none"),
    "rename to a table": (lambda at: at.rename_table("web.sales", "web.sales"), "Table already exists: web.sales"),
    "register in no namespace": (
        lambda at: at.register_table("none.more", at.load_table("web.sales").metadata_location),
        "Namespace does not exist: none",
    ),
    "create a table": (lambda at: at.create_table("web.sales", rows().schema), "Table already exists: web.sales"),
    "create a table in no namespace": (
        lambda at: at.create_table("none.sales", rows().schema),
        "Namespace does not exist: none",
    ),
    "register a table": (
        lambda at: at.register_table("web.sales", at.load_table("web.sales").metadata_location),
        "Table already exists: web.sales",
    ),
    "create a table after another one did": (concurrent_create, "Requirement failed: table already exists: web.more"),
    "load a namespace": (lambda at: at.load_namespace_properties("none"), "Namespace does not exist: none"),
    "list tables": (lambda at: at.list_tables("none"), "Namespace does not exist: none"),
    "list namespaces": (lambda at: at.list_namespaces("none"), "Namespace does not exist: none"),
    "create a namespace in none": (lambda at: at.create_namespace(("none", "eu")), "Namespace does not exist: none"),
    "set properties": (
        lambda at: at.update_namespace_properties("none", updates={"a": "b"}),
        "Namespace does not exist: none",
    ),
    "create a namespace": (lambda at: at.create_namespace("web"), "Namespace already exists: web"),
    "create a namespace of a table": (a_table_as_namespace, "Namespace already exists: web.sales"),
    "drop no namespace": (lambda at: at.drop_namespace("none"), "Namespace does not exist: none"),
    "drop a namespace of tables": (lambda at: at.drop_namespace("web"), "Namespace web is not empty"),
    "drop a namespace of namespaces": (a_nested_namespace, "Namespace outer is not empty"),
}


@pytest.mark.parametrize("name", WORDS)
def test_errors_begin_with_icebergs_own_words_and_say_what_to_do(
    published: Repository, catalog: Open, name: str
) -> None:
    do, words = WORDS[name]
    with pytest.raises(Exception, match=rf"^(\w+: )?{re.escape(words)}\b.*; (create|choose|drop|load|name)"):
        do(catalog("main"))


REQUIREMENTS: dict[str, tuple[Any, str]] = {
    "uuid": (AssertTableUUID(uuid=UUID(int=1)), "UUID does not match: .* != "),
    "branch": (AssertRefSnapshotId(ref="main", snapshot_id=1), "branch main has changed: expected id 1, found"),
    "no branch": (AssertRefSnapshotId(ref="main"), "branch main was created concurrently"),
    "another branch": (AssertRefSnapshotId(ref="b", snapshot_id=1), "branch or tag b is missing, expected 1"),
    "field": (
        AssertLastAssignedFieldId(last_assigned_field_id=9),
        "last assigned field id changed: expected 9, found 2",
    ),
    "schema": (AssertCurrentSchemaId(current_schema_id=9), "current schema changed: expected 9, found 0"),
    "partition": (
        AssertLastAssignedPartitionId(last_assigned_partition_id=9),
        "last assigned partition id changed: expected 9, found 999",
    ),
    "spec": (AssertDefaultSpecId(default_spec_id=9), "default partition spec changed: expected 9, found 0"),
    "order": (AssertDefaultSortOrderId(default_sort_order_id=9), "default sort order changed: expected 9, found 0"),
}


@pytest.mark.parametrize("name", REQUIREMENTS)
def test_requirements_that_do_not_hold_have_icebergs_own_words(published: Repository, catalog: Open, name: str) -> None:
    requirement, words = REQUIREMENTS[name]
    table = catalog("main").load_table("web.sales")
    with pytest.raises(CommitFailedException, match=f"Requirement failed: {words}.*; load the table again"):
        table.catalog.commit_table(table, (requirement,), (SetPropertiesUpdate(updates={"a": "b"}),))
    assert list(published.branch("main").uncommitted()) == []


def schema_of(*names: str) -> Schema:
    return Schema(*(field for field in SCHEMA.fields if field.name in names), schema_id=1)


SCHEMA = Schema(
    NestedField(1, "day", IntegerType(), required=False), NestedField(2, "amount", LongType(), required=False)
)
NUMBERED: dict[str, tuple[list[Any], Callable[[Any], Any], Callable[[Any], list[int]]]] = {
    "schema": (
        [
            (AddSchemaUpdate(schema=schema_of("day")), SetCurrentSchemaUpdate(schema_id=-1)),
            (AddSchemaUpdate(schema=schema_of("amount")), SetCurrentSchemaUpdate(schema_id=1)),
        ],
        lambda metadata: [field.name for field in metadata.schema().fields],
        lambda metadata: [one.schema_id for one in metadata.schemas],
    ),
    "spec": (
        [
            (
                AddPartitionSpecUpdate(
                    spec=PartitionSpec(PartitionField(number, 1000, IdentityTransform(), name), spec_id=1)
                ),
                SetDefaultSpecUpdate(spec_id=chosen),
            )
            for number, name, chosen in ((1, "day", -1), (2, "amount", 1))
        ],
        lambda metadata: [field.name for field in metadata.spec().fields],
        lambda metadata: [one.spec_id for one in metadata.partition_specs],
    ),
    "order": (
        [
            (
                AddSortOrderUpdate(sort_order=SortOrder(SortField(number, IdentityTransform()), order_id=1)),
                SetDefaultSortOrderUpdate(sort_order_id=chosen),
            )
            for number, chosen in ((1, -1), (2, 1))
        ],
        lambda metadata: [SCHEMA.find_column_name(field.source_id) for field in metadata.sort_order().fields],
        lambda metadata: [one.order_id for one in metadata.sort_orders],
    ),
}


def test_a_commit_that_is_asked_for_again_is_done_once(
    published: Repository, catalog: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = catalog("main")
    commit, made = type(main).commit_table, list[Any]()
    with monkeypatch.context() as patched:
        patched.setattr(type(main), "commit_table", lambda *asked: made.append(asked) or commit(*asked))
        main.load_table("web.sales").append(rows(3))
    commit(*made[0])
    assert amounts(main) == [1, 2, 3]
    assert len(main.load_table("web.sales").history()) == 2


@pytest.mark.parametrize("name", NUMBERED)
def test_two_writers_who_number_what_they_add_alike_get_two_numbers(
    published: Repository, catalog: Open, name: str
) -> None:
    """As Iceberg's own catalogs do: a number that two schemas of a table had would make it unreadable."""
    (first, second), described, numbers = NUMBERED[name]
    table = catalog("main").load_table("web.sales")
    for updates, chosen in ((first, "day"), (second, "amount"), (first, "day")):
        table.catalog.commit_table(table, (), updates)
        metadata = catalog("main").load_table("web.sales").metadata
        assert described(metadata) == [chosen]
        assert len(numbers(metadata)) == len(set(numbers(metadata)))
    assert numbers(metadata) == [0, 1, 2]


def test_a_snapshot_keeps_the_schema_that_it_was_written_with(published: Repository, catalog: Open) -> None:
    (first, (add, choose)), _, _ = NUMBERED["schema"]
    table = catalog("main").load_table("web.sales")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    table.catalog.commit_table(table, (), first)
    more = {"snapshot_id": 77, "parent_snapshot_id": snapshot.snapshot_id, "schema_id": 1}
    made = snapshot.model_copy(update={**more, "sequence_number": (snapshot.sequence_number or 0) + 1})
    table.catalog.commit_table(table, (), (add, choose, AddSnapshotUpdate(snapshot=made)))
    metadata = catalog("main").load_table("web.sales").metadata
    assert metadata.snapshot_by_id(77).schema_id == metadata.current_schema_id == 2


def test_files_of_a_partition_spec_that_is_another_one_now_are_a_conflict(published: Repository, catalog: Open) -> None:
    (first, (add, choose)), _, _ = NUMBERED["spec"]
    table = catalog("main").load_table("web.sales")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    table.catalog.commit_table(table, (), first)
    before = catalog("main").load_table("web.sales").metadata_location
    more = {"snapshot_id": 77, "parent_snapshot_id": snapshot.snapshot_id}
    made = snapshot.model_copy(update={**more, "sequence_number": (snapshot.sequence_number or 0) + 1})
    with pytest.raises(CommitFailedException, match="partition spec 1 is another one now; load the table again"):
        table.catalog.commit_table(table, (), (add, choose, AddSnapshotUpdate(snapshot=made)))
    assert catalog("main").load_table("web.sales").metadata_location == before


def test_properties_that_are_not_there_can_be_removed(published: Repository, catalog: Open) -> None:
    table = catalog("main").load_table("web.sales")
    table.catalog.commit_table(
        table, (), (SetPropertiesUpdate(updates={"a": "b", "c": "d"}), RemovePropertiesUpdate(removals=["a", "none"]))
    )
    properties = catalog("main").load_table("web.sales").properties
    assert (properties["c"], "a" in properties) == ("d", False)


@pytest.mark.parametrize("change", ["append", "drop"])
def test_a_table_is_loaded_as_it_was_at_one_moment(
    shop: Repository, alone: Open, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    main, find = alone("main"), Staging.staged_one
    table = publish(shop, main) and main.load_table("web.sales")
    before = table.metadata_location, table.metadata.current_snapshot_id

    def changing(self: Staging, repository: str, branch: str, path: str) -> Any:
        found = find(self, repository, branch, path)
        if path.endswith("sales/metadata.json"):
            monkeypatch.setattr(Staging, "staged_one", find)
            table.append(rows(9)) if change == "append" else main.drop_table("web.sales")
        return found

    monkeypatch.setattr(Staging, "staged_one", changing)
    found = alone("main").load_table("web.sales")
    assert (found.metadata_location, found.metadata.current_snapshot_id) == before


def test_a_lost_range_does_not_make_a_table_absent(shop: Repository, alone: Open) -> None:
    publish(shop, alone("main"))
    for file in Path(urlsplit(shop.storage_namespace).path, "_lakefs/ranges").iterdir():
        file.unlink()
    fresh = Lake(shop._ctx.catalog, shop._ctx.settings, stores=shop._ctx.stores())  # remembers no files
    with rest(fresh) as properties:
        served = load_catalog("shop", **properties, warehouse="shop/main/warehouse")
        for main in (served, alone("main")):
            for ask in (main.table_exists, main.load_table, main.drop_table):
                with pytest.raises((FileMissing, RESTError), match=r"lakeops fsck|Service Unavailable"):
                    ask("web.sales")


def test_a_table_whose_metadata_file_is_lost_is_not_taken_for_none(
    shop: Repository, alone: Open, address: dict[str, str]
) -> None:
    publish(shop, alone("main"))
    ask = asked_of(shop, alone, address)
    place = alone("main").load_table("web.sales").metadata_location
    Path(urlsplit(place).path).unlink()
    lost = re.escape(f"Failed to open input stream for file: {place}")
    with pytest.raises(FileNotFoundError, match=lost):
        alone("main").load_table("web.sales")
    answer = ask.send("GET", "namespaces/main%1Fwarehouse%1Fweb/tables/sales")
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (404, "NotFoundException")
    assert re.match(lost, error["message"])
    alone("main").drop_table("web.sales")
    assert alone("main").list_tables("web") == []


@pytest.mark.parametrize("text", [b"[" * 100_000, b"[1]", b"{"])
def test_properties_that_are_none_are_one_line(published: Repository, catalog: Open, text: bytes) -> None:
    published.branch("main").put("warehouse/web/_namespace.json", text)
    with pytest.raises(REFUSED, match="holds no properties of a namespace"):
        catalog("main").load_namespace_properties("web")


def test_metadata_that_is_too_large_is_not_read(
    published: Repository, alone: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakeops.iceberg.tables.MOST_METADATA", 10)
    for ask in (lambda: alone("main").load_table("web.sales"), lambda: alone("main").load_namespace_properties("web")):
        with pytest.raises(REFUSED, match="metadata has 10 at most"):
            ask()


@pytest.mark.parametrize("codec", ["deflate", "zstandard", "bzip2", "null", "lzma"])
def test_a_manifest_that_decodes_to_too_much_is_not_decoded(
    shop: Repository, monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    """A few kilobytes of Avro may hold gigabytes of zeros, or claim more records than they have bytes."""
    from lakeops.ops.iceberg import files as iceberg

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
            iceberg.check_manifest(avro(1, b"0"), "m.avro")
        return
    iceberg.check_manifest(avro(1, bytes(1 << 20)), "m.avro")
    for bomb in (avro(1, bytes((1 << 20) + 1)), avro(1 << 40, b"0")):
        with pytest.raises(InvalidInput, match="too large to decode"):
            iceberg.check_manifest(bomb, "m.avro")
    good = avro(1, b"0")
    for cut in range(len(good) - 17):
        with suppress(InvalidInput):
            iceberg.check_manifest(good[:cut], "m.avro")
    with pytest.raises(InvalidInput, match="no Avro file"):
        iceberg.check_manifest(b"<html>", "m.avro")


def test_a_commit_reads_manifests_through_the_check(
    published: Repository, alone: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lakeops.ops.iceberg import files as iceberg

    assert amounts(alone("main")) == [1, 2]
    table = alone("main").load_table("web.sales")
    with pytest.raises(REFUSED, match="too large to decode"), table.transaction() as begun:
        begun.append(rows(3))
        monkeypatch.setattr(iceberg, "MOST_DECODED", 1)


def test_files_of_a_table_are_objects_at_physical_addresses(published: Repository, catalog: Open) -> None:
    """Engines follow the metadata, and listings, diffs and garbage collection see the files."""
    table = catalog("main").load_table("web.sales")
    assert table.location().startswith(f"{published.storage_namespace}/data/tables/")
    shown = {entry.physical_address for entry in published.ref("main").list("warehouse/web/sales/")}
    named = {table.metadata_location, *(one.metadata_file for one in table.metadata.metadata_log)}
    for snapshot in table.snapshots():
        named |= {snapshot.manifest_list, *(one.manifest_path for one in snapshot.manifests(table.io))}
        entries = (entry for one in snapshot.manifests(table.io) for entry in one.fetch_manifest_entry(table.io))
        named |= {entry.data_file.file_path for entry in entries}
    assert shown == named
    assert table.properties["gc.enabled"] == "false"


def test_expired_snapshots_leave_their_branch_alone(published: Repository, catalog: Open) -> None:
    main = catalog("main")
    main.load_table("web.sales").delete(EqualTo("amount", 1))
    main.load_table("web.sales").append(rows(5))
    published.branch("main").commit("Change rows")
    before = catalog("main@").load_table("web.sales")
    table = main.load_table("web.sales")
    kept = table.current_snapshot()
    assert kept is not None
    table.maintenance.expire_snapshots().by_ids([one.snapshot_id for one in table.snapshots() if one != kept]).commit()
    removed = [change for change in published.branch("main").uncommitted() if change.type.value == "removed"]
    assert len(removed) >= 3
    assert amounts(main) == [2, 5]
    assert sorted(before.scan(snapshot_id=before.history()[0].snapshot_id).to_arrow()["amount"].to_pylist()) == [1, 2]


def test_names_of_several_levels_and_renamed_tables(published: Repository, catalog: Open) -> None:
    main = catalog("main")
    main.create_namespace(("web", "eu"))
    with pytest.raises((NoSuchNamespaceError, RESTError), match="Namespace does not exist: none"):
        main.create_namespace(("none", "eu"))
    main.create_table(("web", "eu", "sales"), rows().schema).append(rows(7))
    assert main.list_namespaces("web") == [("web", "eu")]
    assert main.list_tables(("web", "eu")) == [("web", "eu", "sales")]
    main.rename_table("web.sales", ("web", "eu", "all"))
    assert amounts(main, ("web", "eu", "all")) == [1, 2]
    with pytest.raises(NoSuchTableError):
        main.load_table("web.sales")
    with pytest.raises(TableAlreadyExistsError):
        main.rename_table(("web", "eu", "all"), ("web", "eu", "sales"))
    main.load_table(("web", "eu", "all")).append(rows(3))
    assert amounts(main, ("web", "eu", "all")) == [1, 2, 3]
    published.create_branch("dev")
    there = main.load_table(("web", "eu", "all")).metadata_location
    catalog("dev").register_table("web.again", there)
    assert amounts(catalog("dev"), "web.again") == [1, 2, 3]


MAKES_A_TABLE: dict[str, Callable[[Catalog, str], object]] = {
    "create": lambda at, name: at.create_table(name, rows().schema),
    "create in a transaction": lambda at, name: at.create_table_transaction(name, rows().schema).commit_transaction(),
    "register": lambda at, name: at.register_table(name, at.load_table("web.sales").metadata_location),
    "rename": lambda at, name: at.rename_table("web.sales", name),
}


def shown(repository: Repository) -> dict[str, bytes]:
    """The objects of branch main, with what is staged."""
    main = repository.branch("main")
    return {entry.path: main.read(entry.path) for entry in main.list()}


def place_tables(catalog: Open, at: str) -> None:
    """Put a namespace or a table in the folder ``warehouse/web/eu``."""
    if at == "a namespace":
        catalog("main").create_namespace(("web", "eu"))
    elif at == "a namespace with a table":
        catalog("main").create_namespace(("web", "eu"))
        catalog("main").create_table(("web", "eu", "visits"), rows().schema).append(rows(5))
    else:
        there = catalog("main", "warehouse/web/eu/deep" if at == "another warehouse, deeper" else "warehouse/web/eu")
        there.create_namespace("own")
        there.create_table("own.visits", rows().schema).append(rows(5))


PLACED = ["a namespace", "a namespace with a table", "another warehouse", "another warehouse, deeper"]


@pytest.mark.parametrize("at", PLACED)
@pytest.mark.parametrize("verb", MAKES_A_TABLE)
def test_no_table_is_made_around_a_namespace_or_a_table(
    published: Repository, catalog: Open, verb: str, at: str
) -> None:
    place_tables(catalog, at)
    before = shown(published)
    with pytest.raises(TableAlreadyExistsError, match=r"Table already exists: web\.eu at"):
        MAKES_A_TABLE[verb](catalog("main"), "web.eu")
    assert shown(published) == before


@pytest.mark.parametrize("at", PLACED)
@pytest.mark.parametrize("how", ["by hand", "by a merge"])
def test_no_drop_or_rename_takes_another_table_along(published: Repository, catalog: Open, at: str, how: str) -> None:
    if how == "by hand":
        place_tables(catalog, at)
        pointer = published.branch("main").read("warehouse/web/sales/metadata.json")
        published.branch("main").put("warehouse/web/eu/metadata.json", pointer)
    else:
        published.create_branch("dev")
        catalog("dev").create_table("web.eu", rows().schema).append(rows(7))
        published.branch("dev").commit("A table")
        place_tables(catalog, at)
        published.branch("main").commit("Something else of its name")
        published.merge("dev", "main")
        assert amounts(catalog("main"), "web.eu") == [7]
    main, before = catalog("main"), shown(published)
    for change in (lambda: main.drop_table("web.eu"), lambda: main.rename_table("web.eu", "web.other")):
        with pytest.raises(
            (NamespaceNotEmptyError, TableAlreadyExistsError, RESTError), match=r"Namespace web\.eu is not empty at"
        ):
            change()
    assert shown(published) == before
    if at == "a namespace with a table":
        main.drop_table(("web", "eu", "visits"))
    if at.startswith("a namespace"):
        main.drop_namespace(("web", "eu"))
        main.drop_table("web.eu")
        assert main.list_tables("web") == [("web", "sales")]


GONE = (NoSuchNamespaceError, NoSuchTableError, RESTError)
"""The answer 404, as pyiceberg takes it by what was asked for."""
RACES: dict[str, tuple[Callable[[Catalog], object], Callable[[Catalog], object], tuple[str, str, int], Any]] = {
    f"{verb}, {name}": (partial(MAKES_A_TABLE[verb], name=table), other, (operation, "data/tables/"[:length], 1), error)
    for verb, operation, length in (("create", "put", 12), ("register", "put", 12), ("rename", "head", 5))
    for name, table, other, error in (
        ("a namespace", "web.eu", lambda at: at.create_namespace("web.eu"), TableAlreadyExistsError),
        ("create", "old.eu", lambda at: at.create_table("old.eu", rows().schema), TableAlreadyExistsError),
        ("rename", "web.eu", lambda at: at.rename_table("web.visits", "web.eu"), TableAlreadyExistsError),
        ("its namespace goes", "old.eu", lambda at: at.drop_namespace("old"), GONE),
    )
}
RACES["drop of a namespace, create"] = (
    lambda at: at.drop_namespace("old"),
    lambda at: at.create_table("old.eu", rows().schema),
    ("get", "data/", 2),
    NamespaceNotEmptyError,
)
"""Changes, each with another one that gets before it at a call of the store, and the error of the first."""


@pytest.mark.parametrize("name", RACES)
def test_of_two_changes_at_once_the_second_one_sees_the_first(
    shop: Repository, lake: Lake, alone: Open, name: str
) -> None:
    publish(shop, alone("main"))
    alone("main").create_table("web.visits", rows().schema)
    alone("main").create_namespace("old")
    (change, other, (operation, prefix, at), error), faults = RACES[name], Faults()
    after: dict[str, bytes] = {}
    keys = Credentials("lakeops", "secret")

    def come_between(_: object) -> None:
        other(alone("main"))
        after.update(shown(shop))

    with open_faulty(lake.settings, faults) as faulty, running(faulty, keys, write=True) as url:
        options = {"aws_endpoint_url": url, "aws_access_key_id": keys.access_key}
        properties = rest_properties({**options, "aws_secret_access_key": keys.secret_key})
        main = load_catalog("shop", **properties, warehouse="shop/main/warehouse")
        faults.hook(operation, prefix=prefix, at=at, action=come_between)
        with pytest.raises(error):
            change(main)
    assert shown(shop) == after


def test_metadata_that_is_forged_stages_nothing(published: Repository, lake: Lake, catalog: Open) -> None:
    other = lake.create_repository("other")
    main = catalog("main")
    for location in (f"{other.storage_namespace}/data/tables/{'0' * 20}", "file:///etc", "s3://elsewhere/t"):
        with pytest.raises(REFUSED, match="is not where tables of repository 'shop' lie"):
            main.create_table("web.forged", rows().schema, location=location)
    table = main.load_table("web.sales")
    deleting = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}
    for properties in ({"write.data.path": "file:///etc"}, {"gc.enabled": "true"}, deleting):
        with pytest.raises(REFUSED), table.transaction() as begun:
            begun.set_properties(properties)
    with pytest.raises(REFUSED, match="must stay false: engines would delete files that other refs need"):
        main.create_table("web.forged", rows().schema, properties=deleting)
    elsewhere = f"{published.storage_namespace}/data/tables/{'0' * 20}"
    snapshot = table.current_snapshot()
    assert snapshot is not None
    for forged, says in (
        ({"manifest_list": "file:///etc/passwd"}, "is not where tables"),
        ({"manifest_list": f"{elsewhere}/metadata/x.avro"}, "is not there|does not lie below"),
        ({"manifest_list": f"{table.location()}/metadata/none.avro"}, "is not there"),
        ({"manifest_list": f"{table.location()}/../../x.avro"}, "is not where tables"),
        ({"manifest_list": table.metadata_location}, "is no .avro file"),
        ({"manifest_list": snapshot.manifests(table.io)[0].manifest_path}, "is no manifest"),
    ):
        made = snapshot.model_copy(update={"snapshot_id": 77, "parent_snapshot_id": snapshot.snapshot_id, **forged})
        made = made.model_copy(update={"sequence_number": (snapshot.sequence_number or 0) + 1})
        request = table.catalog.commit_table
        with pytest.raises(REFUSED, match=says):
            request(table, (), (AddSnapshotUpdate(snapshot=made),))
    assert list(published.branch("main").uncommitted()) == []


def test_engines_are_told_to_delete_no_files_whatever_was_removed(published: Repository, catalog: Open) -> None:
    """They take ``gc.enabled`` for true where a table does not have it."""
    table = catalog("main").load_table("web.sales")
    with table.transaction() as begun:
        begun.remove_properties("gc.enabled")
    assert catalog("main").load_table("web.sales").properties["gc.enabled"] == "false"


def test_a_manifest_that_lies_about_sizes_is_refused(published: Repository, catalog: Open) -> None:
    table = catalog("main").load_table("web.sales")
    with pytest.raises(REFUSED, match="and the table says"), table.transaction() as begun:
        begun.append(rows(3))
        newest = max(Path(urlsplit(table.location()).path, "data").iterdir(), key=lambda file: file.stat().st_mtime_ns)
        newest.write_bytes(newest.read_bytes() + b"x")
    assert list(published.branch("main").uncommitted()) == []


FORGED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a size of a data file": ({"file_size_in_bytes": 1}, {}, "and the table says 1"),
    "a size of a manifest": ({}, {"manifest_length": 1}, "and the table says 1"),
    "a data file of this machine": ({"file_path": "file:///etc/passwd"}, {}, "is not where tables"),
    "a data file of another repository": ({"file_path": "{other}/data/x.parquet"}, {}, "is not where tables"),
    "a data file of another table": ({"file_path": "{near}/data/x.parquet"}, {}, "does not lie below"),
    "a data file outside by dots": ({"file_path": "{own}/data/../../x.parquet"}, {}, "is not where tables"),
    "a data file that is not there": ({"file_path": "{own}/data/none.parquet"}, {}, "none.parquet"),
    "a manifest of this machine": ({}, {"manifest_path": "file:///etc/passwd"}, "is not where tables"),
    "a manifest of another repository": ({}, {"manifest_path": "{other}/metadata/m0.avro"}, "is not where tables"),
    "a manifest of another table": ({}, {"manifest_path": "{near}/metadata/m0.avro"}, "is not there|does not lie"),
}


@pytest.mark.parametrize("name", FORGED)
def test_manifests_that_are_forged_stage_nothing(
    published: Repository, lake: Lake, catalog: Open, alone: Open, name: str
) -> None:
    other = lake.create_repository("other").storage_namespace
    table, io = catalog("main").load_table("web.sales"), alone("main").load_table("web.sales").io
    snapshot, root = table.current_snapshot(), table.location()
    assert snapshot is not None
    places = {"own": root, "near": f"{root[:-20]}{'0' * 20}", "other": f"{other}/data/tables/{'0' * 20}"}

    def forged(record: Any, changes: dict[str, Any]) -> Any:
        data = [*record._data]
        for position, value in enumerate(data):
            for field, new in changes.items():
                if value == getattr(record, field):
                    data[position] = new.format(**places) if isinstance(new, str) else new
        return type(record)(*data)

    (manifest,) = snapshot.manifests(table.io)
    (entry,) = manifest.fetch_manifest_entry(table.io)
    of_file, of_manifest, says = FORGED[name]
    metadata = table.metadata
    written = io.new_output(f"{root}/metadata/forged-m0.avro")
    with write_manifest(2, metadata.spec(), metadata.schema(), written, 77, "null") as writer:
        writer.add(
            ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED, snapshot_id=77, data_file=forged(entry.data_file, of_file)
            )
        )
    at, sequence = f"{root}/metadata/forged-list.avro", (snapshot.sequence_number or 0) + 1
    listed = write_manifest_list(2, io.new_output(at), 77, snapshot.snapshot_id, sequence, "null")
    with listed:
        listed.add_manifests([forged(writer.to_manifest_file(), of_manifest)])
    more = {"snapshot_id": 77, "parent_snapshot_id": snapshot.snapshot_id, "sequence_number": sequence}
    made = snapshot.model_copy(update={**more, "manifest_list": at})
    with pytest.raises((*REFUSED, FileNotFoundError, RESTError), match=says):
        table.catalog.commit_table(table, (), (AddSnapshotUpdate(snapshot=made),))
    assert list(published.branch("main").uncommitted()) == []
    assert amounts(catalog("main")) == [1, 2]


def long(number: int) -> bytes:
    value, found = (number << 1) ^ (number >> 63), b""
    while value > 127:
        found, value = found + bytes([value & 127 | 128]), value >> 7
    return found + bytes([value])


@pytest.fixture
def address(lake: Lake, shop: Repository) -> Iterator[dict[str, str]]:
    with rest(lake) as properties:
        yield properties


@pytest.mark.parametrize("token", ["", "Bearer ", "Bearer none", "Bearer 9999999999.00", "Bearer 1.00", "Basic x"])
def test_nothing_is_told_without_a_token(address: dict[str, str], token: str) -> None:
    headers = {"Authorization": token} if token else {}
    for method, path in (
        ("GET", "config?warehouse=shop"),
        ("GET", "shop/namespaces"),
        ("DELETE", "shop/namespaces/main"),
    ):
        answer = requests.request(method, f"{address['uri']}/v1/{path}", headers=headers, timeout=30)
        assert answer.status_code == 401
        assert "main" not in answer.text


def test_tokens(address: dict[str, str]) -> None:
    name, secret = address["credential"].split(":")
    place = address["oauth2-server-uri"]
    form = {"grant_type": "client_credentials", "client_id": name, "client_secret": secret}
    token = requests.post(place, form, timeout=30).json()["access_token"]
    basic = requests.post(place, {"grant_type": "client_credentials"}, auth=(name, secret), timeout=30).json()
    exchanged = requests.post(place, {"subject_token": token}, timeout=30).json()
    for one in (token, basic["access_token"], exchanged["access_token"]):
        headers = {"Authorization": f"Bearer {one}"}
        answer = requests.get(f"{address['uri']}/v1/shop/namespaces", headers=headers, timeout=30)
        assert answer.json() == {"namespaces": [["main"]]}
    for wrong in ({"client_secret": "wrong"}, {"client_id": "x"}):
        answer = requests.post(place, form | wrong, timeout=30)
        assert (answer.status_code, answer.json()["error"]) == (401, "invalid_client")
    assert requests.post(place, {"subject_token": f"{token}0"}, timeout=30).status_code == 401
    assert requests.post(place, b"x" * 100_000, timeout=30).status_code == 413


def test_a_gateway_that_only_reads(lake: Lake, shop: Repository, alone: Open) -> None:
    alone("main").create_namespace("web")
    alone("main").create_table("web.sales", rows().schema).append(rows(1))
    with serving(lake) as options:
        catalog = load_catalog("shop", **rest_properties(options), warehouse="shop/main/warehouse")
        assert amounts(catalog) == [1]
        with pytest.raises(ForbiddenError, match="start it with --write"):
            catalog.drop_table("web.sales")


@dataclass(frozen=True)
class Asked:
    """A table that somebody asks for wrongly: where it is, and its metadata as the protocol gives it."""

    repo: Repository
    url: str
    headers: dict[str, str]
    metadata: dict[str, Any]

    def send(self, method: str, path: str, body: object = None) -> requests.Response:
        return requests.request(method, f"{self.url}/shop/{path}", json=body, headers=self.headers, timeout=60)

    def commit(self, *updates: dict[str, Any], ref: str = "main", table: str = "sales") -> requests.Response:
        path = f"namespaces/{ref}%1Fwarehouse%1Fweb/tables/{table}"
        return self.send("POST", path, {"requirements": [], "updates": [*updates]})

    def create(self, namespace: str = "main%1Fwarehouse%1Fweb", **more: object) -> requests.Response:
        body = {"name": "made", "schema": self.metadata["schemas"][0], **more}
        return self.send("POST", f"namespaces/{namespace}/tables", body)

    def snapshot(self, **more: object) -> dict[str, Any]:
        newest = self.metadata["snapshots"][-1]
        numbers = {"sequence-number": newest["sequence-number"] + 1, "parent-snapshot-id": newest["snapshot-id"]}
        return {"action": "add-snapshot", "snapshot": {**newest, **numbers, "snapshot-id": 77, **more}}

    def register(self, size: int, at: str = "{location}/metadata/00009-x.metadata.json") -> requests.Response:
        place = at.format(location=self.metadata["location"])
        if size:
            with Path(urlsplit(place).path).open("wb") as file:
                file.truncate(size)
        body = {"name": "made", "metadata-location": place}
        return self.send("POST", "namespaces/main%1Fwarehouse%1Fweb/register", body)

    def register_told(self, changes: dict[str, Any]) -> requests.Response:
        """Register the table's metadata with some of it changed, from a file in the table's location."""
        place = f"{self.metadata['location']}/metadata/00009-x.metadata.json"
        Path(urlsplit(place).path).write_text(json.dumps({**self.metadata, **changes}))
        return self.register(0)

    def protect(self) -> None:
        self.repo.protect("main")


PROPERTY = {"action": "set-properties", "updates": {"a": "b"}}
BAD: dict[str, tuple[Callable[[Asked], requests.Response], int, str]] = {
    "an unknown ref": (lambda ask: ask.commit(PROPERTY, ref="none"), 404, "'none'"),
    "a tag": (lambda ask: ask.commit(PROPERTY, ref="v1"), 400, "'v1' is no branch: tables can only be read there"),
    "a commit": (lambda ask: ask.commit(PROPERTY, ref=ask.repo.ref("v1").commit_id), 400, "is no branch"),
    "an older commit": (lambda ask: ask.commit(PROPERTY, ref="main~1"), 400, "branch"),
    "a protected branch": (lambda ask: (ask.protect(), ask.commit(PROPERTY))[1], 403, "protected"),
    "an unknown table": (
        lambda ask: ask.commit(PROPERTY, table="none"),
        404,
        "Table does not exist: main.warehouse.web.none|Table does not exist: warehouse.web.none",
    ),
    "an unknown namespace": (lambda ask: ask.create("main%1Fnone"), 404, "Namespace does not exist: none"),
    "a namespace with a slash": (lambda ask: ask.create("main%1Fa%2Fb"), 400, "no slash"),
    "a table with a slash": (lambda ask: ask.create(name="a/b"), 400, "no slash"),
    "a table with a dot": (lambda ask: ask.create(name="../up"), 400, "no slash"),
    "a table of files": (lambda ask: ask.create(name="_lakefs"), 400, "no slash"),
    "a location elsewhere": (
        lambda ask: ask.create(location="file:///etc"),
        400,
        "create the table without a location",
    ),
    "a location in a bucket": (lambda ask: ask.create(location="s3://other/t"), 400, "is not where tables"),
    "files elsewhere": (
        lambda ask: ask.commit({"action": "set-properties", "updates": {"write.data.path": "file:///etc"}}),
        400,
        "is not where tables",
    ),
    "another location": (lambda ask: ask.commit({"action": "set-location", "location": "file:///x"}), 400, "location"),
    "a manifest list of this machine": (
        lambda ask: ask.commit(ask.snapshot(**{"manifest-list": "file:///etc/passwd"})),
        400,
        "is not where tables",
    ),
    "a manifest list that is not there": (
        lambda ask: ask.commit(ask.snapshot(**{"manifest-list": f"{ask.metadata['location']}/metadata/none.avro"})),
        400,
        "is not there",
    ),
    "an expired snapshot": (
        lambda ask: ask.commit(
            {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 4711}
        ),
        400,
        "cannot be updated",
    ),
    "format version 3": (
        lambda ask: ask.commit({"action": "upgrade-format-version", "format-version": 3}),
        400,
        "1 or 2",
    ),
    "files that engines delete": (
        lambda ask: ask.commit({"action": "set-properties", "updates": {"gc.enabled": "true"}}),
        400,
        "lakeops gc deletes them",
    ),
    "metadata of 200 MB": (lambda ask: ask.register(200 << 20), 400, "bytes"),
    "metadata that is none": (lambda ask: ask.register(100), 400, "is no metadata of an Iceberg table"),
    "metadata of version 3": (lambda ask: ask.register_told({"format-version": 3, "next-row-id": 0}), 400, "1 or 2"),
    "metadata of another repository": (
        lambda ask: ask.register_told({"location": f"{ask.repo.storage_namespace}-2/data/tables/{'0' * 20}"}),
        400,
        "is not where tables",
    ),
    "metadata of another table": (
        lambda ask: ask.register_told({"location": f"{ask.repo.storage_namespace}/data/tables/{'0' * 20}"}),
        400,
        "does not lie below",
    ),
    "metadata elsewhere": (lambda ask: ask.register(0, "file:///etc/passwd"), 400, "is not where tables"),
    "a page of no size": (lambda ask: ask.send("GET", "namespaces?pageToken=&pageSize=0"), 400, "pageSize"),
    "a page that nobody gave": (lambda ask: ask.send("GET", "namespaces?pageToken=x"), 400, "pageToken"),
    "an update that nobody knows": (lambda ask: ask.commit({"action": "nothing"}), 400, "action"),
    "a body that is none": (lambda ask: ask.send("POST", "tables/rename", [1]), 400, "source|object|model"),
}


def asked_of(shop: Repository, alone: Open, address: dict[str, str]) -> Asked:
    key, secret = address["credential"].split(":")
    form = {"grant_type": "client_credentials", "client_id": key, "client_secret": secret}
    token = requests.post(address["oauth2-server-uri"], form, timeout=30).json()["access_token"]
    metadata = json.loads(alone("main").load_table("web.sales").metadata.model_dump_json())
    return Asked(shop, f"{address['uri']}/v1", {"Authorization": f"Bearer {token}"}, metadata)


@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("path", ["namespaces", "namespaces/main%1Fwarehouse%1Fweb/tables"])
def test_lists_come_in_pages_to_who_asks_for_them(
    shop: Repository, alone: Open, address: dict[str, str], path: str, *, changes: bool
) -> None:
    publish(shop, alone("main"))
    for number in range(4):
        shop.create_branch(f"dev-{number}")
        alone("main").create_table(f"web.t{number}", rows().schema)
    ask = asked_of(shop, alone, address)
    ((name, whole),) = ask.send("GET", path).json().items()
    assert len(whole) == 5
    found, token = [], ""
    while token is not None:
        page = ask.send("GET", f"{path}?pageToken={token}&pageSize=2").json()
        found.append(page[name])
        token = page.get("next-page-token")
        if len(found) == 1 and changes:  # what is behind the page stays where it is
            shop.delete_branch("dev-0")
            alone("main").drop_table("web.sales")
    assert [len(one) for one in found] == [2, 2, 1]
    assert [one for page in found for one in page] == whole


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_error_of_icebergs_shape_and_stages_nothing(
    shop: Repository, alone: Open, address: dict[str, str], name: str
) -> None:
    publish(shop, alone("main")).create_tag("v1", "main")
    ask = asked_of(shop, alone, address)
    do, status, says = BAD[name]
    answer = do(ask)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, status), error
    assert re.search(says, error["message"]), error
    assert error["type"].endswith("Exception")
    assert "\n" not in error["message"]
    assert list(shop.branch("main").uncommitted()) == []
    assert amounts(alone("main")) == [1, 2]


SECOND: dict[str, tuple[dict[str, Any], int]] = {
    "a requirement": ({"requirements": [{"type": "assert-table-uuid", "uuid": str(UUID(int=1))}]}, 409),
    "an unknown table": ({"identifier": {"namespace": ["main", "warehouse", "web"], "name": "none"}}, 404),
    "another ref": ({"identifier": {"namespace": ["dev", "warehouse", "web"], "name": "refunds"}}, 400),
    "the first table": ({"identifier": {"namespace": ["main", "warehouse", "web"], "name": "sales"}}, 400),
    "another location": ({"updates": [{"action": "set-location", "location": "file:///x"}]}, 400),
}


@pytest.mark.parametrize("wrong", [None, *SECOND])
def test_a_transaction_commits_all_its_tables_or_none(
    shop: Repository, alone: Open, address: dict[str, str], wrong: str | None
) -> None:
    publish(shop, alone("main"))
    alone("main").create_table("web.refunds", rows().schema)
    shop.branch("main").commit("Two tables")
    shop.create_branch("dev")
    changes = [
        {
            "identifier": {"namespace": ["main", "warehouse", "web"], "name": name},
            "requirements": [],
            "updates": [{"action": "set-properties", "updates": {"a": "b"}}],
        }
        for name in ("sales", "refunds")
    ]
    more, status = SECOND[wrong] if wrong else ({}, 204)
    answer = asked_of(shop, alone, address).send(
        "POST", "transactions/commit", {"table-changes": [changes[0], {**changes[1], **more}]}
    )
    assert answer.status_code == status, answer.text
    properties = [alone("main").load_table(f"web.{name}").properties.get("a") for name in ("sales", "refunds")]
    assert properties == ([None] * 2 if wrong else ["b"] * 2)
    assert (list(shop.branch("main").uncommitted()) == []) == bool(wrong)
