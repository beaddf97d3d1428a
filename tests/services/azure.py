#!/usr/bin/env python3
"""Azurite, Microsoft's emulator of Azure Blob Storage, from npm: installed where it is missing, in build/azurite.

``azure.py COMMAND...`` runs a command while an emulator answers, and says where it is in AZURE_STORAGE_ENDPOINT.
"""

import base64
import hmac
import http.client
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from urllib.parse import urlsplit

VERSION = "3.37.0"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""What every Azurite has; Microsoft publishes both."""

PLACE = Path(__file__).parents[2] / "build" / f"azurite-{VERSION}"


def install() -> Path:
    """The program. Nothing of it runs while it is installed."""
    program = PLACE / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    if not program.exists():
        npm = shutil.which("npm")
        if npm is None:
            sys.exit("install Node.js with npm first")
        print("Installing Azurite (about a minute) ...", file=sys.stderr, flush=True)
        PLACE.mkdir(parents=True, exist_ok=True)
        options = ["--ignore-scripts", "--no-audit", "--no-fund", "--silent", "--prefix", str(PLACE)]
        subprocess.run([npm, "install", *options, f"azurite@{VERSION}"], check=True)
    return program


@contextmanager
def running() -> Iterator[str]:
    """An emulator that keeps everything in memory; gives its account's URL."""
    program = install()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = tempfile.mkdtemp(prefix="azurite-")
    command = ["node", str(program), "--inMemoryPersistence", "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    command += ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
    with subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            if not any("successfully listens" in line for line in server.stdout):
                sys.exit("Azurite did not start")
            yield f"http://127.0.0.1:{port}/{ACCOUNT}"
        finally:
            server.kill()
            shutil.rmtree(place, ignore_errors=True)


def make_container(endpoint: str, name: str) -> None:
    """Create a container, which is no work of lakeops."""
    date = formatdate(usegmt=True)
    signed = (
        f"PUT{chr(10) * 12}x-ms-date:{date}\nx-ms-version:2021-08-06\n/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    )
    mark = base64.b64encode(hmac.digest(base64.b64decode(KEY), signed.encode(), "sha256")).decode()
    connection = http.client.HTTPConnection(urlsplit(endpoint).netloc)
    headers = {"x-ms-date": date, "x-ms-version": "2021-08-06", "authorization": f"SharedKey {ACCOUNT}:{mark}"}
    connection.request("PUT", f"/{ACCOUNT}/{name}?restype=container", headers=headers)
    assert connection.getresponse().status == 201
    connection.close()


def environment(endpoint: str) -> dict[str, str]:
    """Tests of the settings that other programs get."""
    return {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": KEY, "AZURE_STORAGE_ENDPOINT": endpoint}


if __name__ == "__main__":
    with running() as endpoint:
        sys.exit(subprocess.run(sys.argv[1:], env={**os.environ, **environment(endpoint)}, check=False).returncode)
