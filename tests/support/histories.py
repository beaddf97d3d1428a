"""Random histories of a lake in which anything may happen inside anything: operations, a model, a runner.

Every operation runs in a process of its own (own handles, own caches) whose catalog and stores are watched. Before and
after each call that such a process makes to them, another whole operation may run to its end, time may pass, the
clock may jump, or the process may die. The choice is made by one seeded ``random.Random``, in one thread, so a seed
names a history: ``python -m harness nested SEED`` runs it again and prints what happened.

The model knows what was acknowledged and nothing else:

* contents are unique, so what a path shows tells which write it came from;
* an acknowledged write to a path of its own is visible until somebody removes it on purpose;
* a path that is written again and again never shows a write that was over before another acknowledged one began;
* every ref is readable in whole, byte by byte, at every moment, and ``fsck`` finds nothing at the end;
* a key commits once.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

from support.scenes import table
from support.soundness import worse_than_information

from lakeops import Branch, Lake, Repository, Settings, Split
from lakeops.catalog.guards import CatalogPart
from lakeops.catalog.open import open_catalog
from lakeops.model import errors
from lakeops.model.errors import LakeopsError
from lakeops.model.names import as_folder
from lakeops.store.base import ObjectStore
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
    """The contents that a branch has to show.

    ``staged`` and ``committed`` map paths of their own to the contents that were acknowledged there.
    """

    staged: dict[str, bytes] = field(default_factory=dict)
    committed: dict[str, bytes] = field(default_factory=dict)


@dataclass
class Expected:
    """The contents of a catalog at one moment: its branches, the shared paths of ``main``, heads that were seen."""

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


Operation = Callable[[Any, Process], None]


@dataclass(frozen=True, slots=True)
class Chosen:
    """An operation, and how often it is drawn: by itself and inside another one."""

    act: Operation
    weight: int = 1
    inside: int = 1


OPERATIONS: dict[str, Chosen] = {}
"""What may happen in any world, by name."""


def operation(
    name: str, weight: int = 1, inside: int = 1, among: dict[str, Chosen] = OPERATIONS
) -> Callable[[Operation], Operation]:
    """Let a function be drawn under a name."""

    def chosen(act: Operation) -> Operation:
        among[name] = Chosen(act, weight, inside)
        return act

    return chosen


def settings_at(home: Path, committer: str) -> Settings:
    return Settings.load(home=home, fsync=False, committer=committer, engine="local")


def store_at(url: str) -> ObjectStore:
    return Stores(StoreSettings(fsync=False)).at(url)


class World:
    """One repository, everything that happens to it, and what must be true of it."""

    name = "nested"
    operations = OPERATIONS

    def __init__(self, seed: int, *, chances: Chances = USUAL, verbose: bool = False) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.chances = chances
        self.home = Path(tempfile.mkdtemp(prefix="lakeops-nested-"))
        self.clock = ManualClock()
        self.settings = settings_at(self.home, "tester")
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
            self.clock.advance(seconds=1)  # a place in a queue may be that of nobody: it lapses
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
        """Wrong settings are set right."""
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
        """A commit that a ref showed within the undo window can be read in whole, wherever the ref is by now."""
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

        A catalog that was restored from a backup may still have commits that production let expire, and collected. Its
        rules may keep them, where production had got other rules meanwhile.
        """
        repo = self.quiet.repository("repo")
        kept = repo.gc.live_commits()
        found = [
            finding
            for finding in worse_than_information(repo, data=True)
            if not (finding.commits and all(self.let_expire(one) for one in kept.intersection(finding.commits)))
        ]
        if found:
            raise self.failure(f"fsck: {found}")

    def let_expire(self, commit_id: str) -> bool:
        """Whether a catalog that was production before let the commit expire."""
        for settings in self.former:
            with Lake.open(settings=settings, clock=self.clock) as lake:
                try:
                    next(iter(lake.repository("repo").ref(commit_id).list()), None)
                except errors.CommitExpired:
                    return True
                except LakeopsError:
                    continue  # it never had the commit, or the objects are gone
        return False

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

    def message(self, verb: str) -> str:
        """A message that is in a history once, and the key of the call that says it."""
        made = f"{verb} {self.steps}"
        self.messages.add(made)
        return made

    def own(self, process: Process, branch: str) -> str | None:
        """A path of somebody's own that a branch shows now."""
        found = [item.path for item in process.repo.ref(branch).list() if item.path not in SHARED]
        return self.random.choice(found) if found else None

    @contextmanager
    def staging(self, process: Process, branch: str, path: str, value: bytes | None) -> Iterator[None]:
        """An object staged in the block is acknowledged at its end, unless the branch became another one meanwhile.

        While it is under way, whoever drops what is staged may drop it too. Contents that are not known are None.
        """
        known = process.known.get(branch)
        self.flying.append((branch, path))
        yield
        if known is not None and process.known.get(branch) is known and value is not None:
            known.staged[path] = value

    @contextmanager
    def writing(self, process: Process, path: str) -> Iterator[bytes]:
        """A write of one of many writers to a path of ``main``: gives its contents, and is acknowledged at the end."""
        self.steps += 1
        write = Write(self.value(path), self.steps)
        process.shared[path].append(write)
        yield write.value
        self.steps += 1
        write.end = self.steps

    @contextmanager
    def bringing(self, process: Process, source: str, destination: str) -> Iterator[list[str | None]]:
        """At the end ``destination`` has what ``source`` had committed, unless the block notes that nothing came."""
        known, ours = process.known.get(destination), process.known.get(source)
        before = dict(ours.committed) if ours else {}
        made: list[str | None] = [""]
        yield made
        same = process.known.get(destination) is known and process.known.get(source) is ours
        if known is not None and same and made[-1] is not None:
            known.committed.update(before)

    @contextmanager
    def forgetting(self, process: Process, branch: str) -> Iterator[None]:
        """Nothing is known of a branch that is deleted or moved, from the beginning on."""
        process.known.pop(branch, None)
        try:
            yield
        finally:
            process.known.pop(branch, None)

    def taint_difference(self, commit: Any, number: int) -> None:
        """A commit's change against one of its parents may be shown as it was before, or as it is there."""
        with suppress(errors.CommitExpired):
            changes = self.quiet.repository("repo").diff(commit.parents[number - 1], commit.id)
            self.tainted.update(change.path for change in changes)

    def forget_staged(self, process: Process, branch: str) -> None:
        """An object that is staged, or on its way there, need not be shown any more."""
        known = process.known.get(branch, Known())
        self.tainted.update(known.staged, (path for name, path in self.flying if name == branch))
        if branch == "main":
            self.tainted.update(path for path in SHARED if self.shared[path])

    def once(self, process: Process, act: Callable[[Repository], str | None]) -> None:
        """Do something under a key; when the process dies, another one does it again, as a scheduler would."""
        try:
            act(process.repo)
        except Crash:
            self.note("and again")
            again = Process(self, process.settings)
            try:
                first = act(again.repo)
                if act(again.repo) != first:
                    raise self.failure("two calls under one key gave two commits") from None
            finally:
                again.close()


