"""Where objects outside the namespace may lie: told when they are linked, and again when they are opened."""

from collections.abc import Callable
from contextlib import nullcontext
from random import Random

import pytest
from support.errors import raising
from support.mirrors import open_pair
from support.scenes import SPLIT, table

from lakeops import Lake, Repository, Settings
from lakeops.catalog.records import Staged
from lakeops.model.errors import RecordRefused
from lakeops.model.mirrors import SourceKind, SourceReference
from lakeops.model.records import Entry
from lakeops.store.open import AddressPolicy


def row(address):
    return table({"x": address}, checksum=["c"], size_bytes=[6])


def listing(lake, *prefixes):
    """The lake of the tests, under settings that list where objects may lie."""
    settings = Settings.load(**{**lake.settings.model_dump(), "external_prefixes": prefixes})
    return Lake(lake.catalog, settings, clock=lake.clock)


def smuggle(repo, address):
    """Stage an entry past all checks, as a catalog that somebody else wrote to may hold it."""
    entry = Entry("x", address, "c", 6, 0)
    repo._ctx.catalog.staging.put_staged(repo.id, "main", [Staged("x", entry)], started=repo._ctx.catalog.now())


@pytest.fixture
def secret(tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "passwd").write_text("root:x")
    return f"file://{folder}/passwd"


