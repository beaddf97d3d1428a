"""Long runs of the harnesses: ``python -m harness nested --seconds 3600``, or one history by its seed."""

import sys
from argparse import ArgumentParser
from collections import Counter
from contextlib import nullcontext
from itertools import count, cycle
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from services.postgres import postgres_url
from support.histories import USUAL, Chances, Failure, World
from support.killing import Workers
from support.mirror_histories import MirrorWorld
from support.mixing import EACH, Mixed

from lakeops.model.clock import stopwatch

WORLDS = {"nested": World, "mirror": MirrorWorld}
KILLS = 100
MIXED_KILLS = 20


def history(
    kind: str, seed: int, *, operations: int = 40, chances: Chances = USUAL, verbose: bool = False
) -> Counter[str]:
    """Run the history of a seed; what happened how often. Raises ``Failure``."""
    world = WORLDS[kind](seed, chances=chances, verbose=verbose)
    try:
        world.run(operations)
    finally:
        world.close()
    return world.counts


def kill(seconds: float, random: Random) -> Counter[str]:
    """Workers on PostgreSQL that are killed a hundred times, again and again; what was done and kept."""
    total: Counter[str] = Counter()
    passed = stopwatch()
    while passed() < seconds:
        with postgres_url() as url, TemporaryDirectory(prefix="lakeops-killed-") as name:
            workers = Workers(Path(name), url, count=3)
            workers.prepare()
            workers.run(random, KILLS)
            workers.check()
            total += Counter(kills=KILLS, rounds=sum(workers.rounds(number) for number in range(workers.count)))
    return total


def mix(seconds: float, random: Random, *, spark: bool = False) -> Counter[str]:
    """Writers of every edge, on SQLite and on PostgreSQL in turn, killed until the time is over; what they did.

    Raises ``AssertionError`` with every write that was lost or doubled.
    """
    total: Counter[str] = Counter()
    passed = stopwatch()
    for postgres in cycle([False, True]):
        if passed() > seconds:
            break
        database = postgres_url() if postgres else nullcontext("")
        with database as url, TemporaryDirectory(prefix="lakeops-mixed-") as name:
            mixed = Mixed(Path(name), url, groups=[*EACH, ["spark"]] if spark else EACH)
            mixed.prepare()
            mixed.run(random, MIXED_KILLS)
            mixed.check()
            total += mixed.counts() + Counter(kills=MIXED_KILLS, runs=1)
            print(f"{passed():.0f} s", dict(total), flush=True)
    return total


def main() -> None:
    arguments = ArgumentParser(prog="python -m harness", description=__doc__)
    arguments.add_argument("kind", choices=[*sorted(WORLDS), "killed", "mixed"])
    arguments.add_argument("seed", type=int, nargs="?", help="run one history and show it")
    arguments.add_argument("--begin", type=int, default=0, help="the first seed of a long run")
    arguments.add_argument("--seconds", type=float, default=60)
    arguments.add_argument("--operations", type=int, default=40)
    arguments.add_argument("--spark", action="store_true", help="let Spark write too, of kind mixed")
    arguments.add_argument("--jump", type=float, default=0.0, help="how likely the clock jumps at each call")
    given = arguments.parse_args()
    if given.kind == "killed":
        print(dict(kill(given.seconds, Random(given.begin))))
        return
    if given.kind == "mixed":
        print(dict(mix(given.seconds, Random(given.begin), spark=given.spark).most_common()))
        return
    chances = Chances(jump=given.jump)
    total: Counter[str] = Counter()
    passed = stopwatch()
    for seed in count(given.begin) if given.seed is None else [given.seed]:
        if passed() > given.seconds:
            break
        try:
            total += history(
                given.kind, seed, operations=given.operations, chances=chances, verbose=given.seed is not None
            )
            total["histories"] += 1
        except Failure as failure:
            total["FAILED"] += 1
            print(seed, str(failure).splitlines()[-2], flush=True)
            if given.seed is not None:
                raise
    print(f"{passed():.0f} s", dict(total.most_common()))
    sys.exit(bool(total["FAILED"]))


if __name__ == "__main__":
    main()
