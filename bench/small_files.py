"""DuckDB and pyarrow read 365 small Parquet files through ``lakefs://``, and the same files without lakeops.

::

    PYTHONPATH=.:tests python -m bench.small_files           files of this machine
    PYTHONPATH=.:tests python -m bench.small_files --s3      a bucket of the server at LAKEOPS_TEST_S3_ENDPOINT

Each read is a process of its own, by turns. It counts the rows and sums a column. *All* is the CPU (user and system) of
the process with its imports, and *read* that of the read alone, which begins when the libraries are loaded. *Native* is
the library's own reader, *fsspec* is the library over fsspec's own file system, which is s3fs for a bucket. *Addresses*
is DuckDB's own reader over the physical addresses of the files, which lakeops tells first. *Memory* is DuckDB over a
file system that has all bytes in a dictionary: what the calls of Python cost, whatever stands behind them.

For a bucket, ``--s3fs FOLDER`` is where ``pip install --target FOLDER s3fs`` put it: it pins another botocore.
``--engines FOLDER`` is where ``tests/services/engines.py`` put DuckDB with httpfs. What is not there is left out.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from time import process_time
from urllib.parse import urlsplit

FILES, ROWS = 365, 1000
LIBRARIES = ("duckdb", "pyarrow")
WAYS = ("native", "fsspec", "lakefs", "addresses", "memory")


def fill(place: Path, endpoint: str | None) -> dict[str, str]:
    """Write the files into a lake and beside it. Gives the URL of each way's folder."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from lakeops import Lake, Settings
    from lakeops.store.base import StoreSettings
    from lakeops.store.open import Stores

    settings, root = Settings.load(home=place / "home", fsync=False, s3_endpoint_url=endpoint), f"file://{place}"
    if endpoint:
        from lakeops.store.s3.client import client

        root = f"s3://bench-{uuid.uuid4().hex[:12]}"
        client(StoreSettings(endpoint)).create_bucket(Bucket=urlsplit(root).netloc)
    store = Stores(StoreSettings(endpoint, fsync=False)).at(f"{root}/plain")
    with Lake.open(settings=settings) as lake:
        repo = lake.create_repository("bench", f"{root}/lake")
        with repo.branch("main").batch() as batch:
            for day in range(FILES):
                numbers = range(day * ROWS, (day + 1) * ROWS)
                rows = {"id": numbers, "amount": [day] * ROWS, "name": [f"customer {number}" for number in numbers]}
                sink = io.BytesIO()
                pq.write_table(pa.table(rows), sink)
                for put in (batch.put, store.put):
                    put(f"orders/day={day:03}/part-0.parquet", sink.getvalue())
        commit = repo.branch("main").commit("A year of orders").id
    folder = urlsplit(f"{root}/plain/orders")
    plain = folder.geturl() if endpoint else folder.path
    uri = f"lakefs://bench/{commit}/orders"
    return {"native": plain, "fsspec": plain, "lakefs": uri, "addresses": uri, "memory": plain}


