"""Opening the lake for one command. The core is imported here, late: ``--help`` and completion go without it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, BinaryIO

import typer

from lakeops.cli.output import Output, human_size, is_terminal, safe
from lakeops.model.errors import InvalidInput, LakeopsError

if TYPE_CHECKING:
    from lakeops.lake import Lake


Report = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


@contextmanager
def watched(out: Output, label: str, *, hidden: bool, size: bool = False) -> Iterator[Report]:
    """Somewhere to report progress to: a bar on a terminal, otherwise nowhere.

    Args:
        out: the command's output.
        label: what is being done until a report says more.
        hidden: show nothing in any case.
        size: whether amounts are bytes.
    """
    if hidden or out.as_json or not is_terminal(sys.stderr):
        yield lambda _label, _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    words, amount = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[amount]}", markup=False)
    columns = (SpinnerColumn(), words, BarColumn(), amount, TimeElapsedColumn())
    show = human_size if size else "{:,}".format
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(safe(label), total=None, amount="")

        def report(label: str, done: int, total: int) -> None:
            amount = f"{show(done)} of {show(total)}" if total else ""
            bar.update(task, description=safe(label), completed=done, total=total or None, amount=amount)

        yield report


class Tally:
    """Adds up the bytes that several threads move, and reports the sum.

    Args:
        report: where to.
        label: what is being done.
        total: how many bytes there are.
    """

    def __init__(self, report: Report, label: str, total: int) -> None:
        self._report = report
        self._label = label
        self._total = total
        self._done = 0
        self._stopped = False
        self._lock = Lock()

    def counting(self, file: BinaryIO) -> CountedFile:
        """The file, counted as it is read."""
        return CountedFile(file, self)

    def stop(self) -> None:
        """Let every file that is still being read end with an error."""
        self._stopped = True

    def add(self, size: int) -> None:
        """Count some more bytes. Raises ``LakeopsError`` once stopped."""
        if self._stopped:
            raise LakeopsError("stopped, because another file failed or the command was interrupted")
        with self._lock:
            self._done += size
            self._report(self._label, self._done, self._total)


class CountedFile:
    """A binary file that can only be read, and tells a tally how much of it was."""

    def __init__(self, file: BinaryIO, tally: Tally) -> None:
        self._file = file
        self._tally = tally

    def read(self, size: int = -1) -> bytes:
        """The next bytes, at most ``size`` of them."""
        data = self._file.read(size)
        self._tally.add(len(data))
        return data


@contextmanager
def open_lake(out: Output, label: str = "", *, hide_progress: bool = True) -> Iterator[Lake]:
    """The lake that the settings name; ``label`` says what long work shows progress of, unless it is hidden."""
    from lakeops.lake import Lake

    if not gc.isenabled():  # main() switched it off for the imports, which are done now
        gc.freeze()
        gc.enable()
    with Lake.open() as lake, watched(out, label, hidden=hide_progress) as report:
        lake.progress = report
        yield lake


SHOWN = 20
"""How many single losses are listed before the rest is only counted."""


def can_ask(out: Output) -> bool:
    """Whether a person is there to answer."""
    return not out.as_json and is_terminal(sys.stdin) and is_terminal(sys.stderr)


def agree(out: Output, yes: bool, question: str, show: Callable[[], None]) -> None:
    """Return when the user wants it; leave the command otherwise.

    Args:
        out: shows what would go, and asks, on stderr.
        yes: the user has agreed beforehand: nothing is shown or asked.
        question: what is about to happen, as a question.
        show: prints what would go.

    Raises:
        InvalidInput: nobody can be asked.
        Abort: the answer is no.
    """
    if yes:
        return
    if not can_ask(out):
        if not out.as_json:
            show()
        raise InvalidInput(f"{question} Nobody can be asked here; pass --yes to do it")
    show()
    typer.confirm(question, abort=True, err=True)
