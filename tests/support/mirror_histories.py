"""Random histories of a repository with a mirror elsewhere, and a replicator between them that keeps few promises.

When the mirror takes over it is production from then on, with a mirror of its own. The old site is still there: it
collects its garbage, and its ``mirror replicate --delete`` knows nothing of the fail-over.
"""

from contextlib import suppress
from typing import Any

from support.histories import (
    OPERATIONS,
    SHARED,
    Chosen,
    Expected,
    Known,
    Process,
    World,
    Write,
    operation,
    settings_at,
    store_at,
)
from support.mirrors import OneByOne, read_whole
from support.unruly import Unruly

from lakeops import Commit, Lake, Settings
from lakeops.model import errors
from lakeops.ops.mirror.replicate import replicate
from lakeops.store.base import ObjectStore
from lakeops.testing import Crash

MIRRORED = dict(OPERATIONS)
"""What may happen in a world with a mirror, by name."""


class MirrorWorld(World):
    """A world whose repository is mirrored. Every head that the mirror shows is whole, whatever has arrived."""

    name = "mirror"
    operations = MIRRORED

    def __init__(self, seed: int, **given: Any) -> None:
        super().__init__(seed, **given)
        self.lost: list[tuple[Settings, str, str]] = []
        self.follow()

    def follow(self) -> None:
        """Production gets a new mirror and a replicator."""
        self.there = settings_at(self.home / f"there-{len(self.lost)}", "mirror")
        self.quiet_there = Lake.open(settings=self.there, clock=self.clock)
        mirror = self.quiet_there.create_mirror("repo", source=self.quiet)
        self.place = self.quiet.repository("repo").storage_namespace
        self.copy = store_at(mirror.storage_namespace)
        self.replicator = Unruly(store_at(self.place), self.copy, self.random)
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
            self.check_whole(self.copy, repo.ref(ref.commit_id).commit, f"the mirror shows {ref.id}")

    def check_whole(self, store: ObjectStore, commit: Commit, what: str) -> None:
        try:
            read_whole(store, store.url, commit)
        except (errors.LakeopsError, AssertionError) as error:
            raise self.failure(f"{what} at {commit.id[:12]}: {error!r}") from error

    def mend(self) -> None:
        """A torn object arrives again."""
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
            self.quiet_there.mirror("repo").sync(source=self.quiet)
        shown = {ref.id: ref.commit_id for ref in self.quiet_there.repository("repo").branches()}
        wanted = {ref.id: ref.commit_id for ref in self.quiet.repository("repo").branches()}
        if shown != wanted:
            raise self.failure(f"everything has arrived, and the mirror shows {shown}, not {wanted}")
        self.check_mirror()


@operation("sync", 8, 8, among=MIRRORED)
def sync(world: MirrorWorld, process: Process) -> None:
    other = Process(world, world.there)
    try:
        other.lake.mirror("repo").sync(source=process.lake)
    except errors.LakeopsError as error:
        if error.kind not in {"corrupted", "replica_mismatch"} or not world.torn:
            raise
    finally:
        other.close()


@operation("replicate", 5, 5, among=MIRRORED)
def replicate_some(world: MirrorWorld, process: Process) -> None:
    world.replicator.run(world.random.choice([5, 20, 60]))


@operation("settle", 2, 2, among=MIRRORED)
def settle(world: MirrorWorld, process: Process) -> None:
    world.replicator.settle()


@operation("take over", 2, 2, among=MIRRORED)
def take_over(world: MirrorWorld, process: Process) -> None:
    """Fail over to the mirror. What is killed or overtaken is done again."""
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


@operation("prove", 3, 2, among=MIRRORED)
def prove(world: MirrorWorld, process: Process) -> None:
    """Look at what came before the fail-over; all that lives again is whole."""
    if not world.lost:
        take_over(world, process)
    site = Process(world)
    try:
        site.lake.mirror("repo").verify_history()
    finally:
        site.close()
    repo = world.quiet.repository("repo")
    for commit in world.quiet.catalog.commits.all("repo").values():
        if not commit.expired:
            world.check_whole(store_at(repo.storage_namespace), commit, "it was proved")


@operation("copy", 4, 4, among=MIRRORED)
def copy(world: MirrorWorld, process: Process) -> None:
    """``mirror replicate --delete`` at the source: of the mirror, or of one that has taken over long since."""
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


@operation("hold", 2, 1, among=MIRRORED)
def hold(world: MirrorWorld, process: Process) -> None:
    """Some objects do not arrive until further notice."""
    if world.random.random() < 0.5:
        world.replicator.release()
        return
    keys = [item.key for item in world.replicator.source.list() if item.key.startswith(("data/", "_lakefs/ranges"))]
    if keys:
        world.replicator.hold(world.random.choice(keys))


@operation("tear", 1, 1, among=MIRRORED)
def tear(world: MirrorWorld, process: Process) -> None:
    """A file that nobody reads yet arrives with its right size and wrong bytes."""
    here = {item.key for item in world.copy.list()}
    keys = [item.key for item in world.replicator.source.list("_lakefs/") if item.key not in here]
    keys = [key for key in keys if key.endswith(".parquet") and "/retention/" not in key]
    if keys:
        key = world.random.choice(keys)
        data = bytearray(world.replicator.source.get(key))
        data[world.random.randrange(len(data))] ^= 0x40
        world.copy.put(key, bytes(data))
        world.torn[key] = bytes(data)


@operation("mend", 1, 1, among=MIRRORED)
def mend(world: MirrorWorld, process: Process) -> None:
    world.mend()


# A restored source forgets what it promised to keep for mirrors; see ``tests/mirror/test_restored.py``.
MIRRORED["adopt"] = Chosen(settle, 0, 0)
