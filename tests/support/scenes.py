"""Operations that are killed at every effect: what they start from, what they do, and what must hold afterwards."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from support.faulty_catalog import FaultyCatalog

from lakeops import Lake, Repository, Settings, Split, testing
from lakeops.testing import Faults, ManualClock

SPLIT = Split(2, 4, 8)


def open_faulty(settings: Settings, faults: Faults, *, clock: ManualClock | None = None) -> Lake:
    """A lake whose stores and catalog play a script of faults."""
    lake = testing.open_faulty(settings, faults, clock=clock or ManualClock())
    lake.catalog = FaultyCatalog(lake.catalog, faults)  # type: ignore[assignment]
    return lake


def tree(repo: Repository, ref: str) -> dict[str, bytes]:
    """Path to contents, everything that a ref shows."""
    handle = repo.ref(ref)
    return {item.path: handle.read(item.path) for item in handle.list()}


@dataclass(frozen=True)
class Scene:
    """``act`` may be killed anywhere and run again; ``check`` holds after it has run to its end."""

    name: str
    prepare: Callable[[Repository], None]
    act: Callable[[Repository], None]
    check: Callable[[Repository], None]
    days: int = 0

    def clock(self) -> ManualClock:
        """The time that ``act`` runs at: so many days after ``prepare`` did."""
        clock = ManualClock()
        clock.advance(days=self.days)
        return clock


def _files(count: int, text: str) -> dict[str, bytes]:
    return {f"f{number:03}": f"{text}{number}".encode() for number in range(count)}


def _put_all(repo: Repository, branch: str, files: dict[str, bytes]) -> None:
    with repo.branch(branch).batch() as batch:
        for path, data in files.items():
            batch.put(path, data)


def _prepare_commit(repo: Repository) -> None:
    _put_all(repo, "main", _files(20, "old"))
    repo.branch("main").commit("base")
    _put_all(repo, "main", {"f005": b"new", "zzz": b"new"})
    repo.branch("main").delete("f010")


def _commit(repo: Repository) -> None:
    repo.branch("main").commit("work", idempotency_key="k")


def _check_commit(repo: Repository) -> None:
    wanted = {**_files(20, "old"), "f005": b"new", "zzz": b"new"}
    del wanted["f010"]
    assert tree(repo, "main") == tree(repo, "main@") == wanted
    assert [commit.message for commit in repo.log("main")] == ["work", "base", "Repository created"]
    assert list(repo.branch("main").uncommitted()) == []


def _prepare_merge(repo: Repository) -> None:
    _put_all(repo, "main", _files(20, "old"))
    repo.branch("main").commit("base")
    repo.create_branch("dev")
    _put_all(repo, "dev", {"f001": b"dev", "dev": b"dev"})
    repo.branch("dev").commit("dev")
    _put_all(repo, "main", {"f015": b"main"})
    repo.branch("main").commit("main")


def _merge(repo: Repository) -> None:
    repo.merge("dev", "main", message="merge", idempotency_key="k")


def _check_merge(repo: Repository) -> None:
    assert tree(repo, "main") == {**_files(20, "old"), "f001": b"dev", "dev": b"dev", "f015": b"main"}
    messages = [commit.message for commit in repo.log("main", first_parent=True)]
    assert messages == ["merge", "main", "base", "Repository created"]


def _prepare_revert(repo: Repository) -> None:
    _prepare_commit(repo)
    _commit(repo)


def _check_revert(repo: Repository) -> None:
    assert tree(repo, "main") == _files(20, "old")
    assert len(list(repo.log("main"))) == 4


def _prepare_several(repo: Repository) -> None:
    _prepare_merge(repo)
    for number in range(3):
        _put_all(repo, "dev", {f"f00{number}": b"more", "f009": f"{number}".encode()})
        repo.branch("dev").commit(f"more {number}")


def _several(repo: Repository) -> None:
    repo.branch("dev").revert("dev~2..dev", idempotency_key="r")
    repo.merge("dev", "main", squash=True, idempotency_key="s")


def _check_several(repo: Repository) -> None:
    wanted = {**_files(20, "old"), "f001": b"dev", "dev": b"dev", "f000": b"more", "f009": b"0"}
    assert tree(repo, "dev") == wanted
    assert tree(repo, "main") == {**wanted, "f015": b"main"}
    assert len(list(repo.log("main"))) == 4


def _prepare_move(repo: Repository) -> None:
    _prepare_merge(repo)
    repo.create_tag("moved", "dev")


def _move(repo: Repository) -> None:
    repo.branch("main").move("main~1", force=True, idempotency_key="m")
    repo.move_tag("moved", "main", idempotency_key="u")


def _check_move(repo: Repository) -> None:
    assert tree(repo, "main") == tree(repo, "moved") == _files(20, "old")
    moves = [(move.ref, move.action) for move in repo.reflog(limit=3)]
    assert moves == [("moved", "move-tag"), ("main", "move-branch"), ("moved", "create-tag")]


def _prepare_put(repo: Repository) -> None:
    _put_all(repo, "main", {"a": b"old"})


def _put(repo: Repository) -> None:
    repo.branch("main").put("a", b"new")


def _check_put(repo: Repository) -> None:
    assert tree(repo, "main") == {"a": b"new"}


def _output(repo: Repository) -> None:
    with repo.branch("main").output("f") as url:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"n": [1]}), url + "/part.parquet")


def _check_output(repo: Repository) -> None:
    assert [item.path for item in repo.branch("main").list()] == ["a", "f/part.parquet"]


def _source(repo: Repository) -> Path:
    """A directory to import from, beside the namespace."""
    return Path(repo.record.storage_namespace.removeprefix("file://")).parent / "source"


def _prepare_import(repo: Repository) -> None:
    _prepare_commit(repo)
    _commit(repo)
    for number in range(20):
        file = _source(repo) / f"{number // 7}" / f"{number:02}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"imported {number}")


def _import(repo: Repository) -> None:
    repo.branch("main").import_objects(f"file://{_source(repo)}", "g", "import", idempotency_key="i")


def _check_import(repo: Repository) -> None:
    shown = tree(repo, "main")
    assert {path: data for path, data in shown.items() if path.startswith("g/")} == {
        f"g/{number // 7}/{number:02}": f"imported {number}".encode() for number in range(20)
    }
    assert len(shown) == 20 + 20
    messages = [commit.message for commit in repo.log("main")]
    assert messages == ["import", "work", "base", "Repository created"]


def _prepare_collection(repo: Repository) -> None:
    _put_all(repo, "main", _files(6, "old"))
    repo.branch("main").commit("base")
    _put_all(repo, "main", _files(4, "new"))
    repo.branch("main").commit("work")
    repo.gc.set_rules({"default_retention_days": 1})


def _collect(repo: Repository) -> None:
    repo.gc.sweep(repo.gc.mark().id)


def _check_collection(repo: Repository) -> None:
    assert tree(repo, "main") == {**_files(6, "old"), **_files(4, "new")}
    assert [commit.expired for commit in repo.log("main")] == [False, True, True]
    store = repo._ctx.store
    assert len(list(store.list("data/"))) == 6
    commit = repo.ref("main").commit
    assert [item.key for item in store.list("_lakefs/metaranges/")] == [f"_lakefs/metaranges/{commit.meta_range_file}"]
    files = {row.file for row in repo._ctx.metarange(commit).rows(0, 99)}
    assert {item.key for item in store.list("_lakefs/ranges/")} == {f"_lakefs/ranges/{file}" for file in files}
    assert "swept" in {mark.state.value for mark in repo.gc.marks()}


def _iceberg(repo: Repository, branch: str) -> Any:
    """The Iceberg tables of a branch."""
    from lakeops.iceberg import RefCatalog
    from lakeops.iceberg.tables import RefTables

    catalog = RefCatalog("tables", warehouse=f"lakefs://repo/{branch}/t")
    vars(catalog)["_tables"] = RefTables(repo, branch, "t")  # of this lake, whose effects are counted
    return catalog


def _append(repo: Repository, branch: str, amount: int) -> None:
    table = _iceberg(repo, branch).load_table("web.sales")
    if not any(one.summary["run"] == str(amount) for one in table.snapshots() if one.summary):
        table.append(pa.table({"amount": pa.array([amount])}), snapshot_properties={"run": str(amount)})
    repo.branch(branch).commit(f"Append {amount}", idempotency_key=f"append-{amount}")


def _prepare_tables(repo: Repository) -> None:
    catalog = _iceberg(repo, "main")
    catalog.create_namespace("web")
    for name in ("sales", "debit", "credit"):
        catalog.create_table(f"web.{name}", pa.schema([("amount", pa.int64())]))
    _append(repo, "main", 1)
    repo.create_branch("dev")
    _append(repo, "main", 2)


def _transfer(repo: Repository) -> None:
    """Commit to two tables at once. Nobody sees one of the two changed."""
    from pyiceberg.table.update import SetPropertiesUpdate

    from lakeops.iceberg.tables import RefTables, TableCommit

    tables, names = RefTables(repo, "main", "t"), [("web", "debit"), ("web", "credit")]
    done = {tables.load(name).metadata.properties.get("run") for name in names}
    assert len(done) == 1, "a killed commit of two tables is visible in one"
    if done == {None}:
        tables.commit([TableCommit(name, (), (SetPropertiesUpdate(updates={"run": "1"}),)) for name in names])
    repo.branch("main").commit("Transfer", idempotency_key="transfer")


def _write_tables(repo: Repository) -> None:
    _transfer(repo)
    _append(repo, "dev", 3)
    repo.merge("dev", "main", tables="rebase", idempotency_key="merge")


def _check_tables(repo: Repository) -> None:
    assert sorted(_iceberg(repo, "main").load_table("web.sales").scan().to_arrow()["amount"].to_pylist()) == [1, 2, 3]
    assert [one.message for one in repo.log("main", first_parent=True)][:2] == ["Merge 'dev' into 'main'", "Transfer"]


SCENES = {
    scene.name: scene
    for scene in (
        Scene("commit", _prepare_commit, _commit, _check_commit),
        Scene("merge", _prepare_merge, _merge, _check_merge),
        Scene(
            "revert",
            _prepare_revert,
            lambda repo: repo.branch("main").revert("main", idempotency_key="r"),
            _check_revert,
        ),
        Scene("several", _prepare_several, _several, _check_several),
        Scene("move", _prepare_move, _move, _check_move),
        Scene("put", _prepare_put, _put, _check_put),
        Scene("output", _prepare_put, _output, _check_output),
        Scene("import", _prepare_import, _import, _check_import),
        Scene("tables", _prepare_tables, _write_tables, _check_tables),
        Scene("collect", _prepare_collection, _collect, _check_collection, days=9),
    )
}


def make(lake: Lake, scene: Scene) -> Repository:
    """A repository that the scene's act can start from."""
    repo = lake.create_repository("repo", split=SPLIT)
    scene.prepare(repo)
    return repo


