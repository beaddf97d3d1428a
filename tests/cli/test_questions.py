"""Commands that show what they are about to do, and ask: what changes until the answer comes is left alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lakeops import Repository
from lakeops.cli import session

R = "lakefs://flights"
CASES: dict[str, tuple[tuple[str, ...], Callable[[Repository], object]]] = {
    "reset": (("branch", "reset", f"{R}/dev"), lambda repo: repo.branch("dev").put("late", b"1")),
    "reset of a folder": (
        ("branch", "reset", f"{R}/dev", "--prefix", "raw/"),
        lambda repo: repo.branch("dev").put("raw/c.csv", b"7\n"),
    ),
    "delete": (("branch", "delete", f"{R}/dev"), lambda repo: repo.branch("dev").commit("late")),
    "remove": (("fs", "rm", f"{R}/dev/raw/", "--recursive"), lambda repo: repo.branch("dev").put("raw/c.csv", b"7\n")),
    "tag move": (("tag", "move", f"{R}/v1", f"{R}/main~1"), lambda repo: repo.move_tag("v1", "main~2")),
    "tag delete": (("tag", "delete", f"{R}/v1"), lambda repo: repo.move_tag("v1", "main~1")),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("changes", [True, False])
def test_only_what_was_shown_is_done(
    run, flights: Repository, monkeypatch: pytest.MonkeyPatch, case: str, changes: bool
) -> None:
    command, meanwhile = CASES[case]
    after: dict[str, object] = {}

    def confirm(*_: object, **__: object) -> bool:
        if changes:
            meanwhile(flights)
        after.update(_everything(flights))
        return True

    monkeypatch.setattr(session.Session, "can_ask", True)
    monkeypatch.setattr(session.typer, "confirm", confirm)
    result = run(*command)
    assert result.exit_code == (5 if changes else 0), result.output
    assert (_everything(flights) == after) is changes
    if changes:
        assert "nothing was done" in result.stderr
        assert run(*command, "--yes").exit_code == 0


def _everything(repo: Repository) -> dict[str, object]:
    refs = {ref.id: ref.commit_id for ref in (*repo.branches(), *repo.tags())}
    shown = {ref.id: {one.path: one.checksum for one in repo.branch(ref.id).list()} for ref in repo.branches()}
    return {**refs, "shown": shown}
