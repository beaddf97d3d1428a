"""Measure lakeops on a bucket far away: a new process for each verb, with nothing kept on this machine, and with it.

::

    PYTHONPATH=.:tests python -m bench.far                  40,000 entries, writes docs/performance.md
    PYTHONPATH=.:tests python -m bench.far --entries 5000 --no-page
    PYTHONPATH=.:tests python -m bench.far --lakefs PROGRAM   lakeFS on the same server, in the same run

The S3 server is the one that ``LAKEOPS_TEST_S3_ENDPOINT`` names, Ceph's radosgw where it is installed, or else moto. A
relay stands before it (``bench.relay``). It also counts the requests, and the longest chain of those that waited for
one another.
"""

from __future__ import annotations

import argparse
import gc
import http.client
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from services import radosgw

from bench import lakefs_side
from bench.dataset import DataSet
from bench.far_verbs import BY_NAME, VERBS, Verb
from bench.relay import Relay, longest_chain
from bench.run import machine
from bench.sample import CODE, peak_mb

if TYPE_CHECKING:
    from lakeops import Lake, Repository, Settings

DELAY = 0.025
BANDWIDTH = 100e6
REPEATS = 3
PUTTERS = 8
HOW = ("cold", "cached")


# --- the process of one verb ---


def run_verb(name: str, run: str) -> None:
    """Run a verb in this process and print what it took, without imports and the making of S3 clients."""
    from lakeops import Lake
    from lakeops.store.base import StoreSettings
    from lakeops.store.s3.client import client
    from lakeops.store.s3.direct import PATIENCE, WRITE_PATIENCE, direct

    gc.disable()  # as the command line does
    with tempfile.TemporaryDirectory() as home:
        _everything_imported(_settings(home=Path(home)))
    settings = _settings()
    stores = StoreSettings(settings.s3_endpoint_url, settings.s3_region, settings.fsync)
    client(stores)
    way = direct(urlsplit(os.environ["BENCH_SOURCE"]).netloc, stores)
    assert way is not None
    for patience in (PATIENCE, WRITE_PATIENCE):
        assert way._client("any", patience) is not None
    begun, cpu = time.perf_counter(), time.process_time()
    with Lake.open(settings=settings) as lake:
        BY_NAME[name].run(lake.repository("bench"), run)
        wall, cpu = time.perf_counter() - begun, time.process_time() - cpu
    print(json.dumps({"wall": wall, "cpu": cpu, "peak_mb": peak_mb()}))


def _everything_imported(settings: Settings) -> None:
    """Do a bit of everything in a lake of its own: verbs import what they need when they are first called."""
    from lakeops import Lake

    with Lake.open(settings=settings) as lake:
        repo = lake.create_repository("imports")
        for name in ("side", "other"):
            branch = repo.create_branch(name, "main")
            branch.put(name, b"")
            branch.commit(name)
        repo.merge("side", "other")
        list(repo.diff("main", "other"))
        list(repo.ref("other").list())
        repo.ref("other").stat("side")


def _settings(**given: Any) -> Settings:
    from lakeops import Settings

    return Settings.load(engine="local", committer="bench", **given)


# --- the run ---


@contextmanager
def server() -> Iterator[tuple[str, str]]:
    """An S3 server: what it is, and its URL."""
    named = os.environ.get("LAKEOPS_TEST_S3_ENDPOINT")
    if named:
        yield _name_of(named), named
    elif all(shutil.which(command) for command in radosgw.COMMANDS):
        with _radosgw() as url:
            yield "Ceph's radosgw", url
    else:
        from moto.server import ThreadedMotoServer

        os.environ |= {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}
        moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        moto.start()
        try:
            yield "moto", "http://{}:{}".format(*moto.get_host_and_port())
        finally:
            moto.stop()


def _name_of(endpoint: str) -> str:
    """What a server calls itself."""
    connection = http.client.HTTPConnection(urlsplit(endpoint).netloc)
    connection.request("GET", "/")
    name = connection.getresponse().getheader("Server") or "an S3 server"
    connection.close()
    return name


@contextmanager
def _radosgw() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="lakeops-radosgw-") as place:
        command = [sys.executable, radosgw.__file__]
        told = subprocess.run([*command, "start", place], check=True, stdout=subprocess.PIPE, text=True).stdout
        os.environ |= dict(part.split("=", 1) for part in shlex.split(told) if "=" in part)
        try:
            yield os.environ["LAKEOPS_TEST_S3_ENDPOINT"]
        finally:
            subprocess.run([*command, "stop", place], check=True)


