"""The protocol of garbage collection in its smallest form, for exhaustive search.

One or two collections, one writer and a clock, in every interleaving. A file is a name and the moment that its attempt
began; a commit is one range file and one object. ``RULES`` can be taken away one by one: each must be needed.

Nothing rests on time. Every collection may go by a grace period of its own, and the clock may jump ahead and back
between any two steps. What the product adds to that (one grace period a repository, a deadline for attempts, a clock
that is asked whether it can be believed) keeps slow writers from being refused; it keeps nothing from being lost.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

JUMP = 3
"""How far the clock jumps."""

RULES = {
    "list first": "commit",
    "commits expire before roots are read": "branch at an old commit",
    "marks are fences": "commit",
    "fences never go back": "slow upload, the clock goes back between two collections",
    "names are fresh": "commit, contents as an old commit's",
    "rest on live commits only": "branch at an old commit",
    "links look into marks": "link of an old object",
    "links see the object after that": "link of an old object",
    "links wait for marks under way": "link of an old object",
    "swept marks count for links": "link of an old object",
    "marks that are given up fail": "link of an old object",
    "mirrors are roots": "mirror's report",
    "mirrors report live commits only": "mirror's report",
    "restored marks are over": "restore",
    "swept marks are not restored": "restore",
    "a new mark ends restoring": "restore between two collections",
    "marks take over pending commits": "restore between two collections",
    "what lives again does before roots are read": "rules corrected between two collections",
    "sweeps take over what an older list holds only": "link of an old object between two collections",
}
"""Each rule, and a scenario in which something needed is lost without it."""

Commits = tuple[tuple[str, tuple[str, str, int]], ...]

LIVE = -1
"""Who expired a commit: nobody, or else the number of a run."""

SWEPT = ("sweeping", "swept", "carried")


class Run(NamedTuple):
    """One collection: its next step, its mark's state, its cutoff, what it listed, found needed, and holds."""

    at: str = "start"
    state: str = ""
    grace: int = 0
    cutoff: int = -9
    listed: frozenset[str] = frozenset()
    roots: frozenset[str] = frozenset()
    holds: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()