# --- objects ---
@operation("put", 6, 4)
def put(world: World, process: Process) -> None:
    branch = world.branch(process.repo)
    path = f"own/{world.steps}-{world.random.getrandbits(16):x}"
    value = world.value(path)
    with world.staging(process, branch, path, value):
        process.repo.branch(branch).put(path, value)


@operation("put shared", 3, 3)
def put_shared(world: World, process: Process) -> None:
    path = world.random.choice(SHARED)
    with world.writing(process, path) as value:
        process.repo.branch("main").put(path, value)


@operation("batch", 2, 2)
def batch(world: World, process: Process) -> None:
    with ExitStack() as writes, process.repo.branch("main").batch() as opened:
        for _ in range(world.random.randint(1, 4)):
            path = world.random.choice(SHARED)
            opened.put(path, writes.enter_context(world.writing(process, path)))


@operation("link", 3, 3)
def link(world: World, process: Process) -> None:
    """Give an object of some ref, or one that only the store has, another path."""
    repo = process.repo
    branch = world.branch(repo)
    path = f"own/{world.steps}-linked"
    if world.random.random() < 0.5:
        items = [item for item in repo.ref(world.branch(repo)).list() if item.path not in world.imported]
        if not items:
            return
        item = world.random.choice(items)
        address = item.physical_address
        data = next(one for one in world.written[item.path] if sha256(one).hexdigest() == item.checksum)
    else:
        store = store_at(repo.storage_namespace)
        keys = [item.key for item in store.list("data/")]
        if not keys:
            return
        address = world.random.choice(keys)
        data = store.get(address)
    world.written.setdefault(path, set()).add(data)
    rows = table({path: address}, checksum=[sha256(data).hexdigest()], size_bytes=[len(data)])
    with world.staging(process, branch, path, data):
        repo.branch(branch).stage(rows)


