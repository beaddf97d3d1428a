"""PostgreSQL's plans on full tables: no verb reads a table from end to end, nor many pages that it does not need."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
from support.plans import MOST, Plan, fill, full_tables, plans

from lakeops import Lake, Repository, Settings, Split
from lakeops.catalog.tables import METADATA

ROWS = 50_000
"""Of each table: so many that the planner chooses an index where there is one."""
PAGES = 250
"""Most pages of tables and indexes that a statement looks at. A table's index of 50,000 rows has about 500."""
OF_ONE_ROW = {"lakeops_catalog", "lakeops_clock"}
FULL = "full"
SMALL = "small"
Verb = Callable[[Lake], object]


def write_output(repo):
    with repo.branch("to").output("out/") as url:
        Path(url.removeprefix("file://"), "part").write_bytes(b"1")


IN_A_FULL_REPOSITORY: dict[str, Callable[[Repository], object]] = {
    "put": lambda repo: repo.branch("main").put("new", b"1"),
    "delete": lambda repo: repo.branch("main").delete("new"),
    "stat": lambda repo: repo.ref("main").stat("f1"),
    "stat of a staged path": lambda repo: repo.ref("main").stat("staged/00000002"),
    "stat of a commit": lambda repo: repo.ref("main~1").stat("f1"),
    "stat of a prefix of a commit": lambda repo: repo.ref(repo.ref("main").commit.id[:12]).stat("f1"),
    "a page of a listing": lambda repo: list(islice(repo.ref("main").list(), 10)),
    "a listing of a folder": lambda repo: list(repo.ref("work").list(delimiter="/")),
    "uncommitted": lambda repo: list(repo.branch("work").uncommitted()),
    "commit": lambda repo: repo.branch("work").commit("changes", idempotency_key="new"),
    "commit again": lambda repo: repo.branch("work").commit("changes", idempotency_key="new"),
    "merge": lambda repo: repo.merge("work", "to", idempotency_key="merge"),
    "merge of what is merged": lambda repo: repo.merge("work", "to"),
    "merge-base": lambda repo: repo.merge_base("work", "main"),
    "diff": lambda repo: list(repo.diff("work", "side")),
    "revert": lambda repo: repo.branch("work").revert("work"),
    "cherry-pick": lambda repo: repo.cherry_pick("side", "work"),
    "reset of a path": lambda repo: repo.branch("main").reset(path="staged/00000002"),
    "branch create": lambda repo: repo.create_branch("made", "work"),
    "branch delete": lambda repo: repo.delete_branch("made"),
    "tag create": lambda repo: repo.create_tag("v1", "work"),
    "tag delete": lambda repo: repo.delete_tag("v1"),
    "branch list, a page": lambda repo: next(repo.branches()),
    "branch list, by prefix": lambda repo: list(repo.branches(prefix="b4242")),
    "tag list, by prefix": lambda repo: list(repo.tags(prefix="t4242")),
    "log": lambda repo: list(repo.log("main", amount=3)),
    "reflog of a branch": lambda repo: repo.reflog("work", limit=10),
    "reflog": lambda repo: repo.reflog(limit=10),
    "audit": lambda repo: list(islice(repo.audit(), 10)),
    "check pass": lambda repo: repo.ref("work").pass_check("quality"),
    "output": write_output,
}
BESIDE_A_FULL_REPOSITORY: dict[str, Verb] = {
    "gc mark": lambda lake: lake.repository(SMALL).gc.mark(),
    "gc sweep": lambda lake: lake.repository(SMALL).gc.sweep(lake.repository(SMALL).gc.marks()[0].id),
    "gc prune": lambda lake: lake.repository(SMALL).gc.prune(),
    "mirror sync": lambda lake: lake.mirror("copy").sync(lake),
    "mirror status": lambda lake: lake.mirror("copy").status(),
    "fsck": lambda lake: list(lake.repository(SMALL).fsck()),
    "branch list": lambda lake: list(lake.repository(SMALL).branches()),
    "log": lambda lake: list(lake.repository(SMALL).log("main")),
    "registrations": lambda lake: lake.repository(SMALL).registrations(),
    "repository list, a page": lambda lake: next(lake.repositories()),
}


def prepare(lake):
    """Two repositories of a few commits and branches, and a mirror of the second."""
    for name in (FULL, SMALL):
        repo = lake.create_repository(name, split=Split(2, 4, 8))
        for number in range(4):
            repo.branch("main").put(f"f{number}", b"1")
            repo.branch("main").commit(f"{number}")
        for branch in ("work", "side", "to"):
            repo.create_branch(branch, "main~1").put(branch, b"2")
        for branch in ("side", "to"):
            repo.branch(branch).commit(branch)
        repo.gc.set_rules({"default_retention_days": 1})
    lake.create_mirror("copy", source=lake, source_repository=SMALL)


@pytest.fixture(params=[ROWS, pytest.param(1_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def full(request, tmp_path, empty_postgres_url):
    settings = Settings.load(home=tmp_path / "home", database_url=empty_postgres_url, fsync=False, committer="ada")
    with Lake.open(settings=settings) as lake:
        prepare(lake)
        state = lake.catalog.refs.branch(FULL, "main")  # type: ignore[attr-defined]
        fill(empty_postgres_url, FULL, state.commit_id, state.staging_token, request.param)
        lake.repository(SMALL).gc.mark()  # each looks at the moves of refs since the one before
        yield lake, empty_postgres_url, request.param


def test_no_statement_reads_a_full_table_from_end_to_end(full):
    lake, url, rows = full
    tables = full_tables(url, min(rows, MOST) // 2)
    assert len(tables) == len(METADATA.sorted_tables) - len(OF_ONE_ROW), sorted(tables)
    verbs: dict[str, Verb] = {
        **{name: lambda lake, verb=verb: verb(lake.repository(FULL)) for name, verb in IN_A_FULL_REPOSITORY.items()},
        **{f"{name} beside it": verb for name, verb in BESIDE_A_FULL_REPOSITORY.items()},
    }
    wrong: list[tuple[str, Plan]] = []
    for name, verb in verbs.items():
        with plans(lake) as seen:
            verb(lake)
        assert seen, name
        wrong += [(name, plan) for plan in seen if plan.scanned & tables or plan.pages > PAGES]
    shown = sorted({f"{name}: {[*plan.scanned]}, {plan.pages} pages: {plan.statement}" for name, plan in wrong})
    assert not shown
