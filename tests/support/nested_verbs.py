"""More of what may happen in a nested history: objects that move, commits done again, refs that are moved, dumps."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from support.nested import SHARED, Chosen, Expected, Known, Operations, Process, World

from lakeops import Lake, Repository, Settings
from lakeops.model import errors
from lakeops.model.names import as_folder


def _own(world: World, process: Process, branch: str) -> str | None:
    """A path of somebody's own that a branch shows now."""
    found = [item.path for item in process.repo.ref(branch).list() if item.path not in SHARED]
    return world.random.choice(found) if found else None


def _put_if_absent(world: World, process: Process) -> None:
    branch = world.branch(process.repo)
    path = f"own/{world.steps}-absent"
    value = world.value(path)
    known = process.known.get(branch)
    with world.flight(branch, path):
        process.repo.branch(branch).put(path, value, if_absent=True)
        if process.known.get(branch) is known and known is not None:
            known.staged[path] = value


def _copy(world: World, process: Process) -> None:
    """Give an object of some ref another path, or the objects of a folder."""
    repo, source, branch = process.repo, world.branch(process.repo), world.branch(process.repo)
    old = _own(world, process, source)
    if old is None:
        return
    folder, _, name = old.rpartition("/")
    recursive = folder != "own"
    path = f"own/{world.steps}-copy" + (f"/{name}" if recursive else "")
    values = set(world.written[old])
    world.written.setdefault(path, set()).update(values)
    world.imported.update({path} if old in world.imported else ())
    known = process.known.get(branch)
    with world.flight(branch, path):
        taken = (folder, path.rpartition("/")[0]) if recursive else (old, path)
        repo.branch(branch).copy(*taken, ref=source, recursive=recursive)
        if process.known.get(branch) is known and known is not None and len(values) == 1:
            known.staged[path] = next(iter(values))


def _move(world: World, process: Process) -> None:
    """Move an object or a folder. What is put to the old path beside it is not lost, and nothing else is."""
    branch = world.branch(process.repo)
    old = _own(world, process, branch)
    if old is None:
        return
    folder, _, name = old.rpartition("/")
    recursive = folder != "own"
    path = f"own/{world.steps}-moved" + (f"/{name}" if recursive else "")
    values = set(world.written[old])
    world.written.setdefault(path, set()).update(values)
    world.imported.update({path} if old in world.imported else ())
    world.tainted.update(one for one in world.written if one == old or (recursive and one.startswith(folder + "/")))
    known = process.known.get(branch)
    with world.flight(branch, path):
        taken = (folder, path.rpartition("/")[0]) if recursive else (old, path)
        process.repo.branch(branch).rename(*taken, recursive=recursive)
        if process.known.get(branch) is known and known is not None and len(values) == 1:
            known.staged[path] = next(iter(values))


def _append(world: World, process: Process) -> None:
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

    _once(world, process, act)
    if process.known.get(branch) is known and known is not None:
        known.staged.update(written)
        shown = [] if process.dead else [item.path for item in process.repo.ref(branch).list(folder)]
        if nested == world.counts["nested"] and len(shown) > 1:
            raise world.failure(f"{branch} shows {shown}, which are tries of one task")


def _describe(world: World, process: Process) -> None:
    """New metadata of a path that others write at the same time: their contents stay."""
    with suppress(errors.ObjectNotFound):
        process.repo.branch("main").update_metadata(world.random.choice(SHARED), {f"k{world.steps % 3}": "v"})


def _delete_folder(world: World, process: Process) -> None:
    branch = world.branch(process.repo)
    path = _own(world, process, branch)
    if path is not None and path.count("/") > 1:
        folder = as_folder(path.rpartition("/")[0])
        world.tainted.update(one for one in world.written if one.startswith(folder))
        process.repo.branch(branch).delete_prefix(folder)


def _once(world: World, process: Process, act: object) -> None:
    from support.nested_operations import _once as once

    once(world, process, act)  # type: ignore[arg-type]


def _squash(world: World, process: Process) -> None:
    repo = process.repo
    source, destination = world.branch(repo), world.branch(repo)
    if source == destination or "main" in (source, destination):
        return
    known, ours = process.known.get(destination), process.known.get(source)
    before = dict(ours.committed) if ours else {}
    message = f"squash {world.steps}"
    world.messages.add(message)
    brought: list[str | None] = []

    def act(repo):
        found = repo.merge(source, destination, squash=True, message=message, idempotency_key=message)
        brought.append(found.reference)
        return found.reference

    _once(world, process, act)
    same = process.known.get(destination) is known and process.known.get(source) is ours
    if known is not None and same and brought[-1] is not None:
        known.committed.update(before)


def _cherry_pick(world: World, process: Process) -> None:
    repo = process.repo
    source, branch = world.branch(repo), world.branch(repo)
    if branch == "main":
        return  # it would bring older states of shared paths
    target = world.random.choice(list(repo.log(source))[:6])
    if not target.parents:
        return
    number = world.random.randint(1, len(target.parents))
    with suppress(errors.CommitExpired):
        parent = target.parents[number - 1]
        world.tainted.update(change.path for change in world.quiet.repository("repo").diff(parent, target.id))
    message = f"pick {world.steps}"
    world.messages.add(message)
    _once(
        world,
        process,
        lambda repo: repo.cherry_pick(target.id, branch, number, message=message, idempotency_key=message).id,
    )


