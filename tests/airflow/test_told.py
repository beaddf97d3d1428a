"""Whoever tells a person or a program what a merge would do tells what it then does, on repositories of many ranges."""

import html
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from lakeops import Repository, Split
from lakeops.airflow.approval import LakeopsApprovalOperator
from lakeops.airflow.compat import TaskAwaitingInput
from lakeops.airflow.operators import LakeopsDiffOperator
from lakeops.airflow.previews import preview
from lakeops.web.page import Site
from lakeops.web.pages import Pages

pytestmark = [
    # With the usual split all is in one range, where less can go wrong.
    pytest.mark.parametrize(
        "split", [Split(1, 1, 2), pytest.param(Split(), marks=pytest.mark.slow)], ids=str, indirect=True
    )
]

PATHS = [f"{folder}/{number:02}" for folder in "abcdef" for number in range(8)]
CONTEXT: Any = {
    "task_instance": SimpleNamespace(id="1"),
    "ti": SimpleNamespace(task_id="approve", xcom_push=lambda *, key, value: None),
}


def write(flights, branch, files):
    handle = flights.branch(branch)
    with handle.batch() as batch:
        for path, text in files.items():
            if text is not None:
                batch.put(path, text.encode())
    for path, text in files.items():
        if text is None:
            handle.delete(path)
    return handle.commit(f"on {branch}").id


def apart(flights):
    """The sides move in different ranges: the merge goes by reference."""
    write(flights, "dev", {f"f/new{number}": "dev" for number in range(5)})
    write(flights, "main", {"a/00": "main"})


def close(flights):
    write(flights, "dev", {"c/01": "dev", "c/03": None, "c/031": "dev"})
    write(flights, "main", {"c/02": "main", "c/03": None})


def ahead(flights):
    write(flights, "dev", {"a/00": None, "f/07": "longer", "g": "dev"})


def crossed(flights):
    """Both take what the other was; then one takes back what came from the other."""
    heads = write(flights, "dev", {"e/05": "dev", "e/06": "dev"}), write(flights, "main", {"b/00": "main"})
    flights.merge(heads[0], "main")
    flights.merge(heads[1], "dev")
    write(flights, "main", {"e/05": "e/05"})
    write(flights, "dev", {"d/00": "dev"})


def against(flights):
    write(flights, "dev", {"a/00": "dev", "d/00": None, "f/00": "dev"})
    write(flights, "main", {"a/00": "main", "d/00": "main"})


SCENES: dict[str, Callable[[Repository], None]] = {
    scene.__name__: scene for scene in (apart, close, ahead, crossed, against)
}


@pytest.fixture(params=SCENES)
def parted(request, flights):
    write(flights, "main", {path: path for path in PATHS})
    flights.create_branch("dev")
    SCENES[request.param](flights)
    return flights


@pytest.mark.parametrize("strategy", [None, "source-wins", "dest-wins"])
def test_every_edge_tells_what_the_merge_does(parted, lake, run, asked, strategy):
    before, dev = parted.branch("main").commit_id, parted.branch("dev").commit_id
    conflicts = [change.path for change in parted.compare("main", "dev") if change.type.value == "conflict"]
    told = list(parted.compare("main", "dev", strategy=strategy))
    approval = LakeopsApprovalOperator(task_id="approve", repo="flights", source="dev", strategy=strategy)
    given = {"repository": "flights", "source": "dev", "destination": "main", "strategy": strategy or "fail"}
    look = LakeopsDiffOperator(task_id="look", repo="flights", left="main", right="dev")
    listed = run(look)
    query = {"left": "main", "right": "dev"}
    page = Pages(Site("/lakeops/mine", "mine"), lake, {"repository": parted.id}, query).compare()
    if conflicts and strategy is None:
        for refused in (
            lambda: approval.execute(CONTEXT),
            lambda: preview("merge", given, lakeops_conn_id="lakeops_default"),
        ):
            with pytest.raises(AirflowFailException, match="conflicts with 'main' on 2 path"):
                refused()
        assert listed["conflict"] == 2
        assert "2 conflict" in page
        return
    with pytest.raises(TaskAwaitingInput):
        approval.execute(CONTEXT)
    shown = preview("merge", given, lakeops_conn_id="lakeops_default").text
    parted.merge(dev, "main", strategy=strategy)
    done = list(parted.diff(before, "main"))
    assert done or strategy
    assert told == done
    rows = [f"| {change.type.value} | `{change.path}` | {change.size_bytes:,} |" for change in done]
    assert [line for line in asked[0]["body"].splitlines() if re.match(r"\| \w+ed \|", line)] == rows
    assert [line.split()[1] for line in shown.splitlines()[2:]] == [change.path for change in done]
    if not conflicts:
        assert [change["path"] for change in listed["changes"]] == [change.path for change in done]
        for change in done:
            assert f">{html.escape(change.path)}<" in page
    assert (
        LakeopsApprovalOperator(task_id="approve", repo="flights", source="dev").execute(CONTEXT)["approved_by"] is None
    ), "it is merged"


def test_every_edge_tells_what_a_revert_does(parted):
    before, ref = parted.branch("main").commit_id, "main~1" if len(list(parted.log("main"))) > 2 else "main"
    given = {"repository": "flights", "branch": "main", "ref": ref, "parent_number": None}
    if len(parted.ref(ref).commit.parents) > 1:
        given["parent_number"] = 1
    told = list(parted.branch("main").revert_changes(ref, given["parent_number"]))
    if any(change.type.value == "conflict" for change in told):
        with pytest.raises(AirflowFailException, match="conflicts with 'main'"):
            preview("revert", given, lakeops_conn_id="lakeops_default")
        return
    shown = preview("revert", given, lakeops_conn_id="lakeops_default").text
    parted.branch("main").revert(ref, given["parent_number"])
    done = list(parted.diff(before, "main"))
    assert told == done
    assert [line.split()[1] for line in shown.splitlines()[2:]] == [change.path for change in done]
