"""A lake of its own for every test, and ways to run the command line on it: in this process and as a process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from lakeops.cli.app import app
from lakeops.lake import Lake, Repository
from lakeops.model.records import Split

ENVIRONMENT = {"LAKEOPS_FSYNC": "false", "LAKEOPS_COMMITTER": "ada", "TERM": "xterm-256color", "PAGER": "cat"}


class Commands:
    """Runs the command line in this process."""

    def __init__(self) -> None:
        self._runner = CliRunner()

    def __call__(self, *args: str, stdin: bytes | str | None = None) -> Result:
        """The command's streams and exit code, whatever it was."""
        return self._runner.invoke(app, list(args), input=stdin, prog_name="lakeops")

    def ok(self, *args: str, stdin: bytes | str | None = None) -> str:
        """Stdout of a command that must work."""
        result = self(*args, stdin=stdin)
        assert result.exit_code == 0, (args, result.output)
        return result.stdout

    def json(self, *args: str) -> object:
        """The one JSON document of a command that must work, with nothing beside it on either stream."""
        result = self(*args, "--json")
        assert result.exit_code == 0, (args, result.output)
        assert result.stderr == ""
        assert result.stdout.count("\n") == 1
        return json.loads(result.stdout)

    def lines(self, *args: str) -> list[dict[str, object]]:
        """The JSON documents of a command that prints one a line."""
        result = self(*args, "--json")
        assert result.exit_code == 0, (args, result.output)
        assert result.stderr == ""
        return [json.loads(line) for line in result.stdout.splitlines()]

    def error(self, *args: str) -> dict[str, object]:
        """The error of a command that must fail, checked to be the same in both forms; ``exit_code`` is added."""
        end = args.index("--") if "--" in args else len(args)
        as_json, as_text = self(*args[:end], "--json", *args[end:]), self(*args)
        assert as_json.exit_code == as_text.exit_code != 0, (as_json.output, as_text.output)
        assert as_json.stderr == ""
        assert as_text.stdout == ""
        error = json.loads(as_json.stdout.splitlines()[-1])["error"]
        lines = as_text.stderr.splitlines()
        assert sum(line.startswith("Error: ") for line in lines) == 1, as_text.stderr
        assert "Traceback" not in as_text.stderr + as_json.stdout
        return {**error, "exit_code": as_json.exit_code}


def enter(place: Path, patch: pytest.MonkeyPatch) -> Path:
    """Go to an empty working directory with a lake beside it that the environment names; returns the lake's home."""
    work = place / "work"
    work.mkdir()
    patch.chdir(work)
    for name in [name for name in os.environ if name.startswith("LAKEOPS_")]:
        patch.delenv(name)
    for name, value in {**ENVIRONMENT, "LAKEOPS_HOME": str(place / "home")}.items():
        patch.setenv(name, value)
    return place / "home"


def fill(lake: Lake) -> Repository:
    """A repository with history: two commits on main, a tag, a branch with an uncommitted change."""
    # Many ranges: what goes by reference is shown as everything else is.
    repository = lake.create_repository("flights", split=Split(1, 1, 2))
    main = repository.branch("main")
    main.put("raw/a.csv", b"1,2,3\n", metadata={"rows": "1"}, content_type="text/csv")
    main.put("readme.md", b"# flights\n")
    main.commit("load day 1", metadata={"day": "1"})
    main.put("raw/b.csv", b"4,5\n")
    main.commit("load day 2")
    repository.create_tag("v1", "main")
    dev = repository.create_branch("dev", source="main")
    dev.put("raw/c.csv", b"6\n")
    return repository


def disagree(repository: Repository) -> None:
    """Add branches ``left`` and ``right`` that changed the same paths."""
    for name in ("left", "right"):
        branch = repository.create_branch(name, source="main")
        branch.put("raw/a.csv", name.encode())
        branch.put("z/last.csv", name.encode())
        branch.put(f"{name}.csv", b"own")
        branch.commit(f"{name} changes")


def enrich(repository: Repository, work: Path) -> Repository:
    """Add something of everything, and files for commands that read some."""
    (work / "local.txt").write_text("hello")
    (work / "incoming").mkdir()
    (work / "incoming" / "day.csv").write_text("1")
    (work / "rules.json").write_text('{"default_retention_days": 7}')
    repository.protect("release-*")
    repository.require_check("safe-*", "quality")
    repository.protect_tags("old-*")
    repository.ref("main").pass_check("lint")
    repository.gc.set_rules({"default_retention_days": 9})
    repository.gc.mark()
    return repository


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return enter(tmp_path, monkeypatch)


@pytest.fixture(scope="session")
def run() -> Commands:
    return Commands()


@pytest.fixture
def lake(home: Path) -> Iterator[Lake]:
    with Lake.open() as opened:
        yield opened


@pytest.fixture
def flights(lake: Lake) -> Repository:
    return fill(lake)


@pytest.fixture
def conflict(flights: Repository) -> Repository:
    disagree(flights)
    return flights


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    """One repository with conflicting branches for all tests of a module that change nothing."""
    with pytest.MonkeyPatch.context() as patch:
        enter(tmp_path_factory.mktemp("standing"), patch)
        with Lake.open() as lake:
            repository = fill(lake)
            disagree(repository)
            yield repository


@pytest.fixture(scope="module")
def rich(standing: Repository) -> Repository:
    """The lake of ``lake``, with something of everything."""
    return enrich(standing, Path.cwd())


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A directory with such a lake and its working directory, and a copy of it."""
    place, copy = tmp_path_factory.mktemp("rich"), tmp_path_factory.mktemp("saved")
    with pytest.MonkeyPatch.context() as patch:
        enter(place, patch)
        with Lake.open() as lake:
            repository = fill(lake)
            disagree(repository)
            enrich(repository, Path.cwd())
    shutil.copytree(place, copy, dirs_exist_ok=True)
    return place, copy


@pytest.fixture
def rich_again(saved: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    """``rich`` for a test that changes it: copied, which takes a fourth of making it."""
    place, copy = saved
    shutil.rmtree(place)
    place.mkdir()
    enter(place, monkeypatch)
    shutil.copytree(copy, place, dirs_exist_ok=True)
    with Lake.open() as lake:
        repository = lake.repository("flights")
        repository.adopt()  # the catalog is a copy of the one that was there
        yield repository


@pytest.fixture(scope="module")
def unchanged(standing: Repository) -> Repository:
    """The lake of ``lake``, with a protected branch, and a read-only repository beside it."""
    standing.create_branch("prod", source="main")
    standing.protect("prod")
    with Lake.open() as lake:
        lake.create_repository("mirror").set_read_only()
    return standing


@pytest.fixture
def process(home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Runs the command line as a process of its own; keyword arguments are ``subprocess.run``'s.

    Its output is buffered, as it is in a shell, whatever the process of the tests was told.
    """
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)

    def start(*args: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return subprocess.run([sys.executable, "-m", "lakeops", *args], check=False, timeout=60, **options)

    return start