def _move_branch(world: World, process: Process) -> None:
    repo = process.repo
    name = world.branch(repo)
    if name == "main":
        return
    target = world.random.choice(list(repo.log(world.branch(repo)))[:6])
    process.known.pop(name, None)
    key = f"move {world.steps}"
    try:
        _once(
            world,
            process,
            lambda repo: repo.branch(name).move(target.id, force=True, idempotency_key=key).commit_id,
        )
    finally:
        process.known.pop(name, None)


def _move_tag(world: World, process: Process) -> None:
    repo = process.repo
    names = [ref.id for ref in repo.tags()]
    if names:
        name, target, key = world.random.choice(names), world.branch(repo), f"tag {world.steps}"
        _once(world, process, lambda repo: repo.move_tag(name, target, idempotency_key=key).commit_id)


def _import(world: World, process: Process) -> None:
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
    known, message = process.known.get(branch), f"import {world.steps}"
    world.messages.add(message)
    with world.flight(branch, path):
        _once(
            world,
            process,
            lambda repo: (
                repo.branch(branch).import_objects(place.as_uri(), folder, message, idempotency_key=message).id
            ),
        )
        if process.known.get(branch) is known and known is not None:
            known.committed[path] = value


def _local(world: World, process: Process) -> None:
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
    message = f"local {world.steps}"
    world.messages.add(message)
    process.lake.local(place).commit(message)
    if process.known.get(branch) is known and known is not None:
        known.committed[path] = value


def _expire_refs(world: World, process: Process) -> None:
    days = world.random.choice([1, 3, 9])
    rules = {
        "default_retention_days": 1,
        "branches": [{"branch_id": "*", "expire_after_days": days}],
        "tags": [{"tag_id": "*", "expire_after_days": days}],
    }
    process.repo.gc.set_rules(rules)
    before = {name: process.known.get(name) for name in process.known if name != "main"}
    try:
        gone = [found.id for found in process.repo.gc.expire_refs() if found.kept is None and found.type == "branch"]
    except BaseException:
        gone = list(before)
        raise
    finally:
        for name in gone:
            process.known.pop(name, None)


def _automatic(world: World, process: Process) -> None:
    process.repo.refs.automatic(world.random.random() < 0.7)


def _dump(world: World, process: Process) -> None:
    process.repo.refs.dump(full=world.random.random() < 0.3)


def _restore_dump(world: World, process: Process) -> None:
    """Production's catalog is lost, and so is every copy. A dump that was made a moment ago takes its place."""
    if {"collect", "sweep"} & {*world.running} or world.chances.jump:
        return
    before = {name: (known, dict(known.committed)) for name, known in process.known.items()}
    heads, settings = dict(world.heads), world.settings
    process.repo.refs.dump()
    if world.settings is not settings or process.settings is not settings:
        return  # another one is production by now
    place = process.repo.storage_namespace
    shown = {name: Known({}, seen) for name, (known, seen) in before.items() if process.known.get(name) is known}
    for path in SHARED:
        if world.shared[path]:
            world.tainted.add(path)
    fresh = Settings.load(
        home=world.home / f"restored-{len(world.former)}", fsync=False, committer="heir", engine="local"
    )
    with Lake.open(settings=fresh, clock=world.clock) as lake:
        lake.restore_repository("repo", place)
        repo = lake.repository("repo")
        repo.adopt()
        repo.refs.accept()
    world.former.append(world.settings)
    world.move(fresh, Expected(shown, world.shared, heads))


def _blame(world: World, process: Process) -> None:
    repo = process.repo
    branch = world.branch(repo)
    path = _own(world, process, branch)
    if path is not None:
        repo.ref(branch).blame(path)
    log = list(repo.log(branch, first_parent=True))
    if len(log) > 2:
        repo.start_bisect(log[0].id, log[-1].id)
        repo.mark_bisect("good")
        repo.end_bisect()


VERBS: Operations = {
    "put if absent": Chosen(_put_if_absent, 2, 1),
    "copy": Chosen(_copy, 2, 2),
    "move": Chosen(_move, 3, 2),
    "append": Chosen(_append, 2, 2),
    "describe": Chosen(_describe, 2, 2),
    "delete folder": Chosen(_delete_folder),
    "squash": Chosen(_squash, 3, 2),
    "cherry-pick": Chosen(_cherry_pick, 2, 2),
    "move branch": Chosen(_move_branch, 2, 2),
    "move tag": Chosen(_move_tag, 2, 2),
    "import": Chosen(_import, 2, 2),
    "local": Chosen(_local, 3, 2),
    "expire refs": Chosen(_expire_refs, 1, 1),
    "automatic dumps": Chosen(_automatic),
    "dump": Chosen(_dump, 1, 1),
    "restore dump": Chosen(_restore_dump, 1, 1),
    "blame": Chosen(_blame, 1, 1),
}
