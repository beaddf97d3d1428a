"""The verbs on a container of Azure (Azurite), with files and a bucket of S3 beside it."""

from __future__ import annotations

import io
import json
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.scenes import tree
from typer.testing import CliRunner

from lakeops import Lake, Repository, Settings, Split
from lakeops.cli.app import app
from lakeops.model.errors import NamespaceTaken
from lakeops.store.open import Stores
from lakeops.testing import ManualClock

pytestmark = pytest.mark.azure


@pytest.fixture
def lake(tmp_path: Path, moto_endpoint: str) -> Iterator[Lake]:
    settings = Settings.load(home=tmp_path / "home", s3_endpoint_url=moto_endpoint)
    with Lake.open(settings=settings, clock=ManualClock()) as lake:
        yield lake


@pytest.fixture
def namespace(container: str) -> str:
    return f"az://{container}/{uuid.uuid4().hex}"


@pytest.fixture
def repo(lake: Lake, namespace: str) -> Repository:
    return lake.create_repository("repo", storage_namespace=namespace, split=Split(2, 4, 8))


def test_a_session(lake: Lake, repo: Repository) -> None:
    main = repo.branch("main")
    for number in range(20):
        main.put(f"f{number:02}", str(number).encode())
    main.put("big", io.BytesIO(b"x" * (20 << 20)))
    main.commit("base")
    repo.create_branch("dev")
    repo.branch("dev").put("f03", b"dev")
    repo.branch("dev").delete("f07")
    repo.branch("dev").commit("dev")
    main.put("f15", b"main")
    main.commit("main")
    assert repo.merge("dev", "main").summary.to_json() == {"added": 0, "removed": 1, "changed": 1}
    files = tree(repo, "main")
    assert (files["f03"], files["f15"], "f07" in files, len(files["big"])) == (b"dev", b"main", False, 20 << 20)
    with urllib.request.urlopen(repo.ref("main").presign("f03")) as answer:
        assert answer.read() == b"dev"
    with pytest.raises(NamespaceTaken):
        lake.create_repository("other", storage_namespace=repo.storage_namespace)
    assert list(repo.fsck(data=True)) == []


def test_an_output_directory(repo: Repository) -> None:
    main = repo.branch("main")
    with main.output("events/") as url:
        Stores().at(url).put("part-0.parquet", b"rows")
    main.commit("events")
    assert tree(repo, "main@") == {"events/part-0.parquet": b"rows"}


def test_garbage_is_found_and_deleted(lake: Lake, repo: Repository) -> None:
    main = repo.branch("main")
    for text in ("old", "new"):
        main.put("f", text.encode())
        main.commit(text)
    repo.gc.set_rules({"default_retention_days": 1})
    lake.clock.advance(days=8)
    mark = repo.gc.mark()
    assert mark.objects == 1
    repo.gc.sweep(mark.id)
    assert tree(repo, "main") == {"f": b"new"}
    assert list(repo.fsck(data=True)) == []


def test_imports_between_kinds_of_stores(lake: Lake, repo: Repository, container: str, buckets) -> None:
    bucket = buckets(lake.settings.s3_endpoint_url)
    stores = Stores(repo._ctx.stores.settings)
    for url, text in ((f"s3://{bucket}/raw-az", b"from s3"), (f"az://{container}/raw", b"from azure")):
        stores.at(url).put("day=1/a b.csv", text)
    repo.branch("main").import_objects(f"s3://{bucket}/raw-az/", "s3/", "import")
    assert tree(repo, "main") == {"s3/day=1/a b.csv": b"from s3"}
    files = lake.create_repository("files")
    files.branch("main").import_objects(f"az://{container}/raw/", "azure/", "import")
    assert tree(files, "main") == {"azure/day=1/a b.csv": b"from azure"}
    assert files.ref("main").stat("azure/day=1/a b.csv").physical_address == f"az://{container}/raw/day=1/a b.csv"


def test_mirrors_between_kinds_of_stores(lake: Lake, repo: Repository, namespace: str, tmp_path: Path, buckets) -> None:
    bucket = buckets(lake.settings.s3_endpoint_url)
    elsewhere = f"s3://{bucket}/{uuid.uuid4().hex}"
    source = lake.create_repository("source", storage_namespace=elsewhere)
    for origin in (source, repo):
        origin.branch("main").put("f", origin.id.encode())
        origin.branch("main").commit("first")
    with Lake.open(settings=Settings.load(home=tmp_path / "there"), clock=lake.clock) as there:
        for origin, place in ((source, f"{namespace}-mirror"), (repo, (tmp_path / "copy").as_uri())):
            mirror = there.create_mirror(origin.id, storage_namespace=place, source=lake)
            mirror.replicate()
            mirror.sync()
            assert tree(mirror, "main") == {"f": origin.id.encode()}


# Each of the libraries leaves files to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_readers_open_a_ref(repo: Repository, tmp_path: Path) -> None:
    import duckdb
    import fsspec
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    options = {"home": str(tmp_path / "home")}
    frame = pd.DataFrame({"day": [1, 2], "n": [10, 20]})
    frame.to_parquet("lakefs://repo/main/t/part.parquet", storage_options=options)
    repo.branch("main").commit("table")
    frame.iloc[:1].to_parquet("lakefs://repo/main/t/part.parquet", storage_options=options)
    for ref, numbers in (("main", [10]), ("main@", [10, 20])):
        address = f"lakefs://repo/{ref}/t/part.parquet"
        assert list(pd.read_parquet(address, storage_options=options)["n"]) == numbers
        with fsspec.open(address, "rb", **options) as file:
            assert pl.read_parquet(file)["n"].to_list() == numbers
        filesystem = fsspec.filesystem("lakefs", **options)
        table = pa.dataset.dataset(f"repo/{ref}/t", filesystem=filesystem).to_table()
        assert table["n"].to_pylist() == numbers
        with duckdb.connect() as connection:
            connection.register_filesystem(filesystem)
            assert connection.sql(f"SELECT sum(n) FROM '{address}'").fetchall() == [(sum(numbers),)]


def test_doctor_looks_at_the_container(repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEOPS_HOME", str(tmp_path / "home"))
    found = CliRunner().invoke(app, ["doctor", "--json"])
    assert found.exit_code == 0, found.output
    checks = {check["name"]: check for check in json.loads(found.stdout)["checks"]}
    assert checks["repository repo"]["status"] == checks["obstore"]["status"] == "ok"
    assert repo.storage_namespace in checks["repository repo"]["detail"]
