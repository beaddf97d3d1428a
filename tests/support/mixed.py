"""Writers of every edge on one branch, in processes that are killed: what each does in a round, and what it notes.

Usage: python -m support.mixed HOME DATABASE_URL GATEWAY_PORT NAME WRITERS LOG STOP

``WRITERS`` are names of ``WRITERS``, separated by commas; one round plays each once. The last round of a
process is the one that begins when there is a file STOP.

The log has an intent before each write and its outcome after the answer. A write without an answer may be there or not.
So the paths of its *life* are left alone from then on: a life ends when the process dies, or when it gets no answer.
Every life has folders, a side branch and a clone of its own.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from botocore.exceptions import ClientError, HTTPClientError
from support.served import KEYS, s3_client
from support.steady import Log, collect

from lakeops import Branch, Lake, Repository, Settings
from lakeops.model.errors import LakeopsError

REPOSITORY = "mixed"
ROWS = 3
"""Rows of one append to a table. They are there together or not at all."""
TRIES = 10
"""How often what needs a branch without uncommitted changes is tried in one round, beside those who stage."""

NO_ANSWER = {
    "transient", "attempt_expired", "branch_moved", "catalog_unavailable", "collection_running", "store_unavailable"
}  # fmt: skip
"""Errors after which a caller tries again."""
REFUSED = {"dirty_branch", "no_changes"}
"""Errors that say that nothing was done."""

Paths = dict[str, str | None]
"""Path to its contents; None for one that goes."""


class Refused(Exception):
    """A writer was told that nothing was written."""


@dataclass
class Worker:
    """One process: its repository, its log, and where its present life writes."""

    lake: Lake
    port: int
    name: str
    log: Log
    s3: Any
    stop: Path
    life: int = 0
    round: int = 0
    writer: str = ""
    unsent: dict[str, Paths] = field(default_factory=dict)
    """What a writer has ready on its side branch or in its clone, and main does not have."""
    _number: int = 0

    @property
    def repo(self) -> Repository:
        return self.lake.repository(REPOSITORY)

    @property
    def main(self) -> Branch:
        return self.repo.branch("main")

    @property
    def folder(self) -> str:
        """Where the present writer writes in the present life."""
        return f"{self.name}/{self.life}/{self.writer}/"

    @property
    def place(self) -> Path:
        return Path(self.lake.settings.home)

    @property
    def storage_options(self) -> dict[str, str]:
        """The options that delta-rs takes."""
        return {
            "aws_endpoint_url": f"http://127.0.0.1:{self.port}",
            "aws_access_key_id": KEYS.access_key,
            "aws_secret_access_key": KEYS.secret_key,
            "aws_region": "us-east-1",
            "aws_allow_http": "true",
            "aws_conditional_put": "etag",
        }

    def value(self) -> str:
        """A text that nothing else has."""
        self._number += 1
        return f"{self.name}-{self.life}-{self.writer}-{self.round}-{self._number}"

    def begin(self) -> None:
        """Begin a new life, after the call under a key that got no answer is made once more."""
        self.life += 1
        self.unsent = {}
        self.note("life", self.life)
        last = read_log(self.log.file)[-1:]
        if last and last[0].outcome == "open" and last[0].what.get("again"):
            _again(self, last[0])

    def note(self, *words: Any) -> None:
        self.log.add(json.dumps(words))

    @contextmanager
    def noted(self, **what: Any) -> Iterator[dict[str, Any]]:
        """Note an intent, and then that it was acknowledged or refused. What the block adds to the dict is kept."""
        intent = self.value()
        self.note("intent", intent, self.writer, what)
        with self.answered(intent) as outcome:
            yield outcome

    @contextmanager
    def answered(self, intent: str) -> Iterator[dict[str, Any]]:
        """Note what the answer to an intent was, where there is one."""
        outcome: dict[str, Any] = {}
        try:
            yield outcome
        except Refused:
            self.note("refused", intent, {})
            raise
        except LakeopsError as error:
            if error.kind in REFUSED:
                self.note("refused", intent, {"kind": error.kind})
            raise
        self.note("done", intent, outcome)

    @contextmanager
    def write(self, paths: Paths) -> Iterator[None]:
        with self.noted(paths=paths):
            yield

    def quietly(self, message: str, paths: Paths, act: Callable[[], str], again: str = "") -> bool:
        """Do ``act``, which needs a main without uncommitted changes, and commit these before. Whether it was done.

        Args:
            again: the side branch, of a merge that may be made again under its key.
        """
        tries = 0
        while tries < TRIES or self.stop.exists():  # others stop staging then
            tries += 1
            try:
                with self.noted(commit=message, paths=paths, again=again) as outcome:
                    outcome["id"] = act()
            except LakeopsError as error:
                if error.kind != "dirty_branch":
                    raise
            else:
                return True
            tidy = f"{message}-before-{self.value()}"
            commit(self, tidy)
        return False


# --- the writers ---
def put(at: Worker) -> None:
    """Put to one of three keys by the gateway, and delete it each fourth time."""
    path = f"{at.folder}{at.round % 3}"
    text = at.value()
    with at.write({path: text}):
        at.s3.put_object(Bucket=REPOSITORY, Key=f"main/{path}", Body=text.encode())
    if at.round % 4 == 3:
        with at.write({path: None}):
            at.s3.delete_object(Bucket=REPOSITORY, Key=f"main/{path}")


def upload(at: Worker) -> None:
    """Send an object in two parts by the gateway."""
    path = f"{at.folder}{at.round % 3}"
    where = {"Bucket": REPOSITORY, "Key": f"main/{path}"}
    text = at.value()
    with at.write({path: text}):
        where["UploadId"] = at.s3.create_multipart_upload(**where)["UploadId"]
        sent = at.s3.upload_part(**where, PartNumber=1, Body=text.encode())  # a part before the last has 5 MiB
        parts = [{"PartNumber": 1, "ETag": sent["ETag"]}]
        at.s3.complete_multipart_upload(**where, MultipartUpload={"Parts": parts})


def copy(at: Worker) -> None:
    """Put an object and copy it to another key, by the gateway."""
    text = at.value()
    old, new = (f"{at.folder}{name}" for name in ("from", f"to-{at.round}"))
    with at.write({old: text}):
        at.s3.put_object(Bucket=REPOSITORY, Key=f"main/{old}", Body=text.encode())
    with at.write({new: text}):
        at.s3.copy_object(Bucket=REPOSITORY, Key=f"main/{new}", CopySource=f"{REPOSITORY}/main/{old}")


def replace(at: Worker) -> None:
    """Replace a folder by files of other names."""
    wanted: Paths = {f"{at.folder}t/{at.round}-{part}": at.value() for part in range(3)}
    before = {item.path for item in at.main.list(f"{at.folder}t/")}
    with at.write({**dict.fromkeys(before), **wanted}):
        _output(at, "t/", wanted, "replace")


def append(at: Worker) -> None:
    """Append files to a folder."""
    wanted: Paths = {f"{at.folder}{at.round}-{part}": at.value() for part in range(2)}
    with at.write(wanted):
        _output(at, "", wanted, "append")


def _output(at: Worker, below: str, files: Paths, mode: str) -> None:
    with at.main.output(at.folder + below, mode, idempotency_key=at.value() if mode == "append" else None) as url:
        for path, text in files.items():
            Path(urlsplit(url).path, path.rpartition("/")[2]).write_text(str(text))


def fsspec(at: Worker) -> None:
    """Write a file as pandas and others do."""
    from lakeops.fs import LakeopsFileSystem

    path, text = f"{at.folder}{at.round % 3}", at.value()
    with (
        at.write({path: text}),
        LakeopsFileSystem(lake=at.lake).open(f"lakefs://{REPOSITORY}/main/{path}", "wb") as out,
    ):
        out.write(text.encode())


def rename(at: Worker) -> None:
    """Put two files into a folder and move the folder."""
    old, new = f"{at.folder}from/", f"{at.folder}to/{at.round}/"
    files = {name: at.value() for name in ("a", "b")}
    for name, text in files.items():
        with at.write({old + name: text}):
            at.main.put(old + name, text.encode())
    with at.write({**{old + name: None for name in files}, **{new + name: text for name, text in files.items()}}):
        at.main.rename(old, new, recursive=True)


def merge(at: Worker) -> None:
    """Commit to a side branch and merge it into main."""
    side = f"side-{at.name}-{at.life}"
    waiting = at.unsent.setdefault("merge", {})
    if not waiting and not any(branch.id == side for branch in at.repo.branches(prefix=side)):
        at.repo.create_branch(side, source="main")
    path = f"{at.folder}{at.round}"
    waiting[path] = at.value()
    at.repo.branch(side).put(path, str(waiting[path]).encode())
    at.repo.branch(side).commit(f"on {side}: {at.round}")
    key = at.value()
    if at.quietly(key, waiting, lambda: _merge(at, side, key), again=side):
        at.unsent["merge"] = {}


def _merge(at: Worker, side: str, key: str) -> str:
    return str(at.repo.merge(side, "main", message=key, idempotency_key=key).reference)


def local(at: Worker) -> None:
    """Commit a clone's files to main."""
    clone = at.place / "clones" / at.name / str(at.life)
    if not clone.exists():
        at.repo.ref("main").clone(clone, at.folder)
    waiting = at.unsent.setdefault("local", {})
    waiting[f"{at.folder}{at.round % 3}"] = text = at.value()
    (clone / str(at.round % 3)).write_text(text)
    key = at.value()
    if at.quietly(key, waiting, lambda: at.lake.local(clone).commit(key).id):
        at.unsent["local"] = {}