def table(addresses: dict[str, str], **columns: list[Any]) -> pa.Table:
    """Paths and the objects that are staged under them; ``columns`` say more of them than that they have one byte."""
    count = len(addresses)
    return pa.table(
        {
            "path": list(addresses),
            "physical_address": list(addresses.values()),
            "checksum": ["x"] * count,
            "size_bytes": [1] * count,
            "mtime": [1] * count,
            **columns,
        }
    )


def fill_paths(
    repository: Repository, branch: str, files: dict[str, str | None], *, message: str = "", allow_empty: bool = False
) -> str:
    """Put contents at paths (None deletes) on a branch and commit; returns the commit id."""
    handle = repository.branch(branch)
    with handle.batch() as batch:  # one transaction for all
        for path, contents in files.items():
            if contents is not None:
                batch.put(path, contents.encode())
    for path, contents in files.items():
        if contents is None:
            handle.delete(path)
    return handle.commit(message or f"on {branch}", allow_empty=allow_empty).id


def root(repo: Repository) -> Path:
    """The directory of a namespace that is one."""
    return Path(repo.storage_namespace.removeprefix("file://"))


def files(repo: Repository, prefix: str = "") -> set[str]:
    """Everything in such a namespace."""
    found = {str(file.relative_to(root(repo))) for file in root(repo).rglob("*") if file.is_file()}
    return {name for name in found if name.startswith(prefix) and ".lakeops" not in name}