def measure(
    entries: int, repeats: int, on_row: Callable[[str], None], rows_with: str = "", lakefs: Path | None = None
) -> dict[str, Any]:
    """The medians of all rows, or of those whose names have ``rows_with`` in them, as a JSON document.

    With ``lakefs``, the program of lakeFS, each row has what lakeFS took as well.
    """
    with server() as (what, near), tempfile.TemporaryDirectory(prefix="lakeops-far-") as place:
        relay = Relay((urlsplit(near).hostname, urlsplit(near).port), DELAY, BANDWIDTH)
        with relay.running() as far:
            bench = _Bench(Path(place), DataSet(entries), near, far, relay)
            rows, loads = {}, []
            for verb in (verb for verb in VERBS if rows_with in verb.name):
                on_row(verb.name)
                rows[verb.name] = {how: bench.row(verb, how, 1 if verb.heavy else repeats) for how in HOW}
                loads.append(os.getloadavg()[0])
            if lakefs is not None:
                with lakefs_side.server(lakefs, Path(place) / "lakefs", far) as api:
                    root = f"s3://{bench.bucket}"
                    theirs = lakefs_side.LakeFs(api, f"{root}/lakefs", bench.data, f"{root}/source/")
                    for verb in (verb for verb in VERBS if verb.name in rows):
                        on_row(f"lakeFS: {verb.name}")
                        walls = [their_run(verb, theirs, again) for again in range(1 if verb.heavy else repeats)]
                        rows[verb.name]["lakefs"] = {"wall": median(walls)}
    return {
        "entries": entries,
        "repeats": repeats,
        "server": what,
        "delay_ms": DELAY * 1000,
        "megabytes_a_second": BANDWIDTH / 1e6,
        "machine": machine(),
        "load": [min(loads), max(loads)],
        "rows": rows,
    }


def their_run(verb: Verb, lakefs: lakefs_side.LakeFs, again: int) -> float:
    """How long a verb takes on lakeFS, in seconds."""
    name = f"run-{uuid.uuid4().hex[:12]}"
    verb.before_theirs(lakefs, name, again)
    begun = time.perf_counter()
    verb.theirs(lakefs, name)
    return time.perf_counter() - begun


