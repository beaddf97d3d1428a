"""Memory, descriptors and room for temporary files that run out, at each effect of a verb and on the command line."""

import errno
import html
import json
from collections.abc import Callable

import pyarrow as pa
import pytest
from support.errors import raising

from lakeops import Lake, Repository, Settings
from lakeops.cli.app import app
from lakeops.model.errors import InvalidInput, LakeopsError, out_of_resources
from lakeops.testing import Faults, open_faulty

ERRORS = [
    MemoryError(),
    pa.ArrowMemoryError("malloc of size 64 failed"),
    OSError(errno.EMFILE, "Too many open files"),
    OSError(errno.ENFILE, "Too many open files in system"),
    OSError(errno.ENOSPC, "No space left on device"),
    OSError(errno.EDQUOT, "Disk quota exceeded"),
    OSError(errno.ENOENT, "No usable temporary directory found in ['/tmp']"),
]


@pytest.fixture
def settings(tmp_path):
    chosen = Settings.load(home=tmp_path / "home", fsync=False)
    with Lake.open(settings=chosen) as lake:
        repo = lake.create_repository("shop")
        repo.branch("main").put("a", b"1")
        repo.branch("main").commit("Load")
        repo.create_branch("dev", "main")
        repo.create_branch("target", "main")
        repo.branch("target").put("e", b"1")
        repo.branch("target").commit("Load e")
        repo.branch("dev").put("b", b"1")
        repo.branch("dev").commit("Load b")
        repo.branch("main").put("c", b"1")
    return chosen


VERBS: dict[str, Callable[[Lake], object]] = {
    "put": lambda lake: lake.repository("shop").branch("dev").put("d", b"1"),
    "read": lambda lake: lake.repository("shop").branch("dev").read("a"),
    "commit": lambda lake: lake.repository("shop").branch("main").commit("More"),
    "merge": lambda lake: lake.repository("shop").merge("dev", "target"),
    "mark": lambda lake: lake.repository("shop").gc.mark(),
    "dump": lambda lake: lake.repository("shop").refs.dump(),
}


def failing(error):
    def fail(*_args, **_options):
        raise error

    return fail


each_error = pytest.mark.parametrize(
    "error", ERRORS, ids=lambda error: getattr(error, "strerror", None) or type(error).__name__
)


@each_error
@pytest.mark.parametrize("verb", VERBS)
def test_each_effect_that_lacks_resources_ends_in_an_error_of_lakeops(settings, verb, error):
    faults = Faults()
    with open_faulty(settings, faults) as lake:
        faults.revive()
        met = 0
        for number in range(1, 20):
            faults.revive()
            faults.fail(at=number, error=error)
            try:
                VERBS[verb](lake)
            except LakeopsError as raised:
                met += 1
                assert raised.kind == "out_of_resources"
                assert "\n" not in raised.message
            else:
                break
        assert met


@each_error
def test_opening_a_lake_says_it(settings, error, monkeypatch):
    monkeypatch.setattr("lakeops.lake.connection.open_catalog", failing(error))
    with raising("out_of_resources"):
        Lake.open(settings=settings)


@each_error
def test_a_page_says_it(settings, error, monkeypatch):
    pytest.importorskip("starlette")
    from starlette.testclient import TestClient

    from lakeops.web.app import application

    monkeypatch.setattr(Repository, "walk", failing(error))
    with (
        Lake.open(settings=settings) as lake,
        TestClient(application(lake), base_url="http://localhost", raise_server_exceptions=False) as client,
    ):
        answer = client.get("/shop/ref/main")
    assert answer.status_code == 503
    found = out_of_resources(error)
    assert found is not None
    assert found.message in html.unescape(answer.text)


@each_error
def test_the_command_line_says_it_in_one_line(settings, error, monkeypatch, capsys):
    monkeypatch.setenv("LAKEOPS_HOME", str(settings.home))
    monkeypatch.setattr("lakeops.ops.commit.commit", failing(error))
    with pytest.raises(SystemExit) as left:
        app(["commit", "lakefs://shop/main", "-m", "x", "--json"])
    assert left.value.code == 1
    said = capsys.readouterr()
    assert json.loads(said.out)["error"]["kind"] == "out_of_resources"
    assert "Traceback" not in said.err


def test_an_import_without_a_descriptor_is_told_from_a_missing_package(monkeypatch):
    missing = ModuleNotFoundError("No module named 'nothing'")
    assert out_of_resources(missing) is None
    assert out_of_resources(InvalidInput("x")) is None
    assert out_of_resources(OSError(errno.ENOENT, "x")) is None
    monkeypatch.setattr("lakeops.model.errors._has_free_descriptor", lambda: False)
    found = out_of_resources(missing)
    assert found is not None
    assert "ulimit -n" in found.message
