"""Writing a ref through fsspec: an object is replaced by a whole one or not at all, whatever stands between.

Each program also writes a plain file, and what it wrote there is what the object holds after a success.
"""

from __future__ import annotations

import gc
import gzip
import io
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from fsspec.transaction import Transaction

from lakeops import Lake, Repository, Settings
from lakeops.fs import LakeopsFileSystem

COMPRESSIONS = ("gzip", "bz2", "xz", "zip", "zstd")
BEFORE = b"what was there before"


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Lake.open(settings=Settings.load(home=tmp_path / "home", fsync=False)) as lake:
        made = lake.create_repository("repo")
        made.branch("main").put("x", BEFORE)
        yield made


class Place:
    """Where a program writes: a file of a file system, also by its URL and fsspec's options for it."""

    def __init__(self, fs: fsspec.AbstractFileSystem, path: str, url: str, options: dict[str, str]) -> None:
        self.fs, self.path, self.url, self.options = fs, path, url, options

    def open(self, mode: str, **options: object) -> object:
        return fsspec.open(self.url, mode, **self.options, **options)


@pytest.fixture
def place(repo: Repository, tmp_path: Path) -> Place:
    options = {"home": str(tmp_path / "home")}
    return Place(LakeopsFileSystem(**options), "repo/main/x", "lakefs://repo/main/x", options)


@pytest.fixture
def plain(tmp_path: Path) -> Place:
    path = str(tmp_path / "x")
    return Place(fsspec.filesystem("file"), path, f"file://{path}", {})


@contextmanager
def _nested(place: Place, wrap: Callable[[object], object]) -> Iterator[object]:
    with place.fs.open(place.path, "wb") as raw, wrap(raw) as file:
        yield file


@contextmanager
def _many(place: Place) -> Iterator[object]:
    with fsspec.open_files([place.url], "w", **place.options) as files:
        yield files[0]


@contextmanager
def _in_transaction(place: Place, mode: str, **options: object) -> Iterator[object]:
    with place.fs.transaction, place.fs.open(place.path, mode, **options) as file:
        yield file


@contextmanager
def _in_a_stack(place: Place) -> Iterator[object]:
    with ExitStack() as stack:
        yield stack.enter_context(place.open("w"))


@contextmanager
def _finally(place: Place, cache: str = "") -> Iterator[object]:
    file = _cached(place, cache).open() if cache else place.fs.open(place.path, "w")
    try:
        yield file
    finally:
        file.close()


@contextmanager
def _by_a_handler(place: Place) -> Iterator[object]:
    file = place.fs.open(place.path, "w")
    try:
        yield file
    except BaseException:
        file.close()
        raise
    file.close()


@contextmanager
def _inside_a_handler(place: Place) -> Iterator[object]:
    try:
        raise LookupError
    except LookupError:
        with place.open("w") as file:
            yield file


def _cached(place: Place, cache: str) -> object:
    scheme = place.url.partition("://")[0]
    return fsspec.open(f"{cache}::{place.url}", "wb", **{scheme: place.options})


