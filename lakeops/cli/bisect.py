"""``lakeops bisect``: find the first bad commit, by hand or by a command that tests commits."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Sequence
from shutil import which
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakeops.cli.history import commit_lines, oneline_of
from lakeops.cli.options import FirstParent, argument, complete, lake_uri, ref
from lakeops.cli.session import Session, command
from lakeops.model.errors import InvalidInput, NotFound
from lakeops.model.formatting import counted
from lakeops.model.names import OTHER_SCHEME, SCHEME, LakeUri
from lakeops.model.records import Commit
from lakeops.model.sanitising import excerpt

if TYPE_CHECKING:
    from lakeops.lake import Repository
    from lakeops.ops.bisection import Bisection, Verdict

app: typer.Typer = typer.Typer(help="Find the first commit that is bad.", add_completion=False)

STDERR = 2
"""The file descriptor for the command's output. Stdout is for the answer."""

SKIP = 125
FIRST_ABORT = 126
"""Exit codes of the command, as for ``git bisect run``. A shell ends with 126 or 127 when it cannot run a program."""


_Refs = Annotated[
    list[Any], ref("lakefs://REPO/REF", "The commits. lakefs://REPO alone, or nothing, means the one shown last.")
]


@command(app, "start", example="bisect start lakefs://flights/main lakefs://flights/v1")
def start(
    session: Session,
    refs: Annotated[list[Any], ref("lakefs://REPO/REF", "A bad ref and good ones, or the repository.")],
    first_parent: FirstParent = False,
) -> None:
    """Begin a search for the first bad commit by hand. It replaces a search under way."""
    repository = _repository(session, refs)
    named = _name_refs(refs)
    _show(session, repository.start_bisect(*named, first_parent=first_parent) if named else repository.start_bisect())


@command(app, "good", example="bisect good lakefs://flights/v1")
def good(session: Session, refs: _Refs = ()) -> None:  # type: ignore[assignment]  # typer takes any sequence
    """Mark commits as good, and show the next one to look at."""
    _mark(session, "good", refs)


@command(app, "bad", example="bisect bad lakefs://flights/main")
def bad(session: Session, refs: _Refs = ()) -> None:  # type: ignore[assignment]
    """Mark a commit as bad, and show the next one to look at."""
    _mark(session, "bad", refs)


@command(app, "skip", example="bisect skip lakefs://flights")
def skip(session: Session, refs: _Refs = ()) -> None:  # type: ignore[assignment]
    """Skip commits that cannot be judged, and show the next one to look at."""
    _mark(session, "skip", refs)


@command(app, "reset", example="bisect reset lakefs://flights")
def reset(session: Session, refs: _Refs = ()) -> None:  # type: ignore[assignment]
    """Forget a search that is under way."""
    repository = _under_way(session, refs)
    repository.end_bisect()
    session.answer({"repository": repository.id, "reset": True}, ["The search is forgotten."])