def delta(at: Worker) -> None:
    """Append rows to a Delta table that others append to, by the gateway."""
    from deltalake import write_deltalake

    text = at.value()
    with at.noted(table="delta", row=text):
        write_deltalake(
            f"s3://{REPOSITORY}/main/{DELTA}", rows(text), mode="append", storage_options=at.storage_options
        )


def iceberg(at: Worker) -> None:
    """Append rows to an Iceberg table that others append to."""
    from pyiceberg.exceptions import CommitFailedException

    text = at.value()
    table = iceberg_catalog(at.lake.settings).load_table(ICEBERG)
    with at.noted(table="iceberg", row=text):
        try:
            table.append(rows(text))
        except CommitFailedException as error:
            raise Refused(str(error)) from None


def spark(at: Worker) -> None:
    """Append rows to a folder with Spark's own writer."""
    from pyspark.sql import SparkSession
    from services.spark import SPARK_CONF

    import lakeops.spark

    session = SparkSession.builder.master("local[1]").config(map=SPARK_CONF).getOrCreate()
    text = at.value()
    frame = session.createDataFrame([(text, part) for part in range(ROWS)], "value string, part long").coalesce(1)
    with at.noted(table="spark", row=text):
        lakeops.spark.write(frame, f"lakefs://{REPOSITORY}/main/{SPARK}", "append", lake=at.lake, idempotency_key=text)