OPENERS: dict[str, Callable[[Place], object]] = {
    "wb": lambda place: place.fs.open(place.path, "wb"),
    "w": lambda place: place.fs.open(place.path, "w"),
    "fsspec.open wb": lambda place: place.open("wb"),
    "fsspec.open w": lambda place: place.open("w"),
    "fsspec.open().open()": lambda place: place.open("w").open(),
    **{
        f"{name} wb": lambda place, name=name: place.fs.open(place.path, "wb", compression=name)
        for name in COMPRESSIONS
    },
    **{f"{name} w": lambda place, name=name: place.fs.open(place.path, "w", compression=name) for name in COMPRESSIONS},
    **{f"fsspec.open {name}": lambda place, name=name: place.open("w", compression=name) for name in COMPRESSIONS},
    "open_files": _many,
    "TextIOWrapper": lambda place: io.TextIOWrapper(place.fs.open(place.path, "wb")),
    "BufferedWriter": lambda place: io.BufferedWriter(place.fs.open(place.path, "wb"), 10),
    "closing": lambda place: closing(place.fs.open(place.path, "w")),
    "text in GzipFile": lambda place: _nested(
        place, lambda raw: io.TextIOWrapper(gzip.GzipFile(fileobj=raw, mode="w"))
    ),
    "GzipFile": lambda place: _nested(place, lambda raw: gzip.GzipFile(fileobj=raw, mode="w")),
    "ExitStack": _in_a_stack,
    "finally": _finally,
    "closed by a handler": _by_a_handler,
    "opened in a handler": _inside_a_handler,
    "simplecache": lambda place: _cached(place, "simplecache"),
    "simplecache finally": lambda place: _finally(place, "simplecache"),
    "filecache finally": lambda place: _finally(place, "filecache"),
    "transaction": lambda place: _in_transaction(place, "wb"),
    "transaction w": lambda place: _in_transaction(place, "w"),
    "transaction gzip": lambda place: _in_transaction(place, "w", compression="gzip"),
}


def _write(file: object, text: str) -> None:
    file.write(text if isinstance(file, io.TextIOBase) else text.encode())


def _contents(data: bytes, opener: str) -> bytes:
    """The contents of a compressed file. Compressors write times, too."""
    for name in sorted(COMPRESSIONS):  # gzip before zip
        if name in opener.lower():
            with fsspec.compression.compr[name](io.BytesIO(data), mode="r") as file:
                return file.read()
    return data


def _raised(opener, place: Place, error: BaseException) -> None:
    with pytest.raises(type(error)), opener(place) as file:
        _write(file, "half")
        raise error


def _generator_closed(opener, place: Place, *, collected: bool) -> None:
    def writer() -> Iterator[None]:
        with opener(place) as file:
            _write(file, "half")
            yield
            _write(file, "whole")

    running = writer()
    next(running)
    if not collected:
        running.close()


def _forked(opener, place: Place) -> None:
    def child() -> None:
        with opener(place) as file:
            _write(file, "half")
            raise SystemExit(3)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == 3


FAILURES: dict[str, Callable[[object, Place], None]] = {
    "error": lambda opener, place: _raised(opener, place, ZeroDivisionError()),
    "KeyboardInterrupt": lambda opener, place: _raised(opener, place, KeyboardInterrupt()),
    "generator closed": lambda opener, place: _generator_closed(opener, place, collected=False),
    "generator collected": lambda opener, place: _generator_closed(opener, place, collected=True),
    "forked process exits": _forked,
}


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("failure", FAILURES)
def test_a_block_that_fails_stages_nothing(place: Place, repo: Repository, opener: str, failure: str) -> None:
    FAILURES[failure](OPENERS[opener], place)
    gc.collect()
    assert repo.branch("main").read("x") == BEFORE


@pytest.mark.parametrize("opener", OPENERS)
def test_a_block_that_ends_well_stages_what_a_plain_file_has(
    place: Place, plain: Place, repo: Repository, opener: str
) -> None:
    for where in (place, plain):
        with OPENERS[opener](where) as file:
            for number in range(1000):
                _write(file, f"line {number}\n")
    gc.collect()
    assert _contents(repo.branch("main").read("x"), opener) == _contents(Path(plain.path).read_bytes(), opener)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # ZipFile's own
@pytest.mark.parametrize("cycle", [False, True])
@pytest.mark.parametrize(
    "opener",
    ["wb", "w", "fsspec.open().open()", "TextIOWrapper", "BufferedWriter"]
    + [f"{name} {mode}" for name in COMPRESSIONS for mode in ("wb", "w")],
)
def test_a_file_that_nobody_closed_stages_nothing(
    place: Place, repo: Repository, caplog, opener: str, *, cycle: bool
) -> None:
    holder = [OPENERS[opener](place)]
    _write(holder[0], "half")
    if cycle:
        holder.append(holder)
    del holder
    gc.collect()
    assert repo.branch("main").read("x") == BEFORE
    assert "repo/main/x was never closed, so nothing was staged" in caplog.text


