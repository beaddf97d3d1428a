"""Repositories as dictionaries, path to value, and the tables that say the same.

A value is ``(contents, address)``: two values with the same contents are one object to a user, wherever it lies.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import count
from threading import Lock
from typing import NamedTuple

import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from support.budget import examples

import lakeops
from lakeops.engine.base import LocalEngine
from lakeops.model.arrow import ENTRY_SCHEMA, STAGED_SCHEMA
from lakeops.model.records import Split, Summary
from lakeops.ranges import metarange as sizes
from lakeops.ranges.apply import Applied, apply
from lakeops.ranges.build import build
from lakeops.ranges.merge import MergePlan, apply_plan
from lakeops.ranges.metarange import Metarange
from lakeops.ranges.range_file import MetarangeFile, write_metarange
from lakeops.ranges.read import RangeReader, entries
from lakeops.store.base import ObjectStore
from lakeops.store.local import LocalStore

Value = tuple[str, int]
Repository = Mapping[str, Value]
Changes = Mapping[str, Value | None]

SMALL = Split(4, 8, 32)
_FIXED = [HealthCheck.function_scoped_fixture]  # such as ``leaves``: one value for all examples
QUICK = settings(max_examples=examples(5), deadline=None, suppress_health_check=_FIXED)
THOROUGH = settings(max_examples=examples(10), deadline=None, suppress_health_check=_FIXED)
_attempts = count()


class RecordingStore(LocalStore):
    """A local store that remembers which files were read and written, and of which some bytes were read twice."""

    def __init__(self, root) -> None:
        super().__init__(root, fsync=False)
        self.read: list[str] = []
        self.written: list[str] = []
        self.twice: set[str] = set()
        self._seen: dict[str, list[range]] = {}
        self._noting = Lock()

    def get(self, key: str) -> bytes:
        data = super().get(key)
        self._note(key, 0, len(data))
        return data

    def get_range(self, key: str, start: int, length: int) -> bytes:
        data = super().get_range(key, start, length)
        self._note(key, start, len(data))
        return data

    def put(self, key, data, **options):
        self.written.append(key)
        return super().put(key, data, **options)

    @property
    def bytes_read(self) -> int:
        """How many bytes of files were read."""
        return sum(len(one) for seen in self._seen.values() for one in seen)

    def forget(self) -> None:
        self.read.clear()
        self.written.clear()
        self.twice.clear()
        self._seen.clear()

    def _note(self, key: str, start: int, length: int) -> None:
        with self._noting:
            if key not in self._seen:
                self.read.append(key)
            seen = self._seen.setdefault(key, [])
            if any(start < other.stop and other.start < start + length for other in seen):
                self.twice.add(key)
            seen.append(range(start, start + length))


class Groups(LocalEngine):
    """The local engine with tasks of a given size."""

    def __init__(self, size: int = 3) -> None:
        super().__init__(2)
        self._size = size

    def group(self, items: int, *, at_once: bool = False) -> int:
        return self._size


class Elsewhere(Groups):
    """Threads whose tasks and results travel as those of a cluster do."""

    in_process = False

    def perform(self, work, tasks, store):
        packed = ((pickle.dumps(task), number) for task, number in tasks)
        for number, result in super().perform(partial(_unpacked, work), packed, store):
            yield number, pickle.loads(pickle.dumps(result))


def _unpacked(work, task, store):
    return work(pickle.loads(task), store)


class Racing(Groups):
    """Runs tasks in another order, each twice, on copies as another process would have them."""

    def perform(self, work, tasks, store):
        for task, number in reversed(list(tasks)):
            first, second = (work(pickle.loads(pickle.dumps(task)), store) for _ in range(2))
            yield number, pickle.loads(pickle.dumps(second))
            yield number, first


class Losing(Groups):
    """Loses the result of the second task."""

    def perform(self, work, tasks, store):
        yield from (found for found in super().perform(work, tasks, store) if found[0] != 1)


class Pointer(NamedTuple):
    """The metarange that a commit names."""

    meta_range_id: str
    meta_range_file: str
    meta_range_digest: str

    @classmethod
    def to(cls, file: MetarangeFile) -> Pointer:
        return cls(file.id, file.file, file.digest)


def attempt() -> str:
    """A name that no other attempt of this process has."""
    return f"attempt{next(_attempts)}"


def byte_order(paths) -> list[str]:
    return sorted(paths, key=str.encode)


def entry_table(repository: Repository) -> pa.Table:
    """``ENTRY_SCHEMA``, sorted."""
    paths = byte_order(repository)
    values = [repository[path] for path in paths]
    return pa.table(
        {
            "path": paths,
            "physical_address": [f"data/2026010100/{contents}-{address}" for contents, address in values],
            "checksum": [contents for contents, _ in values],
            "size_bytes": [len(contents) for contents, _ in values],
            "mtime": [address for _, address in values],
            "content_type": ["text/plain"] * len(paths),
            "metadata": [[("c", contents)] if contents > "2" else [] for contents, _ in values],
        },
        schema=ENTRY_SCHEMA,
    )


def staged_table(changes: Changes) -> pa.Table:
    """``STAGED_SCHEMA``, sorted; None is a tombstone."""
    live = entry_table({path: value for path, value in changes.items() if value is not None})
    rows = {row["path"]: row | {"tombstone": False} for row in live.to_pylist()}
    dead = dict.fromkeys(STAGED_SCHEMA.names) | {"tombstone": True}
    return pa.Table.from_pylist([rows.get(path, dead | {"path": path}) for path in byte_order(changes)], STAGED_SCHEMA)


def built(store: ObjectStore, repository: Repository, split: Split = SMALL) -> Metarange:
    """The metarange of a repository, built from nothing. One with leaves is read again, so they have to be loaded."""
    metarange = build(store, [entry_table(repository)], split, attempt())
    return metarange if len(metarange) <= sizes.MOST_INLINE_NEAR else reread(store, metarange)


def reread(store: ObjectStore, metarange: Metarange) -> Metarange:
    """A metarange after it was written and read again."""
    return RangeReader(store).metarange(Pointer.to(write_metarange(store, metarange, attempt())))


def changed(store: ObjectStore, base: Metarange, edits: Changes, split: Split = SMALL, **options) -> Metarange:
    """A metarange after changes."""
    changes = staged_table(edits)
    return apply(
        RangeReader(store), base, changes, engine=Groups(), split=split, attempt=attempt(), **options
    ).metarange


def merged(store: ObjectStore, plan: MergePlan, source: Metarange, split: Split = SMALL) -> Applied:
    """The outcome of a planned merge."""
    return apply_plan(RangeReader(store), plan, source, engine=Groups(), split=split, attempt=attempt())


def contents(store: ObjectStore, metarange: Metarange) -> dict[str, Value]:
    """The dictionary that a metarange says."""
    found = [entry for table in RangeReader(store).scan(metarange) for entry in entries(table)]
    assert [entry.path for entry in found] == byte_order({entry.path for entry in found})
    return {entry.path: (entry.checksum, entry.mtime) for entry in found}


def same(left: Value | None, right: Value | None) -> bool:
    """Whether two states of a path are the same to a user."""
    return (left and left[0]) == (right and right[0])


def applied(repository: Repository, changes: Changes) -> dict[str, Value]:
    """The state that a repository reaches: writing what is there changes nothing."""
    after = dict(repository)
    for path, value in changes.items():
        if value is None:
            after.pop(path, None)
        elif not same(value, repository.get(path)):
            after[path] = value
    return after


def summed(before: Repository, after: Repository) -> Summary:
    """How many paths differ."""
    both = before.keys() & after.keys()
    return Summary(
        len(after.keys() - both), len(before.keys() - both), sum(not same(before[p], after[p]) for p in both)
    )


def numbered(numbers, contents: str = "0", address: int = 0) -> dict[str, Value]:
    """A repository of numbered paths in two directories."""
    return {f"{'ab'[number % 2]}/{number:05}": (contents, address) for number in numbers}


def values() -> st.SearchStrategy[Value]:
    """Few contents, so that equal ones are common."""
    return st.tuples(st.sampled_from("0123"), st.integers(0, 2))


def paths() -> st.SearchStrategy[str]:
    """Few paths, some of them hard, so that two repositories share many."""
    return st.one_of(
        st.integers(0, 220).map("p/{:03}".format),
        st.integers(0, 9).map("d{}/_SUCCESS".format),
        st.sampled_from(["é", "é/\U0001f600", "z" * 300, "\uffff", "a b", "q\n", "~"]),
    )


@st.composite
def repositories(draw, most: int = 200) -> dict[str, Value]:
    """Dictionaries that make up from no range to a dozen."""
    some = draw(st.dictionaries(paths(), values(), max_size=40))
    span = draw(st.integers(0, most))
    value = draw(values())
    return {f"p/{number:03}": value for number in range(span)} | some


@st.composite
def change_sets(draw, repository: Repository) -> dict[str, Value | None]:
    """Writes and deletes: scattered, in a run, of paths that are there and that are not."""
    known = byte_order(repository)
    choice = st.one_of(paths(), st.sampled_from(known)) if known else paths()
    changes: dict[str, Value | None] = dict(draw(st.dictionaries(choice, st.none() | values(), max_size=25)))
    if known and draw(st.booleans()):
        start = draw(st.integers(0, len(known) - 1))
        run = known[start : start + draw(st.integers(1, 80))]
        changes |= dict.fromkeys(run, draw(st.none() | values()))
    return changes


def boundary_paths(metarange: Metarange) -> Iterator[str]:
    """The last path of every range."""
    yield from metarange.table.column("last_path").to_pylist()


def prepared(lake: lakeops.Lake, count: int, split: Split) -> lakeops.Repository:
    """A repository ``repo`` with ``count`` entries on main, all of which are staged again with other contents."""
    repo = lake.create_repository("repo", split=split)
    main = repo.branch("main")
    main.stage(entry_table(numbered(range(count))))
    main.commit("first")
    main.stage(entry_table(numbered(range(count), "1")))
    return repo
