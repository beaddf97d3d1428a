"""Gateways: one as a process that all tests share, and others in threads of this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from services.process import die_with_parent
from support.engines import place
from support.served import KEYS, Served, fill, running, s3_client

from lakeops import Lake, Repository, Settings

__all__ = ["place"]


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """``lakeops gateway`` as a process that takes signed requests only."""
    home = tmp_path_factory.mktemp("gateway")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LAKEOPS_")}
    environment |= {"LAKEOPS_HOME": str(home), "LAKEOPS_GATEWAY_ACCESS_KEY": KEYS.access_key}
    environment |= {"LAKEOPS_GATEWAY_SECRET_KEY": KEYS.secret_key}
    with Lake.open(settings=Settings.model_construct(home=home, fsync=False, committer="tester")) as lake:
        repo = fill(lake)
        with subprocess.Popen(
            [sys.executable, "-m", "lakeops", "gateway", "--port", "0", "--json"],
            stdout=subprocess.PIPE,
            env=environment,
            cwd=home,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - one thread, at the beginning of a session
        ) as process:
            assert process.stdout is not None
            said = json.loads(process.stdout.readline())
            assert said["signed"] is True
            yield Served(said["url"], repo)
            process.terminate()
            assert process.wait() in {0, -15}


Serve = Callable[..., str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts gateways in threads of this process; gives their URLs."""
    with ExitStack() as started:
        yield lambda lake, keys=None, **more: started.enter_context(running(lake, keys, **more))


@pytest.fixture
def repo(lake: Lake) -> Repository:
    repo = lake.create_repository("shop")
    repo.branch("main").put("old", b"old")
    repo.branch("main").commit("first")
    repo.create_tag("v1", "main")
    return repo


@pytest.fixture
def s3(lake: Lake, repo: Repository, serve: Serve) -> Iterator[Any]:
    """A client that may write."""
    with s3_client(serve(lake, KEYS, write=True)) as client:
        yield client


@pytest.fixture
def no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No configuration of the person who runs the tests."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