class _Bench:
    """A repository in a bucket, and the processes that work on it."""

    def __init__(self, place: Path, data: DataSet, near: str, far: str, relay: Relay) -> None:
        from lakeops import Lake

        self.data = data
        self.bucket = f"bench-{uuid.uuid4().hex[:12]}"
        self._relay = relay
        self._place = place
        self._environment = os.environ | {
            "PYTHONPATH": CODE,
            "LAKEOPS_HOME": str(place / "home"),
            "LAKEOPS_S3_ENDPOINT_URL": far,
            "AWS_DEFAULT_REGION": "us-east-1",
            "BENCH_PATH": data.paths(_numbers(data.size // 3, 1)).to_pylist()[0],
        }
        self._kept = place / "kept"
        settings = _settings(home=place / "home", s3_endpoint_url=near, s3_region="us-east-1", disk_cache=self._kept)
        self._lake: Lake = Lake.open(settings=settings)
        self._repository = self._prepared(near)

    def _prepared(self, near: str) -> Repository:
        import boto3

        bucket = self.bucket
        client = boto3.client("s3", endpoint_url=near, region_name="us-east-1")
        client.create_bucket(Bucket=bucket)
        paths = self.data.paths(_numbers(0, self.data.size)).to_pylist()
        with ThreadPoolExecutor(PUTTERS) as pool:
            list(pool.map(partial(_put_all, client, bucket), [paths[start::PUTTERS] for start in range(PUTTERS)]))
        self._environment["BENCH_SOURCE"] = f"s3://{bucket}/source/"
        repository = self._lake.create_repository("bench", f"s3://{bucket}/repository")
        catalog: Any = self._lake.catalog
        for which in self.data.batches():
            catalog.staging.put_staged("bench", "main", _staged(self.data, which), started=catalog.now())
        repository.branch("main").commit("base")
        return repository

    def row(self, verb: Verb, how: str, repeats: int) -> dict[str, float]:
        """The medians of some runs."""
        samples = [self._run(verb, how, again) for again in range(repeats)]
        return {name: median(sample[name] for sample in samples) for name in samples[0]}

    def _run(self, verb: Verb, how: str, again: int) -> dict[str, float]:
        name = f"run-{uuid.uuid4().hex[:12]}"
        verb.before(self._repository, self.data, name, 2 * again + HOW.index(how))
        kept = self._kept if how == "cached" else self._place / name
        self._relay.forget()
        begun = time.perf_counter()
        told = subprocess.run(
            [sys.executable, "-m", "bench.far", "--verb", verb.name, "--run", name],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env=self._environment | {"LAKEOPS_DISK_CACHE": str(kept)},
        ).stdout
        process = time.perf_counter() - begun
        requests = self._relay.requests
        return {
            **json.loads(told),
            "process": process,
            "requests": len(requests),
            "chain": longest_chain(requests),
        }


def _put_all(client: Any, bucket: str, paths: list[str]) -> None:
    """Make objects, by signed URLs: boto3's own puts take longer than the server's work."""
    where = urlsplit(client.meta.endpoint_url)
    connection = http.client.HTTPConnection(where.hostname, where.port)
    for path in paths:
        url = client.generate_presigned_url("put_object", Params={"Bucket": bucket, "Key": f"source/{path}"})
        connection.request("PUT", url.removeprefix(f"{where.scheme}://{where.netloc}"), b"x")
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"the server refused an object: {answer.status} {answer.read()!r}")
        answer.read()
    connection.close()


def _numbers(start: int, count: int) -> Any:
    import numpy as np

    return np.arange(start, start + count, dtype=np.uint64)


def _staged(data: DataSet, which: Any) -> Any:
    import pyarrow as pa

    from lakeops.model.arrow import STAGED_SCHEMA

    table = data.entries(which)
    return table.append_column("tombstone", pa.array([False] * len(table))).select(STAGED_SCHEMA.names)


# --- the page ---

HEADINGS = (
    "verb",
    "cold ms (CPU)",
    "requests",
    "chain",
    "cached ms (CPU)",
    "requests",
    "chain",
    "lakeFS ms",
    "cached beside lakeFS",
)


def lines(result: dict[str, Any]) -> Iterator[str]:
    """The table and what it stands on, in Markdown."""
    machine = result["machine"]
    low, high = result["load"]
    yield (
        f"{result['entries']:,} entries, {result['server']} behind a relay that adds {result['delay_ms']:g} ms to each "
        f"request and lets {result['megabytes_a_second']:g} MB a second through. {machine['cores']} cores, load "
        f"{low:.1f} to {high:.1f} during the run, Python {machine['python']}, SQLite. "
        f"Medians of {result['repeats']}; rows that take seconds ran once."
    )
    yield ""
    beside = all("lakefs" in row for row in result["rows"].values())
    if beside:
        yield (
            "lakeFS was measured in the same run, on the same server behind the same relay. Its own server had been "
            "running for a while by then."
        )
        yield ""
    busy = high > machine["cores"] and not beside
    if busy:
        yield (
            "The load was above the number of cores. So the wall times hold waiting for a core, and are not compared "
            "with those of lakeFS, which had its machine to itself. Requests and CPU say more here. A chain is the "
            "most requests of which each began after the one before had ended: where many travel at once, threads that "
            "wait for a core make it longer."
        )
        yield ""
    yield f"| {' | '.join(HEADINGS)} |"
    yield f"|---|{'--:|' * (len(HEADINGS) - 1)}"
    for verb in VERBS:
        found = result["rows"].get(verb.name)
        if found is not None:
            theirs = found["lakefs"]["wall"] * 1000 if "lakefs" in found else verb.lakefs
            ratio = "" if busy else f"{found['cached']['wall'] * 1000 / theirs:.2f}x"
            cells = [cell for how in HOW for cell in _cells(found[how])]
            yield f"| {verb.name} | {' | '.join(cells)} | {theirs:{',.0f' if theirs >= 10 else '.1f'}} | {ratio} |"
    yield ""
    processes = [
        sample["process"] - sample["wall"] for row in result["rows"].values() for sample in (row[how] for how in HOW)
    ]
    yield (
        "Starting the process, its imports, a small lake in which it calls each verb once and the S3 clients took "
        f"{median(processes) * 1000:,.0f} ms and is not in the table."
    )


def _cells(sample: dict[str, float]) -> tuple[str, ...]:
    return (
        f"{sample['wall'] * 1000:,.0f} ({sample['cpu'] * 1000:,.0f})",
        f"{sample['requests']:,.0f}",
        f"{sample['chain']:,.0f}",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What every benchmark takes whose verbs are processes of their own."""
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--lakefs", type=Path, metavar="PROGRAM", help="measure lakeFS in the same run")
    parser.add_argument("--verb", help=argparse.SUPPRESS)
    parser.add_argument("--run", help=argparse.SUPPRESS)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.far", description=__doc__.splitlines()[0])
    parser.add_argument("--entries", type=int, default=40_000)
    add_arguments(parser)
    parser.add_argument("--no-page", action="store_true", help="leave docs/ as it is")
    parser.add_argument("--rows", default="", metavar="TEXT", help="only rows with this in their names; docs/ stays")
    parser.add_argument("--page-only", action="store_true", help="write the page from the last numbers")
    arguments = parser.parse_args()
    if arguments.verb:
        run_verb(arguments.verb, arguments.run)
        return
    from bench import page

    if arguments.page_only:
        result = json.loads(page.FAR_NUMBERS.read_text())
    else:
        result = measure(
            arguments.entries,
            arguments.repeats,
            lambda row: print(f"{row} ...", file=sys.stderr),
            arguments.rows,
            arguments.lakefs,
        )
    print("\n".join(lines(result)))
    if not arguments.no_page and not arguments.rows:
        page.remember_far(result, lines(result))


if __name__ == "__main__":
    main()