def commit(at: Worker, message: str = "") -> None:
    """Commit whatever is staged on main."""
    key = message or at.value()
    try:
        with at.noted(commit=key, paths={}, again="main") as outcome:
            outcome["id"] = at.main.commit(key, idempotency_key=key).id
    except LakeopsError as error:
        if error.kind != "no_changes":
            raise


def garbage(at: Worker) -> None:
    """Mark and sweep."""
    with at.write({}):
        collect(at.repo)


WRITERS: dict[str, Callable[[Worker], None]] = {
    "put": put,
    "upload": upload,
    "copy": copy,
    "replace": replace,
    "append": append,
    "fsspec": fsspec,
    "rename": rename,
    "merge": merge,
    "local": local,
    "delta": delta,
    "iceberg": iceberg,
    "spark": spark,
    "commit": commit,
    "garbage": garbage,
}

BY_GATEWAY = {"put", "upload", "copy", "delta"}

# --- tables ---

DELTA = "tables/delta"
SPARK = "tables/spark/"
ICEBERG = "web.sales"


def rows(text: str) -> pa.Table:
    return pa.table({"value": pa.array([text] * ROWS, pa.string()), "part": pa.array(range(ROWS), pa.int64())})


def iceberg_catalog(settings: Settings) -> Any:
    from pyiceberg.catalog import load_catalog

    where = {"lakeops.home": str(settings.home)}
    if settings.database_url is not None:
        where["lakeops.database_url"] = settings.database_url.get_secret_value()
    impl = "lakeops.iceberg.RefCatalog"
    return load_catalog(
        "mixed", **where, **{"py-catalog-impl": impl}, warehouse=f"lakefs://{REPOSITORY}/main/warehouse"
    )


