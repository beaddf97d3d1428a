"""``lakeops bisect``: find the commit that made something wrong, by a command that looks at commits."""

from __future__ import annotations

import os
import subprocess
from shutil import which
from typing import Annotated

import typer

from lakeops.cli.history import commit_lines, oneline_of
from lakeops.cli.options import flag, uri
from lakeops.cli.session import Session, command
from lakeops.model.errors import InvalidInput
from lakeops.model.records import Commit
from lakeops.model.text import excerpt
from lakeops.model.uris import SCHEME, LakeUri
from lakeops.model.words import counted

app: typer.Typer = typer.Typer(add_completion=False)


@app.callback()
def bisect() -> None:
    """Find the commit that made something wrong."""


STDERR = 2
"""Where the command's output goes: stdout is for the answer."""

SKIP = 125
FIRST_ABORT = 128
"""Exit codes of the command, as for ``git bisect run``."""


@command(app, "run", example="bisect run lakefs://flights/v1 lakefs://flights/main -- ./check.sh")
def run(
    session: Session,
    good: Annotated[LakeUri, uri("lakefs://REPO/GOOD", "A ref at which all was well.")],
    bad: Annotated[LakeUri, uri("lakefs://REPO/BAD", "A later ref at which it is not.")],
    words: Annotated[
        list[str], typer.Argument(metavar="-- CMD...", help="The command that looks.", show_default=False)
    ],
    first_parent: Annotated[
        bool, flag("--first-parent", "Look at merges as a whole: leave out what was merged.")
    ] = False,
) -> None:
    """Find the first bad commit between two refs, by a command that looks at commits.

    The command finds the commit in BISECT_URI (lakefs://REPO/COMMIT) and BISECT_COMMIT. It ends with 0 when the commit
    is good, with 125 when it cannot tell, and with another code below 128 when the commit is bad. Any other end stops
    the search.
    """
    repository, first, last = session.two_refs(good, bad)
    if which(words[0]) is None:
        raise InvalidInput(f"{excerpt(words[0])} is no program that can be run")
    looked, left = 0, 0

    def on_left(count: int) -> None:
        nonlocal left
        left = count

    def is_good(commit: Commit) -> bool | None:
        nonlocal looked
        looked += 1
        more = counted(max(1, (left - 1).bit_length()), "look")
        session.note(f"Looking at (about {more} left) ", *oneline_of(commit))
        code = _look(words, f"{SCHEME}{repository.id}/{commit.id}", commit)
        verdict = None if code == SKIP else code == 0
        session.note("  ", "cannot tell" if verdict is None else ("good", "green") if verdict else ("bad", "red"))
        return verdict

    found = repository.bisect(first, last, is_good, first_parent=first_parent, on_left=on_left)
    session.answer(
        {**found.to_json(), "looks": looked},
        ["The first bad commit, after ", counted(looked, "look"), ":"],
        [""],
        *commit_lines(found),
    )


def _look(words: list[str], uri: str, commit: Commit) -> int:
    """The exit code of the command at a commit. Raises ``InvalidInput`` for one that stops the search."""
    place = {"BISECT_URI": uri, "BISECT_COMMIT": commit.id}
    try:
        done = subprocess.run(words, check=False, env={**os.environ, **place}, stdout=STDERR)
    except OSError as error:
        raise InvalidInput(f"{words[0]!r} cannot be run: {(error.strerror or '').lower()}") from None
    if not 0 <= done.returncode < FIRST_ABORT:
        raise InvalidInput(f"{words[0]!r} ended with {done.returncode} at {commit.id[:16]}; the search stops")
    return done.returncode
