"""The protocol of garbage collection with marks that are taken back, in its smallest form, for exhaustive search.

``gc_protocol`` has fences and clocks that jump; the product of both would be too large to search.

One or two collections, one writer and a clock, in every interleaving. A file is a name and the moment that its attempt
began; a commit is one range file and one object. ``RULES`` can be taken away one by one: each must be needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

GRACE, DEADLINE, LAST = 2, 1, 4

RULES = (
    "list first",
    "commits expire before roots are read",
    "attempts have a deadline",
    "names are fresh",
    "rest on live commits only",
    "links look into marks",
    "links wait for marks under way",
    "swept marks count for links",
    "mirrors are roots",
    "mirrors report live commits only",
    "restored marks are over",
    "swept marks are not restored",
    "a new mark ends restoring",
    "marks take over pending commits",
    "what lives again does before roots are read",
    "sweeps take over what an older list holds only",
)

Commits = tuple[tuple[str, tuple[str, str, int]], ...]

LIVE = -1
"""Who expired a commit: nobody, or else the number of a run."""

SWEPT = ("sweeping", "swept", "carried")


@dataclass(frozen=True)
class Run:
    """One collection: its next step, its mark's state, what it listed, what it found needed, what the mark holds.

    ``cutoff`` is when it listed; after ``GRACE + 1`` that makes no difference.
    """

    at: str = "start"
    state: str = ""
    cutoff: int = 0
    listed: frozenset[str] = frozenset()
    roots: frozenset[str] = frozenset()
    holds: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()


@dataclass(frozen=True)
class World:
    """Everything at one instant. ``commits``: name to (range, object, who expired it); ``memory`` is the writer's.

    ``keeps`` says that the retention rules keep the old commit.
    """

    now: int
    files: tuple[tuple[str, int], ...]
    commits: Commits
    heads: tuple[tuple[str, str], ...]
    staged: frozenset[str]
    mirror: frozenset[str]
    runs: tuple[Run, ...]
    keeps: bool = False
    at: int = 0
    memory: tuple[Any, ...] = ()


Moves = Iterator[tuple[str, World]]
Writer = Callable[[World, frozenset[str]], Moves]


def needed(world: World) -> set[str]:
    """What the catalog would serve."""
    commits = dict(world.commits)
    kept = {commit for _, commit in world.heads} | world.mirror
    return {name for commit in kept for name in commits[commit][:2]} | world.staged


def lost(world: World) -> set[str]:
    return needed(world) - dict(world.files).keys()


# --- garbage collection ---


def collection(world: World, index: int, rules: frozenset[str]) -> Moves:
    """The next step of one collection."""
    run = world.runs[index]

    def to(at: str, after: World = world, **changes: Any) -> World:
        runs = [replace(one, **changes, at=at) if number == index else one for number, one in enumerate(after.runs)]
        return replace(after, runs=tuple(runs))

    middle = ["list", "begin", "expire", "roots"]
    if "list first" not in rules:
        middle = [*middle[1:], "list"]
    order = dict(zip(["start", *middle], [*middle, "finish"], strict=True))
    if run.at == "start":
        yield "start", to(order["start"])
    elif run.at == "list":
        old = frozenset(name for name, begun in world.files if begun < world.now - GRACE)
        yield "list", to(order["list"], listed=old, cutoff=min(world.now, GRACE + 1))
    elif run.at == "begin":
        runs = [replace(one, state=_ended(one.state, rules)) for one in world.runs]
        yield "begin", to(order["begin"], replace(world, runs=tuple(runs)), state="marking")
    elif run.at == "expire" and run.state == "marking":
        changes = ((name, _decided(world, index, name, rules)) for name, _ in world.commits)
        name, after = next(((name, after) for name, after in changes if after != world), ("nothing", world))
        yield f"decide {name}", to("expire" if after != world else order["expire"], after)
    elif run.at == "roots":
        live = {name for _, (*names, by) in world.commits if by == LIVE for name in names}
        if "commits expire before roots are read" not in rules:
            live = needed(world)
        yield "roots", to(order["roots"], roots=frozenset(live | world.staged))
    elif run.at == "finish" and (run.state == "marking" or _restored(run, rules)):
        holds = run.listed - run.roots
        after = world if "what lives again does before roots are read" in rules else _revived(world, index)
        yield "finish", to("sweep", after, state="marked", holds=holds, left=holds)
    elif run.at == "sweep" and (run.state == "marked" or _restored(run, rules)):
        runs = [
            replace(one, state="carried")
            if one.state == "sweeping"
            and (one.cutoff <= run.cutoff or "sweeps take over what an older list holds only" not in rules)
            else one
            for one in world.runs
        ]
        yield "begin sweep", to("delete", replace(world, runs=tuple(runs)), state="sweeping")
    elif run.at == "delete":  # also when another sweep has taken it over: nobody can stop a request under way
        if not run.left:
            yield "end", to("done", state="swept" if run.state == "sweeping" else run.state)
        for name in run.left:
            files = tuple(item for item in world.files if item[0] != name)
            yield f"delete {name}", to("delete", replace(world, files=files), left=run.left - {name})


def _ended(state: str, rules: frozenset[str]) -> str:
    """What becomes of an earlier mark when another one begins."""
    if state == "restoring" and "a new mark ends restoring" not in rules:
        return state
    return "stale" if state in ("marking", "marked", "restoring") else state


def _restored(run: Run, rules: frozenset[str]) -> bool:
    return run.state in ("restoring", "restored") and "restored marks are over" not in rules


def _kept(world: World, rules: frozenset[str]) -> set[str]:
    kept = {commit for _, commit in world.heads} | ({"E"} if world.keeps else set())
    return kept | world.mirror if "mirrors are roots" in rules else kept


def _pending(world: World, by: int) -> bool:
    return by != LIVE and world.runs[by].state not in SWEPT


def _set(world: World, name: str, by: int) -> World:
    commits = tuple((one, (*names, by if one == name else was)) for one, (*names, was) in world.commits)
    return replace(world, commits=commits)


def _decided(world: World, index: int, name: str, rules: frozenset[str]) -> World:
    """One step: a commit expires, is taken over from an earlier mark, or lives again."""
    by = dict(world.commits)[name][2]
    if "commits expire before roots are read" not in rules or not (by == LIVE or _pending(world, by)):
        return world
    if name in _kept(world, rules):
        late = "what lives again does before roots are read" not in rules
        return world if late else _set(world, name, LIVE)
    if by != LIVE and "marks take over pending commits" not in rules:
        return world
    return _set(world, name, index)


def _revived(world: World, index: int) -> World:
    """Too late: what the rules keep lives again when the mark's list is written."""
    del index
    kept = _kept(world, frozenset(RULES))
    for name, (*_, by) in world.commits:
        if name in kept and _pending(world, by):
            world = _set(world, name, LIVE)
    return world


