"""What one DAG run, or one task of it, did: the tab *Lakeops* on Airflow's pages of runs and tasks.

Tasks leave the addresses of their pages as links. The tab gathers those of a run, and shows the commits that they
published with what each changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import select

from lakeops.airflow.compat import AirflowNotFoundException
from lakeops.airflow.links import LakeopsBranchLink, LakeopsCommitLink, LakeopsDiffLink, LakeopsPageLink
from lakeops.model.errors import LakeopsError
from lakeops.web.sums import summed

if TYPE_CHECKING:
    from lakeops.lake import Lake
    from lakeops.model.records import Commit
    from lakeops.ops.sums import Sums

ROWS = 200
"""Tasks that are listed."""
COMMITS = 10
"""Commits whose changes are summed up."""
LINKS = {
    link().xcom_key: link.name for link in (LakeopsCommitLink, LakeopsBranchLink, LakeopsDiffLink, LakeopsPageLink)
}


@dataclass(frozen=True)
class Did:
    """What a task did.

    Attributes:
        task: its name; of a mapped one with its index.
        pages: the addresses of its pages, by the name of the link.
        commit: what it published, if that can be read now.
        sums: what that commit changed against its first parent.
        problem: why the commit cannot be shown.
    """

    task: str
    pages: dict[str, str]
    commit: Commit | None = None
    sums: Sums | None = None
    problem: str | None = None


def did(
    dag_id: str,
    run_id: str,
    task_id: str,
    index: int | None,
    *,
    prefix: str,
    opened: Callable[[str], AbstractContextManager[Lake]],
    may_read: Callable[[str, str], bool],
) -> list[Did]:
    """What the tasks of a run did, in the order in which they did it.

    Args:
        dag_id: the DAG.
        run_id: the run.
        task_id: one task; empty for all of them.
        index: of a mapped task: which one; None for all.
        prefix: what the addresses of lakeops' pages begin with, with a slash at the end.
        opened: opens the lake of a connection.
        may_read: whether the user may see a connection's repository. Pages of others are left out.
    """
    tasks: dict[str, dict[str, str]] = {}
    for name, key, address in _links(dag_id, run_id, task_id, index):
        parts = _parts(address, prefix)
        if len(parts) > 1 and may_read(*parts[:2]):
            tasks.setdefault(name, {})[LINKS[key]] = address
    lakes: dict[str, Lake] = {}
    rows: list[Did] = []
    with ExitStack() as stack:
        left = COMMITS
        for name, pages in tasks.items():
            published = _parts(pages.get(LakeopsCommitLink.name, ""), prefix)
            if len(published) < 4 or not left:
                rows.append(Did(name, pages))
                continue
            left -= 1
            connection, repository, _, commit_id = published[:4]
            try:
                if connection not in lakes:
                    lakes[connection] = stack.enter_context(opened(connection))
                found = lakes[connection].repository(repository)
                commit = found.ref(commit_id).commit
                sums = summed(found, commit.parents[0], commit.id, two_way=True) if commit.parents else None
                rows.append(Did(name, pages, commit, sums))
            except LakeopsError as error:
                rows.append(Did(name, pages, problem=error.message))
            except AirflowNotFoundException as error:
                rows.append(Did(name, pages, problem=str(error)))
    return rows


def _links(dag_id: str, run_id: str, task_id: str, index: int | None) -> Iterable[tuple[str, str, str]]:
    """Of every link that is not empty: the task, the link's key, the address."""
    query = select(XComModel.task_id, XComModel.map_index, XComModel.key, XComModel.value).where(
        XComModel.dag_id == dag_id, XComModel.run_id == run_id, XComModel.key.in_(LINKS)
    )
    if task_id:
        query = query.where(XComModel.task_id == task_id)
    if index is not None:
        query = query.where(XComModel.map_index == index)
    query = query.order_by(XComModel.timestamp, XComModel.task_id, XComModel.map_index).limit(ROWS * len(LINKS))
    with create_session() as session:
        found = list(session.execute(query))
    for task, mapped, key, value in found:
        address = _text(value)
        if address:
            yield task if mapped < 0 else f"{task} [{mapped}]", key, address


def _text(value: Any) -> str:  # noqa: ANN401 - whatever an XCom holds
    """The text that an XCom holds, whether it was written as JSON or as JSON in a text."""
    plain = value.strip('"') if isinstance(value, str) else ""
    return plain if plain.isprintable() else ""


def _parts(address: str, prefix: str) -> list[str]:
    """The parts of a page's path: connection, repository, kind of page and more. None of any other address."""
    if not address.startswith(prefix):
        return []
    path = address.removeprefix(prefix).partition("?")[0]
    return [unquote(part) for part in path.split("/")]
