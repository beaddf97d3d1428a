"""Nested histories of a repository with a mirror elsewhere, and a replicator between them that keeps few promises.

When the mirror takes over it is production from then on, with a mirror of its own. The old site is still there: it
collects its garbage, and its ``mirror replicate --delete`` knows nothing of the fail-over.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from support.mirrors import OneByOne, read_whole
from support.nested import SHARED, Chosen, Expected, Known, Operations, Process, World, Write
from support.unruly import Unruly

from lakeops import Lake, Mirror, Settings
from lakeops.model import errors
from lakeops.ops.replicate import replicate
from lakeops.store.open import Stores, StoreSettings
from lakeops.testing import Crash


class MirrorWorld(World):
    """A world whose repository is mirrored. Every head that the mirror shows is whole, whatever has arrived."""

    name = "mirror"

    def __init__(self, seed: int, operations: Operations, **given: Any) -> None:
        super().__init__(seed, {**operations, **OPERATIONS}, **given)
        self.lost: list[tuple[Settings, str, str]] = []
        self.follow()

    def follow(self) -> None:
        """Production gets a new mirror and a replicator."""
        place = self.home / f"there-{len(self.lost)}"
        self.there = Settings.load(home=place, fsync=False, committer="mirror", engine="local")
        self.quiet_there = Lake.open(settings=self.there, clock=self.clock)
        mirror = self.quiet_there.create_mirror("repo", source=self.quiet)
        plain = Stores(StoreSettings(fsync=False))
        self.place = self.quiet.repository("repo").storage_namespace
        self.copy = plain.at(mirror.storage_namespace)
        self.replicator = Unruly(plain.at(self.place), self.copy, self.random)
        self.torn: dict[str, bytes] = {}

    def take_over(self) -> None:
        """The mirror was opened for writing: it has to show byte by byte what it showed then, and what comes after."""
        self.lost.append((self.settings, self.place, self.copy.url))
        there = self.quiet_there.repository("repo")
        branches, shown = {}, {}
        for ref in there.branches():
            shown = self.read(there, ref.id)
            branches[ref.id] = Known(committed={path: shown[path] for path in shown.keys() - {*SHARED}})
        self.tainted.update(SHARED - self.read(there, "main").keys())
        old = {path: [Write(write.value, 0, 0) for write in writes] for path, writes in self.shared.items()}
        self.quiet_there.close()
        self.move(self.there, Expected(branches, old, {}))
        self.follow()

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
            commit = self.quiet_there.catalog.commits.get("repo", ref.commit_id)
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
    except errors.LakeopsError as error:
        if error.kind not in {"corrupted", "replica_mismatch"} or not world.torn:
            raise
    finally:
        other.close()


def _replicate(world: World, process: Process) -> None:
    assert isinstance(world, MirrorWorld)
    world.replicator.run(world.random.choice([5, 20, 60]))


def _settle(world: World, process: Process) -> None:
    assert isinstance(world, MirrorWorld)
    world.replicator.settle()


def _take_over(world: World, process: Process) -> None:
    """Fail over to the mirror. What is killed or overtaken is done again."""
    assert isinstance(world, MirrorWorld)
    there, mirror = world.there, world.quiet_there
    while world.quiet_there is mirror:
        other = Process(world, there)
        try:
            other.lake.mirror("repo").promote_writable(source=world.random.choice([process.lake, None]))
        except (Crash, errors.MirrorOvertaken):
            world.note("and again")
        except errors.NotAMirror:
            break
        else:
            break
        finally:
            other.close()
    if world.quiet_there is mirror:
        world.take_over()


def _prove(world: World, process: Process) -> None:
    """Look at what came before the fail-over; all that lives again is whole."""
    assert isinstance(world, MirrorWorld)
    if not world.lost:
        _take_over(world, process)
    site = Process(world)
    try:
        site.lake.mirror("repo").verify_history()
    finally:
        site.close()
    repo = world.quiet.repository("repo")
    store = Stores(StoreSettings(fsync=False)).at(repo.storage_namespace)
    for commit in world.quiet.catalog.commits.history("repo").commits.values():
        if not commit.expired:
            try:
                read_whole(store, repo.storage_namespace, commit)
            except (errors.LakeopsError, AssertionError) as error:
                raise world.failure(f"{commit.id[:12]} was proved: {error!r}") from error


def _copy(world: World, process: Process) -> None:
    """``mirror replicate --delete`` at the source: of the mirror, or of one that has taken over long since."""
    assert isinstance(world, MirrorWorld)
    settings, place, there = world.random.choice([*world.lost, (world.settings, world.place, world.copy.url)])
    is_lost = place != world.place
    site = Process(world, settings)
    try:
        stores = site.lake.stores()
        if is_lost:
            with suppress(errors.MarkRefused):
                site.repo.gc.sweep(site.repo.gc.mark().id, force=True)
        replicate(stores.at(place), stores.at(there), OneByOne(), delete=True, force=True)
    finally:
        site.close()
    if is_lost:
        raise world.failure(f"{place} was copied over {there}, which had taken over")


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
    "take over": Chosen(_take_over, 2, 2),
    "prove": Chosen(_prove, 3, 2),
    "copy": Chosen(_copy, 4, 4),
    # A restored source forgets what it promised to keep for mirrors; see ``tests/mirror/test_restored.py``.
    "adopt": Chosen(_settle, 0, 0),
}