# --- writers ---


def _too_late(world: World, started: int, rules: frozenset[str]) -> bool:
    return "attempts have a deadline" in rules and world.now - started > DEADLINE


def _dead(world: World, commit: str, rules: frozenset[str]) -> bool:
    return "rest on live commits only" in rules and dict(world.commits)[commit][2] != LIVE


def _put(world: World, name: str, begun: int) -> World:
    """Write a file; one of this name that is there already stays as it is."""
    return world if name in dict(world.files) else replace(world, files=(*world.files, (name, begun)))


def _end(world: World) -> World:
    return replace(world, at=9)


def _publishing(content: str, other: str | None = None, *, drops: str | None = None) -> Writer:
    """A verb that writes a range and publishes it on main; its entries come from staging or another commit."""

    def writer(world: World, rules: frozenset[str]) -> Moves:
        name = "new range" if "names are fresh" in rules else content
        heads = dict(world.heads)
        if world.at == 0:
            if other and _dead(world, other, rules):
                yield "refused", _end(world)
                return
            yield "begin", replace(world, at=1, memory=(world.now, heads["main"]))
            return
        if world.at == 9:
            return
        started, head = world.memory
        if drops in heads:
            yield f"delete branch {drops}", replace(world, heads=tuple(x for x in world.heads if x[0] != drops))
        if world.at == 1:
            yield "write", replace(_put(world, name, started), at=2)
        elif world.at == 2:
            if _too_late(world, started, rules) or heads["main"] != head or (other and _dead(world, other, rules)):
                yield "refused", _end(world)
                return
            entry = dict(world.commits)[other][1] if other else "staged"
            commits = (*world.commits, ("C1", (name, entry, LIVE)))
            moved = tuple((branch, "C1" if branch == "main" else at) for branch, at in world.heads)
            yield "publish", replace(world, at=9, commits=commits, heads=moved, staged=frozenset())

    return writer


