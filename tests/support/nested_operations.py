"""What may happen in a nested history, and inside what happens: every verb, with what it acknowledges."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
from support.nested import SHARED, UNDO, Backup, Chosen, Expected, Known, Operations, Process, World, Write

from lakeops import Branch, Repository, Settings
from lakeops.model import errors
from lakeops.store.open import Stores, StoreSettings
from lakeops.testing import Crash

BRANCHES = ("main", "dev", "fix", "daily")


def _put(world: World, process: Process) -> None:
    repo = process.repo
    branch = world.branch(repo)
    path = f"own/{world.steps}-{world.random.getrandbits(16):x}"
    value = world.value(path)
    known = process.known.get(branch)
    with world.flight(branch, path):
        repo.branch(branch).put(path, value)
        if process.known.get(branch) is known and known is not None:
            known.staged[path] = value


def _put_shared(world: World, process: Process) -> None:
    path = world.random.choice(SHARED)
    write = Write(world.value(path), world.steps)
    process.shared[path].append(write)
    process.repo.branch("main").put(path, write.value)
    world.steps += 1
    write.end = world.steps


def _batch(world: World, process: Process) -> None:
    writes = []
    with process.repo.branch("main").batch() as batch:
        for _ in range(world.random.randint(1, 4)):
            path = world.random.choice(SHARED)
            world.steps += 1
            write = Write(world.value(path), world.steps)
            process.shared[path].append(write)
            writes.append(write)
            batch.put(path, write.value)
    world.steps += 1
    for write in writes:
        write.end = world.steps


def _link(world: World, process: Process) -> None:
    """Give an object of some ref, or one that only the store has, another path."""
    repo = process.repo
    branch = world.branch(repo)
    path = f"own/{world.steps}-linked"
    known = process.known.get(branch)
    if world.random.random() < 0.5:
        items = [item for item in repo.ref(world.branch(repo)).list() if item.path not in world.imported]
        if not items:
            return
        item = world.random.choice(items)
        address, checksum, size = item.physical_address, item.checksum, item.size_bytes
        data = next(one for one in world.written[item.path] if sha256(one).hexdigest() == checksum)
    else:
        store = Stores(StoreSettings(fsync=False)).at(repo.storage_namespace)
        keys = [item.key for item in store.list("data/")]
        if not keys:
            return
        address = world.random.choice(keys)
        data = store.get(address)
        checksum, size = sha256(data).hexdigest(), len(data)
    world.written.setdefault(path, set()).add(data)
    with world.flight(branch, path):
        repo.branch(branch).stage(
            pa.table(
                {
                    "path": [path],
                    "physical_address": [address],
                    "checksum": [checksum],
                    "size_bytes": [size],
                    "mtime": [1],
                }
            )
        )
        if process.known.get(branch) is known and known is not None:
            known.staged[path] = data


def _output(world: World, process: Process) -> None:
    repo = process.repo
    branch = world.branch(repo)
    prefix = f"own/{world.steps}-out/"
    path = f"{prefix}part"
    value = world.value(path)
    known = process.known.get(branch)
    with world.flight(branch, path):
        with repo.branch(branch).output(prefix) as url:
            place = Path(url.removeprefix("file://"))
            (place / "part").write_bytes(value)
        if process.known.get(branch) is known and known is not None:
            known.staged[path] = value


def _delete(world: World, process: Process) -> None:
    repo = process.repo
    branch = world.branch(repo)
    own = [item.path for item in repo.ref(branch).list() if item.path not in SHARED]
    if own:
        path = world.random.choice(own)
        world.tainted.add(path)
        repo.branch(branch).delete(path)


def _commit(world: World, process: Process) -> None:
    repo = process.repo
    branch = world.branch(repo)
    known = process.known.get(branch)
    before = dict(known.staged) if known else {}
    message = f"commit {world.steps}"
    world.messages.add(message)
    _once(world, process, lambda repo: repo.branch(branch).commit(message, idempotency_key=message).id)
    if process.known.get(branch) is known:
        process.committed(branch, before)


def _once(world: World, process: Process, act: Callable[[Repository], str | None]) -> None:
    """Do something under a key; when the process dies, another one does it again, as a scheduler would."""
    try:
        act(process.repo)
    except Crash:
        world.note("and again")
        again = Process(world, process.settings)
        try:
            first = act(again.repo)
            if act(again.repo) != first:
                raise world.failure("two calls under one key gave two commits") from None
        finally:
            again.close()


def _merge(world: World, process: Process) -> None:
    repo = process.repo
    source, destination = world.branch(repo), world.branch(repo)
    if source == destination:
        return
    known, ours = process.known.get(destination), process.known.get(source)
    before = dict(ours.committed) if ours else {}
    message = f"merge {world.steps}"
    world.messages.add(message)
    strategy = world.random.choice([None, "source-wins", "dest-wins"])
    if destination == "main" or source == "main":
        # Shared paths are main's: a branch that took an older state of them brings none of them back.
        strategy = "dest-wins" if destination == "main" else strategy
    _once(
        world,
        process,
        lambda repo: (
            repo.merge(source, destination, strategy=strategy, message=message, idempotency_key=message).reference
        ),
    )
    if known is not None and process.known.get(destination) is known and process.known.get(source) is ours:
        known.committed.update(before)


def _revert(world: World, process: Process) -> None:
    repo = process.repo
    branch = world.branch(repo)
    target = world.random.choice(list(repo.log(branch, first_parent=True))[:4])
    if not target.parents:
        return
    number = world.random.randint(1, len(target.parents))
    with suppress(errors.CommitExpired):
        parent = target.parents[number - 1]
        world.tainted.update(change.path for change in world.quiet.repository("repo").diff(parent, target.id))
    message = f"revert {world.steps}"
    world.messages.add(message)
    _once(
        world,
        process,
        lambda repo: (
            repo.branch(branch).revert(target.id, parent_number=number, message=message, idempotency_key=message).id
        ),
    )


def _reset(world: World, process: Process) -> None:
    repo = process.repo
    branch = world.branch(repo)
    world.forget_staged(process, branch)
    try:
        repo.branch(branch).reset()
    finally:
        world.forget_staged(process, branch)


def _create_branch(world: World, process: Process) -> None:
    repo = process.repo
    name, source = world.random.choice(BRANCHES), world.branch(repo)
    ours = process.known.get(source)
    before = dict(ours.committed) if ours else {}
    known = process.known.setdefault(name, Known())
    repo.create_branch(name, source=source)
    if process.known.get(name) is known:
        known.committed.update(before)


def _delete_branch(world: World, process: Process) -> None:
    name = world.branch(process.repo)
    if name != "main":
        process.known.pop(name, None)
        try:
            process.repo.delete_branch(name)
        finally:
            process.known.pop(name, None)


def _tag(world: World, process: Process) -> None:
    repo = process.repo
    name = f"v{world.random.randrange(3)}"
    if name in {ref.id for ref in repo.tags()}:
        repo.delete_tag(name)
    else:
        repo.create_tag(name, world.branch(repo))


def _rules(world: World, process: Process) -> None:
    days = world.random.choice([0, 1, 2, 30])
    process.repo.gc.set_rules({"default_retention_days": days, "branches": [], "log_days": 30})


def _mark(world: World, process: Process) -> None:
    process.repo.gc.mark()


def _sweep(world: World, process: Process) -> None:
    marks = process.repo.gc.marks()
    if marks:
        process.repo.gc.sweep(world.random.choice(marks[:2]).id, force=True)


def _collect(world: World, process: Process) -> None:
    process.repo.gc.sweep(process.repo.gc.mark().id, force=True)


def _restore(world: World, process: Process) -> None:
    marks = process.repo.gc.marks()
    if marks:
        process.repo.gc.restore(world.random.choice(marks[:2]).id)


def _dry_run(world: World, process: Process) -> None:
    process.repo.gc.mark(dry_run=True)


def _prune(world: World, process: Process) -> None:
    process.repo.gc.prune()


def _look(world: World, process: Process) -> None:
    """Read a branch in whole; what it shows may move meanwhile, so it is pinned to a commit."""
    repo = process.repo
    world.read(repo, repo.branch(world.branch(repo)).commit_id)


def _fsck(world: World, process: Process) -> None:
    list(process.repo.fsck())


def _wait(world: World, process: Process) -> None:
    world.pass_time()


def _confirm_clock(world: World, process: Process) -> None:
    """Somebody says that the clock is right, whatever it shows."""
    process.repo.gc.confirm_clock()


def _grace(world: World, process: Process) -> None:
    process.repo.gc.set_grace(world.random.choice([3600, 6 * 3600, 24 * 3600, 48 * 3600]))


def _copied(world: World) -> Path:
    """The home of a new copy of production's catalog."""
    home = world.home / f"copy-{sum(1 for _ in world.home.glob('copy-*'))}"
    home.mkdir()
    with (
        closing(sqlite3.connect(world.settings.home / "catalog.db")) as source,
        closing(sqlite3.connect(home / "catalog.db")) as copy,
    ):
        source.backup(copy)
    return home