class World(NamedTuple):
    """Everything at one instant. ``commits``: name to (range, object, who expired it); ``memory`` is the writer's.

    ``keeps`` says that the retention rules keep the old commit. ``jumps`` are what the clock has still before it, in
    this order.
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
    fence: int = -9
    jumps: tuple[int, ...] = ()


Moves = Iterator[tuple[str, World]]
Writer = Callable[[World, frozenset[str]], Moves]


def needed(world: World) -> set[str]:
    """The table that the catalog would serve."""
    commits = dict(world.commits)
    kept = {commit for _, commit in world.heads} | world.mirror
    return {name for commit in kept for name in commits[commit][:2]} | world.staged


def lost(world: World) -> set[str]:
    return needed(world) - dict(world.files).keys()


# --- garbage collection ---


LIST_FIRST = {"start": "list", "list": "begin", "begin": "expire", "expire": "roots", "roots": "finish"}
LIST_LAST = {"start": "begin", "begin": "expire", "expire": "roots", "roots": "list", "list": "finish"}
"""What follows each step."""


def collection(world: World, index: int, rules: frozenset[str], graces: tuple[int, ...]) -> Moves:
    """The next step of one collection."""
    run = world.runs[index]

    def to(at: str, after: World = world, **changes: Any) -> World:
        runs = [one._replace(**changes, at=at) if number == index else one for number, one in enumerate(after.runs)]
        return after._replace(runs=tuple(runs))

    order = LIST_FIRST if "list first" in rules else LIST_LAST
    if run.at == "start":
        for grace in graces:
            yield f"start, grace {grace}", to(order["start"], grace=grace, cutoff=world.now - grace)
    elif run.at == "list":
        cutoff = run.cutoff if "list first" in rules else world.now - run.grace
        old = frozenset(name for name, begun in world.files if begun < cutoff)
        yield "list", to(order["list"], listed=old)
    elif run.at == "begin":
        runs = [one._replace(state=_ended(one.state, rules)) for one in world.runs]
        fence = max(world.fence, run.cutoff) if "fences never go back" in rules else run.cutoff
        yield "begin", to(order["begin"], world._replace(runs=tuple(runs), fence=fence), state="marking")
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
            one._replace(state="carried")
            if one.state == "sweeping"
            and (one.cutoff <= run.cutoff or "sweeps take over what an older list holds only" not in rules)
            else one
            for one in world.runs
        ]
        yield "begin sweep", to("delete", world._replace(runs=tuple(runs)), state="sweeping")
    elif run.at == "delete":  # also when another sweep has taken it over: nobody can stop a request under way
        if not run.left:
            yield "end", to("done", state="swept" if run.state == "sweeping" else run.state)
        for name in run.left:
            files = tuple(item for item in world.files if item[0] != name)
            yield f"delete {name}", to("delete", world._replace(files=files), left=run.left - {name})


def _ended(state: str, rules: frozenset[str]) -> str:
    """The fate of an earlier mark when another one begins."""
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
    return world._replace(commits=commits)


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
    return "marks are fences" in rules and started <= world.fence


def _dead(world: World, commit: str, rules: frozenset[str]) -> bool:
    return "rest on live commits only" in rules and dict(world.commits)[commit][2] != LIVE


def _put(world: World, name: str, begun: int) -> World:
    """Write a file; one of this name that is there already stays as it is."""
    return world if name in dict(world.files) else world._replace(files=(*world.files, (name, begun)))


def _end(world: World) -> World:
    return world._replace(at=9)


def _publishing(content: str, other: str | None = None, *, drops: str | None = None) -> Writer:
    """A verb that writes a range and publishes it on main; its entries come from staging or another commit."""

    def writer(world: World, rules: frozenset[str]) -> Moves:
        name = "new range" if "names are fresh" in rules else content
        heads = dict(world.heads)
        if world.at == 0:
            if other and _dead(world, other, rules):
                yield "refused", _end(world)
                return
            yield "begin", world._replace(at=1, memory=(world.now, heads["main"]))
            return
        if world.at == 9:
            return
        started, head = world.memory
        if drops in heads:
            yield f"delete branch {drops}", world._replace(heads=tuple(x for x in world.heads if x[0] != drops))
        if world.at == 1:
            yield "write", _put(world, name, started)._replace(at=2)
        elif world.at == 2:
            if _too_late(world, started, rules) or heads["main"] != head or (other and _dead(world, other, rules)):
                yield "refused", _end(world)
                return
            entry = dict(world.commits)[other][1] if other else "staged"
            commits = (*world.commits, ("C1", (name, entry, LIVE)))
            moved = tuple((branch, "C1" if branch == "main" else at) for branch, at in world.heads)
            yield "publish", world._replace(at=9, commits=commits, heads=moved, staged=frozenset())

    return writer


def branch_at_an_old_commit(world: World, rules: frozenset[str]) -> Moves:
    if world.at == 0:
        refused = _dead(world, "E", rules)
        yield "branch", _end(world) if refused else world._replace(at=9, heads=(*world.heads, ("old", "E")))


def upload(world: World, rules: frozenset[str]) -> Moves:
    if world.at == 0:
        yield "begin", world._replace(at=1, memory=(world.now,))
    elif world.at == 1:
        yield "write", _put(world, "uploaded", world.memory[0])._replace(at=2)
    elif world.at == 2:
        late = _too_late(world, world.memory[0], rules)
        yield "link", _end(world) if late else world._replace(at=9, staged=world.staged | {"uploaded"})


def link_an_old_object(world: World, rules: frozenset[str]) -> Moves:
    """Look into marks, then at the object, then link it."""
    first, second = (_look, _see) if "links see the object after that" in rules else (_see, _look)
    if world.at == 0:
        yield from first(world._replace(memory=(world.now,)), rules, 1)
    elif world.at == 1:
        yield from second(world, rules, 2)
    elif world.at == 2:
        started, cleared = world.memory
        deadly = ["marked", "sweeping"] + ["swept", "carried"] * ("swept marks count for links" in rules)
        unknown = [
            run.state for index, run in enumerate(world.runs)
            if index not in cleared and run.state in deadly and "links look into marks" in rules
        ]  # fmt: skip
        waiting = any(run.state == "marking" for run in world.runs) and "links wait for marks under way" in rules
        linked = world._replace(at=9, staged=world.staged | {"unused"})
        if _too_late(world, started, rules):
            yield "refused", _end(world)
        elif unknown:
            yield "again", world._replace(at=0, memory=())
        elif waiting:
            yield "again", world._replace(at=0, memory=())
            runs = [run._replace(state="failed") if run.state == "marking" else run for run in world.runs]
            fails = "marks that are given up fail" in rules  # whether it took too long is the clock's word: any time
            yield "give up the mark and link", linked._replace(runs=tuple(runs)) if fails else linked
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
    yield "look into marks", world._replace(at=at, memory=(*world.memory, tuple(cleared)))


def _see(world: World, rules: frozenset[str], at: int) -> Moves:
    there = "unused" in dict(world.files)
    yield "look at the object", world._replace(at=at) if there else _end(world)


def report(world: World, rules: frozenset[str]) -> Moves:
    """A mirror says that it needs an old commit."""
    if world.at == 0:
        expired = "mirrors report live commits only" in rules and dict(world.commits)["E"][2] != LIVE
        yield "report", _end(world) if expired else world._replace(at=9, mirror=frozenset({"E"}))


def restore(world: World, rules: frozenset[str]) -> Moves:
    """Take the newest mark back, and make a branch at the old commit."""
    if world.at == 0:
        anything_open = any(run.state in ("marking", "marked") for run in world.runs)
        for index, run in enumerate(world.runs):
            over = run.state == "stale" and not anything_open
            if (
                over
                or run.state in ("marking", "marked")
                or (run.state in ("sweeping", "swept") and "swept marks are not restored" not in rules)
            ):
                runs = [one._replace(state="restoring") if one is run else one for one in world.runs]
                yield "restore", world._replace(runs=tuple(runs), at=1, memory=(index,))
    elif world.at == 1:
        (index,) = world.memory
        if world.runs[index].state != "restoring":
            yield "another mark began", _end(world)
            return
        for name, (*_, by) in world.commits:
            if by != LIVE and (_pending(world, by) or by == index):
                yield f"live again {name}", _set(world, name, LIVE)
        runs = [one._replace(state="restored") if number == index else one for number, one in enumerate(world.runs)]
        if not any(_pending(world, by) for _, (*_, by) in world.commits):
            yield "restored", world._replace(runs=tuple(runs), at=2, memory=())
    elif world.at == 2:
        refused = _dead(world, "E", rules)
        yield "branch", _end(world) if refused else world._replace(at=9, heads=(*world.heads, ("old", "E")))


def correct_rules(world: World, rules: frozenset[str]) -> Moves:
    """Rules that keep the old commit, set at any time; once it lives again, a branch at it."""
    if world.at == 0:
        yield "set rules", world._replace(at=1, keeps=True)
    elif world.at == 1:
        refused = _dead(world, "E", rules)
        if not refused:
            yield "branch", world._replace(at=9, heads=(*world.heads, ("old", "E")))


BEYOND = (JUMP, -JUMP)
BOTH = (0, 2)


@dataclass(frozen=True)
class Scenario:
    """A writer beside collections.

    Attributes:
        writer: what it does.
        runs: how many collections there are.
        staged: what is staged at first.
        dev: whether the old commit is a branch's head.
        graces: what collections may take for the grace period.
        last: until when time passes.
        jumps: how the clock jumps.
        files: what there is beside what the head needs; all of it is old.
        young: which of it is not old at first.
    """

    writer: Writer
    runs: int = 1
    staged: frozenset[str] = frozenset()
    dev: bool = False
    graces: tuple[int, ...] = BOTH
    last: int = 1
    jumps: tuple[int, ...] = BEYOND
    files: tuple[str, ...] = ("old range", "old object", "staged", "unused")
    young: frozenset[str] = frozenset()


OLD_COMMIT = ("old range", "old object")
STAGED = frozenset({"staged"})

SCENARIOS = {
    "commit": Scenario(_publishing("range of another attempt"), staged=STAGED),
    "commit, contents as an old commit's": Scenario(_publishing("old range"), staged=STAGED),
    "branch at an old commit": Scenario(branch_at_an_old_commit),
    "revert to an old commit": Scenario(_publishing("new range", "E")),
    "merge of a branch that is deleted": Scenario(_publishing("new range", "E", drops="dev"), dev=True),
    "slow upload": Scenario(upload),
    "slow upload, the clock goes back first": Scenario(upload, jumps=(-JUMP, JUMP)),
    "link of an old object": Scenario(link_an_old_object),
    "mirror's report": Scenario(report),
    "link of an old object between two collections": Scenario(
        link_an_old_object, 2, graces=(0,), last=2, jumps=(), files=("unused",), young=frozenset({"unused"})
    ),
    "restore": Scenario(restore),
    "restore between two collections": Scenario(restore, 2, graces=(0,), last=0, jumps=(), files=OLD_COMMIT),
    "rules corrected between two collections": Scenario(
        correct_rules, 2, graces=(0,), last=0, jumps=(), files=OLD_COMMIT
    ),
    "slow upload, the clock goes back between two collections": Scenario(
        upload, 2, graces=(0,), jumps=(-JUMP,), files=()
    ),
}


def start(scenario: Scenario) -> World:
    """How a scenario begins."""
    files = ("range", "object", *scenario.files)
    commits: Commits = (("C0", ("range", "object", LIVE)), ("E", (*OLD_COMMIT, LIVE)))
    heads = (("main", "C0"), *((("dev", "E"),) if scenario.dev else ()))
    begun = tuple((file, 0 if file in scenario.young else -4) for file in files)
    known = commits if "old range" in files else commits[:1]
    runs = (Run(),) * scenario.runs
    return World(0, begun, known, heads, scenario.staged, frozenset(), runs, jumps=scenario.jumps)


def violation(name: str, rules: frozenset[str] = frozenset(RULES)) -> tuple[list[str] | None, int]:
    """The shortest history of a scenario in which something needed is lost, and how many states were looked at."""
    scenario = SCENARIOS[name]
    first = start(scenario)
    origin: dict[World, tuple[World, str] | None] = {first: None}
    queue = deque([first])
    while queue:
        world = queue.popleft()
        if lost(world):
            return _history(origin, world), len(origin)
        moves = list(scenario.writer(world, rules))
        for index in range(len(world.runs)):
            moves += collection(world, index, rules, scenario.graces)
        if world.now < scenario.last:
            moves.append(("time", world._replace(now=world.now + 1)))
        for jump in world.jumps[:1]:
            moves.append((f"the clock jumps by {jump}", world._replace(now=world.now + jump, jumps=world.jumps[1:])))
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
