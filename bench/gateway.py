"""Reads 1,000 small objects with lakeops, and through ``lakeops gateway`` with boto3: ``python -m bench.gateway``.

Times are CPU seconds of all processes that take part, because other work of the machine does not change those much.
Everything is on this machine, so what is measured is the gateway's own cost and not a network's.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import boto3
import psutil
from botocore.config import Config

from lakeops import Lake

OBJECTS = 1000
THREADS = (1, 8)
KEYS = {"LAKEOPS_GATEWAY_ACCESS_KEY": "bench", "LAKEOPS_GATEWAY_SECRET_KEY": "0123456789abcdef"}


def main() -> None:
    with tempfile.TemporaryDirectory() as home, Lake.open(home=home) as lake:
        branch = lake.create_repository("bench").branch("main")
        with branch.batch() as batch:
            for number in range(OBJECTS):
                batch.put(f"small/{number:04}.bin", bytes(4096))
        commit = branch.commit("Small objects").id
        ref = lake.repository("bench").ref(commit)
        paths = [entry.path for entry in ref.list()]
        for threads in THREADS:
            print(f"lakeops, {threads} threads: {_seconds(ref.read, paths, threads):.2f} s")
        with subprocess.Popen(
            [sys.executable, "-m", "lakeops", "gateway", "--port", "0", "--json"],
            stdout=subprocess.PIPE,
            env={**KEYS, "LAKEOPS_HOME": home},
        ) as process:
            try:
                _ask(json.loads(process.stdout.readline())["url"], commit, paths, process.pid)
            finally:
                process.terminate()


def _ask(url: str, commit: str, paths: list[str], gateway: int) -> None:
    client = boto3.client(
        "s3",
        endpoint_url=url,
        aws_access_key_id="bench",
        aws_secret_access_key="0123456789abcdef",
        region_name="us-east-1",
        config=Config(max_pool_connections=max(THREADS)),
    )

    def read(path: str) -> bytes:
        return client.get_object(Bucket="bench", Key=f"{commit}/{path}")["Body"].read()

    client.list_objects_v2(Bucket="bench", Prefix=f"{commit}/")  # what is imported late comes before the first figure
    for threads in THREADS:
        client_and_gateway = _seconds(read, paths, threads, gateway)
        print(f"gateway, {threads} threads: {client_and_gateway:.2f} s")


def _seconds(read, paths: list[str], threads: int, *others: int) -> float:
    with ThreadPoolExecutor(threads) as pool:
        begun = _used(*others)
        assert sum(map(len, pool.map(read, paths))) == OBJECTS * 4096
        return _used(*others) - begun


def _used(*others: int) -> float:
    """CPU seconds of this process and others."""
    times = [psutil.Process(process).cpu_times() for process in (None, *others)]
    return sum(one.user + one.system for one in times)


if __name__ == "__main__":
    main()