@operation("output", 2, 2)
def output(world: World, process: Process) -> None:
    branch = world.branch(process.repo)
    prefix = f"own/{world.steps}-out/"
    value = world.value(f"{prefix}part")
    with world.staging(process, branch, f"{prefix}part", value), process.repo.branch(branch).output(prefix) as url:
        Path(url.removeprefix("file://"), "part").write_bytes(value)


@operation("delete")
def delete(world: World, process: Process) -> None:
    branch = world.branch(process.repo)
    path = world.own(process, branch)
    if path is not None:
        world.tainted.add(path)
        process.repo.branch(branch).delete(path)


@operation("put if absent", 2, 1)
def put_if_absent(world: World, process: Process) -> None:
    branch = world.branch(process.repo)
    path = f"own/{world.steps}-absent"
    value = world.value(path)
    with world.staging(process, branch, path, value):
        process.repo.branch(branch).put(path, value, if_absent=True)


@operation("copy", 2, 2)
def copy(world: World, process: Process) -> None:
    """Give an object of some ref another path, or the objects of a folder."""
    source, branch = world.branch(process.repo), world.branch(process.repo)
    _relink(world, process, source, branch, moves=False)


@operation("move", 3, 2)
def move(world: World, process: Process) -> None:
    """Move an object or a folder. What is put to the old path beside it is not lost, and nothing else is."""
    branch = world.branch(process.repo)
    _relink(world, process, branch, branch, moves=True)


def _relink(world: World, process: Process, source: str, branch: str, *, moves: bool) -> None:
    old = world.own(process, source)
    if old is None:
        return
    folder, _, name = old.rpartition("/")
    recursive = folder != "own"
    path = f"own/{world.steps}-{'moved' if moves else 'copy'}" + (f"/{name}" if recursive else "")
    values = set(world.written[old])
    world.written.setdefault(path, set()).update(values)
    world.imported.update({path} if old in world.imported else ())
    taken = (folder, path.rpartition("/")[0]) if recursive else (old, path)
    with world.staging(process, branch, path, next(iter(values)) if len(values) == 1 else None):
        if moves:
            world.tainted.update(
                one for one in world.written if one == old or (recursive and one.startswith(folder + "/"))
            )
            process.repo.branch(branch).rename(*taken, recursive=recursive)
        else:
            process.repo.branch(branch).copy(*taken, ref=source, recursive=recursive)


@operation("append", 2, 2)
def append(world: World, process: Process) -> None:
    """A task appends files of random names. When it dies, it is run again, and its rows are there once."""
    branch = world.branch(process.repo)
    folder = f"own/{world.steps}-appended/"
    known, written = process.known.get(branch), dict[str, bytes]()
    nested = 0

    def act(repo: Repository) -> None:
        nonlocal nested
        path = f"{folder}{world.random.getrandbits(32):x}"
        written.clear()
        written[path] = world.value(path)
        nested = world.counts["nested"]
        world.flying.append((branch, path))
        with repo.branch(branch).output(folder, "append", idempotency_key=folder) as url:
            Path(url.removeprefix("file://"), path.removeprefix(folder)).write_bytes(written[path])

    world.once(process, act)
    if process.known.get(branch) is known and known is not None:
        known.staged.update(written)
        shown = [] if process.dead else [item.path for item in process.repo.ref(branch).list(folder)]
        if nested == world.counts["nested"] and len(shown) > 1:
            raise world.failure(f"{branch} shows {shown}, which are tries of one task")


@operation("describe", 2, 2)
def describe(world: World, process: Process) -> None:
    """New metadata of a path that others write at the same time: their contents stay."""
    with suppress(errors.ObjectNotFound):
        process.repo.branch("main").update_metadata(world.random.choice(SHARED), {f"k{world.steps % 3}": "v"})


@operation("delete folder")
def delete_folder(world: World, process: Process) -> None:
    branch = world.branch(process.repo)
    path = world.own(process, branch)
    if path is not None and path.count("/") > 1:
        folder = as_folder(path.rpartition("/")[0])
        world.tainted.update(one for one in world.written if one.startswith(folder))
        process.repo.branch(branch).delete_prefix(folder)


@operation("reset", 1, 3)
def reset(world: World, process: Process) -> None:
    branch = world.branch(process.repo)
    world.forget_staged(process, branch)
    try:
        process.repo.branch(branch).reset()
    finally:
        world.forget_staged(process, branch)


