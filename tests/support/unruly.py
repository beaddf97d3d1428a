"""A replicator as bad as a bucket's may be, for tests: any order, late, twice, metadata long before data, with pauses.

It keeps what S3 Replication promises and nothing more: an object arrives whole; what was written arrives at some
time, unless the source has deleted it meanwhile; deletes arrive too, when they are replicated. Everything it does is
decided by one ``random.Random`` (a seeded one, or hypothesis' ``st.randoms()``, which shrinks), one step at a time
and without threads, so that a run can be repeated.

    replicator = Unruly(source, destination, Random(7))
    replicator.hold("data/")         # these keys wait until they are released: replication that lags for ever
    replicator.run(30)               # thirty steps: some objects are there now, some are not
    replicator.settle()              # everything arrives, but for what is held

As a program it goes on until its input ends: ``python -m support.unruly SOURCE DESTINATION [SEED]``.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Literal

from lakeops.model.errors import ObjectNotFound
from lakeops.store.base import ObjectStore

Action = Literal["put", "delete", "duplicate"]

LONGEST_PAUSE = 6
"""Steps."""

LONGEST_DELAY = 24
"""Steps that an event may wait before it can be delivered, in the mood that has it wait longest."""

MANAGED = ("data/", "_lakefs/ranges/", "_lakefs/metaranges/")
"""What is replicated; a test may add the claim or leave something out."""

Mood = Literal["even", "metadata first", "data first", "stuck"]
_MOODS: tuple[Mood, ...] = ("even", "metadata first", "data first", "stuck")


@dataclass(frozen=True, slots=True)
class Delivery:
    """The effect of one step at the destination."""

    action: Action
    key: str


@dataclass(slots=True)
class _Event:
    action: Literal["put", "delete"]
    key: str
    due: int


class Unruly:
    """Replicates one store into another, step by step.

    Args:
        source: only read.
        destination: only written.
        random: decides everything.
        deletes: whether deletes are replicated (delete markers).
        prefixes: the keys that are replicated at all.
    """

    def __init__(
        self,
        source: ObjectStore,
        destination: ObjectStore,
        random: Random,
        *,
        deletes: bool = True,
        prefixes: tuple[str, ...] = MANAGED,
    ) -> None:
        self.source = source
        self.destination = destination
        self.delivered: list[Delivery] = []
        self._random = random
        self._deletes = deletes
        self._prefixes = prefixes
        self._known: dict[str, tuple[int, str]] = {}
        self._queue: list[_Event] = []
        self._held: set[str] = set()
        self._tick = 0
        self._paused_until = 0
        self._mood: Mood = "even"

    # --- what a test steers ---

    def hold(self, *prefixes: str) -> None:
        """Keep keys that start like this from arriving until ``release``."""
        self._held.update(prefixes)

    def release(self, *prefixes: str) -> None:
        """Let held keys go on; all of them when none are named."""
        self._held.difference_update(prefixes or tuple(self._held))

    def step(self) -> Delivery | None:
        """Do one thing: look at the source, deliver something that is due, deliver it again, or nothing at all."""
        self._tick += 1
        if self._tick < self._paused_until:
            return None
        match self._random.randrange(12):
            case 0:
                self._paused_until = self._tick + self._random.randrange(LONGEST_PAUSE)
            case 1:
                self._mood = self._random.choice(_MOODS)
            case 2 | 3 | 4:
                self.look()
            case 5:
                return self._again()
            case _:
                return self._next()
        return None

    def run(self, steps: int) -> list[Delivery]:
        """Do so many steps; what they delivered."""
        return [done for _ in range(steps) if (done := self.step()) is not None]

    def settle(self) -> None:
        """Deliver all that is not held, in a random order, until the destination has what the source has."""
        self._paused_until = 0
        self.look()
        while ready := [event for event in self._queue if not self._is_held(event.key)]:
            self._deliver(self._random.choice(ready))

    def deliver(self, *keys: str) -> None:
        """Let these keys arrive now, due or held or not; those that the source does not have are passed over."""
        self.look()
        for event in [event for event in self._queue if event.key in keys]:
            self._deliver(event)

    def look(self) -> None:
        """See what the source has now, and queue what became of it since the last look."""
        found = dict(self._listed())
        for key, mark in found.items():
            if self._known.get(key) != mark:
                self._supersede(_Event("put", key, self._due(key)))
        for key in sorted(self._known.keys() - found.keys()):
            if self._deletes:
                self._supersede(_Event("delete", key, self._due(key)))
        self._known = found

    @property
    def pending(self) -> list[str]:
        """The keys that something has yet to happen to at the destination, as far as the source was looked at."""
        return sorted({event.key for event in self._queue})

    # --- one step ---

    def _next(self) -> Delivery | None:
        due = [event for event in self._queue if event.due <= self._tick and not self._is_held(event.key)]
        return self._deliver(self._random.choice(due)) if due else None

    def _again(self) -> Delivery | None:
        """A duplicate of something that arrived before and is still at the source."""
        seen = sorted({done.key for done in self.delivered if done.action == "put" and done.key in self._known})
        if not seen:
            return None
        key = self._random.choice(seen)
        return self._record("duplicate", key) if self._copy(key) else None

    def _deliver(self, event: _Event) -> Delivery | None:
        self._queue.remove(event)
        if event.action == "put":
            return self._record("put", event.key) if self._copy(event.key) else None
        refused = self.destination.delete([event.key])
        assert not refused, refused
        return self._record("delete", event.key)

    def _supersede(self, event: _Event) -> None:
        """Queue what became of a key last; what was under way before must not come after it."""
        self._queue = [other for other in self._queue if other.key != event.key]
        self._queue.append(event)

    def _copy(self, key: str) -> bool:
        try:
            data = self.source.get(key)
        except ObjectNotFound:
            return False
        self.destination.put(key, data)
        return True

    def _record(self, action: Action, key: str) -> Delivery:
        done = Delivery(action, key)
        self.delivered.append(done)
        return done

    def _listed(self) -> Iterable[tuple[str, tuple[int, str]]]:
        for prefix in self._prefixes:
            for item in self.source.list(prefix):
                yield item.key, (item.size_bytes, item.etag)

    def _due(self, key: str) -> int:
        """When an event may be delivered at the earliest."""
        quick, slow = self._random.randrange(3), self._random.randrange(LONGEST_DELAY)
        is_metadata = key.startswith("_lakefs/")
        match self._mood:
            case "even":
                return self._tick + self._random.choice((quick, slow))
            case "metadata first":
                return self._tick + (quick if is_metadata else LONGEST_DELAY + slow)
            case "data first":
                return self._tick + (LONGEST_DELAY + slow if is_metadata else quick)
            case "stuck":
                return self._tick + LONGEST_DELAY + slow

    def _is_held(self, key: str) -> bool:
        return any(key.startswith(prefix) for prefix in self._held)


def main() -> None:
    """Replicate until the input ends."""
    from select import select

    from lakeops.store.base import StoreSettings
    from lakeops.store.open import Stores

    source, destination, *seed = sys.argv[1:]
    settings = StoreSettings(fsync=False)
    random = Random(int(seed[0]) if seed else 0)
    stores = Stores(settings)
    replicator = Unruly(stores.at(source), stores.at(destination), random)
    while not select([sys.stdin], [], [], random.random() / 10)[0]:
        replicator.step()


if __name__ == "__main__":
    main()