def read(library: str, way: str, folder: str, *, again: bool) -> None:
    """Read the files in this process, and print its CPU: of the read alone, or of the second one."""
    query = {"duckdb": _duckdb, "pyarrow": _pyarrow}[library](way, folder)
    if again:
        query()
    before = process_time()
    found = query()
    print(json.dumps(process_time() - before))
    assert found == (FILES * ROWS, ROWS * FILES * (FILES - 1) // 2), found
    if library == "pyarrow":  # its threads still close Python's files, and abort the process when they cannot
        sys.stdout.flush()
        os._exit(0)


class _InMemory(io.BytesIO):
    """An open file, all of it in memory."""

    @property
    def size(self) -> int:
        return self.getbuffer().nbytes


def _memory(folder: str) -> object:
    """The file system of *Memory*."""
    from fsspec import AbstractFileSystem

    files = {str(path): path.read_bytes() for path in sorted(Path(folder).glob("*/*.parquet"))}

    class Memory(AbstractFileSystem):
        protocol, cachable = "memory", False

        def glob(self, path: str, **_: object) -> list[str]:
            return list(files)

        def info(self, path: str, **_: object) -> dict[str, object]:
            name = self._strip_protocol(path)
            return {"name": name, "size": len(files[name]), "type": "file"}

        def modified(self, path: str) -> datetime:
            return datetime.fromtimestamp(0, UTC)

        def open(self, path: str, mode: str = "rb", **_: object) -> _InMemory:
            return _InMemory(files[self._strip_protocol(path)])

    return Memory()


def _file_system(way: str, folder: str) -> object:
    import fsspec

    if way == "memory":
        return _memory(folder)
    if way == "lakefs":
        import lakeops.fs

        return lakeops.fs.LakeopsFileSystem()
    endpoint = os.environ.get("LAKEOPS_S3_ENDPOINT_URL")
    return fsspec.filesystem("s3", endpoint_url=endpoint) if endpoint else fsspec.filesystem("file")


def _duckdb(way: str, folder: str) -> Callable[[], tuple[int, int]]:
    import duckdb

    connection = duckdb.connect()
    query = "SELECT count(*), sum(amount) FROM read_parquet($1)"
    if way == "addresses":
        return lambda: connection.execute(query, [_addresses(folder)]).fetchall()[0]
    if way == "native" and "://" in folder:
        from duckdb_extensions import import_extension

        import_extension("httpfs")
        server = urlsplit(os.environ["LAKEOPS_S3_ENDPOINT_URL"])
        keys = f"KEY_ID '{os.environ['AWS_ACCESS_KEY_ID']}', SECRET '{os.environ['AWS_SECRET_ACCESS_KEY']}'"
        where = f"ENDPOINT '{server.netloc}', URL_STYLE 'path', USE_SSL false, REGION 'us-east-1'"
        connection.execute(f"LOAD httpfs; CREATE SECRET (TYPE s3, {keys}, {where})")
    elif way != "native":
        connection.register_filesystem(_file_system(way, folder))
        folder = folder if "://" in folder else f"{'memory' if way == 'memory' else 'file'}://{folder}"
    return lambda: connection.execute(query, [f"{folder}/*/*.parquet"]).fetchall()[0]


def _addresses(uri: str) -> list[str]:
    from lakeops import Lake

    _, _, repository, ref, prefix = uri.split("/", 4)
    return [entry.physical_address for entry in Lake.open().repository(repository).ref(ref).list(f"{prefix}/")]


def _pyarrow(way: str, folder: str) -> Callable[[], tuple[int, int]]:
    import pyarrow.compute as pc
    import pyarrow.dataset as ds
    import pyarrow.fs

    if way != "native":
        system = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(_file_system(way, folder)))
    elif "://" in folder:
        server = urlsplit(os.environ["LAKEOPS_S3_ENDPOINT_URL"])
        system = pyarrow.fs.S3FileSystem(endpoint_override=server.netloc, scheme=server.scheme, region="us-east-1")
    else:
        system = pyarrow.fs.LocalFileSystem()
    path = folder.partition("://")[2] or folder

    def query() -> tuple[int, int]:
        table = ds.dataset(path, filesystem=system, format="parquet").to_table(columns=["amount"])
        return table.num_rows, pc.sum(table["amount"]).as_py()

    return query


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def process(library: str, way: str, folder: str, place: Path, given: argparse.Namespace) -> tuple[float, float]:
    """CPU of a process that reads, in seconds: all of it, and of the read alone."""
    python, path = sys.executable, [os.environ.get("PYTHONPATH", "")]
    variables = os.environ | {"LAKEOPS_HOME": str(place / "home"), "PYTHONPYCACHEPREFIX": str(place / "bytecode")}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled once
    if given.s3:
        variables["LAKEOPS_S3_ENDPOINT_URL"] = os.environ["LAKEOPS_TEST_S3_ENDPOINT"]
        if way == "fsspec":
            path.insert(0, given.s3fs)
        elif (library, way) == ("duckdb", "native"):
            python = str(Path(given.engines) / "duckdb" / "bin" / "python")
    variables["PYTHONPATH"] = os.pathsep.join(path)
    before = _cpu()
    words = [python, "-m", "bench.small_files", "--read", library, way, folder, *(["--again"] if given.again else [])]
    done = subprocess.run(words, env=variables, stdout=subprocess.PIPE, check=True)
    return _cpu() - before, json.loads(done.stdout)


def measure(folders: dict[str, str], place: Path, given: argparse.Namespace) -> None:
    """Print the medians of each way, and the ratios of all to those of the first two."""
    for library in given.libraries:
        ways = [way for way in WAYS if way in given.ways and _can(library, way, given)]
        taken: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for turn in range(-1, given.repeats):  # the first one fills the caches of the machine
            for way in ways:
                sample = process(library, way, folders[way], place, given)
                if turn >= 0:
                    taken[way].append(sample)
        print(f"{library}\n  {'CPU, ms':12}{'all':>8}{'native':>8}{'fsspec':>8}{'read':>10}{'native':>8}{'fsspec':>8}")
        medians = {
            way: [statistics.median(column) for column in zip(*some, strict=True)] for way, some in taken.items()
        }
        for way, both in medians.items():
            line = f"  {way:12}"
            for number, (width, median) in enumerate(zip((8, 10), both, strict=True)):
                ratios = [
                    f"{median / medians[base][number]:7.2f}x" if base in medians else " " * 8 for base in WAYS[:2]
                ]
                line += f"{1000 * median:{width}.0f}{''.join(ratios)}"
            print(line, flush=True)


def _can(library: str, way: str, given: argparse.Namespace) -> bool:
    if way in ("addresses", "memory"):
        return library == "duckdb" and not given.s3
    if not given.s3 or way == "lakefs":
        return True
    return bool(given.s3fs) if way == "fsspec" else library == "pyarrow" or bool(given.engines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--s3", action="store_true", help="in a bucket")
    parser.add_argument("--s3fs", metavar="FOLDER", help="where s3fs is")
    parser.add_argument("--engines", metavar="FOLDER", help="where DuckDB with httpfs is")
    parser.add_argument("--again", action="store_true", help="the second read of each process")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--libraries", nargs="+", default=LIBRARIES, choices=LIBRARIES)
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    parser.add_argument("--read", nargs=3, metavar=("LIBRARY", "WAY", "FOLDER"), help="what each process does")
    given = parser.parse_args()
    if given.read:
        read(*given.read, again=given.again)
        return
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        measure(fill(place, os.environ["LAKEOPS_TEST_S3_ENDPOINT"] if given.s3 else None), place, given)


if __name__ == "__main__":
    main()