# --- commits ---
@operation("commit", 6, 6)
def commit(world: World, process: Process) -> None:
    branch, message = world.branch(process.repo), world.message("commit")
    known = process.known.get(branch)
    before = dict(known.staged) if known else {}
    world.once(process, lambda repo: repo.branch(branch).commit(message, idempotency_key=message).id)
    if known is not None and process.known.get(branch) is known:
        known.committed.update(before)
        for path in before:
            known.staged.pop(path, None)


@operation("merge", 5, 4)
def merge(world: World, process: Process) -> None:
    source, destination = world.branch(process.repo), world.branch(process.repo)
    if source == destination:
        return
    strategy = world.random.choice([None, "source-wins", "dest-wins"])
    if destination == "main":  # shared paths are main's: a branch with an older state of them brings none of them back
        strategy = "dest-wins"
    given: dict[str, Any] = {"strategy": strategy, "message": (message := world.message("merge"))}
    with world.bringing(process, source, destination):
        world.once(process, lambda repo: repo.merge(source, destination, **given, idempotency_key=message).reference)


@operation("squash", 3, 2)
def squash(world: World, process: Process) -> None:
    source, destination = world.branch(process.repo), world.branch(process.repo)
    if source == destination or "main" in (source, destination):
        return
    message = world.message("squash")
    with world.bringing(process, source, destination) as made:

        def act(repo: Repository) -> str | None:
            made.append(
                repo.merge(source, destination, squash=True, message=message, idempotency_key=message).reference
            )
            return made[-1]

        world.once(process, act)


@operation("revert")
def revert(world: World, process: Process) -> None:
    branch = world.branch(process.repo)
    target = world.random.choice(list(process.repo.log(branch, first_parent=True))[:4])
    if not target.parents:
        return
    number = world.random.randint(1, len(target.parents))
    world.taint_difference(target, number)
    given: dict[str, Any] = {"parent_number": number, "message": (message := world.message("revert"))}
    world.once(process, lambda repo: repo.branch(branch).revert(target.id, **given, idempotency_key=message).id)


@operation("cherry-pick", 2, 2)
def cherry_pick(world: World, process: Process) -> None:
    source, branch = world.branch(process.repo), world.branch(process.repo)
    if branch == "main":
        return  # it would bring older states of shared paths
    target = world.random.choice(list(process.repo.log(source))[:6])
    if not target.parents:
        return
    number = world.random.randint(1, len(target.parents))
    world.taint_difference(target, number)
    given: dict[str, Any] = {"parent_number": number, "message": (message := world.message("pick"))}
    world.once(process, lambda repo: repo.cherry_pick(target.id, branch, **given, idempotency_key=message).id)


@operation("import", 2, 2)
def import_objects(world: World, process: Process) -> None:
    if world.name == "mirror":
        return  # what lies outside the storage namespace is not replicated
    branch = world.branch(process.repo)
    folder = f"own/{world.steps}-import"
    path = f"{folder}/part"
    value = world.value(path)
    world.imported.add(path)  # its checksum says nothing of its contents
    place = world.home / "outside" / f"{world.steps}"
    place.mkdir(parents=True)
    (place / "part").write_bytes(value)
    known, message = process.known.get(branch), world.message("import")
    given = (place.as_uri(), folder, message)
    world.flying.append((branch, path))
    world.once(process, lambda repo: repo.branch(branch).import_objects(*given, idempotency_key=message).id)
    if process.known.get(branch) is known and known is not None:
        known.committed[path] = value


@operation("local", 3, 2)
def local(world: World, process: Process) -> None:
    """Somebody works in a directory: clones it or pulls, writes a file, commits."""
    branch = world.branch(process.repo)
    place = world.home / f"clone-{branch}"
    place.mkdir(exist_ok=True)
    known = process.known.get(branch)
    if (place / ".lakeops-local" / "index.json").exists():
        process.lake.local(place).pull(force=True)
    else:
        process.repo.ref(branch).clone(place)
    path = f"own/{world.steps}-local"
    value = world.value(path)
    (place / "own").mkdir(exist_ok=True)
    (place / path).write_bytes(value)
    process.lake.local(place).commit(world.message("local"))
    if process.known.get(branch) is known and known is not None:
        known.committed[path] = value