READS: dict[str, Callable[[Repository], object]] = {
    "read": lambda repo: repo.ref("main").read("x"),
    "open": lambda repo: repo.ref("main").open("x"),
    "presign": lambda repo: repo.ref("main").presign("x"),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize(
    "address",
    [
        pytest.param("{ns}/_lakefs/repository.json", id="metadata of the namespace"),
        pytest.param("_lakefs/repository.json", id="the same, relative"),
        pytest.param("{other}/data/2026010100/x", id="another repository's object"),
        pytest.param("{other}/_lakefs/repository.json", id="another repository's claim"),
    ],
)
def test_what_is_managed_is_never_opened(lake, repo, read, address):
    other = lake.create_repository("other", split=SPLIT)
    smuggle(repo, address.format(ns=repo.storage_namespace, other=other.storage_namespace))
    with raising("address_refused"):
        read(repo)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_what_is_not_listed_is_neither_linked_nor_opened(lake, repo, read, secret):
    assert repo.branch("main").stage(row(secret)) == 1
    strict = listing(lake, "s3://raw", "file:///srv/imports").repository(repo.id)
    with raising("address_refused", "external_prefixes"):
        read(strict)
    folder = secret.rpartition("/")[0]
    for link in (
        lambda: strict.branch("main").stage(row(secret)),
        lambda: strict.branch("main").import_objects(folder, "x", "m"),
    ):
        with raising("address_refused", "external_prefixes"):
            link()


def test_what_is_listed_is_linked_and_opened(lake, repo, secret):
    listed = listing(lake, secret.rpartition("/")[0] + "/").repository(repo.id)
    listed.branch("main").stage(row(secret))
    assert listed.ref("main").read("x", verify=False) == b"root:x"


def test_a_link_in_a_listed_place_leads_nowhere_else(lake, repo, secret, tmp_path):
    (tmp_path / "listed").mkdir()
    (tmp_path / "listed/out").symlink_to(tmp_path / "elsewhere")
    listed = listing(lake, f"file://{tmp_path}/listed").repository(repo.id)
    with raising("address_refused"):
        listed.branch("main").stage(row(f"file://{tmp_path}/listed/out/passwd"))


def test_nothing_is_allowed_when_nothing_is_listed(lake, repo):
    with raising("address_refused"):
        listing(lake).repository(repo.id).branch("main").stage(row("s3://raw/x"))


@pytest.mark.parametrize(
    ("prefixes", "files", "address", "refused"),
    [
        (None, True, "s3://other/a/x", False),
        (None, True, "file:///tmp/x", True),
        (("file:///tmp",), True, "file:///tmp/x", True),
        (("s3://other/a",), True, "s3://other/a/x", False),
        (("s3://other/a",), True, "s3://other/a/b/x", False),
        (("s3://other/a",), True, "s3://other/ab/x", True),
        (("s3://other/a",), True, "s3://other/a", True),
        (("s3://other",), True, "s3://other/x", False),
    ],
)
def test_a_repository_in_a_bucket(prefixes, files, address, refused):
    policy = AddressPolicy("s3://bucket/ns", prefixes, files)
    with raising("address_refused") if refused else nullcontext():
        assert policy.check(address) == address


def test_files_are_believed_of_a_source_on_this_machine_alone():
    def local(kind, place):
        return SourceReference(kind, place, "flights").is_local

    assert local(SourceKind.HOME, "/lakes/us")
    assert local(SourceKind.DATABASE, "sqlite:////lakes/us/catalog.db")
    assert not local(SourceKind.DATABASE, "postgresql+psycopg://db/lake")
    assert not local(SourceKind.ENVIRONMENT, "SOURCE")
    assert not local(SourceKind.CONNECTION, "source")
    assert not local(SourceKind.SETTINGS, "/lakes/us.toml")
    with raising("address_refused", "source of this mirror"):
        AddressPolicy("file:///mirror", None, files=False).check("file:///etc/passwd")
    listed = AddressPolicy("file:///mirror", ("file:///srv",), files=False)
    assert listed.check("file:///srv/x") == "file:///srv/x"


def test_the_setting(monkeypatch):
    monkeypatch.setenv("LAKEOPS_EXTERNAL_PREFIXES", "s3://raw, file:///srv/imports")
    assert Settings.load().external_prefixes == ("s3://raw", "file:///srv/imports")
    for text, means in (("", None), (",", ())):
        monkeypatch.setenv("LAKEOPS_EXTERNAL_PREFIXES", text)
        assert Settings.load().external_prefixes == means
    for bad in ("/srv", "http://x/y"):
        with raising("invalid_settings", "external_prefixes"):
            Settings.load(external_prefixes=[bad])


@pytest.fixture
def pair(tmp_path, clock):
    with open_pair(tmp_path, clock=clock, random=Random(1)) as opened:
        yield opened


def test_a_mirror_shows_no_entry_that_its_policy_refuses(pair, secret):
    """The ref stays where it is, with the reason; other refs go on."""
    pair.repo.create_branch("good", source="main")
    pair.repo.branch("main").stage(row(secret))
    pair.repo.branch("main").commit("bad")
    good = pair.commit("good", a="1")
    strict = listing(pair.there, "s3://raw").mirror("flights")
    pair.replicator.settle()
    with pytest.raises(RecordRefused, match=r"main.*external_prefixes"):
        strict.sync(pair.here)
    assert pair.head("good") == good.id
    assert "external_prefixes" in (strict.status()["main"].error or "")
    status = pair.mirror.sync()  # where the place may be named, the same commit is shown
    assert status["main"].promoted == pair.repo.ref("main").commit.id
    assert pair.mirror.verify() == []
    assert any("external_prefixes" in flaw for flaw in strict.verify())


@pytest.mark.parametrize("field", ["checksum", "content_type", "mtime", "size_bytes", "physical_address", "metadata"])
def test_a_mirror_shows_no_entry_that_no_object_has(pair, field):
    odd = {
        "checksum": "c\r\n", "content_type": "t" * 300, "mtime": 10**13, "size_bytes": -1,
        "physical_address": "gopher://x/y", "metadata": {"k": "v" * 5000},
    }  # fmt: skip
    values = {"path": "x", "physical_address": "s3://raw/x", "checksum": "c", "size_bytes": 1, "mtime": 0}
    entry = Entry(**{**values, field: odd[field]})
    catalog = pair.here.catalog
    catalog.staging.put_staged("flights", "main", [Staged("x", entry)], started=catalog.now())
    pair.repo.branch("main").commit("odd")
    pair.replicator.settle()
    with pytest.raises(RecordRefused, match=r"'x'|-1 bytes"):
        pair.mirror.sync()
