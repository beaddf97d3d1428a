"""URLs of stores, and where a physical address leads."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.errors import raising

from lakeops.model.clock import Ids
from lakeops.store import layout
from lakeops.store.local import LocalStore
from lakeops.store.open import AddressPolicy, Stores, StoreSettings, parse_location
from lakeops.store.s3 import S3Store
from lakeops.testing import Faults, FaultyStore

ARN = "arn:aws:s3:eu-west-1:123456789012:accesspoint"

GOOD = [
    ("file:///data/flights", "file:///data/flights"),
    ("file:///data/flights/", "file:///data/flights"),
    ("file:///data//flights///", "file:///data/flights"),
    ("file://localhost/data", "file:///data"),
    ("file:///a%20b/%C3%A9", "file:///a%20b/%C3%A9"),
    ("file:///a b/é", "file:///a%20b/%C3%A9"),
    ("file:///a%2Fb", "file:///a/b"),
    ("file:///100%25/day=1", "file:///100%25/day=1"),
    ("file:///a%3Fb%23c", "file:///a%3Fb%23c"),
    ("s3://bucket", "s3://bucket"),
    ("s3://bucket/", "s3://bucket"),
    ("s3://bucket/flights", "s3://bucket/flights"),
    ("s3://bucket/a/b/c//", "s3://bucket/a/b/c"),
    ("s3://my.bucket-1/a b/é=%20", "s3://my.bucket-1/a b/é=%20"),
    ("s3://Old_Bucket/x", "s3://Old_Bucket/x"),
    (f"s3://{ARN}/raw", f"s3://{ARN}:raw"),
    (f"s3://{ARN}:raw/a b/", f"s3://{ARN}:raw/a b"),
    (
        "s3://arn:aws-us-gov:s3:us-gov-west-1:123456789012:accesspoint/raw/x",
        "s3://arn:aws-us-gov:s3:us-gov-west-1:123456789012:accesspoint:raw/x",
    ),
    ("gs://bucket/a b/", "gs://bucket/a b"),
    ("az://container", "az://container"),
]

BAD = [
    f"gs://{ARN}/raw", "s3://arn:aws:s3:::bucket/x", "s3://arn:aws:s3:eu-west-1:1:accesspoint/raw",
    f"s3://{ARN}", "s3://arn:aws:sns:eu-west-1:123456789012:accesspoint/raw",
    "", "x", "/data/flights", "data/flights", "C:\\data", "file:", "file:/data", "file://", "file:///", "file:////",
    "file://host/data", "file://data", "file:///a/../b", "file:///a/%2e%2e/b", "file:///a/..", "file:///./a",
    "file:///a?x=1", "file:///a#f", "file:///a%00b", "file:///%ff", "file:///a\ud800", "FILE:///a", "file:///..",
    "s3:", "s3:/bucket", "s3://", "s3:///key", "s3://b", "s3://bu cket/x", "s3://-bucket/x", "s3://bucket-/x",
    "s3://buc..ket/x", "s3://user@bucket/x", "s3://user:secret@bucket/x", "s3://bucket:9000/x", "s3://bucket//x",
    "s3://bucket/a//b", "s3://bucket/../x", "s3://bucket/a/./b", "s3://bucket/a/..", "s3://bucket/x?versionId=1",
    "s3://bucket/x#y", "s3://bucket/a\nb", "s3://bucket/a\0", "s3://bucket/a\\b", "s3://bucket/\ud800",
    "s3://bucket/" + "x" * 513, "s3://169.254.169.254:80/x", "s3a://bucket/x", "s3n://bucket/x", "S3://bucket/x",
    "gcs://bucket/x", "abfss://c@a.dfs.core.windows.net/x", "az://c@a/x", "gs://bucket/../x",
    "http://host/x", "https://bucket.s3.amazonaws.com/x", "gopher://x/y", "javascript:alert(1)",
]  # fmt: skip


@pytest.mark.parametrize(("url", "expected"), GOOD)
def test_a_namespace_has_one_spelling(url, expected):
    assert parse_location(url).url == expected
    assert parse_location(expected).url == expected
    assert Stores().at(url).url == expected


@pytest.mark.parametrize("url", BAD)
def test_what_is_no_namespace(url):
    for use in (parse_location, Stores().at):
        with raising("invalid_uri") as raised:
            use(url)
        message = raised.value.message
        assert "\n" not in message
        assert "\0" not in message
        assert "secret" not in message
        assert len(message) < 500


def test_messages_help():
    for url, hint in (
        ("s3a://b/x", "write s3://"),
        ("/data", "file:///absolute"),
        ("s3://u:secret@b/x", "without user"),
    ):
        with raising("invalid_uri", hint):
            parse_location(url)


def test_schemes_lead_to_stores(tmp_path):
    local = Stores(StoreSettings(fsync=False)).at((tmp_path / "a b").as_uri())
    assert isinstance(local, LocalStore)
    assert local.root == tmp_path / "a b"
    bucket = Stores(StoreSettings(region="eu-west-1")).at("s3://bucket/a/b")
    assert isinstance(bucket, S3Store)
    assert (bucket.bucket, bucket.prefix, bucket.settings.region) == ("bucket", "a/b", "eu-west-1")


def test_a_resolver_opens_each_place_once():
    stores = Stores()
    assert stores.at("file:///data/x/") is stores.at("file:///data//x")
    assert stores.at("file:///data/x") is not stores.at("file:///data/x2")
    first = stores.at("s3://bucket/p0")
    for number in range(1000):
        stores.at(f"s3://bucket/p{number}")
    assert len(stores._opened) <= 256
    assert stores.at("s3://bucket/p0").url == first.url


def test_a_resolver_wraps_what_it_opens():
    faults = Faults()
    stores = Stores(wrap=faults.around)
    store = stores.at("file:///data/x")
    assert isinstance(store, FaultyStore)
    assert store.faults is faults
    assert stores.at("file:///data/x") is store


@pytest.mark.parametrize(
    ("namespace", "address", "url", "key"),
    [
        ("s3://bucket/ns", "data/h/a", "s3://bucket/ns", "data/h/a"),
        ("s3://bucket/ns/", "data/h/part 0%20?#é.parquet", "s3://bucket/ns", "data/h/part 0%20?#é.parquet"),
        ("file:///ns", "data/h/part 0%20?#é", "file:///ns", "data/h/part 0%20?#é"),
        ("file:///ns", "s3://other/a/b c?d#e%20", "s3://other", "a/b c?d#e%20"),
        ("file:///ns", "s3://other//a//b/", "s3://other", "/a//b/"),
        ("file:///ns", "file:///import/a%20b/c%23d", "file:///import/a%20b", "c#d"),
        ("file:///ns", "file:///top", "file:///".rstrip("/") + "/", "top"),
        ("s3://bucket/ns", "s3://bucket/ns/data/x", "s3://bucket/ns", "data/x"),
        ("file:///ns", f"s3://{ARN}/raw/a/b", f"s3://{ARN}:raw", "a/b"),
        (f"s3://{ARN}:raw/ns", f"s3://{ARN}:raw/ns/data/x", f"s3://{ARN}:raw/ns", "data/x"),
    ],
)
def test_addresses_lead_to_a_store_and_a_key(namespace, address, url, key):
    store, found = Stores().locate(AddressPolicy(namespace), address)
    assert (store.url.rstrip("/"), found) == (url.rstrip("/"), key)


@pytest.mark.parametrize(
    "address",
    [
        *("s3://bucket", "s3://bucket/", "s3://", "s3a://b/k", "ftp://x/y"),
        *("file:///", "file:///a/", "file:///a/../b", "file:///a%2Fb", "file:///a/%2fb"),
    ],
)
def test_addresses_that_lead_nowhere(address):
    with raising("invalid_uri"):
        Stores().locate(AddressPolicy("file:///ns"), address)


def test_an_imported_file_is_read_where_it_is(tmp_path):
    place = tmp_path / "import me"
    place.mkdir()
    (place / "a#b%20.csv").write_bytes(b"rows")
    source = Stores().at(place.as_uri())
    [item] = source.list()
    address = layout.absolute(source.url, item.key)
    store, key = Stores().locate(AddressPolicy("file:///ns"), address)
    assert store.get(key) == b"rows"


keys = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30)


@given(key=keys, namespace=st.sampled_from(["s3://bucket/ns", "s3://bucket", "file:///data/a%20b"]))
def test_absolute_and_relative_undo_each_other(key, namespace):
    key = "data/" + key
    address = layout.absolute(namespace, key)
    assert layout.is_absolute(address)
    assert layout.relative(namespace, address) == key
    assert not layout.is_absolute(key)
    assert layout.absolute(namespace, address) == address


def test_relative_leaves_other_places_alone():
    for address in ("s3://bucket/ns2/x", "s3://other/ns/x", "file:///ns/x", "s3://bucket/ns"):
        assert layout.relative("s3://bucket/ns", address) == address


@pytest.mark.parametrize(
    "changes",
    [
        {"endpoint_url": "localhost:9000"},
        {"endpoint_url": "ftp://host"},
        {"endpoint_url": "http://"},
        {"endpoint_url": "http://host:port"},
        {"endpoint_url": "http://user:secret@host"},
        {"endpoint_url": "http://host/?x=secret"},
        {"part_bytes": 1024},
        {"max_attempts": 0},
        {"read_timeout": -1},
        {"parallel_parts": 0},
    ],
)
def test_settings_that_cannot_work(changes):
    with raising("invalid_settings") as raised:
        StoreSettings(**changes)
    assert "secret" not in raised.value.message


def test_settings_compare_by_value():
    assert StoreSettings(region="x") == StoreSettings(region="x")
    assert hash(StoreSettings()) == hash(StoreSettings())
    assert StoreSettings(endpoint_url="https://[::1]:9000/").endpoint_url == "https://[::1]:9000/"


def test_the_local_url_survives_a_round_trip(tmp_path):
    for name in ("plain", "a b", "100%", "q?x#y", "é", "new\nline", "day=1"):
        store = LocalStore(Path(tmp_path) / name, fsync=False)
        store.put("k", name.encode())
        assert Stores().at(store.url).get("k") == name.encode()


# --- names say when what wrote them began ---

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 999_999, tzinfo=UTC)


def test_names_begin_with_the_second_that_their_writer_began_in():
    key = layout.object_key(MOMENT, Ids())
    assert key.startswith("data/2026010203/0405")
    assert re.match(layout.OBJECT_NAME, key)
    folder = layout.object_key(MOMENT, Ids()) + "/"
    assert folder.endswith("/")
    assert re.match(layout.OBJECT_NAME, folder + "part-0.parquet")
    assert re.fullmatch(r"20260102030405[0-9a-v]{20}", layout.attempt(MOMENT, Ids()))


def test_other_names_are_not_lakeops_own():
    for name in ("data/x", "data/2026010203/x", "data/2026010203/0405x", "x/data/2026010203/040500000000000000000000"):
        assert not re.match(layout.OBJECT_NAME, name)
