"""Nested histories of a repository with a mirror elsewhere, and a replicator between them that keeps few promises."""

from __future__ import annotations

from typing import Any

from support.mirrors import read_whole
from support.nested import Chosen, Operations, Process, World
from support.unruly import Unruly

from lakeops import Lake, Mirror, Settings
from lakeops.model import errors
from lakeops.store.open import Stores, StoreSettings


class MirrorWorld(World):
    """A world whose repository is mirrored. Every head that the mirror shows is whole, whatever has arrived."""

    name = "mirror"

    def __init__(self, seed: int, operations: Operations, **given: Any) -> None:
        super().__init__(seed, {**operations, **OPERATIONS}, **given)
        place = self.home / "there"
        self.there = Settings.load(home=place, fsync=False, committer="mirror", engine="local")
        self.quiet_there = Lake.open(settings=self.there, clock=self.clock)
        mirror = self.quiet_there.create_mirror("repo", source=self.quiet)
        plain = Stores(StoreSettings(fsync=False))
        here = self.quiet.repository("repo").storage_namespace
        self.copy = plain.at(mirror.storage_namespace)
        self.replicator = Unruly(plain.at(here), self.copy, self.random)
        self.torn: dict[str, bytes] = {}

    def close(self) -> None:
        self.quiet_there.close()
        super().close()

    def between(self, process: Process, where: str) -> None:
        """Replication goes on beside everything."""
        if self.random.random() < 0.3:
            self.replicator.step()
        super().between(process, where)

    def check(self, *, everything: bool) -> None:
        super().check(everything=everything)
        self.check_mirror()

    def check_mirror(self) -> None:
        """Each head is there in whole: opened anew, without cache, catalog or memory."""
        repo = self.quiet_there.repository("repo")
        for ref in (*repo.branches(), *repo.tags()):
            commit = self.quiet_there.catalog.commit("repo", ref.commit_id)
            try:
                read_whole(self.copy, repo.storage_namespace, commit)
            except (errors.LakeopsError, AssertionError) as error:
                raise self.failure(f"the mirror shows {ref.id} at {ref.commit_id[:12]}: {error!r}") from error

    def mend(self) -> None:
        """What was torn arrives again."""
        for key in sorted(self.torn):
            self.replicator.deliver(key)
            try:
                self.copy.put(key, self.replicator.source.get(key))
            except errors.ObjectNotFound:
                self.copy.delete([key])
        self.torn.clear()

    def end(self) -> None:
        """Once everything arrives the mirror shows what the source shows."""
        super().end()
        self.replicator.release()
        self.mend()
        for _ in range(3):
            self.replicator.settle()
            _quiet_mirror(self).sync(source=self.quiet)
        shown = {ref.id: ref.commit_id for ref in self.quiet_there.repository("repo").branches()}
        wanted = {ref.id: ref.commit_id for ref in self.quiet.repository("repo").branches()}
        if shown != wanted:
            raise self.failure(f"everything has arrived, and the mirror shows {shown}, not {wanted}")
        self.check_mirror()


def _quiet_mirror(world: MirrorWorld) -> Mirror:
    return world.quiet_there.mirror("repo")


def _sync(world: World, process: Process) -> None:
    assert isinstance(world, MirrorWorld)
    other = Process(world, world.there)
    try:
        other.lake.mirror("repo").sync(source=process.lake)
    except (errors.Corrupted, errors.ReplicaMismatch):
        if not world.torn:
            raise
    finally:
        other.close()


def _replicate(world: World, process: Process) -> None:
    assert isinstance(world, MirrorWorld)
    world.replicator.run(world.random.choice([5, 20, 60]))


def _settle(world: World, process: Process) -> None:
    assert isinstance(world, MirrorWorld)
    world.replicator.settle()


def _hold(world: World, process: Process) -> None:
    """Some objects do not arrive until further notice."""
    assert isinstance(world, MirrorWorld)
    if world.random.random() < 0.5:
        world.replicator.release()
        return
    keys = [item.key for item in world.replicator.source.list() if item.key.startswith(("data/", "_lakefs/ranges"))]
    if keys:
        world.replicator.hold(world.random.choice(keys))


def _tear(world: World, process: Process) -> None:
    """A file that nobody reads yet arrives with its right size and wrong bytes."""
    assert isinstance(world, MirrorWorld)
    here = {item.key for item in world.copy.list()}
    keys = [item.key for item in world.replicator.source.list("_lakefs/") if item.key not in here]
    keys = [key for key in keys if key.endswith(".parquet") and "/retention/" not in key]
    if keys:
        key = world.random.choice(keys)
        data = bytearray(world.replicator.source.get(key))
        data[world.random.randrange(len(data))] ^= 0x40
        world.copy.put(key, bytes(data))
        world.torn[key] = bytes(data)


def _mend(world: World, process: Process) -> None:
    assert isinstance(world, MirrorWorld)
    world.mend()


OPERATIONS: Operations = {
    "sync": Chosen(_sync, 8, 8),
    "replicate": Chosen(_replicate, 5, 5),
    "settle": Chosen(_settle, 2, 2),
    "hold": Chosen(_hold, 2, 1),
    "tear": Chosen(_tear, 1, 1),
    "mend": Chosen(_mend, 1, 1),
}