# --- refs ---
@operation("create branch")
def create_branch(world: World, process: Process) -> None:
    name, source = world.random.choice(BRANCHES), world.branch(process.repo)
    ours = process.known.get(source)
    before = dict(ours.committed) if ours else {}
    known = process.known.setdefault(name, Known())
    process.repo.create_branch(name, source=source)
    if process.known.get(name) is known:
        known.committed.update(before)


@operation("delete branch")
def delete_branch(world: World, process: Process) -> None:
    name = world.branch(process.repo)
    if name != "main":
        with world.forgetting(process, name):
            process.repo.delete_branch(name)


@operation("move branch", 2, 2)
def move_branch(world: World, process: Process) -> None:
    name = world.branch(process.repo)
    if name == "main":
        return
    target = world.random.choice(list(process.repo.log(world.branch(process.repo)))[:6])
    key = f"move {world.steps}"
    with world.forgetting(process, name):
        world.once(process, lambda repo: repo.branch(name).move(target.id, force=True, idempotency_key=key).commit_id)


@operation("tag")
def tag(world: World, process: Process) -> None:
    repo = process.repo
    name = f"v{world.random.randrange(3)}"
    if name in {ref.id for ref in repo.tags()}:
        repo.delete_tag(name)
    else:
        repo.create_tag(name, world.branch(repo))


@operation("move tag", 2, 2)
def move_tag(world: World, process: Process) -> None:
    names = [ref.id for ref in process.repo.tags()]
    if names:
        name, target, key = world.random.choice(names), world.branch(process.repo), f"tag {world.steps}"
        world.once(process, lambda repo: repo.move_tag(name, target, idempotency_key=key).commit_id)


@operation("expire refs")
def expire_refs(world: World, process: Process) -> None:
    days = world.random.choice([1, 3, 9])
    rules = {
        "default_retention_days": 1,
        "branches": [{"branch_id": "*", "expire_after_days": days}],
        "tags": [{"tag_id": "*", "expire_after_days": days}],
    }
    process.repo.gc.set_rules(rules)
    gone = [name for name in process.known if name != "main"]
    try:
        gone = [found.id for found in process.repo.gc.expire_refs() if found.kept is None and found.type == "branch"]
    finally:
        for name in gone:
            process.known.pop(name, None)


# --- garbage collection, and what looks at everything ---
@operation("rules")
def rules(world: World, process: Process) -> None:
    days = world.random.choice([0, 1, 2, 30])
    process.repo.gc.set_rules({"default_retention_days": days, "branches": [], "log_days": 30})


@operation("sweep", 1, 3)
def sweep(world: World, process: Process) -> None:
    marks = process.repo.gc.marks()
    if marks:
        process.repo.gc.sweep(world.random.choice(marks[:2]).id, force=True)


@operation("restore", 1, 2)
def restore(world: World, process: Process) -> None:
    marks = process.repo.gc.marks()
    if marks:
        process.repo.gc.restore(world.random.choice(marks[:2]).id)


@operation("look")
def look(world: World, process: Process) -> None:
    """Read a branch in whole; what it shows may move meanwhile, so it is pinned to a commit."""
    repo = process.repo
    world.read(repo, repo.branch(world.branch(repo)).commit_id)


@operation("blame")
def blame(world: World, process: Process) -> None:
    repo = process.repo
    branch = world.branch(repo)
    path = world.own(process, branch)
    if path is not None:
        repo.ref(branch).blame(path)
    log = list(repo.log(branch, first_parent=True))
    if len(log) > 2:
        repo.start_bisect(log[0].id, log[-1].id)
        repo.mark_bisect("good")
        repo.end_bisect()


operation("mark", 1, 3)(lambda world, process: process.repo.gc.mark())
operation("dry run")(lambda world, process: process.repo.gc.mark(dry_run=True))
operation("prune")(lambda world, process: process.repo.gc.prune())


@operation("collect", 2, 12)
def collect(world: World, process: Process) -> None:
    """Collect garbage. A repository that was restored from a dump is accepted first, once its mirrors allow it."""
    process.repo.refs.accept()
    process.repo.gc.sweep(process.repo.gc.mark().id, force=True)


operation("confirm clock")(lambda world, process: process.repo.gc.confirm_clock())
operation("grace")(
    lambda world, process: process.repo.gc.set_grace(world.random.choice([3600, 6 * 3600, 24 * 3600, 48 * 3600]))
)
operation("fsck")(lambda world, process: list(process.repo.fsck()))
operation("wait", 3, 2)(lambda world, process: world.pass_time())
operation("automatic dumps")(lambda world, process: process.repo.refs.automatic(world.random.random() < 0.7))
operation("dump")(lambda world, process: process.repo.refs.dump(full=world.random.random() < 0.3))