def _at(home: Path, committer: str) -> Settings:
    return Settings.load(home=home, fsync=False, committer=committer, engine="local")


def _copy_collects(world: World, process: Process) -> None:
    """A copy of the catalog collects: a restore drill beside production, or a catalog that was production once."""
    copied = Process(world, world.random.choice([*world.former, _at(_copied(world), "drill")]))
    try:
        copied.repo.gc.sweep(copied.repo.gc.mark().id, force=True)
    finally:
        copied.close()
    raise world.failure("a copy of the catalog collected")


def _back_up(world: World, process: Process) -> None:
    made = Expected(
        {name: Known(dict(known.staged), dict(known.committed)) for name, known in world.known.items()},
        {path: [replace(write) for write in writes] for path, writes in world.shared.items()},
        dict(world.heads),
    )
    world.backup = Backup(_copied(world), world.clock.now(), made)


def _adopt(world: World, process: Process) -> None:
    """Production's catalog is lost. Its backup takes its place: a fresh one, or one within the undo window."""
    if {"collect", "sweep"} & {*world.running}:
        return  # what a sweep has asked for already is deleted all the same
    found = world.backup
    if found is None or world.chances.jump or world.clock.now() - found.made > UNDO / 2:
        _back_up(world, process)
        found = world.backup
        assert found is not None
    restored = _at(found.home, "restored")
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
    except errors.ObjectNotFound:
        return False
    return True


