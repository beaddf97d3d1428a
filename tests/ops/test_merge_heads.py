"""What a caller may look at before a merge, a revert, a cherry-pick or an import follows a head."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakeops import Lake, Repository


class Stop(Exception):
    """What the caller raises."""


@pytest.fixture
def repo(lake: Lake) -> Repository:
    repo = lake.create_repository("heads")
    repo.branch("main").put("a", b"1")
    repo.branch("main").commit("add a")
    repo.create_branch("dev").put("b", b"1")
    repo.branch("dev").commit("add b")
    return repo


def lying(tmp_path: Path) -> str:
    (tmp_path / "lying").mkdir(exist_ok=True)
    (tmp_path / "lying" / "x").write_text("x")
    return f"file://{tmp_path}/lying"


VERBS: dict[str, Callable[..., Any]] = {
    "merge": lambda repo, _, **more: repo.merge("dev", "main", **more),
    "revert": lambda repo, _, **more: repo.branch("main").revert("add-a", **more),
    "cherry-pick": lambda repo, _, **more: repo.cherry_pick("dev", "main", **more),
    "import": lambda repo, path, **more: repo.branch("main").import_objects(lying(path), "in/", "load", **more),
}


@pytest.mark.parametrize("verb", VERBS)
def test_each_head_is_shown_before_it_is_followed(repo: Repository, tmp_path: Path, verb: str) -> None:
    repo.create_tag("add-a", "main")
    seen: list[str] = []

    def stop(_: str) -> None:
        raise Stop

    before = repo.branch("main").commit_id
    with pytest.raises(Stop):
        VERBS[verb](repo, tmp_path, on_head=stop)
    assert repo.branch("main").commit_id == before

    def meanwhile(head: str) -> None:
        seen.append(head)
        if len(seen) == 1:
            repo.branch("main").put("meanwhile", b"1")
            repo.branch("main").commit("meanwhile")

    VERBS[verb](repo, tmp_path, on_head=meanwhile, idempotency_key="k")
    after = repo.branch("main").head
    assert seen == [before, after.parents[0]], "a head that moved is shown again"
    VERBS[verb](repo, tmp_path, on_head=stop, idempotency_key="k")
    assert repo.branch("main").commit_id == after.id, "what was done already is not asked about"
