"""Sessions of commands: read arguments, open the lake when it is first needed, print the answer.

``command`` declares a command with the options that many share. The core is imported when the lake is opened, so
``--help`` and completion go without it.
"""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property, wraps
from itertools import chain, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

import typer

from lakeops.cli.options import After, Amount, Json, Prefix, Progress, Transfer, Yes, ref_in
from lakeops.cli.output import Printer, Styled, is_terminal
from lakeops.model.clock import stopwatch
from lakeops.model.errors import InvalidInput, NotFound
from lakeops.model.formatting import human_size, span
from lakeops.model.names import LakeUri
from lakeops.model.records import Progress as Report  # the options have a Progress, too
from lakeops.model.sanitising import safe

if TYPE_CHECKING:
    from socket import socket

    from uvicorn import Server

    from lakeops.lake import Branch, Lake, Ref, Repository
    from lakeops.lake.mirror import Mirror

P = ParamSpec("P")
T = TypeVar("T")


LINE_SECONDS = 2.0
"""Between two lines of progress."""

RATE_SECONDS = 1.0
"""Of work, before progress tells its rate."""

MAX_LISTED = 20
"""Losses that are listed one by one before a question. The others are only counted."""


def command(
    app: typer.Typer,
    name: str,
    *,
    example: str = "",
    progress: bool = False,
    asks: bool = False,
    lists: str = "",
    moves: bool = False,
) -> Callable[[Callable[Concatenate[Session, P], None]], Callable[Concatenate[Session, P], None]]:
    """Declare a command of ``app``. The function's first parameter is the session, the others are read by typer.

    Every command takes ``--json``, one that shows ``progress`` ``--progress`` and ``--no-progress``, one that ``asks``
    before it changes anything ``--yes``, and one that ``lists`` those of ``prefix after amount`` that are named. One
    that ``moves`` contents takes lakectl's ``--pre-sign``, without effect. ``example`` is a command line without
    ``lakeops``.
    """

    def declare(run: Callable[Concatenate[Session, P], None]) -> Callable[Concatenate[Session, P], None]:
        shared = {
            "prefix": ("prefix" in lists, Prefix, ""),
            "after": ("after" in lists, After, ""),
            "amount": ("amount" in lists, Amount, None),
            "pre_sign": (moves, Transfer, "false"),
            "yes": (asks, Yes, False),
            "progress": (progress, Progress, None),
            "json": (True, Json, False),
        }
        options = [
            inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for option, (wanted, annotation, default) in shared.items()
            if wanted
        ]

        @wraps(run)
        def invoke(*, json: bool, **given: Any) -> None:  # noqa: ANN401
            own = {name: given.pop(name) for name, (wanted, *_) in shared.items() if wanted and name in given}
            uris = [one for value in given.values() for one in (value if isinstance(value, list) else [value])]
            named = {one.connection for one in uris if isinstance(one, LakeUri)} or {""}
            with Session(json, named.pop(), own) as session:
                if named:
                    raise InvalidInput("the URIs name several lakes; write one connection in all", kind="invalid_uri")
                cast("Callable[..., None]", run)(session, **given)

        signature = inspect.signature(run, eval_str=True)
        own = list(signature.parameters.values())[1:]
        invoke.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined] # for typer
        app.command(name, epilog=f"Example: lakeops {example}" if example else None)(invoke)
        return run

    return declare


