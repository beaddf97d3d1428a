"""A local directory that answers like a bucket far away, and the chain of requests that a verb waits for.

Nothing is answered while further requests still come in. Once none has come for a while, all that wait are answered
together: one round. So the rounds of a verb are the longest chain of its requests that wait for one another, whatever
the speed of the machine.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Condition, get_native_id

import pyarrow as pa
from support.scenes import table

from lakeops import Settings, Split
from lakeops.catalog.open import open_catalog
from lakeops.lake import Lake
from lakeops.model.clock import SystemClock
from lakeops.store.base import ObjectStore, StoreSettings
from lakeops.store.local import LocalStore
from lakeops.store.open import Stores


class Requests:
    """The requests that were made, of all stores of a lake.

    Args:
        quiet: seconds without a further request after which those that wait are answered; 0 answers each at once.

    Attributes:
        rounds: what was asked in each round: operation and key.
    """

    def __init__(self, quiet: float = 0.0) -> None:
        self.rounds: list[list[str]] = []
        self._quiet = quiet
        self._changed = Condition()
        self._waiting: list[str] = []
        self._last = 0.0

    @property
    def made(self) -> int:
        """How many there were."""
        return sum(len(asked) for asked in self.rounds)

    @contextmanager
    def one(self, operation: str, key: str) -> Iterator[None]:
        """Make a request."""
        with self._changed:
            mine, first = len(self.rounds), not self._waiting
            self._waiting.append(f"{operation} {key}")
            self._last = time.monotonic()
            while len(self.rounds) == mine:
                left = self._last + self._quiet - time.monotonic()
                if not first:
                    self._changed.wait()
                elif left > 0:
                    self._changed.wait(left)
                elif self._quiet and others_run():
                    self._last = time.monotonic()  # on a busy machine they have not come to ask yet
                else:
                    self.rounds.append(self._waiting)
                    self._waiting = []
                    self._changed.notify_all()
        yield


def others_run() -> bool:
    """Whether another thread of this process uses a processor or waits for one."""
    mine = str(get_native_id())
    for task in Path("/proc/self/task").iterdir():
        if task.name != mine:
            with suppress(OSError):  # it has ended meanwhile
                if (task / "stat").read_text().rpartition(")")[2].split()[0] == "R":
                    return True
    return False


class FarStore(LocalStore):
    """A directory behind a network."""

    remote = True

    def __init__(self, root: Path, requests: Requests) -> None:
        super().__init__(root, fsync=False)
        self.requests = requests

    def __reduce__(self):
        raise TypeError("stays in this process")

    def get(self, key):
        with self.requests.one("get", key):
            return super().get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with self.requests.one("get", key):
            return super().get_range(key, start, length)

    def put(self, key, data, **options):
        with self.requests.one("put", key):
            return super().put(key, data, **options)

    def head(self, key):
        with self.requests.one("head", key):
            return super().head(key)

    def list(self, prefix: str = "", after: str = ""):
        with self.requests.one("list", prefix):
            found = list(super().list(prefix, after))
        return iter(found)


def open_far(
    settings: Settings, requests: Requests, *, wrap: Callable[[ObjectStore], ObjectStore] = lambda store: store
) -> Lake:
    """A lake in which nothing is remembered yet, as a new process has it. ``wrap`` is put around its stores."""

    def far(store: ObjectStore) -> ObjectStore:
        assert isinstance(store, LocalStore)
        return wrap(FarStore(store.root, requests))

    stores = Stores(StoreSettings(fsync=False), wrap=far)
    return Lake(open_catalog(settings.catalog_url, clock=SystemClock()), settings, stores=stores)


SPLIT = Split(20, 60, 200)
PATHS = 2_000


def objects(which: Iterator[int] | range | list[int], version: int = 0) -> pa.Table:
    """Objects that lie elsewhere."""
    numbers = list(which)
    return table(
        {f"t/{number:06}": f"s3://elsewhere/{version}/{number}" for number in numbers},
        checksum=[f"{number * 7919 + version:032x}" for number in numbers],
        size_bytes=[number % 50 for number in numbers],
    )


def prepare(home: Path) -> Settings:
    """A repository of many ranges, and what this machine keeps of it."""
    settings = Settings.load(
        home=home, fsync=False, committer="tester", disk_cache=home / "kept", disk_cache_mb=1024, engine="local"
    )
    with open_far(settings, Requests()) as lake:
        repo = lake.create_repository("repo", split=SPLIT)
        for number in range(3):
            repo.branch("main").stage(objects(range(PATHS) if not number else range(500, 520), number))
            repo.branch("main").commit(f"{number}")
    return settings


def staged(prepared: Settings, *branches: str, which: Callable[[int], range]) -> None:
    """New branches with a change each."""
    with open_far(prepared, Requests()) as lake:
        repo = lake.repository("repo")
        for number, branch in enumerate(branches):
            repo.create_branch(branch, "main~1")
            repo.branch(branch).stage(objects(which(number), 100 + number))