@command(app, "run", example="bisect run lakefs://flights/v1 lakefs://flights/main -- ./check.sh")
def run(
    session: Session,
    words: Annotated[
        list[str],
        argument(
            "[lakefs://REPO/GOOD lakefs://REPO/BAD] -- CMD...",
            "A good ref, a later bad ref, and the command that judges. Without refs it continues a search.",
            autocompletion=complete,
        ),
    ],
    first_parent: FirstParent = False,
) -> None:
    """Find the first bad commit between two refs, by a command that looks at commits.

    The command finds the commit in BISECT_URI (lakefs://REPO/COMMIT) and BISECT_COMMIT. It ends with 0 when the commit
    is good, with 125 when it cannot tell, and with another code below 126 when the commit is bad. Any other end stops
    the search: a shell ends with 126 or 127 when it cannot run the command.
    """
    has_refs = bool(words) and words[0].startswith((SCHEME, OTHER_SCHEME))
    refs, words = (words[:2], words[2:]) if has_refs else ([], words)
    if not words:
        raise typer.BadParameter("give a good ref, a bad one and a command, or a command alone")
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
        code = _exit_code_at(words, f"{SCHEME}{repository.id}/{commit.id}", commit)
        verdict = None if code == SKIP else code == 0
        session.note("  ", "cannot tell" if verdict is None else ("good", "green") if verdict else ("bad", "red"))
        return verdict

    if refs:
        repository, first, last = session.two_refs(lake_uri(refs[0]), refs[1])
        found = repository.bisect(first, last, is_good, first_parent=first_parent, on_left=on_left)
    else:
        repository = _under_way(session, ())
        state = repository.bisection()
        while state.next is not None:
            on_left(state.left)
            verdict = is_good(state.next)
            state = repository.mark_bisect("skip" if verdict is None else "good" if verdict else "bad")
        if state.first_bad is None:
            _show(session, state)
            return
        found = state.first_bad
    session.answer(
        {**found.to_json(), "looks": looked},
        ["The first bad commit, after ", counted(looked, "look"), ":"],
        [""],
        *commit_lines(found),
    )


def _mark(session: Session, verdict: Verdict, refs: Sequence[LakeUri | str]) -> None:
    _show(session, _under_way(session, refs).mark_bisect(verdict, *_name_refs(refs)))


def _name_refs(refs: Sequence[LakeUri | str]) -> list[str]:
    return [one if isinstance(one, str) else one.only_ref()[1] for one in refs if isinstance(one, str) or one.ref]


def _repository(session: Session, refs: Sequence[LakeUri | str], others: Iterable[str] = ()) -> Repository:
    """The repository of the URIs among these refs, or else the only one of the ``others``."""
    names = {one.repository for one in refs if isinstance(one, LakeUri)} or set(others)
    if len(names) != 1:
        raise InvalidInput(f"say which repository is meant: {', '.join(sorted(names))}")
    return session.lake.repository(names.pop())


def _under_way(session: Session, refs: Sequence[LakeUri | str]) -> Repository:
    from lakeops.ops.bisection import folder_of

    searched = [file.stem for file in folder_of(session.lake.catalog, session.lake.settings.home).glob("*.json")]
    if not searched and not any(isinstance(one, LakeUri) for one in refs):
        raise NotFound("no bisection is under way; begin with lakeops bisect start")
    return _repository(session, refs, searched)


def _show(session: Session, state: Bisection) -> None:
    """Print the state of a search. Raises ``NotFound`` when none of the commits that are left can be judged."""
    if state.first_bad is not None:
        session.answer(state, ["The first bad commit:"], [""], *commit_lines(state.first_bad))
    elif state.next is not None:
        more = counted(max(1, (state.left - 1).bit_length()), "look")
        session.answer(
            state,
            [f"Look at this commit (of {state.left:,} that are left, about {more}):"],
            list(oneline_of(state.next)),
            [f"{SCHEME}{state.repository}/{state.next.id}"],
        )
    elif state.untold:
        from lakeops.ops.bisection import nothing_told

        raise nothing_told(state.untold)
    else:
        missing = " and ".join(name for name, known in (("a bad", state.bad), ("a good", state.good)) if not known)
        session.answer(state, [f"The search waits for {missing} commit."])


def _exit_code_at(words: list[str], uri: str, commit: Commit) -> int:
    """Run the command at a commit and return its exit code. Raises ``InvalidInput`` to stop the search."""
    place = {"BISECT_URI": uri, "BISECT_COMMIT": commit.id}
    try:
        done = subprocess.run(words, check=False, env={**os.environ, **place}, stdout=STDERR)
    except OSError as error:
        raise InvalidInput(f"{words[0]!r} cannot be run: {(error.strerror or '').lower()}") from None
    if not 0 <= done.returncode < FIRST_ABORT:
        raise InvalidInput(f"{words[0]!r} ended with {done.returncode} at {commit.id[:16]}; the search stops")
    return done.returncode