# --- copies, backups and dumps of the catalog ---
def copied(world: World) -> Path:
    """The home of a new copy of production's catalog."""
    home = world.home / f"copy-{sum(1 for _ in world.home.glob('copy-*'))}"
    home.mkdir()
    with (
        closing(sqlite3.connect(world.settings.home / "catalog.db")) as source,
        closing(sqlite3.connect(home / "catalog.db")) as copy,
    ):
        source.backup(copy)
    return home


@operation("copy collects")
def copy_collects(world: World, process: Process) -> None:
    """A copy of the catalog collects: a restore drill beside production, or a catalog that was production once."""
    drill = Process(world, world.random.choice([*world.former, settings_at(copied(world), "drill")]))
    try:
        drill.repo.gc.sweep(drill.repo.gc.mark().id, force=True)
    finally:
        drill.close()
    raise world.failure("a copy of the catalog collected")


@operation("back up")
def back_up(world: World, process: Process) -> None:
    made = Expected(
        {name: Known(dict(known.staged), dict(known.committed)) for name, known in world.known.items()},
        {path: [replace(write) for write in writes] for path, writes in world.shared.items()},
        dict(world.heads),
    )
    world.backup = Backup(copied(world), world.clock.now(), made)


def _is_replaced(world: World) -> bool:
    """Whether a call that is under way replaces production: of two, nobody could say which was the last."""
    return bool({"adopt", "restore dump"} & {*world.running[:-1]})


@operation("adopt", 2, 1)
def adopt(world: World, process: Process) -> None:
    """Production's catalog is lost. Its backup takes its place: a fresh one, or one within the undo window."""
    if {"collect", "sweep"} & {*world.running}:
        return  # what a sweep has asked for already is deleted all the same
    if _is_replaced(world):
        return
    found = world.backup
    if found is None or world.chances.jump or world.clock.now() - found.made > UNDO / 2:
        back_up(world, process)
        found = world.backup
        assert found is not None
    restored = settings_at(found.home, "restored")
    while True:
        heir = Process(world, restored)
        try:
            heir.repo.adopt()
        except Crash:
            world.note("and again")
        else:
            break
        finally:
            heir.close()
    staged = {path for known in world.known.values() for path in known.staged} - world.tainted
    world.former.append(world.settings)
    world.move(restored, found.expected)
    _drop_collected(world, staged)


def _drop_collected(world: World, needed: set[str]) -> None:
    """Reset what was staged at the backup, dropped since, and collected: all but what production had still staged."""
    repo = world.quiet.repository("repo")
    for ref in repo.branches():
        branch = repo.branch(ref.id)
        for change in list(branch.uncommitted()):
            if change.type != "removed" and not _is_readable(branch, change.path):
                if change.path in needed:
                    raise world.failure(f"{change.path} was staged before and after the backup, and is gone")
                branch.reset(path=change.path)
                world.tainted.add(change.path)


def _is_readable(branch: Branch, path: str) -> bool:
    try:
        branch.read(path)
    except (errors.FileMissing, errors.ObjectNotFound):
        return False
    return True


@operation("restore dump")
def restore_dump(world: World, process: Process) -> None:
    """Production's catalog is lost, and so is every copy. A dump that was made a moment ago takes its place."""
    if {"collect", "sweep"} & {*world.running} or world.chances.jump or _is_replaced(world):
        return
    before = {name: (known, dict(known.committed)) for name, known in process.known.items()}
    heads, settings = dict(world.heads), world.settings
    process.repo.refs.dump()
    if world.settings is not settings or process.settings is not settings:
        return  # another one is production by now
    place = process.repo.storage_namespace
    shown = {name: Known({}, seen) for name, (known, seen) in before.items() if process.known.get(name) is known}
    world.tainted.update(path for path in SHARED if world.shared[path])
    fresh = settings_at(world.home / f"restored-{len(world.former)}", "heir")
    with Lake.open(settings=fresh, clock=world.clock) as lake:
        lake.restore_repository("repo", place)
        repo = lake.repository("repo")
        repo.adopt()
    world.former.append(world.settings)
    # What a call that is under way still writes goes to the lost catalog.
    world.move(fresh, Expected(shown, {path: [*writes] for path, writes in world.shared.items()}, heads))
