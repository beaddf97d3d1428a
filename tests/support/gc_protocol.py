"""The protocol of garbage collection in its smallest form, for exhaustive search.

One or two collections, one writer and a clock, in every interleaving. A file is a name and the moment that its attempt
began; a commit is one range file and one object. ``RULES`` can be taken away one by one: each must be needed.

Nothing rests on time. Every collection may go by a grace period of its own, and the clock may jump ahead and back
between any two steps. What the product adds to that (one grace period a repository, a deadline for attempts, a clock
that is asked whether it can be believed) keeps slow writers from being refused; it keeps nothing from being lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

GRACES, LAST, JUMP = (0, 2), 1, 3
"""What collections may take for the grace period; until when time passes; how far the clock jumps, once each way.

Two collections take the first, and the clock goes back once at most: there would be too many states,
so the files that only others care for are left out too.
"""

RULES = (
    "list first",
    "expire in one transaction",
    "marks are fences",
    "fences never go back",
    "names are fresh",
    "rest on live commits only",
    "links look into marks",
    "links see the object after that",
    "links wait for marks under way",
    "swept marks count for links",
    "marks that are given up fail",
    "mirrors are roots",
    "mirrors report live commits only",
)

Commits = tuple[tuple[str, tuple[str, str, bool]], ...]


@dataclass(frozen=True)
class Run:
    """One collection: its next step, its mark's state, its cutoff, what it listed, found needed, and holds."""

    at: str = "start"
    state: str = ""
    grace: int = 0
    cutoff: int = -9
    listed: frozenset[str] = frozenset()
    roots: frozenset[str] = frozenset()
    holds: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()


@dataclass(frozen=True)
class World:
    """Everything at one instant. ``commits``: name to (range, object, live); ``memory`` is the writer's.

    ``jumps`` are what the clock has still before it, in this order.
    """

    now: int
    files: tuple[tuple[str, int], ...]
    commits: Commits
    heads: tuple[tuple[str, str], ...]
    staged: frozenset[str]
    mirror: frozenset[str]
    runs: tuple[Run, ...]
    at: int = 0
    memory: tuple[Any, ...] = ()
    fence: int = -9
    jumps: tuple[int, ...] = ()


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

    middle = ["list", "begin", "roots"] if "list first" in rules else ["begin", "roots", "list"]
    order = dict(zip(["start", *middle], [*middle, "finish"], strict=True))
    if run.at == "start":
        for grace in GRACES[: 1 if len(world.runs) > 1 else None]:
            yield f"start, grace {grace}", to(order["start"], grace=grace, cutoff=world.now - grace)
    elif run.at == "list":
        cutoff = run.cutoff if "list first" in rules else world.now - run.grace
        old = frozenset(name for name, begun in world.files if begun < cutoff)
        yield "list", to(order["list"], listed=old)
    elif run.at == "begin":
        after = _expired(world, rules)
        runs = [replace(one, state="stale") if one.state in ("marking", "marked") else one for one in after.runs]
        fence = max(world.fence, run.cutoff) if "fences never go back" in rules else run.cutoff
        yield "begin", to(order["begin"], replace(after, runs=tuple(runs), fence=fence), state="marking")
    elif run.at == "roots":
        live = {name for _, (*names, alive) in world.commits if alive for name in names}
        if "expire in one transaction" not in rules:
            live = needed(world)
        yield "roots", to(order["roots"], roots=frozenset(live | world.staged))
    elif run.at == "finish" and run.state == "marking":
        holds = run.listed - run.roots
        yield "finish", to("sweep", state="marked", holds=holds, left=holds)
    elif run.at == "sweep" and run.state == "marked":
        yield "begin sweep", to("delete", state="sweeping")
    elif run.at == "delete":
        if not run.left:
            yield "end", to("done", state="swept")
        for name in run.left:
            files = tuple(item for item in world.files if item[0] != name)
            yield f"delete {name}", to("delete", replace(world, files=files), left=run.left - {name})


def _expired(world: World, rules: frozenset[str]) -> World:
    kept = {commit for _, commit in world.heads}
    if "mirrors are roots" in rules:
        kept |= world.mirror
    if "expire in one transaction" not in rules:
        return world
    commits = tuple((name, (*files, alive and name in kept)) for name, (*files, alive) in world.commits)
    return replace(world, commits=commits)


# --- writers ---


def _too_late(world: World, started: int, rules: frozenset[str]) -> bool:
    return "marks are fences" in rules and started <= world.fence


