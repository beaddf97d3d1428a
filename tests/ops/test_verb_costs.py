"""What each verb asks of the catalog, as docs/catalog.md lists it: a catalog may be as far away as a bucket."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import pytest
from support.statements import ours, statements, transactions

from lakeops import Lake, Repository, Settings, Split
from lakeops.testing import ManualClock

PAGE = Path(__file__).parents[2] / "docs" / "catalog.md"
Verb = Callable[[Repository], object]

VERBS: dict[str, Verb] = {
    "put": lambda repo: repo.branch("main").put("new", b"1"),
    "delete": lambda repo: repo.branch("main").delete("new"),
    "reset": lambda repo: repo.branch("main").reset(),
    "commit": lambda repo: repo.branch("dirty").commit("changes"),
    "commit with a key": lambda repo: repo.branch("dirty-too").commit("changes", idempotency_key="key"),
    "the same commit again": lambda repo: repo.branch("dirty-too").commit("changes", idempotency_key="key"),
    "merge": lambda repo: repo.merge("ahead", "main"),
    "merge of what is merged": lambda repo: repo.merge("ahead", "main"),
    "revert": lambda repo: repo.branch("ahead").revert("ahead"),
    "cherry-pick": lambda repo: repo.cherry_pick("side", "main"),
    "branch create": lambda repo: repo.create_branch("made", "main"),
    "branch delete": lambda repo: repo.delete_branch("made"),
    "tag create": lambda repo: repo.create_tag("v1", "main"),
    "stat": lambda repo: repo.ref("main").stat("f1"),
    "stat of a commit": lambda repo: repo.ref("main~1").stat("f1"),
    "a page of a listing": lambda repo: list(islice(repo.ref("main").list(), 10)),
    "read": lambda repo: repo.ref("main").read("f1"),
    "diff": lambda repo: list(repo.diff("side", "main")),
    "compare": lambda repo: list(repo.compare("side", "main")),
    "uncommitted": lambda repo: list(repo.branch("main").uncommitted()),
    "log": lambda repo: list(repo.log("main", amount=3)),
    "merge-base": lambda repo: repo.merge_base("side", "main"),
}


@pytest.fixture(params=["sqlite", "postgresql"])
def catalog_settings(request, tmp_path: Path) -> Settings:
    url = None if request.param == "sqlite" else request.getfixturevalue("empty_postgres_url")
    return Settings.load(home=tmp_path / "home", database_url=url, fsync=False)


def prepare(settings: Settings) -> None:
    with Lake.open(settings=settings) as lake:
        repo = lake.create_repository("repo", split=Split(2, 4, 8))
        for number in range(4):
            repo.branch("main").put(f"f{number}", b"1")
            repo.branch("main").commit(f"{number}")
        for name in ("dirty", "dirty-too", "ahead", "side"):
            repo.create_branch(name, "main~1")
            repo.branch(name).put(name, b"2")
        for name in ("ahead", "side"):
            repo.branch(name).commit(name)


def documented(dialect: str) -> dict[str, tuple[int, int]]:
    """The page's table: transactions and statements of a verb."""
    section = PAGE.read_text().partition("## What a verb asks")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| (\d+) \| (\d+) \| (\d+) \|$", section, re.MULTILINE)
    column = ("sqlite", "postgresql").index(dialect)
    return {name: (int(trips), int(counts[column])) for name, trips, *counts in rows}


def test_the_page_lists_what_each_verb_asks(catalog_settings: Settings) -> None:
    """In a process that has opened the lake; the handles of repository and branch look for them, too."""
    prepare(catalog_settings)
    found = {}
    clock = ManualClock(datetime.now(UTC))
    with Lake.open(settings=catalog_settings, clock=clock) as lake:
        for name, verb in VERBS.items():
            clock.advance(seconds=1)  # a put or a delete within a moment of another one asks less
            with statements(lake.catalog) as seen, transactions(lake.catalog) as trips:
                verb(lake.repository("repo"))
            found[name] = (len(trips), len(ours(seen)))
        assert found == documented(lake.catalog.database.dialect.name)