OPERATIONS: Operations = {
    "put": Chosen(_put, 6, 4),
    "put shared": Chosen(_put_shared, 3, 3),
    "batch": Chosen(_batch, 2, 2),
    "link": Chosen(_link, 3, 3),
    "output": Chosen(_output, 2, 2),
    "delete": Chosen(_delete),
    "commit": Chosen(_commit, 6, 6),
    "merge": Chosen(_merge, 5, 4),
    "revert": Chosen(_revert),
    "reset": Chosen(_reset, 1, 3),
    "create branch": Chosen(_create_branch),
    "delete branch": Chosen(_delete_branch),
    "tag": Chosen(_tag),
    "rules": Chosen(_rules),
    "mark": Chosen(_mark, 1, 3),
    "sweep": Chosen(_sweep, 1, 3),
    "restore": Chosen(_restore, 1, 2),
    "dry run": Chosen(_dry_run),
    "prune": Chosen(_prune),
    "collect": Chosen(_collect, 2, 12),
    "confirm clock": Chosen(_confirm_clock),
    "grace": Chosen(_grace),
    "copy collects": Chosen(_copy_collects),
    "back up": Chosen(_back_up),
    "adopt": Chosen(_adopt, 2, 1),
    "look": Chosen(_look),
    "fsck": Chosen(_fsck),
    "wait": Chosen(_wait, 3, 2),
}