# --- the log ---
@dataclass
class Noted:
    """One intent of a log, and what became of it: ``done``, ``refused`` or ``open``."""

    intent: str
    writer: str
    what: dict[str, Any]
    outcome: str = "open"
    answer: dict[str, Any] = field(default_factory=dict)


def read_log(file: Path) -> list[Noted]:
    """The intents of a log, in order."""
    found: dict[str, Noted] = {}
    for line in file.read_text().splitlines() if file.exists() else []:
        try:
            kind, *words = json.loads(line)
        except ValueError:
            continue  # cut off by a kill, so nothing was begun or acknowledged
        if kind == "intent":
            found[words[0]] = Noted(*words)
        elif kind != "life":
            found[words[0]].outcome, found[words[0]].answer = kind, words[1]
    return [*found.values()]


def _again(at: Worker, noted: Noted) -> None:
    """Make a call once more under its key."""
    key, side = noted.what["commit"], noted.what["again"]
    try:
        with at.answered(noted.intent) as outcome:
            if side == "main":
                outcome["id"] = at.main.commit(key, idempotency_key=key).id
            else:
                outcome["id"] = _merge(at, side, key)
    except LakeopsError as error:
        # A commit's key stands for contents too, and others have staged since. So it stays open here.
        if error.kind not in REFUSED | NO_ANSWER | {"idempotency_key_reused"}:
            raise


# --- rounds ---
def play(at: Worker, writers: list[str], *, rounds: int | None = None) -> None:
    """One round after the other until told to stop; a new life after each write that got no answer."""
    at.life = sum(line.startswith('["life"') for line in at.log.lines)
    at.begin()
    last = False
    while not last:
        # So that each writer is played once more when nobody is killed any longer.
        last = at.stop.exists() or at.round + 1 == rounds
        at.round += 1
        for at.writer in writers:
            _once(at, WRITERS[at.writer])


def _once(at: Worker, writer: Callable[[Worker], None]) -> None:
    gateway = reach_gateway(at)
    try:
        writer(at)
    except LakeopsError as error:
        if error.kind not in NO_ANSWER:
            raise
    except Refused:
        return
    except Exception as error:
        # S3 clients have errors of many kinds. All count as no answer where the gateway was killed meanwhile.
        if at.writer not in BY_GATEWAY or (not is_no_answer(error) and reach_gateway(at) == gateway):
            raise
    else:
        return
    at.begin()


def is_no_answer(error: Exception) -> bool:
    """Whether a client of the gateway lost its connection, or was told to try again (as a copy beside a mark is)."""
    if isinstance(error, ClientError):
        return bool(error.response["ResponseMetadata"]["HTTPStatusCode"] == 503)
    return isinstance(error, HTTPClientError)


def reach_gateway(at: Worker) -> int:
    """How often the gateway was started, once it answers. One that dies still takes connections for a moment."""
    starts = at.place / "gateway-starts"
    while True:
        count = starts.stat().st_size
        try:
            with closing(HTTPConnection("127.0.0.1", at.port, timeout=30)) as asked:
                asked.request("GET", "/")
                asked.getresponse().read()
                return count
        except (OSError, HTTPException):
            time.sleep(0.05)  # between two looks at the condition


@contextmanager
def working(settings: Settings, port: int, name: str, log: Path, stop: Path) -> Iterator[Worker]:
    with ExitStack() as opened:
        lake = opened.enter_context(Lake.open(settings=settings))
        s3 = opened.enter_context(s3_client(f"http://127.0.0.1:{port}"))
        notes = opened.enter_context(closing(Log(log)))
        yield Worker(lake, port, name, notes, s3, stop)


def main() -> None:
    home, url, port, name, writers, log, stop = sys.argv[1:]
    settings = Settings.load(home=home, database_url=url or None, committer=name)
    with working(settings, int(port), name, Path(log), Path(stop)) as worker:
        play(worker, writers.split(","))


if __name__ == "__main__":
    main()