def _dead(world: World, commit: str, rules: frozenset[str]) -> bool:
    return "rest on live commits only" in rules and not dict(world.commits)[commit][2]


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
            commits = (*world.commits, ("C1", (name, entry, True)))
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
    """Look into marks, then at the object, then link it."""
    first, second = (_look, _see) if "links see the object after that" in rules else (_see, _look)
    if world.at == 0:
        yield from first(replace(world, memory=(world.now,)), rules, 1)
    elif world.at == 1:
        yield from second(world, rules, 2)
    elif world.at == 2:
        started, cleared = world.memory
        deadly = ["marked", "sweeping"] + ["swept"] * ("swept marks count for links" in rules)
        unknown = [
            run.state for index, run in enumerate(world.runs)
            if index not in cleared and run.state in deadly and "links look into marks" in rules
        ]  # fmt: skip
        waiting = any(run.state == "marking" for run in world.runs) and "links wait for marks under way" in rules
        linked = replace(world, at=9, staged=world.staged | {"unused"})
        if _too_late(world, started, rules):
            yield "refused", _end(world)
        elif unknown:
            yield "again", replace(world, at=0, memory=())
        elif waiting:
            yield "again", replace(world, at=0, memory=())
            runs = [replace(run, state="failed") if run.state == "marking" else run for run in world.runs]
            fails = "marks that are given up fail" in rules  # whether it took too long is the clock's word: any time
            yield "give up the mark and link", replace(linked, runs=tuple(runs)) if fails else linked
        else:
            yield "link", linked


def _look(world: World, rules: frozenset[str], at: int) -> Moves:
    cleared = []
    for index, run in enumerate(world.runs):
        if run.state in ("marked", "sweeping") and "unused" in run.holds and "links look into marks" in rules:
            yield "refused", _end(world)
            return
        if run.state not in ("", "marking"):
            cleared.append(index)
    yield "look into marks", replace(world, at=at, memory=(*world.memory, tuple(cleared)))


def _see(world: World, rules: frozenset[str], at: int) -> Moves:
    there = "unused" in dict(world.files)
    yield "look at the object", replace(world, at=at) if there else _end(world)


def report(world: World, rules: frozenset[str]) -> Moves:
    """A mirror says that it needs an old commit."""
    if world.at == 0:
        expired = "mirrors report live commits only" in rules and not dict(world.commits)["E"][2]
        yield "report", _end(world) if expired else replace(world, at=9, mirror=frozenset({"E"}))


SCENARIOS: dict[str, tuple[Writer, int, frozenset[str], bool]] = {
    "commit": (_publishing("range of another attempt"), 1, frozenset({"staged"}), False),
    "commit, contents as an old commit's": (_publishing("old range"), 1, frozenset({"staged"}), False),
    "branch at an old commit": (branch_at_an_old_commit, 1, frozenset(), False),
    "revert to an old commit": (_publishing("new range", "E"), 1, frozenset(), False),
    "merge of a branch that is deleted": (_publishing("new range", "E", drops="dev"), 1, frozenset(), True),
    "slow upload": (upload, 1, frozenset(), False),
    "slow upload, the clock goes back first": (upload, 1, frozenset(), False),
    "slow upload, the clock goes back between two collections": (upload, 2, frozenset(), False),
    "link of an old object": (link_an_old_object, 1, frozenset(), False),
    "mirror's report": (report, 1, frozenset(), False),
    "link of an old object between two collections": (link_an_old_object, 2, frozenset(), False),
}
"""The writer, how many collections run, what is staged at first, and whether the old commit is a branch's head."""


def start(name: str) -> World:
    _, runs, staged, dev = SCENARIOS[name]
    files = ("range", "object", "old range", "old object", "staged", "unused")
    commits = (("C0", ("range", "object", True)), ("E", ("old range", "old object", True)))
    heads = (("main", "C0"), *((("dev", "E"),) if dev else ()))
    jumps = (-JUMP, JUMP) if "goes back first" in name else (JUMP, -JUMP)
    if runs > 1:
        jumps = (-JUMP,) if "goes back" in name else ()
        files, commits = ("range", "object", *(["unused"] if "link" in name else [])), commits[:1]
    world = World(0, tuple((file, -4) for file in files), commits, heads, staged, frozenset(), (Run(),) * runs)
    return replace(world, jumps=jumps)


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
        if world.now < LAST:
            moves.append(("time", replace(world, now=world.now + 1)))
        for jump in world.jumps[:1]:
            moves.append((f"the clock jumps by {jump}", replace(world, now=world.now + jump, jumps=world.jumps[1:])))
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
