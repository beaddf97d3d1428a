"""A lake in which anything may happen inside anything: the interleaving fuzzer of ``tests/harness``.

Every operation runs in a process of its own (own handles, own caches) whose catalog and stores are watched. Before and
after each call that such a process makes to them, another whole operation may run to its end, time may pass, the
clock may jump, or the process may die. The choice is made by one seeded ``random.Random``, in one thread, so a seed
names a history: ``python -m harness nested SEED`` runs it again and prints what happened.

The oracle knows what was acknowledged and nothing else:

* contents are unique, so what a path shows tells which write it came from;
* an acknowledged write to a path of its own is visible until somebody removes it on purpose;
* a path that is written again and again never shows a write that was over before another acknowledged one began;
* every ref is readable in whole, byte by byte, at every moment, and ``fsck`` finds nothing at the end;
* a key commits once.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

from support.soundness import worse_than_information

from lakeops import Lake, Repository, Settings, Split
from lakeops.catalog.guards import CatalogPart
from lakeops.catalog.open import open_catalog
from lakeops.model.errors import LakeopsError
from lakeops.store.open import Stores, StoreSettings
from lakeops.testing import Call, Crash, Faults, ManualClock

NEVER = {"corrupted", "catalog_error", "permission_denied", "unsupported"}
"""Errors that no interleaving excuses."""

DEEPEST = 3
CHECK_ALL = 5
"""Operations after which every ref is read in whole; in between one branch is."""

UNDO = timedelta(days=7)
SHARED = tuple(f"shared/{number}" for number in range(3))
BRANCHES = ("main", "dev", "fix", "daily")


class Failure(AssertionError):
    """A promise that did not hold, with the history that led there."""


@dataclass(frozen=True, slots=True)
class Chances:
    """How likely things are, each time that a call is about to begin or has ended."""

    nested: float = 0.03
    time: float = 0.01
    jump: float = 0.0
    death: float = 0.004


USUAL = Chances()


@dataclass
class Write:
    """A write to a shared path: when it began and ended, in steps; ``end`` is None until it is acknowledged."""

    value: bytes
    start: int
    end: int | None = None


@dataclass
class Known:
    """What a branch has to show.

    ``staged`` and ``committed`` map paths of their own to the contents that were acknowledged there.
    """

    staged: dict[str, bytes] = field(default_factory=dict)
    committed: dict[str, bytes] = field(default_factory=dict)


@dataclass
class Expected:
    """What a catalog has to show at one moment: its branches, the shared paths of ``main``, heads that were seen."""

    branches: dict[str, Known]
    shared: dict[str, list[Write]]
    heads: dict[str, datetime]


@dataclass(frozen=True)
class Backup:
    """A copy of the catalog: where it is, when it was made, and what it has to show."""

    home: Path
    made: datetime
    expected: Expected


class Process:
    """One process: a lake of its own, whose calls the world sees. Dead once it was killed."""

    def __init__(self, world: World, settings: Settings | None = None) -> None:
        self.world = world
        self.dead = False
        self.settings = settings = settings or world.settings
        # Another catalog may be production soon: what this process acknowledges is nothing to that one.
        self.known, self.shared = world.known, world.shared
        faults = Faults()
        faults.hook(action=lambda call: self._seen(call, "before"), at=None)
        faults.hook(action=lambda call: self._seen(call, "after"), at=None, when="after")
        catalog = open_catalog(settings.catalog_url, clock=world.clock)
        self.lake = Lake(
            _Watched(catalog, self),  # type: ignore[arg-type]
            settings,
            stores=Stores(StoreSettings(fsync=False), wrap=faults.around),
            clock=world.clock,
        )
        self._close = catalog.close

    @property
    def repo(self) -> Repository:
        """The repository, as this process sees it."""
        return self.lake.repository("repo")

    def close(self) -> None:
        """Give back its connections."""
        self._close()

    def committed(self, branch: str, before: dict[str, bytes]) -> None:
        """What was staged before a commit began is committed after it."""
        known = self.known.get(branch)
        if known is not None:
            known.committed.update(before)
            for path in before:
                known.staged.pop(path, None)

    def call(self, name: str, when: str) -> None:
        """Something is about to be asked of the catalog or a store, or was answered."""
        if self.dead:
            raise Crash(f"the process is dead: {name}")
        if threading.current_thread() is threading.main_thread():
            self.world.between(self, f"{when} {name}")

    def _seen(self, call: Call, when: str) -> None:
        self.call(f"{call.operation} {call.key}", when)


class _Watched:
    """A catalog, or a part of one, whose every call is seen."""

    def __init__(self, inner: Any, process: Process) -> None:
        self._inner = inner
        self._process = process

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if isinstance(found, CatalogPart):
            return _Watched(found, self._process)
        if not callable(found) or name == "now":
            return found

        def call(*args: Any, **given: Any) -> Any:
            self._process.call(name, "before")
            answer = found(*args, **given)
            self._process.call(name, "after")
            return answer

        return call


Operation = Callable[["World", Process], None]


@dataclass(frozen=True, slots=True)
class Chosen:
    """An operation, and how often it is drawn: by itself and inside another one."""

    act: Operation
    weight: int = 1
    inside: int = 1


Operations = Mapping[str, Chosen]


class World:
    """One repository, everything that happens to it, and what must be true of it."""

    name = "nested"

    def __init__(self, seed: int, operations: Operations, *, chances: Chances = USUAL, verbose: bool = False) -> None:
        self.seed = seed
        self.operations = operations
        self.random = Random(seed)
        self.chances = chances
        self.home = Path(tempfile.mkdtemp(prefix="lakeops-nested-"))
        self.clock = ManualClock()
        self.settings = Settings.load(home=self.home, fsync=False, committer="tester", engine="local")
        self.steps = 0
        self.back: list[tuple[int, int]] = []
        self.depth = 0
        self.trace: list[str] = []
        self.counts: Counter[str] = Counter()
        self.known: dict[str, Known] = {"main": Known()}
        self.written: dict[str, set[bytes]] = {}
        self.tainted: set[str] = set()
        self.imported: set[str] = set()
        self.flying: list[tuple[str, str]] = []
        self.shared: dict[str, list[Write]] = {path: [] for path in SHARED}
        self.messages: set[str] = set()
        self.heads: dict[str, datetime] = {}
        self.former: list[Settings] = []
        self.backup: Backup | None = None
        self.running: list[str] = []
        self.verbose = verbose
        with Lake.open(settings=self.settings, clock=self.clock) as lake:
            lake.create_repository("repo", split=Split(1, 3, 6))
        self.quiet = Lake.open(settings=self.settings, clock=self.clock)

    def close(self) -> None:
        """Remove everything."""
        self.quiet.close()
        shutil.rmtree(self.home)

    def move(self, settings: Settings, known: Expected) -> None:
        """Another catalog is production from now on; whoever is at work goes on with the one before."""
        self.quiet.close()
        self.settings, self.backup = settings, None
        self.known, self.shared, self.heads = known.branches, known.shared, known.heads
        self.quiet = Lake.open(settings=settings, clock=self.clock)

    # --- what happens ---

    def draw(self, inside: bool) -> tuple[str, Operation]:
        """An operation by its weight; inside another one garbage collection does the harm, so it comes more often."""
        names = list(self.operations)
        weights = [chosen.inside if inside else chosen.weight for chosen in self.operations.values()]
        name = self.random.choices(names, weights)[0]
        return name, self.operations[name].act

    def between(self, process: Process, where: str) -> None:
        """Let something happen at this very moment, or nothing."""
        self.steps += 1
        self.jump_back()
        if self.depth > DEEPEST:
            return
        draw = self.random.random()
        chances = self.chances
        if draw < chances.death:
            process.dead = True
            self.note(f"killed {where}")
            self.counts["killed"] += 1
            raise Crash(where)
        draw -= chances.death
        if draw < chances.time:
            self.pass_time()
            return
        draw -= chances.time
        if draw < chances.jump:
            self.jump()
            return
        draw -= chances.jump
        if draw < chances.nested:
            self.note(f"meanwhile, {where}:")
            self.counts["nested"] += 1
            self.run_one(inside=True)

    def pass_time(self) -> None:
        """Seconds, minutes or hours go by."""
        seconds = self.random.choice([1, 1, 60, 600, 3 * 3600, 9 * 3600, 20 * 3600, 50 * 3600])
        self.clock.advance(seconds=seconds)
        self.note(f"{seconds} s pass")

    def jump(self) -> None:
        """Somebody sets the clock, and perhaps back again a few calls later."""
        days = self.random.choice([-3, -1, 1, 3, 3, 400])
        self.clock.advance(days=days)
        self.counts["jumps"] += 1
        self.note(f"the clock jumps by {days} days")
        if self.random.random() < 0.7:
            self.back.append((self.steps + self.random.randint(1, 60), -days))

    def jump_back(self) -> None:
        """What was set wrong is set right."""
        due = [days for step, days in self.back if step <= self.steps]
        self.back = [(step, days) for step, days in self.back if step > self.steps]
        for days in due:
            self.clock.advance(days=days)
            self.note(f"the clock is set back by {days} days")

    def run_one(self, *, inside: bool = False) -> None:
        """One operation in a process of its own, to its end, its error or its death."""
        name, act = self.draw(inside)
        process = Process(self)
        self.depth += 1
        self.running.append(name)
        flying = list(self.flying)
        try:
            self.note(f"{name} begins")
            act(self, process)
            self.counts[name] += 1
            self.note(f"{name} ends")
        except Crash:
            self.counts[f"{name} killed"] += 1
        except LakeopsError as error:
            if error.kind in NEVER:
                raise self.failure(f"{name}: {error.kind}: {error}") from error
            self.counts[f"{name}: {error.kind}"] += 1
            self.note(f"{name} refused: {error.kind}: {error.message[:90]}")
        finally:
            self.flying = flying
            self.running.pop()
            self.depth -= 1
            process.close()

    def run(self, operations: int) -> None:
        """A whole history."""
        try:
            for number in range(1, operations + 1):
                self.run_one()
                self.check(everything=number % CHECK_ALL == 0)
            self.check(everything=True)
            self.end()
        except Failure:
            raise
        except Exception as error:
            raise self.failure(f"{type(error).__name__}: {error}") from error

    # --- what must be true ---

    def check(self, *, everything: bool) -> None:
        """Every ref, or one of them, is readable and shows what was acknowledged."""
        repo = self.quiet.repository("repo")
        names = [ref.id for ref in repo.branches()]
        for name in names if everything else [self.random.choice(names)]:
            self.check_branch(repo, name)
        if not everything:
            return
        for tag in repo.tags():
            self.read(repo, tag.id)
        self.check_undo(repo)

    def check_undo(self, repo: Repository) -> None:
        """What a ref showed within the undo window can be read in whole, wherever the ref is by now."""
        now = self.clock.now()
        self.heads.update((ref.commit_id, now) for ref in (*repo.branches(), *repo.tags()))
        if self.chances.jump:
            return  # nobody can say how long ago anything was
        recent = [one for one, seen in self.heads.items() if now - seen < UNDO]
        for commit_id in self.random.sample(recent, min(3, len(recent))):
            try:
                self.read(repo, commit_id)
            except LakeopsError as error:
                raise self.failure(f"a ref showed {commit_id[:12]} at {self.heads[commit_id]}: {error}") from error

    def check_branch(self, repo: Repository, name: str) -> None:
        """One branch, staged and committed."""
        shown, committed = self.read(repo, name), self.read(repo, f"{name}@")
        known = self.known.get(name)
        if known is None:
            return
        for what, seen, wanted in (
            ("shows", shown, {**known.committed, **known.staged}),
            ("has committed", committed, known.committed),
        ):
            for path, value in wanted.items():
                if path not in self.tainted and seen.get(path) != value:
                    raise self.failure(f"{name} {what} {seen.get(path)!r} at {path}, and {value!r} was acknowledged")
        if name == "main":
            for path in SHARED:
                self.check_shared(path, shown.get(path))
        chain = [commit.message for commit in repo.log(name, first_parent=True)]
        twice = [message for message, count in Counter(chain).items() if count > 1 and message in self.messages]
        if twice:
            raise self.failure(f"{name} has two commits {twice[0]!r}")

    def check_shared(self, path: str, seen: bytes | None) -> None:
        """A path of many writers shows a write that no acknowledged one came after."""
        if path in self.tainted:
            return
        writes = self.shared[path]
        done = [write for write in writes if write.end is not None]
        if seen is None:
            if done:
                raise self.failure(f"main shows nothing at {path}, and {done[-1].value!r} was acknowledged")
            return
        ours = next(write for write in writes if write.value == seen)
        later = [write for write in done if ours.end is not None and write.start > ours.end]
        if later:
            raise self.failure(f"main shows {seen!r} at {path}, and {later[-1].value!r} was written after it")

    def read(self, repo: Repository, ref: str) -> dict[str, bytes]:
        """Everything that a ref shows; every object is there, and is one that was written to its path."""
        handle = repo.ref(ref)
        found = {}
        for item in handle.list():
            try:
                found[item.path] = handle.read(item.path)
            except LakeopsError as error:
                raise self.failure(f"{ref} shows {item.path} and cannot read it: {error}") from error
            if item.path not in self.imported and sha256(found[item.path]).hexdigest() != item.checksum:
                raise self.failure(f"{ref} shows other bytes at {item.path}: {found[item.path]!r}")
            if found[item.path] not in self.written.get(item.path, ()):
                raise self.failure(f"{ref} shows {found[item.path]!r} at {item.path}, which nobody wrote there")
        return found

    def end(self) -> None:
        """Nothing is damaged that the rules keep.

        A catalog that was restored from a backup may still have commits that production let expire, and collected.
        """
        repo = self.quiet.repository("repo")
        kept = repo.gc.live_commits()
        found = [
            finding
            for finding in worse_than_information(repo, data=True)
            if not (self.former and finding.commits and kept.isdisjoint(finding.commits))
        ]
        if found:
            raise self.failure(f"fsck: {found}")

    def failure(self, what: str) -> Failure:
        """The error for a promise that did not hold."""
        story = "\n".join(self.trace[-400:])
        return Failure(f"{story}\n{what}\nrun it again: python -m harness {self.name} {self.seed}")

    def note(self, text: str) -> None:
        """A line of the history."""
        line = f"{self.steps:6} {self.clock.moment:%m-%d %H:%M} {'  ' * self.depth}{text}"
        self.trace.append(line)
        if self.verbose:
            print(line)

    # --- what operations use ---

    def value(self, path: str) -> bytes:
        """Contents that nothing else has."""
        made = f"{self.steps}.{self.random.getrandbits(32):x}".encode()
        self.written.setdefault(path, set()).add(made)
        return made

    def branch(self, repo: Repository) -> str:
        """The name of some branch that is there now."""
        return self.random.choice([ref.id for ref in repo.branches()])

    @contextmanager
    def flight(self, branch: str, path: str) -> Iterator[None]:
        """While a write is under way, whoever drops what is staged may drop it too."""
        self.flying.append((branch, path))
        yield

    def forget_staged(self, process: Process, branch: str) -> None:
        """What is staged on a branch, or on its way there, need not be shown any more."""
        known = process.known.get(branch, Known())
        self.tainted.update(known.staged, (path for name, path in self.flying if name == branch))
        if branch == "main":
            for path in SHARED:
                if self.shared[path]:
                    self.tainted.add(path)
