"""Half-filled, misspelt and misdirected: each operator says what is wrong in one line, and changes nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.scenes import tree

from lakeops import Lake, Repository

pytest.importorskip("airflow.sdk")

from lakeops.airflow import operators
from lakeops.airflow.failures import LakeopsFailure

pytestmark = pytest.mark.xdist_group("airflow")

GOOD: dict[str, dict[str, Any]] = {
    "CreateBranch": {"branch": "new", "source": "main"},
    "DeleteBranch": {"branch": "dev"},
    "ResetBranch": {"branch": "dev"},
    "MoveBranch": {"branch": "dev", "ref": "main"},
    "ProtectBranch": {"pattern": "main"},
    "CreateTag": {"tag": "v2", "ref": "main"},
    "MoveTag": {"tag": "v1", "ref": "main"},
    "DeleteTag": {"tag": "v1"},
    "Commit": {"branch": "dev", "message": "load"},
    "Merge": {"source": "dev", "destination": "main"},
    "Revert": {"ref": "main", "branch": "main"},
    "CherryPick": {"ref": "main", "branch": "dev"},
    "Upload": {"branch": "dev", "path": "a", "data": "text"},
    "DeleteObjects": {"branch": "dev", "paths": ["a"]},
    "Diff": {"right": "dev", "left": "main"},
    "DeleteRepository": {},
}
"""Arguments that each operator takes."""

NEEDED = {
    *(
        (verb, name)
        for verb, given in GOOD.items()
        for name in given
        if name in {"branch", "tag", "pattern", "message"}
    ),
    *((verb, "ref") for verb in ("MoveBranch", "MoveTag", "Revert", "CherryPick")),
    ("Merge", "source"),
    ("Diff", "right"),
    ("DeleteRepository", "repo"),
} - {("Revert", "branch"), ("CherryPick", "branch")}
"""What may not be empty."""

REFS = {"branch", "tag", "source", "destination", "ref", "right", "left"}
NEW = {("CreateBranch", "branch"), ("CreateTag", "tag")}
GONE_IS_FINE = {("DeleteBranch", "branch"), ("DeleteTag", "tag")}

CALLS = [
    *((verb, name, "") for verb, name in sorted(NEEDED)),
    *(
        (verb, name, "nosuch")
        for verb in GOOD
        for name in GOOD[verb]
        if name in REFS and (verb, name) not in NEW | GONE_IS_FINE
    ),
    *((verb, name, "a b") for verb in GOOD for name in GOOD[verb] if name in REFS and (verb, name) not in GONE_IS_FINE),
    *((verb, "repo", "nosuch") for verb in GOOD if verb != "DeleteRepository"),
    *((verb, "lakeops_conn_id", bad) for verb in GOOD for bad in ("other", "nosuch", "web")),
]


def state(repo: Repository) -> dict[str, Any]:
    """What a user sees of a repository."""
    refs = {ref.id: (ref.commit_id, tree(repo, ref.id)) for ref in (*repo.branches(), *repo.tags())}
    staged = {ref.id: [change.to_json() for change in repo.branch(ref.id).uncommitted()] for ref in repo.branches()}
    return {"refs": refs, "staged": staged, "protections": repo.protections()}


@pytest.fixture
def other(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Another lake, without repositories, and what connections lead where."""
    there = str(tmp_path / "other")
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps({"conn_type": "lakeops", "host": there}))
    monkeypatch.setenv("AIRFLOW_CONN_WEB", json.dumps({"conn_type": "http", "host": "example.org"}))
    return there


def test_each_says_what_is_wrong_and_changes_nothing(lake: Lake, flights: Repository, run: Any, other: str) -> None:
    main = flights.branch("main")
    for name in ("a", "b"):
        main.put(name, name.encode())
        main.commit(f"add {name}")
    flights.create_tag("v1", "main~1")
    dev = flights.create_branch("dev")
    dev.put("c", b"staged")
    before = state(flights)
    wrong = []
    for verb, name, bad in CALLS:
        given = {"repo": "flights", **GOOD[verb], name: bad}
        try:
            run(getattr(operators, f"Lakeops{verb}Operator")(task_id=verb, **given))
        except LakeopsFailure as failure:
            said = str(failure)
            if (bad or name) not in said or "\n" in said:
                wrong.append((verb, name, bad, said))
        except Exception as error:
            wrong.append((verb, name, bad, repr(error)))
        else:
            if (verb, bad) != ("DeleteRepository", "other"):  # nothing is there, so it is gone
                wrong.append((verb, name, bad, "done"))
    assert wrong == []
    assert state(lake.repository("flights")) == before
    with Lake.open(home=other) as elsewhere:
        assert list(elsewhere.repositories()) == []