class Session(Printer, ExitStack):
    """The state of one command: the lake, the handles that its arguments name, questions, progress and output.

    With ``yes`` nothing is asked. ``prefix``, ``after`` and ``amount`` say which part of a list is asked for.
    ``connection`` is the Airflow connection that the arguments name.
    """

    def __init__(self, as_json: bool, connection: str, shared: Mapping[str, Any]) -> None:
        ExitStack.__init__(self)
        Printer.__init__(self, as_json)
        self._connection = connection
        self.yes: bool = shared.get("yes", False)
        self._show_progress: bool | None = shared.get("progress")
        self.prefix: str = shared.get("prefix", "")
        self.after: str = shared.get("after", "")
        self.amount: int | None = shared.get("amount")

    @cached_property
    def lake(self) -> Lake:
        """The lake of the connection that the URIs name, or that the settings name."""
        from lakeops.lake import Lake

        if not gc.isenabled():  # main() switched it off for the imports, which are done now
            gc.freeze()
            gc.enable()
        from lakeops.settings import LakeAddress, advice, strange_keys, strange_variables

        def warn(strangers: Iterable[tuple[str, str]]) -> None:
            for name, place in strangers:
                self.message(("Warning: ", "yellow"), f"{name} {advice(name, place)}")

        warn(strange_variables())  # before the lake, which they may be to blame for
        address = LakeAddress.of(self._connection)
        lake = self.enter_context(address.open(Lake.open))
        if address.connection is not None:
            self.enter_context(address.naming(lake.catalog.database.shown))
        warn(strange_keys())  # after it, which says what cannot be read
        return lake

    def now(self) -> int:
        """The catalog's time, in Unix seconds."""
        return int(self.lake.catalog.now().timestamp())

    # --- what URIs name ---

    def repository(self, uri: LakeUri) -> Repository:
        """The repository of ``lakefs://REPO``."""
        return self.lake.repository(uri.only_repository())

    def ref(self, uri: LakeUri) -> Ref:
        """The ref of ``lakefs://REPO/REF``."""
        repository, name = self.named(uri)
        return repository.ref(name)

    def branch(self, uri: LakeUri) -> Branch:
        """The branch of ``lakefs://REPO/BRANCH``."""
        repository, name = self.named(uri)
        return repository.branch(name)

    def at_path(self, uri: LakeUri, *, folder: bool = False) -> tuple[Ref, str]:
        """The ref of ``lakefs://REPO/REF/PATH``, and the path, which may be left out of a ``folder``'s."""
        name, ref, path = uri.with_prefix() if folder else uri.with_path()
        return self.lake.repository(name).ref(ref), path

    def on_branch(self, uri: LakeUri, *, folder: bool = False) -> tuple[Branch, str]:
        """The branch of ``lakefs://REPO/BRANCH/PATH``, and the path, which may be left out of a ``folder``'s."""
        name, branch, path = uri.with_prefix() if folder else uri.with_path()
        return self.lake.repository(name).branch(branch), path

    def mirror(self, uri: LakeUri) -> Mirror:
        """The mirror of ``lakefs://REPO``."""
        return self.lake.mirror(uri.only_repository())

    def named(self, uri: LakeUri) -> tuple[Repository, str]:
        """The repository of ``lakefs://REPO/REF``, and the name of the ref."""
        name, ref = uri.only_ref()
        return self.lake.repository(name), ref

    def two_refs(self, left: LakeUri, right: LakeUri | str) -> tuple[Repository, str, str]:
        """The repository of two refs, and their names. Raises ``InvalidInput``."""
        name, ref = left.only_ref()
        other = ref_in(name, right)
        return self.lake.repository(name), ref, other

    def note_left_out(self, dirty: Sequence[str], advice: str = "") -> None:
        """Note that a command left out the uncommitted changes of these branches."""
        names = [part for ref in dirty for part in ((" and ", "yellow"), (ref, "green"))][1:]
        if names:
            self.note(("Uncommitted changes of ", "yellow"), *names, (f" were left out{advice}.", "yellow"))

    # --- the person at the terminal ---

    @property
    def can_ask(self) -> bool:
        """Whether a person is there to answer."""
        return not self.as_json and is_terminal(sys.stdin) and is_terminal(sys.stderr)

    def confirm(self, question: str, show: Callable[[], None], *, optional: bool = False) -> bool:
        """Ask before a change, after ``show`` has printed what would be lost. Leave the command when the answer is no.

        Returns whether somebody was asked: then only what was shown may be changed. When nobody can be asked, raises
        ``InvalidInput``, or goes on if that is ``optional``.
        """
        if self.yes or (optional and not self.can_ask):
            return False
        if not self.can_ask:
            if not self.as_json:
                show()
            raise InvalidInput(f"{question} Nobody can be asked here; pass --yes to do it")
        show()
        try:
            typer.confirm(question, abort=True, err=True)
        except typer.Abort as left:
            if isinstance(left.__context__, KeyboardInterrupt):  # typer takes it for a no
                raise KeyboardInterrupt from None
            raise
        return True

    def losses(
        self, items: Iterable[T], title: Callable[[int], Sequence[Styled]], line: Callable[[T], Sequence[Styled]]
    ) -> None:
        """Print what would be lost: a title with the number of items, and the first ``MAX_LISTED`` of them."""
        rest = iter(items)
        first = list(islice(rest, MAX_LISTED))
        more = sum(1 for _ in rest)
        self.message(*title(len(first) + more))
        for item in first:
            self.message("  ", *line(item))
        if more:
            self.message(f"  ... and {more:,} more")

    def serve(self, server: Server, socket: socket) -> None:
        """Print the answer so far, and serve requests until Ctrl+C, which ends a server without an error."""
        self.flush()
        with suppress(KeyboardInterrupt):
            server.run(sockets=[socket])

    @contextmanager
    def progress(self, label: str, *, size: bool | Container[str] = False) -> Iterator[Report]:
        """Show the progress of the verbs inside the ``with``: a bar on a terminal, lines where asked for, or nothing.

        ``size`` says whether amounts are bytes, or has the labels of those reports whose amounts are.
        """
        watched = is_terminal(sys.stderr) and not self.as_json
        if not watched and self._show_progress:
            self.lake.progress = self._lines(label, size)
            yield self.lake.progress
            return
        if not watched or self._show_progress is False:
            yield lambda _label, _done, _total: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        words, amount = (TextColumn(f"{{task.{name}}}", markup=False) for name in ("description", "fields[amount]"))
        columns = (SpinnerColumn(), words, BarColumn(), amount, TimeElapsedColumn())
        # On a terminal, answers are printed above the bar. Any other stdout must get them unchanged.
        redirect = is_terminal(sys.stdout)
        with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=redirect) as bar:
            task = bar.add_task(safe(label), total=None, amount="")
            amount_of = _Amounts(size)

            def advance(label: str, done: int, total: int) -> None:
                shown = amount_of(label, done, total)
                bar.update(task, description=safe(label), completed=done, total=total or None, amount=shown)

            self.lake.progress = advance
            yield advance

    def part(
        self, records: Iterable[T], name: str | Callable[[Any], Any] = "id", *, newest_first: bool = False
    ) -> Iterator[T]:
        """Yield the records of a list that ``--prefix``, ``--after`` and ``--amount`` ask for, by their names."""
        named_by: Callable[[Any], Any] = attrgetter(name) if isinstance(name, str) else name
        named: Iterator[tuple[str, T]] = ((str(named_by(record)), record) for record in records)
        if self.after and newest_first:
            if all(name != self.after for name, _ in named):
                raise NotFound(f"--after {self.after!r} is not in this list; give a whole id, number or name")
        elif self.after:
            named = (one for one in named if one[0] > self.after)
        return islice((record for key, record in named if key.startswith(self.prefix)), self.amount)

    def awaited(self, label: str, records: Iterable[T], *, long: bool = True) -> Iterator[T]:
        """Yield the records, and show progress until the first one is there, where that takes ``long``."""
        rest = iter(records)
        if not long:
            return rest
        with self.progress(label):
            first = list(islice(rest, 1))
        return chain(first, rest)

    def _lines(self, label: str, size: bool | Container[str]) -> Report:
        passed, last, amount_of = stopwatch(), 0.0, _Amounts(size)
        self.message(safe(label))

        def report(label: str, done: int, total: int) -> None:
            nonlocal last
            shown = amount_of(label, done, total)
            if passed() - last >= LINE_SECONDS:
                last = passed()
                self.message(f"{safe(label)}: {shown}")

        return report


class _Amounts:
    """Words for progress: how much of what is done, how much a second since the label came up, and the time left."""

    def __init__(self, size: bool | Container[str]) -> None:
        self._size = size
        self._label, self._passed, self._first = "", stopwatch(), 0

    def __call__(self, label: str, done: int, total: int) -> str:
        if label != self._label:
            self._label, self._passed, self._first = label, stopwatch(), done
        in_bytes = self._size if isinstance(self._size, bool) else label in self._size
        shown = human_size if in_bytes else "{:,}".format
        amount = f"{shown(done)} of {shown(total)}" if total else shown(done) if done else ""
        passed, moved = self._passed(), done - self._first
        if passed < RATE_SECONDS or moved <= 0:
            return amount
        left = f", {span(round((total - done) * passed / moved))} left" if total > done else ""
        return f"{amount}, {shown(round(moved / passed))}/s{left}"
