"""Two lakes for the tests of mirrors, a replicator between them, and a reader that trusts nothing it has not opened."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from support.faulty_catalog import FaultyCatalog
from support.scenes import fill_paths
from support.unruly import Unruly

from lakeops import Lake, Mirror, Repository, Settings, Split
from lakeops.catalog.open import open_catalog
from lakeops.catalog.records import commit_values
from lakeops.catalog.tables import BRANCH, COMMIT
from lakeops.engine.base import LocalEngine
from lakeops.model.ids import id_of
from lakeops.model.mirrors import MirrorStatus
from lakeops.model.records import Commit
from lakeops.ranges.read import RangeReader
from lakeops.store.base import ObjectStore
from lakeops.store.open import Stores, StoreSettings
from lakeops.testing import Faults, ManualClock

SPLIT = Split(1, 3, 6)


def open_lake(home: Path, clock: ManualClock, faults: Faults | None = None) -> Lake:
    """A lake below a directory; its catalog and stores play a script of faults, if there is one."""
    settings = Settings.load(home=home, database_url=f"sqlite:///{home}/catalog.db", fsync=False, committer="tester")
    catalog: Any = open_catalog(settings.catalog_url, clock=clock)
    stores = Stores(StoreSettings(fsync=False), wrap=None if faults is None else faults.around)
    return Lake(catalog if faults is None else FaultyCatalog(catalog, faults), settings, stores=stores, clock=clock)


class OneByOne(LocalEngine):
    """Tasks one after the other, so that a moment between two of them can be named."""

    def perform(self, work: Any, tasks: Iterator[tuple[Any, int]], store: ObjectStore) -> Iterator[tuple[int, Any]]:
        return ((number, work(task, store)) for task, number in tasks)


@dataclass
class Pair:
    """A source with one repository, a lake that mirrors it, and what replicates the one's storage to the other's.

    ``replicator`` and ``whole_store`` see the real stores, without faults.
    """

    clock: ManualClock
    faults: Faults
    here: Lake
    there: Lake
    repo: Repository
    mirror: Mirror
    replicator: Unruly

    def commit(self, branch: str = "main", /, **files: str | None) -> Commit:
        """Put ``path=contents`` (None deletes) on a branch of the source, and commit."""
        return self.commit_paths(branch, files)

    def commit_paths(self, branch: str, files: dict[str, str | None]) -> Commit:
        made = fill_paths(self.repo, branch, files, allow_empty=True)
        return self.repo.ref(made).commit

    def arrived(self, branch: str = "main", /, **files: str | None) -> Commit:
        """Commit, and let everything arrive. No pass has seen it."""
        made = self.commit(branch, **files)
        self.replicator.settle()
        return made

    def mirrored(self, branch: str = "main", /, **files: str | None) -> Commit:
        """Commit, let everything arrive, and run a pass."""
        made = self.commit(branch, **files)
        self.catch_up()
        return made

    def catch_up(self) -> MirrorStatus:
        """Let everything arrive, and run a pass."""
        self.replicator.settle()
        return self.mirror.sync()

    def fail_over(self) -> Repository:
        """Let the mirror take over, and open it as the repository that it is then."""
        self.mirror.promote_writable()
        return self.there.repository(self.mirror.id)

    def contents(self, branch: str = "main") -> dict[str, bytes]:
        """The contents of a branch of the source."""
        ref = self.repo.ref(branch)
        return {item.path: ref.read(item.path) for item in ref.list()}

    def head(self, branch: str = "main") -> str:
        """The contents of the mirror."""
        return self.mirror.branch(branch).commit_id

    def heads(self) -> dict[str, str]:
        """Everything that the mirror shows: branches, and tags as ``tag:name``."""
        return {
            **{ref.id: ref.commit_id for ref in self.mirror.branches()},
            **{f"tag:{ref.id}": ref.commit_id for ref in self.mirror.tags()},
        }

    @property
    def store(self) -> ObjectStore:
        """The mirror's storage, without faults."""
        return self.replicator.destination


@contextmanager
def open_pair(place: Path, *, clock: ManualClock, random: Random, **given: Any) -> Iterator[Pair]:
    """A source with an empty repository ``flights`` and a mirror of it; ``given`` goes to ``create_mirror``."""
    faults = Faults()
    here, there = open_lake(place / "here", clock), open_lake(place / "there", clock, faults)
    repo = here.create_repository("flights", split=SPLIT)
    mirror = there.create_mirror("flights", source=here, **given)
    yield Pair(clock, faults, here, there, repo, mirror, replicator(repo, mirror, random))
    there.close()
    here.close()


def replicator(repo: Repository, mirror: Mirror, random: Random) -> Unruly:
    """A program that replicates a repository's storage to its mirror's, deletes included."""
    plain = Stores(StoreSettings(fsync=False))
    return Unruly(plain.at(repo.storage_namespace), plain.at(mirror.storage_namespace), random)


def write(pair: Pair, statement: Any) -> None:
    """The changes that somebody with the right to write makes in the source's catalog."""
    with pair.here.catalog.database.engine.begin() as conn:
        conn.execute(statement)


def forge(pair: Pair, branch: str, honest: bool = True, **changes: Any) -> Commit:
    """Put a changed commit in place of a branch's head; its id is right for what it says, when ``honest``."""
    head = pair.repo.ref(branch).commit
    changed = replace(head, **changes)
    if honest:
        changed = replace(changed, id=id_of(changed))
    if changed.id != head.id:
        write(pair, COMMIT.insert().values(commit_values("flights", changed)))
    else:
        here = (COMMIT.c.repository_id == "flights", COMMIT.c.id == head.id)
        write(pair, COMMIT.update().where(*here).values(commit_values("flights", changed)))
    point(pair, branch, changed.id)
    return changed


def point(pair: Pair, branch: str, head: str) -> None:
    """Let a branch of the source's catalog point elsewhere."""
    write(pair, BRANCH.update().where(BRANCH.c.name == branch).values(commit_id=head))


def read_whole(store: ObjectStore, namespace: str, commit: Commit) -> dict[str, bytes]:
    """Path to contents of a commit, every file and every object opened anew, sizes and checksums compared.

    Independent of the code under test: no cache, no catalog, no memory of what was there once.
    """
    from hashlib import sha256

    reader = RangeReader(store)
    found: dict[str, bytes] = {}
    for table in reader.scan(reader.metarange(commit)):
        for row in table.to_pylist():
            address = row["physical_address"]
            assert "://" not in address, address
            data = store.get(address)
            assert len(data) == row["size_bytes"]
            assert sha256(data).hexdigest() == row["checksum"]
            found[row["path"]] = data
    return found


def check_whole(pair: Pair) -> None:
    """Everything that the mirror shows is there, and is what the source committed."""
    for one in set(pair.heads().values()):
        commit = pair.there.catalog.commits.get("flights", one)
        theirs = pair.here.catalog.commits.get("flights", one)
        assert (commit.parents, commit.meta_range_id) == (theirs.parents, theirs.meta_range_id)
        read_whole(pair.store, pair.mirror.storage_namespace, commit)