class Unwritable:
    """A value at which every program stops."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def __str__(self) -> str:
        raise self.error

    def __reduce__(self):
        raise self.error


def _rows(error: type[BaseException] | None) -> Iterator[int]:
    yield from range(5000)
    if error is not None:
        raise error


def _values(error: type[BaseException] | None) -> list[object]:
    return [*_rows(None), Unwritable(error) if error else 5000]


def _batches(error: type[BaseException] | None) -> Iterator[pa.RecordBatch]:
    for number in _rows(error):
        yield pa.record_batch({"n": [number] * 100})


SCHEMA = pa.schema({"n": pa.int64()})


def _frame(error: type[BaseException] | None) -> pd.DataFrame:
    return pd.DataFrame({"n": pd.Series(_values(error), dtype=object)})


def _pandas(method: str, **options: object) -> Callable[[Place, type[BaseException] | None], None]:
    def write(place: Place, error: type[BaseException] | None) -> None:
        target = place.url if place.options else place.path
        getattr(_frame(error), method)(target, storage_options=place.options or None, **options)

    return write


def _dump(into: Callable[[object, object], None], mode: str) -> Callable[[Place, type[BaseException] | None], None]:
    def write(place: Place, error: type[BaseException] | None) -> None:
        with place.open(mode) as file:
            into(_values(error), file)

    return write


def _text(place: Place, error: type[BaseException] | None, **options: object) -> None:
    with place.fs.open(place.path, "w", **options) as file:
        for number in _rows(error):
            file.write(f"{number}\n")


def _seeking(place: Place, error: type[BaseException] | None) -> None:
    with place.open("wb") as file:
        for number in _rows(error):
            file.write(b"0123456789")
            file.seek(-number % 10, io.SEEK_CUR)
        file.seek(5)
        file.write(b"-")
        file.truncate(4000)


def _parquet_writer(place: Place, error: type[BaseException] | None) -> None:
    with pq.ParquetWriter(place.path, SCHEMA, filesystem=place.fs) as writer:
        for batch in _batches(error):
            writer.write_batch(batch)


def _parquet_writer_left_open(place: Place, error: type[BaseException] | None) -> None:
    writer = pq.ParquetWriter(place.path, SCHEMA, filesystem=place.fs)
    for batch in _batches(error):
        writer.write_batch(batch)
    writer.close()


def _csv_writer(place: Place, error: type[BaseException] | None) -> None:
    with place.open("wb") as file, pa.csv.CSVWriter(file, SCHEMA) as writer:
        for batch in _batches(error):
            writer.write_batch(batch)


def _dataset(place: Place, error: type[BaseException] | None) -> None:
    folder, _, name = place.path.rpartition("/")
    pa.dataset.write_dataset(
        _batches(error),
        folder,
        basename_template=f"{name}{{i}}",
        schema=SCHEMA,
        format="parquet",
        filesystem=place.fs,
        existing_data_behavior="overwrite_or_ignore",
        preserve_order=True,
    )
    place.fs.mv(f"{folder}/{name}0", place.path)


def _tar(place: Place, error: type[BaseException] | None) -> None:
    with place.open("wb") as file, tarfile.open(fileobj=file, mode="w|") as tar:
        for number in _rows(error):
            if number % 500 == 0:
                tar.addfile(tarfile.TarInfo(f"{number}"), io.BytesIO())


def _duckdb(place: Place, error: type[BaseException] | None) -> None:
    import duckdb

    with duckdb.connect() as connection:
        connection.register_filesystem(place.fs)
        condition = f"CASE WHEN i = 190000 AND {error is not None} THEN error('stop') ELSE i END"
        target = place.url if place.options else place.path
        try:
            connection.sql(f"COPY (SELECT {condition} AS n FROM range(200000) t(i)) TO '{target}' (FORMAT csv)")
        except duckdb.Error:
            raise error from None


def _polars(place: Place, error: type[BaseException] | None) -> None:
    import polars as pl

    with place.open("wb") as file:
        pl.DataFrame({"n": list(_rows(None))}).write_csv(file)
        for _ in _rows(error):
            pass


PROGRAMS: dict[str, Callable[[Place, type[BaseException] | None], None]] = {
    "pandas to_csv": _pandas("to_csv"),
    "pandas to_csv gzip": _pandas("to_csv", compression={"method": "gzip", "mtime": 1}),
    "pandas to_csv zip": _pandas("to_csv", compression="zip"),
    "pandas to_csv utf-16": _pandas("to_csv", encoding="utf-16"),
    "pandas to_csv utf-16 gzip": _pandas("to_csv", encoding="utf-16", compression={"method": "gzip", "mtime": 1}),
    "pandas to_pickle": _pandas("to_pickle"),
    "pandas to_json": _pandas("to_json", default_handler=str),
    "pandas to_parquet": _pandas("to_parquet"),
    "json.dump": _dump(json.dump, "w"),
    "pickle.dump": _dump(pickle.dump, "wb"),
    "np.save": _dump(lambda values, file: np.save(file, np.array(values, dtype=object)), "wb"),
    "utf-32": lambda place, error: _text(place, error, encoding="utf-32"),
    "utf-16 gzip": lambda place, error: _text(place, error, encoding="utf-16", compression="gzip"),
    "writelines": _dump(lambda values, file: file.writelines(f"{value}\n" for value in values), "w"),
    "pyarrow ParquetWriter": _parquet_writer,
    "pyarrow ParquetWriter left open": _parquet_writer_left_open,
    "pyarrow CSVWriter": _csv_writer,
    "pyarrow write_dataset": _dataset,
    "seek and truncate": _seeking,
    "tarfile": _tar,
    "duckdb": _duckdb,
    "polars": _polars,
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_that_fails_stages_nothing(place: Place, repo: Repository, program: str, error) -> None:
    with pytest.raises((error, TypeError, pa.ArrowException, OverflowError)):
        PROGRAMS[program](place, error)
    gc.collect()
    assert repo.branch("main").read("x") == BEFORE


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_that_ends_well_stages_what_a_plain_file_has(
    place: Place, plain: Place, repo: Repository, program: str
) -> None:
    for where in (place, plain):
        PROGRAMS[program](where, None)
    gc.collect()
    written, expected = repo.branch("main").read("x"), Path(plain.path).read_bytes()
    assert len(expected) > 1000
    assert _contents(written, program) == _contents(expected, program)


def test_an_error_that_was_handled_is_raised_again_where_the_file_is_closed(place: Place, repo: Repository) -> None:
    """Nothing tells whether the handler gives up the file or completes it."""
    file = place.fs.open(place.path, "wb")
    with pytest.raises(StopIteration) as raised:
        try:
            next(iter(()))
        except StopIteration:
            file.close()
    assert "repo/main/x was closed while this error was in flight, so nothing was staged" in raised.value.__notes__[0]
    assert repo.branch("main").read("x") == BEFORE


def test_a_context_that_fails_after_the_block_stages_nothing(place: Place, repo: Repository) -> None:
    def fails() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), ExitStack() as stack:
        file = stack.enter_context(place.open("w"))
        stack.callback(fails)
        file.write("half")
    assert repo.branch("main").read("x") == BEFORE


def test_a_write_that_fails_stages_nothing_whatever_closes_the_file(
    place: Place, repo: Repository, monkeypatch
) -> None:
    file = place.fs.open(place.path, "w")
    file.write("half")
    with Path("/dev/full").open("wb", buffering=0) as full:
        monkeypatch.setattr(file.buffer, "_spool", full)
        with pytest.raises(OSError, match="No space"):
            file.flush()
    with suppress(ValueError):
        file.close()
    assert repo.branch("main").read("x") == BEFORE


@pytest.mark.parametrize("failing", [False, True])
def test_a_transaction_with_a_file_that_is_open_or_failed(place: Place, repo: Repository, *, failing: bool) -> None:
    """One that failed, and whose error was handled, is left out. One that is open drops them all."""
    with suppress(ValueError), place.fs.transaction:
        place.fs.pipe_file("repo/main/y", b"whole")
        file = place.fs.open(place.path, "w")
        file.write("half")
        if failing:
            with suppress(ZeroDivisionError), file:
                raise ZeroDivisionError
    main = repo.branch("main")
    assert (main.read("x"), main.exists("y")) == (BEFORE, failing)


def _complete_before_2026_9(self: Transaction, commit: bool = True) -> None:
    while self.files:
        file = self.files.popleft()
        file.commit() if commit else file.discard()
    self.fs._intrans, self.fs._transaction, self.fs = False, None, None


@pytest.mark.parametrize("older", [False, True])
def test_a_transaction_with_a_file_that_is_refused_ends(place: Place, repo: Repository, monkeypatch, older) -> None:
    if older:
        monkeypatch.setattr(Transaction, "complete", _complete_before_2026_9)
    main, fs = repo.branch("main"), place.fs
    with pytest.raises(FileExistsError), fs.transaction:
        fs.pipe_file("repo/main/before", b"1")
        with fs.open("repo/main/taken", "xb") as file:
            file.write(b"2")
        fs.pipe_file("repo/main/after", b"3")
        main.put("taken", b"other")
    assert [item.path for item in main.list()] == ["before", "taken", "x"]
    fs.pipe_file(place.path, b"later")
    assert main.read("x") == b"later"


@pytest.mark.parametrize("nested", ["block", "start_transaction"])
def test_a_transaction_in_another_one_is_refused(place: Place, repo: Repository, nested: str) -> None:
    with pytest.raises(ValueError, match="open already"), place.fs.transaction:
        place.fs.pipe_file(place.path, b"half")
        if nested == "block":
            with place.fs.transaction:
                place.fs.pipe_file("repo/main/y", b"half")
        else:
            place.fs.start_transaction()
    main = repo.branch("main")
    assert (main.read("x"), main.exists("y")) == (BEFORE, False)
    with place.fs.transaction:
        place.fs.pipe_file(place.path, b"whole")
    assert main.read("x") == b"whole"


ENDINGS = {
    "closed at exit after an error": "atexit.register(file.close); raise ZeroDivisionError",
    "exit": "sys.exit(3)",
    "os._exit": "file.flush(); os._exit(3)",
    "signal": "file.flush(); os.kill(os.getpid(), signal.SIGTERM)",
    "never closed": "",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_process_that_ends_before_the_file_is_closed_stages_nothing(place: Place, repo: Repository, ending) -> None:
    script = (
        f"import atexit, fsspec, os, signal, sys\nfile = fsspec.open({place.url!r}, 'w', **{place.options!r}).open()\n"
    )
    script += f"file.write('half')\n{ENDINGS[ending]}"
    subprocess.run([sys.executable, "-c", script], check=False, capture_output=True)
    assert repo.branch("main").read("x") == BEFORE


def test_a_forked_process_writes_no_file_of_its_parent(place: Place, repo: Repository) -> None:
    with place.fs.open(place.path, "wb") as file:
        file.write(b"parent")
        child = os.fork()
        if not child:
            code = 1
            with suppress(OSError):
                file.write(b"child")
                code = 2
            file.close()
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
        assert repo.branch("main").read("x") == BEFORE
    assert repo.branch("main").read("x") == b"parent"