def branch_at_an_old_commit(world: World, rules: frozenset[str]) -> Moves:
    if world.at == 0:
        refused = _dead(world, "E", rules)
        yield "branch", _end(world) if refused else replace(world, at=9, heads=(*world.heads, ("old", "E")))


def upload(world: World, rules: frozenset[str]) -> Moves:
    if world.at == 0:
        yield "begin", replace(world, at=1, memory=(world.now,))
    elif world.at == 1:
        yield "write", replace(_put(world, "uploaded", world.memory[0]), at=2)
    elif world.at == 2:
        late = _too_late(world, world.memory[0], rules)
        yield "link", _end(world) if late else replace(world, at=9, staged=world.staged | {"uploaded"})


def link_an_old_object(world: World, rules: frozenset[str]) -> Moves:
    """Look into marks, then link; objects that are gone are not linked."""
    if world.at == 0:
        cleared = []
        for index, run in enumerate(world.runs):
            if run.state in ("marked", "sweeping") and "unused" in run.holds and "links look into marks" in rules:
                yield "refused", _end(world)
                return
            if run.state not in ("", "marking"):
                cleared.append(index)
        gone = "unused" not in dict(world.files)
        yield "look", _end(world) if gone else replace(world, at=1, memory=(world.now, tuple(cleared)))
    elif world.at == 1:
        started, cleared = world.memory
        deadly = ["marked", "sweeping"] + ["swept", "carried"] * ("swept marks count for links" in rules)
        unknown = [
            run.state for index, run in enumerate(world.runs)
            if index not in cleared and run.state in deadly and "links look into marks" in rules
        ]  # fmt: skip
        waiting = any(run.state == "marking" for run in world.runs) and "links wait for marks under way" in rules
        if _too_late(world, started, rules):
            yield "refused", _end(world)
        elif unknown or waiting:
            yield "again", replace(world, at=0, memory=())
        else:
            yield "link", replace(world, at=9, staged=world.staged | {"unused"})


def report(world: World, rules: frozenset[str]) -> Moves:
    """A mirror says that it needs an old commit."""
    if world.at == 0:
        expired = "mirrors report live commits only" in rules and dict(world.commits)["E"][2] != LIVE
        yield "report", _end(world) if expired else replace(world, at=9, mirror=frozenset({"E"}))


def restore(world: World, rules: frozenset[str]) -> Moves:
    """Take the newest mark back, and make a branch at the old commit."""
    if world.at == 0:
        anything_open = any(run.state in ("marking", "marked") for run in world.runs)
        for index, run in enumerate(world.runs):
            over = run.state == "stale" and not anything_open
            if over or run.state in ("marking", "marked") or _swept(run, rules):
                runs = [replace(one, state="restoring") if one is run else one for one in world.runs]
                yield "restore", replace(world, runs=tuple(runs), at=1, memory=(index,))
    elif world.at == 1:
        (index,) = world.memory
        if world.runs[index].state != "restoring":
            yield "another mark began", _end(world)
            return
        for name, (*_, by) in world.commits:
            if by != LIVE and (_pending(world, by) or by == index):
                yield f"live again {name}", _set(world, name, LIVE)
        runs = [replace(one, state="restored") if number == index else one for number, one in enumerate(world.runs)]
        if not any(_pending(world, by) for _, (*_, by) in world.commits):
            yield "restored", replace(world, runs=tuple(runs), at=2, memory=())
    elif world.at == 2:
        refused = _dead(world, "E", rules)
        yield "branch", _end(world) if refused else replace(world, at=9, heads=(*world.heads, ("old", "E")))


def _swept(run: Run, rules: frozenset[str]) -> bool:
    return run.state in ("sweeping", "swept") and "swept marks are not restored" not in rules


def correct_rules(world: World, rules: frozenset[str]) -> Moves:
    """Rules that keep the old commit, set at any time; once it lives again, a branch at it."""
    if world.at == 0:
        yield "set rules", replace(world, at=1, keeps=True)
    elif world.at == 1:
        refused = _dead(world, "E", rules)
        if not refused:
            yield "branch", replace(world, at=9, heads=(*world.heads, ("old", "E")))


SCENARIOS: dict[str, tuple[Writer, int, frozenset[str], bool]] = {
    "commit": (_publishing("range of another attempt"), 1, frozenset({"staged"}), False),
    "commit, contents as an old commit's": (_publishing("old range"), 1, frozenset({"staged"}), False),
    "branch at an old commit": (branch_at_an_old_commit, 1, frozenset(), False),
    "revert to an old commit": (_publishing("new range", "E"), 1, frozenset(), False),
    "merge of a branch that is deleted": (_publishing("new range", "E", drops="dev"), 1, frozenset(), True),
    "slow upload": (upload, 1, frozenset(), False),
    "link of an old object": (link_an_old_object, 1, frozenset(), False),
    "mirror's report": (report, 1, frozenset(), False),
    "link of an old object between two collections": (link_an_old_object, 2, frozenset(), False),
    "restore": (restore, 1, frozenset(), False),
    "restore between two collections": (restore, 2, frozenset(), False),
    "rules corrected between two collections": (correct_rules, 2, frozenset(), False),
}
"""The writer, how many collections run, what is staged at first, and whether the old commit is a branch's head."""


def start(name: str) -> World:
    _, runs, staged, dev = SCENARIOS[name]
    files = ("range", "object", "old range", "old object", "staged", "unused")
    commits = (("C0", ("range", "object", LIVE)), ("E", ("old range", "old object", LIVE)))
    heads = (("main", "C0"), *((("dev", "E"),) if dev else ()))
    begun = tuple((file, 0 if file == "unused" else -1) for file in files)  # the last one is not old at first
    return World(GRACE, begun, commits, heads, staged, frozenset(), (Run(),) * runs)


def violation(name: str, rules: frozenset[str] = frozenset(RULES)) -> tuple[list[str] | None, int]:
    """The shortest history of a scenario in which something needed is lost, and how many states were looked at."""
    writer = SCENARIOS[name][0]
    first = start(name)
    origin: dict[World, tuple[World, str] | None] = {first: None}
    queue = deque([first])
    while queue:
        world = queue.popleft()
        if lost(world):
            return _history(origin, world), len(origin)
        moves = list(writer(world, rules))
        for index in range(len(world.runs)):
            moves += collection(world, index, rules)
        if world.now < GRACE + LAST:
            moves.append(("time", replace(world, now=world.now + 1)))
        for what, after in moves:
            if after not in origin:
                origin[after] = (world, what)
                queue.append(after)
    return None, len(origin)


def _history(origin: dict[World, tuple[World, str] | None], world: World) -> list[str]:
    steps = []
    while (before := origin[world]) is not None:
        world, what = before
        steps.append(what)
    return steps[::-1]
